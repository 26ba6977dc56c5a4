//! Windows: the addresses at which the program has files mapped, and how their faults find the file.
//!
//! # Model
//!
//! ```text
//!   area of the cache   │ window │      │ window          │ window │ …      reserved addresses
//!                          │                    │
//!                          │                    └─ a piece for each linear range of the file that it shows
//!                          └─ pages of one file, at addresses that never change
//! ```
//!
//! All windows of a cache lie in one area, so a fault's address says whose it is. A window begins at the same place
//! within 2 MiB as its first page in its linear range, so that a large folio has one page table.
//!
//! # Invariants
//!
//! 1. A page of a window is in the page tables only if the folio that has it carries `MAPPED`, or its frame is
//!    leaving; and writable only if the folio is dirty there, or has no store.
//! 2. Page tables are charged before the kernel makes them.
//! 3. A window is in its file's list as long as its addresses are mapped.
//!
//! # Locking
//!
//! `state` *protects* which addresses are taken. *Order*: leaf. `Mm::making_windows` is held while the area is
//! reserved. *May block*: the system calls.
//!
//! # Safety
//!
//! The memory behind a window belongs to folios, whose holders expect stores at any time while they are mapped. A
//! window's addresses are used by the program only while it has the [`Vma`](crate::Vma).
#![allow(unsafe_code)]

use foliocache_sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use foliocache_sync::background::Panics;
use foliocache_sync::cell::OnceLock;
use foliocache_sync::rank::{Rank, RankedMutex, RankedRwLock};
use foliocache_sync::time::{Duration, Instant};
use foliocache_sync::workers::{Limits, Workers};
use foliocache_sync::{Arc, Mutex, Weak, rcu};
use foliocache_sys::Errno;
use foliocache_sys::event::Event;
use foliocache_sys::memory::{WindowAccess, room_for_mappings, spare_addresses};
use foliocache_sys::userfaultfd::{
    Access, Fault, Handler, InlineFaults, ResolveFault, resolve_inline,
};
use foliocache_sys::windows::{Announced, announce};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Range;

use crate::address_space::{AddressSpace, find_page};
use crate::frames::{BLOCK_FRAMES, BLOCK_SIZE, Runs, TABLE_BYTES, Tables};
use crate::linear::LinearFile;
use crate::mm::Mm;
use crate::paging::{Userfaultfd, WindowArea, WriteTracker};
use crate::readahead::ReadaheadState;
use crate::reclaim::PageTables;
use crate::types::{PAGE_SHIFT, PAGE_SIZE, PageIndex};
use crate::vma::{LockedAccess, MapError, VmaAccess};

mod locked;

/// Addresses for windows, at most.
const AREA: usize = 16 << 40;

/// Most threads that resolve faults, where the program's own do not: so many may wait for I/O, or their share of the
/// dirty limit, at a time.
const FAULT_THREADS: usize = 64;

/// Mappings that a new thread takes, at most: its stacks with their guards, and what its allocator begins with.
const THREAD_MAPPINGS: usize = 16;

/// Threads that wait for faults while there are none: more come as all of them have one.
const LISTENING: usize = 4;

/// How long a thread stays that has nothing to do.
const IDLE_THREAD: Duration = Duration::from_secs(1);

/// How long a page that could not be had stays unreadable before it is tried again.
const POISON_TIME: Duration = Duration::from_secs(1);

/// Streams of a window that are told apart.
const STREAMS: usize = 4;

/// Units of a window that a search for page tables looks at in one go.
const SCAN_UNITS: usize = 1024;

/// What a window takes besides: the kernel's `vm_area_struct`, entries in lists.
const WINDOW_OVERHEAD: u64 = 512;

/// Binary logarithm of the pages around a read fault that begins no stream: as many as the kernel's own.
const READ_AROUND: u32 = 4;

