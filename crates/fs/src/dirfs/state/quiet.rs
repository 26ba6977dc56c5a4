//! A look at the source while no data of the file is being changed.
//!
//! # Model
//!
//! ```text
//!  a look that must tell ──▶ changes of data that come now wait ──▶ changes under way end ──▶ the source is asked ──▶ they go on
//! ```
//!
//! A look tells nothing if a change of ours overtakes it. Usually it is made again. While threads write a file out one after
//! another, as a database does, each look may be overtaken. So the holder of a lock, which has to know, holds the next changes off.
//!
//! They wait for one question to the source, and for what is under way, which is a write before them in most cases. If that takes
//! longer than [`PATIENCE`], as where the source hangs, they go on, and the look begins again later. Changes of attributes and names do not wait, since they hold
//! locks of names. A look that they overtake is made again: they are short.
//!
//! Both are rare, so that they poll instead of having a queue in each node.
//!
//! # Locking
//!
//! A look holds no lock, and `ask` takes none that is held over the beginning of a change of the
//! data: `opens`, `stamping`, those of the address space, a turn in a batch.

use super::{FileState, IoState};
use crate::coherence::Asked;
use foliocache_sync::rank::RankedMutexGuard;
use foliocache_sync::time::{Duration, Instant, sleep};

/// Longest that changes are held off for one that is under way.
const PATIENCE: Duration = Duration::from_millis(100);

/// Between two polls, at first and later: an eighth of the wait so far.
const POLL: Duration = Duration::from_micros(50);
const LONG_POLL: Duration = Duration::from_millis(10);

/// Changes of the data wait as long as it lives.
struct HeldOff<'a>(&'a FileState);

impl Drop for HeldOff<'_> {
    fn drop(&mut self) {
        self.0.coherence(|machine| machine.let_go_on());
    }
}

impl FileState {
    /// Has `ask` look at the source when no change of ours is under way, while none of the data begins.
    ///
    /// Context: see the module's header; blocks for changes under way.
    pub(in crate::dirfs) fn look_between_changes<T>(&self, ask: impl FnOnce(Asked) -> T) -> T {
        loop {
            let begun = self.coherence(|machine| machine.hold_off());
            let held_off = HeldOff(self);
            let ended = |io: &IoState| io.coherence.under_way() == 0;
            let (io, is_quiet) = self.wait(self.io.lock(), PATIENCE, ended);
            drop(io);
            if is_quiet {
                return ask(self.look());
            }
            drop(held_off);
            let goes_on = |io: &IoState| io.coherence.went_on(begun);
            drop(self.wait(self.io.lock(), Duration::MAX, goes_on));
        }
    }

    /// A change of the data waits for looks that it must not overtake.
    pub(super) fn wait_for_looks<'a>(
        &'a self,
        io: RankedMutexGuard<'a, IoState>,
    ) -> RankedMutexGuard<'a, IoState> {
        self.wait(io, Duration::MAX, |io| !io.coherence.is_held_off())
            .0
    }

    /// Waits until `is_so` returns true, but no longer than `patience`. Returns the last answer of `is_so`.
    fn wait<'a>(
        &'a self,
        mut io: RankedMutexGuard<'a, IoState>,
        patience: Duration,
        is_so: impl Fn(&IoState) -> bool,
    ) -> (RankedMutexGuard<'a, IoState>, bool) {
        let mut since = None;
        while !is_so(&io) {
            let waited = since.get_or_insert_with(Instant::now).elapsed();
            if waited >= patience {
                return (io, false);
            }
            drop(io);
            sleep((waited / 8).clamp(POLL, LONG_POLL));
            io = self.io.lock();
        }
        (io, true)
    }
}
