//! Page tables of a model: which pages of which window are there, and with what access.
//!
//! A touch of a window looks there, as the processor does. A page that is there is its frame in the direct map; for
//! any other the thread resolves a fault itself.
//!
//! # Safety
//!
//! Frames are touched as the direct map does it; no two threads of a model run at once.
#![allow(unsafe_code)]

use foliocache_sync::thread;
use foliocache_sync::{Arc, Mutex, Weak};
use foliocache_sys::Errno;
use foliocache_sys::memory::{ReservedRange, SharedMemory as Memfd, WindowAccess};
use foliocache_sys::userfaultfd::{Access, Fault, Handler, OpenError, Progress};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::os::fd::OwnedFd;

use crate::folio::{flag, grains};
use crate::records::{AddressSpace, Mm};
use crate::types::{PAGE_SIZE, PageIndex, pages_for};
use crate::vma::Vma;

/// Where an area is said to be.
const START: usize = 1 << 44;

thread_local! {
    /// All threads of a model run on one.
    static LEFT_OUT: Cell<Option<Step>> = const { Cell::new(None) };
}

/// A step that these page tables can leave out, so that a model that misses the damage is itself found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A page that is mapped for reads faults at a store.
    ProtectReads,
    /// So does a page that is written back, from then on.
    WriteProtect,
    /// Emptied page tables are empty.
    Zap,
    /// A punch is over when its call returns.
    PunchAtOnce,
}

/// Has the models of this thread leave a step out from now on.
pub fn leave_out(step: Step) {
    LEFT_OUT.set(Some(step));
}

fn leaves_out(step: Step) -> bool {
    LEFT_OUT.get() == Some(step)
}

/// Others see the change of a system call before its caller goes on, or after.
fn take_time() {
    for _ in 0..30 {
        thread::yield_now();
    }
}

#[derive(Debug, Default)]
struct Table {
    /// Pages that are there, by their address.
    pages: BTreeMap<usize, Access>,
    /// Windows by their address, with the byte of the memfd at which each begins.
    windows: BTreeMap<usize, (usize, u64)>,
    /// Where the direct map has the first byte of the memfd.
    direct: usize,
    /// Pages of the memfd in bad memory, by their first byte.
    bad: BTreeSet<u64>,
}

impl Table {
    /// The addresses at which windows show bytes of the memfd.
    fn addresses_of(&self, bytes: &Range<u64>) -> Vec<Range<usize>> {
        let shown = |(&address, &(len, first)): (&usize, &(usize, u64))| {
            let within = |byte: u64| byte.clamp(first, first + len as u64) - first;
            address + within(bytes.start) as usize..address + within(bytes.end) as usize
        };
        self.windows.iter().map(shown).collect()
    }

    /// The byte of the memfd that a window shows at an address.
    fn byte_at(&self, address: usize) -> u64 {
        let (&window, &(_, first)) =
            (self.windows.range(..=address).next_back()).expect("of a window");
        first + (address - window) as u64
    }

    fn empty(&mut self, addresses: &Range<usize>) {
        self.pages.retain(|page, _| !addresses.contains(page));
    }
}

type Tables = Arc<Mutex<Table>>;

/// A memfd that knows whose page tables have its pages.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    memfd: Memfd,
    direct: usize,
    tables: Mutex<Vec<Weak<Mutex<Table>>>>,
    /// A punch whose call has returned.
    late: Mutex<Range<u64>>,
}

impl SharedMemory {
    /// The model has no huge pages.
    pub(crate) unsafe fn over(
        range: &ReservedRange,
        part: Range<usize>,
        huge: bool,
    ) -> Result<Self, Errno> {
        if huge {
            return Err(Errno::EINVAL);
        }
        Ok(Self {
            direct: range.as_ptr().expose_provenance() + part.start,
            // SAFETY: the caller's contract.
            memfd: unsafe { Memfd::over(range, part, false) }?,
            tables: Mutex::default(),
            late: Mutex::default(),
        })
    }

    pub(crate) fn allocate(&self, bytes: Range<u64>) -> Result<(), Errno> {
        self.memfd.allocate(bytes)
    }

    pub(crate) unsafe fn punch(&self, bytes: Range<u64>) -> Result<(), Errno> {
        take_time();
        let bytes = match leaves_out(Step::PunchAtOnce) {
            true => std::mem::replace(&mut *self.late.lock(), bytes),
            false => bytes,
        };
        if bytes.is_empty() {
            return Ok(());
        }
        for tables in self.tables.lock().iter().filter_map(Weak::upgrade) {
            let mut table = tables.lock();
            for addresses in table.addresses_of(&bytes) {
                table.empty(&addresses);
            }
            // The next touch gets other memory.
            table.bad.retain(|page| !bytes.contains(page));
        }
        // SAFETY: the caller's contract.
        unsafe { self.memfd.punch(bytes) }
    }

    pub(crate) unsafe fn drop_page_tables(
        &self,
        range: &ReservedRange,
        bytes: Range<u64>,
    ) -> Result<(), Errno> {
        // SAFETY: the caller's contract.
        unsafe { self.memfd.drop_page_tables(range, bytes) }
    }
}

