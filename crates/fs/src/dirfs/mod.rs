//! `dirfs`: a local directory through the cache.
//!
//! # Model
//!
//! ```text
//!  DirFs ──▶ Inodes ──────▶ Inode ──▶ DirNode ──▶ Shared: root descriptor, descriptors by name,
//!                             │          ▲                 engine, counters
//!                             └──▶ AddressSpace (reads and writes the file through its DirNode)
//! ```
//!
//! Their layers are in decision 87.
//!
//! | module | what it does |
//! |---|---|
//! | `inodes` | the inodes in memory, by identity |
//! | `orphans` | numbers of inodes that are gone from the source |
//! | `node` | the identity of a node, where it is, how it is found again |
//! | `descriptors` | the descriptors of a regular file |
//! | `opened` | its descriptors, opened when they are needed |
//! | `file` | operations that the address space of a regular file calls: reads, writeback, flush |
//! | `state` | the state of a regular file; the input of its [coherence](crate::coherence) |
//! | `idle`, `last_close` | closed files that still need their descriptors; the last close of a file |
//! | `directories` | all directories of the process close descriptors where there are none left |
//! | `shortage`, `relief` | open files that give their descriptors up, where there are hardly any left; those that are written back first |
//! | `batch`, `batched` | small new files, made durable many at a time; a file's part in that |
//! | `listing`, `listings` | the entries of a directory, kept; all of them |
//! | `write` | writing a range of a file to the source |
//! | `append_only` | files that are append-only in the source |
//! | `transfer` | direct and buffered I/O, by `preadv` or in the background |
//! | `magic` | kinds of file systems, by number |
//! | `room` | whether the source refuses a write in time when it is full |
//! | `watch` | directories in which the kernel reports changes |
//! | `loss` | reports data that is lost |
//! | `lock` | keeps a second cache from writing to the source |
//! | `held` | the same of files that are used without their directory |
//! | `file_locks` | locks of handles, on files of the source |
//! | `answers`, `attributes` | answers of the source as an inode remembers them; `stat`, `setattr` |
//! | `looks` | asking the source, and acting on the verdict of the [coherence](crate::coherence) |
//! | `replaced` | names that others give to other files |
//! | `ctimes` | change times that were shown of files whose inodes left memory |
//! | `uncached` | directories whose names are read and not cached |
//! | `namespace`, `names`, `stream` | look-up, creation, renames, reading directories: the [`FileSystem`](foliocache_vfs::FileSystem) |
//!
//! # Invariants
//!
//! 1. The source is never left: every name is one component, opened without following links.
//! 2. All but the data of regular files goes straight to the source and is not cached.
//! 3. Data is in the source and durable once fsync returned; nothing else is kept beside it, so
//!    there is nothing to repair after a kill.
//!
//! # Locking
//!
//! Order, see `foliocache_sync::rank`: the names of directories, locked by the caller, then a file's `opens`, then the locks of its
//! address space, then `stamping` or `syncing`, then `Shared::moves` (reading and
//! writing a file may have to find it first), then the attributes, `location`, `io`, and the leaves (the tables).
//! Under `moves` an `opens` is only ever tried, and no address space is called or made.
//!
//! # Memory ordering
//!
//! `next_node` hands out numbers that need only differ: `Relaxed`.

mod answers;
mod append_only;
mod attributes;
mod batch;
mod batched;
mod ctimes;
mod descriptors;
mod directories;
mod file;
mod file_locks;
mod held;
mod identity;
mod idle;
mod inodes;
mod last_close;
mod listing;
mod listings;
mod lock;
mod looks;
mod loss;
mod magic;
mod names;
mod namespace;
mod node;
mod open_files;
mod opened;
mod orphans;
mod path_fds;
mod relief;
mod replaced;
mod room;
mod shortage;
mod state;
mod stats;
mod stream;
mod sync_calls;
#[cfg(test)]
mod tests;
mod times;
mod transfer;
mod uncached;
mod watch;
mod write;
mod writers;
mod written;

pub use loss::LOSS_TARGET;
pub use stats::{DirFsStats, Fallback};

