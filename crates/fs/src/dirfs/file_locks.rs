//! Locks of a handle, on the file in the source.
//!
//! # Model
//!
//! ```text
//!  lock     another process may have written ──▶ the source is looked at, as at an open
//!  unlock   the next holder reads the source  ──▶ what is dirty is written to it first
//! ```
//!
//! The kernel's locks are of an open file description. The descriptors of a file are shared by its handles and given up when it is
//! idle, so a handle that locks has one more, of its own, until it is closed.
//!
//! **Writes of others** before the lock was taken are seen after it. Usually no data of ours waits then, since it was written at the
//! last unlock, and a `statx` shows their writes. Data that is written and not durable yet cannot be dropped: if the medium refuses
//! it, we have to write it again. So if others wrote meanwhile, ours is made durable before theirs is taken over.
//!
//! Most file systems stamp changes finely once a program has asked for the times (Linux 6.13). Where they do not, two changes of one clock
//! tick look like one: then a file counts as written by others until it was looked at when its last change was older than a tick.
//!
//! **Threads of this process that go on writing** neither keep a lock from being had nor hide what others wrote. A look that a
//! write-back has overtaken is made again between two of them ([`quiet`](super::state)). If others wrote, ours is made
//! durable and the cached pages are dropped; where more of ours is written meanwhile, that is done once more with writers held off
//! ([`AddressSpace::hold_off_writers`]).
//!
//! # Locking
//!
//! No lock is held while the kernel's is waited for, nor over the write. The look takes `opens`.
//!
//! # Memory ordering
//!
//! `exclusive` is `Relaxed`: a thread that unlocks for another was told by it that there is a lock.

use super::magic::{BTRFS, EXT4, TMPFS, XFS};
use super::open_files::OpenFile;
use super::{NodeOps, Shared};
use crate::coherence::{Answer, Verdict, nanoseconds};
use foliocache_mm::{AddressSpace, SlabArc};
use foliocache_sync::atomic::{AtomicBool, Ordering};
use foliocache_sync::time::realtime;
use foliocache_sys::Errno;
use foliocache_sys::fd::{self, AsFd, BorrowedFd, LockKind, OFlags, OwnedFd, Stat};
use foliocache_vfs::{Contended, FileLocks, OpenFlags};
use std::ops::Range;

/// The byte of a file by which it is [held](super::held): no lock of a handle goes up to it.
pub(super) const FILE: u64 = i64::MAX as u64 - 1;

/// How often it is tried to take over what others wrote. From the second time on no thread of this process writes beside it.
const ATTEMPTS: u32 = 4;

/// File systems whose stamps tell two changes apart if the file was looked at between them.
const FINE_STAMPS: [u64; 4] = [EXT4, XFS, BTRFS, TMPFS];

/// The first kernel that has such file systems.
const FINE_SINCE: (u32, u32) = (6, 13);

/// Two clock ticks where they are longest, in nanoseconds.
const TICKS: u64 = 20_000_000;

/// Whether two changes of a file may have one stamp, though the file was looked at between them.
pub(super) fn has_coarse_stamps(root: BorrowedFd<'_>) -> bool {
    let release = fd::kernel_release();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|number| number.parse().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let known = fd::fs_magic(root).is_ok_and(|magic| FINE_STAMPS.contains(&magic));
    version < FINE_SINCE || !known
}

/// A range without the bytes at the largest offsets, by which caches keep each other out.
fn of_programs(range: &Range<u64>) -> Range<u64> {
    range.start..range.end.min(FILE)
}

/// The locks of one handle.
pub(super) struct Locks {
    node: NodeOps,
    fd: OwnedFd,
    /// It has had an exclusive lock, of the file or of a range.
    exclusive: AtomicBool,
    _counted: OpenFile,
}

impl Locks {
    /// None yet, of a handle that was opened with `flags`.
    ///
    /// Context: no lock held; may block on I/O.
    ///
    /// # Errors
    /// As [`DirNode::open`](super::node::DirNode::open); `EMFILE` if hardly a descriptor is left.
    pub(super) fn new(node: &NodeOps, flags: OpenFlags) -> Result<Locks, Errno> {
        let shared = &node.shared;
        shared.relieve()?;
        let open = |how| {
            shared.with_room(|| {
                let (fd, _) = node.open(how)?;
                match shared.shortage.is_one_too_many(fd.as_fd()) {
                    true => Err(Errno::EMFILE),
                    false => Ok(fd),
                }
            })
        };
        let fd = match flags.write {
            false => open(OFlags::RDONLY),
            true => match open(OFlags::RDWR) {
                Err(Errno::EPERM) => open(OFlags::RDWR | OFlags::APPEND),
                Err(Errno::EACCES) if !flags.read => open(OFlags::WRONLY),
                opened => opened,
            },
        };
        Ok(Locks {
            node: node.clone(),
            fd: fd?,
            exclusive: AtomicBool::new(false),
            _counted: OpenFile::new(),
        })
    }

    /// Has the source get what was written under the lock that is about to end.
    fn publish(&self) -> Result<(), Errno> {
        // Relaxed: see the module's header.
        let written = self.exclusive.load(Ordering::Relaxed)
            && !foliocache_sync::planted!(unlocked_before_written);
        match written {
            true => self.node.write_and_wait(),
            false => Ok(()),
        }
    }

    /// The kernel gave a lock.
    fn locked(&self, kind: LockKind) -> Result<(), Errno> {
        if kind == LockKind::Exclusive {
            // Relaxed: see the module's header.
            self.exclusive.store(true, Ordering::Relaxed);
        }
        let has_no_others = self.node.shared.options.exclusive;
        if has_no_others || foliocache_sync::planted!(locked_without_a_look) {
            return Ok(());
        }
        // Data that another thread wrote without a lock goes first.
        self.node.write_and_wait()?;
        self.node
            .see_others(|| fd::fstat(self.fd.as_fd()))
            .map(drop)
    }
}

