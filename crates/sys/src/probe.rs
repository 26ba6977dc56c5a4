//! What this kernel, under the limits of this process, offers; asked once.
//!
//! # Model
//!
//! Version numbers say little: sandboxes refuse calls, distributions bring features back, limits
//! differ. So every feature is tried, in the cheapest way that shows it to work, and what is missing
//! is kept as the error that the kernel gave. Everything above adapts to [`features`]; a person reads
//! its `Display`. How direct I/O must be aligned depends on the file: `fd::direct_io_alignment`.
//!
//! # Memory ordering
//!
//! `FEATURES` is set once by a Release exchange, which pairs with the Acquire loads of those who read
//! through the pointer.
//!
//! # Safety
//!
//! Every descriptor and ring made for a trial ends with it; the answers live as long as the process.
#![allow(unsafe_code)]

use crate::Errno;
use crate::memory::{cgroup_memory_limit, cgroup_memory_usage, total_memory};
use core::fmt;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, openat2, statx};
use rustix::mm::{UserfaultfdFlags, userfaultfd};
use rustix::process::{Resource, getrlimit};
use rustix::thread::{MembarrierCommand, membarrier_query};
use std::os::fd::AsRawFd;

/// io_uring, where a ring can be set up at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IoUring {
    /// One submitting task, which also runs the completions (6.1).
    pub defer_taskrun: bool,
    /// Completions are kept when the queue is full (5.5).
    pub no_drop: bool,
}

/// userfaultfd, where one can be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Userfaultfd {
    /// Only faults from user mode are handled (always so without privilege).
    pub user_mode_only: bool,
    /// Faults on shared memory that has the page but no page table entry for it.
    pub minor_shmem: bool,
    /// Write protection on shared memory.
    pub write_protect_shmem: bool,
    /// The faulting thread gets a SIGBUS in place of a message to another thread.
    pub sigbus: bool,
}

/// Transparent huge pages for anonymous memory, as the machine is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransparentHugePages {
    /// Wherever they fit.
    Always,
    /// Where memory asks for them, as ours does.
    Madvise,
    /// Switched off, or not in this kernel.
    Never,
}

/// What the kernel offers to this process. A feature that is missing holds the kernel's error.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Features {
    /// The kernel's release, as `uname -r`.
    pub kernel: String,
    /// Asynchronous I/O.
    pub io_uring: Result<IoUring, Errno>,
    /// Handling of page faults, for mappings.
    pub userfaultfd: Result<Userfaultfd, Errno>,
    /// Barriers that cost the reader nothing: see [`crate::barrier`].
    pub membarrier: bool,
    /// Opening a path that may not leave a directory.
    pub openat2: Result<(), Errno>,
    /// File attributes with birth time and alignment of direct I/O.
    pub statx: Result<(), Errno>,
    /// `/dev/fuse` can be opened.
    pub fuse: Result<(), Errno>,
    /// Copies that survive a fault: see [`crate::usercopy`].
    pub usercopy_handlers: bool,
    /// Transparent huge pages.
    pub huge_pages: TransparentHugePages,
    /// Free huge pages of 2 MiB in the machine's reserve.
    pub reserved_huge_pages: u64,
    /// Bytes of memory of the machine.
    pub total_memory: u64,
    /// Bytes that the process's memory cgroup allows, where it limits.
    pub cgroup_limit: Option<u64>,
    /// Bytes that were charged to that cgroup when it was asked.
    pub cgroup_usage: Option<u64>,
    /// Stalls for want of memory are counted, and a process may ask to be told of them (PSI).
    pub memory_stalls: Result<(), Errno>,
    /// Descriptors that may be open: now, and at most after raising the limit. `None` without limit.
    pub open_files: (Option<u64>, Option<u64>),
}

static FEATURES: AtomicPtr<Features> = AtomicPtr::new(null_mut());

/// What the kernel offers; the first call tries everything out, which takes about a millisecond and
/// some descriptors, later ones return its answer.
pub fn features() -> &'static Features {
    let known = FEATURES.load(Ordering::Acquire);
    if !known.is_null() {
        // SAFETY: set below, and never freed.
        return unsafe { &*known };
    }
    let ours = Box::into_raw(Box::new(probe()));
    match FEATURES.compare_exchange(null_mut(), ours, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: leaked just now, for good.
        Ok(_) => unsafe { &*ours },
        Err(earlier) => {
            // SAFETY: made above, and nobody else has seen it.
            drop(unsafe { Box::from_raw(ours) });
            // SAFETY: as for `known`.
            unsafe { &*earlier }
        }
    }
}

