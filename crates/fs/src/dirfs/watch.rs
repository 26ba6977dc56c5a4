//! Directories in which the kernel reports changes.
//!
//! # Model
//!
//! A directory is watched from the first question for a name in it or for its own attributes, before that is asked,
//! until its inode goes. A watch is charged to the bound. A directory that cannot be watched goes by time: where the user
//! has no watch left, where the process may not read, and what is no local file system, since another machine's
//! changes, or those of another layer, are not told.
//!
//! Two kinds of changes are not reported, since inotify does not see them: stores through a mapping until it goes, and
//! changes through another hard link. [`FileSystem::is_told_all`](foliocache_vfs::FileSystem::is_told_all) is false of files with several
//! links; files that are opened are looked at once a second.
//!
//! # Locking
//!
//! The lock of `dirs` is a leaf but for the drop of what was in it, which comes after.
//!
//! # Memory ordering
//!
//! `DirNode::watch` is stored with `Release` after the watch was made, and loaded with `Acquire` before anything in the
//! directory is asked for. The counters are statistics.

use super::magic::{BCACHEFS, BTRFS, EXT4, F2FS, RAMFS, TMPFS, XFS, ZFS};
use super::node::{DirNode, DirectoryState, NOT_WATCHED};
use super::stats::count;
use super::writers::WATCH_BYTES;
use foliocache_mm::{MetadataCharge, Mm};
use foliocache_sync::Arc;
use foliocache_sync::atomic::{AtomicI32, AtomicU64, Ordering};
use foliocache_sync::rank::LeafMutex;
use foliocache_sync::time::Duration;
use foliocache_sys::fd::{self, AsFd, BorrowedFd};
use foliocache_sys::inotify::{EventKind, Inotify};
use foliocache_sys::{Errno, credentials};
use foliocache_vfs::{Change, Inode, News, SlabArc, SlabWeak, Told};
use std::collections::HashMap;

/// File systems that change through this kernel alone.
const LOCAL: [u64; 8] = [EXT4, XFS, BTRFS, F2FS, BCACHEFS, ZFS, TMPFS, RAMFS];

/// There will be none.
const REFUSED: i32 = -1;

/// The watches of a file system.
pub(super) struct Watches {
    queue: Inotify,
    dirs: LeafMutex<HashMap<i32, Watched>>,
    mm: Arc<Mm>,
    /// The device of the source: what is mounted below may be anything.
    dev: u64,
    pub(super) events: AtomicU64,
    pub(super) overflows: AtomicU64,
    pub(super) refused: AtomicU64,
}

struct Watched {
    dir: SlabWeak<Inode>,
    _charge: MetadataCharge,
}

impl Watches {
    /// None yet.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the kernel does not report all changes; those of [`Inotify::new`].
    pub(super) fn new(mm: &Arc<Mm>, root: BorrowedFd<'_>, dev: u64) -> Result<Watches, Errno> {
        if !LOCAL.contains(&fd::fs_magic(root)?) {
            return Err(Errno::EOPNOTSUPP);
        }
        Ok(Watches {
            queue: Inotify::new()?,
            dirs: LeafMutex::default(),
            mm: mm.clone(),
            dev,
            events: AtomicU64::new(0),
            overflows: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        })
    }

    pub(super) fn len(&self) -> usize {
        self.dirs.lock().len()
    }

    /// The charge for them. Each goes with its directory's inode.
    pub(super) fn bytes(&self) -> u64 {
        self.len() as u64 * WATCH_BYTES
    }

    #[cold]
    fn add(&self, dir: &SlabArc<Inode>, node: &DirNode, state: &DirectoryState) -> bool {
        match self.try_add(dir, node) {
            Ok(watch) => {
                // Release: see the module's header.
                state.watch.store(watch, Ordering::Release);
                true
            }
            // There may be one later: memory or descriptors are short, or the directory has just been moved.
            Err(Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE | Errno::ESTALE) => false,
            Err(_) => {
                // Acquire: see the module's header. Relaxed: it tells of no watch.
                let (refused, made) = (Ordering::Relaxed, Ordering::Acquire);
                let set = state
                    .watch
                    .compare_exchange(NOT_WATCHED, REFUSED, refused, made);
                if set.is_ok() {
                    count(&self.refused);
                }
                // Another thread may have made one.
                set.is_err_and(|watch| watch != REFUSED)
            }
        }
    }

