//! The area that all windows of a cache lie in, and who resolves their faults.
//!
//! # Locking
//!
//! `state` *protects* which addresses are taken. *Order*: leaf. `Mm::making_windows` is held while the area is
//! reserved. *May block*: the system calls.
//!
//! # Safety
//!
//! As in the parent: a place in the area is one window's alone, whose addresses nobody uses when it goes.
#![allow(unsafe_code)]

use crate::frames::{BLOCK_FRAMES, BLOCK_SIZE, Runs, Tables};
use crate::mapped::{
    FaultMode, Listener, LockedAccess, MapError, Refusal, Resolve, State, Streams, VmaAccess,
};
use crate::paging::{Userfaultfd, WindowArea};
use crate::readahead::ReadaheadState;
use crate::records::AddressSpace;
use crate::records::Mm;
use crate::records::{LinearFile, Window, Windows};
use crate::types::{PAGE_SHIFT, PAGE_SIZE, PageIndex};
use foliocache_sync::atomic::AtomicU64;
use foliocache_sync::cell::OnceLock;
use foliocache_sync::rank::{Rank, RankedMutex, RankedRwLock};
use foliocache_sync::time::{Duration, Instant};
use foliocache_sync::workers::{Limits, Workers};
use foliocache_sync::{Arc, Mutex, Weak, rcu};
use foliocache_sys::Errno;
use foliocache_sys::event::Event;
use foliocache_sys::memory::{WindowAccess, spare_addresses};
use foliocache_sys::userfaultfd::{Handler, ResolveFault, resolve_inline};
use foliocache_sys::windows::announce;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

/// Addresses for windows, at most.
const AREA: usize = 16 << 40;

/// Most threads that resolve faults, where the program's own do not: so many may wait for I/O, or their share of the
/// dirty limit, at a time.
const FAULT_THREADS: usize = 64;

/// How long a thread stays that has nothing to do.
const IDLE_THREAD: Duration = Duration::from_secs(1);

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
            mode,
            state: RankedRwLock::new(Rank::Leaf, state),
            refused: RankedMutex::new(Rank::Leaf, BTreeMap::new()),
            workers: Workers::new(limits, mm.panics(), Listener::run),
            stop: Arc::new(Event::new()?),
            announced: Mutex::new(None),
            inline: Mutex::new(None),
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
        let cache: Weak<Mm> = Arc::downgrade(mm);
        let listener = Listener::new(cache, &self.faults, &self.stop);
        self.listen(Arc::new(listener))
            .map_err(|error| Errno::from(error).into())
    }

    /// Resolves a fault in a thread of the cache's.
    ///
    /// One touch may be told of twice. The second time may be late, when nobody waits any more, the addresses are another
    /// window's, or the store fails that did not. So of a page that cannot be had the touch is tried again: whoever waits
    /// comes back, and is refused the second time.
    pub(crate) fn resolve_for(&self, address: usize, write: bool) {
        let found = self.find(address);
        let page = match &found {
            Some((window, page)) => window.around(page.0),
            None => address..address + PAGE_SIZE,
        };
        let again = self.refused.lock().contains_key(&page.start);
        let resolved = match &found {
            Some((window, at)) => window.resolve(*at, write),
            None => Err(Errno::EFAULT),
        };
        let Err(error) = resolved else {
            // Whoever mapped the page woke the one that touched it. Another wake might meet its next touch: of that
            // a store would be resolved twice, the second time perhaps after its sync.
            return;
        };
        if let Some((window, at)) = found
            && let Some(mapping) = window.mapping.upgrade()
            && let Some(linear) = mapping.linear.get()
        {
            // Nobody maps the page meanwhile: writes are allowed to nothing but a marker of write protection,
            // which would stand in the way.
            let windows = linear.windows.write();
            // If the file grows later, that ends the poison; if it has, the touch is tried again.
            let grew = error == Errno::EFAULT && mapping.has_page(at);
            if !grew && windows.iter().any(|listed| Arc::ptr_eq(listed, &window)) {
                if again {
                    // The touch is SIGBUS then.
                    let _ = self.area.zap(self.offset(page.clone()));
                    let _ = self.faults.allow_writes(page.clone());
                    self.faults.poison(page.clone());
                }
                let refusal = Refusal {
                    since: Instant::now(),
                    end: page.end,
                    poisoned: again,
                };
                self.refused.lock().insert(page.start, refusal);
            }
        }
        let _ = self.faults.wake(page);
    }

    /// Resolves a fault of a window; false where the touch is an error of the program's or of the store's.
    pub(crate) fn resolve(&self, address: usize, write: bool) -> bool {
        let found = self.find(address);
        found.is_some_and(|(window, page)| window.resolve(page, write).is_ok())
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
            Some(_) => None,
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
            owed: AtomicU64::new(0),
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
    pub(crate) fn drop_idle_tables(&self, wanted: u64) -> u64 {
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
                gone += window.drop_tables(&file, linear, &idle);
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

impl Resolve for Mm {
    fn resolve(&self, address: usize, write: bool) {
        self.windows().resolve_for(address, write);
    }

    fn listen(&self, listener: Arc<Listener>) -> io::Result<()> {
        self.windows().listen(listener)
    }
}

impl Mm {
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
                Ok(self.windows.get_or_init(|| windows))
            }
        }
    }
}
