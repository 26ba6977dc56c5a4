//! An inode: what a name leads to.
//!
//! # Model
//!
//! ```text
//!  Inode ──mapping──▶ AddressSpace ──ops──▶ the file in the backing store
//!    │
//!    └──ops──▶ InodeOperations: the file system's own part
//! ```
//!
//! An inode is one object for as long as somebody holds it, so two look-ups of one file give the
//! same `Arc`. Its number is unique among the live inodes of its file system; with the generation
//! it is unique for good.

use crate::types::FileKind;
use std::fmt;

/// What a name leads to.
pub struct Inode {
    ino: u64,
    generation: u64,
    kind: FileKind,
}

impl Inode {
    /// The number, unique among the live inodes of the file system; the root's is 1.
    pub fn ino(&self) -> u64 {
        self.ino
    }

    /// Tells inodes apart that had the same number one after the other.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// What the inode is.
    pub fn kind(&self) -> FileKind {
        self.kind
    }
}

impl fmt::Debug for Inode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inode")
            .field("ino", &self.ino)
            .field("generation", &self.generation)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}
