//! Where in a dentry its reference count lies: away from what look-ups read, or among it.
//!
//! # Model
//!
//! ```text
//!            line 0                                       line 1            line 2
//!  Split     link, hash, seq, parent, inode, stamp, name  name, long name   COUNT, children, siblings
//!  Packed    link, hash, seq, parent, inode, stamp, COUNT name, long name   children, siblings
//! ```
//!
//! File systems use [`Split`]. `Packed` is there for tests and, with the feature `bench`, for the benchmark that
//! measures what the distance is worth: in it, each reference that is taken invalidates the line that look-ups
//! read. The rest of the code is the same.
//!
//! # Differences from Linux
//!
//! There it was a change of the structure (commit "vfs: move d_lockref out of the area used by RCU lookup");
//! here the inode's type chooses.

use foliocache_sync::atomic::AtomicU64;
use foliocache_sync::lockref::LockRef;

/// Words of an inline name. A model has fewer, since each is a place where threads may be switched.
const WORDS: usize = if cfg!(any(loom, shuttle)) { 2 } else { 9 };

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Split {}
    #[cfg(any(test, feature = "bench"))]
    impl Sealed for super::Packed {}
}

/// The choice; see the module's header.
pub trait Layout: sealed::Sealed + Send + Sync + 'static {
    /// What lies on the first line.
    #[doc(hidden)]
    type Near: Send + Sync;
    /// What lies on the last line.
    #[doc(hidden)]
    type Far: Send + Sync;
    /// The words of the inline name.
    #[doc(hidden)]
    type Words: AsRef<[AtomicU64]> + Send + Sync;

    /// Bytes of the longest inline name.
    const INLINE: usize = size_of::<Self::Words>() / size_of::<AtomicU64>() * 8;

    /// An unlocked count.
    #[doc(hidden)]
    fn new(count: u32) -> (Self::Near, Self::Far);

    /// The words of an empty name.
    #[doc(hidden)]
    fn words() -> Self::Words;

    /// Where the count is.
    #[doc(hidden)]
    fn lockref<'a>(near: &'a Self::Near, far: &'a Self::Far) -> &'a LockRef;
}

/// The reference count on a line that no look-up reads.
#[derive(Debug)]
pub struct Split;

/// The reference count among what look-ups read: for a benchmark.
#[cfg(any(test, feature = "bench"))]
#[derive(Debug)]
pub struct Packed;

impl Layout for Split {
    type Near = ();
    type Far = LockRef;
    type Words = [AtomicU64; WORDS];

    fn new(count: u32) -> (Self::Near, Self::Far) {
        ((), LockRef::new(count))
    }

    fn words() -> Self::Words {
        std::array::from_fn(|_| AtomicU64::new(0))
    }

    #[inline(always)]
    fn lockref<'a>((): &'a Self::Near, far: &'a Self::Far) -> &'a LockRef {
        far
    }
}

#[cfg(any(test, feature = "bench"))]
impl Layout for Packed {
    type Near = LockRef;
    type Far = ();
    type Words = [AtomicU64; WORDS - 1];

    fn new(count: u32) -> (Self::Near, Self::Far) {
        (LockRef::new(count), ())
    }

    fn words() -> Self::Words {
        std::array::from_fn(|_| AtomicU64::new(0))
    }

    #[inline(always)]
    fn lockref<'a>(near: &'a Self::Near, (): &'a Self::Far) -> &'a LockRef {
        near
    }
}
