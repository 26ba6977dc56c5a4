//! [`Belief`]: how long an answer of a backing store may be shown without asking again.
//!
//! # Model
//!
//! Others may change a store behind our back. Each answer of it, a name or attributes, is believed *until* a moment on
//! a clock of milliseconds and [epochs](crate::epoch) ([`Belief::now`]):
//!
//! ```text
//!  by time     asked + validity
//!  watched     the end of the epoch: until a change is reported
//!  for ever    there are no other writers
//! ```
//!
//! **Watched** are the names and files in a directory whose store reports each change ([`News`]). A reported change
//! *doubts* the dentry of the name, or the attributes. No thread waits for the store's queue: a reader of the time
//! reads it if that was not done for [`FRESH`] milliseconds. If the queue overflowed, the epoch ends: nothing is
//! looked for, and everything is asked again.
//!
//! # Invariants
//!
//! 1. To enter a name, a thread watches first, then notes the doubts of the directory
//!    ([`AttrCell::doubts`](crate::AttrCell::doubts)), then asks, enters, and believes the answer if the doubts are
//!    the same, with their lock held. When a change in a directory is reported, a thread counts a doubt of the
//!    directory, then looks for the entry. So one of the two finds the other, and no answer from before a change is
//!    believed. Attributes are compared in the same way with their own doubts. If the report may not have found a
//!    file's dentry, the directory's doubts are compared afterwards, and the attributes doubted.
//! 2. A time was read after the last complete reading of the news began, or at most [`FRESH`] later.
//! 3. Every reported change is doubted before the reading counts as complete.
//!
//! # Locking
//!
//! *Protects*: `reading` serialises the readers of the news; the second one waits, and need not read. *Order*:
//! after the names of directories, before dentries. *May block*: for as long as the queue takes to be read.
//!
//! # Memory ordering
//!
//! `read_at` is stored with `Release` after every reported change is doubted, and loaded with `Acquire`: a thread
//! that finds it recent sees the doubts. The epoch is stored before it and loaded after it.
//!
//! # Differences from Linux
//!
//! NFS has delegations, which a server recalls; here there are none, and no thread waits for the
//! return of one.

use crate::epoch::{self, EPOCH, LAST_EPOCH};
use crate::inode::Inode;
use foliocache_mm::slab::SlabArc;
use foliocache_sync::atomic::{AtomicU64, Ordering};
use foliocache_sync::cell::OnceLock;
use foliocache_sync::rank::{Rank, RankedMutex};
use foliocache_sync::{Arc, Weak};
use foliocache_sys::fd::BorrowedFd;
use std::ffi::OsStr;
use std::time::Duration;

/// Milliseconds for which the news count as read. In a model there are none: whatever returned is seen.
const FRESH: u64 = if cfg!(any(loom, shuttle)) { 0 } else { 8 };

/// News are not read.
const NEVER: u64 = u64::MAX;

/// How long a file system's answers may be believed without asking again, if they can change without our doing and
/// without a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The target of a name, and attributes.
    #[doc(alias = "entry_timeout")]
    #[doc(alias = "attr_timeout")]
    pub present: Duration,
    /// That the name does not exist.
    #[doc(alias = "negative_timeout")]
    pub absent: Duration,
}

impl Validity {
    /// Where nothing changes but through us.
    pub const FOR_EVER: Validity = Validity {
        present: Duration::MAX,
        absent: Duration::MAX,
    };
}

/// A change in a watched directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A name was made or moved away.
    Name,
    /// A name was removed, or a file was moved to it: its former file may be gone.
    NameLost,
    /// Attributes of the file with the name changed, or those of the directory itself.
    Attributes,
    /// The content of the file changed.
    Content,
}

impl Change {
    /// Whether a name may lead elsewhere since.
    pub const fn is_of_name(self) -> bool {
        matches!(self, Change::Name | Change::NameLost)
    }
}

/// One change.
#[derive(Clone, Copy)]
pub struct Told<'a> {
    /// In which directory.
    pub dir: &'a SlabArc<Inode>,
    /// To which name; `None` to the directory itself.
    pub name: Option<&'a OsStr>,
    /// The kind of change.
    pub change: Change,
}

/// A source of reports of changes.
pub trait News: Send + Sync {
    /// Ensures that changes in a directory are reported from now on; returns whether they are.
    fn watch(&self, dir: &SlabArc<Inode>) -> bool;

    /// Whether changes in a directory could be reported, and are not yet. Does not block.
    fn could_watch(&self, _dir: &SlabArc<Inode>) -> bool {
        false
    }

