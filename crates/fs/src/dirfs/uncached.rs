//! Directories of the source that are read without their names being cached.
//!
//! # Model
//!
//! ```text
//!  Top ── the directory where the pass began: an inode
//!   └── Uncached ── a directory at or below it: a path of components, a descriptor while it is needed
//! ```
//!
//! A directory is opened from the descriptor of the one that it was found in, and its names are asked for by its own. So the
//! calls for a name are those of any program that reads directories: one `statx`. The inode in
//! memory is asked too, since its size and times may be newer than the source's.
//!
//! # Invariants
//!
//! 1. A descriptor is that of the directory that was opened: one that is opened again has its identity.
//! 2. Below one top at most [`KEPT`] directories have a descriptor, besides those that are read just now. A directory
//!    beyond that is opened again from the top, component by component, without following a link.
//!
//! # Locking
//!
//! A directory has a lock of rank [`Stream`](Rank::Stream), held while it is read: callers take turns.
//!
//! # Memory ordering
//!
//! `open` decides only how many descriptors are kept: `Relaxed`.

use super::identity::Identity;
use super::inodes::Inodes;
use super::node::DirNode;
use super::stats::{add, count};
use super::{DirFs, Shared};
use foliocache_sync::Arc;
use foliocache_sync::atomic::{AtomicUsize, Ordering};
use foliocache_sync::rank::{Rank, RankedMutex};
use foliocache_sys::fd::{self, AsFd, BorrowedFd, OFlags, OwnedFd};
use foliocache_sys::{Errno, dir};
use foliocache_vfs::{Attr, Entries, Inode, InodeOperations, SlabArc, UncachedDir};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Descriptors of directories that are kept below one top.
const KEPT: usize = 64;

/// Entries that are read at once, about: as many as come with the call that reaches it.
const BATCH: usize = 1024;

/// Bytes of entries that are read by a call. The kernel hands out no more at once on most file systems.
const BUFFER: usize = 32 << 10;

const FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// Where a pass began.
struct Top {
    shared: Arc<Shared>,
    inodes: Arc<Inodes>,
    inode: SlabArc<Inode>,
    /// Directories at or below it that have a descriptor.
    open: AtomicUsize,
}

/// See the module's header.
pub(super) struct Uncached {
    top: Arc<Top>,
    /// From the top.
    path: PathBuf,
    identity: Identity,
    attr: Attr,
    state: RankedMutex<{ Rank::Stream as u8 }, State>,
}

struct State {
    /// None while it is closed.
    fd: Option<Arc<OwnedFd>>,
    /// Where reading goes on.
    offset: u64,
    ended: bool,
}

impl Uncached {
    /// # Errors
    /// Those of `openat(2)`.
    pub(super) fn open(fs: &DirFs, inode: &SlabArc<Inode>) -> Result<Uncached, Errno> {
        let path_fd = fs.directory(inode)?;
        let reopen = || fd::reopen(path_fd.as_fd(), FLAGS);
        let fd = fs.shared.with_room(reopen)?;
        let top = Arc::new(Top {
            shared: fs.shared.clone(),
            inodes: fs.inodes.clone(),
            inode: inode.clone(),
            open: AtomicUsize::new(0),
        });
        let mut opened = Self::new(&top, PathBuf::new(), fd)?;
        opened.attr.ino = inode.ino();
        Ok(opened)
    }

    fn new(top: &Arc<Top>, path: PathBuf, fd: OwnedFd) -> Result<Uncached, Errno> {
        let stat = fd::fstat(fd.as_fd())?;
        count(&top.shared.counters.directories_read);
        // Relaxed: see the module's header.
        top.open.fetch_add(1, Ordering::Relaxed);
        Ok(Uncached {
            top: top.clone(),
            path,
            identity: Identity::of(&stat),
            attr: top.shared.not_cached(&top.inodes, &stat),
            state: RankedMutex::new(State {
                fd: Some(Arc::new(fd)),
                offset: 0,
                ended: false,
            }),
        })
    }

