//! The attributes that an inode keeps in memory.
//!
//! # Model
//!
//! [`AttrCell`] holds the attributes of `stat`, except those that belong elsewhere: the size of a
//! regular file is its address space's. A write moves `mtime` and `ctime` to the coarse clock; that
//! clock stands still between two timer ticks, so nearly every write finds its time already there
//! and takes no lock.
//!
//! Readers take no lock and write nothing: a path walk checks permissions and answers `stat` from
//! here under the sequence counter. With a backing store, its last answer is *believed* until some
//! time, or until it is *doubted* because it may have changed.
//!
//! For a file without writers, the address space's size can be here too: then the attributes are *settled*, and a
//! `stat` reads nothing else ([`AttrCell::settle`]).
//!
//! ```text
//!  bytes    line 0: a permission check                   line 1: a `stat` besides
//!  0   seqcount              24  mode, settled,           64   times
//!                                provisional, I/O size,
//!                                links
//!  4   lock, doubts          32  owner, group
//!  16  believed until        40  device, size, blocks      112  stamp, permissions
//! ```
//!
//! # Invariants
//!
//! 1. `stamp` is the coarse time of the write that set both `mtime` and `ctime`, or [`NEVER`].
//! 2. `believed_until` is set only for an answer that was requested after the last doubt. Without a
//!    store to ask it is always [`FOR_EVER`].
//! 3. Mode and owner of a directory change inside a change of its `permissions`.
//! 4. While the attributes are settled their size is the address space's, which has no dirty data. The file system
//!    ensures that: under its own lock it settles them, and unsettles them before either changes.
//! 5. Attributes are *provisional* while the file system has an answer of the store that it could not compare with
//!    the known state, because of our own dirty data or handles. Only the file system shows them without asking,
//!    because it knows whether they still hold.
//!
//! 6. A file that gets another name is doubted. Changes through that name may cause no event, so it is not believed
//!    as watched, see [`Belief`](crate::Belief), until the file system says again that all changes are reported.
//!
//! 7. Attributes are *changed* from a change of our own to mode, owner or links until the store has answered a
//!    question that was not doubted since. Until then a doubted answer may be older than our change, and is not
//!    taken over.
//!
//! All change under the lock only.
//!
//! # Locking
//!
//! The lock is for changes of attributes; it is never held across anything that blocks. The file system's closures
//! for [`AttrCell::update`] and [`AttrCell::believe`] run under it, and take locks of rank `Location` or later at most.
//!
//! # Memory ordering
//!
//! The words are `Relaxed` and ordered by the sequence counter; a single word is read without it. `stamp` is a hint
//! read without it, and all its accesses are `Relaxed`: a stale value costs a trip through the lock, or leaves a
//! write that raced with `utimens` with the time that `utimens` set, which is one of the two legal orders. So is
//! `believed_until`: a read just before a doubt shows the state until then.

use crate::epoch;
use crate::generation::Generation;
use crate::types::{Attributes, Device, S_ISGID, S_ISUID};
use foliocache_sync::Arc;
use foliocache_sync::atomic::{AtomicI64, AtomicU64, Ordering};
use foliocache_sync::rank::{Rank, RankedMutex, RankedMutexGuard};
use foliocache_sync::seqcount::SeqCount;
use foliocache_sync::time::{Timespec, coarse_realtime, realtime};

const NEVER: i64 = i64::MIN;

/// Until when attributes without a store are believed.
const FOR_EVER: u64 = u64::MAX;

const WORDS: usize = 11;
/// The word that holds the size.
const SIZE: usize = 3;
/// The value of the nanoseconds for a missing time.
const NO_TIME: u32 = u32::MAX;

/// Bits of a mode in the first word; the rest of its half is for the preferred size of an I/O, in units
/// of [`BLOCK`] bytes, and for [`FLAGS`].
const MODE_BITS: u32 = 12;
/// In the first word: invariant 4.
const SETTLED: u64 = 1 << 31;
/// In the first word: invariant 5.
const PROVISIONAL: u64 = 1 << 30;
/// In the first word: invariant 7.
const CHANGED: u64 = 1 << 29;
/// The bits of the first word that are no attributes.
const FLAGS: u64 = SETTLED | PROVISIONAL | CHANGED;
/// Every store's block size is a multiple of it.
const BLOCK: u32 = 512;
const MODE: u32 = (1 << MODE_BITS) - 1;

