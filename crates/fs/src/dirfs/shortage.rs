//! When the process has nearly as many descriptors as it may have: files that are open give theirs up.
//!
//! # Model
//!
//! ```text
//!  number of a new descriptor, of the limit of the process
//!  0 ───────────── 1/4 ──────────────────── 7/8 ────────────── 15/16 ─────── all
//!      stays open       in line to give way      idle ones do        no file is opened,
//!                                                                     if none can
//! ```
//!
//! The kernel gives a new descriptor the lowest free number, so the number shows how many there are. In most processes the limit is so
//! high that no file gets in line.
//!
//! A file that is open and idle, and can be found again by its name, gives up its descriptors, and opens again where it needs
//! them. Idle is a file with nothing to write, nothing to flush and no call under way, whose times are set. Where too few are
//! idle, an open of a file, or a first write to one that gave way, makes some of them so: it writes them back.
//! A sixteenth of the limit is left to operations that need a descriptor for a moment: walks, listings, changes of names. So
//! at the limit only opens are refused.
//!
//! Only with `CAP_DAC_OVERRIDE`, since others might not be allowed to open the file again, and where a first write is
//! announced ([`may_have_changed`](DirNode::may_have_changed)), or no other process moves files: a file with data to write has a
//! descriptor, since its name might be moved.
//!
//! Descriptors of locks ([`file_locks`](super::file_locks)) never give way. They are refused from seven eighths of the limit on.
//!
//! # Invariants
//!
//! 1. A file with unflushed data keeps its descriptors: they have the kernel's report of an error.
//! 2. Each file of the line was given a descriptor since it got in. The line is bounded by twice the limit.
//!
//! # Locking
//!
//! The lock of the line is a leaf. The locks of files that give way are only tried, but by [`Shared::relieve`], whose caller holds none.
//!
//! # Memory ordering
//!
//! `is_tight` is a hint, `Relaxed`: a caller that misses it fails as it would have without.

use super::Shared;
use super::descriptors::Descriptors;
use super::directories::CloseUnneeded;
use super::identity::Identity;
use super::inodes::Inodes;
use super::node::DirNode;
use super::open_files::OpenFile;
use super::transfer;
use foliocache_sync::atomic::{AtomicBool, Ordering};
use foliocache_sync::rank::LeafMutex;
use foliocache_sync::{Arc, Weak};
use foliocache_sys::fd::{AsFd, BorrowedFd};
use foliocache_sys::{credentials, fd};
use foliocache_vfs::{Inode, SlabArc};
use std::collections::VecDeque;
use std::os::fd::AsRawFd;
/// Most open files of a directory that give way where a descriptor is refused.
const GIVE_WAY: usize = 64;

/// The answer of a file that was asked to give way.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// It did.
    Gave,
    /// It cannot now.
    Busy,
    /// It has no descriptor, it is closed, or it cannot be found again.
    Left,
}

/// See the module's header.
pub(super) struct Shortage {
    /// Most descriptors of the process.
    pub(super) limit: usize,
    /// Files may give way.
    may: bool,
    /// The files in memory.
    inodes: Weak<Inodes>,
    line: LeafMutex<VecDeque<Identity>>,
    /// Fewer gave way than were asked for.
    pub(super) is_tight: AtomicBool,
}

impl Shortage {
    /// For files of which the first write is announced, or which no other process moves, if `is_told`.
    /// The files of the line are found in `inodes`.
    pub(super) fn new(is_told: bool, inodes: &Arc<Inodes>) -> Shortage {
        Shortage {
            limit: usize::try_from(fd::open_file_limit()).unwrap_or(usize::MAX),
            may: is_told && credentials::overrides_modes(),
            inodes: Arc::downgrade(inodes),
            line: LeafMutex::default(),
            is_tight: AtomicBool::new(false),
        }
    }

    /// The files in memory; `None` once the file system is gone.
    pub(super) fn inodes(&self) -> Option<Arc<Inodes>> {
        self.inodes.upgrade()
    }

    /// Whether descriptors are short if the last one has this number.
    pub(super) fn is_short(&self, number: usize) -> bool {
        number >= self.limit / 8 * 7
    }

    /// Whether a descriptor that never gives way is among the last, which are left to others.
    pub(super) fn is_one_too_many(&self, fd: BorrowedFd<'_>) -> bool {
        OpenFile::count() >= self.limit / 4 && self.is_short(fd.as_raw_fd() as usize)
    }

    /// Whether a file had better do with one descriptor.
    pub(super) fn spares(&self, fds: &Descriptors) -> bool {
        self.may && self.is_short(number(fds))
    }

