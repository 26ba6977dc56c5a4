//! File descriptors: positional I/O, durability, sizes, attributes.
//!
//! # Model
//!
//! Every function takes a [`BorrowedFd`] and an explicit position; none uses or moves the file
//! offset of the open file, so any number of threads may share one descriptor. `EINTR` is retried
//! here and never seen above. Descriptors made here are close-on-exec.
//!
//! Two kinds of memory can be handed in: ordinary slices ([`pread`], [`pwrite`]) and lists of
//! [`IoSegment`] ([`read_segments`], [`write_segments`]), which name memory that others may touch
//! at the same time, as frames of the cache are.
//!
//! # Short transfers
//!
//! [`read_segments`] returns fewer bytes than asked only at end of file: any error wins over the
//! bytes that came before it. [`write_segments`] returns the bytes that were written before an
//! error; the error itself comes back when the caller goes on from there, and straight away when
//! nothing was written. This is the contract of the operations that the cache calls for I/O.
//!
//! # Safety
//!
//! This module calls libc where a call takes raw memory or has no typed wrapper. The memory named
//! by an [`IoSegment`] is valid by the contract of [`IoSegment::new`], and the I/O is over when
//! the call returns.
#![allow(unsafe_code)]

use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::{self, AtFlags, Mode};
use rustix::io::{ReadWriteFlags, retry_on_intr};

use crate::Errno;
use crate::clock::Timespec;

mod extents;
mod kept;
mod locks;
mod segment;
mod stat;
pub mod xattr;

pub use extents::has_own_blocks;
pub use kept::KeptFds;
pub use locks::{
    LockKind, is_range_locked, lock, lock_range, try_lock, try_lock_range, unlock, unlock_range,
};
pub use rustix::fs::{Advice, OFlags};
pub(crate) use segment::{Batch, Batches};
pub use segment::{Extent, IoSegment};
pub(crate) use stat::stat_at;
pub use stat::{
    Attr, Attributes, Device, DirectIoAlignment, FileKind, Stat, StatFs, direct_io_alignment,
    fs_magic, fstat, fstat_new, fstatvfs,
};
pub use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Most segments that one vectored system call takes.
pub const IOV_MAX: usize = 1024;

/// Opens `path` (absolute or relative to the working directory) close-on-exec.
///
/// `mode` is used when `OFlags::CREATE` is given and is subject to the umask. May block.
///
/// # Errors
///
/// Those of `open(2)`.
pub fn open(path: &Path, flags: OFlags, mode: u32) -> Result<OwnedFd, Errno> {
    let mode = Mode::from_raw_mode(mode);
    uninterrupted(|| fs::open(path, flags | OFlags::CLOEXEC, mode))
}

/// The path under `/proc` through which a descriptor can be opened again or named in a call that
/// takes only paths. It is good while `fd` stays open in this process.
pub fn proc_path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Opens the file behind `fd` again with other flags, for instance an `O_PATH` descriptor for
/// reading and writing.
///
/// The new descriptor has its own open file description. Flags about names (`CREATE`, `EXCL`,
/// `NOFOLLOW`) are dropped, because the name here is a link under `/proc`. May block.
///
/// # Errors
///
/// Those of `open(2)`; `ENOENT` where `/proc` is not mounted; `ELOOP` for a symbolic link.
pub fn reopen(fd: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    let drop = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
    open(Path::new(&proc_path(fd)), flags.difference(drop), 0)
}

/// Makes a call until no signal interrupts it.
pub(crate) fn uninterrupted<T>(call: impl FnMut() -> rustix::io::Result<T>) -> Result<T, Errno> {
    Ok(retry_on_intr(call)?)
}

/// As [`uninterrupted`], of a call of libc.
fn retrying(mut call: impl FnMut() -> libc::ssize_t) -> Result<usize, Errno> {
    loop {
        match usize::try_from(call()).map_err(|_| Errno::last_os_error()) {
            Err(Errno::EINTR) => {}
            done => return done,
        }
    }
}

