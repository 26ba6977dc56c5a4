//! The attributes that an inode keeps in memory.
//!
//! # Model
//!
//! [`AttrCell`] holds what `stat` shows, apart from what others know better: the size of a regular
//! file is its address space's. A write moves `mtime` and `ctime` to the coarse clock; that clock
//! stands still between two timer ticks, so nearly every write finds its time already there and
//! takes no lock.
//!
//! # Invariants
//!
//! 1. `stamp` is the time that `mtime` and `ctime` both hold, or [`NEVER`].
//! 2. `set_id` is true if and only if the mode of a regular file holds a set-id bit that a write
//!    by somebody other than root clears.
//!
//! Both change under the lock only.
//!
//! # Locking
//!
//! The lock protects the attributes; it is innermost and never held across anything that blocks.
//!
//! # Memory ordering
//!
//! `stamp` and `set_id` are hints read without the lock and all accesses are
//! `Relaxed`: a stale `stamp` costs a trip through the lock or leaves a write that raced with
//! `utimens` with the time that `utimens` set, which is one of the two legal orders; `set_id` is
//! looked at again under the lock.

use crate::types::{S_ISGID, S_ISUID, SetTime};
use foliocache_sync::Mutex;
use foliocache_sync::atomic::{AtomicBool, AtomicI64, Ordering};
use foliocache_sys::clock::{Timespec, coarse_realtime};

const NEVER: i64 = i64::MIN;

/// What an inode remembers; the names are those of `Attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) mode: u32,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) atime: Timespec,
    pub(crate) mtime: Timespec,
    pub(crate) ctime: Timespec,
}

/// Attributes behind a lock, with a fast path for the times of a write.
pub(crate) struct AttrCell {
    attributes: Mutex<Attributes>,
    stamp: AtomicI64,
    set_id: AtomicBool,
}

impl AttrCell {
    pub(crate) fn new(attributes: Attributes) -> AttrCell {
        AttrCell {
            stamp: AtomicI64::new(NEVER),
            set_id: AtomicBool::new(has_set_id(attributes.mode)),
            attributes: Mutex::new(attributes),
        }
    }

    pub(crate) fn get(&self) -> Attributes {
        *self.attributes.lock()
    }

    /// Changes attributes under the lock.
    pub(crate) fn update<R>(&self, change: impl FnOnce(&mut Attributes) -> R) -> R {
        let mut attributes = self.attributes.lock();
        let result = change(&mut attributes);
        // Relaxed: hints, see the module's header.
        self.stamp.store(NEVER, Ordering::Relaxed);
        self.set_id
            .store(has_set_id(attributes.mode), Ordering::Relaxed);
        result
    }

    /// The data changed now.
    #[inline]
    pub(crate) fn data_changed(&self) {
        let now = coarse_realtime();
        // Relaxed: a hint, see the module's header.
        if self.stamp.load(Ordering::Relaxed) != now.as_nanos() {
            self.data_changed_at(now);
        }
    }

    #[cold]
    fn data_changed_at(&self, now: Timespec) {
        let mut attributes = self.attributes.lock();
        attributes.mtime = now;
        attributes.ctime = now;
        // Relaxed: hints, see the module's header.
        self.stamp.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Whether a write by somebody other than root must clear set-id bits first.
    #[inline]
    pub(crate) fn has_set_id(&self) -> bool {
        // Relaxed: a hint, see the module's header.
        self.set_id.load(Ordering::Relaxed)
    }
}

/// Whether `mode` has a set-id bit that a write clears: `S_ISGID` without group execute does not
/// mean set-id.
fn has_set_id(mode: u32) -> bool {
    cleared_set_id(mode) != mode
}

/// `mode` without the set-id bits that a write by somebody other than root clears.
#[doc(alias = "file_remove_privs")]
pub(crate) fn cleared_set_id(mode: u32) -> u32 {
    let mode = mode & !S_ISUID;
    if mode & 0o010 != 0 {
        mode & !S_ISGID
    } else {
        mode
    }
}

impl SetTime {
    /// The time meant, with the coarse clock as the present.
    pub(crate) fn resolve(self, now: Timespec) -> Timespec {
        match self {
            SetTime::Now => now,
            SetTime::At(time) => time,
        }
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
            atime: Timespec::new(1, 0),
            mtime: Timespec::new(1, 0),
            ctime: Timespec::new(1, 0),
        })
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
    fn times_that_were_set_move_with_the_next_write() {
        let cell = cell(0o644);
        cell.data_changed();
        cell.update(|attributes| attributes.mtime = Timespec::new(7, 0));
        assert_eq!(cell.get().mtime, Timespec::new(7, 0));
        cell.data_changed();
        assert!(cell.get().mtime > Timespec::new(7, 0));
    }

    #[test]
    fn set_id_bits() {
        assert!(cell(0o4755).has_set_id());
        assert!(cell(0o2755).has_set_id());
        assert!(!cell(0o2745).has_set_id());
        assert!(!cell(0o1777).has_set_id());
        assert_eq!(cleared_set_id(0o6755), 0o755);
        assert_eq!(cleared_set_id(0o6745), 0o2745);
    }
}
