//! The positions at which the kernel continues to read directories that it has not opened.
//!
//! # Model
//!
//! An open directory may show the names that existed when it was opened. So a reading is kept only until a name in
//! the directory changes: a later reading that reaches the same position must list names that were made before it
//! began. Without a kept reading, each request costs an open and a seek. Abandoned readings are replaced by new
//! ones.
//!
//! # Invariants
//!
//! A kept reading was opened after the last change of a name in its directory if changes are reported, and
//! otherwise at most [`TTL`] ago.
//!
//! # Locking
//!
//! The lock, a [`Leaf`](foliocache_sync::rank::Rank::Leaf), protects the readings. They are used and dropped after it is released. A
//! change is reported under [`Observers`](foliocache_sync::rank::Rank::Observers) and other locks, where nothing may be closed, so the
//! readings that it ends wait in `ended` for the next request.

use crate::entry::TTL;
use crate::handles::DirHandle;
use foliocache_sync::rank::LeafMutex;
use foliocache_sync::time::Instant;
use foliocache_sys::Errno;

/// Most readings that are kept.
const LISTED: usize = 8;

/// Counters of name changes. Directories share them by number.
const COUNTS: usize = 32;

/// A directory that the kernel reads without an `OPENDIR`, between two requests.
pub(crate) struct Reading {
    pub(crate) handle: DirHandle,
    ino: u64,
    /// The count of its name changes before it was opened.
    changes: u32,
    /// When it was opened, if its changes are not reported.
    untold_since: Option<Instant>,
}

/// The kept readings; see the module's header.
#[derive(Default)]
pub(crate) struct Listed(LeafMutex<Kept>);

#[derive(Default)]
struct Kept {
    /// The readings and their positions, the oldest first.
    readings: Vec<(u64, Reading)>,
    /// Counts of name changes. Directories may share one.
    changes: [u32; COUNTS],
    /// Readings that a change ended. The next request closes them.
    ended: Vec<(u64, Reading)>,
}

impl Kept {
    /// Ends the readings that are chosen.
    fn end(&mut self, choose: impl Fn(&Reading) -> bool) {
        let chosen = self.readings.extract_if(.., |(_, reading)| choose(reading));
        self.ended.extend(chosen);
    }
}

fn count_of(ino: u64) -> usize {
    (ino % COUNTS as u64) as usize
}

impl Listed {
    /// The reading of the directory `ino` that stopped at `offset`.
    pub(crate) fn take(&self, ino: u64, offset: u64) -> Option<Reading> {
        self.close_ended();
        let mut kept = self.0.lock();
        let found = |(at, reading): &(u64, Reading)| (reading.ino, *at) == (ino, offset);
        let place = kept.readings.iter().rposition(found)?;
        let (_, reading) = kept.readings.remove(place);
        drop(kept);
        let holds = |since: Instant| since.elapsed() < TTL;
        reading.untold_since.is_none_or(holds).then_some(reading)
    }

    /// Opens a directory for reading; `told` if changes of its names are reported from now on.
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

    /// Keeps a reading that stopped at `offset`, unless a name changed since the directory was
    /// opened.
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

    /// A name in the directory `ino` changed. Called under locks: closes nothing.
    pub(crate) fn names_changed(&self, ino: u64) {
        let mut kept = self.0.lock();
        let count = count_of(ino);
        kept.changes[count] = kept.changes[count].wrapping_add(1);
        kept.end(|reading| count_of(reading.ino) == count);
    }

    /// Any name may have changed. Called under locks: closes nothing.
    pub(crate) fn all_changed(&self) {
        let mut kept = self.0.lock();
        for count in &mut kept.changes {
            *count = count.wrapping_add(1);
        }
        kept.end(|_| true);
    }

    /// The kernel forgot the directory `ino`.
    pub(crate) fn end(&self, ino: u64) {
        self.0.lock().end(|reading| reading.ino == ino);
        self.close_ended();
    }

    /// Context: no locks. Closing a directory may take locks of the file system.
    fn close_ended(&self) {
        let ended = std::mem::take(&mut self.0.lock().ended);
        drop(ended);
    }

    /// Readings that a request could continue.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.lock().readings.len()
    }
}
