//! What a regular file of the source is besides a node: its handles, what is still to be done for it, and
//! what was seen of it last.
//!
//! # Model
//!
//! **Changes from outside.** `seen` holds the source's size and times as of our own last change.
//! If they differ when a file is opened, somebody else changed it: if nothing of ours is waiting
//! to be written the cached folios are dropped and the new attributes hold, otherwise ours hold. A
//! change of our own that is to attributes alone must leave size and `mtime` as they were seen before
//! it, or somebody else changed the file beside it. Of a marked file the kernel tells whether others wrote, so
//! that `seen` may be missing from one of our changes to the next look ([`writers`](super::writers)).
//!
//! **Before it is first opened** a file has no address space, and nothing of ours: whatever the source
//! says of it holds. What is seen of it begins with its address space.
//!
//! # Invariants
//!
//! 1. As long as a file has no address space, size and times in its attributes are those of one answer
//!    of the source, unless a change of our own came between the question and the answer.
//! 2. An address space begins with the size of one answer of the source, and `seen` is that answer. What
//!    was seen last before a change of our own to attributes, and what was taken over beside one, is in
//!    `unsure` until it is compared with what the source shows afterwards. So no change from outside is
//!    missed that came before the first opening or beside it.
//! 3. `mapping` is set with the attributes locked, and whoever takes over an answer of the source looks
//!    there, under the same lock, whether it is still empty. So no answer from before overwrites what
//!    was written since.
//!
//! # Locking
//!
//! *Protects*: `opens` the counts of handles; it serialises opening, closing, the comparison with the
//! source, and the making of the address space. `syncing` the descriptors' error state: the kernel tells
//! an error once a descriptor, so one call at a time asks for it. *Order*: `opens`, then the address
//! space's locks, then `syncing` or `stamping`; the lock of the attributes, then `io`, which is not held
//! across I/O; then that of the queue of [`writers`](super::writers), which does not wait.

mod quiet;
mod seen;

pub(super) use seen::{LocalChange, OngoingChange, RemoteChange, StatSample, nanoseconds};

use self::seen::Seen;
use super::batch::{Batch, Room};
use super::file::Descriptors;
use super::writers::MarkedFile;
use foliocache_mm::{AddressSpace, MappingCharge};
use foliocache_sync::cell::OnceLock;
use foliocache_sync::durability::Durability;
use foliocache_sync::time::coarse_monotonic_ms;
use foliocache_sync::{Arc, Mutex, Weak};
use foliocache_sys::Errno;
use foliocache_sys::fd::{OwnedFd, Stat};
use std::mem::offset_of;
use std::ops::Range;

/// How long others are not expected to write to a file that was made through us, in milliseconds.
const JUST_MADE: u64 = 10;

/// When the file could be opened, and its pages were compared with the source.
#[derive(Clone, Copy)]
pub(super) struct Checked {
    /// The time, of [`Belief::now`](foliocache_vfs::Belief::now).
    pub(super) asked: u64,
    /// The doubts of its attributes by then.
    pub(super) doubts: u32,
    /// Somebody would have told of a change since.
    pub(super) watched: bool,
}

/// Handles of a file.
#[derive(Default)]
pub(super) struct Opens {
    pub(super) handles: u32,
    pub(super) writers: u32,
    /// Waiting in `Shared::idle` for its descriptors to be closed.
    pub(super) idle: bool,
    /// It was not found by its name while it had handles and no descriptor: the last close looks whether it is gone.
    pub(super) missed: bool,
    pub(super) checked: Option<Checked>,
}

/// A batch, and what of a file it makes durable.
pub(super) struct Batched {
    pub(super) batch: Arc<Batch>,
    /// Generation of the data.
    pub(super) data: u32,
    /// Of the size, unless that was durable.
    pub(super) size: Option<u32>,
    /// No descriptor may be left that would report an error of it.
    pub(super) small: bool,
}

impl Batched {
    /// Whether a write into `batch` makes this one unnecessary.
    pub(super) fn is_covered_by(&self, batch: &Arc<Batch>) -> bool {
        !self.small && (Arc::ptr_eq(&self.batch, batch) || self.batch.has_succeeded())
    }
}

