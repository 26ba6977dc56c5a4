//! Answers of a source about a file, for comparison, with the time of the question.

use foliocache_sys::clock::Timespec;
use foliocache_sys::fd::Stat;
use foliocache_vfs::Belief;

/// A time in nanoseconds, to be compared: it wraps around.
pub(crate) fn nanoseconds(time: Timespec) -> i64 {
    let seconds = time.sec.wrapping_mul(1_000_000_000);
    seconds.wrapping_add(time.nsec.into())
}

/// Tells two states of a file apart. Of a directory these are its size and times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) size: u64,
    /// When the data changed, in nanoseconds. Programs can set it to any time.
    pub(crate) mtime: i64,
    /// When anything changed, in nanoseconds.
    pub(crate) ctime: i64,
}

impl Token {
    pub(crate) fn of(stat: &Stat) -> Token {
        Token {
            size: stat.size,
            mtime: nanoseconds(stat.mtime),
            ctime: nanoseconds(stat.ctime),
        }
    }

    /// The part about the data.
    pub(super) fn data(&self) -> Data {
        Data {
            size: self.size,
            mtime: self.mtime,
        }
    }
}

/// The part of a [`Token`] about the data of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Data {
    pub(super) size: u64,
    mtime: i64,
}

/// A moment, and the doubts counted until then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moment {
    /// Of [`Belief::now`]: milliseconds, and the epoch above them.
    pub(crate) at: u64,
    /// The doubts of the file's attributes.
    pub(crate) doubts: u32,
}

impl Moment {
    /// Whether news may have been lost since.
    pub(super) fn is_of_another_epoch(&self, now: u64) -> bool {
        !Belief::is_same_epoch(self.at, now)
    }

    /// Whether more than `after` milliseconds have passed. Another thread may have asked since `now`.
    pub(super) fn is_long_ago(&self, now: u64, after: u64) -> bool {
        now.saturating_sub(self.at) > after && !foliocache_sync::planted!(compared_for_ever)
    }
}

/// The place of a question to the source among the changes of ours, with the kernel's exact count
/// at that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    /// The changes of ours that had begun. `None` if one was under way.
    pub(super) begun: Option<u64>,
    /// Of a marked file, the writes by others.
    pub(super) told: Option<u64>,
    /// How often writes by others had been recorded.
    pub(super) notes: u32,
}

/// An answer of the source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) asked: Asked,
    /// Before the question, if it is known.
    pub(crate) moment: Option<Moment>,
    pub(crate) token: Token,
}

impl Answer {
    /// The answer `stat` to a question.
    pub(crate) fn new(asked: Asked, moment: Option<Moment>, stat: &Stat) -> Answer {
        let token = Token::of(stat);
        Answer {
            asked,
            moment,
            token,
        }
    }
}

/// The cached file when an answer comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cached {
    pub(crate) size: u64,
    /// Our data is not durable in the source.
    pub(crate) dirty: bool,
}
