//! The entries of a directory.

use foliocache_sync::Arc;
use foliocache_sys::Errno;
use foliocache_vfs::{Access, Attr, Entries, FileKind, Found, OpenDirectory, UncachedDir};
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use super::Directory;
use crate::error::{Error, Operation, Result};
use crate::joined::joined;
use crate::metadata::Metadata;

/// Entries read ahead of the caller.
const BATCH: usize = 256;

/// The directory of an entry.
struct Listed {
    directory: Directory,
    /// As it was given to [`Directory::read_dir`].
    path: PathBuf,
}

/// One entry of a directory; as [`std::fs::DirEntry`].
#[derive(Clone)]
pub struct DirEntry {
    name: OsString,
    kind: FileKind,
    listed: Arc<Listed>,
}

impl DirEntry {
    /// The name.
    pub fn file_name(&self) -> OsString {
        self.name.clone()
    }

    pub(crate) fn into_name(self) -> OsString {
        self.name
    }

    /// The path that was given to [`Directory::read_dir`], with the name. The calls of the same [`Directory`] take it.
    pub fn path(&self) -> PathBuf {
        joined(&self.listed.path, &self.name)
    }

    /// The kind of the file, from the directory entry. Blocks for I/O only if the entry lacks it.
    ///
    /// # Errors
    /// As [`DirEntry::metadata`], if the entry lacks it.
    pub fn file_type(&self) -> Result<FileKind> {
        match self.kind {
            FileKind::Unknown => Ok(self.metadata()?.file_type()),
            kind => Ok(kind),
        }
    }

    /// As [`DirEntry::file_type`]; [`FileKind::Unknown`] if the entry lacks it.
    pub(crate) fn kind(&self) -> FileKind {
        self.kind
    }

    /// The attributes of the file that has the name in the directory now; a symbolic link is not
    /// followed. May block for I/O.
    ///
    /// # Errors
    /// `ENOENT` if it is gone, those of the backing store.
    pub fn metadata(&self) -> Result<Metadata> {
        self.listed.directory.stat(self.name.as_ref(), false)
    }
}

impl fmt::Debug for DirEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DirEntry").field(&self.path()).finish()
    }
}

/// The entries of a directory, without `.` and `..`. From [`Directory::read_dir`].
///
/// An entry that is there throughout is seen once, even if others are made or removed meanwhile.
///
/// The iterator may block for I/O. It reads up to 256 entries ahead, outside the bound. An error is its last entry.
pub struct ReadDir {
    stream: Box<dyn OpenDirectory>,
    listed: Arc<Listed>,
    read: Entries,
    offset: u64,
    ended: bool,
}

impl ReadDir {
    pub(super) fn new(stream: Box<dyn OpenDirectory>, directory: Directory, path: PathBuf) -> Self {
        Self {
            stream,
            listed: Arc::new(Listed { directory, path }),
            read: Entries::default(),
            offset: 0,
            ended: false,
        }
    }

    /// Whether nothing is left.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended && self.read.is_used_up()
    }

    /// All entries, if they are known without asking the store and without waiting, and fit into
    /// the read-ahead.
    pub(super) fn into_known(mut self) -> Option<Result<Vec<DirEntry>>> {
        if !self.stream.is_known_at(self.offset) {
            return None;
        }
        let entries: Result<Vec<_>> = self.by_ref().take(BATCH).collect();
        (entries.is_err() || self.has_ended()).then_some(entries)
    }

    /// The next entry, without an allocation.
    pub(crate) fn next_borrowed(&mut self) -> Option<Result<Found<'_>>> {
        if self.read.is_used_up()
            && !self.ended
            && let Err(errno) = self.fill()
        {
            self.ended = true;
            let path = self.listed.directory.path();
            return Some(Err(Error::at(Operation::ReadDir, path)(errno)));
        }
        self.read.take().map(Ok)
    }

    fn fill(&mut self) -> Result<(), Errno> {
        self.listed.directory.check_fork()?;
        let (mut offset, mut ended) = (self.offset, true);
        let read = &mut self.read;
        read.clear();
        let result = self.stream.read(offset, &mut |entry| {
            if read.len() == BATCH {
                ended = false;
                return false;
            }
            offset = entry.next_offset;
            if entry.name != "." && entry.name != ".." {
                read.push(entry.ino, entry.kind, entry.name);
            }
            true
        });
        if let Err(errno) = result {
            if read.is_empty() {
                return Err(errno);
            }
            // The next read meets it again, after these entries.
            ended = false;
        }
        (self.offset, self.ended) = (offset, ended);
        Ok(())
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        let listed = Arc::clone(&self.listed);
        let next = self.next_borrowed()?;
        Some(next.map(|Found { name, kind, .. }| DirEntry {
            name: name.to_owned(),
            kind,
            listed,
        }))
    }
}

impl fmt::Debug for ReadDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadDir")
            .field("path", &self.listed.directory.path())
            .finish_non_exhaustive()
    }
}

impl Directory {
    /// This directory, to be read without its names being cached. `None` where they are in memory anyway.
    ///
    /// # Errors
    /// As [`Directory::read_dir`].
    pub(crate) fn open_uncached(&self) -> Result<Option<Box<dyn UncachedDir>>> {
        self.inode(Operation::ReadDir, Path::new("."), |names, inode| {
            names.check(inode, Access::READ, self.rights.credentials.as_ref())?;
            names.fs().open_uncached(inode)
        })
    }

    /// Whether the credentials allow `access` to a directory whose names are not cached.
    pub(crate) fn check_uncached(&self, dir: &Attr, access: Access) -> Result<(), Errno> {
        let credentials = self.rights.credentials.as_ref();
        credentials.map_or(Ok(()), |credentials| {
            credentials.check_uncached(dir, access)
        })
    }

    /// These attributes as a caller sees them.
    pub(crate) fn metadata_of(&self, attr: Attr) -> Metadata {
        Metadata::new(attr, self.mount().dev())
    }

    /// The entries of a directory; `"."` is this one.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `EACCES`, [`Error::Escape`], those of the backing store.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir> {
        let path = path.as_ref();
        let (stream, dentry) = self.run(Operation::ReadDir, path, |namei, path| {
            namei.on_inode(path, true, |dentry, inode| {
                if !inode.is_directory() {
                    return Err(Errno::ENOTDIR);
                }
                (namei.names).check(inode, Access::READ, self.rights.credentials.as_ref())?;
                Ok((namei.names.fs().opendir(inode)?, dentry.clone()))
            })
        })?;
        Ok(ReadDir::new(stream, self.at(dentry, path), path.to_owned()))
    }
}
