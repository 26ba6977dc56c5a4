//! Caches of metadata that give some of it up while memory is short (decision 18).
//!
//! # Model
//!
//! While memory is free their caches grow as they like. Once it is short, what all of them hold beyond their
//! share (see [`unreclaimable`](crate::unreclaimable)) goes first, whether it is metadata or pages that need the memory;
//! the part within their share is left alone, and pages are evicted. So each side is safe from the other. For pages
//! the background reclaimer asks them; a caller that cannot wait for it evicts pages.
//!
//! Memory that is given up may come late: it waits for readers, or somebody outside has to let go of it first. So the
//! background reclaimer asks before the room for metadata is used up. For callers that would be refused otherwise it asks
//! for what they hold within their share, too ([`waiting`](super::waiting)).
//!
//! # Locking
//!
//! *Protects*: the list. *Order*: leaf; the caches are called without it. The times beside it are hints: Relaxed.

use foliocache_sync::atomic::Ordering;
use foliocache_sync::time::{Duration, coarse_monotonic_ms};
use foliocache_sync::{Arc, Weak};
use foliocache_sys::Errno;

use super::waiting::{Need, Waiter};
use crate::records::Mm;
use crate::shrinker::{GivenUp, Shrinker};

/// One of so many bytes of the bound is what the background reclaimer asks for, when the room for metadata is low, and the
/// most that a caller asks for.
const AHEAD: u64 = 16;

/// Least bytes that are worth a look at the caches, and a wait for their readers.
const BATCH: u64 = 256 << 10;

/// How often the caches are asked before pages go.
const ATTEMPTS: u32 = 4;

/// Each time they are asked for four times as much: what they give up may leave no page of theirs empty, and directories
/// go only after what is in them.
const LARGER: u32 = 2;

/// How long nothing is tried after nothing could be reclaimed, in milliseconds: all callers until then would find the
/// same.
const RETRY_AFTER_MS: u64 = 20;

/// How long the caches have to give up what the background reclaimer asked for, in milliseconds.
const AGAIN_MS: u64 = 4;

impl Mm {
    /// Has a cache of metadata asked when memory is short, for as long as it lives.
    #[doc(alias = "register_shrinker")]
    pub fn add_shrinker(&self, shrinker: Weak<dyn Shrinker>) {
        let mut shrinkers = self.reclaimer.shrinkers.lock();
        shrinkers.retain(|shrinker| shrinker.strong_count() > 0);
        shrinkers.push(shrinker);
    }

    /// As [`Mm::charge_metadata`], for a cache of metadata: what such caches hold beyond their share goes
    /// before pages do. Once nothing helped, nothing is tried for a while. Memory that was given up may still be
    /// charged to its cache: `elsewhere` looks there, and says whether it took the bytes.
    ///
    /// Context: as [`Shrinker::shrink`].
    ///
    /// # Errors
    /// As [`Mm::charge_metadata`].
    pub fn charge_cached_metadata(
        &self,
        bytes: u64,
        elsewhere: &dyn Fn() -> bool,
    ) -> Result<(), Errno> {
        let favours_others = self.reclaimer.rounds.favour_others();
        if !favours_others && self.try_charge_metadata(bytes) {
            return Ok(());
        }
        if elsewhere() {
            self.wake_ahead();
            return Ok(());
        }
        let now = coarse_monotonic_ms();
        if favours_others || now < self.reclaimer.no_metadata_until.load(Ordering::Relaxed) {
            return Err(Errno::ENOMEM);
        }
        let charged = self.charge_before_names(bytes, elsewhere);
        if charged.is_err() {
            self.reclaimer
                .no_metadata_until
                .store(now + RETRY_AFTER_MS, Ordering::Relaxed);
        }
        charged
    }

    /// Charges metadata for which names give way, and then pages.
    fn charge_before_names(&self, bytes: u64, elsewhere: &dyn Fn() -> bool) -> Result<(), Errno> {
        for attempt in 0..ATTEMPTS {
            let batch = (BATCH << (attempt * LARGER)).min(self.ahead());
            if self.shrink_caches(bytes.max(batch)).is_none() {
                break;
            }
            if elsewhere() || self.take_metadata(bytes) {
                return Ok(());
            }
        }
        self.charge_metadata(bytes)
    }

    /// As [`Mm::charge_cached_metadata`], for something that a caller is about to use: unused names and inodes give way
    /// to it. It is refused only once a round of the background reclaimer finds nothing to give up, and `patience` is
    /// over, during which holders of names were asked to give them up. Callers that can do without the memory give no
    /// `patience`.
    ///
    /// Context: as [`Shrinker::shrink`]; blocks for `patience` after the last that was given up.
    ///
    /// # Errors
    /// As [`Mm::charge_metadata`].
    pub fn charge_used_metadata(&self, bytes: u64, patience: Duration) -> Result<(), Errno> {
        if patience.is_zero() {
            return self.charge_cached_metadata(bytes, &|| false);
        }
        let mut waiter = Waiter::new(self, Need::Handles, patience);
        while !self.try_charge_metadata(bytes)
            && self.charge_before_names(bytes, &|| false).is_err()
        {
            waiter.refused()?;
        }
        Ok(())
    }