/// Takes a range's locks away, or the file's.
fn unlock(fd: BorrowedFd<'_>, range: Option<Range<u64>>) -> Result<(), Errno> {
    range.map_or_else(|| fd::unlock(fd), |range| fd::unlock_range(fd, &range))
}

impl FileLocks for Locks {
    fn lock(
        &self,
        range: Option<&Range<u64>>,
        kind: LockKind,
        contended: Contended,
    ) -> Result<(), Errno> {
        let (fd, range) = (self.fd.as_fd(), range.map(of_programs));
        if kind == LockKind::Shared {
            self.publish()?;
        }
        match (&range, contended) {
            (None, Contended::Wait) => fd::lock(fd, kind),
            (None, Contended::Fail) => fd::try_lock(fd, kind),
            (Some(range), Contended::Wait) => fd::lock_range(fd, range, kind),
            (Some(range), Contended::Fail) => fd::try_lock_range(fd, range, kind),
        }?;
        self.locked(kind).inspect_err(|_| _ = unlock(fd, range))
    }

    fn unlock(&self, range: Option<&Range<u64>>) -> Result<(), Errno> {
        self.publish()?;
        unlock(self.fd.as_fd(), range.map(of_programs))
    }

    fn is_range_locked(&self, range: &Range<u64>, kind: LockKind) -> Result<bool, Errno> {
        fd::is_range_locked(self.fd.as_fd(), &of_programs(range), kind)
    }
}

impl Drop for Locks {
    fn drop(&mut self) {
        if let Err(error) = self.publish() {
            let file = self.node.display_path();
            tracing::warn!(file, %error, "unlocked before all was written: others do not see it yet");
        }
        // A fork's child may have the descriptor still.
        let fd = self.fd.as_fd();
        let _ = fd::unlock(fd);
        let _ = fd::unlock_range(fd, &(0..u64::MAX));
    }
}

impl NodeOps {
    /// Takes over the writes of others to the source by now; returns whether there were any. Data of ours that is written is made
    /// durable before. If threads of this process go on writing, they wait until it is done.
    ///
    /// Context: no lock held; may block on I/O.
    ///
    /// # Errors
    /// Those of `ask` and of the source; `EBUSY` if what they wrote cannot be taken over, because of pins, or of stores through mappings
    /// that go on.
    fn see_others(&self, ask: impl Fn() -> Result<Stat, Errno>) -> Result<bool, Errno> {
        let file = self.file();
        let mapping = file.mapping();
        let mut held_off = None;
        let mut left = ATTEMPTS;
        while left > 0 {
            if !self.shows_others(&ask)? {
                return Ok(false);
            }
            if let Some(mapping) = mapping.as_ref().filter(|mapping| mapping.is_dirty()) {
                mapping.sync()?;
            }
            let opens = file.opens.lock();
            let look = file.look();
            match self.revalidate(Some(&opens), &ask)? {
                Verdict::AttributesStale | Verdict::DataStale => return Ok(true),
                Verdict::Valid => return Ok(false),
                Verdict::Ask | Verdict::KeepOurs | Verdict::Unsure | Verdict::GoneButOpen => {}
            }
            drop(opens);
            // Attributes may change beside it, or times, which is soon over.
            left -= u32::from(held_off.is_none() || file.holds(look));
            held_off = held_off.or_else(|| Some(mapping.as_ref()?.hold_off_writers()));
        }
        Err(Errno::EBUSY)
    }

    /// Whether others may have written to the source since it was compared. A look that a change of ours has overtaken is made
    /// again, between changes.
    fn shows_others(&self, ask: impl Fn() -> Result<Stat, Errno>) -> Result<bool, Errno> {
        let file = self.file();
        let shows = |asked| -> Result<Option<bool>, Errno> {
            let stat = ask()?;
            let answer = Answer::new(asked, None, &stat);
            let coarse = self.shared.coarse_stamp(nanoseconds(stat.mtime));
            let verdict = file.coherence(|machine| machine.answer_under_lock(&answer, coarse));
            Ok((verdict != Verdict::Unsure).then_some(verdict != Verdict::Valid))
        };
        let mut shown = shows(file.look())?;
        loop {
            match shown {
                Some(shown) => return Ok(shown),
                None => shown = file.look_between_changes(shows)?,
            }
        }
    }

    /// Looks at the source as an open does: whether others changed the file, and that was taken over. While something of ours
    /// waits to be written, ours holds. An open file that others replaced stays the one that was opened.
    ///
    /// Context: no lock held; may block on I/O.
    ///
    /// # Errors
    /// As [`NodeOps::see_others`].
    pub(super) fn see_others_unless_unwritten(&self) -> Result<bool, Errno> {
        let has_unwritten = |mapping: SlabArc<AddressSpace>| mapping.has_unwritten();
        if self.shared.options.exclusive || self.file().mapping().is_some_and(has_unwritten) {
            return Ok(false);
        }
        match self.see_others(|| self.stat()) {
            Err(Errno::ESTALE) => Ok(false),
            seen => seen,
        }
    }
}

impl Shared {
    /// Where two changes may have one stamp: whether a change from now on has another than this one, in nanoseconds.
    fn coarse_stamp(&self, stamp: i64) -> Option<bool> {
        (self.has_coarse_stamps).then(|| nanoseconds(realtime()).abs_diff(stamp) > TICKS)
    }
}
