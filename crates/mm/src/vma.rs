//! Mapped parts of files, as the callers of this crate have them.

use foliocache_sync::Arc;
use foliocache_sys::Errno;
use std::fmt;
use std::ops::Range;

use crate::frames::MIN_LINEAR_LIMIT;
use crate::mapped::{Held, HoldKind, LockedAccess, MapError, VmaAccess};
use crate::readahead::ReadaheadState;
use crate::records::{AddressSpace, LinearFile, Mm, Window, Windows};
use crate::slab::SlabArc;
use crate::types::{PAGE_SIZE, PageIndex, end_of, offset_in_page, pages_for};

/// A mapped part of a file. Dropping it unmaps it.
pub struct Vma {
    mapping: SlabArc<AddressSpace>,
    pub(crate) window: Arc<Window>,
    len: usize,
    /// The hold of one without faults.
    held: Option<Held>,
}

/// A range of a mapping that system calls may use until this is dropped.
#[derive(Debug)]
pub struct IoLock<'a> {
    vma: &'a Vma,
    held: Held,
}

impl AddressSpace {
    /// Maps `len` bytes from `pos` on. Bytes of the file can be accessed, also those that it gets later. A touch
    /// beyond the end of the file, or of a page that cannot be read, is SIGBUS.
    ///
    /// Its pages are those of the cache: a store is seen by readers at once, and a write by the program. The first
    /// mapping of a part of a file moves its cached pages. Blocks for memory then, and for I/O that is under way.
    /// Takes some 700 bytes of the bound, a bit for each 2 MiB, and 4 KiB for every 2 MiB that are touched.
    ///
    /// # Errors
    /// See [`MapError`]; `EINVAL` for no bytes or a `pos` that is not a multiple of 4 KiB, `EFBIG`, `ECHILD`
    /// after a fork.
    pub fn map(&self, pos: u64, len: usize, access: VmaAccess) -> Result<Vma, MapError> {
        let pages = self.pages_to_map(pos, len)?;
        let windows = self.mm().ready_windows()?;
        let linear = self.make_linear(pages.end)?;
        let window = self.add_window(windows, linear, pages, access, None)?;
        Ok(Vma {
            mapping: self.share(),
            window,
            len,
            held: None,
        })
    }

    /// Maps `len` bytes from `pos` on that are in the file, and keeps them in memory: all of them are read, made huge
    /// pages of where the kernel can, and mapped without faults of ours. They count as memory that cannot be
    /// reclaimed, each page once. Pages that are cut off the file later cannot be accessed any more: a touch is
    /// SIGSEGV.
    ///
    /// Blocks for I/O and memory.
    ///
    /// # Errors
    /// As [`AddressSpace::map`]; [`MapError::TooMuchHeld`]; `EINVAL` for bytes beyond the end of the file; those of
    /// the store.
    pub fn map_locked(&self, pos: u64, len: usize, locked: LockedAccess) -> Result<Vma, MapError> {
        let pages = self.pages_to_map(pos, len)?;
        let in_file = || match pages.end > pages_for(self.size()) {
            true => Err(MapError::from(Errno::EINVAL)),
            false => Ok(()),
        };
        in_file()?;
        let windows = self.mm().ready_windows()?;
        let linear = self.make_linear(pages.end)?;
        let (access, kind) = match locked {
            LockedAccess::Read => (VmaAccess::Read, HoldKind::Read),
            LockedAccess::Untracked => (VmaAccess::ReadWrite, HoldKind::Untracked),
        };
        // A truncate from here on finds the window.
        let shared = self.share_i_rwsem();
        in_file()?;
        let mut held = Held::new(pages.clone(), kind);
        let new = self.hold(linear, &mut held)?;
        let window = self
            .add_window(windows, linear, pages.clone(), access, Some(locked))
            .inspect_err(|_| self.release(linear, &held))?;
        let vma = Vma {
            mapping: self.share(),
            window,
            len,
            held: Some(held),
        };
        drop(shared);
        let mm: &Mm = self.mm();
        mm.wait_for_metadata(|| vma.window.charge_tables(mm, &pages))?;
        if new {
            vma.window.collapse(mm, &pages);
        }
        vma.window.fill(windows);
        Ok(vma)
    }

    fn add_window(
        &self,
        windows: &Windows,
        linear: &LinearFile,
        pages: Range<u64>,
        access: VmaAccess,
        locked: Option<LockedAccess>,
    ) -> Result<Arc<Window>, MapError> {
        let (mm, bytes): (&Mm, _) = (self.mm(), Window::memory_bytes(&pages));
        mm.wait_for_metadata(|| mm.take_metadata(bytes))?;
        let window = windows.add(self, linear, pages, access, locked);
        window.inspect_err(|_| mm.uncharge_metadata(bytes))
    }

