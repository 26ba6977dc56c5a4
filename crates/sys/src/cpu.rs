//! The processors of the machine.
//!
//! # Model
//!
//! [`possible`] counts every processor that the kernel may ever bring online. It depends neither on the
//! affinity of the calling thread nor on the quota of its cgroup, both of which may change later.
//!
//! # Safety
//!
//! The one foreign call takes a number and returns one.
#![allow(unsafe_code)]

/// The number of processors that the kernel may bring online, at least 1. May read a file of sysfs: ask
/// once.
#[doc(alias = "num_possible_cpus")]
pub fn possible() -> usize {
    // SAFETY: sysconf(3) touches no memory of its caller.
    let configured = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    usize::try_from(configured).map_or(1, |n| n.max(1))
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_fewer_processors_are_possible_than_this_thread_may_use() {
        let usable = std::thread::available_parallelism().map_or(1, usize::from);
        assert!(super::possible() >= usable);
    }
}