/// Who resolves the faults of mapped files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FaultMode {
    /// Threads of the cache; the one that touched the page sleeps meanwhile. System calls may be handed
    /// addresses of a mapping. Needs the permission to resolve faults of the kernel's own accesses.
    #[default]
    Thread,
    /// The thread that touched the page, in a handler of SIGBUS: some ten times as fast. A system call that is handed an
    /// address whose page is not mapped fails with `EFAULT`.
    Inline,
}

/// The windows of a cache.
pub(crate) struct Windows {
    pub(crate) area: WindowArea,
    faults: Arc<Userfaultfd>,
    /// Of tracked windows, from the first on.
    tracker: OnceLock<WriteTracker>,
    mode: FaultMode,
    state: RankedRwLock<State>,
    poisoned: RankedMutex<Vec<(Instant, Range<usize>)>>,
    workers: Workers<Arc<Listener>>,
    stop: Arc<Event>,
    announced: Mutex<Option<Announced>>,
    inline: Mutex<Option<InlineFaults>>,
    tables: Arc<PageTables>,
}

/// Resolves faults on the threads that touch the pages.
struct Resolver(Weak<Mm>);

impl ResolveFault for Resolver {
    fn resolve(&self, address: usize, write: bool) -> bool {
        // Locks are looked for before. A panic ends the process here.
        assert!(
            !rcu::in_read_section(),
            "a mapping was touched inside a call of the cache, by a signal handler or a callback"
        );
        // The program has a mapping, which keeps the cache; or it touches addresses of none.
        self.0
            .upgrade()
            .is_some_and(|mm| mm.windows().resolve(address, write))
    }
}

impl fmt::Debug for Windows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Windows")
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

struct State {
    /// Units of 2 MiB of the area that are free.
    free: Runs,
    /// By the first unit.
    windows: BTreeMap<u32, Arc<Window>>,
    /// Where the next search for page tables begins: a window, by its first unit, and a table of it.
    hand: (u32, u32),
}

/// Some pages of a file at some addresses.
pub(crate) struct Window {
    pub(crate) mapping: Weak<AddressSpace>,
    pub(crate) pages: Range<u64>,
    pub(crate) access: VmaAccess,
    /// It shows huge frames, whole ones: they may begin before its pages, and end after them.
    huge: bool,
    /// Its pages are held, and the kernel maps them: there are no faults of ours.
    pub(crate) locked: Option<LockedAccess>,
    /// Address of its first page.
    address: usize,
    /// Units of the area that it takes.
    units: Range<u32>,
    /// Of `units`.
    tables: Tables,
    pub(crate) readahead: ReadaheadState,
    streams: Streams,
    /// Called before stores can be made, see [`Vma::on_store`](crate::Vma::on_store).
    pub(crate) stored: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// Where faults are expected next, and how many pages they will be given.
///
/// # Memory ordering
///
/// Relaxed: guesses.
#[derive(Default)]
struct Streams {
    next: [AtomicU64; STREAMS],
    oldest: AtomicU32,
}

impl Streams {
    /// Pages that a fault at `page` is given, at most 2^`most`: twice as many as the last of its stream, or
    /// 2^`first`.
    fn expect(&self, page: u64, first: u32, most: u32) -> Stream<'_> {
        for slot in &self.next {
            let seen = slot.load(Ordering::Relaxed);
            if seen >> 8 == page && seen != 0 {
                let order = ((seen & 0xff) as u32 + 1).min(most);
                return Stream { slot, order };
            }
        }
        let oldest = self.oldest.fetch_add(1, Ordering::Relaxed) as usize % STREAMS;
        Stream {
            slot: &self.next[oldest],
            order: first.min(most),
        }
    }
}

/// A fault's place in a stream.
pub(crate) struct Stream<'a> {
    slot: &'a AtomicU64,
    pub(crate) order: u32,
}

impl Stream<'_> {
    /// Notes that the pages before `next` are mapped now.
    pub(crate) fn note(&self, next: u64) {
        self.slot
            .store(next << 8 | u64::from(self.order), Ordering::Relaxed);
    }
}

