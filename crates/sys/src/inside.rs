//! Whether this thread is inside a call of the cache that holds locks.
//!
//! # Model
//!
//! A page fault of a mapping may be resolved on the thread that touched it
//! ([`resolve_inline`](crate::userfaultfd::resolve_inline)), with locks of the cache. A signal handler that touches a
//! mapping while its thread holds such a lock would wait for itself: the process is ended with a message instead.
//!
//! # Memory ordering
//!
//! The depth is the thread's own: `Relaxed`. Its stores stay in their place among the accesses that they enclose by
//! compiler fences, whose partner is a signal handler of the same thread.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicU32, Ordering, compiler_fence};

thread_local! {
    static DEPTH: AtomicU32 = const { AtomicU32::new(0) };
}

/// The thread is inside until it is dropped.
#[derive(Debug)]
#[must_use]
pub struct Inside(PhantomData<*const ()>);

/// Goes inside; may be nested. A load and a store, here and in the drop.
#[inline]
pub fn enter() -> Inside {
    DEPTH.with(|depth| depth.store(depth.load(Ordering::Relaxed) + 1, Ordering::Relaxed));
    compiler_fence(Ordering::SeqCst);
    Inside(PhantomData)
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        DEPTH.with(|depth| depth.store(depth.load(Ordering::Relaxed) - 1, Ordering::Relaxed));
    }
}

/// Whether the calling thread is inside. Async-signal-safe.
#[inline]
pub fn is_inside() -> bool {
    DEPTH.with(|depth| depth.load(Ordering::Relaxed)) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_inside_until_the_last_guard_goes() {
        assert!(!is_inside());
        let outer = enter();
        let inner = enter();
        assert!(std::thread::scope(|scope| scope
            .spawn(|| !is_inside())
            .join()
            .unwrap()));
        drop(outer);
        assert!(is_inside());
        drop(inner);
        assert!(!is_inside());
    }
}
