//! Several files and their names: operations, a generator of them, and the judge of the state after
//! a power cut.
//!
//! # Model
//!
//! | module | what it is |
//! |---|---|
//! | here | [`TreeOp`]: an operation, on paths of one letter a name |
//! | `oracle` | [`TreeOracle`]: what may be found after a cut |
//! | `found` | [`Found`]: what was found |
//! | `generate` | [`TreeWorkload`]: seeded sequences, and [`short_sequences`]: all short ones |
//!
//! A [`Subject`] does the operations: the library, or a directory of the kernel's.

mod found;
mod generate;
mod oracle;

use std::io;

pub use self::found::Found;
pub use self::generate::{SETUP, TreeWorkload, short_sequences};
pub use self::oracle::TreeOracle;
use crate::Fill;

/// How bytes are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// By an ordinary write.
    Plain,
    /// By a write that leaves nothing in the cache.
    Uncached,
    /// By stores into a mapping, which are synced through it: durable when it returns.
    Mapped,
    /// Through a handle that was opened with `O_SYNC`, or with a sync of the data: durable when it returns.
    Synced,
}

/// An operation on a tree. Paths are relative to its root; `.` is the root.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum TreeOp {
    /// A new, empty file.
    Create { path: String },
    /// Bytes at a position.
    Write {
        path: String,
        pos: u64,
        len: usize,
        fill: Fill,
        how: How,
    },
    /// Bytes at the end.
    Append {
        path: String,
        len: usize,
        fill: Fill,
    },
    /// Another size.
    Truncate { path: String, size: u64 },
    /// Zeros.
    Punch { path: String, pos: u64, len: u64 },
    /// A new directory.
    Mkdir { path: String },
    /// Another name, which may be another file's until then.
    Rename { from: String, to: String },
    /// One more name.
    Link { existing: String, new: String },
    /// A name less.
    Unlink { path: String },
    /// An empty directory less.
    Rmdir { path: String },
    /// Data and size of a file become durable.
    SyncData { path: String },
    /// Data, attributes and names of a file become durable, and the directories above it.
    SyncAll { path: String },
    /// The names in a directory become durable.
    SyncDir { path: String },
    /// Everything becomes durable.
    SyncEverything,
}

impl TreeOp {
    /// Whether something is promised when it returns.
    pub fn promises(&self) -> bool {
        match self {
            TreeOp::SyncData { .. }
            | TreeOp::SyncAll { .. }
            | TreeOp::SyncDir { .. }
            | TreeOp::SyncEverything => true,
            TreeOp::Write { how, .. } => matches!(how, How::Mapped | How::Synced),
            _ => false,
        }
    }
}

/// Something that does operations.
pub trait Subject {
    /// Does one, which must work.
    ///
    /// # Errors
    /// Those of the operation: a test fails with them.
    fn apply(&mut self, operation: &TreeOp) -> io::Result<()>;
}

/// The directory that a path is in, and its last name.
fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or((".", path))
}
