//! A file system as front doors see it: names, inodes, open files.
//!
//! # Model
//!
//! ```text
//!  FileSystem ──root, lookup──▶ SlabArc<Inode> ──open──▶ OpenFile ──read_at, write_at──▶ the cache
//! ```
//!
//! A front door walks names one component at a time with [`FileSystem::lookup`], follows symbolic
//! links itself, and checks permissions itself. Names are single components: `/`, the empty name
//! and NUL are `EINVAL`, `.` and `..` are `EINVAL` except in [`FileSystem::lookup`], more than
//! [`MAX_NAME`] bytes are `ENAMETOOLONG`.
//!
//! # Locking
//!
//! Every method may block on I/O and takes no lock of the caller's. Calls on one file system may
//! come from any number of threads. Those that change names come with the names of each directory that they are
//! given locked exclusively, and [`FileSystem::lookup`] with those of its directory locked shared; moves between two directories
//! come one at a time. [`SuperBlock`](crate::SuperBlock) does that, as the kernel's VFS does, so a file system need not. The
//! names in a directory that is removed are not locked.
//!
//! [`MAX_NAME`]: crate::MAX_NAME

use crate::belief::{Belief, Validity};
use crate::generation::Generation;
use crate::inode::Inode;
use crate::open_file::OpenFile;
use crate::types::{
    Attr, DirEntry, FileKind, New, OpContext, OpenFlags, Remove, RenameMode, SetAttr, StatFs,
    XattrMode,
};
use crate::uncached::UncachedDir;
use foliocache_mm::slab::SlabArc;
use foliocache_sync::Arc;
use foliocache_sys::Errno;
use std::ffi::{OsStr, OsString};

/// A file system over the cache.
///
/// Errors are those of the system call of the same name, with its meaning; `ESTALE` means that an
/// inode's file has gone from the backing store without our doing, `EIO` that the backing store
/// failed.
pub trait FileSystem: Send + Sync {
    /// The kind of the file system, one word.
    fn kind(&self) -> &'static str;

    /// Whether everything that changes something is refused with `EROFS`.
    fn read_only(&self) -> bool {
        false
    }

    /// Whether closing a file waits until its data is in the backing store, and reports a failure.
    fn writes_at_close(&self) -> bool {
        false
    }

    /// How long the answers of [`FileSystem::lookup`] and [`FileSystem::getattr`] may be believed. Asked for once.
    fn belief(&self) -> Arc<Belief> {
        Arc::new(Belief::new(Validity::FOR_EVER))
    }

    /// Whether reports about names in `dir` cover every change of the attributes of `inode`, which has one of them:
    /// not if it has names elsewhere too.
    fn is_told_all(&self, _dir: &Inode, _inode: &Inode) -> bool {
        false
    }

    /// Bytes charged for inodes that are kept without holders. Cheap.
    fn inode_bytes(&self) -> u64 {
        0
    }

    /// Frees about this many unheld inodes; returns how many. As [`Shrinker::shrink`].
    ///
    /// [`Shrinker::shrink`]: foliocache_mm::Shrinker::shrink
    fn shrink_inodes(&self, _nr: usize) -> usize {
        0
    }

    /// Frees these inodes, if they have no other holders and nothing is lost with them. Their memory is free when
    /// this returns. Otherwise as [`FileSystem::shrink_inodes`].
    fn evict_inodes(&self, inodes: Vec<SlabArc<Inode>>) {
        drop(inodes);
    }

    /// A name of `inode` was removed from outside. If the store has no other one, closes descriptors that keep the
    /// file's space there and that no handle needs; returns whether that is so.
    ///
    /// Context: no lock except that of reclaim's view; may block on I/O.
    fn give_up_removed(&self, _inode: &SlabArc<Inode>) -> bool {
        false
    }

    /// Inodes that fit into charged memory.
    fn spare_inodes(&self) -> u64 {
        0
    }

    /// Frees discarded objects without readers; returns how many still wait. Does not wait.
    fn reap(&self) -> usize {
        0
    }

    /// Changes with the mode or the owner of any directory, before that is visible: from then on other users may
    /// pass it. The [`AttrCell`](crate::AttrCell) of each directory is made with it.
    fn permissions(&self) -> &Arc<Generation>;

    /// The directory at the top; its number is [`ROOT_INO`].
    fn root(&self) -> SlabArc<Inode>;

    /// The inode behind `name` in `dir`. `.` and `..` are allowed; the root's `..` is the root.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENAMETOOLONG`, `EINVAL`, and those of the backing store.
    fn lookup(&self, dir: &SlabArc<Inode>, name: &OsStr) -> Result<SlabArc<Inode>, Errno>;

