//! What was seen of a file of the source, and what comes between two looks: changes of ours, and by others.

use crate::dirfs::writers::MarkedFile;
use foliocache_sync::Arc;
use foliocache_sys::clock::Timespec;
use foliocache_sys::fd::Stat;

/// What the source said about a file after our own last change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dirfs) struct Seen {
    pub(super) size: u64,
    pub(super) mtime: i64,
    pub(in crate::dirfs) ctime: i64,
}

/// A time in nanoseconds, to be compared: it wraps around.
pub(in crate::dirfs) fn nanoseconds(time: Timespec) -> i64 {
    let seconds = time.sec.wrapping_mul(1_000_000_000);
    seconds.wrapping_add(time.nsec.into())
}

impl Seen {
    pub(super) fn of(stat: &Stat) -> Seen {
        Seen {
            size: stat.size,
            mtime: nanoseconds(stat.mtime),
            ctime: nanoseconds(stat.ctime),
        }
    }

    /// Whether the data is the same, as far as size and times tell.
    pub(super) fn is_data_of(&self, other: &Seen) -> bool {
        (self.size, self.mtime) == (other.size, other.mtime)
    }
}

/// When the source was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dirfs) struct StatSample {
    /// The changes of our own that had begun by then, none of which was under way.
    pub(super) changes: Option<u64>,
    /// Of a marked file, how often others had written.
    pub(super) others: Option<u64>,
}

/// What somebody else did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dirfs) enum RemoteChange {
    /// It may have been the attributes alone: the data is what we know.
    Attributes,
    /// He may have changed the data.
    Data,
}

/// What a change of our own is to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dirfs) enum LocalChange {
    /// The data, or the size.
    Data,
    /// Times, and maybe other attributes.
    Times,
    /// Attributes or names.
    Attributes,
}

/// A change of our own that is under way.
pub(in crate::dirfs) struct OngoingChange {
    pub(super) what: LocalChange,
    /// What was known when it began, if it is the one to be compared with that.
    pub(super) before: Option<Seen>,
    /// Which of the file's changes it is.
    pub(super) number: u64,
    /// Whether no other was under way when it began.
    pub(super) alone: bool,
    /// That the file was marked when it began.
    pub(super) marked: Option<Arc<MarkedFile>>,
}

impl OngoingChange {
    pub(in crate::dirfs) fn is_marked(&self) -> bool {
        self.marked.is_some()
    }
}