impl Window {
    pub(crate) fn address(&self) -> usize {
        self.address
    }

    /// What a window onto so many pages takes by itself, in bytes.
    pub(crate) fn memory_bytes(pages: &Range<u64>) -> u64 {
        let units = (pages.end - pages.start).div_ceil(BLOCK_FRAMES.into()) + 1;
        size_of::<Self>() as u64 + units.div_ceil(64) * 8 + WINDOW_OVERHEAD
    }

    fn address_of(&self, page: u64) -> usize {
        let pages = page.wrapping_sub(self.pages.start) as usize;
        self.address.wrapping_add(pages.wrapping_mul(PAGE_SIZE))
    }

    fn addresses(&self, pages: &Range<u64>) -> Range<usize> {
        self.address_of(pages.start)..self.address_of(pages.end)
    }

    /// The part of `pages` that it shows.
    pub(crate) fn part(&self, pages: &Range<u64>) -> Range<u64> {
        let within = |page: u64| page.clamp(self.pages.start, self.pages.end);
        within(pages.start)..within(pages.end)
    }

    /// Pages that it shows, and those of their huge frames besides.
    fn whole(&self, pages: &Range<u64>) -> Range<u64> {
        match self.huge && !pages.is_empty() {
            true => {
                let unit = u64::from(BLOCK_FRAMES);
                pages.start / unit * unit..pages.end.next_multiple_of(unit)
            }
            false => pages.clone(),
        }
    }

    /// The addresses of a page, or of its huge frame.
    fn around(&self, page: u64) -> Range<usize> {
        self.addresses(&self.whole(&(page..page + 1)))
    }

    /// The page after the last whose page table is that of `page`.
    pub(crate) fn table_end(&self, page: u64) -> u64 {
        let unit = (self.address_of(page) & !(BLOCK_SIZE - 1)) + BLOCK_SIZE;
        (self.pages.start + ((unit - self.address) >> PAGE_SHIFT) as u64).min(self.pages.end)
    }

    /// The tables of pages, counted from the window's first.
    fn units_of(&self, pages: &Range<u64>) -> Range<u32> {
        self.unit_of(pages.start)..self.unit_of(pages.end - 1) + 1
    }

    fn unit_of(&self, page: u64) -> u32 {
        let first = self.address & !(BLOCK_SIZE - 1);
        ((self.address_of(page) - first) / BLOCK_SIZE) as u32
    }

    /// The pages of a table.
    fn pages_of(&self, unit: u32) -> Range<u64> {
        let lead = (self.address % BLOCK_SIZE / PAGE_SIZE) as u64;
        let first = self.pages.start + u64::from(unit) * u64::from(BLOCK_FRAMES);
        let pages = first..first + u64::from(BLOCK_FRAMES);
        self.part(&(pages.start.saturating_sub(lead)..pages.end - lead))
    }

    /// Runs of pages for whose addresses there are page tables. Huge frames need none.
    fn with_tables(&self, pages: &Range<u64>) -> Vec<Range<u64>> {
        let pages = self.part(pages);
        if self.huge && !pages.is_empty() {
            return vec![self.whole(&pages)];
        }
        let (mut runs, mut at): (Vec<Range<u64>>, _) = (Vec::new(), pages.start);
        if pages.is_empty() {
            return runs;
        }
        for unit in self.units_of(&pages) {
            let end = self.table_end(at).min(pages.end);
            if self.tables.has(unit) {
                match runs.last_mut().filter(|run| run.end == at) {
                    Some(run) => run.end = end,
                    None => runs.push(at..end),
                }
            }
            at = end;
        }
        runs
    }

    /// Charges the page tables of all its pages; false where there is no room for them.
    pub(crate) fn charge_tables(&self, mm: &Mm) -> bool {
        self.huge || (self.units_of(&self.pages)).all(|unit| self.charge_unit(mm, unit))
    }

