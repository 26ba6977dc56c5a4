//! Attributes of files, and the entries of directories.

use foliocache_sync::Arc;
use foliocache_sys::Errno;
use foliocache_vfs::{self as vfs, Attr, FileKind, OpenDirectory};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::time::SystemTime;

use crate::attributes::Permissions;
use crate::directory::Directory;
use crate::error::{Error, Operation, Result};
use crate::joined::joined;
use crate::mount::VfsMount;

/// Entries read ahead of the caller.
pub(crate) const BATCH: usize = 256;

/// The attributes of a file, directory or symbolic link; as [`std::fs::Metadata`].
///
/// [`MetadataExt`] gives owner, number of the inode and the like. Its `dev` is a number of the file system in this process,
/// not that of the device below; its `ino` is the number of the inode in this cache.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::os::unix::fs::MetadataExt;
///
/// # let cache = foliocache::Cache::builder().memory("16M").build()?;
/// # let dir = cache.memfs()?;
/// dir.write("list", "one\n")?;
/// let metadata = dir.metadata("list")?;
/// assert!(metadata.is_file() && metadata.len() == 4);
/// println!("changed {:?}, of user {}", metadata.modified()?, metadata.uid());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    attr: Attr,
    dev: u64,
}

impl Metadata {
    pub(crate) fn new(attr: Attr, mount: &VfsMount) -> Self {
        Self {
            attr,
            dev: mount.dev(),
        }
    }

    /// The kind of the file.
    pub fn file_type(&self) -> FileKind {
        self.attr.kind
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.attr.kind.is_file()
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.attr.kind.is_dir()
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.attr.kind.is_symlink()
    }

    /// Size in bytes.
    #[allow(clippy::len_without_is_empty, reason = "no collection")]
    pub fn len(&self) -> u64 {
        self.attr.size
    }

    /// The permissions: which users may read, write and execute the file.
    pub fn permissions(&self) -> Permissions {
        Permissions::from_mode(self.attr.mode)
    }

    /// Last change of the data.
    ///
    /// # Errors
    /// None: the result is that of `std`.
    pub fn modified(&self) -> Result<SystemTime> {
        Ok(self.attr.mtime.into())
    }

    /// Last access, as far as the file system keeps it. A read from the source moves it, a hit does not.
    ///
    /// # Errors
    /// None: the result is that of `std`.
    pub fn accessed(&self) -> Result<SystemTime> {
        Ok(self.attr.atime.into())
    }

    /// Creation.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the file system does not know it.
    pub fn created(&self) -> Result<SystemTime> {
        let created = self.attr.btime.map(SystemTime::from);
        created.ok_or(Error::Unsupported(
            "the file system keeps no time of creation",
        ))
    }

    /// Everything there is, in the file systems' own terms.
    pub fn attr(&self) -> &Attr {
        &self.attr
    }
}

impl MetadataExt for Metadata {
    fn dev(&self) -> u64 {
        self.dev
    }

    fn ino(&self) -> u64 {
        self.attr.ino
    }

    /// Kind and permission bits.
    fn mode(&self) -> u32 {
        self.attr.kind.mode_bits() | self.attr.mode
    }

    fn nlink(&self) -> u64 {
        self.attr.nlink.into()
    }

    fn uid(&self) -> u32 {
        self.attr.uid
    }

    fn gid(&self) -> u32 {
        self.attr.gid
    }

    fn rdev(&self) -> u64 {
        self.attr.rdev.raw()
    }

    fn size(&self) -> u64 {
        self.attr.size
    }

    fn atime(&self) -> i64 {
        self.attr.atime.sec
    }

    fn atime_nsec(&self) -> i64 {
        self.attr.atime.nsec.into()
    }

    fn mtime(&self) -> i64 {
        self.attr.mtime.sec
    }

    fn mtime_nsec(&self) -> i64 {
        self.attr.mtime.nsec.into()
    }

    fn ctime(&self) -> i64 {
        self.attr.ctime.sec
    }

    fn ctime_nsec(&self) -> i64 {
        self.attr.ctime.nsec.into()
    }

    fn blksize(&self) -> u64 {
        self.attr.blksize.into()
    }