    pub(super) fn tight(&self, tight: bool) {
        // Relaxed: see the module's header.
        self.is_tight.store(tight, Ordering::Relaxed);
    }

    /// The first in line, while it is found in memory.
    pub(super) fn pop(&self) -> Option<(Identity, Option<SlabArc<Inode>>)> {
        let identity = self.line.lock().pop_front()?;
        let inodes = self.inodes();
        Some((identity, inodes.and_then(|inodes| inodes.find(&identity))))
    }

    pub(super) fn push(&self, identity: Identity) {
        let mut line = self.line.lock();
        line.push_back(identity);
        let is_long = line.len() > self.limit.saturating_mul(2);
        drop(line);
        if is_long {
            self.shorten();
        }
    }

    /// Takes those out of the line that have no descriptors.
    fn shorten(&self) {
        let all = std::mem::take(&mut *self.line.lock());
        let Some(inodes) = self.inodes() else {
            return;
        };
        let mut seen = std::collections::HashSet::new();
        let has_one = |inode: &SlabArc<Inode>| {
            let file = DirNode::of(inode).ok().and_then(DirNode::regular);
            file.is_some_and(|file| file.any_fd().is_some())
        };
        let stays = |identity: &Identity| {
            inodes.find(identity).as_ref().is_some_and(has_one) && seen.insert(*identity)
        };
        let kept: Vec<_> = all.into_iter().filter(stays).collect();
        self.line.lock().extend(kept);
    }
}

fn number(fds: &Descriptors) -> usize {
    fds.buffered.as_raw_fd() as usize
}

impl CloseUnneeded for Shared {
    fn close_unneeded(&self) {
        self.path_fds.clear();
        self.close_all_idle();
        self.give_way(GIVE_WAY);
    }
}

impl Shared {
    /// Makes up to `wanted` idle files give up their descriptors; returns how many did. Waits for no lock.
    pub(super) fn give_way(&self, wanted: usize) -> usize {
        let shortage = &self.shortage;
        let (mut given, len) = (0, shortage.line.lock().len());
        for _ in 0..len {
            if given == wanted {
                break;
            }
            let Some((identity, found)) = shortage.pop() else {
                break;
            };
            let node = found.as_deref().and_then(|inode| DirNode::of(inode).ok());
            match node.map_or(Asked::Left, DirNode::give_up_descriptors) {
                Asked::Gave => given += 1,
                Asked::Busy => shortage.push(identity),
                Asked::Left => {}
            }
        }
        shortage.tight(shortage.may && given < wanted);
        given
    }
}

impl DirNode {
    /// The file was given descriptors: it gets in line where there are many, and others give way where there are too many.
    pub(super) fn stand_in_line(&self, fds: &Descriptors) {
        let shortage = &self.shared.shortage;
        let number = number(fds);
        if !shortage.may || number < shortage.limit / 4 {
            return;
        }
        shortage.push(self.identity);
        if shortage.is_short(number) {
            self.shared.give_way(shortage.limit / 16);
        }
    }

    /// Closes the descriptors of an open file if it is idle and can be found again. Waits for no lock.
    pub(super) fn give_up_descriptors(&self) -> Asked {
        let Some(file) = self.regular() else {
            return Asked::Left;
        };
        let Some(opens) = file.opens.try_lock() else {
            return Asked::Busy;
        };
        // One without handles waits in another line.
        if opens.handles == 0 || self.is_unlinked() || self.named().is_none() {
            return Asked::Left;
        }
        let dirty = file.mapping().is_some_and(|mapping| mapping.is_dirty());
        if dirty {
            return Asked::Busy;
        }
        let mut io = file.io.lock();
        let Some(fds) = &io.fds else {
            return Asked::Left;
        };
        let in_use = Arc::strong_count(fds) > 1 || fds.is_in_use();
        // One that is append-only is written in another way than it would be if it were opened when it is written.
        let waits = fds.appends || file.unflushed() || !file.times.is_durable();
        if in_use
            || waits
            || io.coherence.under_way() != 0
            || io.marked.is_some()
            || io.error.is_some()
        {
            return Asked::Busy;
        }
        let (fds, cached) = (io.fds.take(), io.cached.take());
        drop(io);
        // A file that is all cached stays readable though others may give the name to another file.
        if let Some(mapping) = file.mapping()
            && !mapping.rely_on_pages()
        {
            mapping.end_reliance();
        }
        if let Some((fds, cached)) = fds.as_ref().zip(cached) {
            transfer::drop_behind(fds.buffered.as_fd(), cached);
        }
        drop(fds);
        Asked::Gave
    }
}