/// What is to be done for a file, and what was seen of it.
#[derive(Default)]
#[repr(C)]
pub(super) struct IoState {
    pub(super) fds: Option<Arc<Descriptors>>,
    /// What the source said of it when it was made through us, until something of it is written.
    pub(super) fresh: Option<Box<Stat>>,
    /// When it was made through us, in milliseconds of the coarse monotonic clock.
    pub(super) made_at: u64,
    /// What the next write takes into the open batch.
    pub(super) room: Option<Room>,
    /// Batches that data of it is in and that no flush has asked about.
    pub(super) batched: Vec<Batched>,
    /// The range that buffered writes left in the kernel's cache.
    pub(super) cached: Option<Range<u64>>,
    /// When it was compared with the source last, a time of [`Belief::now`](foliocache_vfs::Belief::now), and the doubts of
    /// its attributes by then.
    pub(super) compared: Option<(u64, u32)>,
    /// `None` while changes of our own are under way or have not been looked at since.
    pub(super) seen: Option<Seen>,
    /// What is known of the data, in place of `seen`, which may show more. `None` once data of ours goes
    /// to the source.
    unsure: Option<Seen>,
    /// Changes of our own that ever began.
    changes: u64,
    /// Changes of our own under way.
    pub(super) changing: u32,
    /// An error of data that is not flushed, which the kernel told a call that was for something else.
    pub(super) error: Option<Errno>,
    /// Made through us, and not closed since.
    pub(super) new: bool,
    /// A flush failed, and the kernel's pages of the file are not to be written to again, see [`file`](super::file).
    pub(super) stale: bool,
    /// Where the file ended at the last flush, or ends since.
    pub(super) reached: u64,
    /// It was written beyond that.
    pub(super) grew: bool,
    /// Bytes were made durable in their place: `fdatasync(2)` leaves the time of that.
    pub(super) overwritten: bool,
    /// Somebody has it open for writing: what `opens` says, for flushes, which do not take that lock.
    pub(super) writing: bool,
    /// While `writing`: the kernel tells who else writes to it, see [`writers`](super::writers).
    pub(super) marked: Option<Arc<MarkedFile>>,
    /// While `writing`: how often it was written back soon after it was written to, up to where it is marked.
    pub(super) soon: u8,
    /// Others changed it before a change of ours that would hide that, and the pages were not dropped since.
    pub(super) written_by_others: bool,
    /// That was a write or truncate, or nobody knows: the modification time of the source is theirs.
    pub(super) stamped_by_others: bool,
    /// It may leave a note, see [`ctimes`](super::ctimes).
    pub(super) noted: bool,
    /// Looks that no change of our data is to overtake, see [`quiet`].
    pub(super) looks: u16,
}

/// What a regular file has besides being a node.
#[derive(Default)]
#[repr(C)]
pub(super) struct FileState {
    pub(super) opens: Mutex<Opens>,
    /// Its first fields are the last that opening and closing a file looks at.
    pub(super) io: Mutex<IoState>,
    /// Set when the address space is made.
    pub(super) mapping: OnceLock<Weak<AddressSpace>>,
    /// That of the address space, from before there is one to the end of the node, which the address space holds.
    pub(super) charge: OnceLock<MappingCharge>,
    /// Data written, and flushed.
    pub(super) data: Durability,
    /// Size or allocation changed, or nobody knows: a flush that is asked for is made, but no error is
    /// lost with the descriptors.
    pub(super) size: Durability,
    /// Data written, and the modification time set after it.
    pub(super) times: Durability,
    /// Attributes changed, and made durable.
    pub(super) attributes: Durability,
    /// Held over setting the modification time, so that none is overwritten by an older one.
    pub(super) stamping: Mutex<()>,
    /// Held over the calls that make any of these durable.
    pub(super) syncing: Mutex<()>,
}

impl FileState {
    /// Bytes at its beginning that opening and closing a file looks at, besides a word.
    pub(super) const OPENED_BYTES: usize = offset_of!(FileState, io) + 8;

    pub(super) fn new() -> FileState {
        let file = FileState::default();
        file.size.changed();
        file
    }

    pub(super) fn mapping(&self) -> Option<Arc<AddressSpace>> {
        self.mapping.get().and_then(Weak::upgrade)
    }

    /// Whether the file was ever opened.
    pub(super) fn has_mapping(&self) -> bool {
        self.mapping.get().is_some()
    }

