//! The processors of the machine.
//!
//! # Model
//!
//! [`possible`] counts every processor that the kernel may ever bring online. It depends neither on the
//! affinity of the calling thread nor on the quota of its cgroup, both of which may change later.
//!
//! [`current`] reads the processor that the thread runs on. The kernel keeps it up to date in a thread's area for
//! restartable sequences (rseq(2)), which the C library registers for each thread. It is a load, where
//! `sched_getcpu` is a call into the vDSO. It is known on x86-64 with glibc 2.35 and later.
//!
//! # Memory ordering
//!
//! `Relaxed`: where the area lies is a number that publishes nothing. All threads find the same.
//!
//! # Safety
//!
//! The C library says where the area of the calling thread lies, as a distance from the thread pointer, and that it is
//! registered. It stays where it is until the thread ends. Only this thread and the kernel write to it, and the
//! kernel not while the thread runs.
#![allow(unsafe_code)]

/// The number of processors that the kernel may bring online, at least 1. May read a file of sysfs: ask
/// once.
#[doc(alias = "num_possible_cpus")]
pub fn possible() -> usize {
    // SAFETY: sysconf(3) touches no memory of its caller.
    let configured = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    usize::try_from(configured).map_or(1, |n| n.max(1))
}

/// The processor that the calling thread runs on, or ran on a moment ago. `None` where it is not known without a
/// system call. Costs two loads.
#[doc(alias = "sched_getcpu")]
#[inline]
pub fn current() -> Option<usize> {
    rseq::current()
}

#[cfg(all(target_arch = "x86_64", target_env = "gnu", not(miri)))]
mod rseq {
    use std::ffi::CStr;
    use core::sync::atomic::{AtomicIsize, Ordering};

    /// Where a thread's area lies from its thread pointer, once it was looked up.
    static OFFSET: AtomicIsize = AtomicIsize::new(UNKNOWN);
    const UNKNOWN: isize = isize::MAX;
    const NONE: isize = isize::MIN;

    #[inline]
    pub(super) fn current() -> Option<usize> {
        // Relaxed: see the module's header.
        let offset = match OFFSET.load(Ordering::Relaxed) {
            UNKNOWN => look_up(),
            offset => offset,
        };
        (offset != NONE).then(|| {
            let cpu: u32;
            // SAFETY: the module's header. `cpu_id_start` is the first field of `struct rseq`.
            unsafe {
                std::arch::asm!(
                    "mov {cpu:e}, dword ptr fs:[{offset}]",
                    cpu = out(reg) cpu,
                    offset = in(reg) offset,
                    options(nostack, preserves_flags, readonly),
                );
            }
            cpu as usize
        })
    }

    #[cold]
    fn look_up() -> isize {
        let size = variable::<u32>(c"__rseq_size");
        let offset = variable::<isize>(c"__rseq_offset");
        let offset = match (size, offset) {
            // A size of 0: the C library has registered no area.
            (Some(size), Some(offset)) if size > 0 => offset,
            _ => NONE,
        };
        OFFSET.store(offset, Ordering::Relaxed);
        offset
    }

    /// The value of a variable that the C library sets before `main` and never again, if it has it.
    fn variable<T: Copy>(name: &CStr) -> Option<T> {
        // SAFETY: dlsym(3) reads the name.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        // SAFETY: the caller names a variable of this type.
        (!found.is_null()).then(|| unsafe { found.cast::<T>().read() })
    }
}

#[cfg(not(all(target_arch = "x86_64", target_env = "gnu", not(miri))))]
mod rseq {
    #[inline]
    pub(super) fn current() -> Option<usize> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_fewer_processors_are_possible_than_this_thread_may_use() {
        let usable = std::thread::available_parallelism().map_or(1, usize::from);
        assert!(possible() >= usable);
    }

    #[test]
    #[cfg(all(target_arch = "x86_64", target_env = "gnu", not(miri)))]
    fn the_processor_is_the_one_that_the_kernel_names() {
        assert!(
            current().is_some(),
            "glibc is older than 2.35 or has registered no rseq area"
        );
        // The thread may be moved between the two answers, but not each time.
        let agree = || {
            // SAFETY: sched_getcpu(3) takes nothing.
            let named = unsafe { libc::sched_getcpu() };
            current() == usize::try_from(named).ok()
        };
        assert!((0..1000).filter(|_| agree()).count() > 500);
        let on_another = std::thread::spawn(current).join();
        assert!(
            on_another
                .expect("it does not panic")
                .is_some_and(|cpu| cpu < possible())
        );
    }
}
