//! The processors of the machine.
//!
//! # Model
//!
//! [`possible`] counts every processor that the kernel may ever bring online. It depends neither on the
//! affinity of the calling thread nor on the quota of its cgroup, both of which may change later.
//!
//! [`current`] reads the processor that the thread runs on. The kernel keeps it up to date in each thread's area for
//! restartable sequences (rseq(2)), which the C library registers. [`find_areas`] asks the C library where they lie. They
//! are found on x86-64 Linux with glibc 2.35 and later.
//!
//! # Memory ordering
//!
//! `Relaxed`: the place of the areas is a number that publishes nothing else. All threads find the same.
//!
//! # Safety
//!
//! The C library says how far a thread's rseq area lies from its thread pointer. The area is part of the thread's
//! static storage and lives as long as the thread does, registered or not. Only this thread, the C library and the
//! kernel write to it, and the kernel only while the thread does not run.
#![allow(unsafe_code)]

/// The number of processors that the kernel may bring online, at least 1. May read a file of sysfs: ask
/// once.
#[doc(alias = "num_possible_cpus")]
pub fn possible() -> usize {
    // SAFETY: sysconf(3) touches no memory of its caller.
    let configured = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    usize::try_from(configured).map_or(1, |n| n.max(1))
}

/// The processor that the calling thread runs on, or ran on a moment ago. `None` before [`find_areas`], where it finds none,
/// and in a thread whose area is not registered. Costs two loads.
#[doc(alias = "sched_getcpu")]
#[inline]
pub fn current() -> Option<usize> {
    rseq::current()
}

/// Lets [`current`] answer, where it can. Takes the dynamic linker's lock and may allocate, so not in a signal handler.
pub fn find_areas() {
    rseq::find();
}

#[cfg(all(
    target_arch = "x86_64",
    target_pointer_width = "64",
    target_env = "gnu",
    not(miri)
))]
mod rseq {
    use core::sync::atomic::{AtomicIsize, Ordering};
    use std::ffi::CStr;

    /// How far an area lies from its thread's pointer, once that is known.
    static OFFSET: AtomicIsize = AtomicIsize::new(UNKNOWN);
    const UNKNOWN: isize = isize::MAX;

    /// `cpu_id` in `struct rseq`; negative where the area is not registered.
    const CPU_ID: isize = 4;

    #[inline]
    pub(super) fn current() -> Option<usize> {
        // Relaxed: see the module's header.
        let offset = OFFSET.load(Ordering::Relaxed);
        if offset == UNKNOWN {
            return None;
        }
        let cpu: i32;
        // SAFETY: the module's header.
        unsafe {
            std::arch::asm!(
                "mov {cpu:e}, dword ptr fs:[{at}]",
                cpu = out(reg) cpu,
                at = in(reg) offset + CPU_ID,
                options(nostack, preserves_flags, readonly),
            );
        }
        usize::try_from(cpu).ok()
    }

    pub(super) fn find() {
        let (Some(size), Some(offset)) = (variable(c"__rseq_size"), variable(c"__rseq_offset"))
        else {
            return;
        };
        // SAFETY: an `unsigned int` of the C library, set before `main` and never again.
        let size = unsafe { size.cast::<u32>().read() };
        // SAFETY: a `ptrdiff_t`, likewise.
        let offset = unsafe { offset.cast::<isize>().read() };
        // A size of 0: the C library registers no areas.
        if size > 0 {
            OFFSET.store(offset, Ordering::Relaxed);
        }
    }

    fn variable(name: &CStr) -> Option<*mut libc::c_void> {
        // SAFETY: dlsym(3) reads the name.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    }
}

#[cfg(not(all(
    target_arch = "x86_64",
    target_pointer_width = "64",
    target_env = "gnu",
    not(miri)
)))]
mod rseq {
    #[inline]
    pub(super) fn current() -> Option<usize> {
        None
    }

    pub(super) fn find() {}
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
    fn the_processor_is_the_one_that_the_kernel_names() {
        find_areas();
        if current().is_none() {
            println!("SKIPPED: the C library has registered no area for restartable sequences");
            return;
        }
        // The thread may be moved between the two answers, but not each time.
        let agree = || {
            let mut cpu = 0_u32;
            // SAFETY: getcpu(2) writes a number to its first argument.
            unsafe { libc::syscall(libc::SYS_getcpu, &raw mut cpu, 0_usize, 0_usize) };
            current() == Some(cpu as usize)
        };
        let all_agree = move || (0..1000).filter(|_| agree()).count() > 500;
        assert!(all_agree());
        assert!(
            std::thread::spawn(all_agree)
                .join()
                .expect("it does not panic")
        );
    }
}
