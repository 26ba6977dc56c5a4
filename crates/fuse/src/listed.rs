//! Where the kernel goes on reading directories that it has not opened.
//!
//! # Model
//!
//! An open directory may show the names that were there when it was opened. So a reading is kept only until a name in
//! the directory changes: a later reading that comes to the same place must list a name that was made before it began.
//! Without a kept reading the directory is opened again, which costs an opening and a seek for each request. Readings that
//! are not continued give way to others.
//!
//! # Invariants
//!
//! A kept reading was opened after the last change of a name in its directory if changes are told, and else at most [`TTL`]
//! ago.
//!
//! # Locking
//!
//! The lock protects the readings alone. It is never held across an operation of the file system: readings are dropped
//! after it.

use crate::entry::TTL;
use crate::handles::DirHandle;
use foliocache_sync::Mutex;
use foliocache_sync::time::Instant;
use foliocache_sys::Errno;

/// Directories that are read without a handle, most.
const LISTED: usize = 8;

/// Counts of changes of names, which directories share by number.
const COUNTS: usize = 32;

/// A directory that the kernel reads without having opened it, between two requests.
pub(crate) struct Reading {
    pub(crate) handle: DirHandle,
    ino: u64,
    /// Changes of its names that were known before it was opened.
    changes: u32,
    /// When it was opened, if changes of its names by others are not told.
    untold_since: Option<Instant>,
}

/// The kept readings; see the module's header.
#[derive(Default)]
pub(crate) struct Listed(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    /// Where each goes on, the oldest first.
    readings: Vec<(u64, Reading)>,
    /// Changes of names. Directories may share a count.
    changes: [u32; COUNTS],
}

impl Kept {
    /// Takes out the readings that are chosen.
    fn remove(&mut self, choose: impl Fn(&Reading) -> bool) -> Vec<(u64, Reading)> {
        let chosen = self.readings.extract_if(.., |(_, reading)| choose(reading));
        chosen.collect()
    }
}

fn count_of(ino: u64) -> usize {
    (ino % COUNTS as u64) as usize
}

impl Listed {
    /// The reading of the directory `ino` that stopped at `offset`.
    pub(crate) fn take(&self, ino: u64, offset: u64) -> Option<Reading> {
        let mut kept = self.0.lock();
        let found = |(at, reading): &(u64, Reading)| (reading.ino, *at) == (ino, offset);
        let place = kept.readings.iter().rposition(found)?;
        let (_, reading) = kept.readings.remove(place);
        drop(kept);
        let holds = |since: Instant| since.elapsed() < TTL;
        reading.untold_since.is_none_or(holds).then_some(reading)
    }

    /// Opens a directory to be read; `told` if changes of its names by others are told from now on.
    pub(crate) fn open(
        &self,
        ino: u64,
        told: bool,
        open: impl FnOnce() -> Result<DirHandle, Errno>,
    ) -> Result<Reading, Errno> {
        let changes = self.0.lock().changes[count_of(ino)];
        let untold_since = (!told).then(Instant::now);
        Ok(Reading {
            handle: open()?,
            ino,
            changes,
            untold_since,
        })
    }

    /// Keeps a reading, which stopped at `offset`, unless a name changed since the directory was opened.
    pub(crate) fn put(&self, reading: Reading, offset: u64) {
        let mut kept = self.0.lock();
        if kept.changes[count_of(reading.ino)] != reading.changes {
            drop(kept);
            drop(reading);
            return;
        }
        let oldest = (kept.readings.len() == LISTED).then(|| kept.readings.remove(0));
        kept.readings.push((offset, reading));
        drop(kept);
        drop(oldest);
    }

    /// A name in the directory `ino` changed.
    pub(crate) fn names_changed(&self, ino: u64) {
        let mut kept = self.0.lock();
        let count = count_of(ino);
        kept.changes[count] = kept.changes[count].wrapping_add(1);
        let gone = kept.remove(|reading| count_of(reading.ino) == count);
        drop(kept);
        drop(gone);
    }

    /// Any name may have changed.
    pub(crate) fn all_changed(&self) {
        let mut kept = self.0.lock();
        for count in &mut kept.changes {
            *count = count.wrapping_add(1);
        }
        let gone = kept.remove(|_| true);
        drop(kept);
        drop(gone);
    }

    /// The kernel forgot the directory `ino`.
    pub(crate) fn end(&self, ino: u64) {
        let gone = self.0.lock().remove(|reading| reading.ino == ino);
        drop(gone);
    }

    /// How many readings are kept.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.lock().readings.len()
    }
}
