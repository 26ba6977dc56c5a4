//! From the touch of an address to its file's [fault](crate::AddressSpace::fault): the threads and handlers that resolve faults.
//!
//! # Locking
//!
//! `Mm::making_windows` is held while the area of the windows is reserved.

use foliocache_sync::rank::{LeafMutex, RankedRwLock};
use foliocache_sync::time::{Duration, Instant};
use foliocache_sync::workers::{Limits, Workers};
use foliocache_sync::{Arc, Mutex, Weak, rcu};
use foliocache_sys::Errno;
use foliocache_sys::event::Event;
use foliocache_sys::memory::spare_addresses;
use foliocache_sys::userfaultfd::{Handler, ResolveFault, resolve_inline};
use foliocache_sys::windows::announce;
use std::collections::BTreeMap;
use std::io;

use crate::frames::{BLOCK_SIZE, Runs};
use crate::mapped::{FaultMode, Listener, MapError, Refusal, Resolve, State};
use crate::paging::{Userfaultfd, WindowArea};
use crate::records::{Mm, Window, Windows};
use crate::types::{PAGE_SIZE, PageIndex};

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
        // The caller has checked that it holds no lock. A panic ends the process here.
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

impl Resolve for Mm {
    fn resolve(&self, address: usize, write: bool) {
        self.windows().resolve_for(address, write);
    }

    fn listen(&self, listener: Arc<Listener>) -> io::Result<()> {
        self.windows().listen(listener)
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
            state: RankedRwLock::new(state),
            refused: LeafMutex::new(BTreeMap::new()),
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
            // The thread that touches a page resolves the fault.
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
    /// The kernel may report one touch twice. The second report may be late: nobody waits any more, the addresses are
    /// another window's, or the store fails now and did not before. So the first refusal of a page only wakes the
    /// toucher. If it touches the page again it is refused.
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
            // The thread that mapped the page has woken the one that touched it. Another wake might meet the next
            // touch of that thread: its store would be resolved twice, the second time perhaps after its sync.
            return;
        };
        if let Some((window, at)) = found
            && let Some(mapping) = window.mapping.upgrade()
            && let Some(linear) = mapping.linear.get()
        {
            // The page is not mapped meanwhile: `allow_writes` changes nothing but a marker of write protection,
            // which would prevent the poison.
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
}

impl Window {
    /// Resolves a fault at a page.
    ///
    /// # Errors
    /// Those of [`AddressSpace::fault`](crate::AddressSpace::fault): the touch is an error of the program's or of the store's.
    fn resolve(self: &Arc<Self>, page: PageIndex, write: bool) -> Result<(), Errno> {
        let mapping = self.mapping.upgrade().ok_or(Errno::EFAULT)?;
        let resolved = mapping.fault(self, page, write);
        if let Err(error) = resolved {
            tracing::debug!(file = %mapping.name(), page = page.0, write, %error, "a fault of a mapping");
        }
        resolved.map(drop)
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
