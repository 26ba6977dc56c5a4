//! Directories that are read without their names being cached.
//!
//! # Model
//!
//! ```text
//!  FileSystem::open_uncached ──▶ UncachedDir ──read──▶ Entries, with their attributes
//!                                    └──open──▶ UncachedDir below
//! ```
//!
//! A pass over a whole tree looks at each name once. If the names entered the cache, they would push out those that others
//! use. So no dentry and no inode is made. Attributes of a file whose inode is in memory come from there:
//! its data may not be in the store yet.
//!
//! The store is asked for attributes in the order of inode numbers, in which most stores keep them.

use crate::entries::Entries;
use crate::types::Attr;
use foliocache_sys::Errno;
use std::ffi::OsStr;

/// A directory whose names are read and not cached. From [`FileSystem::open_uncached`](crate::FileSystem::open_uncached).
pub trait UncachedDir: Send + Sync {
    /// The directory's own attributes, as they were when it was opened.
    fn attr(&self) -> Attr;

    /// Replaces `entries` by those that come next, without `.` and `..`. An entry that is there throughout is read once.
    /// At the end there are none, and no more. Callers take turns.
    ///
    /// # Errors
    /// Those of the backing store. Entries that were read before are lost.
    fn read(&self, entries: &mut Entries) -> Result<(), Errno>;

    /// Opens a directory in this one. A symbolic link is not followed.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `EACCES`; `ESTALE` if this directory was moved and its descriptor had to be closed; those of
    /// the backing store.
    fn open(&self, name: &OsStr) -> Result<Box<dyn UncachedDir>, Errno>;
}