use self::batch::Batches;
use self::ctimes::Ctimes;
use self::held::HeldFiles;
use self::identity::Identity;
use self::idle::IdleFiles;
use self::inodes::Inodes;
use self::listings::Listings;
use self::lock::LockState;
use self::node::{DirNode, Location};
use self::path_fds::PathFds;
use self::shortage::Shortage;
use self::stats::Counters;
use self::sync_calls::{SyncCall, SyncCalls};
use self::watch::Watches;
use self::writers::Writers;
use foliocache_mm::{BackingDevInfo, BdiKind, Mm, MmError};
use foliocache_sync::Arc;
use foliocache_sync::atomic::{AtomicBool, AtomicU64};
use foliocache_sync::durability::Durability;
use foliocache_sync::rank::{Rank, RankedMutex, RankedRwLock};
use foliocache_sys::dir::mount;
use foliocache_sys::fd::{AsFd, KeptFds, OFlags, OwnedFd};
use foliocache_sys::uring::Engine;
use foliocache_sys::{Errno, fd};
use foliocache_vfs::{
    AttrCell, Belief, Generation, Inode, ROOT_INO, SharedSlab, SlabArc, Validity,
};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How soon data of a file is written to the source after its last writer closed it. Then the kernel has it, even if this
/// process dies. It is not durable before [`FileSystem::sync_fs`](foliocache_vfs::FileSystem::sync_fs) or an fsync.
///
/// Small new files are written at their last close in any case: [`DirFsOptions::batch_small_files`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum WritebackAtClose {
    /// The flusher writes it some 50 ms after the close, which does not wait.
    #[default]
    Begin,
    /// The close waits until it is written. Of a mount this is `--writeback close`.
    #[doc(alias = "close")]
    Wait,
    /// It is written when it is old enough, or when memory is short. Younger data is lost with the process.
    Delayed,
}

/// How a directory is to be used. The `DirectoryOptions` of the crate `foliocache` describe each.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DirFsOptions {
    /// Refuse every change with `EROFS`.
    pub read_only: bool,
    /// Have the kernel tell of what others change, where it can.
    #[doc(alias = "inotify")]
    pub watch: bool,
    /// No other process changes the directory while it is open here.
    pub exclusive: bool,
    /// Let the directory be written to though another cache has it open for writing.
    pub ignore_lock: bool,
    /// Leave out what is mounted below the directory, also later: what lies underneath is shown instead, as a bind mount of
    /// the directory shows it.
    pub one_file_system: bool,
    /// How long names and attributes that are not watched are believed. Zero asks each time, and watches nothing.
    pub revalidate_after: Duration,
    /// The same of names that are not there.
    pub revalidate_absent_after: Duration,
    /// Use direct I/O where the source allows it.
    pub direct: bool,
    /// Read in the background through io_uring where the kernel allows it.
    pub io_uring: bool,
    /// Descriptors kept for names at most.
    pub path_descriptors: usize,
    /// Closed files that may wait with open descriptors for their data to be written; by default a share of the
    /// process's soft limit of open files.
    pub idle_files: Option<usize>,
    /// Raise the process's soft limit of open files to the hard one when the directory is opened.
    pub raise_open_files: bool,
    /// Write a small new file to the kernel's cache when it is closed, and make many such files durable together.
    pub batch_small_files: bool,
    /// How soon data of a closed file is in the source.
    pub writeback_at_close: WritebackAtClose,
    /// Files are used one by one: each is locked by itself, see [`DirFs::hold_file`], and the directory is not.
    pub lock_files: bool,
}

impl Default for DirFsOptions {
    fn default() -> DirFsOptions {
        DirFsOptions {
            read_only: false,
            watch: true,
            exclusive: false,
            ignore_lock: false,
            one_file_system: false,
            revalidate_after: Duration::from_secs(1),
            revalidate_absent_after: Duration::ZERO,
            direct: true,
            io_uring: true,
            path_descriptors: 512,
            idle_files: None,
            raise_open_files: false,
            batch_small_files: true,
            writeback_at_close: WritebackAtClose::default(),
            lock_files: false,
        }
    }
}

/// Why a directory cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirFsError {
    /// The directory cannot be opened.
    #[error("cannot open {}: {errno}", .path.display())]
    Open {
        /// The directory.
        path: PathBuf,
        /// Why.
        errno: Errno,
    },
    /// Mounts below the directory cannot be left out.
    #[error(
        "cannot leave out what is mounted below {}: {errno} (it takes CAP_SYS_ADMIN, and Linux 5.12)", .path.display()
    )]
    Submounts {
        /// The directory.
        path: PathBuf,
        /// Why.
        errno: Errno,
    },
    /// Another cache writes to the directory; or it is locked by a child process of one that died, or by another program.
    #[error(
        "{} is open for writing in another cache, of this process or another, or locked by a child process of one that \
         died, or by another program (flock, fcntl): what one cache writes could undo what the other made durable", .path.display()
    )]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// The cache refused it.
    #[error(transparent)]
    Mm(#[from] MmError),
}

