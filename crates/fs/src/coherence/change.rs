//! Changes of our own.

use super::Verdict;
use super::token::Data;

/// The part of a file that a change of our own is to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LocalChange {
    /// The data, or the size.
    Data,
    /// Times, and maybe other attributes.
    Times,
    /// Attributes or names.
    Attributes,
}

/// A change of our own that is under way.
#[derive(Debug)]
pub(crate) struct OwnChange {
    pub(super) what: LocalChange,
    /// The data as it was known when the change began, if it is the change to be compared with that.
    pub(super) before: Option<Data>,
    /// Which of the file's changes it is.
    pub(super) number: u64,
    /// Whether no other was under way when it began.
    pub(super) alone: bool,
    /// The file was marked when it began.
    pub(super) marked: bool,
    /// Other writers may change the file.
    pub(super) among_others: bool,
}

impl OwnChange {
    /// Whether to ask the source when a write has ended. Not for a file that only we change, nor
    /// for a marked one.
    pub(crate) fn at_its_end(&self) -> Verdict {
        match self.among_others && !self.marked {
            true => Verdict::Ask,
            false => Verdict::Valid,
        }
    }
}
