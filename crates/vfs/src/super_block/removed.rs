//! Files that others removed from the store: they are given up soon, and with them their space there.
//!
//! # Model
//!
//! A descriptor kept for a file keeps its blocks too. A removal through this process closes it. A removal from
//! outside is reported at a moment at which no thread may wait: the name is queued here, and the file system's
//! [reaper](crate::limbo::Reaper) asks for the state of each ([`FileSystem::give_up_removed`]). In a process that
//! looks up no names, the reaper reads the news every [`LOOK`].
//!
//! ```text
//!  told that a name is lost ── its dentry ──────────────────▶ line ──▶ the file system is asked
//!                           └─ what was expected of it ──────▶  ▲
//!  a name leads elsewhere, before that is told ──▶ expected ────┘ no report can come any more
//!                                                     └──────▶ dropped: all was told, and it was not lost
//! ```
//!
//! A look-up may find that a name leads elsewhere before the news are read. Then the dentry of the old file goes,
//! and a later report would not find the file. So the file is *expected*
//! ([`Caches::invalidate`](super::caches::Caches::invalidate),
//! [`Caches::expect_displaced`](super::caches::Caches::expect_displaced)) until the news of some time later are
//! read, since a change is visible a little before its report. A moved file is not reported as lost, and keeps its
//! pages.
//!
//! A file whose removal is not reported stays until the cache makes room. So do files beyond [`MOST`], and a file
//! whose name was evicted: then a report leads to no file. Keeping the names of such files would take the room that
//! eviction is to make.
//!
//! # Invariants
//!
//! 1. When a dentry goes because its name leads elsewhere, its file is expected before that. If the dentry is
//!    displaced, the file is expected afterwards, provided that the directory has no more doubts than before the
//!    question: a later report finds the dentry or the expected file. With more doubts the file is queued at once.
//!    For a lost name, a doubt is counted before the dentry is looked for, and another one before the expected
//!    files are: the question about a dentry that was displaced in between came before the second doubt.
//!
//! # Locking
//!
//! `line` and `expected` are [`Leaf`](Rank::Leaf) locks, so they may be taken while dentries are locked. The reaper asks
//! the file system after it has released them.
//!
//! [`FileSystem::give_up_removed`]: crate::FileSystem::give_up_removed

use crate::dcache::DentryRef;
use crate::inode::Inode;
use crate::limbo::Reaper;
use foliocache_mm::slab::SlabWeak;
use foliocache_sync::cell::OnceLock;
use foliocache_sync::rank::LeafMutex;
use foliocache_sync::time::Duration;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::mem;
use std::os::unix::ffi::OsStrExt;

/// How often the reaper reads the news of a process that asks for nothing.
pub(super) const LOOK: Duration = Duration::from_secs(1);

/// Most files that wait, and most that are expected.
const MOST: usize = 16 << 10;

/// A model frees by itself, and its files have no pages.
pub(super) const IS_MODEL: bool = cfg!(any(loom, shuttle));

/// Milliseconds for which a file is expected at least: a change is visible before its report. In a
/// model for ever.
const EXPECTED_FOR: u64 = if IS_MODEL { 1 << 30 } else { 2000 };

/// A file that may be gone.
pub(super) enum Waiting {
    /// A name, with its file.
    Named(DentryRef<Inode>),
    /// A file without a known name. Others may free it before the reaper comes.
    Nameless(SlabWeak<Inode>),
}

/// The number of a directory, and a name in it.
type Place = (u64, Vec<u8>);

/// Files by the names that led to them, each with when that was found to lead elsewhere, of
/// [`Belief::told_since`](crate::Belief::told_since).
struct Expectations<F> {
    files: HashMap<Place, Vec<(F, u64)>>,
    /// How many files these are.
    nr: usize,
    /// When those that are over were last looked for.
    looked_at: u64,
}

impl<F> Default for Expectations<F> {
    fn default() -> Self {
        Expectations {
            files: HashMap::new(),
            nr: 0,
            looked_at: 0,
        }
    }
}

impl<F> Expectations<F> {
    /// Expects a file, or returns it if there are too many. One name may have led to many files.
    fn add(&mut self, place: impl FnOnce() -> Place, file: F, now: u64) -> Option<F> {
        if self.nr >= MOST {
            return Some(file);
        }
        self.files.entry(place()).or_default().push((file, now));
        self.nr += 1;
        None
    }

    /// The files that a name led to, which is lost.
    fn take(&mut self, place: impl FnOnce() -> Place) -> Vec<(F, u64)> {
        let taken = match self.files.is_empty() {
            true => None,
            false => self.files.remove(&place()),
        };
        let taken = taken.unwrap_or_default();
        self.nr -= taken.len();
        taken
    }

    /// All changes before `began` were reported, or some were lost: returns the files that are no
    /// longer expected.
    fn told(&mut self, began: u64, complete: bool) -> Vec<(F, u64)> {
        let is_early = began < self.looked_at + EXPECTED_FOR;
        if self.files.is_empty() || complete && is_early {
            return Vec::new();
        }
        let is_over = |at: u64| at + EXPECTED_FOR < began || !complete;
        let mut over = Vec::new();
        for (place, files) in mem::take(&mut self.files) {
            let (early, late): (Vec<_>, Vec<_>) =
                files.into_iter().partition(|file| is_over(file.1));
            over.extend(early);
            if !late.is_empty() {
                self.files.insert(place, late);
            }
        }
        self.nr -= over.len();
        self.looked_at = began;
        over
    }
}