impl DirFsError {
    /// The error number.
    pub fn errno(&self) -> Errno {
        match self {
            DirFsError::Open { errno, .. } | DirFsError::Submounts { errno, .. } => *errno,
            DirFsError::Locked { .. } => Errno::EBUSY,
            DirFsError::Mm(error) => error.errno(),
        }
    }
}

/// The state that all nodes of one source share.
struct Shared {
    root: Arc<OwnedFd>,
    /// The source's path, for messages.
    name: String,
    options: DirFsOptions,
    /// Held for reading over a move or removal of names, until the nodes say so; for writing by a walk
    /// to a node that was not found where it was seen last.
    moves: RankedRwLock<{ Rank::Moves as u8 }, ()>,
    path_fds: PathFds,
    permissions: Arc<Generation>,
    belief: Arc<Belief>,
    listings: Arc<Listings>,
    /// `None` where nothing is watched.
    watches: Option<Arc<Watches>>,
    writers: Arc<Writers>,
    /// Memory for those of all nodes.
    attributes: SharedSlab<AttrCell>,
    nodes: SharedSlab<DirNode>,
    /// Reads in the background; `None` without io_uring.
    engine: Option<Arc<Engine>>,
    counters: Counters,
    idle: IdleFiles,
    batches: Option<Batches>,
    sync_calls: SyncCalls,
    ctimes: Ctimes,
    shortage: Shortage,
    /// `None` where the directory is locked.
    held: Option<HeldFiles>,
    /// The source refuses in time what it has no room for.
    room_is_told: bool,
    /// Two changes of a file may have one time, see [`file_locks`].
    has_coarse_stamps: bool,
    /// `RWF_DONTCACHE` is not known. Relaxed everywhere: a thread that misses it is refused once more.
    dont_cache_refused: AtomicBool,
    /// Names and attributes of inodes that were evicted before these were durable.
    forgotten: Durability,
    /// The same on file systems that are mounted below the root.
    forgotten_below: Durability,
    next_node: AtomicU64,
    bdi: Arc<BackingDevInfo>,
}

impl Shared {
    /// Names and attributes that were forgotten of inodes on a device.
    fn forgotten_on(&self, dev: u64) -> &Durability {
        match dev == self.sync_calls.dev {
            true => &self.forgotten,
            false => &self.forgotten_below,
        }
    }

    /// Until when an answer of the source that is asked for now may be believed.
    fn believable_until(&self) -> u64 {
        self.belief.until(self.belief.now(), true)
    }
}

/// A local directory through the cache.
///
/// Cached data counts against the bound of the cache it was opened with. Dropping it writes back
/// what is dirty; [`FileSystem::sync_fs`](foliocache_vfs::FileSystem::sync_fs) before that tells of errors.
pub struct DirFs {
    shared: Arc<Shared>,
    inodes: Arc<Inodes>,
    root: SlabArc<Inode>,
    /// Taken by [`DirFs::lock`]; let go when all was written back.
    lock: RankedMutex<{ Rank::Namespace as u8 }, LockState>,
}

/// A reference of a node: the store behind its address space.
#[derive(Clone)]
struct NodeOps(SlabArc<DirNode>);

impl NodeOps {
    /// As [`DirNode::of`], to be kept.
    fn of(inode: &Inode) -> Result<NodeOps, Errno> {
        inode.private_arc().map(NodeOps).ok_or(Errno::EXDEV)
    }
}

impl Deref for NodeOps {
    type Target = DirNode;

    fn deref(&self) -> &DirNode {
        &self.0
    }
}

fn cannot_open(path: impl Into<PathBuf>, errno: Errno) -> DirFsError {
    let path = path.into();
    DirFsError::Open { path, errno }
}

