//! One rule of a plan of faults.

use std::ops::{BitOr, Range};

use foliocache_sync::time::Duration;
use foliocache_sys::Errno;

use crate::Lost;

/// An operation of a backing store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum OpKind {
    /// `read_folios`.
    Read,
    /// `writepages`.
    Write,
    /// `flush`.
    Flush,
    /// `truncate`.
    Truncate,
    /// `punch_hole`.
    PunchHole,
    /// `write_inode`.
    WriteInode,
}

impl OpKind {
    /// How many kinds there are.
    pub const COUNT: usize = 6;

    /// All kinds, in the order of their numbers.
    pub const ALL: [OpKind; Self::COUNT] = [
        OpKind::Read,
        OpKind::Write,
        OpKind::Flush,
        OpKind::Truncate,
        OpKind::PunchHole,
        OpKind::WriteInode,
    ];

    /// Whether the operation is about a range of the file.
    pub(crate) fn has_range(self) -> bool {
        !matches!(self, OpKind::Flush | OpKind::WriteInode)
    }
}

/// A set of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "disk", derive(serde::Serialize, serde::Deserialize))]
pub struct OpSet(u8);

impl OpSet {
    /// Reads.
    pub const READ: Self = Self(1 << OpKind::Read as u8);
    /// Writes of data.
    pub const WRITE: Self = Self(1 << OpKind::Write as u8);
    /// Flushes.
    pub const FLUSH: Self = Self(1 << OpKind::Flush as u8);
    /// Changes of the size.
    pub const TRUNCATE: Self = Self(1 << OpKind::Truncate as u8);
    /// Holes.
    pub const PUNCH_HOLE: Self = Self(1 << OpKind::PunchHole as u8);
    /// Writes of attributes.
    pub const WRITE_INODE: Self = Self(1 << OpKind::WriteInode as u8);
    /// Everything.
    pub const ALL: Self = Self((1 << OpKind::COUNT) - 1);
    /// Everything that changes the medium.
    pub const CHANGES: Self = Self(Self::ALL.0 & !Self::READ.0);

    /// Whether the set holds `kind`.
    pub const fn contains(self, kind: OpKind) -> bool {
        self.0 & (1 << kind as u8) != 0
    }
}

impl BitOr for OpSet {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Which of the operations that a rule matches it strikes. Counting starts when the rule is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "disk", derive(serde::Serialize, serde::Deserialize))]
pub enum When {
    /// Each.
    Always,
    /// The n-th, counted from 1.
    Nth(u64),
    /// The first n.
    First(u64),
    /// All but the first n.
    After(u64),
    /// Each n-th.
    Every(u64),
    /// A seeded choice: `part` of `whole`.
    Chance {
        /// How many of `whole`.
        part: u64,
        /// Of how many.
        whole: u64,
    },
}

/// The effect on the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "disk", derive(serde::Serialize, serde::Deserialize))]
pub enum Effect {
    /// It fails and has done nothing.
    Fail(#[cfg_attr(feature = "disk", serde(with = "crate::disk::errno"))] Errno),
    /// It fails; a write has changed some of its sectors (other operations none).
    Torn(#[cfg_attr(feature = "disk", serde(with = "crate::disk::errno"))] Errno),
    /// It does a seeded number of whole sectors, perhaps none, and returns the bytes. A *read* cut short like this
    /// breaks the contract of a backing store, as a file does that is truncated behind the cache's back.
    Short,
    /// It does at most this many bytes and returns the count.
    ShortTo(u64),
    /// It takes this much longer.
    Delay(Duration),
    /// It waits until this many operations began after it, but no longer than the time given.
    DelayOps {
        /// Operations to let begin.
        ops: u64,
        /// The longest wait.
        at_most: Duration,
    },
    /// It does not come back until [`Faults::release`](super::Faults::release): a dead backend.
    Hang,
    /// It says that it is done and does nothing: a flush keeps nothing, a write is forgotten. Reads just work.
    Lie,
    /// A flush fails and forgets the writes that it was to make durable; other operations just
    /// fail.
    Lose(
        #[cfg_attr(feature = "disk", serde(with = "crate::disk::errno"))] Errno,
        Lost,
    ),
}

/// One thing that goes wrong.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "disk", derive(serde::Serialize, serde::Deserialize))]
pub struct Rule {
    pub(super) on: OpSet,
    pub(super) range: Range<u64>,
    pub(super) when: When,
    pub(super) effect: Effect,
    pub(super) times: Option<u64>,
}

impl Rule {
    /// Every operation of `on` has `effect`.
    pub fn new(on: OpSet, effect: Effect) -> Self {
        Self {
            on,
            range: 0..u64::MAX,
            when: When::Always,
            effect,
            times: None,
        }
    }

    /// Only those that touch a byte of `range`. Flushes have no range and are struck anyway; a
    /// truncation touches everything from the new size on.
    #[must_use]
    pub fn range(mut self, range: Range<u64>) -> Self {
        self.range = range;
        self
    }

    /// Only those that `when` says.
    #[must_use]
    pub fn when(mut self, when: When) -> Self {
        self.when = when;
        self
    }

    /// No more than `times` times.
    #[must_use]
    pub fn times(mut self, times: u64) -> Self {
        self.times = Some(times);
        self
    }

    pub(super) fn matches(&self, kind: OpKind, range: &Range<u64>) -> bool {
        self.on.contains(kind)
            && (!kind.has_range() || (range.start < self.range.end && self.range.start < range.end))
    }
}

/// Names a rule of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "disk", derive(serde::Serialize, serde::Deserialize))]
pub struct RuleId(pub(super) u64);
