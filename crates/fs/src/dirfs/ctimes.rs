//! Change times that were shown of files whose inodes left memory.
//!
//! # Model
//!
//! ```text
//!  written at 1 ──▶ written back at 3: the source's ctime is 3, and no call can set it
//!        └─ shown: 1, as long as the inode is in memory
//!  evicted ──▶ noted: (identity, the source has 3, shown was 1)
//!  found again, the source has 3 ──▶ shown: 1        the source has 4: others changed it, shown: 4
//! ```
//!
//! Programs that remember the ctime of a file, such as `git status`, take a file for changed when it moves.
//!
//! The notes are a table of sets of [`WAYS`]. A note is in one of two sets, at first in that with more room: as long as half of
//! the table is free none has to go. The newest note of a set is its first; where both are full the oldest of one goes. The table has
//! twice as many places as there are notes and files in memory that were opened for writing, up to a [share](SHARE) of the bound.
//! A note has 64 bits of a hash in the place of the identity: another file
//! is taken for it if it has these and, to the nanosecond, the same ctime.
//!
//! # Invariants
//!
//! 1. The table is charged to the bound.
//!
//! # Locking
//!
//! The lock of the table is a leaf. Memory is charged before a file is opened for writing, not when a note is taken, which is
//! when memory is short.
//!
//! # Memory ordering
//!
//! `len`, `places` and `expected` are `Relaxed`. A thread that misses a note taken just now came before it. A table that is
//! not enlarged now is enlarged at the next opening.

use super::identity::Identity;
use crate::coherence::nanoseconds;
use foliocache_mm::{MetadataCharge, Mm};
use foliocache_sync::Arc;
use foliocache_sync::atomic::{AtomicUsize, Ordering};
use foliocache_sync::rank::LeafMutex;
use foliocache_sys::clock::Timespec;
use foliocache_sys::fd::Stat;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// The table's share of the bound: one part of so many.
const SHARE: u64 = 64;
/// Notes of a set.
const WAYS: usize = 8;
/// Notes that a table begins with.
const FIRST: usize = 64;

/// The change time that was shown of a file.
#[derive(Clone, Copy, Default)]
struct Note {
    /// The hash of its identity; 0 if there is none.
    key: u64,
    /// The ctime that the source had, in nanoseconds.
    source: i64,
    shown: Timespec,
}

/// See the module's header.
pub(super) struct Ctimes {
    mm: Arc<Mm>,
    /// Most notes.
    most: usize,
    /// Notes and places of the table.
    len: AtomicUsize,
    places: AtomicUsize,
    /// Files in memory that were opened for writing: each may leave a note.
    expected: AtomicUsize,
    table: LeafMutex<Table>,
}

#[derive(Default)]
struct Table {
    notes: Box<[Note]>,
    len: usize,
    _charge: Option<MetadataCharge>,
}

impl Table {
    /// The two sets that a key's note may be in: where each begins.
    fn sets(&self, key: u64) -> [usize; 2] {
        let start = |hash: u64| hash as usize & (self.notes.len() - 1) & !(WAYS - 1);
        [start(key), start(key >> 32)]
    }

    fn set(&mut self, start: usize) -> &mut [Note] {
        &mut self.notes[start..start + WAYS]
    }

    fn insert(&mut self, note: Note) {
        if self.notes.is_empty() {
            return;
        }
        let mut sets = self.sets(note.key);
        let taken = |start: &usize| {
            let set = &self.notes[*start..][..WAYS];
            // First of all the set that it is in.
            let is_known = set.iter().any(|old| old.key == note.key);
            (!is_known, set.iter().filter(|old| old.key != 0).count())
        };
        sets.sort_by_key(taken);
        let set = self.set(sets[0]);
        let known = set.iter().position(|old| old.key == note.key);
        let free = known.or_else(|| set.iter().position(|old| old.key == 0));
        set[..=free.unwrap_or(WAYS - 1)].rotate_right(1);
        set[0] = note;
        self.len += usize::from(known.is_none() && free.is_some());
    }

    fn find(&self, key: u64, source: i64) -> Option<&Note> {
        let sets = self.sets(key).into_iter();
        let mut notes = sets.flat_map(|start| &self.notes[start..start + WAYS]);
        notes.find(|note| (note.key, note.source) == (key, source))
    }
}

fn key_of(identity: &Identity) -> u64 {
    let mut hasher = DefaultHasher::new();
    identity.hash(&mut hasher);
    hasher.finish().max(1)
}

impl Ctimes {
    pub(super) fn new(mm: &Arc<Mm>) -> Ctimes {
        let most = mm.usage().limit_bytes / SHARE / size_of::<Note>() as u64;
        let most = if most == 0 { 0 } else { 1 << most.ilog2() };
        Ctimes {
            mm: mm.clone(),
            most,
            len: AtomicUsize::new(0),
            places: AtomicUsize::new(0),
            expected: AtomicUsize::new(0),
            table: LeafMutex::default(),
        }
    }

