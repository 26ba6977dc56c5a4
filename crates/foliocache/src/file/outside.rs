//! What this handle and programs beside the cache see of each other's changes.

use crate::error::{Operation, Result};

use super::File;

impl File {
    /// Looks at the source, as opening the file again does: whether others changed it since it was looked at last. If so, the cached pages
    /// are dropped, and from now on all handles see the new content. `false` also if an open or another such call was the first to see it.
    ///
    /// While data of this cache in the file is not durable, the file is as this cache has it, and the answer is `false`: call
    /// [`File::sync_data`] before, or use [a lock](File#locks). An open file that others replaced stays the one that was opened: `false`.
    ///
    /// Blocks for a `statx(2)` of the source, also with [`DirectoryOptions::watch`](crate::DirectoryOptions::watch). Takes no memory of the bound.
    /// Of a file system in memory it is always `false`.
    ///
    /// # Errors
    /// `ECHILD` after a fork, those of the source.
    #[doc(alias = "close-to-open")]
    pub fn revalidate(&self) -> Result<bool> {
        self.with(Operation::Metadata, |open| {
            open.inode().ops().revalidate(open.inode())
        })
    }

    /// Writes all that is dirty in the file to the source, with its size, and waits for that: programs beside the cache see it, and a kill
    /// of this process does not lose it. It is not durable: a crash of the machine may lose it until [`File::sync_data`].
    ///
    /// Blocks for the writes, not for a flush of the medium. Takes no memory of the bound. Of a file system in memory it does nothing.
    ///
    /// # Errors
    /// Those of writing to the source. What failed stays dirty and is tried again; later syncs tell of it, too. `ECHILD` after a fork.
    #[doc(alias = "sync_file_range")]
    pub fn write_out(&self) -> Result<()> {
        self.with(Operation::Write, |open| {
            open.inode().ops().write_and_wait(open.inode())
        })
    }
}