    /// Charges the page table of a page, if it has none; false where there is no room for it.
    pub(crate) fn charge_table(&self, mm: &Mm, page: u64) -> bool {
        self.huge || self.charge_unit(mm, self.unit_of(page))
    }

    fn charge_unit(&self, mm: &Mm, unit: u32) -> bool {
        if self.tables.has(unit) {
            return true;
        }
        if !mm.take_metadata(TABLE_BYTES) {
            return false;
        }
        match self.tables.add(unit) {
            true => mm.frames.note_tables(1),
            // Another thread was faster.
            false => mm.uncharge_metadata(TABLE_BYTES),
        }
        true
    }

    /// Whether the page table of a page is charged: it is as long as the list of the file's windows is held.
    pub(crate) fn has_table(&self, page: u64) -> bool {
        self.huge || self.tables.has(self.unit_of(page))
    }

    /// The units from `first` on, at most as many as `most`, that have a page table and no page in the cache; and where
    /// to go on, unless that was all.
    fn idle_units(&self, file: &AddressSpace, first: u32, most: usize) -> (Vec<u32>, Option<u32>) {
        let (mut idle, mut looked) = (Vec::new(), 0);
        for unit in self.tables.from(first) {
            if looked == SCAN_UNITS || idle.len() == most {
                return (idle, Some(unit));
            }
            looked += 1;
            let pages = self.pages_of(unit);
            let last = PageIndex(pages.end - 1);
            if find_page(&file.index, PageIndex(pages.start), last).is_none() {
                idle.push(unit);
            }
        }
        (idle, None)
    }

    /// Gives back the page tables of units, in ascending order; how many. What they have is a fault again.
    ///
    /// Context: takes `windows` exclusive.
    fn drop_tables(self: &Arc<Self>, mm: &Mm, linear: &LinearFile, units: &[u32]) -> u64 {
        let windows = linear.windows.write();
        if !windows.iter().any(|listed| Arc::ptr_eq(listed, self)) {
            return 0;
        }
        let gone = units.iter().filter(|&&unit| self.tables.remove(unit));
        let gone = gone.count() as u64;
        for run in units.chunk_by(|one, next| one + 1 == *next) {
            let (first, last) = (run[0], run[run.len() - 1]);
            let pages = self.pages_of(first).start..self.pages_of(last).end;
            let addresses = self.addresses(&pages);
            let part = mm.windows().offset(addresses.clone());
            // The second time without the markers that write protection leaves: they would keep the table.
            let dropped = (mm.windows().area.zap(part.clone()))
                .and_then(|()| mm.windows().faults.allow_writes(addresses))
                .and_then(|()| mm.windows().area.zap(part));
            debug_assert!(dropped.is_ok(), "{dropped:?}");
        }
        drop(windows);
        mm.frames.uncharge_tables(gone)
    }

    /// Gives the charges for all page tables back: the window is gone.
    pub(crate) fn uncharge_tables(&self, mm: &Mm) {
        let gone = self.tables.from(0).filter(|&unit| self.tables.remove(unit));
        mm.frames.uncharge_tables(gone.count() as u64);
    }