    fn blocks(&self) -> u64 {
        self.attr.blocks
    }
}

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

    pub(crate) fn name(&self) -> &OsStr {
        &self.name
    }

    pub(crate) fn into_name(self) -> OsString {
        self.name
    }

    /// The path that was given to [`Directory::read_dir`], with the name. The calls of the same [`Directory`] take it.
    pub fn path(&self) -> PathBuf {
        joined(&self.listed.path, &self.name)
    }

    /// The kind of the file, as the directory says. Blocks for I/O only where the directory does not say.
    ///
    /// # Errors
    /// As [`DirEntry::metadata`], where the directory does not say.
    pub fn file_type(&self) -> Result<FileKind> {
        match self.kind {
            FileKind::Unknown => Ok(self.metadata()?.file_type()),
            kind => Ok(kind),
        }
    }

    /// As [`DirEntry::file_type`]; [`FileKind::Unknown`] where the directory does not say.
    pub(crate) fn kind(&self) -> FileKind {
        self.kind
    }

    /// The attributes of what has the name in the directory now; a symbolic link is not followed. May block for I/O.
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

/// Entries that were read ahead. Their names lie in one piece of memory.
#[derive(Default)]
struct Batch {
    names: Vec<u8>,
    /// Kinds, and where the names end.
    entries: Vec<(FileKind, usize)>,
    /// The entry to be taken next, and where its name begins.
    next: usize,
    start: usize,
}

impl Batch {
    fn is_empty(&self) -> bool {
        self.next == self.entries.len()
    }

    fn push(&mut self, entry: &vfs::DirEntry<'_>) {
        self.names.extend_from_slice(entry.name.as_bytes());
        self.entries.push((entry.kind, self.names.len()));
    }

    fn take(&mut self) -> Option<(FileKind, &OsStr)> {
        let &(kind, end) = self.entries.get(self.next)?;
        let name = OsStr::from_bytes(&self.names[self.start..end]);
        (self.next, self.start) = (self.next + 1, end);
        Some((kind, name))
    }

    fn clear(&mut self) {
        self.names.clear();
        self.entries.clear();
        (self.next, self.start) = (0, 0);
    }
}

/// The entries of a directory, without `.` and `..`. From [`Directory::read_dir`].
///
/// An entry that is there throughout is seen once, even if others are made or removed meanwhile.
///
/// The iterator may block for I/O. It reads up to 256 entries ahead, outside the bound. An error is its last entry.
///
/// [`Directory::read_dir`]: crate::Directory::read_dir
pub struct ReadDir {
    stream: Box<dyn OpenDirectory>,
    listed: Arc<Listed>,
    read: Batch,
    offset: u64,
    ended: bool,
}

impl ReadDir {
    pub(crate) fn new(stream: Box<dyn OpenDirectory>, directory: Directory, path: PathBuf) -> Self {
        Self {
            stream,
            listed: Arc::new(Listed { directory, path }),
            read: Batch::default(),
            offset: 0,
            ended: false,
        }
    }

    /// Whether nothing is left.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended && self.read.is_empty()
    }

    /// Whether the next entry comes without a question to the store, and without waiting.
    pub(crate) fn is_known(&self) -> bool {
        self.ended || !self.read.is_empty() || self.stream.is_known_at(self.offset)
    }

    /// Reads entries ahead if there are none. What fails is found again by the next read.
    pub(crate) fn read_ahead(&mut self) {
        if self.read.is_empty() && !self.ended {
            let _ = self.fill();
        }
    }

    /// The next entry, without memory of its own.
    pub(crate) fn next_borrowed(&mut self) -> Option<Result<(FileKind, &OsStr)>> {
        if self.read.is_empty()
            && !self.ended
            && let Err(errno) = self.fill()
        {
            self.ended = true;
            return Some(Err(Error::Path {
                operation: Operation::ReadDir,
                path: self.listed.directory.path().to_owned(),
                errno,
            }));
        }
        self.read.take().map(Ok)
    }

    fn fill(&mut self) -> Result<(), Errno> {
        self.listed.directory.check_fork()?;
        let (mut offset, mut ended) = (self.offset, true);
        let read = &mut self.read;
        read.clear();
        let result = self.stream.read(offset, &mut |entry| {
            if read.entries.len() == BATCH {
                ended = false;
                return false;
            }
            offset = entry.next_offset;
            if entry.name != "." && entry.name != ".." {
                read.push(&entry);
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
        Some(next.map(|(kind, name)| DirEntry {
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