    fn try_add(&self, dir: &SlabArc<Inode>, node: &DirNode) -> Result<i32, Errno> {
        if node.identity.dev != self.dev {
            return Err(Errno::EOPNOTSUPP);
        }
        self.mm.check_fork()?;
        let charge = MetadataCharge::before_names(&self.mm, WATCH_BYTES, Duration::ZERO)?;
        let path = node.path_fd()?;
        let new = Watched {
            dir: SlabArc::downgrade(dir),
            _charge: charge,
        };
        // Under the lock: the directory may be that of an inode that goes, and takes the watch along.
        let mut dirs = self.dirs.lock();
        let watch = self.queue.watch(path.as_fd())?;
        let old = dirs.insert(watch, new);
        drop(dirs);
        drop(old);
        Ok(watch)
    }

    /// The inode that had this watch is gone; another one of the same directory keeps it.
    pub(super) fn remove(&self, watch: &AtomicI32) {
        // Relaxed: no other thread has the node any more.
        let watch = watch.load(Ordering::Relaxed);
        if watch <= NOT_WATCHED || self.mm.check_fork().is_err() {
            return;
        }
        let mut dirs = self.dirs.lock();
        let inode = dirs.get(&watch).and_then(|watched| watched.dir.upgrade());
        let old = match inode {
            None => {
                self.queue.remove(watch);
                dirs.remove(&watch)
            }
            Some(_) => None,
        };
        drop(dirs);
        drop((old, inode));
    }

    fn dir_of(&self, watch: i32, ended: bool) -> Option<SlabArc<Inode>> {
        let mut dirs = self.dirs.lock();
        let dir = dirs.get(&watch)?.dir.upgrade();
        let old = ended.then(|| dirs.remove(&watch));
        drop(dirs);
        drop(old);
        dir
    }
}

impl News for Watches {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.queue.fd())
    }

    fn watch(&self, dir: &SlabArc<Inode>) -> bool {
        let node = DirNode::of(dir).ok();
        let Some((node, state)) = node.and_then(|node| Some((node, node.directory()?))) else {
            return false;
        };
        // Acquire: see the module's header.
        match state.watch.load(Ordering::Acquire) {
            NOT_WATCHED => self.add(dir, node, state),
            watch => watch != REFUSED,
        }
    }

    fn could_watch(&self, dir: &SlabArc<Inode>) -> bool {
        let directory = DirNode::of(dir).ok().and_then(DirNode::directory);
        // Relaxed: a thread that misses that it is watched by now asks once more.
        directory.is_some_and(|state| state.watch.load(Ordering::Relaxed) == NOT_WATCHED)
    }

    fn read(&self, tell: &mut dyn FnMut(Told<'_>)) -> bool {
        if self.mm.check_fork().is_err() {
            // They are the parent's to read.
            return true;
        }
        let (mut lost, mut closed) = (false, false);
        let read = self.queue.read(|event| {
            count(&self.events);
            let change = match event.kind {
                EventKind::Name => Change::Name,
                EventKind::NameLost => Change::NameLost,
                EventKind::Attributes | EventKind::Ended => Change::Attributes,
                EventKind::Content => Change::Content,
                EventKind::Overflow => {
                    lost = true;
                    return;
                }
            };
            let ended = event.kind == EventKind::Ended;
            let Some(dir) = self.dir_of(event.watch, ended) else {
                return;
            };
            if let Some(state) = DirNode::of(&dir).ok().and_then(DirNode::directory) {
                if ended {
                    // Release: as in `add`.
                    state.watch.store(REFUSED, Ordering::Release);
                }
                // The right to read the directory may have changed, too.
                if change.is_of_name() || event.name.is_none() {
                    state.listing.names_changed();
                }
            }
            // Modes do not matter to root. Asked now: a process may give that up.
            if event.name.is_none() && !ended && credentials::effective_user() != 0 {
                // This user may not be allowed to go through it any more, so no name below is believed.
                closed = true;
            }
            tell(Told {
                dir: &dir,
                name: event.name,
                change,
            });
        });
        lost |= read.is_err();
        if lost {
            count(&self.overflows);
        }
        !lost && !closed
    }
}