/// Files that wait for the reaper, [`MOST`] at once.
struct Line<W>(LeafMutex<Vec<W>>);

impl<W> Default for Line<W> {
    fn default() -> Self {
        Line(LeafMutex::default())
    }
}

impl<W> Line<W> {
    /// Those that there is no room for are dropped with no lock held: that may be the end of a dentry.
    fn push(&self, waiting: impl IntoIterator<Item = W>) {
        let mut waiting = waiting.into_iter();
        let mut line = self.0.lock();
        let room = MOST.saturating_sub(line.len());
        line.extend(waiting.by_ref().take(room));
        drop(line);
        waiting.for_each(drop);
    }

    fn take(&self) -> Vec<W> {
        mem::take(&mut *self.0.lock())
    }
}

/// Names that were taken away, with what they led to.
#[derive(Default)]
pub(super) struct Removed {
    line: Line<Waiting>,
    expected: LeafMutex<Expectations<SlabWeak<Inode>>>,
    /// `None` where callers alone free what was given up: then nothing waits here, but in a model.
    reaper: OnceLock<Reaper>,
}

impl Removed {
    /// Sets the `reaper` that is woken for queued files; it calls
    /// [`Caches::give_up_removed`](super::caches::Caches::give_up_removed).
    pub(super) fn wake_when_added(&self, reaper: Reaper) {
        let _ = self.reaper.set(reaper);
    }

    pub(super) fn is_used(&self) -> bool {
        self.reaper.get().is_some() || IS_MODEL
    }

    /// Takes out all that are in line.
    pub(super) fn take_line(&self) -> Vec<Waiting> {
        self.line.take()
    }

    /// Does not wait.
    pub(super) fn add(&self, dentry: DentryRef<Inode>) {
        self.push([Waiting::Named(dentry)]);
    }

    pub(super) fn push(&self, waiting: impl IntoIterator<Item = Waiting>) {
        if !self.is_used() {
            return;
        }
        self.line.push(waiting);
        if let Some(reaper) = self.reaper.get() {
            reaper.wake();
        }
    }

    pub(super) fn expect(&self, dir: &Inode, name: &[u8], inode: SlabWeak<Inode>, now: u64) {
        let place = || (dir.ino(), name.to_vec());
        let refused = self.expected.lock().add(place, inode, now);
        drop(refused);
    }

    /// A name was lost. Does not wait.
    pub(super) fn lost(&self, dir: &Inode, name: &OsStr) {
        let place = || (dir.ino(), name.as_bytes().to_vec());
        let files = self.expected.lock().take(place);
        self.push_expected(files);
    }

    /// Every change before `began` was reported; unless `complete`, some may be missing, and with
    /// them removals.
    pub(super) fn was_told(&self, began: u64, complete: bool) {
        let over = self.expected.lock().told(began, complete);
        if !complete {
            self.push_expected(over);
        }
    }

    fn push_expected(&self, files: Vec<(SlabWeak<Inode>, u64)>) {
        if !files.is_empty() {
            self.push(files.into_iter().map(|(file, _)| Waiting::Nameless(file)));
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use foliocache_sync::rank::{How, Rank, acquire};

    /// As a dentry that takes its lock when its last reference goes.
    struct LocksWhenDropped;

    impl Drop for LocksWhenDropped {
        fn drop(&mut self) {
            drop(acquire(Rank::Dentry, How::Ordered));
        }
    }

    #[test]
    fn names_that_the_line_has_no_room_for_are_dropped_without_its_lock() {
        let line = Line::default();
        let names: Vec<_> = (0..MOST + 2).map(|_| LocksWhenDropped).collect();
        line.push(names);
        assert_eq!(line.take().len(), MOST);
    }

    #[test]
    fn expected_files_are_bounded_for_one_name_and_for_many() {
        let mut expected = Expectations::default();
        for file in 0..2 * MOST {
            expected.add(|| (1, b"one".to_vec()), file, file as u64);
        }
        assert_eq!(expected.take(|| (1, b"other".to_vec())).len(), 0);
        assert_eq!(expected.take(|| (1, b"one".to_vec())).len(), MOST);
        for file in 0..2 * MOST {
            let name = file.to_string().into_bytes();
            expected.add(|| (1, name), file, file as u64);
        }
        // The reports of the first half are due by then.
        let began = EXPECTED_FOR + MOST as u64 / 2;
        assert_eq!(expected.told(began, true).len(), MOST / 2);
        assert_eq!(expected.told(began, true).len(), 0, "it was just looked");
        assert_eq!(expected.nr, MOST / 2);
        // There is room for one now.
        expected.add(|| (1, b"one".to_vec()), 0, began);
        assert_eq!(expected.take(|| (1, b"one".to_vec())), [(0, began)]);
        assert_eq!(expected.told(began, false).len(), MOST / 2);
        assert_eq!((expected.nr, expected.files.len()), (0, 0));
    }
}
