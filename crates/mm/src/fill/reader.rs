//! For whom pages are brought in: a read, an uncached one, or a fault, which has its page put where the window shows it.

use foliocache_sync::Arc;
use foliocache_sys::Errno;
use std::cell::Cell;

use crate::direct_map;
use crate::folio::{Folio, flag};
use crate::iocb::Iocb;
use crate::ops::IoSegment;
use crate::records::{AddressSpace, Mm, Window};
use crate::types::{PAGE_SIZE, PageIndex};

/// For whom pages are brought in.
#[derive(Clone, Copy)]
pub(crate) enum Reader<'a> {
    /// They stay.
    Ordinary,
    /// They go once they were copied.
    Uncached,
    /// They stay, and one that is read alone comes to where the window shows it.
    Fault(&'a ReadFault<'a>),
}

impl Reader<'_> {
    pub(crate) fn of(iocb: &Iocb) -> Self {
        match iocb.uncached {
            true => Self::Uncached,
            false => Self::Ordinary,
        }
    }

    pub(crate) fn is_uncached(self) -> bool {
        matches!(self, Self::Uncached)
    }
}

/// A read fault of a window, while its page is brought in.
pub(crate) struct ReadFault<'a> {
    pub(crate) window: &'a Arc<Window>,
    /// The page tables have the page.
    pub(crate) placed: Cell<bool>,
}

/// A page that a store reads to, which may want it aligned.
#[repr(align(4096))]
struct PageBuffer([u8; PAGE_SIZE]);

impl AddressSpace {
    /// Reads a page, whose folio of one page is locked and new, for a fault, and puts it where the window shows it; how
    /// many bytes of it the store has.
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn read_for_fault(
        &self,
        fault: &ReadFault<'_>,
        folio: &Folio,
        page: PageIndex,
    ) -> Result<usize, Errno> {
        let (mm, window): (&Mm, _) = (self.mm(), fault.window);
        let mut buffer = PageBuffer([0; PAGE_SIZE]);
        let segments = [IoSegment::from_mut(&mut buffer.0)];
        let read = self.ops.read_folios(page.pos(), &segments)?;
        let valid = self.size().saturating_sub(page.pos()).min(read as u64);
        let bytes = &mut buffer.0;
        bytes[valid.min(PAGE_SIZE as u64) as usize..].fill(0);
        let linear = self.linear.get().expect("it is mapped");
        let windows = linear.windows.read();
        let listed = windows.iter().any(|listed| Arc::ptr_eq(listed, window));
        if listed && window.has_table(page.0) && self.has_page(page) {
            window.readahead.note_read(page.pos()..page.add(1).pos());
            folio.state.set(flag::MAPPED);
            fault.placed.set(window.place(mm.windows(), page.0, bytes));
        }
        if !fault.placed.get() {
            // Its frame is taken back, most of the time.
            direct_map::store(mm.frames.addr(folio.frame()), bytes);
        }
        Ok(read)
    }
}
