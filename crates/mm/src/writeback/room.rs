//! Reserving room in the store for a write while it is scarce, and making some by writing what is dirty. `bdi/space.rs` has the model.
//!
//! # Memory ordering
//!
//! `reserved` goes down with Release, after its bytes were counted as dirty, and up with Acquire, before the counts are
//! read: bytes are seen in one of both. A grant is closed before `reserved` is read, see `dirty/space.rs`.

use foliocache_sync::atomic::Ordering;
use foliocache_sync::time::{Duration, monotonic_ns, sleep};
use foliocache_sys::Errno;
use std::ops::Range;

use crate::counters::Count;
use crate::dirty::{GRANT_TIME, UNASKED, says_full};
use crate::records::{AddressSpace, BackingDevInfo};
use crate::types::{PAGE_SIZE, PageIndex, pages_for};

/// Room for a write that is under way.
#[derive(Debug)]
pub(crate) struct ReservedSpace<'a> {
    bdi: &'a BackingDevInfo,
    bytes: u64,
}

impl Drop for ReservedSpace<'_> {
    fn drop(&mut self) {
        let bytes = match foliocache_sync::planted!(room_never_given_back) {
            true => 0,
            false => self.bytes,
        };
        (self.bdi.space.reserved).fetch_sub(bytes, Ordering::Release);
    }
}

/// Room that the store needs for so many bytes.
fn with_metadata(bytes: u64) -> u64 {
    of_grant(bytes) + FOR_METADATA
}

/// Room that a write takes from a grant, which leaves [`FOR_METADATA`] out.
fn of_grant(bytes: u64) -> u64 {
    bytes + bytes / 64
}

/// Room that is left to the store for what it notes about the data.
const FOR_METADATA: u64 = 128 << 10;

/// Reserved while the store allocates: more than there ever is.
const CLOSED: u64 = 1 << 62;

/// How long a writer sleeps before it looks again whether others are done with what they reserved.
const LOOK_AGAIN: Duration = Duration::from_micros(200);

impl BackingDevInfo {
    fn try_reserve_space(&self, mapping: &AddressSpace, bytes: u64) -> Option<ReservedSpace<'_>> {
        // Added before the look: of two that share the room one sees the other.
        let before = self.space.reserved.fetch_add(bytes, Ordering::Acquire);
        let reserved = ReservedSpace { bdi: self, bytes };
        let asks = before >= CLOSED || foliocache_sync::planted!(each_write_asks_for_room);
        if !asks && self.space.grant.take(of_grant(bytes), monotonic_ns) {
            return Some(reserved);
        }
        let (ample, mut unasked) = (!self.is_scarce(), self.nr_unasked());
        let closed = self.space.grant.close();
        // Also those that took from the grant in between: they look no more.
        let others = self.space.reserved.load(Ordering::Acquire) - bytes;
        let left = self.look_again(mapping)?;
        if ample {
            // Some may have begun before this look made room scarce.
            unasked += self.nr_unasked();
        }
        let kept = others + unasked * UNASKED + with_metadata(bytes);
        if left < kept || self.full().is_some() {
            return None;
        }
        if unasked == 0 && self.is_scarce() {
            let until = monotonic_ns() + GRANT_TIME.as_nanos() as u64;
            self.space.grant.open(closed, (left - kept) / 2, until);
        }
        Some(reserved)
    }

    /// As [`AddressSpace::reserve_space`], where there is no room as it seems.
    #[cold]
    fn ask_store(
        &self,
        file: &AddressSpace,
        bytes: &Range<u64>,
        len: u64,
    ) -> Result<Option<ReservedSpace<'_>>, Errno> {
        let _one_by_one = self.space.writing.lock();
        // Others have written meanwhile.
        if let Some(reserved) = self.try_reserve_space(file, len) {
            return Ok(Some(reserved));
        }
        // Nobody else has room reserved, or gets some, while the store allocates: it would be the same room.
        (self.space.reserved).fetch_add(CLOSED, Ordering::Acquire);
        let closed = ReservedSpace {
            bdi: self,
            bytes: CLOSED,
        };
        let unasked = || self.is_scarce() && self.nr_unasked() > 0;
        while self.space.reserved.load(Ordering::Acquire) > CLOSED || unasked() {
            sleep(LOOK_AGAIN);
        }
        // The flusher tries failed data again.
        if self.counts.get(Count::Dirty) > self.counts.get(Count::Failed) {
            for dirty in self.dirty_files() {
                dirty.fdatawrite();
            }
        }
        let left = self.look_at_space(file);
        if left.is_some_and(|left| left >= with_metadata(len)) && self.full().is_none() {
            (self.space.reserved).fetch_add(len, Ordering::Acquire);
            drop(closed);
            return Ok(Some(ReservedSpace {
                bdi: self,
                bytes: len,
            }));
        }
        match (file.ops).allocate_space(bytes.start, bytes.end - bytes.start) {
            Err(errno) if says_full(&errno) => Err(errno),
            _ => Ok(None),
        }
    }
}

impl AddressSpace {
    /// Sees to it that the store has room for `bytes`, which are about to be dirtied; to be called while room is
    /// scarce. The room is kept until the value is dropped.
    ///
    /// Context: nothing held; may block for I/O, and for other writes.
    ///
    /// # Errors
    /// `ENOSPC` and `EDQUOT`: there is none. Other errors of the store are told when the data is written.
    pub(crate) fn reserve_space(
        &self,
        bytes: &Range<u64>,
    ) -> Result<Option<ReservedSpace<'_>>, Errno> {
        let bdi = self.bdi();
        if bdi.is_memory() || bytes.is_empty() {
            return Ok(None);
        }
        let pages = PageIndex::of(bytes.start).0..pages_for(bytes.end);
        let len = (pages.end - pages.start) * PAGE_SIZE as u64;
        match bdi.try_reserve_space(self, len) {
            Some(reserved) => Ok(Some(reserved)),
            None => bdi.ask_store(self, bytes, len),
        }
    }
}
