//! Data that must be in the store before a name: that of a file that replaces another one.
//!
//! # Model
//!
//! ```text
//!  names locked ── what moves lacks data in the store, and replaces something? ──no──▶ moved
//!        ▲                                │ yes
//!        └──── written, no lock held ◀────┘
//! ```
//!
//! A program that replaces a file writes the new one under another name and renames it over the old one. After a kill of this
//! process the store shall have the old content or the new one, and a reader of the store shall see one of them.
//!
//! # Invariants
//!
//! 1. Data written to a file before its rename began is in the store before its name replaces another one, or the
//!    rename fails and nothing has changed.
//! 2. A file is written once for a rename: later writes are not older than the rename.
//! 3. A rename holds no lock over these writes, unless others have put other files with such data in the moved
//!    file's place [`MOST_ROUNDS`] times. Then the next one is written with the names locked, so that a rename
//!    ends.

use super::super::SuperBlock;
use crate::dcache::{DentryRef, Name};
use crate::inode::Inode;
use crate::types::RenameMode;
use foliocache_mm::slab::SlabArc;
use foliocache_sys::Errno;

/// How often a rename releases its locks to write files.
const MOST_ROUNDS: u32 = 3;

/// The files that were written for a rename.
#[derive(Default)]
pub(super) struct Written {
    files: Vec<SlabArc<Inode>>,
    rounds: u32,
}

impl Written {
    /// Whether the store lacks data of `inode` that may be older than the rename.
    fn lacks(&self, inode: &SlabArc<Inode>) -> bool {
        inode.ops().has_unwritten(inode)
            && !self.files.iter().any(|file| SlabArc::ptr_eq(file, inode))
    }

    /// Writes `files`.
    ///
    /// Context: blocks for I/O; no lock, unless [`MOST_ROUNDS`] are over.
    ///
    /// # Errors
    /// The store's, for the caller of the rename: data that it did not take stays dirty.
    pub(super) fn write(&mut self, files: Vec<SlabArc<Inode>>) -> Result<(), Errno> {
        self.rounds += 1;
        for file in files {
            file.ops().write_and_wait(&file)?;
            self.files.push(file);
        }
        Ok(())
    }
}

impl SuperBlock {
    /// The files that are to be written before `moved` becomes `to`. None if nothing is replaced, or all is written.
    ///
    /// Context: the names of both directories locked. Blocks for I/O.
    ///
    /// # Errors
    /// The store's, after [`MOST_ROUNDS`].
    pub(super) fn to_be_written(
        &self,
        moved: &DentryRef<Inode>,
        (to_dir, to_inode, to): (&DentryRef<Inode>, &SlabArc<Inode>, &Name<'_>),
        mode: RenameMode,
        written: &mut Written,
    ) -> Result<Vec<SlabArc<Inode>>, Errno> {
        let lacking = |dentry: &DentryRef<Inode>| dentry.inode().filter(|file| written.lacks(file));
        if foliocache_sync::planted!(renamed_over_unwritten) {
            return Ok(Vec::new());
        }
        let files: Vec<_> = match mode {
            RenameMode::NoReplace => Vec::new(),
            RenameMode::Replace | RenameMode::Whiteout => match lacking(moved) {
                Some(file) if self.is_there(to_dir, to_inode, to) => vec![file],
                _ => Vec::new(),
            },
            RenameMode::Exchange => {
                let target = self.known(to_dir, to_inode, to)?;
                [moved, &target].into_iter().filter_map(lacking).collect()
            }
        };
        match written.rounds < MOST_ROUNDS || files.is_empty() {
            true => Ok(files),
            false => written.write(files).map(|()| Vec::new()),
        }
    }

    /// Whether a name exists, according to the store. Context: the names of `dir` locked.
    fn is_there(&self, dir: &DentryRef<Inode>, inode: &SlabArc<Inode>, name: &Name<'_>) -> bool {
        !matches!(self.known(dir, inode, name), Err(Errno::ENOENT))
    }
}