    /// The pages of a mapping, if it can be made.
    fn pages_to_map(&self, pos: u64, len: usize) -> Result<Range<u64>, MapError> {
        let mm = self.mm();
        mm.check_fork()?;
        if len == 0 || offset_in_page(pos) != 0 {
            return Err(Errno::EINVAL.into());
        }
        let end = end_of(pos, len as u64).ok_or(Errno::EFBIG)?;
        let limit = mm.frames.limit();
        if limit < MIN_LINEAR_LIMIT {
            let min = MIN_LINEAR_LIMIT;
            return Err(MapError::LimitTooSmall { limit, min });
        }
        Ok(PageIndex::of(pos).0..pages_for(end))
    }
}

impl Vma {
    /// Where it begins.
    pub fn address(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.window.address)
    }

    /// Its bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: a mapping has bytes.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The file.
    pub fn mapping(&self) -> &AddressSpace {
        &self.mapping
    }

    /// The access that it was made for.
    pub fn access(&self) -> VmaAccess {
        self.window.access
    }

    /// The bytes of the file that it shows.
    pub fn range(&self) -> Range<u64> {
        let start = PageIndex(self.window.pages.start).pos();
        start..start + self.len as u64
    }

    /// Has `stored` called whenever pages become writable because of a store, before the store is made: once for
    /// each folio between two of its writebacks, or more often. It is called with a folio lock held and does not
    /// block. The first call of this counts.
    pub fn on_store(&self, stored: impl Fn() + Send + Sync + 'static) {
        let _ = self.window.stored.set(Box::new(stored));
    }

    /// How it is read ahead of.
    pub fn readahead(&self) -> &ReadaheadState {
        &self.window.readahead
    }

    /// Puts the pages of a range of its bytes into the page tables, for stores too if `write`, reading what is not
    /// cached. A hint: they may leave again at any time. Blocks for I/O and memory.
    ///
    /// # Errors
    /// `EINVAL` for bytes beyond the mapping, those of the store; `EFAULT` beyond the end of the file;
    /// `ECHILD` after a fork.
    pub fn populate(&self, range: Range<usize>, write: bool) -> Result<(), Errno> {
        let pages = self.pages(&range)?;
        let mut page = pages.start;
        while page < pages.end && self.held.is_none() {
            page = self.mapping.fault(&self.window, PageIndex(page), write)?;
        }
        Ok(())
    }

    /// The pages of a range of its bytes.
    fn pages(&self, range: &Range<usize>) -> Result<Range<u64>, Errno> {
        if range.start >= range.end || range.end > self.len {
            return Err(Errno::EINVAL);
        }
        let first = self.window.pages.start;
        let last = range.end.div_ceil(PAGE_SIZE) as u64;
        Ok(first + (range.start / PAGE_SIZE) as u64..first + last)
    }

    /// Keeps a range of its bytes in memory and in reach, for stores too if the mapping is for stores, until the
    /// result is dropped: system calls may be handed these addresses, however faults are resolved. All of it
    /// counts as dirty meanwhile if it is for stores.
    ///
    /// Blocks for I/O and memory. Counts as memory that cannot be reclaimed.
    ///
    /// # Errors
    /// As [`AddressSpace::map_locked`]; `EINVAL` for bytes beyond the mapping, `EFAULT` beyond the end of the file.
    pub fn lock_for_io(&self, range: Range<usize>) -> Result<IoLock<'_>, MapError> {
        self.mapping.mm().check_fork()?;
        let write = self.window.access == VmaAccess::ReadWrite;
        let kind = if write { HoldKind::Io } else { HoldKind::Read };
        let mut held = Held::new(self.pages(&range)?, kind);
        if held.pages.end > pages_for(self.mapping.size()) {
            return Err(Errno::EFAULT.into());
        }
        let linear = self.mapping.linear.get().expect("it is mapped");
        self.mapping.hold(linear, &mut held)?;
        let lock = IoLock { vma: self, held };
        self.populate(range, write)?;
        if write && self.held.is_some() {
            self.mapping.dirty_all(&lock.held.pages);
        }
        Ok(lock)
    }
}

impl Drop for IoLock<'_> {
    fn drop(&mut self) {
        let mapping = &self.vma.mapping;
        if mapping.mm().check_fork().is_ok() {
            mapping.release(mapping.linear.get().expect("it is mapped"), &self.held);
        }
    }
}

impl fmt::Debug for Vma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vma")
            .field("address", &self.address())
            .field("range", &self.range())
            .finish_non_exhaustive()
    }
}

impl Drop for Vma {
    fn drop(&mut self) {
        let mm: &Mm = self.mapping.mm();
        if mm.check_fork().is_err() {
            return;
        }
        let linear = self.mapping.linear.get().expect("it was mapped");
        mm.windows().remove(linear, &self.window);
        self.window.uncharge_tables(mm);
        mm.uncharge_metadata(Window::memory_bytes(&self.window.pages));
        if let Some(held) = &self.held {
            self.mapping.release(linear, held);
        }
    }
}
