//! Files that are used without their directory: each is locked by itself.
//!
//! # Model
//!
//! A file system with [`lock_files`](super::DirFsOptions::lock_files) locks no directory. A file is *held* from the moment that
//! it is open until its last handle is closed and all of it is durable. Its last close writes it back and flushes it.
//!
//! ```text
//!  file that may be written   its last byte but one (an OFD lock): exclusive, refused if another has it ──▶ shared
//!  directories above it       the byte FILES: "a file below is held"      ◀── checked when a directory is locked
//!  a locked directory         the byte DIRECTORY: "all of it is locked"   ◀── checked when a file below is locked
//! ```
//!
//! A descriptor of a directory can have shared locks alone. So each side sets its own byte, then looks at that of the other:
//! of two that come at one moment one at least is refused, perhaps both. The lock of a file is no `flock(2)` and lies beyond
//! the bytes that programs lock, so that these have locks of their own.
//!
//! # Invariants
//!
//! 1. A file with a handle, with data that is not durable or with descriptors is held, once [`DirFs::hold_file`] returned.
//! 2. A nameless file leaves the inodes that can be found when it is let go of: its descriptor is what keeps it.
//!
//! # Locking
//!
//! `marks` is held over the opening of directories, which may block; no other lock but leaves is taken under it. `files` is a
//! leaf, taken under the `opens` of a file.
//!
//! # Limits
//!
//! As those of [`lock`](super::lock). Directories that may not be read have no byte. Descriptors: one for each file that may be
//! written, and one for each directory above such files.

use super::file_locks::FILE;
use super::node::{DirNode, Location};
use super::{DirFs, DirFsError, cannot_open, identity::Identity};
use foliocache_mm::Mm;
use foliocache_sync::atomic::{AtomicBool, Ordering};
use foliocache_sync::rank::{LeafMutex, Rank, RankedMutex};
use foliocache_sync::{Arc, Weak};
use foliocache_sys::Errno;
use foliocache_sys::fd::{self, AsFd, BorrowedFd, LockKind, OFlags, OwnedFd, Stat};
use foliocache_vfs::{Inode, OpContext, OpenFile, OpenFlags, SlabArc};
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
/// The byte of a directory that says: all of it is locked.
const DIRECTORY: u64 = 1 << 62;
/// The byte of a directory that says: a file below is.
const FILES: u64 = DIRECTORY + 1;

fn one(byte: u64) -> Range<u64> {
    byte..byte + 1
}

/// Device and inode number of a directory.
type Place = (u64, u64);

/// A byte that is locked until this is dropped.
struct ByteLock {
    fd: OwnedFd,
    byte: u64,
    mm: Arc<Mm>,
}

impl Drop for ByteLock {
    fn drop(&mut self) {
        // A child has it only as long as the parent.
        if self.mm.check_fork().is_ok() {
            // Children may hold the descriptor still.
            let _ = fd::unlock_range(self.fd.as_fd(), &one(self.byte));
        }
    }
}

/// The lock of a file, and the marks of the directories above.
struct FileLock {
    _file: ByteLock,
    _above: Vec<Arc<ByteLock>>,
}

struct Held {
    /// The directories above, the nearest first.
    above: Vec<Place>,
    path: String,
    /// `None` before the first handle that may write, and where there are no such locks.
    lock: Option<FileLock>,
}

/// See the module's header.
#[derive(Default)]
pub(super) struct HeldFiles {
    /// By the number of the node.
    files: LeafMutex<HashMap<u64, Held>>,
    marks: RankedMutex<{ Rank::Namespace as u8 }, HashMap<Place, Weak<ByteLock>>>,
    /// The log says that there are no locks. Relaxed everywhere: at worst it says so twice.
    warned: AtomicBool,
}

/// Marks all of a directory as locked. Refused with `EAGAIN` if a file below is held, unless that is to be ignored. Does nothing
/// if the kernel has no such locks.
pub(super) fn mark_directory(dir: BorrowedFd<'_>, ignore: bool) -> Result<(), Errno> {
    if fd::try_lock_range(dir, &one(DIRECTORY), LockKind::Shared).is_err() {
        return Ok(());
    }
    match fd::is_range_locked(dir, &one(FILES), LockKind::Exclusive) {
        Ok(true) if !ignore => Err(Errno::EAGAIN),
        _ => Ok(()),
    }
}