/// Opens the source's root, without what is mounted below it if it is to be `one_file_system`.
fn open_root(source: &Path, one_file_system: bool) -> Result<OwnedFd, DirFsError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let root = fd::open(source, flags, 0).map_err(|errno| cannot_open(source, errno))?;
    if !one_file_system {
        return Ok(root);
    }
    mount::without_submounts(root.as_fd()).map_err(|errno| {
        let path = source.to_owned();
        DirFsError::Submounts { path, errno }
    })
}

/// The engine for reads in the background, where it is wanted and the kernel allows it.
fn start_engine(wanted: bool, counters: &Counters) -> Option<Arc<Engine>> {
    let engine = match wanted {
        true => Engine::new(),
        false => Err(Errno::EOPNOTSUPP),
    };
    let engine = engine.inspect_err(|&reason| counters.fell_back(Fallback::IoUring, reason));
    engine.ok().map(Arc::new)
}

impl DirFs {
    /// Opens the directory `source` through the cache `mm`.
    ///
    /// # Errors
    /// A source that is no directory or cannot be opened; a cache that cannot start a flusher.
    pub fn open(
        mm: &Arc<Mm>,
        source: &Path,
        mut options: DirFsOptions,
    ) -> Result<DirFs, DirFsError> {
        if options.exclusive {
            options.watch = false;
            options.revalidate_after = Duration::MAX;
            options.revalidate_absent_after = Duration::MAX;
        }
        if options.raise_open_files
            && let Err(errno) = fd::set_open_file_limit(u64::MAX)
        {
            tracing::debug!(%errno, "the limit of open files stays as it is");
        }
        let kept = options.idle_files;
        let kept = Arc::new(kept.map_or_else(KeptFds::for_files, KeptFds::own));
        let root = open_root(source, options.one_file_system)?;
        let stat = fd::fstat(root.as_fd()).map_err(|errno| cannot_open(source, errno))?;
        let name = source.display().to_string();
        let counters = Counters::default();
        let engine = start_engine(options.io_uring, &counters);
        let bdi = BackingDevInfo::new(mm, name.clone(), BdiKind::Storage)?;
        let batches = Batches::new(mm, root.as_fd(), stat.dev.raw(), kept.clone())
            .filter(|_| options.batch_small_files && !options.read_only && !options.lock_files);
        let sync_calls = SyncCalls::new(root.as_fd(), stat.dev.raw());
        let room_is_told = room::is_told(root.as_fd(), stat.dev.raw());
        let has_coarse_stamps = file_locks::has_coarse_stamps(root.as_fd());
        let inodes = Arc::new(Inodes::new(mm, stat.dev.raw()));
        let validity = Validity {
            present: options.revalidate_after,
            absent: options.revalidate_absent_after,
        };
        let watches = match options.watch && !options.revalidate_after.is_zero() {
            true => Watches::new(mm, root.as_fd(), stat.dev.raw()),
            false => Err(Errno::EOPNOTSUPP),
        };
        let watches = watches.ok().map(Arc::new);
        let shortage = Shortage::new(options.exclusive || watches.is_some(), &inodes);
        let held = options.lock_files.then(HeldFiles::default);
        let shared = Arc::new(Shared {
            root: Arc::new(root),
            name,
            moves: RankedRwLock::new(()),
            path_fds: PathFds::new(options.path_descriptors, KeptFds::for_names()),
            permissions: Arc::default(),
            belief: Arc::new(match &watches {
                Some(watches) => Belief::watching(validity, watches.clone()),
                None => Belief::new(validity),
            }),
            listings: Arc::new(Listings::new(mm)),
            watches,
            writers: Arc::new(Writers::new(mm, stat.dev.raw())),
            attributes: SharedSlab::new(mm.clone()),
            nodes: SharedSlab::new(mm.clone()),
            options,
            engine,
            counters,
            idle: IdleFiles::new(kept),
            batches,
            sync_calls,
            ctimes: Ctimes::new(mm),
            shortage,
            held,
            room_is_told,
            has_coarse_stamps,
            dont_cache_refused: AtomicBool::new(false),
            forgotten: Durability::new(),
            forgotten_below: Durability::new(),
            next_node: AtomicU64::new(0),
            bdi,
        });
        directories::register(&shared);
        let root = inodes.find_or_insert(Identity::of(&stat), Some(ROOT_INO), |ino| {
            shared.new_inode(ino, &stat, Location::Root)
        });
        Ok(DirFs {
            shared,
            inodes,
            root,
            lock: RankedMutex::default(),
        })
    }

