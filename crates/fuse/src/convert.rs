//! Attributes, times and error numbers in the kernel's form.

use foliocache_sys::Errno;
use foliocache_sys::clock::Timespec;
use foliocache_vfs::{Attr, FileKind, SetTime};
use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) fn errno(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno.raw())
}

pub(crate) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::Regular | FileKind::Unknown => FileType::RegularFile,
    }
}

/// The file type in the mode given to `mknod`.
pub(crate) fn kind_of_mode(mode: u32) -> FileKind {
    match FileKind::from_mode(mode) {
        FileKind::Unknown => FileKind::Regular,
        kind => kind,
    }
}

pub(crate) fn attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino),
        size: attr.size,
        blocks: attr.blocks,
        atime: attr.atime.into(),
        mtime: attr.mtime.into(),
        ctime: attr.ctime.into(),
        crtime: attr.btime.map_or(UNIX_EPOCH, SystemTime::from),
        kind: file_type(attr.kind),
        perm: attr.mode as u16 & 0o7777,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev.raw() as u32,
        blksize: attr.blksize,
        flags: 0,
    }
}

/// A time to set. The library subtracts seconds *and* nanoseconds of a time before 1970 from the
/// epoch, while the kernel's nanoseconds always count forwards: this recovers the pair that the
/// kernel sent.
pub(crate) fn set_time(time: TimeOrNow) -> SetTime {
    let time = match time {
        TimeOrNow::Now => return SetTime::Now,
        TimeOrNow::SpecificTime(time) => time,
    };
    SetTime::At(match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Timespec::new(after.as_secs() as i64, after.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            Timespec::new(
                (before.as_secs() as i64).wrapping_neg(),
                before.subsec_nanos(),
            )
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn times_before_the_epoch_survive() {
        // The earliest second.
        let first = UNIX_EPOCH - Duration::new(1 << 63, 0);
        assert_eq!(
            set_time(TimeOrNow::SpecificTime(first)),
            SetTime::At(Timespec::new(i64::MIN, 0))
        );
        // The library's form of -2 s and 800 ms.
        let sent = UNIX_EPOCH - Duration::new(2, 800_000_000);
        assert_eq!(
            set_time(TimeOrNow::SpecificTime(sent)),
            SetTime::At(Timespec::new(-2, 800_000_000))
        );
    }

    #[test]
    fn kinds() {
        assert_eq!(kind_of_mode(0o010_644), FileKind::Fifo);
        assert_eq!(kind_of_mode(0o100_644), FileKind::Regular);
        assert_eq!(kind_of_mode(0o644), FileKind::Regular);
    }
}
