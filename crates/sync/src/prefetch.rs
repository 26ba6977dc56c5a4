//! Asking the processor for a cache line before it is needed.
//!
//! # Safety
//!
//! The instruction is a hint that reads nothing: any address will do.
#![allow(unsafe_code)]

/// Asks for the cache line at `at`, which need not be an address of anything. Does not wait for it.
///
/// Several prefetches run side by side; loads that depend on one another do not. Does nothing on architectures
/// other than x86-64.
#[inline(always)]
pub fn prefetch<T>(at: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: see the module.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = at;
}