fn probe() -> Features {
    let files = getrlimit(Resource::Nofile);
    Features {
        kernel: rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned(),
        io_uring: probe_io_uring(),
        userfaultfd: probe_userfaultfd(),
        membarrier: membarrier_query()
            .contains_command(MembarrierCommand::RegisterPrivateExpedited),
        openat2: probe_openat2(),
        statx: probe_statx(),
        fuse: probe_fuse(),
        usercopy_handlers: crate::usercopy::handlers_supported(),
        huge_pages: huge_pages(),
        reserved_huge_pages: number("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"),
        total_memory: total_memory(),
        cgroup_limit: cgroup_memory_limit(),
        cgroup_usage: cgroup_memory_usage(),
        memory_stalls: crate::pressure::stall_trigger("/proc/pressure/memory".as_ref()).map(drop),
        open_files: (files.current, files.maximum),
    }
}

fn probe_io_uring() -> Result<IoUring, Errno> {
    let ring = io_uring::IoUring::new(4)?;
    let mut builder = io_uring::IoUring::<io_uring::squeue::Entry>::builder();
    builder.setup_single_issuer().setup_defer_taskrun();
    Ok(IoUring {
        defer_taskrun: builder.build(4).is_ok(),
        no_drop: ring.params().is_feature_nodrop(),
    })
}

/// The argument of UFFDIO_API.
#[repr(C)]
struct UffdioApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

fn probe_userfaultfd() -> Result<Userfaultfd, Errno> {
    const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
    const UFFD_API: u64 = 0xaa;
    const SIGBUS: u64 = 1 << 7;
    const MINOR_SHMEM: u64 = 1 << 10;
    const WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
    let restricted = flags | UserfaultfdFlags::from_bits_retain(1);
    // SAFETY: it is only asked what it can do, and closed at the end: no range is registered.
    let (fd, user_mode_only) = match unsafe { userfaultfd(restricted) } {
        Ok(fd) => (fd, true),
        // Before 5.11 there was no such restriction.
        // SAFETY: as above.
        Err(rustix::io::Errno::INVAL) => (unsafe { userfaultfd(flags) }?, false),
        Err(error) => return Err(error.into()),
    };
    let mut api = UffdioApi {
        api: UFFD_API,
        features: 0,
        ioctls: 0,
    };
    // SAFETY: the argument is of the size that is part of the request's number.
    if unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_API, &raw mut api) } != 0 {
        return Err(Errno::last_os_error());
    }
    let has = |feature| api.features & feature != 0;
    Ok(Userfaultfd {
        user_mode_only,
        minor_shmem: has(MINOR_SHMEM),
        write_protect_shmem: has(WP_HUGETLBFS_SHMEM),
        sigbus: has(SIGBUS),
    })
}

fn probe_openat2() -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    openat2(CWD, "/", flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
    Ok(())
}

fn probe_statx() -> Result<(), Errno> {
    statx(CWD, "/", AtFlags::empty(), StatxFlags::BASIC_STATS)?;
    Ok(())
}

fn probe_fuse() -> Result<(), Errno> {
    rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    Ok(())
}

fn huge_pages() -> TransparentHugePages {
    let text = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    match text {
        Ok(text) if text.contains("[always]") => TransparentHugePages::Always,
        Ok(text) if text.contains("[madvise]") => TransparentHugePages::Madvise,
        _ => TransparentHugePages::Never,
    }
}