    /// How many pages a fault is given, at most `most`.
    pub(crate) fn expect(&self, page: PageIndex, write: bool, most: u64) -> Stream<'_> {
        let first = if write { 0 } else { READ_AROUND };
        self.streams.expect(page.0, first, most.max(1).ilog2())
    }

    /// Empties the page tables of those of `pages` that it shows.
    pub(crate) fn zap(&self, mm: &Mm, pages: &Range<u64>) {
        if self.locked.is_some() {
            return;
        }
        for run in self.with_tables(pages) {
            let windows = mm.windows();
            let zapped = windows.area.zap(windows.offset(self.addresses(&run)));
            debug_assert!(zapped.is_ok(), "{zapped:?}");
        }
    }

    /// Has stores to those of `pages` that it shows be faults.
    pub(crate) fn write_protect(&self, mm: &Mm, pages: &Range<u64>) {
        if self.locked.is_some() || self.access == VmaAccess::Read {
            return;
        }
        for run in self.with_tables(pages) {
            let protected = mm.windows().faults.write_protect(self.addresses(&run));
            debug_assert!(protected.is_ok(), "{protected:?}");
        }
    }

    /// Resolves a fault at a page; false where the touch is an error of the program's or of the store's.
    fn resolve(self: &Arc<Self>, page: PageIndex, write: bool) -> bool {
        let Some(mapping) = self.mapping.upgrade() else {
            return false;
        };
        let resolved = mapping.fault(self, page, write);
        if let Err(error) = resolved {
            tracing::debug!(file = %mapping.name(), page = page.0, write, %error, "a fault of a mapping");
        }
        resolved.is_ok()
    }

    /// Puts pages into the page tables, from the first on, up to the first that is there; returns the page
    /// after the last that is there now with this access. Huge frames are put there whole.
    ///
    /// Context: the folios are locked, and the window is in its file's list, which is held shared.
    ///
    /// # Errors
    /// `EIO` where the first page is not in memory.
    pub(crate) fn install(&self, mm: &Mm, pages: Range<u64>, access: Access) -> Result<u64, Errno> {
        let faults = &mm.windows().faults;
        // The kernel refuses stores to a window for reads. Write protection would leave a marker for each page that
        // is punched, which the next fault pays for.
        let protection = match self.access {
            VmaAccess::Read => Access::Write,
            VmaAccess::ReadWrite => access,
        };
        let pages = self.whole(&pages);
        let mut at = pages.start;
        while at < pages.end {
            let progress = faults.map(self.addresses(&(at..pages.end)), protection);
            at += (progress.bytes >> PAGE_SHIFT) as u64;
            match progress.stopped {
                None | Some(Errno::EAGAIN) => {}
                // Of a read fault, another thread was faster; of a write fault, they are write-protected.
                Some(Errno::EEXIST) if access == Access::Read => {
                    return Ok(at.max(self.whole(&(pages.start..pages.start + 1)).end));
                }
                Some(Errno::EEXIST) => {
                    faults.allow_writes(self.addresses(&(at..pages.end)))?;
                    return Ok(pages.end);
                }
                Some(_) if at > pages.start => return Ok(at),
                Some(_) => return Err(Errno::EIO),
            }
        }
        Ok(at)
    }
}

impl Windows {
    fn new(mm: &Arc<Mm>) -> Result<Self, MapError> {
        let mode = mm.config.fault_mode;
        let handler = match mode {
            FaultMode::Thread => Handler::Thread,
            FaultMode::Inline => Handler::Signal,
        };
        let faults = Arc::new(Userfaultfd::open(handler)?);
        let area = WindowArea::reserve(spare_addresses(AREA))?;
        let units = (area.addresses().len() / BLOCK_SIZE) as u32;
        let state = State {
            free: Runs::new(0..units),
            windows: BTreeMap::new(),
            hand: (0, 0),
        };
        let limits = Limits {
            name: "foliocache-fault",
            lanes: vec![FAULT_THREADS],
            threads: FAULT_THREADS,
            idle: IDLE_THREAD,
        };
        let windows = Self {
            area,
            faults,
            tracker: OnceLock::new(),
            mode,
            state: RankedRwLock::new(Rank::Leaf, state),
            poisoned: RankedMutex::new(Rank::Leaf, Vec::new()),
            workers: Workers::new(limits, mm.panics(), Listener::run),
            stop: Arc::new(Event::new()?),
            announced: Mutex::new(None),
            inline: Mutex::new(None),
            tables: Arc::new(PageTables(Arc::downgrade(mm))),
        };
        windows.start(mm)?;
        Ok(windows)
    }