fn to_words(of: Attributes) -> [u64; WORDS] {
    let two = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let btime = of.btime.map_or((0, NO_TIME), |time| (time.sec, time.nsec));
    let most = (CHANGED as u32 - 1) >> MODE_BITS;
    let block = of.blksize.div_ceil(BLOCK).min(most);
    [
        two(of.mode & MODE | block << MODE_BITS, of.nlink),
        two(of.uid, of.gid),
        of.rdev.raw(),
        of.size,
        of.blocks,
        two(of.atime.nsec, of.mtime.nsec),
        two(of.ctime.nsec, btime.1),
        of.atime.sec as u64,
        of.mtime.sec as u64,
        of.ctime.sec as u64,
        btime.0 as u64,
    ]
}

#[inline(always)]
fn from_words(words: [u64; WORDS]) -> Attributes {
    let low = |at: usize| words[at] as u32;
    let high = |at: usize| (words[at] >> 32) as u32;
    let time = |at: usize, nsec: u32| Timespec {
        sec: words[at] as i64,
        nsec,
    };
    Attributes {
        mode: low(0) & MODE,
        nlink: high(0),
        uid: low(1),
        gid: high(1),
        rdev: Device::from_raw(words[2]),
        size: words[SIZE],
        blocks: words[4],
        blksize: ((low(0) & !(FLAGS as u32)) >> MODE_BITS) * BLOCK,
        atime: time(7, low(5)),
        mtime: time(8, high(5)),
        ctime: time(9, low(6)),
        btime: (high(6) != NO_TIME).then(|| time(10, high(6))),
    }
}

/// Attributes that are read without a lock, with a fast path for the times of a write.
#[repr(C, align(64))]
pub struct AttrCell {
    seq: SeqCount,
    /// The number of doubts. Changes together with the words.
    doubts: RankedMutex<{ Rank::Attributes as u8 }, u32>,
    believed_until: AtomicU64,
    words: [AtomicU64; WORDS],
    stamp: AtomicI64,
    /// A directory's; see [`AttrCell::of_directory`].
    permissions: Option<Arc<Generation>>,
}

#[cfg(not(any(loom, shuttle)))]
const _: () = {
    use std::mem::offset_of;

    assert!(size_of::<AttrCell>() == 128 && align_of::<AttrCell>() == 64);
    // Mode and owner, with all that says whether they hold, are on the first line.
    assert!(offset_of!(AttrCell, words) + 2 * 8 <= 64);
    assert!(offset_of!(AttrCell, believed_until) < offset_of!(AttrCell, words));
};

impl AttrCell {
    /// Attributes that are not believed yet.
    pub fn new(attributes: Attributes) -> AttrCell {
        AttrCell {
            seq: SeqCount::new(),
            doubts: RankedMutex::new(0),
            believed_until: AtomicU64::new(0),
            words: to_words(attributes).map(AtomicU64::new),
            stamp: AtomicI64::new(NEVER),
            permissions: None,
        }
    }

    /// As [`AttrCell::new`], for a directory. `permissions` is the file system's
    /// ([`FileSystem::permissions`](crate::FileSystem::permissions)).
    pub fn of_directory(attributes: Attributes, permissions: Arc<Generation>) -> AttrCell {
        AttrCell {
            permissions: Some(permissions),
            ..AttrCell::new(attributes)
        }
    }

    /// The same, for attributes that exist nowhere else: always believed, despite doubts.
    #[must_use]
    pub fn without_store(self) -> AttrCell {
        AttrCell {
            believed_until: AtomicU64::new(FOR_EVER),
            ..self
        }
    }

    /// A consistent snapshot of all attributes. Takes no lock; waits while they are being changed.
    #[inline(always)]
    pub fn get(&self) -> Attributes {
        from_words(self.snapshot())
    }

    /// All attributes, of one moment, if they are settled and not provisional. Takes no lock.
    #[inline(always)]
    pub(crate) fn get_settled(&self) -> Option<Attributes> {
        self.get_if(|flags| flags & !CHANGED == SETTLED)
    }

    /// All attributes, of one moment, if they are not provisional. Takes no lock.
    #[inline(always)]
    pub(crate) fn get_compared(&self) -> Option<Attributes> {
        self.get_if(|flags| flags & PROVISIONAL == 0)
    }

    #[inline(always)]
    fn get_if(&self, wanted: impl Fn(u64) -> bool) -> Option<Attributes> {
        let words = self.snapshot();
        wanted(words[0] & FLAGS).then(|| from_words(words))
    }