/// Takes back what [`mark_directory`] said.
pub(super) fn unmark_directory(dir: BorrowedFd<'_>) {
    let _ = fd::unlock_range(dir, &one(DIRECTORY));
}

impl HeldFiles {
    /// The node is gone.
    pub(super) fn forget(&self, node: u64) {
        let gone = self.files.lock().remove(&node);
        drop(gone);
    }

    /// The file system is gone.
    pub(super) fn forget_all(&self) {
        let gone = std::mem::take(&mut *self.files.lock());
        drop(gone);
    }

    fn warn(&self, path: &str, errno: Errno) {
        // Relaxed: see the field.
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(path, %errno, "the file cannot be locked: another cache that writes to it is not noticed");
        }
    }
}

impl DirFs {
    /// Holds a file that was just opened, with the directories above it, the nearest first, until it is closed and all of it is
    /// durable. One that is opened to be written is locked: others cannot. Does nothing where directories are locked.
    ///
    /// Context: no lock held; may block on I/O. One call at a time.
    ///
    /// # Errors
    /// [`DirFsError::Locked`], unless that is to be ignored: the file, or a directory above, is locked. `ESTALE` if the file was
    /// just let go of: it is to be opened again. Those of `open(2)`.
    pub fn hold_file(
        &self,
        inode: &Inode,
        above: &[Place],
        writes: bool,
        ignore: bool,
    ) -> Result<(), DirFsError> {
        let Some(held) = &self.shared.held else {
            return Ok(());
        };
        let failed = |errno| cannot_open(&self.shared.name, errno);
        let node = DirNode::of(inode).map_err(failed)?;
        if node.orphaned.get().is_some() {
            return Err(failed(Errno::ESTALE));
        }
        let is_enough = |known: &Held| known.lock.is_some() || !writes;
        if held.files.lock().get(&node.id).is_some_and(is_enough) {
            return Ok(());
        }
        let path = node.display_path();
        let lock = match writes {
            true => self.lock_file(node, &path, above, ignore)?,
            false => None,
        };
        let above = above.to_vec();
        let old = (held.files.lock()).insert(node.id, Held { above, path, lock });
        drop(old);
        Ok(())
    }

    /// `None` where there are no such locks.
    fn lock_file(
        &self,
        node: &DirNode,
        name: &str,
        above: &[Place],
        ignore: bool,
    ) -> Result<Option<FileLock>, DirFsError> {
        let ignore = ignore || foliocache_sync::planted!(file_lock_of_another_ignored);
        let marks = self.mark_above(node, name, above, ignore)?;
        let open = |flags| self.shared.with_room(|| node.open(flags));
        let (fd, _) = match open(OFlags::RDWR) {
            // It is append-only.
            Err(Errno::EPERM) => open(OFlags::RDWR | OFlags::APPEND),
            opened => opened,
        }
        .map_err(|errno| cannot_open(name, errno))?;
        let lock = |kind| fd::try_lock_range(fd.as_fd(), &one(FILE), kind);
        let locked = match lock(LockKind::Exclusive) {
            Err(Errno::EAGAIN) if ignore => {
                tracing::warn!(
                    file = name,
                    "another cache writes to this file: what one of them writes may undo what the other made durable"
                );
                Ok(())
            }
            done => done,
        };
        match locked.and_then(|()| lock(LockKind::Shared)) {
            Ok(()) => {}
            Err(Errno::EAGAIN) if !ignore => {
                let path = name.into();
                return Err(DirFsError::Locked { path });
            }
            Err(errno) => {
                if let Some(held) = &self.shared.held {
                    held.warn(name, errno);
                }
                return Ok(None);
            }
        }
        let (byte, mm) = (FILE, self.shared.bdi.mm().clone());
        Ok(Some(FileLock {
            _file: ByteLock { fd, byte, mm },
            _above: marks,
        }))
    }

