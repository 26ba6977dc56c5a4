//! Changes of our own.

use super::token::Data;

/// What a change of our own is to.
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
    /// What was known when it began, if it is the one to be compared with that.
    pub(super) before: Option<Data>,
    /// Which of the file's changes it is.
    pub(super) number: u64,
    /// Whether no other was under way when it began.
    pub(super) alone: bool,
    /// The file was marked when it began.
    pub(super) marked: bool,
}
