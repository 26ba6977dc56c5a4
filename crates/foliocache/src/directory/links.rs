//! Names that lead to something else than before: moves and links.

use foliocache_sys::Errno;
use foliocache_vfs::{Namei, New, RenameMode, WalkError};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::Directory;
use crate::error::{Operation, Result};

impl Directory {
    /// Renames atomically. A file or empty directory that had the new name is replaced.
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR`, `ENOTDIR`, `ENOTEMPTY`, `EINVAL` for a directory moved into itself,
    /// `EROFS`, [`Error::Escape`](crate::Error::Escape), those of the backing store.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.rename_to(from, self, to)
    }

    /// As [`Directory::rename`], to another directory of the same file system.
    ///
    /// # Errors
    /// As [`Directory::rename`]; `EROFS` if one of the two is read-only; `EXDEV` for another file system, or if `directory` has
    /// other credentials.
    pub fn rename_to(
        &self,
        from: impl AsRef<Path>,
        directory: &Self,
        to: impl AsRef<Path>,
    ) -> Result<()> {
        self.move_to(from.as_ref(), directory, to.as_ref(), RenameMode::Replace)
    }

    /// As [`Directory::rename`]; `mode` chooses the treatment of an existing target.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cache = foliocache::Cache::builder().memory("16M").build()?;
    /// let dir = cache.memfs()?;
    /// dir.create_dir("new")?;
    /// dir.create_dir("old")?;
    /// dir.rename_with("new", "old", foliocache::RenameMode::Exchange)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Directory::rename`]; `EEXIST` with [`RenameMode::NoReplace`], `ENOENT` if one of the names to be
    /// exchanged is missing.
    pub fn rename_with(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        mode: RenameMode,
    ) -> Result<()> {
        self.move_to(from.as_ref(), self, to.as_ref(), mode)
    }

    fn move_to(&self, from: &Path, directory: &Self, to: &Path, mode: RenameMode) -> Result<()> {
        self.two_paths(
            Operation::Rename,
            from,
            directory,
            to,
            |namei, from, target, to| namei.rename(from, target, to, mode),
        )
    }

    /// Runs `act` on two paths; an error names the second unless the first is at fault.
    fn two_paths(
        &self,
        operation: Operation,
        from: &Path,
        directory: &Self,
        to: &Path,
        act: impl FnOnce(&Namei<'_>, &OsStr, &Namei<'_>, &OsStr) -> Result<(), WalkError>,
    ) -> Result<()> {
        // Before any change: the target's handle is checked below.
        if self.rights.read_only {
            return Err(self.error(operation, from, Errno::EROFS));
        }
        let mut first = Ok(());
        let done = directory.run(operation, to, |target, to| {
            let names = self.mount().super_block()?;
            let namei = self.namei(names);
            let done = act(&namei, from.as_os_str(), target, to);
            if done.is_err() && namei.stat(from.as_os_str(), false).is_err() {
                first = done;
                return Ok(());
            }
            done
        });
        self.run(operation, from, |_, _| first).and(done)
    }

    /// Gives the file `existing` another name.
    ///
    /// # Errors
    /// `ENOENT`, `EEXIST`, `EPERM` for a directory, `EROFS`, [`Error::Escape`](crate::Error::Escape), those of the
    /// backing store.
    pub fn hard_link(&self, existing: impl AsRef<Path>, new: impl AsRef<Path>) -> Result<()> {
        self.two_paths(
            Operation::HardLink,
            existing.as_ref(),
            self,
            new.as_ref(),
            |namei, existing, target, new| namei.link(existing, false, target, new).map(|_| ()),
        )
    }

    /// Makes a symbolic link at `link` that holds `target`, which is not resolved now.
    ///
    /// # Errors
    /// `EEXIST`, `ENAMETOOLONG`, `ENOSPC`, `EROFS`, [`Error::Escape`](crate::Error::Escape) for `link`, those of the
    /// backing store.
    pub fn symlink(&self, target: impl AsRef<OsStr>, link: impl AsRef<Path>) -> Result<()> {
        self.run(Operation::Symlink, link.as_ref(), |namei, link| {
            namei.make(link, New::Symlink(target.as_ref())).map(drop)
        })
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// `ENOENT`, `EINVAL` if it is no symbolic link, [`Error::Escape`](crate::Error::Escape), those of the backing
    /// store.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        self.run(Operation::ReadLink, path.as_ref(), |namei, path| {
            Ok(namei.readlink(path)?.into())
        })
    }
}
