//! The observers of a file system: mounts, which report changes to their kernels.
//!
//! # Locking
//!
//! The list has a lock of rank [`Observers`](Rank::Observers). It is held shared while observers are called, which may
//! take [`Leaf`](Rank::Leaf) locks.

use crate::belief::Told;
use crate::inode::Inode;
use foliocache_mm::slab::SlabArc;
use foliocache_sync::Weak;
use foliocache_sync::rank::{Rank, RankedRwLock};
use std::ffi::OsStr;

/// A keeper of answers of a file system beyond our reach, which has to take them back when they change.
///
/// Context of its methods: any locks of the file system may be held; they do not wait, and take leaf locks at most.
pub trait Observer: Send + Sync {
    /// Something may have changed. `inode` is the file behind the name, if it is known. `ours` if the change was
    /// made through the names of this process; the store reports it once more if the directory is watched.
    fn changed(&self, told: Told<'_>, inode: Option<&SlabArc<Inode>>, ours: bool);

    /// The directory that a name in `dir` led to was removed by others, not moved. Told a little after the removal,
    /// unless the name was looked up again since.
    fn directory_is_gone(&self, dir: &Inode, name: &OsStr);

    /// This process changes the inode, or may do so for as long as
    /// [`InodeOperations::writers`](crate::InodeOperations::writers) says.
    fn is_changed(&self, inode: &Inode);

    /// Every change before `began` ([`coarse_monotonic_ms`]) was reported; unless it is `complete`, any may be
    /// missing.
    ///
    /// [`coarse_monotonic_ms`]: foliocache_sys::clock::coarse_monotonic_ms
    fn was_told(&self, began: u64, complete: bool);
}

#[derive(Default)]
pub(super) struct Observers(RankedRwLock<{ Rank::Observers as u8 }, Vec<Weak<dyn Observer>>>);

impl Observers {
    pub(super) fn add(&self, observer: Weak<dyn Observer>) {
        let mut observers = self.0.write();
        observers.retain(|observer| observer.strong_count() > 0);
        observers.push(observer);
    }

    pub(super) fn each(&self, tell: impl Fn(&dyn Observer)) {
        for observer in &*self.0.read() {
            if let Some(observer) = observer.upgrade() {
                tell(&*observer);
            }
        }
    }
}