    /// Charges metadata if there is room without making any.
    pub fn try_charge_metadata(&self, bytes: u64) -> bool {
        let charged = self.take_metadata(bytes);
        if charged {
            self.wake_ahead();
        }
        charged
    }

    /// Has the background reclaimer make room ahead where there is hardly any.
    fn wake_ahead(&self) {
        if self.metadata_is_short()
            && coarse_monotonic_ms() >= self.reclaimer.no_ahead_until.load(Ordering::Relaxed)
        {
            self.reclaimer.worker.wake();
        }
    }

    /// Whether there is hardly any room left for metadata.
    pub fn metadata_is_short(&self) -> bool {
        self.frames.metadata_low(!self.metadata_may_grow())
    }

    /// Whether metadata was refused a moment ago.
    pub fn metadata_was_refused(&self) -> bool {
        coarse_monotonic_ms() < self.reclaimer.no_metadata_until.load(Ordering::Relaxed)
    }

    /// The most that is asked for at once.
    fn ahead(&self) -> u64 {
        (self.frames.limit() / AHEAD).max(BATCH)
    }

    /// Has the caches make room for metadata where that is low.
    ///
    /// Context: as [`Shrinker::shrink`].
    pub(super) fn make_room_ahead(&self) {
        if !self.metadata_is_short() {
            return;
        }
        let wanted = self.ahead();
        let spare: u64 = self.caches().iter().map(|cache| cache.spare()).sum();
        let given = match wanted.saturating_sub(spare) {
            0 => None,
            missing => self.shrink_caches(missing),
        };
        let pause = match given {
            Some(_) => AGAIN_MS,
            None => RETRY_AFTER_MS,
        };
        self.reclaimer
            .no_ahead_until
            .store(coarse_monotonic_ms() + pause, Ordering::Relaxed);
    }

    /// Has the caches give up so many bytes of their excess over their share, each in proportion; returns what they
    /// gave up, or nothing if there is no excess.
    ///
    /// Context: as [`Shrinker::shrink`].
    pub(super) fn shrink_caches(&self, bytes: u64) -> Option<GivenUp> {
        let caches = Held::new(self.caches());
        let bytes = bytes.min(self.metadata_surplus(caches.all, bytes.min(BATCH)));
        (bytes > 0).then(|| caches.shrink(bytes))
    }

    /// Makes room for callers that found no page to evict: unused index nodes, the excess of caches over their share,
    /// and, if these give nothing, memory within their share.
    ///
    /// Context: as [`Shrinker::shrink`].
    pub(super) fn make_room_for_waiters(&self) -> GivenUp {
        self.nodes.wait_for_limbo();
        let mut given = GivenUp {
            bytes: self.nodes.shrink() as u64,
            more: false,
        };
        let steps = [self.ahead(), u64::MAX];
        for bytes in steps {
            if given.bytes == 0 {
                given = given.and(self.shrink_caches(bytes).unwrap_or_default());
            }
        }
        for bytes in steps {
            if given.bytes == 0 {
                let caches = Held::new(self.caches());
                given = given.and(caches.shrink(bytes.min(caches.all)));
            }
        }
        given
    }

    /// Has the caches give up all that is not in use.
    ///
    /// Context: as [`Shrinker::shrink`].
    pub(crate) fn drop_idle_caches(&self) {
        for cache in self.caches() {
            let _given = cache.shrink(cache.bytes());
        }
    }

    fn caches(&self) -> Vec<Arc<dyn Shrinker>> {
        let shrinkers = self.reclaimer.shrinkers.lock();
        shrinkers.iter().filter_map(Weak::upgrade).collect()
    }
}

/// The caches, and what each holds.
struct Held {
    caches: Vec<(Arc<dyn Shrinker>, u64)>,
    all: u64,
}

impl Held {
    fn new(caches: Vec<Arc<dyn Shrinker>>) -> Self {
        let caches: Vec<_> = (caches.into_iter())
            .map(|cache| {
                let held = cache.bytes();
                (cache, held)
            })
            .collect();
        let all = caches.iter().map(|(_, held)| held).sum();
        Self { caches, all }
    }

    /// Has each give up its part of so many bytes.
    fn shrink(&self, bytes: u64) -> GivenUp {
        let part = |held: u64| u128::from(bytes) * u128::from(held) / u128::from(self.all.max(1));
        (self.caches.iter())
            .map(|(cache, held)| cache.shrink(part(*held) as u64))
            .fold(GivenUp::default(), GivenUp::and)
    }
}