    /// As [`FileSystem::lookup`], and whether the inode's attributes came with the answer: then they need not be
    /// requested.
    ///
    /// # Errors
    /// As [`FileSystem::lookup`].
    fn lookup_with_attributes(
        &self,
        dir: &SlabArc<Inode>,
        name: &OsStr,
    ) -> Result<(SlabArc<Inode>, bool), Errno> {
        Ok((self.lookup(dir, name)?, false))
    }

    /// The attributes as they are now.
    ///
    /// # Errors
    /// `ESTALE`, and those of the backing store.
    fn getattr(&self, inode: &SlabArc<Inode>) -> Result<Attr, Errno> {
        inode.ops().getattr(inode)
    }

    /// As [`FileSystem::getattr`], of an inode that the caller has open: the attributes that were known last if the store can no
    /// longer be asked, since others gave the name to another file.
    ///
    /// # Errors
    /// Those of the backing store.
    fn getattr_open(&self, inode: &SlabArc<Inode>) -> Result<Attr, Errno> {
        match self.getattr(inode) {
            Err(Errno::ESTALE) if !foliocache_sync::planted!(replaced_file_without_attributes) => {
                inode.ops().last_attr(inode).ok_or(Errno::ESTALE)
            }
            told => told,
        }
    }

    /// Changes attributes and returns them as they are then.
    ///
    /// # Errors
    /// `EISDIR` and `EINVAL` for the size of anything but a regular file, `EFBIG`, `EPERM`,
    /// `EROFS`, and those of the backing store.
    fn setattr(
        &self,
        ctx: &OpContext,
        inode: &SlabArc<Inode>,
        set: &SetAttr,
    ) -> Result<Attr, Errno>;