    /// Makes room for notes. Call it before a file is opened for writing.
    ///
    /// Context: no lock held. Names and inodes without holders may give way.
    pub(super) fn make_room(&self) {
        // Relaxed, here and below: see the module's header.
        let places = self.places.load(Ordering::Relaxed);
        let notes = self.len.load(Ordering::Relaxed) + self.expected.load(Ordering::Relaxed);
        if 2 * notes < places || places == self.most || self.most < FIRST {
            return;
        }
        let wanted = (2 * notes + 2).next_power_of_two();
        let wanted = wanted.clamp(FIRST, self.most);
        let bytes = (wanted * size_of::<Note>()) as u64;
        // Where there is no room notes go, the oldest first.
        let Ok(charge) = MetadataCharge::before_names(&self.mm, bytes, Duration::ZERO) else {
            return;
        };
        let larger = Table {
            notes: vec![Note::default(); wanted].into(),
            len: 0,
            _charge: Some(charge),
        };
        let mut table = self.table.lock();
        // Another thread may have been here.
        if table.notes.len() >= wanted {
            return;
        }
        let old = std::mem::replace(&mut *table, larger);
        for set in old.notes.chunks(WAYS) {
            // The newest last, so that it is the first again.
            let notes = set.iter().rev().filter(|note| note.key != 0);
            notes.for_each(|note| table.insert(*note));
        }
        self.len.store(table.len, Ordering::Relaxed);
        self.places.store(wanted, Ordering::Relaxed);
        // Its memory is given back without the lock.
        drop(table);
        drop(old);
    }

    /// A file in memory may leave a note from now on.
    pub(super) fn expect(&self) {
        // Relaxed: see the module's header.
        self.expected.fetch_add(1, Ordering::Relaxed);
    }

    /// It is about to leave memory.
    pub(super) fn expected(&self) {
        // Relaxed: see the module's header.
        self.expected.fetch_sub(1, Ordering::Relaxed);
    }

    /// Notes that `shown` was shown as the ctime of a file while the source had `source`, in nanoseconds. Does not block.
    pub(super) fn note(&self, identity: &Identity, source: i64, shown: Timespec) {
        if nanoseconds(shown) == source {
            return;
        }
        let note = Note {
            key: key_of(identity),
            source,
            shown,
        };
        let mut table = self.table.lock();
        table.insert(note);
        // Relaxed: see the module's header.
        self.len.store(table.len, Ordering::Relaxed);
    }

    /// The ctime to show of a file, where it is not that which the source tells.
    pub(super) fn shown(&self, stat: &Stat) -> Option<Timespec> {
        // Relaxed: see the module's header.
        if self.len.load(Ordering::Relaxed) == 0 || foliocache_sync::planted!(ctime_moves) {
            return None;
        }
        let (key, source) = (key_of(&Identity::of(stat)), nanoseconds(stat.ctime));
        let table = self.table.lock();
        table.find(key, source).map(|note| note.shown)
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use super::*;
    use foliocache_mm::MmConfig;
    use foliocache_sys::fd;
    use std::os::fd::AsFd;

    fn at(sec: i64) -> Timespec {
        Timespec { sec, nsec: 1 }
    }

    /// The newest notes of a table that is full are there, and each is of the file and the time that it was taken of.
    #[test]
    fn notes_are_bounded_charged_and_exact() {
        let mm = Mm::new(MmConfig::new(16 << 20)).expect("a cache");
        let before = mm.usage().metadata_bytes;
        let ctimes = Ctimes::new(&mm);
        let file = tempfile::tempfile().expect("a file");
        let stat = |ino: u64| {
            let mut stat = fd::fstat(file.as_fd()).expect("its attributes");
            (stat.attr.ino, stat.attr.ctime) = (ino, at(ino as i64 + 1000));
            stat
        };
        let note = |ino: u64| {
            let stat = stat(ino);
            let source = nanoseconds(stat.ctime);
            ctimes.note(&Identity::of(&stat), source, at(ino as i64));
        };
        note(1);
        assert_eq!(ctimes.shown(&stat(1)), None, "there was no room for it");
        let most = ctimes.most as u64;
        assert!(most >= 4096);
        for ino in 0..8 * most {
            ctimes.make_room();
            note(ino);
        }
        let slots = ctimes.table.lock().notes.len() as u64;
        assert_eq!(slots, most);
        let bytes = mm.usage().metadata_bytes - before;
        assert_eq!(bytes, most * size_of::<Note>() as u64);
        assert!(bytes <= (16 << 20) / SHARE);
        let known = |of: std::ops::Range<u64>| {
            let is_shown = |&ino: &u64| match ctimes.shown(&stat(ino)) {
                Some(shown) => {
                    assert_eq!(shown, at(ino as i64));
                    true
                }
                None => false,
            };
            of.filter(is_shown).count() as u64
        };
        assert!(known(7 * most..8 * most) > most * 3 / 4, "the newest");
        assert_eq!(known(0..most), 0, "the oldest");
        let mut other = stat(8 * most - 1);
        other.attr.ctime.nsec += 1;
        assert_eq!(ctimes.shown(&other), None, "changed since");
        // Files that are in memory have room before they leave it, each of them.
        let others = Ctimes::new(&mm);
        for _ in 0..2000 {
            others.make_room();
            others.expect();
        }
        assert!(others.table.lock().notes.len() >= 4000);
        for ino in 0..2000 {
            let stat = stat(ino);
            let source = nanoseconds(stat.ctime);
            others.note(&Identity::of(&stat), source, at(ino as i64));
            others.expected();
        }
        for ino in 0..2000 {
            assert_eq!(others.shown(&stat(ino)), Some(at(ino as i64)));
        }
        drop(others);
        // The same again takes no more room.
        let len = ctimes.table.lock().len;
        note(8 * most - 1);
        assert_eq!(ctimes.table.lock().len, len);
        drop(ctimes);
        assert_eq!(mm.usage().metadata_bytes, before);
    }
}
