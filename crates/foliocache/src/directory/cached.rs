//! Calls that do not wait, for async callers.

use foliocache_sync::Arc;
use foliocache_sys::Errno;
use foliocache_vfs::{Namei, WalkError};
use std::ffi::OsStr;
use std::path::Path;

use super::{DirEntry, Directory, ReadDir};
use crate::error::{Operation, Result};
use crate::file::File;
use crate::metadata::Metadata;
use crate::open_how;
use crate::parent_only::ParentOnly;
use crate::workers::Offload;

/// Each is the call without `_cached`, and `None` if that would have to ask the store, or to wait.
impl Directory {
    fn cached<T>(
        &self,
        operation: Operation,
        path: &Path,
        act: impl FnOnce(&Namei<'_>, &OsStr) -> Result<T, WalkError>,
    ) -> Option<Result<T>> {
        match self.run(operation, path, act) {
            Err(error) if error.errno() == Errno::EAGAIN => None,
            done => Some(done),
        }
    }

    pub(crate) fn metadata_cached(&self, path: &Path, follow: bool) -> Option<Result<Metadata>> {
        self.cached(Operation::Metadata, path, |namei, path| {
            let attr = namei.cached_stat(path, follow)?;
            Ok(Metadata::new(attr, self.mount().dev()))
        })
    }

    /// Of [`Directory::open`].
    pub(crate) fn open_cached(&self, path: &Path) -> Option<Result<File>> {
        let mut how = open_how::nothing();
        how.flags.read = true;
        let open = self.cached(Operation::Open, path, |namei, path| {
            namei.cached_open(path, how)
        })?;
        let (mount, rights) = (&self.vfs_path.mount, self.rights.clone());
        Some(open.map(|open| File::new(open, mount, rights, self.join(path))))
    }

    pub(crate) fn open_dir_cached(&self, path: &Path) -> Option<Result<Self>> {
        self.below_cached(Operation::Open, path)
    }

    fn below_cached(&self, operation: Operation, path: &Path) -> Option<Result<Self>> {
        let found = self.cached(operation, path, |namei, path| {
            let found = namei.cached_lookup(path, true)?;
            match found.inode.is_directory() {
                true => Ok(found.dentry),
                false => Err(Errno::ENOTDIR.into()),
            }
        })?;
        Some(found.map(|dentry| self.at(dentry, path)))
    }

    /// All entries, if they fit into the read-ahead.
    pub(crate) fn read_dir_cached(&self, path: &Path) -> Option<Result<Vec<DirEntry>>> {
        let operation = Operation::ReadDir;
        let directory = match self.below_cached(operation, path)? {
            Ok(directory) => directory,
            Err(error) => return Some(Err(error)),
        };
        let stream = directory.cached(operation, Path::new("."), |namei, path| {
            namei.cached_opendir(path)
        })?;
        match stream {
            Ok(stream) => ReadDir::new(stream, directory, path.to_owned()).into_known(),
            Err(error) => Some(Err(error)),
        }
    }

    /// Workers and buffers for async callers.
    pub(crate) fn offload(&self) -> Result<Arc<ParentOnly<Offload>>> {
        let offload = self.mount().offload();
        offload.map_err(|errno| self.error(Operation::Open, Path::new(""), errno))
    }
}
