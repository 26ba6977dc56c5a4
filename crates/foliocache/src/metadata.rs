//! Attributes of files, and the entries of directories.

use foliocache_sync::Arc;
use foliocache_sys::Errno;
use foliocache_vfs::{Attr, DirEntryBuf, FileKind, OpenDirectory};
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::SystemTime;

use crate::error::{Error, Operation, Result};
use crate::mount::VfsMount;

/// Entries read ahead of the caller.
pub(crate) const BATCH: usize = 256;

/// The attributes of a file, directory or symbolic link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata(pub(crate) Attr);

impl Metadata {
    /// What it is.
    pub fn kind(&self) -> FileKind {
        self.0.kind
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.0.kind == FileKind::Regular
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.0.kind == FileKind::Directory
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.0.kind == FileKind::Symlink
    }

    /// Size in bytes.
    #[allow(clippy::len_without_is_empty, reason = "no collection")]
    pub fn len(&self) -> u64 {
        self.0.size
    }

    /// Permission bits, as `chmod` takes them.
    pub fn mode(&self) -> u32 {
        self.0.mode
    }

    /// Number of the inode in its file system.
    pub fn ino(&self) -> u64 {
        self.0.ino
    }

    /// Names that lead to it.
    pub fn nlink(&self) -> u32 {
        self.0.nlink
    }

    /// Owner.
    pub fn uid(&self) -> u32 {
        self.0.uid
    }

    /// Group.
    pub fn gid(&self) -> u32 {
        self.0.gid
    }

    /// Last change of the data.
    pub fn modified(&self) -> SystemTime {
        self.0.mtime.into()
    }

    /// Last access, as far as the file system keeps it: reads through the cache do not move it.
    pub fn accessed(&self) -> SystemTime {
        self.0.atime.into()
    }

    /// Last change of the data or the attributes.
    pub fn changed(&self) -> SystemTime {
        self.0.ctime.into()
    }

    /// Creation, where the file system knows it.
    pub fn created(&self) -> Option<SystemTime> {
        self.0.btime.map(SystemTime::from)
    }

    /// Everything there is, in the file systems' own terms.
    pub fn attr(&self) -> &Attr {
        &self.0
    }
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry(DirEntryBuf);

impl DirEntry {
    /// The name.
    pub fn file_name(&self) -> &OsStr {
        &self.0.name
    }

    /// The name, given away.
    pub fn into_file_name(self) -> OsString {
        self.0.name
    }

    /// What it is; [`FileKind::Unknown`] where the directory does not say.
    pub fn kind(&self) -> FileKind {
        self.0.kind
    }
}

/// The entries of a directory, without `.` and `..`. From [`Directory::read_dir`].
///
/// What is there throughout is seen once, whatever is made or removed meanwhile.
///
/// [`Directory::read_dir`]: crate::Directory::read_dir
pub struct ReadDir {
    stream: Box<dyn OpenDirectory>,
    mount: Arc<VfsMount>,
    path: PathBuf,
    read: VecDeque<DirEntryBuf>,
    offset: u64,
    ended: bool,
}

impl ReadDir {
    pub(crate) fn new(stream: Box<dyn OpenDirectory>, mount: Arc<VfsMount>, path: PathBuf) -> Self {
        Self {
            stream,
            mount,
            path,
            read: VecDeque::new(),
            offset: 0,
            ended: false,
        }
    }

    /// Whether nothing is left.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended && self.read.is_empty()
    }

    fn fill(&mut self) -> Result<(), Errno> {
        self.mount.super_block()?;
        let (mut offset, mut ended) = (self.offset, true);
        let read = &mut self.read;
        self.stream.read(offset, &mut |entry| {
            if read.len() == BATCH {
                ended = false;
                return false;
            }
            offset = entry.next_offset;
            if entry.name != "." && entry.name != ".." {
                read.push_back(entry.into());
            }
            true
        })?;
        (self.offset, self.ended) = (offset, ended);
        Ok(())
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.read.is_empty()
            && !self.ended
            && let Err(errno) = self.fill()
        {
            self.ended = true;
            return Some(Err(Error::Path {
                operation: Operation::ReadDir,
                path: self.path.clone(),
                errno,
            }));
        }
        self.read.pop_front().map(|entry| Ok(DirEntry(entry)))
    }
}

impl std::fmt::Debug for ReadDir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadDir")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}