    /// The words, of one moment.
    #[inline(always)]
    fn snapshot(&self) -> [u64; WORDS] {
        loop {
            let seq = self.seq.read_begin();
            let words = self.load();
            if !self.seq.read_retry(seq) {
                return words;
            }
        }
    }

    /// Notes that the address space has this size and no dirty data, until they are [unsettled](Self::unsettle).
    ///
    /// Context: a lock of the file system, see invariant 4.
    pub fn settle(&self, size: u64) {
        // Relaxed: it is the file system that settles them, under its lock.
        if !self.is_settled() || self.words[SIZE].load(Ordering::Relaxed) != size {
            self.set_settled(Some(size));
        }
    }

    /// The address space may come to differ from now on.
    ///
    /// Context: as [`AttrCell::settle`].
    pub fn unsettle(&self) {
        if self.is_settled() {
            self.set_settled(None);
        }
    }

    /// Whether they are settled.
    ///
    /// Context: as [`AttrCell::settle`].
    pub fn is_settled(&self) -> bool {
        // Relaxed: that changes under the caller's lock.
        self.words[0].load(Ordering::Relaxed) & SETTLED != 0
    }

    /// Whether they are provisional, see invariant 5.
    pub fn is_provisional(&self) -> bool {
        // Relaxed: a hint to threads without the lock of the file system.
        self.words[0].load(Ordering::Relaxed) & PROVISIONAL != 0
    }

    #[cold]
    fn set_settled(&self, size: Option<u64>) {
        let mut lock = self.doubts.lock();
        let _section = self.seq.write(&mut lock);
        if let Some(size) = size {
            // Relaxed, here and below: ordered by the counter.
            self.words[SIZE].store(size, Ordering::Relaxed);
        }
        let first = self.words[0].load(Ordering::Relaxed) & !SETTLED;
        let settled = if size.is_some() { SETTLED } else { 0 };
        self.words[0].store(first | settled, Ordering::Relaxed);
    }

    /// The permission bits.
    #[inline]
    pub fn mode(&self) -> u32 {
        // Relaxed: a word is whole.
        self.words[0].load(Ordering::Relaxed) as u32 & MODE
    }

    /// A consistent snapshot of mode, user and group, for a permission check.
    #[inline]
    pub fn owner(&self) -> (u32, u32, u32) {
        loop {
            let seq = self.seq.read_begin();
            // Relaxed: ordered by the counter.
            let mode = self.words[0].load(Ordering::Relaxed) as u32 & MODE;
            // Relaxed: ordered by the counter.
            let owner = self.words[1].load(Ordering::Relaxed);
            if !self.seq.read_retry(seq) {
                return (mode, owner as u32, (owner >> 32) as u32);
            }
        }
    }

    #[inline(always)]
    fn load(&self) -> [u64; WORDS] {
        // Relaxed: ordered by the counter, or by the lock.
        std::array::from_fn(|at| self.words[at].load(Ordering::Relaxed))
    }