    fn start(&self, mm: &Arc<Mm>) -> Result<(), MapError> {
        if cfg!(shuttle) {
            // Whoever touches a page resolves the fault.
            return Ok(());
        }
        if self.mode == FaultMode::Inline {
            let resolver = Box::new(Resolver(Arc::downgrade(mm)));
            *self.inline.lock() = Some(resolve_inline(self.area.addresses(), resolver)?);
            return Ok(());
        }
        *self.announced.lock() = Some(announce(self.area.addresses()));
        self.listen(Arc::new(Listener {
            next: Mutex::new(()),
            waiting: AtomicUsize::new(0),
            faults: Arc::clone(&self.faults),
            stop: Arc::clone(&self.stop),
            mm: Arc::downgrade(mm),
        }))
        .map_err(|error| Errno::from(error).into())
    }

    /// Has one more thread take faults, if there may be one.
    fn listen(&self, listener: Arc<Listener>) -> io::Result<()> {
        if !room_for_mappings(THREAD_MAPPINGS) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let submitted = self.workers.submit(0, listener);
        submitted.map_err(|none| none.error)
    }

    /// Ends the resolving of faults. Context: there is no window any more.
    pub(crate) fn stop(&self) {
        *self.inline.lock() = None;
        *self.announced.lock() = None;
        self.stop.set();
        self.workers.stop();
    }

    /// The window that has an address, and the page there.
    fn find(&self, address: usize) -> Option<(Arc<Window>, PageIndex)> {
        let unit = (address.checked_sub(self.area.addresses().start)? / BLOCK_SIZE) as u32;
        let state = self.state.read();
        let (_, window) = state.windows.range(..=unit).next_back()?;
        let page = match window.huge {
            // The kernel names the beginning of the huge page, perhaps.
            true => address.saturating_sub(window.address) / PAGE_SIZE,
            false => address.checked_sub(window.address)? / PAGE_SIZE,
        };
        let page = PageIndex(window.pages.start + page as u64);
        (page.0 < window.pages.end).then(|| (Arc::clone(window), page))
    }

    /// Resolves a fault in a thread of the cache's.
    fn resolve_for(&self, fault: &Fault) {
        let found = self.find(fault.address);
        let page = match &found {
            Some((window, page)) => window.around(page.0),
            None => fault.address..fault.address + PAGE_SIZE,
        };
        if let Some((window, at)) = &found
            && window.resolve(*at, fault.write())
        {
            // Whoever mapped the page woke the one that touched it. Another wake might meet its next touch: of that
            // a store would be resolved twice, the second time perhaps after its sync.
            return;
        }
        if let Some((window, _)) = found
            && let Some(mapping) = window.mapping.upgrade()
            && let Some(linear) = mapping.linear.get()
        {
            // Nobody maps the page meanwhile: writes are allowed to nothing but a marker of write protection,
            // which would stand in the way.
            let windows = linear.windows.write();
            // One touch may be told of twice. The second time may be late, when the addresses are another window's.
            if windows.iter().any(|listed| Arc::ptr_eq(listed, &window)) {
                // The touch is SIGBUS then.
                let _ = self.area.zap(self.offset(page.clone()));
                let _ = self.faults.allow_writes(page.clone());
                self.faults.poison(page.clone());
                self.poisoned.lock().push((Instant::now(), page.clone()));
            }
        }
        let _ = self.faults.wake(page);
    }

    /// Resolves a fault of a window; false where the touch is an error of the program's or of the store's.
    pub(crate) fn resolve(&self, address: usize, write: bool) -> bool {
        let found = self.find(address);
        found.is_some_and(|(window, page)| window.resolve(page, write))
    }

    /// Lets pages that could not be had be tried again.
    pub(crate) fn end_poison(&self) {
        let mut old = Vec::new();
        self.poisoned.lock().retain(|(since, page)| {
            let young = since.elapsed() < POISON_TIME;
            old.extend((!young).then(|| page.clone()));
            young
        });
        for page in old {
            let _ = self.area.zap(self.offset(page));
        }
    }