    /// Tells of all that has happened since the last call. False if something may be missing. One caller at a time.
    /// Does not wait.
    fn read(&self, tell: &mut dyn FnMut(Told<'_>)) -> bool;

    /// A descriptor that is readable (poll(2)) while reports are queued; `None` if they cannot be
    /// waited for.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Receives the reports.
pub(crate) trait Listener: Send + Sync {
    fn changed(&self, told: Told<'_>);

    /// Every change before `began` was reported; unless it is `complete`, some may be missing.
    fn was_told(&self, began: u64, complete: bool);
}

/// How long answers are believed, and the present time. See the module's header.
pub struct Belief {
    /// Milliseconds, of names and attributes, and of names that are not there.
    present: u64,
    absent: u64,
    epoch: AtomicU64,
    /// When the last complete reading of the news began; [`NEVER`] as long as nothing is watched.
    read_at: AtomicU64,
    reading: RankedMutex<{ Rank::Namespace as u8 }, ()>,
    news: Option<Arc<dyn News>>,
    listener: OnceLock<Weak<dyn Listener>>,
    #[cfg(any(loom, shuttle))]
    ticks: AtomicU64,
}

impl Belief {
    /// By time alone.
    pub fn new(validity: Validity) -> Belief {
        let ms = |after: Duration| u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        Belief {
            present: ms(validity.present),
            absent: ms(validity.absent),
            epoch: AtomicU64::new(0),
            read_at: AtomicU64::new(NEVER),
            reading: RankedMutex::new(()),
            news: None,
            listener: OnceLock::new(),
            #[cfg(any(loom, shuttle))]
            ticks: AtomicU64::new(1),
        }
    }

    #[cfg(not(any(loom, shuttle)))]
    fn clock(&self) -> u64 {
        foliocache_sync::time::coarse_monotonic_ms()
    }

    /// In a model each reading of the clock returns a later moment.
    #[cfg(any(loom, shuttle))]
    fn clock(&self) -> u64 {
        // Relaxed: a number for itself.
        self.ticks.fetch_add(1, Ordering::Relaxed)
    }

    /// Changes are reported; answers about directories that cannot be watched expire.
    pub fn watching(validity: Validity, news: Arc<dyn News>) -> Belief {
        Belief {
            news: Some(news),
            ..Belief::new(validity)
        }
    }

    pub(crate) fn listen(&self, listener: Weak<dyn Listener>) {
        let _ = self.listener.set(listener);
    }

    /// When changes are reported: the present time, comparable with that of [`Listener::was_told`].
    pub(crate) fn told_since(&self) -> Option<u64> {
        self.news.as_ref().map(|_| self.clock())
    }

    /// The present: answers believed until later hold. Reads the news if they are not recent.
    ///
    /// Context: no lock inside the names of directories, no read section.
    #[inline]
    pub fn now(&self) -> u64 {
        if self.present == u64::MAX && self.absent == u64::MAX {
            return 0;
        }
        let now = self.clock();
        if self.is_stale(now) {
            self.read_news(now);
        }
        // Relaxed: after the load in `is_stale`; see the module's header.
        self.epoch.load(Ordering::Relaxed) | now
    }

    /// Reads the news if that was not done for this long.
    ///
    /// Context: as [`Belief::now`].
    pub(crate) fn read_if_older(&self, than: Duration) {
        let now = self.clock();
        // Acquire: as in `is_stale`.
        let read_at = self.read_at.load(Ordering::Acquire);
        if u128::from(now.saturating_sub(read_at)) >= than.as_millis() {
            self.read_news(now);
        }
    }

    #[inline]
    fn is_stale(&self, now: u64) -> bool {
        // Acquire pairs with the Release in `read_news`.
        now.saturating_sub(self.read_at.load(Ordering::Acquire)) > FRESH
    }

    /// Until when an answer requested at `now` holds, for an existing or a missing name.
    pub fn until(&self, now: u64, present: bool) -> u64 {
        let after = match present {
            true => self.present,
            false => self.absent,
        };
        match after {
            u64::MAX => u64::MAX,
            after => now.saturating_add(after).min(epoch::end(now) - 1),
        }
    }

    /// Until when a name in `dir` holds that we are about to change at `now`. If others could change it without a
    /// report, it does not: the next look-up watches the directory first.
    pub(crate) fn until_ours(&self, dir: &SlabArc<Inode>, now: u64, present: bool) -> u64 {
        match self.news.as_ref().is_some_and(|news| news.could_watch(dir)) {
            true => 0,
            false => self.until(now, present),
        }
    }

    /// Whether no news were lost between two moments.
    pub fn is_same_epoch(earlier: u64, now: u64) -> bool {
        epoch::is_same(earlier, now)
    }

    /// Watches a directory; returns whether it is watched. Called before the store is asked about
    /// the directory.
    pub fn watch(&self, dir: &SlabArc<Inode>) -> bool {
        let Some(news) = &self.news else { return false };
        // Relaxed: a thread that sees it too late has read the time in an earlier epoch.
        let any = self.epoch.load(Ordering::Relaxed) < LAST_EPOCH;
        let watched = any && self.listener.get().is_some() && news.watch(dir);
        // Relaxed, here and below: a thread that finds `NEVER` has watched nothing yet, and nothing
        // was reported.
        if watched && self.read_at.load(Ordering::Relaxed) == NEVER {
            let (order, now) = (Ordering::Relaxed, self.clock());
            // Another may have been first, and the news read since.
            let _ = self.read_at.compare_exchange(NEVER, now, order, order);
        }
        watched
    }

    /// See [`News::fd`].
    pub(crate) fn news_fd(&self) -> Option<BorrowedFd<'_>> {
        self.news.as_ref()?.fd()
    }

    #[cold]
    fn read_news(&self, now: u64) {
        let _reading = self.reading.lock();
        if !self.is_stale(now) {
            return;
        }
        let (Some(news), Some(listener)) = (&self.news, self.listener.get()) else {
            return;
        };
        // Before the queue is read.
        let began = self.clock();
        let listener = listener.upgrade();
        let complete = news.read(&mut |told| {
            if let Some(listener) = &listener {
                listener.changed(told);
            }
        });
        if !complete && !foliocache_sync::planted!(belief_outlives_lost_news) {
            // Relaxed: published by the store below.
            let epoch = self.epoch.load(Ordering::Relaxed);
            // Relaxed: published by the store below; no other thread stores.
            self.epoch.store(
                epoch.saturating_add(EPOCH).min(LAST_EPOCH),
                Ordering::Relaxed,
            );
        }
        // Release pairs with the Acquire in `is_stale`.
        self.read_at.store(began, Ordering::Release);
        if let Some(listener) = &listener {
            listener.was_told(began, complete);
        }
    }
}
