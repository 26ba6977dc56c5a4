//! The part of a node that regular files have: handles, work that is still to be done, and whether others changed the file.
//!
//! # Model
//!
//! **Changes from outside.** The [`Coherence`] of a file says whether others changed it. Its input is the size and times that the
//! source shows, changes of our own, and news. For a marked file the kernel reports writes by others ([`writers`](super::writers)).
//!
//! **Before it is first opened** a file has no address space and no data of ours, so each answer of the source
//! holds. Its coherence begins with its address space.
//!
//! # Invariants
//!
//! 1. As long as a file has no address space, size and times in its attributes are those of one answer
//!    of the source, unless a change of our own came between the question and the answer.
//! 2. An address space begins with the size of one answer of the source, and that answer is taken over. So no change from outside is
//!    missed that came before the first opening or beside it.
//! 3. `mapping` is set with the attributes locked, and a thread that takes over an answer of the source looks
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

mod changes;
mod quiet;

pub(super) use changes::OngoingChange;

use super::batched::{Batched, Room};
use super::descriptors::Descriptors;
use super::writers::MarkedFile;
use crate::coherence::{Coherence, nanoseconds};
use foliocache_mm::{AddressSpace, MappingCharge, SlabArc, SlabWeak};
use foliocache_sync::Arc;
use foliocache_sync::cell::OnceLock;
use foliocache_sync::durability::Durability;
use foliocache_sync::rank::{Rank, RankedMutex};
use foliocache_sync::time::{coarse_monotonic_ms, realtime};
use foliocache_sys::Errno;
use foliocache_sys::fd::{OwnedFd, Stat};
use std::mem::offset_of;
use std::ops::Range;

/// Handles of a file.
#[derive(Default)]
pub(super) struct Opens {
    pub(super) handles: u32,
    pub(super) writers: u32,
    /// Waiting in `Shared::idle` for its descriptors to be closed.
    pub(super) idle: bool,
}

/// Pending work for a file, and the state of the source that was seen last.
#[derive(Default)]
#[repr(C)]
pub(super) struct IoState {
    pub(super) fds: Option<Arc<Descriptors>>,
    /// Whether others changed it.
    pub(super) coherence: Coherence,
    /// The answer of the source when it was made through us, until something of it is written.
    pub(super) fresh: Option<Box<Stat>>,
    /// The room that the next write takes into the open batch.
    pub(super) room: Option<Room>,
    /// Batches that data of it is in and that no flush has asked about.
    pub(super) batched: Vec<Batched>,
    /// The range that buffered writes left in the kernel's cache.
    pub(super) cached: Option<Range<u64>>,
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
    /// It is open for writing. A copy of what `opens` says, for flushes, which do not take that lock.
    pub(super) writing: bool,
    /// While `writing`: the kernel reports writes by others, see [`writers`](super::writers).
    pub(super) marked: Option<Arc<MarkedFile>>,
    /// While `writing`: how often it was written back soon after it was written to, up to where it is marked.
    pub(super) soon: u8,
    /// It may leave a note, see [`ctimes`](super::ctimes).
    pub(super) noted: bool,
}

/// The state of a regular file.
#[derive(Default)]
#[repr(C)]
pub(super) struct FileState {
    pub(super) opens: RankedMutex<{ Rank::Opens as u8 }, Opens>,
    /// Its first fields are the last that opening and closing a file looks at.
    pub(super) io: RankedMutex<{ Rank::FileIo as u8 }, IoState>,
    /// Set when the address space is made.
    pub(super) mapping: OnceLock<SlabWeak<AddressSpace>>,
    /// That of the address space, from before there is one to the end of the node, which the address space holds.
    pub(super) charge: OnceLock<MappingCharge>,
    /// Data written, and flushed.
    pub(super) data: Durability,
    /// Size or allocation changed, or that is not known: a flush that is asked for is made, but no error is
    /// lost with the descriptors.
    pub(super) size: Durability,
    /// Data written, and the modification time set after it.
    pub(super) times: Durability,
    /// Attributes changed, and made durable.
    pub(super) attributes: Durability,
    /// Held over setting the modification time, so that none is overwritten by an older one.
    pub(super) stamping: RankedMutex<{ Rank::Stamping as u8 }, ()>,
    /// Held over the calls that make any of these durable.
    pub(super) syncing: RankedMutex<{ Rank::Syncing as u8 }, ()>,
}

impl FileState {
    /// Bytes at its beginning that opening and closing a file looks at, besides a word.
    pub(super) const OPENED_BYTES: usize =
        offset_of!(FileState, io) + offset_of!(IoState, coherence) + 24;

    /// Of a file that others change, unless it is `exclusive`.
    pub(super) fn new(exclusive: bool) -> FileState {
        let file = FileState::default();
        if exclusive {
            file.io.lock().coherence = Coherence::alone();
        }
        file.size.changed();
        file
    }

    pub(super) fn mapping(&self) -> Option<SlabArc<AddressSpace>> {
        self.mapping.get().and_then(SlabWeak::upgrade)
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
            marked.count_under_way(io.coherence.under_way());
            // Some changes of ours may have ended since it was made.
            io.coherence.mark(nanoseconds(realtime()));
            io.marked = Some(marked.clone());
        }
        drop(io);
        marked.end_change();
    }

    /// Closes the descriptors if nothing is left to be written or flushed.
    ///
    /// Context: `opens` held, no handles.
    pub(super) fn close(&self) -> bool {
        if self.mapping().is_some_and(|mapping| mapping.is_dirty()) {
            return false;
        }
        let mut io = self.io.lock();
        if self.unflushed() || io.coherence.under_way() != 0 {
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
        // A size that came later needs a flush of its own, and the file may not be found then.
        let size = io.batched.last().and_then(|batched| batched.size);
        let all = self.data.begin().is_none_or(|begun| Some(begun) == data)
            && self.size.begin().is_none_or(|begun| Some(begun) == size)
            && io.batched.iter().all(|batched| batched.small);
        if opens.handles == 0 && io.coherence.under_way() == 0 && all && self.times.is_durable() {
            let fds = io.fds.take();
            drop(io);
            drop(fds);
        }
    }

    /// As [`FileState::close_batched`], for a file that may have come into a batch while it was open. Does nothing to others,
    /// and to files with data that is not written.
    pub(super) fn close_if_batched(&self) {
        let batched = !self.io.lock().batched.is_empty();
        let to_write = |mapping: &SlabArc<AddressSpace>| {
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

    /// Drops the cached folios of a closed file without a name, dirty ones too: it cannot be opened any more.
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

    /// The answer of the source for a file that was made through us, if nothing of ours changed it since.
    pub(super) fn unchanged_since_made(&self) -> Option<Stat> {
        let io = self.io.lock();
        let unchanged = io.coherence.is_unchanged();
        io.fresh.as_deref().copied().filter(|_| unchanged)
    }
}

impl IoState {
    /// The time in milliseconds, where the machine needs it.
    pub(super) fn clock(&self) -> u64 {
        match self.coherence.was_made() {
            true => coarse_monotonic_ms(),
            false => 0,
        }
    }
}
