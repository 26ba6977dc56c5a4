//! The vocabulary of the namespace: attributes, flags and the entries of directories.
//!
//! # Model
//!
//! Plain values, free of the kernel's bit layouts wherever a front door does not need them; the
//! numbers of `st_mode`, of `open` flags and of times are those of Linux.

use foliocache_mm::{Access, Iocb};
pub use foliocache_sys::credentials::OpContext;
pub use foliocache_sys::dir::{DirEntry, RenameMode};
pub use foliocache_sys::fd::xattr::XattrMode;
pub use foliocache_sys::fd::{Attr, Attributes, Device, FileKind, SeekSparse, SetTime, StatFs};
use std::ffi::{OsStr, OsString};

/// Longest name of a directory entry, in bytes.
#[doc(alias = "NAME_MAX")]
pub const MAX_NAME: usize = 255;

/// The permission bits of a mode, set-id and sticky bits included.
pub const PERMISSION_BITS: u32 = 0o7777;
/// Set-user-id bit.
pub const S_ISUID: u32 = 0o4000;
/// Set-group-id bit.
pub const S_ISGID: u32 = 0o2000;
/// Sticky bit.
pub const S_ISVTX: u32 = 0o1000;

/// An object without data that is made under a name, and is not opened. Modes are before the caller's umask.
#[derive(Clone, Copy, Debug)]
pub enum New<'a> {
    /// A file, a device, a FIFO or a socket.
    #[doc(alias = "mknod")]
    Node {
        /// One of these.
        kind: FileKind,
        /// Permission bits.
        mode: u32,
        /// Of a device.
        rdev: Device,
    },
    /// A directory.
    #[doc(alias = "mkdir")]
    Directory {
        /// Permission bits.
        mode: u32,
    },
    /// A symbolic link that holds this target, which is never looked at.
    #[doc(alias = "symlink")]
    Symlink(&'a OsStr),
}

/// The kind of object whose name is removed; for the other kind that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remove {
    /// Anything but a directory.
    #[doc(alias = "unlink")]
    File,
    /// An empty directory.
    #[doc(alias = "rmdir")]
    Directory,
}

/// The attributes to change; `None` leaves one unchanged.
#[doc(alias = "iattr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes: `truncate`.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the data.
    pub mtime: Option<SetTime>,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct OpenFlags {
    /// Reading is allowed.
    pub read: bool,
    /// Writing is allowed.
    pub write: bool,
    /// Every write goes to the end of the file.
    pub append: bool,
    /// The file takes bytes at its end alone: a write anywhere else is refused with `EPERM`. Its file system says so.
    pub append_only: bool,
    /// The file is cut to nothing when it is opened.
    pub truncate: bool,
    /// Pages that reads and writes bring into the cache leave it again: [`Iocb::uncached`].
    ///
    /// [`Iocb::uncached`]: foliocache_mm::Iocb::uncached
    pub uncached: bool,
    /// Reads and writes go around the cache: [`Iocb::direct`].
    ///
    /// [`Iocb::direct`]: foliocache_mm::Iocb::direct
    pub direct: bool,
}

impl OpenFlags {
    /// For reading alone.
    pub const READ: OpenFlags = OpenFlags {
        read: true,
        write: false,
        append: false,
        append_only: false,
        truncate: false,
        uncached: false,
        direct: false,
    };
    /// For reading and writing.
    pub const READ_WRITE: OpenFlags = OpenFlags {
        write: true,
        ..OpenFlags::READ
    };
    /// For writing alone.
    pub const WRITE: OpenFlags = OpenFlags {
        read: false,
        ..OpenFlags::READ_WRITE
    };

    /// Whether existing bytes may be overwritten.
    #[inline]
    pub const fn overwrites(&self) -> bool {
        self.write && !self.append && !self.append_only
    }

    /// Whether reads and writes use the cache like most.
    #[inline]
    pub const fn is_cached(&self) -> bool {
        !self.uncached && !self.direct
    }

    /// Has a call go as the file was opened for.
    #[inline]
    pub(crate) fn apply(&self, iocb: &mut Iocb) {
        iocb.uncached |= self.uncached;
        iocb.direct |= self.direct;
    }

    /// Access mode and `O_TRUNC` of the flags of `open(2)`. Flags that `fcntl(2)` may change later are left out:
    /// each call says whether it appends or is uncached. The access mode 3 allows nothing.
    pub const fn from_raw(flags: i32) -> OpenFlags {
        let access = flags & 3;
        OpenFlags {
            read: access == 0 || access == 2,
            write: access == 1 || access == 2,
            truncate: flags & 0o1000 != 0,
            ..OpenFlags::READ
        }
    }

    /// The same with `append`.
    #[must_use]
    pub const fn append(mut self) -> OpenFlags {
        self.append = true;
        self
    }

    /// The same with `truncate`.
    #[must_use]
    pub const fn truncate(mut self) -> OpenFlags {
        self.truncate = true;
        self
    }
}

/// The operation of `fallocate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallocateMode {
    /// Space for the range; the size grows if the range ends beyond it.
    Allocate,
    /// Space for the range; the size stays.
    #[doc(alias = "FALLOC_FL_KEEP_SIZE")]
    AllocateKeepSize,
    /// The range reads as zeros and its space is freed; the size stays.
    #[doc(alias = "FALLOC_FL_PUNCH_HOLE")]
    PunchHole,
    /// Space for the range, which reads as zeros; the size grows if the range ends beyond it.
    #[doc(alias = "FALLOC_FL_ZERO_RANGE")]
    ZeroRange,
    /// The part of the range within the file reads as zeros; the size stays.
    ZeroRangeKeepSize,
}

/// One entry of a directory, with an owned name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntryBuf {
    /// As [`DirEntry::ino`].
    pub ino: u64,
    /// As [`DirEntry::next_offset`].
    pub next_offset: u64,
    /// As [`DirEntry::kind`].
    pub kind: FileKind,
    /// As [`DirEntry::name`].
    pub name: OsString,
}

impl From<DirEntry<'_>> for DirEntryBuf {
    fn from(entry: DirEntry<'_>) -> DirEntryBuf {
        DirEntryBuf {
            ino: entry.ino,
            next_offset: entry.next_offset,
            kind: entry.kind,
            name: entry.name.to_owned(),
        }
    }
}

/// How the caller will use a file.
#[doc(alias = "posix_fadvise")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Nothing special.
    Normal,
    /// Sequential reading: more readahead.
    Sequential,
    /// Random reading: no readahead.
    Random,
    /// The range will be read soon.
    WillNeed,
    /// The range will not be needed: its clean pages leave the cache.
    DontNeed,
}

impl Advice {
    /// The access pattern that it announces, if any.
    pub fn pattern(self) -> Option<Access> {
        match self {
            Self::Normal => Some(Access::Normal),
            Self::Sequential => Some(Access::Sequential),
            Self::Random => Some(Access::Random),
            Self::WillNeed | Self::DontNeed => None,
        }
    }
}
