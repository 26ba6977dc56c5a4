//! Names that lead to something else than before: moves and links.

use foliocache_sync::Arc;
use foliocache_sys::Errno;
use foliocache_vfs::{Found, RenameMode, SuperBlock};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::Directory;
use crate::error::{Operation, Result};

impl Directory {
    /// Moves a name, atomically; what had the new name loses it.
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR`, `ENOTDIR`, `ENOTEMPTY`, `EINVAL` for a directory moved into itself,
    /// `EROFS`, [`Error::Escape`], those of the backing store.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.rename_to(from, self, to)
    }

    /// As [`Directory::rename`], to another directory of the same file system.
    ///
    /// # Errors
    /// As [`Directory::rename`]; `EXDEV` for another file system.
    pub fn rename_to(
        &self,
        from: impl AsRef<Path>,
        directory: &Self,
        to: impl AsRef<Path>,
    ) -> Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        self.two_names(
            Operation::Rename,
            from,
            directory,
            to,
            |names, old, new, name| {
                let is_directory = old.inode()?.is_directory();
                let old_name = old.name.ok_or(Errno::EBUSY)?;
                if new.wants_directory && !is_directory {
                    return Err(Errno::ENOTDIR);
                }
                let (from, to) = (&old.parent, &new.parent);
                let mode = RenameMode::Replace;
                names.rename(from, &old_name, to, name, mode, self.credentials())
            },
        )
    }

    /// Gives the file `existing` another name.
    ///
    /// # Errors
    /// `ENOENT`, `EEXIST`, `EPERM` for a directory, `EROFS`, [`Error::Escape`], those of the
    /// backing store.
    pub fn hard_link(&self, existing: impl AsRef<Path>, new: impl AsRef<Path>) -> Result<()> {
        let (existing, new) = (existing.as_ref(), new.as_ref());
        self.two_names(
            Operation::HardLink,
            existing,
            self,
            new,
            |names, old, new, name| match new.dentry {
                Some(_) => Err(Errno::EEXIST),
                None => {
                    let inode = old.inode()?;
                    names.link(&inode, &new.parent, name, self.credentials())?;
                    Ok(())
                }
            },
        )
    }

    /// Walks two paths, the second to a name that need not be there.
    fn two_names(
        &self,
        operation: Operation,
        from: &Path,
        directory: &Self,
        to: &Path,
        act: impl FnOnce(&SuperBlock, Found, &Found, &OsStr) -> Result<(), Errno>,
    ) -> Result<()> {
        let old = self.at(operation, from, false, |_, found| match found.dentry {
            None => Err(Errno::ENOENT),
            Some(_) => Ok(found),
        })?;
        directory.at(operation, to, false, |names, found| {
            if !Arc::ptr_eq(&self.place.mount, &directory.place.mount) {
                return Err(Errno::EXDEV);
            }
            let name = found.name.as_deref().ok_or(Errno::EBUSY)?;
            act(names, old, &found, name)
        })
    }

    /// Makes a symbolic link at `link` that holds `target`, which is not looked at now.
    ///
    /// # Errors
    /// `EEXIST`, `ENAMETOOLONG`, `ENOSPC`, `EROFS`, [`Error::Escape`] for `link`, those of the
    /// backing store.
    pub fn symlink(&self, target: impl AsRef<OsStr>, link: impl AsRef<Path>) -> Result<()> {
        self.at(
            Operation::Symlink,
            link.as_ref(),
            false,
            |names, found| match (found.dentry, found.name) {
                (None, Some(_)) if found.wants_directory => Err(Errno::ENOENT),
                (None, Some(name)) => {
                    let (ctx, target) = (self.ctx(), target.as_ref());
                    names.symlink(&ctx, &found.parent, &name, target, self.credentials())?;
                    Ok(())
                }
                _ => Err(Errno::EEXIST),
            },
        )
    }

    /// What a symbolic link holds.
    ///
    /// # Errors
    /// `ENOENT`, `EINVAL` for what is no symbolic link, [`Error::Escape`], those of the backing
    /// store.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        self.inode(Operation::ReadLink, path.as_ref(), false, |names, inode| {
            Ok(names.fs().readlink(inode)?.into())
        })
    }
}
