//! The answer to a look-up as the kernel wants it, and how long the kernel may believe it.

use fuser::{FileAttr, Generation, INodeNo};
use std::time::{Duration, UNIX_EPOCH};

/// How long at most the kernel may believe a name or an attribute if it is not told of changes.
pub(crate) const TTL: Duration = Duration::from_secs(1);

/// How long the kernel believes a name or an attribute if it will be told of changes. It asks again now and then all the same.
pub(crate) const LONG: Duration = Duration::from_secs(3600);

/// An entry as the kernel wants it.
pub(crate) struct Entry {
    pub(crate) attr: FileAttr,
    pub(crate) generation: Generation,
    /// How long the name may be believed, and how long the attributes.
    pub(crate) name_ttl: Duration,
    pub(crate) attr_ttl: Duration,
}

impl Entry {
    /// There is no such name.
    pub(crate) fn absent(name_ttl: Duration) -> Entry {
        Entry {
            attr: FileAttr {
                ino: INodeNo(0),
                size: 0,
                blocks: 0,
                atime: UNIX_EPOCH,
                mtime: UNIX_EPOCH,
                ctime: UNIX_EPOCH,
                crtime: UNIX_EPOCH,
                kind: fuser::FileType::RegularFile,
                perm: 0,
                nlink: 0,
                uid: 0,
                gid: 0,
                rdev: 0,
                blksize: 0,
                flags: 0,
            },
            generation: Generation(0),
            name_ttl,
            attr_ttl: Duration::ZERO,
        }
    }

    /// For an answer that has one time for both.
    pub(crate) fn ttl(&self) -> Duration {
        self.name_ttl.min(self.attr_ttl)
    }
}