    /// Whether there are descriptors.
    pub(super) fn has_descriptors(&self) -> bool {
        self.io.lock().fds.is_some()
    }

    /// A descriptor that is open anyway.
    pub(super) fn any_fd(&self) -> Option<Arc<OwnedFd>> {
        self.io.lock().fds.as_ref().map(|fds| fds.buffered.clone())
    }

    /// Keeps descriptors that were opened elsewhere, unless there are better ones.
    pub(super) fn install(&self, fds: Descriptors) -> Arc<Descriptors> {
        let mut io = self.io.lock();
        match &io.fds {
            Some(held) if held.writable && !held.appends || !fds.writable => {
                let held = held.clone();
                drop(io);
                held
            }
            _ => {
                let fds = Arc::new(fds);
                let old = io.fds.replace(fds.clone());
                drop(io);
                drop(old);
                fds
            }
        }
    }

    /// A new handle may write.
    pub(super) fn count_writer(&self, opens: &mut Opens, writable: bool) {
        opens.writers += u32::from(writable);
        if writable {
            self.io.lock().writing = true;
        }
    }

    /// Gives the file its new mark, if it is open for writing. It has no other, by invariant 1 of
    /// [`writers`](super::writers).
    pub(super) fn set_marked(&self, marked: &Arc<MarkedFile>) {
        let mut io = self.io.lock();
        if io.writing {
            marked.count_under_way(io.changing, io.changes);
            io.marked = Some(marked.clone());
        }
        drop(io);
        marked.end_marking();
    }

    /// Closes the descriptors if nothing is left to be written or flushed.
    ///
    /// Context: `opens` held, no handles.
    pub(super) fn close(&self) -> bool {
        if self.mapping().is_some_and(|mapping| mapping.is_dirty()) {
            return false;
        }
        let mut io = self.io.lock();
        if self.unflushed() || io.changing != 0 {
            return false;
        }
        let fds = io.fds.take();
        drop(io);
        drop(fds);
        true
    }

    /// Closes the descriptors of a file whose data is in a batch, which hears of errors in their place.
    pub(super) fn close_batched(&self) {
        let opens = self.opens.lock();
        let mut io = self.io.lock();
        let data = io.batched.last().map(|batched| batched.data);
        // A size that came later needs a flush of its own, and perhaps nobody finds the file then.
        let size = io.batched.last().and_then(|batched| batched.size);
        let all = self.data.begin().is_none_or(|begun| Some(begun) == data)
            && self.size.begin().is_none_or(|begun| Some(begun) == size)
            && io.batched.iter().all(|batched| batched.small);
        if opens.handles == 0 && io.changing == 0 && all && self.times.is_durable() {
            let fds = io.fds.take();
            drop(io);
            drop(fds);
        }
    }

    /// As [`FileState::close_batched`], for a file that may have come into a batch while it was open. Does nothing to others,
    /// and to files with data that is not written.
    pub(super) fn close_if_batched(&self) {
        let batched = !self.io.lock().batched.is_empty();
        let to_write = |mapping: &Arc<AddressSpace>| {
            let stats = mapping.stats();
            stats.dirty_pages + stats.writeback_pages > 0
        };
        if batched && !self.mapping().as_ref().is_some_and(to_write) {
            self.close_batched();
        }
    }

    /// Whether data waits for a flush.
    pub(super) fn unflushed(&self) -> bool {
        !self.data.is_durable()
    }

    /// A change of our own begins: what the source shows until its end is no news.
    #[must_use = "a change has an end"]
    pub(super) fn begin_change(&self, what: LocalChange) -> OngoingChange {
        let mut io = self.io.lock();
        let marked = io.marked.clone();
        if let Some(marked) = &marked {
            drop(io);
            marked.begin_change();
            io = self.io.lock();
        }
        if what == LocalChange::Data {
            io = self.wait_for_looks(io);
        }
        io.changing += 1;
        io.changes += 1;
        let seen = io.seen.take();
        let before = match what {
            LocalChange::Data => {
                io.unsure = None;
                None
            }
            LocalChange::Times | LocalChange::Attributes if io.unsure.is_none() => {
                io.unsure = seen;
                seen
            }
            LocalChange::Times | LocalChange::Attributes => None,
        };
        OngoingChange {
            what,
            before,
            number: io.changes,
            alone: io.changing == 1,
            marked,
        }
    }

