//! State that the writers of a file system share: their pace, the meter of the store, and the sizes of batches and turns.

use foliocache_sync::Mutex;
use foliocache_sync::atomic::AtomicU64;

use super::law::{Limits, Pace};
use super::meter::Meter;
use crate::types::PAGE_SIZE;

/// Time that the writes of a turn take at most, at the speed that was measured, as a part of a
/// second: who makes the file durable waits for a turn.
pub(crate) const TURNS_A_SECOND: u64 = 10;
/// Pages of a turn: at least 256 KiB, at most 16 MiB.
pub(crate) const SHORTEST_TURN: u64 = 64;
pub(crate) const LONGEST_TURN: u64 = 4096;
/// Most pages that a writer should dirty between two charges: 256 KiB.
pub(crate) const LONGEST_BATCH: u64 = 64;

/// Pages of one file that are written before it is the next file's turn, if the store takes
/// `speed` bytes a second, flushes left out: shorter turns because of long flushes would mean more of them.
pub(crate) fn turn(speed: u64) -> u64 {
    (speed / TURNS_A_SECOND / PAGE_SIZE as u64).clamp(SHORTEST_TURN, LONGEST_TURN)
}

/// Whether what is written should be flushed: `unstable` of the `held` pages.
pub(crate) fn flush_due(limits: Limits, unstable: u64, held: u64) -> bool {
    unstable >= limits.flush_after() || held >= limits.full
}

#[derive(Debug)]
pub(crate) struct Throttle {
    pub(crate) pace: Mutex<Pace>,
    pub(crate) meter: Mutex<Meter>,
    pub(crate) batch: AtomicU64,
}

impl Throttle {
    pub(crate) fn new(now: u64) -> Self {
        Self {
            pace: Mutex::new(Pace::new(now)),
            meter: Mutex::new(Meter::new()),
            batch: AtomicU64::new(LONGEST_BATCH),
        }
    }
}