    /// A descriptor of the directory.
    fn fd(&self, state: &State) -> Result<Arc<OwnedFd>, Errno> {
        let shared = &self.top.shared;
        shared.bdi.mm().check_fork()?;
        if let Some(fd) = &state.fd {
            return Ok(fd.clone());
        }
        let mut at = DirNode::of(&self.top.inode)?.path_fd()?;
        for name in &self.path {
            let open = || dir::openat(at.as_fd(), name, OFlags::PATH | OFlags::DIRECTORY, 0);
            at = Arc::new(shared.with_room(open)?);
        }
        if Identity::of(&fd::fstat(at.as_fd())?) != self.identity {
            return Err(Errno::ESTALE);
        }
        Ok(Arc::new(
            shared.with_room(|| fd::reopen(at.as_fd(), FLAGS))?,
        ))
    }

    /// Closes the directory's descriptor if there are more than are kept.
    fn limit(&self, state: &mut State) {
        // Relaxed: see the module's header.
        if self.top.open.load(Ordering::Relaxed) > KEPT {
            self.close(state);
        }
    }

    fn close(&self, state: &mut State) {
        if state.fd.take().is_some() {
            // Relaxed: see the module's header.
            self.top.open.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The attributes of what is under `name`; counts in `known` what is in memory.
    fn attributes(&self, fd: BorrowedFd<'_>, name: &OsStr, known: &mut u64) -> Result<Attr, Errno> {
        let Top { shared, inodes, .. } = &*self.top;
        let stat = dir::fstatat(fd, name)?;
        let mut attr = shared.not_cached(inodes, &stat);
        let Some(inode) = inodes.find(&Identity::of(&stat)) else {
            return Ok(attr);
        };
        *known += 1;
        let node = DirNode::of(&inode)?;
        let shown = match node.cached_attr(&inode, shared.belief.now(), &mut attr) {
            true => Ok(attr),
            false => node.getattr(&inode),
        };
        Inode::put(inode);
        shown
    }

    fn fill(&self, state: &mut State, entries: &mut Entries) -> Result<(), Errno> {
        let fd = self.fd(state)?;
        let fd = fd.as_fd();
        if state.fd.is_none() {
            dir::seek(fd, state.offset)?;
        }
        let mut buf = vec![0; BUFFER];
        while entries.len() < BATCH && !state.ended {
            let filled = match dir::read_entries(fd, &mut buf) {
                // A directory that was removed has no entries.
                Err(Errno::ENOENT) => 0,
                // The next read meets the error again, after these entries.
                Err(_) if !entries.is_empty() => break,
                filled => filled?,
            };
            state.ended = filled == 0;
            for entry in dir::entries(&buf[..filled]) {
                let entry = entry?;
                state.offset = entry.next_offset;
                if entry.name != "." && entry.name != ".." {
                    entries.push(entry.ino, entry.kind, entry.name);
                }
            }
        }
        let mut known = 0;
        entries.ask(|name| self.attributes(fd, name, &mut known));
        let counters = &self.top.shared.counters;
        add(&counters.uncached_names, entries.len() as u64);
        add(&counters.uncached_names_known, known);
        Ok(())
    }
}

impl Shared {
    /// The attributes of a file whose inode is not in memory.
    fn not_cached(&self, inodes: &Inodes, stat: &fd::Stat) -> Attr {
        let number = inodes.numbers().of(stat.dev.raw(), stat.ino);
        self.found(stat).of(number.unwrap_or(stat.ino), stat.kind)
    }
}

impl UncachedDir for Uncached {
    fn attr(&self) -> Attr {
        self.attr
    }

    fn read(&self, entries: &mut Entries) -> Result<(), Errno> {
        entries.clear();
        let mut state = self.state.lock();
        if state.ended {
            return Ok(());
        }
        let filled = self.fill(&mut state, entries);
        state.ended |= filled.is_err();
        self.limit(&mut state);
        filled
    }

    fn open(&self, name: &OsStr) -> Result<Box<dyn UncachedDir>, Errno> {
        let fd = self.fd(&self.state.lock())?;
        let open = || dir::openat(fd.as_fd(), name, FLAGS, 0);
        let opened = self.top.shared.with_room(open)?;
        let path = self.path.join(Path::new(name));
        Ok(Box::new(Self::new(&self.top, path, opened)?))
    }
}

impl Drop for Uncached {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        self.close(&mut state);
    }
}