    /// A change of our own is over; `stat` is what the source shows now, if somebody looked. It is
    /// remembered only if no other change was under way beside it, which the look may have missed.
    pub(super) fn end_change(&self, change: OngoingChange, stat: Option<&Stat>) -> StatSample {
        // While this is held the file gets no other. It may be the last reference, which goes after the lock.
        let marked;
        let mut io = self.io.lock();
        let later = || io.marked.clone().filter(|it| it.counts(change.number));
        marked = change.marked.clone().or_else(later);
        if let Some(marked) = &marked {
            drop(io);
            marked.end_change();
            io = self.io.lock();
        }
        io.changing -= 1;
        let alone = io.is_alone(&change);
        io.seen = stat.filter(|_| alone).map(Seen::of);
        let same = match (change.before, io.seen, change.what) {
            // Which of the times that it shows is ours is not known.
            (_, None, what) => what == LocalChange::Times,
            (Some(before), Some(now), LocalChange::Times) => before.size == now.size,
            (Some(before), Some(now), _) => before.is_data_of(&now),
            (None, ..) => true,
        };
        // What was taken over meanwhile is for the next comparison.
        if same && io.unsure == change.before {
            io.unsure = None;
        }
        StatSample {
            changes: alone.then_some(change.number),
            others: None,
        }
    }

    /// Whether others have written to a marked file since it was compared with the source, before `change`: told by the kernel,
    /// or by the time that `look` shows.
    pub(super) fn is_after_others(
        &self,
        change: &OngoingChange,
        look: impl FnOnce() -> Option<Stat>,
    ) -> bool {
        let is_later = |marked: &MarkedFile| {
            look().is_some_and(|stat| marked.is_later(nanoseconds(stat.mtime)))
        };
        // The time may be that of another change of ours that is under way.
        let tells = |later| later && self.io.lock().is_alone(change);
        (change.marked.as_deref())
            .is_some_and(|marked| marked.has_news() || tells(is_later(marked)))
    }

    /// Drops the cached folios of a file without a name that nobody holds, dirty ones too: nobody can open it any more.
    /// Without `wait`, what is being written or read stays, and is written.
    ///
    /// Context: `opens` held, no handles.
    pub(super) fn discard(&self, wait: bool) {
        match self.mapping() {
            Some(mapping) if wait => _ = mapping.discard_dirty(),
            Some(mapping) if !mapping.try_discard_dirty() => return,
            _ => {}
        }
        for given_up in [&self.data, &self.size, &self.times] {
            if let Some(begun) = given_up.begin() {
                given_up.end(begun);
            }
        }
        let mut io = self.io.lock();
        io.batched = Vec::new();
        io.error = None;
        io.cached = None;
        io.stale = false;
    }

    /// What the source said of a file that was made through us, if nothing of ours changed it since.
    pub(super) fn unchanged_since_made(&self) -> Option<Stat> {
        let io = self.io.lock();
        io.fresh.as_deref().copied().filter(|_| io.changes == 0)
    }

    /// To be asked before a look at the source.
    pub(super) fn look(&self) -> StatSample {
        let mut io = self.io.lock();
        let mut others = None;
        if let Some(marked) = io.marked.clone() {
            drop(io);
            others = Some(marked.written_by_others());
            io = self.io.lock();
        }
        StatSample {
            changes: (io.changing == 0).then_some(io.changes),
            others,
        }
    }

    /// Whether what was looked up at `look` is still the last word: no change of our own was under way
    /// nor has begun since.
    pub(super) fn holds(&self, look: StatSample) -> bool {
        self.io.lock().holds(look)
    }

    /// What `stat`, looked up at `look`, shows that was not our own doing.
    pub(super) fn news(&self, stat: &Stat, look: StatSample) -> Option<RemoteChange> {
        let io = self.io.lock();
        if !io.holds(look) {
            return None;
        }
        let now = Seen::of(stat);
        let is_later = |mtime| (io.marked.as_ref()).is_some_and(|marked| marked.is_later(mtime));
        let marked = io.marked.as_ref().zip(look.others);
        if io.written_by_others || marked.is_some_and(|(marked, others)| others != marked.known()) {
            return Some(RemoteChange::Data);
        }
        match (io.unsure, io.seen) {
            (Some(known), _) if known.is_data_of(&now) => Some(RemoteChange::Attributes),
            (Some(_), _) => Some(RemoteChange::Data),
            (None, Some(seen)) if seen != now => Some(RemoteChange::Data),
            (None, None) if is_later(now.mtime) => Some(RemoteChange::Data),
            (None, _) => None,
        }
    }