/// An area of windows without memory.
#[derive(Debug)]
pub(crate) struct WindowArea {
    len: usize,
    tables: Tables,
}

impl WindowArea {
    pub(crate) fn reserve(len: usize) -> Result<Self, Errno> {
        let tables = Tables::default();
        Ok(Self { len, tables })
    }

    pub(crate) fn addresses(&self) -> Range<usize> {
        START..START + self.len
    }

    pub(crate) unsafe fn map(
        &self,
        at: usize,
        memory: &SharedMemory,
        bytes: Range<u64>,
        _: WindowAccess,
        faults: Option<&Userfaultfd>,
    ) -> Result<(), Errno> {
        let len = (bytes.end - bytes.start) as usize;
        {
            let mut table = self.tables.lock();
            table.direct = memory.direct;
            table.windows.insert(START + at, (len, bytes.start));
        }
        memory.tables.lock().push(Arc::downgrade(&self.tables));
        if let Some(faults) = faults {
            *faults.0.lock() = Arc::clone(&self.tables);
        }
        Ok(())
    }

    pub(crate) unsafe fn unmap(&self, part: Range<usize>) -> Result<(), Errno> {
        let addresses = START + part.start..START + part.end;
        let mut table = self.tables.lock();
        table.empty(&addresses);
        table
            .windows
            .retain(|window, _| !addresses.contains(window));
        Ok(())
    }

    pub(crate) fn collapse(&self, _: Range<usize>) -> Result<(), Errno> {
        Ok(())
    }

    pub(crate) fn populate(&self, _: Range<usize>, _: bool) -> Result<(), Errno> {
        Ok(())
    }

    pub(crate) fn zap(&self, part: Range<usize>) -> Result<(), Errno> {
        if !leaves_out(Step::Zap) {
            self.tables
                .lock()
                .empty(&(START + part.start..START + part.end));
        }
        Ok(())
    }
}

/// Changes the page tables of the area whose windows it is given.
#[derive(Debug)]
pub(crate) struct Userfaultfd(Mutex<Tables>);

impl Userfaultfd {
    pub(crate) fn open(_: Handler) -> Result<Self, OpenError> {
        Ok(Self(Mutex::default()))
    }

    fn tables(&self) -> Tables {
        Arc::clone(&self.0.lock())
    }

    pub(crate) fn map(&self, pages: Range<usize>, access: Access) -> Progress {
        let access = match leaves_out(Step::ProtectReads) {
            true => Access::Write,
            false => access,
        };
        let tables = self.tables();
        let mut table = tables.lock();
        let mut bytes = 0;
        while bytes < pages.len() {
            let page = pages.start + bytes;
            if table.pages.contains_key(&page) {
                let stopped = Some(Errno::EEXIST);
                return Progress { bytes, stopped };
            }
            if table.bad.contains(&table.byte_at(page)) {
                let stopped = Some(Errno::EIO);
                return Progress { bytes, stopped };
            }
            table.pages.insert(page, access);
            bytes += PAGE_SIZE;
        }
        drop(table);
        take_time();
        Progress {
            bytes,
            stopped: None,
        }
    }

    /// Does not know which pages the memfd has, and takes each for one that it lacks.
    pub(crate) fn copy(&self, to: usize, from: &[u8], access: Access) -> Progress {
        {
            let tables = self.tables();
            let mut table = tables.lock();
            let frame = table.direct + table.byte_at(to) as usize;
            // SAFETY: see the module; the folio is locked and has no content yet.
            unsafe {
                let frame = std::ptr::with_exposed_provenance_mut::<u8>(frame);
                frame.copy_from_nonoverlapping(from.as_ptr(), from.len());
            }
            table.pages.insert(to, access);
        }
        take_time();
        Progress {
            bytes: from.len(),
            stopped: None,
        }
    }

    fn change(&self, pages: Range<usize>, access: Access) -> Result<(), Errno> {
        let tables = self.tables();
        for (_, entry) in tables.lock().pages.range_mut(pages) {
            *entry = access;
        }
        take_time();
        Ok(())
    }

    pub(crate) fn write_protect(&self, pages: Range<usize>) -> Result<(), Errno> {
        match leaves_out(Step::WriteProtect) {
            false => self.change(pages, Access::Read),
            true => Ok(()),
        }
    }

    pub(crate) fn allow_writes(&self, pages: Range<usize>) -> Result<(), Errno> {
        self.change(pages, Access::Write)
    }

    pub(crate) fn poison(&self, _: Range<usize>) -> Progress {
        unreachable!("whoever touches a page is told why it cannot be had")
    }

    pub(crate) fn wake(&self, _: Range<usize>) -> Result<(), Errno> {
        Ok(())
    }

    pub(crate) fn wait(&self, _: &OwnedFd) -> Result<bool, Errno> {
        Ok(true)
    }

    pub(crate) fn next_fault(&self) -> Result<Option<Fault>, Errno> {
        Ok(None)
    }
}