/// The number in a file; zero where there is no such file.
fn number(path: &str) -> u64 {
    std::fs::read_to_string(path)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

/// A list of words, each there or not.
fn words(f: &mut fmt::Formatter<'_>, words: &[(&str, bool)]) -> fmt::Result {
    for (word, there) in words {
        write!(f, ", {}{word}", if *there { "" } else { "no " })?;
    }
    Ok(())
}

/// Bytes in the largest binary unit that leaves a number of three digits or so.
fn bytes(bytes: u64) -> String {
    match bytes {
        0..0x80_0000 => format!("{} KiB", bytes >> 10),
        0x80_0000..0x2_0000_0000 => format!("{} MiB", bytes >> 20),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = |result: &Result<(), Errno>| match result {
            Ok(()) => "yes".to_owned(),
            Err(error) => format!("no ({error})"),
        };
        let limit = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |n| n.to_string());
        writeln!(f, "kernel       {}", self.kernel)?;
        match &self.io_uring {
            Ok(ring) => {
                f.write_str("io_uring     yes")?;
                words(f, &[("DEFER_TASKRUN", ring.defer_taskrun)])?;
                writeln!(f)?;
            }
            Err(error) => writeln!(
                f,
                "io_uring     no ({error}): reads and writes block instead"
            )?,
        }
        match &self.userfaultfd {
            Ok(uffd) => {
                f.write_str("userfaultfd  yes")?;
                let minor = ("minor faults on shared memory", uffd.minor_shmem);
                let protect = ("write protection", uffd.write_protect_shmem);
                let sigbus = ("SIGBUS", uffd.sigbus);
                words(f, &[minor, protect, sigbus])?;
                writeln!(f)?;
            }
            Err(error) => writeln!(f, "userfaultfd  no ({error}): no mappings of files")?,
        }
        let barrier = if self.membarrier {
            "yes"
        } else {
            "no: readers pay for a fence"
        };
        writeln!(f, "membarrier   {barrier}")?;
        writeln!(f, "openat2      {}", plain(&self.openat2))?;
        writeln!(f, "statx        {}", plain(&self.statx))?;
        writeln!(f, "/dev/fuse    {}", plain(&self.fuse))?;
        let copies = if self.usercopy_handlers {
            "survive faults"
        } else {
            "die of faults"
        };
        writeln!(f, "usercopy     {copies}")?;
        let huge = match self.huge_pages {
            TransparentHugePages::Always => "always",
            TransparentHugePages::Madvise => "on request",
            TransparentHugePages::Never => "never",
        };
        writeln!(
            f,
            "huge pages   {huge}, {} of 2 MiB in reserve",
            self.reserved_huge_pages
        )?;
        write!(f, "memory       {}", bytes(self.total_memory))?;
        if let Some(limit) = self.cgroup_limit {
            write!(f, ", cgroup limit {}", bytes(limit))?;
        }
        if let Some(usage) = self.cgroup_usage {
            write!(f, ", cgroup uses {}", bytes(usage))?;
        }
        writeln!(f, "\nstalls       {}", plain(&self.memory_stalls))?;
        let (now, most) = self.open_files;
        write!(
            f,
            "open files   {} now, {} at most",
            limit(now),
            limit(most)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asked_once() {
        let address = || core::ptr::from_ref(features()).addr();
        let first = address();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| assert_eq!(address(), first));
            }
        });
    }

    #[test]
    fn trials_leave_no_descriptors_behind() {
        // Other tests open descriptors too: of a few tries one must end with as many as it began.
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let balanced = (0..50).any(|_| {
            let before = open();
            probe();
            open() == before
        });
        assert!(balanced);
    }

    #[test]
    fn text_names_everything() {
        let mut features = features().clone();
        let text = features.to_string();
        let names = [
            "kernel",
            "io_uring",
            "userfaultfd",
            "membarrier",
            "openat2",
            "statx",
        ];
        for name in names
            .iter()
            .chain(&["/dev/fuse", "usercopy", "huge pages", "memory", "stalls"])
        {
            assert_eq!(
                text.lines().filter(|line| line.starts_with(name)).count(),
                1,
                "{text}"
            );
        }
        features.io_uring = Err(Errno::EPERM);
        features.cgroup_limit = Some(300 << 20);
        let text = features.to_string();
        assert!(
            text.contains("io_uring     no (EPERM: Operation not permitted)"),
            "{text}"
        );
        assert!(text.contains("cgroup limit 300 MiB"), "{text}");
    }

    #[test]
    fn answers_agree_with_what_works() {
        let features = features();
        assert_eq!(features.membarrier, crate::barrier::register());
        assert!(features.total_memory > 0);
        assert!(features.statx.is_ok());
        eprintln!("{features}");
    }
}