fn off(pos: u64) -> Result<libc::off_t, Errno> {
    libc::off_t::try_from(pos).map_err(|_| Errno::EINVAL)
}

/// `preadv(2)` or `pwritev(2)`.
type Vectored = unsafe extern "C" fn(
    libc::c_int,
    *const libc::iovec,
    libc::c_int,
    libc::off_t,
) -> libc::ssize_t;

/// One call of `vectored`; returns the bytes that it moved.
fn moved(
    vectored: Vectored,
    fd: BorrowedFd<'_>,
    pos: u64,
    batch: &segment::Batch,
) -> Result<usize, Errno> {
    let (runs, pos) = (batch.runs(), off(pos)?);
    retrying(|| {
        // SAFETY: contract of `IoSegment::new`: each run is memory that may be read and written.
        unsafe {
            vectored(
                fd.as_raw_fd(),
                runs.as_ptr(),
                runs.len() as libc::c_int,
                pos,
            )
        }
    })
}

/// Reads into all `segments` from byte `pos` on, with as many calls as it takes.
///
/// Returns the bytes read, fewer than asked only at end of file. May block.
///
/// # Errors
///
/// Those of `preadv(2)`; bytes read before an error are not reported.
pub fn read_segments(
    fd: BorrowedFd<'_>,
    pos: u64,
    segments: &[IoSegment<'_>],
) -> Result<usize, Errno> {
    let mut done = 0_usize;
    for mut batch in segment::Batches::new(segments, segment::LONGEST) {
        while batch.left() > 0 {
            match moved(libc::preadv, fd, pos + done as u64, &batch) {
                Ok(0) => return Ok(done),
                Ok(n) => {
                    batch.advance(n);
                    done += n;
                }
                // Direct I/O may refuse the odd position that a cut at end of file leaves.
                Err(Errno::EINVAL) if done > 0 && at_end(fd, pos + done as u64) => return Ok(done),
                Err(e) => return Err(e),
            }
        }
    }
    Ok(done)
}

/// Whether `pos` is at or past the end of a regular file.
pub(crate) fn at_end(fd: BorrowedFd<'_>, pos: u64) -> bool {
    fstat(fd).is_ok_and(|st| st.kind == FileKind::Regular && pos >= st.size)
}

/// Writes all `segments` at byte `pos`, with as many calls as it takes.
///
/// Returns the bytes written: all of them, or fewer when an error came after some; going on from
/// there then reports that error. May block. Not durable until [`fdatasync`].
///
/// # Errors
///
/// Those of `pwritev(2)` when nothing was written; `EIO` when the kernel takes no byte and names
/// no error.
pub fn write_segments(
    fd: BorrowedFd<'_>,
    pos: u64,
    segments: &[IoSegment<'_>],
) -> Result<usize, Errno> {
    let mut done = 0_usize;
    for mut batch in segment::Batches::new(segments, segment::LONGEST) {
        while batch.left() > 0 {
            match moved(libc::pwritev, fd, pos + done as u64, &batch) {
                Ok(0) if done == 0 => return Err(Errno::EIO),
                Err(e) if done == 0 => return Err(e),
                Ok(0) | Err(_) => return Ok(done),
                Ok(n) => {
                    batch.advance(n);
                    done += n;
                }
            }
        }
    }
    Ok(done)
}

/// Writes a batch with one call; returns the bytes.
pub(crate) fn write_batch(fd: BorrowedFd<'_>, pos: u64, batch: &Batch) -> Result<usize, Errno> {
    moved(libc::pwritev, fd, pos, batch)
}

/// The access mode and flags with which a descriptor was opened.
///
/// # Errors
///
/// Those of `fcntl(2)`.
#[doc(alias = "F_GETFL")]
pub fn access_mode(fd: BorrowedFd<'_>) -> Result<OFlags, Errno> {
    Ok(fs::fcntl_getfl(fd)?)
}

/// The path of the file behind `fd` at this moment, from `/proc`. The file may have been moved or
/// removed since.
///
/// # Errors
///
/// Those of `readlink(2)`, where there is no `/proc`.
pub fn real_path(fd: BorrowedFd<'_>) -> Result<std::path::PathBuf, Errno> {
    use std::os::unix::ffi::OsStringExt;
    let path = fs::readlink(proc_path(fd), Vec::new())?;
    Ok(std::ffi::OsString::from_vec(path.into_bytes()).into())
}

/// Reads into `buf` from byte `pos` on until it is full or the file ends; returns the bytes read.
///
/// May block.
///
/// # Errors
///
/// Those of `pread(2)`, except `EINTR`.
pub fn pread(fd: BorrowedFd<'_>, pos: u64, buf: &mut [u8]) -> Result<usize, Errno> {
    read_segments(fd, pos, &[IoSegment::from_mut(buf)])
}

/// Writes all of `buf` at byte `pos`. May block. Not durable until [`fdatasync`].
///
/// # Errors
///
/// Those of `pwrite(2)`, except `EINTR`; part of `buf` may have been written.
pub fn pwrite(fd: BorrowedFd<'_>, pos: u64, buf: &[u8]) -> Result<(), Errno> {
    let mut done = 0;
    while done < buf.len() {
        let n = retry_on_intr(|| rustix::io::pwrite(fd, &buf[done..], pos + done as u64))?;
        if n == 0 {
            return Err(Errno::EIO);
        }
        done += n;
    }
    Ok(())
}

/// The kernel's `RWF_DONTCACHE` (Linux 6.14): pages that the call brings into the page cache leave
/// it again.
pub(crate) const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

/// One `preadv2(2)` with `RWF_DONTCACHE` into `segments`, as many as it takes; returns the bytes read. May block.
///
/// # Errors
///
/// Those of `preadv2(2)`, except `EINTR`; `EOPNOTSUPP` where the kernel or the file system does not know the flag.
pub fn read_segments_dontcache(
    fd: BorrowedFd<'_>,
    pos: u64,
    segments: &[IoSegment<'_>],
) -> Result<usize, Errno> {
    unsafe extern "C" fn preadv_dontcache(
        fd: libc::c_int,
        runs: *const libc::iovec,
        nr: libc::c_int,
        pos: libc::off_t,
    ) -> libc::ssize_t {
        // SAFETY: the caller's contract, which is that of `preadv(2)`.
        unsafe { libc::preadv2(fd, runs, nr, pos, DONTCACHE.bits() as libc::c_int) }
    }
    let batch = segment::Batches::new(segments, segment::LONGEST).next();
    batch.map_or(Ok(0), |batch| moved(preadv_dontcache, fd, pos, &batch))
}

/// Makes the file's data, and the attributes needed to read it back, durable. May block long.
///
/// # Errors
///
/// Those of `fdatasync(2)`. After an error the kernel counts the failed pages as clean: the data must be written
/// again, not only synced again. On ext4 success is not enough, see [`check_journal`].
pub fn fdatasync(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    uninterrupted(|| fs::fdatasync(fd))
}

/// Makes the file's data and all its attributes durable. May block long.
///
/// # Errors
///
/// Those of `fsync(2)`; see [`fdatasync`].
pub fn fsync(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    uninterrupted(|| fs::fsync(fd))
}

/// Makes everything in the file system of `fd`, which is open for reading, durable. May block long.
///
/// # Errors
///
/// Those of `syncfs(2)`, and `EIO` or `EROFS` if the journal of the file system broke.
pub fn syncfs(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    retry_on_intr(|| fs::syncfs(fd))?;
    check_journal(fd)
}

/// Whether the file system's journal still works.
///
/// Call it after a call that makes something durable on ext4. `fdatasync(2)`, `fsync(2)` and `syncfs(2)` wait for
/// the journal commit that contains the file's changes. If that commit failed before the wait began, there is
/// nothing left to wait for and the call succeeds, although the changes are lost. ext4 checks the state of its
/// journal before each change, so this begins a change without effect: it removes an extended attribute that does
/// not exist. It takes some 3 µs, and may wait for direct I/O on the file.
///
/// # Errors
///
/// `EIO` or `EROFS` if an error stopped the file system from taking changes. A mount that was made read-only is
/// fine: the remount made everything durable. A caller without permission to change `fd` gets `Ok`.
pub fn check_journal(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    const NONE: &str = "user.foliocache.none";
    match retry_on_intr(|| fs::fremovexattr(fd, NONE)) {
        // Read-only by an error: then the sync of a file says so.
        Err(rustix::io::Errno::IO | rustix::io::Errno::ROFS) => fsync(fd),
        _ => Ok(()),
    }
}

/// How far [`sync_file_range`] goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncRange {
    /// Start writing out the dirty pages of the range.
    Start,
    /// Wait for writes under way, start writing the rest and wait for that too.
    Wait,
}

/// Writes out the kernel's dirty pages of a byte range (`len` 0: to the end of the file). This is
/// *no* durability: neither sizes nor the device's own cache are flushed. May block.
///
/// # Errors
///
/// Those of `sync_file_range(2)`; `ESPIPE` unless it is a regular file or block device.
pub fn sync_file_range(
    fd: BorrowedFd<'_>,
    pos: u64,
    len: u64,
    how: SyncRange,
) -> Result<(), Errno> {
    let flags = match how {
        SyncRange::Start => libc::SYNC_FILE_RANGE_WRITE,
        SyncRange::Wait => {
            libc::SYNC_FILE_RANGE_WAIT_BEFORE
                | libc::SYNC_FILE_RANGE_WRITE
                | libc::SYNC_FILE_RANGE_WAIT_AFTER
        }
    };
    let (pos, len) = (off(pos)?, off(len)?);
    retrying(|| {
        // SAFETY: the call takes no memory.
        (unsafe { libc::sync_file_range(fd.as_raw_fd(), pos, len, flags) }) as libc::ssize_t
    })?;
    Ok(())
}

/// Sets the size of the file, cutting it or adding a hole. May block.
///
/// # Errors
///
/// Those of `ftruncate(2)`.
pub fn ftruncate(fd: BorrowedFd<'_>, size: u64) -> Result<(), Errno> {
    off(size)?;
    uninterrupted(|| fs::ftruncate(fd, size))
}

/// Allocates blocks for a byte range; the size stays. May block.
///
/// # Errors
///
/// Those of `fallocate(2)`: `EOPNOTSUPP` when the file system cannot, `EINVAL` for a `len` of 0.
pub fn allocate(fd: BorrowedFd<'_>, pos: u64, len: u64) -> Result<(), Errno> {
    let flags = fs::FallocateFlags::KEEP_SIZE;
    uninterrupted(|| fs::fallocate(fd, flags, pos, len))
}

/// Frees a byte range, which reads as zeros then; the size stays. May block.
///
/// # Errors
///
/// As [`allocate`].
pub fn punch_hole(fd: BorrowedFd<'_>, pos: u64, len: u64) -> Result<(), Errno> {
    let flags = fs::FallocateFlags::PUNCH_HOLE | fs::FallocateFlags::KEEP_SIZE;
    uninterrupted(|| fs::fallocate(fd, flags, pos, len))
}

/// Asks the kernel to drop its clean cached pages of a byte range (`len` 0: to the end), or to read the range into its
/// cache without waiting for it.
///
/// A hint: dirty pages stay. May block.
///
/// # Errors
///
/// `ESPIPE` on a pipe.
pub fn fadvise(fd: BorrowedFd<'_>, pos: u64, len: u64, advice: Advice) -> Result<(), Errno> {
    let len = std::num::NonZeroU64::new(len);
    Ok(fs::fadvise(fd, pos, len, advice)?)
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The clock's present time.
    #[doc(alias = "UTIME_NOW")]
    Now,
    /// This time.
    At(Timespec),
}

impl SetTime {
    /// The time meant, with the coarse clock as the present.
    pub fn resolve(self, now: Timespec) -> Timespec {
        match self {
            SetTime::Now => now,
            SetTime::At(time) => time,
        }
    }
}

/// Sets the file's access and modification times; `None` leaves one unchanged. Works on `O_PATH` descriptors too.
/// May block.
///
/// # Errors
///
/// Those of `utimensat(2)`.
pub fn futimens(
    fd: BorrowedFd<'_>,
    atime: Option<SetTime>,
    mtime: Option<SetTime>,
) -> Result<(), Errno> {
    let raw = |time| {
        let (tv_sec, tv_nsec) = match time {
            None => (0, libc::UTIME_OMIT),
            Some(SetTime::Now) => (0, libc::UTIME_NOW),
            Some(SetTime::At(time)) => (time.sec, i64::from(time.nsec)),
        };
        fs::Timespec { tv_sec, tv_nsec }
    };
    let times = fs::Timestamps {
        last_access: raw(atime),
        last_modification: raw(mtime),
    };
    Ok(retry_on_intr(|| match fs::futimens(fd, &times) {
        Err(rustix::io::Errno::BADF) => fs::utimensat(fd, c"", &times, AtFlags::EMPTY_PATH),
        done => done,
    })?)
}

/// Sets the permission bits (the low 12 bits of `mode`). Works on `O_PATH` descriptors too. May
/// block.
///
/// # Errors
///
/// Those of `fchmod(2)`; `EOPNOTSUPP` for a symbolic link.
pub fn fchmod(fd: BorrowedFd<'_>, mode: u32) -> Result<(), Errno> {
    let mode = Mode::from_raw_mode(mode);
    match fs::fchmod(fd, mode) {
        Err(rustix::io::Errno::BADF) => Ok(fs::chmod(proc_path(fd), mode)?),
        done => Ok(done?),
    }
}

/// Sets owner and group; `None` leaves one unchanged. Works on `O_PATH` descriptors too. May block.
///
/// # Errors
///
/// Those of `fchownat(2)`.
pub fn fchown(fd: BorrowedFd<'_>, uid: Option<u32>, gid: Option<u32>) -> Result<(), Errno> {
    let uid = uid.map(fs::Uid::from_raw_unchecked);
    let gid = gid.map(fs::Gid::from_raw_unchecked);
    Ok(fs::chownat(fd, c"", uid, gid, AtFlags::EMPTY_PATH)?)
}

/// A kind of range in a sparse file, to be looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekSparse {
    /// The next byte that is data.
    #[doc(alias = "SEEK_DATA")]
    Data,
    /// The next byte that is in a hole; the end of the file counts as one.
    #[doc(alias = "SEEK_HOLE")]
    Hole,
}

/// The first byte at or after `pos` of the kind `what`, or `None`.
///
/// Moves the offset of the open file, which nothing here uses. May block.
///
/// # Errors
///
/// `EINVAL` where the file system does not support it.
pub fn seek_sparse(fd: BorrowedFd<'_>, what: SeekSparse, pos: u64) -> Result<Option<u64>, Errno> {
    off(pos)?;
    let to = match what {
        SeekSparse::Data => fs::SeekFrom::Data(pos),
        SeekSparse::Hole => fs::SeekFrom::Hole(pos),
    };
    match fs::seek(fd, to) {
        Ok(pos) => Ok(Some(pos)),
        Err(rustix::io::Errno::NXIO) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// The kernel's release, as `uname -r`.
pub fn kernel_release() -> String {
    let name = rustix::system::uname();
    name.release().to_string_lossy().into_owned()
}

/// The process's soft limit of open files.
pub fn open_file_limit() -> u64 {
    use rustix::process::{Resource, getrlimit};
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Sets the process's soft limit of open files, to the hard limit at most. Affects the whole process, so a
/// library calls it only if its user asks for that.
///
/// # Errors
///
/// Those of `setrlimit(2)`.
pub fn set_open_file_limit(soft: u64) -> Result<(), Errno> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    let soft = soft.min(limit.maximum.unwrap_or(u64::MAX));
    // The greatest number of all is the kernel's for no limit.
    let soft = (soft != u64::MAX).then_some(soft);
    if limit.current != soft {
        limit.current = soft;
        setrlimit(Resource::Nofile, limit)?;
    }
    Ok(())
}