    /// The file system's part of the cache: dirty accounting, flusher, stored error.
    pub fn bdi(&self) -> &Arc<BackingDevInfo> {
        &self.shared.bdi
    }

    /// The source's path as it was given.
    pub fn source(&self) -> &str {
        &self.shared.name
    }

    /// Counts of its operations, and what was refused.
    pub fn stats(&self) -> DirFsStats {
        let inodes = &self.inodes.cache;
        let watches = self.shared.watches.as_ref();
        DirFsStats {
            engine: self.shared.engine.as_ref().map(|engine| engine.stats()),
            inodes: inodes.len() as u64,
            inodes_uncharged: inodes.uncharged(),
            path_descriptors: self.shared.path_fds.len() as u64,
            watches: watches.map_or(0, |watches| watches.len() as u64),
            watches_refused: watches.map_or(0, |watches| stats::read(&watches.refused)),
            changes_told: watches.map_or(0, |watches| stats::read(&watches.events)),
            watched_files: self.shared.writers.len() as u64,
            changes_lost: watches.map_or(0, |watches| stats::read(&watches.overflows)),
            listing_bytes: self.shared.listings.bytes(),
            kernel_cache_bytes: self.shared.batches.as_ref().map_or(0, Batches::bytes),
            ..self.shared.counters.snapshot()
        }
    }

    /// Makes every file durable, unless writing fails. The log tells what could not be written, or standard error, see
    /// [`LOSS_TARGET`]; [`FileSystem::sync_fs`](foliocache_vfs::FileSystem::sync_fs) returns errors.
    pub fn write_back(&self) {
        // Each file is tried: the errors of one are not those of another.
        let _ = self.sync_files();
        self.tell_unwritten();
    }

    /// Makes everything durable on file systems that are mounted below the root; false if not all of them are found.
    ///
    /// # Errors
    /// The first of `syncfs(2)`.
    fn sync_below(&self) -> Result<bool, Errno> {
        let mut devices = self.inodes.numbers().other_devices();
        if devices.is_empty() {
            return Ok(true);
        }
        let mut result = Ok(());
        let mut sync = |dev: u64, open: &dyn Fn(OFlags) -> Result<OwnedFd, Errno>| {
            if !devices.contains(&dev) {
                return;
            }
            // One that cannot be opened is no longer there, or another will do.
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let Ok(directory) = self.shared.with_room(|| open(flags)) else {
                return;
            };
            if fd::fstat(directory.as_fd()).is_ok_and(|stat| stat.dev.raw() == dev) {
                devices.remove(&dev);
                let calls = &self.shared.sync_calls;
                result = result.and(calls.make(SyncCall::All, &directory, dev));
            }
        };
        for inode in self.inodes.cache.all() {
            let node = DirNode::of(&inode)?;
            if node.directory().is_some() {
                let open = |flags| fd::reopen(node.path_fd()?.as_fd(), flags);
                sync(node.identity.dev, &open);
            }
        }
        // All inodes of one may be evicted.
        for mount in mount::mounts()? {
            let (major, minor) = mount.device;
            let open = |flags| fd::open(&mount.mount_point, flags, 0);
            sync(fd::Device { major, minor }.raw(), &open);
        }
        result.map(|()| devices.is_empty())
    }

    /// Writes back and flushes every file, all of them at once where that can be.
    fn sync_files(&self) -> Result<(), Errno> {
        let mut result = Ok(());
        for (mapping, errno) in self.shared.bdi.sync() {
            let file = mapping.name();
            tracing::error!(file, %errno, "could not be written back");
            result = result.and(Err(errno));
        }
        result
    }
}

impl Drop for DirFs {
    fn drop(&mut self) {
        if self.shared.bdi.mm().check_fork().is_err() {
            return;
        }
        let _ = self.sync_files();
        if let Some(batches) = &self.shared.batches {
            batches.stop();
        }
        self.shared.bdi.stop();
        // The list of dirty files and the file system hold each other.
        self.lose();
        // Children hold their parents: let go of them here rather than in a recursion as deep as
        // the tree.
        for inode in self.inodes.cache.all() {
            if let Ok(node) = DirNode::of(&inode) {
                node.detach();
            }
        }
        if let Some(held) = &self.shared.held {
            held.forget_all();
        }
    }
}
