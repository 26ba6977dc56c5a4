//! [`Windows`]: the area that all windows of a cache lie in, and which addresses of it are taken. The procedures are in
//! `window/area.rs`.

use foliocache_sync::rank::{LeafMutex, Rank, RankedRwLock};
use foliocache_sync::time::{Duration, Instant};
use foliocache_sync::workers::Workers;
use foliocache_sync::{Arc, Mutex};
use foliocache_sys::event::Event;
use foliocache_sys::memory::room_for_mappings;
use foliocache_sys::userfaultfd::InlineFaults;
use foliocache_sys::windows::Announced;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Range;

use super::listener::Listener;
use super::window::Window;
use crate::frames::{BLOCK_SIZE, Runs};
use crate::paging::{Userfaultfd, WindowArea};
use crate::types::{PAGE_SIZE, PageIndex};

/// Mappings that a new thread takes, at most: its stacks with their guards, and what its allocator begins with.
const THREAD_MAPPINGS: usize = 16;
/// How long a page that could not be had stays unreadable before it is tried again.
const POISON_TIME: Duration = Duration::from_secs(1);
/// How long a page is known to have been refused once: a thread that waits for it touches it again at once.
const REFUSAL_TIME: Duration = Duration::from_secs(10);

/// How faults of mapped files are resolved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FaultMode {
    /// By threads of the cache, 64 at most, while the touching thread sleeps. System calls may use addresses of a mapping. Needs
    /// `CAP_SYS_PTRACE`, or `vm.unprivileged_userfaultfd` = 1, or access to `/dev/userfaultfd`; without, making a mapping fails with
    /// `EPERM`.
    #[default]
    Thread,
    /// By the touching thread, in a handler of SIGBUS: six times as fast for single pages, as fast for 2 MiB. A system call on an address whose page is not
    /// mapped fails with `EFAULT`.
    Inline,
}

/// The windows of a cache.
pub(crate) struct Windows<F> {
    pub(crate) area: WindowArea,
    pub(crate) faults: Arc<Userfaultfd>,
    pub(crate) mode: FaultMode,
    pub(crate) state: RankedRwLock<{ Rank::Leaf as u8 }, State<F>>,
    /// Pages that could not be had, by their addresses.
    pub(crate) refused: LeafMutex<BTreeMap<usize, Refusal>>,
    pub(crate) workers: Workers<Arc<Listener>>,
    pub(crate) stop: Arc<Event>,
    pub(crate) announced: Mutex<Option<Announced>>,
    pub(crate) inline: Mutex<Option<InlineFaults>>,
}

/// A page that could not be had.
pub(crate) struct Refusal {
    pub(crate) since: Instant,
    pub(crate) end: usize,
    /// It is unreadable, as it was refused more than once.
    pub(crate) poisoned: bool,
}

impl<F> fmt::Debug for Windows<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Windows")
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

pub(crate) struct State<F> {
    /// Units of 2 MiB of the area that are free.
    pub(crate) free: Runs,
    /// By the first unit.
    pub(crate) windows: BTreeMap<u32, Arc<Window<F>>>,
    /// Where the next search for page tables begins: a window, by its first unit, and a table of it.
    pub(crate) hand: (u32, u32),
}

impl<F> Windows<F> {
    /// Has one more thread take faults, if there may be one.
    pub(crate) fn listen(&self, listener: Arc<Listener>) -> io::Result<()> {
        if !room_for_mappings(THREAD_MAPPINGS) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let submitted = self.workers.submit(0, listener);
        submitted.map_err(|none| none.error)
    }

    /// The window that has an address, and the page there.
    pub(crate) fn find(&self, address: usize) -> Option<(Arc<Window<F>>, PageIndex)> {
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

    /// Lets pages be tried again that could not be had a while ago.
    pub(crate) fn end_old_poison(&self) {
        self.end_poison(|refusal, _| {
            let time = if refusal.poisoned {
                POISON_TIME
            } else {
                REFUSAL_TIME
            };
            refusal.since.elapsed() >= time
        });
    }

    /// Lets pages be tried again that could not be had, if their refusal is `over`.
    pub(crate) fn end_poison(&self, over: impl Fn(&Refusal, &Range<usize>) -> bool) {
        let mut ended = Vec::new();
        self.refused.lock().retain(|&start, refusal| {
            let page = start..refusal.end;
            let stays = !over(refusal, &page);
            if !stays && refusal.poisoned {
                ended.push(page);
            }
            stays
        });
        for page in ended {
            let _ = self.area.zap(self.offset(page));
        }
    }

    /// Addresses, from the beginning of the area on.
    pub(crate) fn offset(&self, addresses: Range<usize>) -> Range<usize> {
        let start = self.area.addresses().start;
        addresses.start - start..addresses.end - start
    }

    /// Ends the resolving of faults. Context: there is no window any more.
    pub(crate) fn stop(&self) {
        *self.inline.lock() = None;
        *self.announced.lock() = None;
        self.stop.set();
        self.workers.stop();
    }
}