    /// Addresses, from the beginning of the area on.
    fn offset(&self, addresses: Range<usize>) -> Range<usize> {
        let start = self.area.addresses().start;
        addresses.start - start..addresses.end - start
    }

    /// Makes a window onto pages of a file that have linear frames.
    ///
    /// # Errors
    /// See [`MapError`].
    pub(crate) fn add(
        &self,
        mapping: &Arc<AddressSpace>,
        linear: &LinearFile,
        pages: Range<u64>,
        access: VmaAccess,
        locked: Option<LockedAccess>,
    ) -> Result<Arc<Window>, MapError> {
        let mm: &Mm = mapping.mm();
        let faults = match locked {
            None => Some(&*self.faults),
            Some(LockedAccess::Tracked) => Some(self.ready_tracker()?.faults()),
            Some(LockedAccess::Read | LockedAccess::Untracked) => None,
        };
        let shown = mapping.whole(PageIndex(pages.start)..PageIndex(pages.end));
        let shown = shown.start.0..shown.end.0;
        let runs = linear.runs(shown.clone());
        let (_, first) = runs.first().expect("the ranges cover the pages");
        // At the same place in its 2 MiB as the first frame is.
        let lead = first.start.0 % BLOCK_FRAMES + (pages.start - shown.start) as u32;
        let nr_units = (u64::from(lead) + (pages.end - pages.start)).div_ceil(BLOCK_FRAMES.into());
        let units = u32::try_from(nr_units).ok();
        let units = units.and_then(|nr| self.state.write().free.take(nr));
        let units = units.ok_or(MapError::NoAddresses {
            wanted: (pages.end - pages.start) << PAGE_SHIFT,
        })?;
        let start = units.start as usize * BLOCK_SIZE + lead as usize * PAGE_SIZE;
        let window = Arc::new(Window {
            mapping: Arc::downgrade(mapping),
            access,
            locked,
            huge: mm.frames.is_huge(),
            address: self.area.addresses().start + start,
            tables: Tables::new(units.end - units.start),
            units,
            pages: pages.clone(),
            readahead: ReadaheadState::new(),
            streams: Streams::default(),
            stored: OnceLock::new(),
        });
        let mapped = runs.into_iter().try_for_each(|(page, frames)| {
            let (memory, bytes) = mm.frames.linear_memory(frames).expect("there is a range");
            let at = start - (pages.start - shown.start) as usize * PAGE_SIZE
                + (page - shown.start) as usize * PAGE_SIZE;
            let access = match access {
                VmaAccess::Read => WindowAccess::Read,
                VmaAccess::ReadWrite => WindowAccess::ReadWrite,
            };
            // SAFETY: the place is the window's alone. The frames live as long as the file, which has a range until
            // it is dropped, after its windows; the program has been told of the faults.
            unsafe { self.area.map(at, &memory, bytes, access, faults) }
        });
        if let Err(error) = mapped {
            self.unmap(&window);
            return Err(match error {
                Errno::ENOMEM => MapError::TooManyMappings,
                error => MapError::Failed(error),
            });
        }
        self.state
            .write()
            .windows
            .insert(window.units.start, Arc::clone(&window));
        linear.windows.write().push(Arc::clone(&window));
        Ok(window)
    }

    /// Takes a window away. Context: the program does not use it any more.
    pub(crate) fn remove(&self, linear: &LinearFile, window: &Arc<Window>) {
        linear
            .windows
            .write()
            .retain(|other| !Arc::ptr_eq(other, window));
        self.state.write().windows.remove(&window.units.start);
        self.unmap(window);
    }