    /// Says in the directories above that a file below is held.
    fn mark_above(
        &self,
        node: &DirNode,
        name: &str,
        above: &[Place],
        ignore: bool,
    ) -> Result<Vec<Arc<ByteLock>>, DirFsError> {
        let Some(((parent, _), held)) = node.named().zip(self.shared.held.as_ref()) else {
            return Ok(Vec::new());
        };
        let parent = DirNode::of(&parent).and_then(DirNode::path_fd);
        let parent = parent.map_err(|errno| cannot_open(name, errno))?;
        let mut path = PathBuf::from(fd::proc_path(parent.as_fd()));
        let mut marks = held.marks.lock();
        marks.retain(|_, mark| mark.strong_count() > 0);
        let mut all = Vec::new();
        for place in above {
            let mark = match marks.get(place).and_then(Weak::upgrade) {
                Some(mark) => Some(mark),
                None => self.mark(&path, name, ignore)?.map(Arc::new),
            };
            if let Some(mark) = mark {
                marks.insert(*place, Arc::downgrade(&mark));
                all.push(mark);
            }
            path.push("..");
        }
        Ok(all)
    }

    /// `None` where the directory may not be read, or there are no such locks.
    fn mark(&self, path: &Path, name: &str, ignore: bool) -> Result<Option<ByteLock>, DirFsError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let dir = match self.shared.with_room(|| fd::open(path, flags, 0)) {
            Ok(dir) => dir,
            Err(errno @ (Errno::EMFILE | Errno::ENFILE)) => {
                return Err(cannot_open(name, errno));
            }
            Err(_) => return Ok(None),
        };
        if fd::try_lock_range(dir.as_fd(), &one(FILES), LockKind::Shared).is_err() {
            return Ok(None);
        }
        let mark = ByteLock {
            fd: dir,
            byte: FILES,
            mm: self.shared.bdi.mm().clone(),
        };
        match fd::is_range_locked(mark.fd.as_fd(), &one(DIRECTORY), LockKind::Exclusive) {
            Ok(true) if !ignore => {
                let path = fd::real_path(mark.fd.as_fd()).unwrap_or_else(|_| name.into());
                Err(DirFsError::Locked { path })
            }
            _ => Ok(Some(mark)),
        }
    }

    /// The inode of a regular file with these attributes, if it is open here, or some of it is not durable.
    pub fn inode_in_use(&self, stat: &Stat) -> Option<SlabArc<Inode>> {
        let inode = self.inodes.find(&Identity::of(stat))?;
        let file = DirNode::of(&inode).ok()?.regular()?;
        let is_open = file.opens.lock().handles > 0;
        (is_open || file.has_descriptors()).then_some(inode)
    }

    /// A file that is held below the directory with this device and inode number.
    pub fn held_below(&self, directory: Place) -> Option<String> {
        let files = self.shared.held.as_ref()?.files.lock();
        let below = files.values().find(|held| held.above.contains(&directory));
        below.map(|held| held.path.clone())
    }

    /// Whether this is the inode of a file with these attributes.
    pub fn is_inode_of(&self, inode: &Inode, stat: &Stat) -> bool {
        DirNode::of(inode).is_ok_and(|node| node.identity == Identity::of(stat))
    }

    /// Opens a regular file that no name leads to. The descriptor is kept as long as the file is open.
    ///
    /// # Errors
    /// As [`FileSystem::open`](foliocache_vfs::FileSystem::open).
    pub fn open_nameless(
        &self,
        ctx: &OpContext,
        file: OwnedFd,
        flags: OpenFlags,
    ) -> Result<OpenFile, Errno> {
        let mm = self.shared.bdi.mm();
        mm.check_fork()?;
        let stat = fd::fstat(file.as_fd())?;
        let mode = fd::access_mode(file.as_fd())?;
        let may_write = mode.contains(OFlags::RDWR);
        let by_itself = may_write || !flags.write && !mode.contains(OFlags::WRONLY);
        let plain = !mode.intersects(OFlags::APPEND | OFlags::DIRECT);
        let made = match by_itself && plain {
            true => {
                let file = self.shared.with_room(|| Ok(file.try_clone()?))?;
                let fds = super::descriptors::Descriptors::new(file, may_write);
                Some((fds, OpenFile::charge(mm)?))
            }
            false => None,
        };
        let file = Arc::new(file);
        let wanted = self.inodes.numbers().of(stat.dev.raw(), stat.ino);
        let make = |ino| (self.shared).new_inode(ino, &stat, Location::Pinned(file.clone()));
        let inode = (self.inodes).find_or_insert(Identity::of(&stat), wanted, make);
        DirNode::of(&inode)?.pin_to(&file);
        self.handle(ctx, &inode, flags, made)
    }
}
