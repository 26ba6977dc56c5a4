//! Attributes of files and file systems as plain structs.
//!
//! # Model
//!
//! [`Stat`] is the result of `statx(2)`, without the masks: a file system without a birth time gives `None`; everything
//! else is always there.

use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;

use rustix::fs::{self, AtFlags, StatxFlags, StatxTimestamp};
use rustix::io::retry_on_intr;

use crate::Errno;
use crate::clock::Timespec;

/// The kind of an inode.
#[doc(alias = "FileType")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum FileKind {
    /// A regular file.
    Regular = libc::S_IFREG,
    /// A directory.
    Directory = libc::S_IFDIR,
    /// A symbolic link.
    Symlink = libc::S_IFLNK,
    /// A block device.
    BlockDevice = libc::S_IFBLK,
    /// A character device.
    CharDevice = libc::S_IFCHR,
    /// A named pipe.
    Fifo = libc::S_IFIFO,
    /// A socket.
    Socket = libc::S_IFSOCK,
    /// Not known: a directory entry of a file system that does not say.
    Unknown = 0,
}

impl FileKind {
    /// The kind in the upper bits of a file mode.
    pub const fn from_mode(mode: u32) -> FileKind {
        match mode & libc::S_IFMT {
            libc::S_IFREG => FileKind::Regular,
            libc::S_IFDIR => FileKind::Directory,
            libc::S_IFLNK => FileKind::Symlink,
            libc::S_IFBLK => FileKind::BlockDevice,
            libc::S_IFCHR => FileKind::CharDevice,
            libc::S_IFIFO => FileKind::Fifo,
            libc::S_IFSOCK => FileKind::Socket,
            _ => FileKind::Unknown,
        }
    }

    /// Whether it is a regular file.
    pub const fn is_file(self) -> bool {
        matches!(self, FileKind::Regular)
    }

    /// Whether it is a directory.
    pub const fn is_dir(self) -> bool {
        matches!(self, FileKind::Directory)
    }

    /// Whether it is a symbolic link.
    pub const fn is_symlink(self) -> bool {
        matches!(self, FileKind::Symlink)
    }

    /// The bits of the kind in a file mode (`S_IFREG` and its like); 0 for [`FileKind::Unknown`].
    pub const fn mode_bits(self) -> u32 {
        self as u32
    }
}

/// Number of a device node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Device {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

impl Device {
    /// The number as a `dev_t` of Linux.
    pub const fn raw(self) -> u64 {
        let (major, minor) = (self.major as u64, self.minor as u64);
        (major & 0xffff_f000) << 32 | (major & 0xfff) << 8 | (minor & !0xff) << 12 | minor & 0xff
    }

    /// From a `dev_t` of Linux.
    pub const fn from_raw(raw: u64) -> Device {
        Device {
            major: (raw >> 32 & 0xffff_f000 | raw >> 8 & 0xfff) as u32,
            minor: (raw >> 12 & 0xffff_ff00 | raw & 0xff) as u32,
        }
    }
}

/// The attributes of an inode, as `stat` shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Number of the inode, unique among the live inodes of the file system; the root's is 1.
    pub ino: u64,
    /// The kind of file.
    pub kind: FileKind,
    /// The rest.
    pub attributes: Attributes,
}

impl Deref for Attr {
    type Target = Attributes;

    #[inline(always)]
    fn deref(&self) -> &Attributes {
        &self.attributes
    }
}

impl DerefMut for Attr {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Attributes {
        &mut self.attributes
    }
}

/// The part of [`Attr`] that an inode remembers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Permission bits, set-id and sticky bits included.
    pub mode: u32,
    /// Names of the inode.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of a device node.
    pub rdev: Device,
    /// Size in bytes; of a regular file the address space knows better.
    pub size: u64,
    /// Space taken in the backing store, in units of 512 bytes.
    pub blocks: u64,
    /// Preferred size of an I/O, in bytes; a multiple of 512, less than 512 MiB.
    pub blksize: u32,
    /// Last access.
    pub atime: Timespec,
    /// Last change of the data.
    pub mtime: Timespec,
    /// Last change of the data or the attributes.
    pub ctime: Timespec,
    /// Creation, where the backing store knows it.
    pub btime: Option<Timespec>,
}

impl Attributes {
    /// With the fields that only the inode has.
    #[inline(always)]
    pub fn of(self, ino: u64, kind: FileKind) -> Attr {
        let attributes = self;
        Attr {
            ino,
            kind,
            attributes,
        }
    }
}

/// The answer of `statx(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The device that holds the file system.
    pub dev: Device,
    /// The attributes.
    pub attr: Attr,
}

impl Deref for Stat {
    type Target = Attr;

    fn deref(&self) -> &Attr {
        &self.attr
    }
}

fn time(t: StatxTimestamp) -> Timespec {
    Timespec::new(t.tv_sec, t.tv_nsec)
}