    /// Gives page tables back that have no page of the cache, about as many as `wanted`; how many.
    ///
    /// Context: takes `windows` of files exclusive.
    pub(crate) fn drop_idle_tables(&self, mm: &Mm, wanted: u64) -> u64 {
        let (mut gone, mut turns) = (0, 0);
        while gone < wanted && turns < 2 {
            let (first, next) = {
                let mut state = self.state.write();
                let (window, unit) = state.hand;
                let next = (state.windows.range(window..).next())
                    .map(|(&at, next)| (at, Arc::clone(next)));
                state.hand = (next.as_ref().map_or(0, |(at, _)| at + 1), 0);
                let here = next.as_ref().is_some_and(|(at, _)| *at == window);
                (if here { unit } else { 0 }, next)
            };
            let Some((at, window)) = next else {
                turns += 1;
                continue;
            };
            let Some(file) = window.mapping.upgrade().filter(|_| window.locked.is_none()) else {
                continue;
            };
            let most = usize::try_from(wanted - gone).unwrap_or(usize::MAX);
            let (idle, go_on) = window.idle_units(&file, first, most);
            if let Some(unit) = go_on {
                self.state.write().hand = (at, unit);
            }
            if !idle.is_empty() {
                let linear = file.linear.get().expect("it is mapped");
                gone += window.drop_tables(mm, linear, &idle);
            }
        }
        gone
    }

    fn unmap(&self, window: &Window) {
        let units = &window.units;
        let part = units.start as usize * BLOCK_SIZE..units.end as usize * BLOCK_SIZE;
        // SAFETY: nobody uses the window, by the callers' context.
        if let Err(error) = unsafe { self.area.unmap(part) } {
            // The addresses stay taken. Whoever touches them finds what the window showed.
            tracing::error!(%error, "a window could not be unmapped");
            return;
        }
        self.state.write().free.give_back(units.clone());
    }
}

/// Where threads of the cache take faults from.
///
/// # Memory ordering
///
/// Relaxed: the count alone is looked at.
struct Listener {
    /// One thread waits in the kernel, the others for it.
    next: Mutex<()>,
    waiting: AtomicUsize,
    faults: Arc<Userfaultfd>,
    stop: Arc<Event>,
    mm: Weak<Mm>,
}

impl Listener {
    /// Waits for the next fault, or for the end.
    fn next_fault(&self) -> Option<Fault> {
        let _first = self.next.lock();
        loop {
            match self.faults.wait(self.stop.fd()) {
                Ok(true) => return None,
                Ok(false) => {}
                Err(error) => panic!("cannot wait for faults: {error}"),
            }
            if let Ok(Some(fault)) = self.faults.next_fault() {
                return Some(fault);
            }
        }
    }

    /// Resolves faults until the end, or until enough other threads wait for some.
    fn run(self: Arc<Self>, panics: &Panics) {
        while self.joins() {
            let fault = self.next_fault();
            let last = self.waiting.fetch_sub(1, Ordering::Relaxed) == 1;
            let (Some(fault), Some(mm)) = (fault, self.mm.upgrade()) else {
                return;
            };
            // At the limit, or without a thread, others have to wait until this one comes back.
            if last && let Err(error) = mm.windows().listen(Arc::clone(&self)) {
                tracing::warn!(%error, "no further thread for faults");
            }
            panics.catch("foliocache-fault", || mm.windows().resolve_for(&fault));
        }
    }

    /// Counts one more thread that waits, unless there are enough.
    fn joins(&self) -> bool {
        let more = |waiting| (waiting < LISTENING).then_some(waiting + 1);
        let joined = (self.waiting).fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        joined.is_ok()
    }
}

impl Mm {
    /// The windows of the cache. Context: there is one, or was.
    pub(crate) fn windows(&self) -> &Windows {
        self.windows.get().expect("a file was mapped")
    }

    /// The windows of the cache, made ready by the first call.
    ///
    /// # Errors
    /// See [`MapError`].
    pub(crate) fn ready_windows(self: &Arc<Self>) -> Result<&Windows, MapError> {
        let _alone = self.making_windows.lock();
        match self.windows.get() {
            Some(windows) => Ok(windows),
            None => {
                let windows = Windows::new(self)?;
                self.add_shrinker(Arc::downgrade(&windows.tables) as _);
                Ok(self.windows.get_or_init(|| windows))
            }
        }
    }
}