impl Vma {
    /// Loads a byte as the program would; the fault's error if it cannot.
    ///
    /// # Errors
    /// Where a real touch is SIGBUS.
    pub fn load(&self, at: usize) -> Result<u8, Errno> {
        self.touch(at, None)
    }

    /// As [`Vma::load`], for a store.
    ///
    /// # Errors
    /// As of [`Vma::load`].
    pub fn store(&self, at: usize, byte: u8) -> Result<(), Errno> {
        self.touch(at, Some(byte)).map(|_| ())
    }

    fn touch(&self, at: usize, store: Option<u8>) -> Result<u8, Errno> {
        let (mapping, window) = (self.mapping(), &self.window);
        let mm: &Mm = mapping.mm();
        let page = PageIndex(window.pages.start + (at / PAGE_SIZE) as u64);
        let address = window.address + at;
        let frame = mapping.linear_frame(page).expect("it is mapped");
        let byte = mm.frames.addr(frame).wrapping_add(at % PAGE_SIZE);
        loop {
            {
                let table = mm.windows().area.tables.lock();
                match (table.pages.get(&(address & !(PAGE_SIZE - 1))), store) {
                    (Some(_), None) => {
                        // SAFETY: see the module.
                        return Ok(unsafe { byte.read_volatile() });
                    }
                    (Some(Access::Write), Some(value)) => {
                        // SAFETY: see the module.
                        unsafe { byte.write_volatile(value) };
                        return Ok(value);
                    }
                    _ => {}
                }
            }
            mapping.fault(window, page, store.is_some())?;
        }
    }
}

impl Mm {
    /// Evicts clean folios of so many pages.
    pub fn shrink(&self, pages: usize) -> usize {
        self.shrink_lru(pages)
    }

    /// Punches what is leaving; how many frames.
    pub fn punch(&self) -> u64 {
        self.frames.punch_leaving()
    }

    /// Frames that were taken back, ever.
    pub fn taken_back(&self) -> u64 {
        self.frames.taken_back()
    }
}

impl AddressSpace {
    /// Checks what page tables have of the file's folios, of those whose lock is free.
    ///
    /// # Panics
    /// If an invariant of windows is broken.
    pub fn check_page_tables(&self) {
        for page in self.mapped_pages() {
            let Some(locked) = self.try_lock_folio(page) else {
                continue;
            };
            let offset = (page.0 - locked.index().0) as usize * PAGE_SIZE;
            let grain = grains::of(locked.order(), offset);
            let (found, access) = self.mapped(page);
            if found {
                let state = locked.state.load();
                assert!(
                    state.has(flag::MAPPED),
                    "mapped, and no flag says so: {page:?}"
                );
            }
            if access == Some(Access::Write) {
                assert!(
                    locked.dirty_grains() & grain != 0,
                    "clean, and writable: {page:?}"
                );
            }
        }
    }

    /// Has the memory of a page fail: no page tables have it any more, and it cannot be mapped again.
    ///
    /// # Panics
    /// If no window shows it.
    pub fn fail_memory(&self, page: PageIndex) {
        let linear = self.linear.get().expect("it is mapped");
        for window in linear.windows.read().iter() {
            let mut table = self.mm().windows().area.tables.lock();
            let byte = table.byte_at(window.address_of(page.0));
            table.bad.insert(byte);
            for addresses in table.addresses_of(&(byte..byte + PAGE_SIZE as u64)) {
                table.empty(&addresses);
            }
        }
    }

    /// Pages that are in the page tables of a window.
    pub fn pages_in_tables(&self) -> Vec<PageIndex> {
        self.mapped_pages()
    }

    /// Checks that nothing beyond the end is in the page tables. The size does not change meanwhile.
    ///
    /// # Panics
    /// If something is.
    pub fn check_end(&self) {
        for page in self.mapped_pages() {
            assert!(
                page.0 < pages_for(self.size()),
                "mapped beyond the end: {page:?}"
            );
        }
    }

    fn mapped_pages(&self) -> Vec<PageIndex> {
        let Some(linear) = self.linear.get() else {
            return Vec::new();
        };
        let windows = linear.windows.read();
        let all = windows.iter().flat_map(|window| window.pages.clone());
        let all: std::collections::BTreeSet<u64> = all.collect();
        drop(windows);
        let mapped = |&page: &PageIndex| self.mapped(page).0;
        all.into_iter().map(PageIndex).filter(mapped).collect()
    }

    /// Whether a page is in page tables, and with the most access.
    fn mapped(&self, page: PageIndex) -> (bool, Option<Access>) {
        let linear = self.linear.get().expect("it was mapped");
        let mut found = Vec::new();
        for window in linear.windows.read().iter() {
            if window.pages.contains(&page.0) {
                let offset = (page.0 - window.pages.start) as usize * PAGE_SIZE;
                let table = self.mm().windows().area.tables.lock();
                found.extend(table.pages.get(&(window.address + offset)).copied());
            }
        }
        let write = found.contains(&Access::Write).then_some(Access::Write);
        (!found.is_empty(), write.or(found.first().copied()))
    }
}