    fn store(&self, lock: &mut RankedMutexGuard<'_, u32>, attributes: Attributes) {
        let _section = self.seq.write(lock);
        let mut words = to_words(attributes);
        // Relaxed, here and below: ordered by the counter.
        words[0] |= self.words[0].load(Ordering::Relaxed) & FLAGS;
        for (word, value) in self.words.iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Changes attributes under the lock. With a store, a change of mode, owner or links counts as a doubt of
    /// earlier questions: an answer from before our own change does not replace it.
    pub fn update<R>(&self, change: impl FnOnce(&mut Attributes) -> R) -> R {
        let mut lock = self.doubts.lock();
        // Relaxed: under the lock.
        let of_store = || [0, 1].map(|at| self.words[at].load(Ordering::Relaxed));
        let (before, doubts) = (of_store(), *lock);
        let result = self.update_locked(&mut lock, change);
        if of_store() != before && self.has_store() {
            if *lock == doubts {
                *lock = lock.wrapping_add(1);
            }
            let _section = self.seq.write(&mut lock);
            // Relaxed: under the lock, and ordered by the counter.
            self.words[0].fetch_or(CHANGED, Ordering::Relaxed);
        }
        result
    }

    /// As [`AttrCell::update`], with an answer of the store: that is no doubt of it, except by
    /// invariant 6.
    pub fn take_over<R>(&self, change: impl FnOnce(&mut Attributes) -> R) -> R {
        self.update_locked(&mut self.doubts.lock(), change)
    }

    fn update_locked<R>(
        &self,
        lock: &mut RankedMutexGuard<'_, u32>,
        change: impl FnOnce(&mut Attributes) -> R,
    ) -> R {
        let before = from_words(self.load());
        let mut attributes = before;
        let result = change(&mut attributes);
        // Invariant 6.
        if self.permissions.is_none() && attributes.nlink > before.nlink.max(1) && self.has_store()
        {
            **lock = lock.wrapping_add(1);
            self.believe_until(0);
        }
        let owner = |of: &Attributes| (of.mode, of.uid, of.gid);
        let permissions = self.permissions.as_ref();
        let _changing = permissions
            .filter(|_| owner(&before) != owner(&attributes))
            .map(|permissions| permissions.begin());
        self.store(lock, attributes);
        // Relaxed: a hint, see the module's header.
        self.stamp.store(NEVER, Ordering::Relaxed);
        result
    }

    /// The data changed now. Returns whether that moved the times.
    #[inline]
    pub fn data_changed(&self) -> bool {
        let now = coarse_realtime();
        // Relaxed: a hint, see the module's header.
        let moved = self.stamp.load(Ordering::Relaxed) != now.as_nanos();
        if moved {
            self.data_changed_at(now);
        }
        moved
    }

    #[cold]
    fn data_changed_at(&self, now: Timespec) {
        let mut lock = self.doubts.lock();
        let mut attributes = from_words(self.load());
        // The backing store's times may be finer, and ahead of the coarse clock: a write does not turn
        // them back.
        let time = match now < attributes.ctime {
            true => realtime(),
            false => now,
        };
        attributes.mtime = time;
        attributes.ctime = time;
        self.store(&mut lock, attributes);
        // Relaxed: a hint, see the module's header.
        self.stamp.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Whether an unprivileged write must clear set-id bits first.
    #[inline]
    pub fn has_set_id(&self) -> bool {
        let mode = self.mode();
        cleared_set_id(mode) != mode
    }

    /// Whether the attributes may be shown at `now` without asking the store.
    #[inline]
    pub fn is_believed(&self, now: u64) -> bool {
        now < self.believed_until()
    }

    /// Whether they came from a store.
    #[inline]
    pub(crate) fn has_store(&self) -> bool {
        self.believed_until() != FOR_EVER
    }

    /// Whether they are believed at `now` because a change would have been reported, see [`Belief`](crate::Belief),
    /// or because there are no other writers.
    #[inline]
    pub fn is_watched(&self, now: u64) -> bool {
        let until = self.believed_until();
        until >= FOR_EVER - 1 || epoch::is_watched(until, now)
    }

    /// Until when they may be shown without asking the store.
    #[inline]
    pub(crate) fn believed_until(&self) -> u64 {
        // Relaxed: a hint, see the module's header.
        self.believed_until.load(Ordering::Relaxed)
    }

    /// The store's attributes may differ from these: ask before they are shown again.
    pub fn doubt(&self) {
        let mut doubts = self.doubts.lock();
        *doubts = doubts.wrapping_add(1);
        self.believe_until(0);
    }

    /// Context: the lock held.
    fn believe_until(&self, until: u64) {
        // Relaxed: a hint, see the module's header.
        if self.believed_until.load(Ordering::Relaxed) != FOR_EVER {
            // Relaxed: a hint, see the module's header.
            self.believed_until
                .store(until.min(FOR_EVER - 1), Ordering::Relaxed);
        }
    }

    /// Counts a doubt that concerns not these attributes but the directory's children.
    pub(crate) fn count_doubt(&self) {
        let mut doubts = self.doubts.lock();
        *doubts = doubts.wrapping_add(1);
    }

    /// The doubts so far: read them before asking the store, for [`AttrCell::believe`].
    pub fn doubts(&self) -> u32 {
        *self.doubts.lock()
    }

    /// Believes an answer about something in the directory, requested when it had `doubts`, unless
    /// it was doubted since; returns whether it was not.
    pub(crate) fn unless_doubted(&self, doubts: u32, believe: impl FnOnce()) -> bool {
        // The lock is held meanwhile: a later doubt finds the new entry, and doubts it after it was
        // believed.
        let lock = self.doubts.lock();
        let in_time = *lock == doubts;
        if in_time {
            believe();
        }
        in_time
    }

    /// Takes over the store's answer, requested when there were `doubts`, and believes it until `until`, or longer
    /// if it was believed longer. After a doubt in between it is not believed. Does nothing, and returns false,
    /// after a change of our own in between ([`AttrCell::update`]), and if a later answer is believed: one from
    /// after the doubt, or of a later epoch (see [`Belief`](crate::Belief)).
    pub fn believe(&self, doubts: u32, until: u64, change: impl FnOnce(&mut Attributes)) -> bool {
        self.believe_as(doubts, until, |attributes| {
            change(attributes);
            false
        })
    }

    /// As [`AttrCell::believe`]; `change` returns whether the new attributes are provisional, see
    /// invariant 5.
    pub fn believe_as(
        &self,
        doubts: u32,
        until: u64,
        change: impl FnOnce(&mut Attributes) -> bool,
    ) -> bool {
        let mut lock = self.doubts.lock();
        let doubted = *lock != doubts;
        let believed = self.believed_until();
        // Lost news cause no doubt: they end an epoch.
        let is_over = until < believed && !epoch::is_same(until, believed);
        // Relaxed: under the lock.
        let changed = self.words[0].load(Ordering::Relaxed) & CHANGED;
        // By invariant 2, the believed answer was requested later.
        let is_older = doubted && (believed != 0 || changed != 0);
        if is_older || is_over && believed != FOR_EVER {
            return false;
        }
        let provisional = self.update_locked(&mut lock, change);
        let differs = provisional != self.is_provisional();
        let other_flags = if differs {
            PROVISIONAL | changed
        } else {
            changed
        };
        if other_flags != 0 {
            let _section = self.seq.write(&mut lock);
            // Relaxed: under the lock, and ordered by the counter.
            self.words[0].fetch_xor(other_flags, Ordering::Relaxed);
        }
        if !doubted {
            // By invariant 6 it may be less by now.
            self.believe_until(until.max(self.believed_until()));
        }
        true
    }

    /// Believes an answer, requested when there were `doubts`, until a change is reported, see
    /// [`Belief`](crate::Belief); not if it was doubted in between.
    pub(crate) fn believe_watched(&self, doubts: u32, now: u64) {
        let lock = self.doubts.lock();
        if *lock == doubts && self.is_believed(now) {
            self.believe_until(epoch::end(now));
        }
    }

    /// Changes are no longer reported: doubts answers that are believed for that reason.
    pub(crate) fn unwatched(&self) {
        let until = self.believed_until();
        if until != FOR_EVER && epoch::is_watched(until, until) {
            self.doubt();
        }
    }
}

/// `mode` without the set-id bits that an unprivileged write clears: `S_ISGID` without group execute does not mean
/// set-id.
#[doc(alias = "file_remove_privs")]
pub fn cleared_set_id(mode: u32) -> u32 {
    let mode = mode & !S_ISUID;
    if mode & 0o010 != 0 {
        mode & !S_ISGID
    } else {
        mode
    }
}

/// `mode` after an unprivileged write by a member of the file's group or not: a non-member clears `S_ISGID` in any
/// case.
#[doc(alias = "setattr_should_drop_sgid")]
pub fn written_mode(mode: u32, in_group: bool) -> u32 {
    match in_group {
        true => cleared_set_id(mode),
        false => mode & !(S_ISUID | S_ISGID),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(mode: u32) -> AttrCell {
        AttrCell::new(Attributes {
            mode,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: Device::default(),
            size: 0,
            blocks: 0,
            blksize: 4096,
            atime: Timespec::new(1, 0),
            mtime: Timespec::new(1, 0),
            ctime: Timespec::new(1, 0),
            btime: None,
        })
    }

    #[test]
    fn attributes_are_kept_as_they_are() {
        let all = Attributes {
            mode: 0o4755,
            nlink: u32::MAX,
            uid: u32::MAX - 1,
            gid: 7,
            rdev: Device {
                major: 0xfff_ffff,
                minor: 0xfff_fffe,
            },
            size: u64::MAX,
            blocks: 3,
            blksize: 1 << 20,
            atime: Timespec::new(-5, 999_999_999),
            mtime: Timespec::new(i64::MAX, 1),
            ctime: Timespec::new(0, 0),
            btime: Some(Timespec::new(-1, 2)),
        };
        assert_eq!(AttrCell::new(all).get(), all);
        let unborn = Attributes { btime: None, ..all };
        assert_eq!(AttrCell::new(unborn).get(), unborn);
    }

    #[test]
    fn an_answer_from_before_our_own_change_does_not_replace_it() {
        for until in [FOR_EVER - 1, 5] {
            let cell = cell(0o644);
            assert!(cell.believe(cell.doubts(), until, |_| ()));
            let asked = cell.doubts();
            cell.update(|attributes| attributes.mode = 0o600);
            assert!(!cell.believe(asked, until, |attributes| attributes.mode = 0o644));
            assert_eq!(cell.mode(), 0o600);
            assert!(cell.is_believed(4));
            // The file system doubts its own change.
            let asked = cell.doubts();
            cell.doubt();
            cell.update(|attributes| attributes.nlink = 0);
            assert!(!cell.believe(asked, until, |attributes| attributes.nlink = 1));
            assert_eq!(cell.get().nlink, 0);
            // Asked since, and doubted for other reasons.
            let asked = cell.doubts();
            assert!(cell.believe(asked, until, |attributes| attributes.mode = 0o640));
            cell.doubt();
            assert!(cell.believe(asked, until, |attributes| attributes.mode = 0o644));
            assert_eq!(cell.mode(), 0o644);
        }
    }

    #[test]
    fn readers_see_attributes_of_one_moment() {
        let cell = cell(0o644);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for n in 0..20_000 {
                    cell.update(|attributes| {
                        (attributes.uid, attributes.gid) = (n, n);
                        attributes.mtime = Timespec::new(n.into(), n);
                    });
                }
            });
            while !writer.is_finished() {
                let (_, uid, gid) = cell.owner();
                assert_eq!(uid, gid);
                let seen = cell.get();
                assert_eq!((seen.uid, seen.mtime.nsec), (seen.gid, seen.uid));
            }
        });
    }

    #[test]
    fn doubted_attributes_are_not_believed() {
        let cell = cell(0o644);
        assert!(!cell.is_believed(0));
        let before = cell.doubts();
        cell.believe(before, 10, |attributes| attributes.size = 5);
        assert!(cell.is_believed(9) && !cell.is_believed(10));
        cell.doubt();
        assert!(!cell.is_believed(0));
        // Asked before the doubt: taken over, not believed.
        cell.believe(before, 10, |attributes| attributes.size = 6);
        assert_eq!(cell.get().size, 6);
        assert!(!cell.is_believed(0));
        // Asked after it and believed: an older answer does not overwrite it.
        cell.believe(cell.doubts(), 10, |attributes| attributes.size = 7);
        cell.believe(before, 20, |attributes| attributes.size = 6);
        assert_eq!(cell.get().size, 7);
        assert!(cell.is_believed(9) && !cell.is_believed(10));
    }

    #[test]
    fn attributes_without_a_store_are_always_believed() {
        let cell = cell(0o644).without_store();
        cell.doubt();
        assert!(cell.is_believed(u64::MAX - 1));
    }

    #[test]
    fn a_write_moves_the_times() {
        let cell = cell(0o644);
        cell.data_changed();
        let moved = cell.get();
        assert!(moved.mtime > Timespec::new(1, 0));
        assert_eq!(moved.mtime, moved.ctime);
        assert_eq!(moved.atime, Timespec::new(1, 0));
    }

    #[test]
    fn a_write_turns_no_time_back() {
        let cell = cell(0o644);
        let exact = realtime();
        cell.update(|attributes| (attributes.mtime, attributes.ctime) = (exact, exact));
        cell.data_changed();
        assert!(cell.get().mtime >= exact && cell.get().ctime >= exact);
    }

    #[test]
    fn times_that_were_set_move_with_the_next_write() {
        let cell = cell(0o644);
        cell.data_changed();
        cell.update(|attributes| attributes.mtime = Timespec::new(7, 0));
        assert_eq!(cell.get().mtime, Timespec::new(7, 0));
        cell.data_changed();
        assert!(cell.get().mtime > Timespec::new(7, 0));
    }

    #[test]
    fn a_file_that_gets_another_name_is_not_believed_as_watched() {
        let now = 5;
        let watched = || {
            let cell = cell(0o644);
            cell.believe(cell.doubts(), now + 100, |_| ());
            cell.believe_watched(cell.doubts(), now);
            assert!(cell.is_watched(now));
            cell
        };
        // The store says so.
        let file = watched();
        let doubts = file.doubts();
        file.believe(doubts, now + 1, |attributes| attributes.nlink = 2);
        assert!(file.is_believed(now) && !file.is_watched(now));
        // Another thread has asked before that.
        file.believe_watched(doubts, now);
        assert!(!file.is_watched(now));
        // A comparison shows it, or it is our own doing.
        let changes: [fn(&AttrCell); 2] = [
            |file| file.take_over(|attributes| attributes.nlink = 2),
            |file| file.update(|attributes| attributes.nlink = 2),
        ];
        for change in changes {
            let file = watched();
            change(&file);
            assert!(!file.is_believed(now));
        }
    }

    #[test]
    fn settled_attributes_are_a_consistent_snapshot() {
        let cell = cell(0o644);
        assert_eq!(cell.get_settled(), None);
        cell.settle(5);
        assert_eq!(cell.get_settled().map(|settled| settled.size), Some(5));
        cell.update(|attributes| attributes.mode = 0o600);
        assert_eq!(cell.get_settled(), Some(cell.get()));
        cell.unsettle();
        assert_eq!(cell.get_settled(), None);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for n in 0..20_000 {
                    cell.unsettle();
                    cell.update(|attributes| attributes.mtime = Timespec::new(n.into(), n));
                    cell.settle(n.into());
                }
            });
            while !writer.is_finished() {
                if let Some(seen) = cell.get_settled() {
                    assert!(seen.size == 5 || seen.size == u64::from(seen.mtime.nsec));
                }
            }
        });
    }

    #[test]
    fn attributes_settled_again_take_the_size_given_to_settle() {
        let cell = cell(0o644);
        cell.settle(5);
        cell.update(|attributes| attributes.size = 9);
        cell.settle(5);
        assert_eq!(cell.get_settled().map(|settled| settled.size), Some(5));
    }

    #[test]
    fn only_a_change_of_our_own_beside_a_store_counts_as_a_doubt() {
        let change = |attributes: &mut Attributes| attributes.nlink += 1;
        let (stored, alone) = (cell(0o644), cell(0o644).without_store());
        let before = (stored.doubts(), alone.doubts());
        stored.update(change);
        alone.update(change);
        assert_eq!((stored.doubts(), alone.doubts()), (before.0 + 1, before.1));
        stored.take_over(|attributes| attributes.mode = 0o600);
        assert_eq!(stored.doubts(), before.0 + 1);
    }

    #[test]
    fn provisional_attributes_are_not_settled_until_they_are_compared() {
        let cell = cell(0o644);
        cell.settle(5);
        assert!(cell.believe_as(cell.doubts(), 10, |_| true));
        assert!(cell.is_provisional() && cell.is_settled());
        assert_eq!((cell.get_settled(), cell.get_compared()), (None, None));
        cell.update(|attributes| attributes.mode = 0o600);
        assert!(cell.is_provisional());
        assert_eq!((cell.mode(), cell.get().blksize), (0o600, 4096));
        assert!(cell.believe(cell.doubts(), 10, |_| ()));
        assert_eq!(cell.get_settled(), cell.get_compared());
        assert_eq!(cell.get_settled(), Some(cell.get()));
    }

    #[test]
    fn set_id_bits() {
        assert!(cell(0o4755).has_set_id());
        assert!(cell(0o2755).has_set_id());
        assert!(!cell(0o2745).has_set_id());
        assert!(!cell(0o1777).has_set_id());
        assert_eq!(cleared_set_id(0o6755), 0o755);
        assert_eq!(cleared_set_id(0o6745), 0o2745);
        assert_eq!(written_mode(0o6745, true), 0o2745);
        assert_eq!(written_mode(0o6745, false), 0o745);
    }

    /// Lost changes are not reported, so there is no doubt.
    #[test]
    fn an_answer_of_an_epoch_that_is_over_replaces_no_later_one() {
        let cell = cell(0o644);
        let (asked, over) = (cell.doubts(), 10);
        let until = epoch::end(over) + 10;
        assert!(cell.believe(cell.doubts(), until, |attributes| attributes.size = 2));
        assert!(!cell.believe(asked, over, |attributes| attributes.size = 1));
        assert_eq!((cell.get().size, cell.believed_until()), (2, until));
        // Of the same epoch it counts: a change would have been doubted.
        assert!(cell.believe(asked, until - 1, |attributes| attributes.size = 3));
        assert_eq!((cell.get().size, cell.believed_until()), (3, until));
    }
}