/// The requested times. Asking for the other times would cost nothing more.
const CHANGE_TIMES: StatxFlags = StatxFlags::MTIME.union(StatxFlags::CTIME);
const ALL: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

pub(crate) fn stat_at(
    dir: BorrowedFd<'_>,
    name: impl rustix::path::Arg + Copy,
    flags: AtFlags,
) -> Result<Stat, Errno> {
    ask(dir, name, flags, ALL).map(|(stat, _)| stat)
}

/// The attributes, and which of them are valid.
fn ask(
    dir: BorrowedFd<'_>,
    name: impl rustix::path::Arg + Copy,
    flags: AtFlags,
    mask: StatxFlags,
) -> Result<(Stat, StatxFlags), Errno> {
    let st = retry_on_intr(|| fs::statx(dir, name, flags, mask))?;
    let told = StatxFlags::from_bits_retain(st.stx_mask);
    let device = |major, minor| Device { major, minor };
    let attributes = Attributes {
        mode: u32::from(st.stx_mode & 0o7777),
        nlink: st.stx_nlink,
        uid: st.stx_uid,
        gid: st.stx_gid,
        rdev: device(st.stx_rdev_major, st.stx_rdev_minor),
        size: st.stx_size,
        blocks: st.stx_blocks,
        blksize: st.stx_blksize,
        atime: time(st.stx_atime),
        mtime: time(st.stx_mtime),
        ctime: time(st.stx_ctime),
        btime: told.contains(StatxFlags::BTIME).then(|| time(st.stx_btime)),
    };
    let stat = Stat {
        dev: device(st.stx_dev_major, st.stx_dev_minor),
        attr: attributes.of(st.stx_ino, FileKind::from_mode(st.stx_mode.into())),
    };
    Ok((stat, told))
}

/// The attributes of the file behind `fd`. Works on `O_PATH` descriptors too. May block.
///
/// # Errors
///
/// Those of `statx(2)`.
pub fn fstat(fd: BorrowedFd<'_>) -> Result<Stat, Errno> {
    stat_at(fd, c"", AtFlags::EMPTY_PATH)
}

/// As [`fstat`], of a file that the caller has just made: its times are that of its birth.
///
/// A file system with multigrain timestamps gives a change its own timestamp, and writes it to the inode, if the
/// times were queried since the last change. This call does not query them, so the first write stays cheap.
///
/// # Errors
///
/// Those of `statx(2)`.
pub fn fstat_new(fd: BorrowedFd<'_>) -> Result<Stat, Errno> {
    let (mut stat, told) = ask(fd, c"", AtFlags::EMPTY_PATH, ALL.difference(CHANGE_TIMES))?;
    match stat.btime {
        _ if told.contains(CHANGE_TIMES) => Ok(stat),
        Some(born) => {
            (stat.attr.mtime, stat.attr.ctime) = (born, born);
            Ok(stat)
        }
        None => fstat(fd),
    }
}

/// The alignment that direct I/O on a file needs, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectIoAlignment {
    /// Alignment of memory addresses.
    pub mem: u32,
    /// Alignment of positions and lengths.
    pub offset: u32,
}

/// The alignment that direct I/O on the file needs; `None` where the kernel or the file system does not
/// say (before Linux 6.1) or has no direct I/O. May block.
pub fn direct_io_alignment(fd: BorrowedFd<'_>) -> Option<DirectIoAlignment> {
    let mask = StatxFlags::DIOALIGN;
    let st = retry_on_intr(|| fs::statx(fd, c"", AtFlags::EMPTY_PATH, mask)).ok()?;
    let said = st.stx_mask & mask.bits() != 0;
    (said && st.stx_dio_offset_align != 0).then_some(DirectIoAlignment {
        mem: st.stx_dio_mem_align.max(1),
        offset: st.stx_dio_offset_align,
    })
}

/// The room in a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct StatFs {
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks in all.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks for users other than root.
    pub blocks_available: u64,
    /// Inodes in all.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Longest name, in bytes.
    pub max_name: u32,
}

/// How full the file system of `fd` is. May block.
///
/// # Errors
///
/// Those of `fstatfs(2)`.
pub fn fstatvfs(fd: BorrowedFd<'_>) -> Result<StatFs, Errno> {
    let st = retry_on_intr(|| fs::fstatvfs(fd))?;
    Ok(StatFs {
        block_size: u32::try_from(st.f_frsize).unwrap_or(4096),
        blocks: st.f_blocks,
        blocks_free: st.f_bfree,
        blocks_available: st.f_bavail,
        files: st.f_files,
        files_free: st.f_ffree,
        max_name: u32::try_from(st.f_namemax).unwrap_or(255),
    })
}

/// The magic number of the file system's type (`statfs.f_type`), as in `linux/magic.h`. May block.
///
/// # Errors
///
/// Those of `fstatfs(2)`.
pub fn fs_magic(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    Ok(retry_on_intr(|| fs::fstatfs(fd))?.f_type as u64)
}