    /// Whether the last look at the source came after our own last change and showed nothing by others that is to be taken
    /// over. False, too, while data waits to be written and nobody has the file open for writing.
    pub(super) fn is_known(&self, mapping: Option<&Arc<AddressSpace>>) -> bool {
        let cached = mapping.map(|mapping| (mapping.is_dirty(), mapping.size()));
        let io = self.io.lock();
        io.known().is_some_and(|seen| match cached {
            Some((true, _)) => io.writing,
            Some((false, size)) => seen.size == size,
            None => true,
        })
    }

    /// Whether `stat`, looked up at `look`, shows what is known; then the file was `compared`.
    pub(super) fn shows_no_news(
        &self,
        stat: &Stat,
        look: StatSample,
        compared: (u64, u32),
    ) -> bool {
        let mut io = self.io.lock();
        let unchanged = io.holds(look) && io.known() == Some(Seen::of(stat));
        if unchanged {
            io.compared = Some(compared);
        }
        unchanged
    }

    /// Whether a look at the source can show that others changed it, and does not have to be told of that.
    pub(super) fn can_be_compared(&self) -> bool {
        let io = self.io.lock();
        !io.is_just_made() && io.marked.is_none() && io.unsure.or(io.seen).is_some()
    }

    /// Notes what `stat`, looked up at `look`, shows that others did to the data.
    pub(super) fn note_news(&self, stat: &Stat, look: StatSample) {
        if self.news(stat, look) == Some(RemoteChange::Data) {
            let mut io = self.io.lock();
            let known = io.unsure.or(io.seen);
            io.stamped_by_others |= known.is_none_or(|known| !known.is_data_of(&Seen::of(stat)));
            io.written_by_others = true;
        }
    }

    /// Whether no look can show what others did, because changes of ours came too close one after another.
    pub(super) fn is_out_of_sight(&self) -> bool {
        let io = self.io.lock();
        io.changing == 0 && io.marked.is_none() && io.unsure.or(io.seen).is_none()
    }

    /// Whether `stat`, looked up at `look`, shows that others wrote to the file since it was compared with the source.
    pub(super) fn shows_news(&self, stat: &Stat, look: StatSample) -> bool {
        self.news(stat, look).is_some() || self.io.lock().written_by_others
    }

    /// Others may have written to it, though it shows the time that it had before.
    pub(super) fn doubt_data(&self) {
        self.io.lock().written_by_others = true;
    }

    /// What `stat`, looked up at `look`, shows is known now; whether it still holds.
    pub(super) fn settle(&self, stat: &Stat, look: StatSample) -> bool {
        let mut io = self.io.lock();
        let holds = io.holds(look);
        if holds {
            io.seen = Some(Seen::of(stat));
            io.unsure = None;
            (io.written_by_others, io.stamped_by_others) = (false, false);
            if let Some((marked, others)) = io.marked.as_ref().zip(look.others) {
                marked.set_known(others);
            }
        }
        holds
    }

    /// As [`FileState::settle`], after what `stat` shows was taken over.
    pub(super) fn took_over(&self, stat: &Stat, look: StatSample) {
        if !self.settle(stat, look) {
            self.io.lock().unsure = Some(Seen::of(stat));
        }
    }
}

impl IoState {
    /// Whether it was made through us so short a while ago that nobody else writes to it, and nothing of it is written.
    pub(super) fn is_just_made(&self) -> bool {
        self.fresh.is_some() && coarse_monotonic_ms().saturating_sub(self.made_at) <= JUST_MADE
    }

    /// Whether no other change of ours was under way since `change` began.
    fn is_alone(&self, change: &OngoingChange) -> bool {
        change.alone && self.changes == change.number
    }

    fn holds(&self, look: StatSample) -> bool {
        look.changes == Some(self.changes)
    }

    /// What the source said last. `None` if the file is marked, or something by others is still to be compared or taken over.
    fn known(&self) -> Option<Seen> {
        let has_more = self.unsure.is_some() || self.written_by_others || self.marked.is_some();
        self.seen.filter(|_| !has_more)
    }
}
