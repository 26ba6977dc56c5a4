//! Removal of a directory with everything below it.

use foliocache_sys::Errno;
use foliocache_vfs::FileKind;
use std::ffi::OsString;
use std::path::Path;

use super::{Directory, ReadDir};
use crate::error::{Error, Result};

/// A directory that is being emptied.
struct Emptied {
    directory: Directory,
    entries: ReadDir,
    /// In the directory above.
    name: OsString,
}

impl Emptied {
    fn open(above: &Directory, name: OsString) -> Result<Self> {
        let directory = above.open_below(name.as_ref(), false)?;
        let entries = directory.read_dir(".")?;
        Ok(Self {
            directory,
            entries,
            name,
        })
    }
}

/// `removed`, where a file that is gone already is no error.
fn unless_gone(removed: Result<()>) -> Result<()> {
    match removed {
        Err(error) if error.errno() == Errno::ENOENT => Ok(()),
        removed => removed,
    }
}

impl Directory {
    /// Whether `path` exists; symbolic links are followed. As [`std::fs::exists`].
    ///
    /// # Errors
    /// As [`Directory::metadata`], but for `ENOENT`.
    pub fn exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        match self.metadata(path) {
            Ok(_) => Ok(true),
            Err(error) if error.errno() == Errno::ENOENT => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes a directory with everything in it; a symbolic link is removed itself. No link is followed, even if directories
    /// move meanwhile, because each directory is emptied through the descriptor that was opened.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENOTEMPTY` if others make names in it meanwhile, `EROFS`,
    /// [`Error::Escape`], those of the backing store. Entries that were removed before stay removed.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        if self.symlink_metadata(path)?.is_symlink() {
            return self.remove_file(path);
        }
        let mut open = vec![Emptied::open(self, path.into())?];
        while let Some(last) = open.last_mut() {
            match last.entries.next() {
                Some(entry) => {
                    let entry = entry?;
                    let kind = entry.kind();
                    let below = last.directory.remove_or_open(kind, entry.into_name())?;
                    open.extend(below);
                }
                None => {
                    let name = open.pop().map(|last| last.name).unwrap_or_default();
                    match open.last() {
                        Some(above) => unless_gone(above.directory.remove_dir(&name))?,
                        None => self.remove_dir(&name)?,
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes a name away, or opens the directory that it is.
    fn remove_or_open(&self, kind: FileKind, name: OsString) -> Result<Option<Emptied>> {
        if kind != FileKind::Directory {
            match unless_gone(self.remove_file(&name)) {
                // It has become one.
                Err(error) if error.errno() == Errno::EISDIR => {}
                removed => return removed.map(|()| None),
            }
        }
        let file = name.clone();
        match Emptied::open(self, name) {
            Ok(below) => Ok(Some(below)),
            Err(error) if error.errno() == Errno::ENOENT => Ok(None),
            // It has become something else.
            Err(Error::Path {
                errno: Errno::ENOTDIR,
                ..
            }) => unless_gone(self.remove_file(&file)).map(|()| None),
            Err(error) => Err(error),
        }
    }
}
