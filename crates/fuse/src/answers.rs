//! Answers with attributes, of which the kernel keeps the one that comes first.
//!
//! # Model
//!
//! The kernel ignores the attributes of an answer if it has entered others of that inode since it sent the request. So of two answers
//! whose requests overlap it keeps those that come first, and they may be the older ones:
//!
//! ```text
//!   listing   .t is file 5, half written ─────── reply ──▶ the kernel enters: file 5, half written
//!   others         they finish file 5, and call it v
//!   look-up                  v is file 5, whole ──────────────▶ the kernel ignores the attributes
//! ```
//!
//! The program that looked `v` up would then find a file that is half written by `fstat`, until the kernel is told of the change. Two
//! names of a file in one listing overlap in the same way.
//!
//! So each node notes the last answer. Another one may contradict what the kernel has not entered yet:
//!
//! - if it differs from one that was believed less than [`TTL`] ago, unless the same thread got that: a thread has entered what it was told
//!   before it asks again;
//! - if the same thread got two different answers, for other threads: they may have asked before it entered the first one.
//!
//! Then a thread of the mount first tells the kernel that the attributes of the inode are stale: from then on the kernel ignores all
//! answers that are under way, this one too. If the kernel does not know the inode yet, an answer that introduces it is on its way, so
//! the thread tries again until it does, but no longer than [`PATIENCE`]: the kernel may have to wait for the answer that waits here.
//!
//! An answer whose attributes began to be looked up before a different one was given may be older, and is not believed.
//!
//! # Invariants
//!
//! 1. No answer with other attributes is given while the kernel may still enter ones that it would believe, unless it was told that they are stale.
//! 2. A listing that waits here has told the kernel of no inode, so that two listings do not wait for each other.
//!
//! # Locking
//!
//! `state` is a leaf. The kernel is told with no lock held, by a thread that serves no requests: to find the inode, the kernel may wait
//! until it has written the pages of an inode that it drops, which are requests to this mount.
//!
//! # Memory ordering
//!
//! [`Changes`] is loaded with `Acquire` before attributes are looked up, and counted with `AcqRel` when an answer is noted, after its
//! attributes were looked up: an answer whose count is as high did not look earlier than that one.

use crate::entry::TTL;
use foliocache_sync::Condvar;
use foliocache_sync::atomic::{AtomicU32, Ordering};
use foliocache_sync::rank::LeafMutex;
use foliocache_sync::time::{Duration, Instant};
use foliocache_sys::clock::coarse_monotonic_ms;
use fuser::FileAttr;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;

/// How long an answer waits until the kernel knows that earlier ones are stale.
const PATIENCE: Duration = Duration::from_millis(20);

/// How long the thread waits before it tells the kernel again of an inode that it did not know.
const PAUSE: Duration = Duration::from_millis(1);

/// Attributes, without those that change although nobody changes the file: the time of the last read, and blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Print(u32);

impl Print {
    pub(crate) fn of(attr: &FileAttr) -> Print {
        let mut hasher = DefaultHasher::new();
        (attr.size, attr.mtime, attr.ctime, attr.kind, attr.perm).hash(&mut hasher);
        (attr.nlink, attr.uid, attr.gid, attr.rdev).hash(&mut hasher);
        Print((hasher.finish() >> 32) as u32)
    }
}

/// How often answers differed from those before, of all inodes.
#[derive(Debug, Default)]
pub(crate) struct Changes(AtomicU32);

/// A count of [`Changes`]. It may wrap around: the later one of two is less than half the way ahead.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moment(u32);

impl Changes {
    pub(crate) fn now(&self) -> Moment {
        // Acquire: see the module's header.
        Moment(self.0.load(Ordering::Acquire))
    }

    fn next(&self) -> Moment {
        // AcqRel: see the module's header.
        Moment(self.0.fetch_add(1, Ordering::AcqRel).wrapping_add(1))
    }
}

/// A request for attributes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// The attributes were looked up later.
    pub(crate) began: Moment,
    /// The thread that asked, as the kernel calls it; 0 if the kernel does not say.
    pub(crate) thread: u32,
    /// This reply has told of no inode yet: the thread has entered what it was told before.
    pub(crate) is_first: bool,
}

/// The last answer about an inode.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Answered {
    print: Print,
    /// In milliseconds; those that a timer counts.
    at: u32,
    /// The last moment at which it differed from the one before, if that was recent.
    changed: Moment,
    /// The thread that got the believed answer; 0 if there are several.
    thread: u32,
    /// It or an equal one before it is believed.
    believed: bool,
    /// A different one before it was believed. `thread` has entered it, perhaps after other threads asked.
    replaces: bool,
}

