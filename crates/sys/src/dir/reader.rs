//! Reading a directory with offsets that outlive the reader.
//!
//! # Model
//!
//! The kernel hands out entries in batches; each carries the offset at which the *next* one
//! starts. Such an offset may be kept and given to [`DirReader::seek`] later, also by another
//! reader of the same directory: reading goes on there, though entries were added or removed in
//! between. Offset 0 is the start.
//!
//! # Safety
//!
//! The kernel writes at most the length of the buffer that is handed to it; entries are then
//! decoded from the filled part with checked slicing only.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{self, Mode, OFlags, SeekFrom};
use rustix::io::retry_on_intr;

use crate::Errno;
use crate::fd::FileKind;
use crate::memory::PageVec;

/// Bytes of entries fetched at once.
const BUFFER: usize = 32 << 10;

/// Where the name starts in an entry: behind ino (8), offset (8), length (2) and kind (1).
const NAME: usize = 19;

/// One entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// The inode number, as far as it is known without a look-up: at a mount point, that of the directory
    /// underneath. For display only.
    pub ino: u64,
    /// Where reading goes on after this entry.
    pub next_offset: u64,
    /// The inode's kind, or [`FileKind::Unknown`] if the directory does not say.
    pub kind: FileKind,
    /// The name, one component; `.` and `..` are entries too.
    pub name: &'a OsStr,
}

/// Reads the entries of a directory in the file system's order. Holds 32 KiB.
#[derive(Debug)]
pub struct DirReader {
    dir: OwnedFd,
    buf: PageVec<u8>,
    filled: usize,
    at: usize,
    offset: u64,
    /// Both before the last entry.
    before: (usize, u64),
}

impl DirReader {
    /// Bytes of its buffer.
    pub const BUFFER: usize = BUFFER;

    /// A reader for the directory behind `dir`, which may be an `O_PATH` descriptor: it is opened
    /// again. May block.
    ///
    /// # Errors
    ///
    /// Those of `open(2)`; `ENOTDIR` when it is no directory; `ENOMEM` when the address space is used up.
    pub fn open(dir: BorrowedFd<'_>) -> Result<DirReader, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = retry_on_intr(|| fs::openat(dir, c".", flags, Mode::empty()))?;
        // Not on the heap, which would keep the memory.
        let buf = PageVec::zeroed(BUFFER)?;
        Ok(DirReader {
            dir,
            buf,
            filled: 0,
            at: 0,
            offset: 0,
            before: (0, 0),
        })
    }

    /// The directory that is being read.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Where the next entry starts.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Goes on at `offset`: 0 or a [`DirEntry::next_offset`] of the same directory. Costs nothing
    /// when reading is there already.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a number that is no offset.
    pub fn seek(&mut self, offset: u64) -> Result<(), Errno> {
        let at_first = self.filled == 0 && self.offset == 0;
        if offset != self.offset || (offset == 0 && !at_first) {
            fs::seek(&self.dir, SeekFrom::Start(offset))?;
            self.filled = 0;
            self.at = 0;
            self.offset = offset;
            self.before = (0, offset);
        }
        Ok(())
    }

    /// Has the entry that came last come again.
    pub fn unread(&mut self) {
        (self.at, self.offset) = self.before;
    }

    /// The next entry, `None` at the end. May block.
    ///
    /// # Errors
    ///
    /// Those of `getdents64(2)`; `ENOENT` when the directory was removed; `EIO` for an entry that
    /// cannot be decoded.
    #[allow(
        clippy::should_implement_trait,
        reason = "an entry borrows from the reader"
    )]
    pub fn next(&mut self) -> Result<Option<DirEntry<'_>>, Errno> {
        if self.at == self.filled {
            self.filled = read_entries(self.dir.as_fd(), &mut self.buf)?;
            self.at = 0;
            if self.filled == 0 {
                return Ok(None);
            }
        }
        let (entry, len) = decode(&self.buf[self.at..self.filled])?;
        self.before = (self.at, self.offset);
        self.at += len;
        self.offset = entry.next_offset;
        Ok(Some(entry))
    }
}

/// Reads the entries that come next in an open directory, as many as fit into `buf`; the bytes that they take, 0 at the end.
/// [`entries`] decodes them. May block.
///
/// # Errors
///
/// Those of `getdents64(2)`; `ENOENT` when the directory was removed, `EINVAL` for a buffer that is too small.
pub fn read_entries(dir: BorrowedFd<'_>, buf: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: the kernel writes at most `buf.len()` bytes at `buf`, which is ours alone.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_getdents64,
            dir.as_raw_fd(),
            buf.as_mut_ptr(),
            buf.len(),
        )
    };
    usize::try_from(ret).map_err(|_| Errno::last_os_error())
}

/// The entries in what [`read_entries`] has filled. An entry that cannot be decoded is `EIO`, and the last.
pub fn entries(mut filled: &[u8]) -> impl Iterator<Item = Result<DirEntry<'_>, Errno>> {
    std::iter::from_fn(move || {
        if filled.is_empty() {
            return None;
        }
        let decoded = decode(filled);
        let len = decoded.as_ref().map_or(filled.len(), |&(_, len)| len);
        filled = &filled[len..];
        Some(decoded.map(|(entry, _)| entry))
    })
}

/// Has [`read_entries`] go on at `offset`: 0 or a [`DirEntry::next_offset`] of the same directory.
///
/// # Errors
///
/// `EINVAL` for a number that is no offset.
pub fn seek(dir: BorrowedFd<'_>, offset: u64) -> Result<(), Errno> {
    fs::seek(dir, SeekFrom::Start(offset))?;
    Ok(())
}

/// The first entry, and its length.
fn decode(filled: &[u8]) -> Result<(DirEntry<'_>, usize), Errno> {
    let len = usize::from(u16::from_ne_bytes(field(filled, 16)?));
    let name = filled.get(NAME..len).ok_or(Errno::EIO)?;
    let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
    let entry = DirEntry {
        name: OsStr::from_bytes(name),
        ino: u64::from_ne_bytes(field(filled, 0)?),
        // The types of entries are those of modes, shifted (`DTTOIF`).
        kind: FileKind::from_mode(u32::from(filled[NAME - 1]) << 12),
        next_offset: u64::from_ne_bytes(field(filled, 8)?),
    };
    Ok((entry, len))
}

fn field<const N: usize>(entry: &[u8], at: usize) -> Result<[u8; N], Errno> {
    entry
        .get(at..at + N)
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or(Errno::EIO)
}