    /// Makes a regular file of `mode` and opens it.
    ///
    /// # Errors
    /// `EEXIST`, `ENOSPC`, `EROFS`, and those of [`FileSystem::open`].
    fn create(
        &self,
        ctx: &OpContext,
        dir: &SlabArc<Inode>,
        name: &OsStr,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<OpenFile, Errno>;

    /// Makes an object that is no open file.
    ///
    /// # Errors
    /// `EEXIST`, `EPERM` for devices without privilege, `EMLINK` for a directory, `ENOSPC`, `EROFS`; for a symbolic link
    /// `ENAMETOOLONG` if its target has 4096 bytes or more, and `ENOENT` if that is empty.
    fn make(
        &self,
        ctx: &OpContext,
        dir: &SlabArc<Inode>,
        name: &OsStr,
        new: New<'_>,
    ) -> Result<SlabArc<Inode>, Errno>;

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// `EINVAL` unless it is a symbolic link.
    fn readlink(&self, inode: &SlabArc<Inode>) -> Result<OsString, Errno>;

    /// Gives `inode` another name.
    ///
    /// # Errors
    /// `EEXIST`, `EPERM` for a directory, `EXDEV` for an inode of another file system, `EMLINK`,
    /// `ENOENT` for a file that has no name left, `EROFS`.
    fn link(&self, inode: &SlabArc<Inode>, dir: &SlabArc<Inode>, name: &OsStr)
    -> Result<(), Errno>;

    /// Removes a name. An open file lives on until it is closed.
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR` and `ENOTDIR` for the other kind, `ENOTEMPTY`, `EBUSY`, `EROFS`.
    fn remove(&self, dir: &SlabArc<Inode>, name: &OsStr, what: Remove) -> Result<(), Errno>;

    /// Moves a name, atomically.
    ///
    /// # Errors
    /// `ENOENT`, `EEXIST`, `EISDIR`, `ENOTDIR`, `ENOTEMPTY`, `EINVAL` for a directory moved into
    /// itself, `EXDEV`, `EROFS`.
    fn rename(
        &self,
        from_dir: &SlabArc<Inode>,
        from: &OsStr,
        to_dir: &SlabArc<Inode>,
        to: &OsStr,
        mode: RenameMode,
    ) -> Result<(), Errno>;

    /// Opens a regular file. Takes over the attributes that the store has, as [`FileSystem::getattr`] does, unless they are
    /// [watched](crate::AttrCell::is_watched). Set-id bits are cleared by a later write if `ctx` is not root's.
    ///
    /// # Errors
    /// `EISDIR` for a directory, `ENXIO` for other nodes, `ELOOP` for a symbolic link, `EROFS`,
    /// `EACCES`, `ENFILE`.
    fn open(
        &self,
        ctx: &OpContext,
        inode: &SlabArc<Inode>,
        flags: OpenFlags,
    ) -> Result<OpenFile, Errno>;

    /// As [`FileSystem::open`] for reading, where nothing need be asked of the store and nothing waited for.
    ///
    /// # Errors
    /// `EAGAIN` otherwise, and as [`FileSystem::open`].
    fn open_cached(
        &self,
        _ctx: &OpContext,
        _inode: &SlabArc<Inode>,
        _flags: OpenFlags,
    ) -> Result<OpenFile, Errno> {
        Err(Errno::EAGAIN)
    }

    /// Opens a directory for reading.
    ///
    /// # Errors
    /// `ENOTDIR`, `EACCES`.
    fn opendir(&self, inode: &SlabArc<Inode>) -> Result<Box<dyn OpenDirectory>, Errno>;

    /// As [`FileSystem::opendir`], if the directory's contents are cached.
    ///
    /// # Errors
    /// `EAGAIN` otherwise, and as [`FileSystem::opendir`].
    fn opendir_cached(&self, _inode: &SlabArc<Inode>) -> Result<Box<dyn OpenDirectory>, Errno> {
        Err(Errno::EAGAIN)
    }

    /// Opens a directory to read its names, and those of directories below it, without caching them. `None` where all names
    /// are in memory anyway.
    ///
    /// # Errors
    /// As [`FileSystem::opendir`].
    fn open_uncached(&self, _dir: &SlabArc<Inode>) -> Result<Option<Box<dyn UncachedDir>>, Errno> {
        Ok(None)
    }

    /// The room there is.
    ///
    /// # Errors
    /// Those of the backing store.
    fn statfs(&self) -> Result<StatFs, Errno>;

    /// Makes everything durable that was changed before the call, files and names.
    ///
    /// # Errors
    /// The first error; data that failed stays dirty.
    fn sync_fs(&self) -> Result<(), Errno>;

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// `ENODATA`, `EOPNOTSUPP`.
    fn getxattr(&self, inode: &SlabArc<Inode>, name: &OsStr) -> Result<Vec<u8>, Errno>;

    /// Sets an extended attribute, or takes it away if `value` is `None`, whatever the mode.
    ///
    /// # Errors
    /// `EEXIST`, `ENODATA`, `EOPNOTSUPP`, `ENOSPC`, `ERANGE`, `E2BIG`, `EROFS`.
    fn setxattr(
        &self,
        inode: &SlabArc<Inode>,
        name: &OsStr,
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<(), Errno>;

    /// The names of the extended attributes.
    ///
    /// # Errors
    /// `EOPNOTSUPP`.
    fn listxattr(&self, inode: &SlabArc<Inode>) -> Result<Vec<OsString>, Errno>;
}

/// Number of the root of every file system.
pub const ROOT_INO: u64 = 1;

/// A directory that is being read.
pub trait OpenDirectory: Send + Sync {
    /// Hands entries to `sink`, from `offset` on (0 is the beginning, others come from
    /// [`DirEntry::next_offset`]), until it returns `false` or none is left. `.` and `..` come
    /// first. An entry that `sink` refused comes again when reading goes on at the last accepted
    /// entry's offset. An entry that is there throughout is seen once, whatever is made or
    /// unlinked meanwhile.
    ///
    /// # Errors
    /// Those of the backing store.
    fn read(&self, offset: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<(), Errno>;

    /// Whether reading on at `offset` asks nothing of the store and waits for nothing.
    fn is_known_at(&self, _offset: u64) -> bool {
        false
    }

    /// Makes the names in the directory durable.
    ///
    /// # Errors
    /// Those of the backing store.
    fn fsync(&self) -> Result<(), Errno>;
}

/// Checks that an inode can be opened as a file.
///
/// # Errors
/// `EISDIR` for a directory, `ELOOP` for a symbolic link, `ENXIO` for other nodes.
pub fn check_opens(inode: &Inode) -> Result<(), Errno> {
    match inode.kind() {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(Errno::EISDIR),
        FileKind::Symlink => Err(Errno::ELOOP),
        _ => Err(Errno::ENXIO),
    }
}

/// Checks a name that is to be one component of a path.
///
/// # Errors
/// `ENOENT` for the empty name, `EINVAL` for `/` and NUL in it and for `.` and `..`,
/// `ENAMETOOLONG`.
pub fn check_name(name: &OsStr) -> Result<(), Errno> {
    let bytes = name.as_encoded_bytes();
    match bytes {
        b"" => Err(Errno::ENOENT),
        b"." | b".." => Err(Errno::EINVAL),
        _ if bytes.len() > crate::MAX_NAME => Err(Errno::ENAMETOOLONG),
        _ if bytes.iter().any(|&byte| byte == b'/' || byte == 0) => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}