impl Answered {
    /// Notes another answer, which is to be `believed` or not. Returns whether the kernel may believe it; none, with nothing noted,
    /// if the kernel must first be told that earlier ones are stale.
    pub(crate) fn next(
        &mut self,
        changes: &Changes,
        print: Print,
        believed: bool,
        asked: Asked,
    ) -> Option<bool> {
        let Asked { began, thread, .. } = asked;
        let at = coarse_monotonic_ms() as u32;
        let is_recent = u128::from(at.wrapping_sub(self.at)) < TTL.as_millis()
            && !foliocache_sync::planted!(older_attributes_stay);
        let may_be_older = is_recent && (self.changed.0.wrapping_sub(began.0) as i32) > 0;
        let differs = self.print != print;
        let is_same_thread = self.thread == thread && thread != 0 && asked.is_first;
        let replaces = is_recent && (self.replaces || differs && self.believed);
        if replaces && !is_same_thread {
            return None;
        }
        let believed = believed && !may_be_older;
        let was_believed = is_recent && !differs && self.believed;
        *self = Answered {
            print,
            at,
            changed: match (differs, is_recent) {
                (true, _) => changes.next(),
                (false, true) => self.changed,
                (false, false) => began,
            },
            thread: match (was_believed, believed) {
                (true, true) if !is_same_thread => 0,
                (true, false) => self.thread,
                _ => thread,
            },
            believed: believed || was_believed,
            replaces,
        };
        Some(believed)
    }

    /// Notes an answer that differs and is not believed, after the kernel was told that those before are stale.
    pub(crate) fn unbelieved(&mut self, changes: &Changes, print: Print) {
        *self = Answered {
            print,
            at: coarse_monotonic_ms() as u32,
            changed: changes.next(),
            thread: 0,
            believed: false,
            replaces: false,
        };
    }
}

#[derive(Default)]
struct State {
    /// Inodes whose attributes are stale, and when that was said.
    inodes: HashMap<u64, u64>,
    said: u64,
    stopped: bool,
}

impl State {
    /// An inode need no longer be told, unless it was said again.
    fn withdraw(&mut self, ino: u64, said: u64) {
        if self.inodes.get(&ino) == Some(&said) {
            self.inodes.remove(&ino);
        }
    }
}

/// Tells the kernel that attributes are stale.
#[derive(Default)]
pub(crate) struct Stale {
    state: LeafMutex<State>,
    /// There are stale inodes, or it stopped.
    wake: Condvar,
    /// The kernel was told.
    told: Condvar,
}

impl Stale {
    /// Tells the kernel that the attributes that it was told of an inode are stale. Returns false if it did not know the
    /// inode in all the time.
    ///
    /// Context: waits for [`PATIENCE`].
    pub(crate) fn tell(&self, ino: u64) -> bool {
        let until = Instant::now() + PATIENCE;
        let mut state = self.state.lock();
        state.said += 1;
        let said = state.said;
        state.inodes.insert(ino, said);
        self.wake.notify_one();
        while state.inodes.contains_key(&ino) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || state.stopped {
                state.withdraw(ino, said);
                return false;
            }
            state = self.told.wait_timeout_ranked(state, left).0;
        }
        true
    }

    /// The thread's work, until [`stop`](Self::stop).
    pub(crate) fn run(&self, forget: impl Fn(u64) -> io::Result<()>) {
        let mut state = self.state.lock();
        while !state.stopped {
            if state.inodes.is_empty() {
                state = self.wake.wait_ranked(state);
                continue;
            }
            let inodes: Vec<_> = state
                .inodes
                .iter()
                .map(|(ino, said)| (*ino, *said))
                .collect();
            drop(state);
            let is_known =
                |ino| !matches!(forget(ino), Err(error) if error.kind() == io::ErrorKind::NotFound);
            let known: Vec<_> = inodes
                .into_iter()
                .filter(|(ino, _)| is_known(*ino))
                .collect();
            state = self.state.lock();
            for (ino, said) in known {
                state.withdraw(ino, said);
            }
            self.told.notify_all();
            if !state.inodes.is_empty() {
                state = self.wake.wait_timeout_ranked(state, PAUSE).0;
            }
        }
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.state.lock().stopped = true;
        self.wake.notify_one();
        self.told.notify_all();
    }
}

#[cfg(test)]
mod tests;
