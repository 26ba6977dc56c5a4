//! A backing store in memory that fails on demand, forgets on demand, and survives power cuts as a
//! real one would.
//!
//! # Model
//!
//! ```text
//!  cache ──▶ FaultyBackend ──▶ Faults: delay, hang, fail, tear, cut short, lose
//!                      └─────▶ Medium: live and durable image, log of what is unflushed
//! ```
//!
//! The backend also checks the contract that `AddressSpaceOperations` promises to a file system, and records
//! violations as text: page-aligned positions and memory, no concurrency except among reads and with a flush.
//!
//! # Locking
//!
//! *protects*: the medium, the operations under way and the captured cuts. *order*: never held
//! together with the lock of the fault plan. *may block*: every operation, as the plan says.

use std::ops::Range;

use foliocache_mm::{AddressSpaceOperations, Extent, IoSegment};
use foliocache_sync::{Arc, Mutex, MutexGuard};
use foliocache_sys::Errno;

use crate::faults::Outcome;
use crate::{Event, Faults, Image, Medium, OpKind, Rng, scramble, segments};

/// Bytes of a page.
const PAGE: u64 = foliocache_mm::PAGE_SIZE as u64;

/// A power cut that was captured while the backend ran.
#[derive(Clone, Debug)]
pub struct Cut {
    /// The operation after which the power failed (see [`Event::seq`]).
    pub seq: u64,
    /// The seed that chose which writes landed, for [`Medium::power_cut`].
    pub seed: u64,
    /// The contents after the cut.
    pub image: Image,
}

/// When cuts are captured.
#[derive(Debug)]
struct Cutting {
    every: u64,
    rng: Rng,
}

#[derive(Debug, Default)]
struct State {
    medium: Medium,
    flushing: bool,
    /// The one other operation under way that excludes its like.
    exclusive: Option<OpKind>,
    broken: Vec<String>,
    cutting: Option<Cutting>,
    changes: u64,
    cuts: Vec<Cut>,
}

/// One file on a faulty medium.
#[derive(Debug)]
pub struct FaultyBackend {
    name: String,
    faults: Faults,
    state: Mutex<State>,
}

impl FaultyBackend {
    /// An empty file, with the faults of `faults`.
    pub fn new(name: &str, faults: &Faults) -> Arc<Self> {
        Self::from_image(name, faults, Image::new())
    }

    /// A file that holds `image` durably: the state after a power cut.
    pub fn from_image(name: &str, faults: &Faults, image: Image) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            faults: faults.clone(),
            state: Mutex::new(State {
                medium: Medium::new(image),
                ..State::default()
            }),
        })
    }

    /// The plan of faults.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// The contents that reads see now.
    pub fn live(&self) -> Image {
        self.state.lock().medium.live().clone()
    }

    /// The contents that every power cut leaves now.
    pub fn durable(&self) -> Image {
        self.state.lock().medium.durable().clone()
    }

    /// Changes not flushed yet.
    pub fn unflushed(&self) -> usize {
        self.state.lock().medium.unflushed()
    }

    /// The contents that a power cut at this moment leaves; `seed` chooses among the possibilities.
    /// The backend is unaffected: put the image into a new one to see the state after a restart.
    pub fn power_cut(&self, seed: u64) -> Image {
        self.state.lock().medium.power_cut(seed)
    }

    /// From now on keeps an image of a power cut after each `every`-th change (and flush), until
    /// [`FaultyBackend::take_cuts`]; zero stops it.
    pub fn cut_every(&self, every: u64, seed: u64) {
        self.state.lock().cutting = (every > 0).then(|| Cutting {
            every,
            rng: Rng::new(seed),
        });
    }

    /// The cuts captured since the last call.
    pub fn take_cuts(&self) -> Vec<Cut> {
        std::mem::take(&mut self.state.lock().cuts)
    }

    /// How the cache broke the contract of `AddressSpaceOperations`, one line each; empty is well.
    pub fn broken_contract(&self) -> Vec<String> {
        self.state.lock().broken.clone()
    }

    /// Starts an operation; the result says how it goes on.
    fn begin(&self, kind: OpKind, range: Range<u64>, len: u64) -> Running<'_> {
        let mut state = self.state.lock();
        let beside = match (kind, state.exclusive) {
            // A flush is beside anything but a second one.
            (OpKind::Flush, _) => state.flushing.then_some(OpKind::Flush),
            // A read is not cut either: the cache discards a read that ran beside a truncation or a
            // hole.
            (OpKind::Read, _) => None,
            (_, other) => other,
        };
        if let Some(other) = beside {
            state
                .broken
                .push(format!("{kind:?} of {range:#x?} beside a {other:?}"));
        }
        match kind {
            OpKind::Read => {}
            OpKind::Flush => state.flushing = true,
            _ => state.exclusive = Some(kind),
        }
        let unflushed = state.medium.unflushed();
        drop(state);
        let pos = range.start;
        let (seq, outcome) = self.faults.begin(kind, range, len);
        Running {
            backend: self,
            outcome,
            unflushed,
            event: Event {
                seq,
                kind,
                pos,
                len,
                outcome: Ok(0),
            },
        }
    }

    fn check(&self, kind: OpKind, pos: u64, list: &[IoSegment<'_>]) {
        let tail = list.len().saturating_sub(1);
        let aligned = pos.is_multiple_of(PAGE)
            && list
                .iter()
                .all(|segment| segment.addr().addr() % PAGE as usize == 0)
            && list[..tail]
                .iter()
                .all(|segment| segment.len() % PAGE as usize == 0);
        if !aligned || list.is_empty() || segments::total(list) == 0 {
            let lens: Vec<_> = list.iter().map(|s| (s.addr(), s.len())).collect();
            let text = format!("{kind:?} at {pos:#x} of odd pieces: {lens:?}");
            self.state.lock().broken.push(text);
        }
    }
}

/// An operation under way.
struct Running<'a> {
    backend: &'a FaultyBackend,
    outcome: Outcome,
    /// Unflushed changes when the operation began: those that a flush covers.
    unflushed: usize,
    event: Event,
}

impl Running<'_> {
    /// Changes the medium, and captures a cut if one is due.
    fn change(&self, change: impl FnOnce(&mut Medium)) {
        let mut state = self.backend.state.lock();
        change(&mut state.medium);
        state.changes += 1;
        let changes = state.changes;
        let Some(cutting) = &mut state.cutting else {
            return;
        };
        if changes.is_multiple_of(cutting.every) {
            let seed = cutting.rng.next_u64();
            let image = state.medium.power_cut(seed);
            let seq = self.event.seq;
            state.cuts.push(Cut { seq, seed, image });
        }
    }

    /// Ends the operation with its result.
    fn end(mut self, outcome: Result<u64, Errno>) -> Result<u64, Errno> {
        let mut state: MutexGuard<'_, State> = self.backend.state.lock();
        match self.event.kind {
            OpKind::Read => {}
            OpKind::Flush => state.flushing = false,
            _ => state.exclusive = None,
        }
        drop(state);
        self.event.outcome = outcome;
        self.backend.faults.end(self.event);
        outcome
    }

    /// An operation that works whole or not at all.
    fn all_or_nothing(self, change: impl FnOnce(&mut Medium)) -> Result<(), Errno> {
        let outcome = match self.outcome {
            Outcome::Fails(errno) | Outcome::Torn(errno, _) | Outcome::Loses(errno, _) => {
                Err(errno)
            }
            Outcome::Works | Outcome::Short(_) => {
                self.change(change);
                Ok(self.event.len)
            }
            Outcome::Lies => Ok(self.event.len),
        };
        self.end(outcome).map(|_| ())
    }
}

impl AddressSpaceOperations for FaultyBackend {
    fn read_folios(&self, pos: u64, list: &[IoSegment<'_>]) -> Result<usize, Errno> {
        self.check(OpKind::Read, pos, list);
        let total = segments::total(list);
        let running = self.begin(OpKind::Read, pos..pos + total, total);
        let limit = match running.outcome {
            Outcome::Works | Outcome::Lies => total,
            Outcome::Short(most) => most,
            Outcome::Fails(errno) | Outcome::Torn(errno, _) | Outcome::Loses(errno, _) => {
                return running.end(Err(errno)).map(|_| 0);
            }
        };
        let bytes = self
            .state
            .lock()
            .medium
            .live()
            .read_vec(pos, limit as usize);
        segments::scatter(list, &bytes);
        running
            .end(Ok(bytes.len() as u64))
            .map(|bytes| bytes as usize)
    }

    fn writepages(&self, pos: u64, list: &[IoSegment<'_>]) -> Result<usize, Errno> {
        self.check(OpKind::Write, pos, list);
        let total = segments::total(list);
        let running = self.begin(OpKind::Write, pos..pos + total, total);
        // Read after the delays, as a device would: memory reused too early shows itself.
        let bytes = segments::gather(list, total as usize);
        let outcome = match running.outcome {
            Outcome::Works => {
                running.change(|medium| medium.write(pos, &bytes));
                Ok(total)
            }
            Outcome::Short(most) => {
                running.change(|medium| medium.write(pos, &bytes[..most as usize]));
                Ok(most)
            }
            Outcome::Torn(errno, seed) => {
                let mut rng = Rng::new(seed);
                running.change(|medium| medium.write_torn(pos, &bytes, &mut rng));
                Err(errno)
            }
            Outcome::Lies => Ok(total),
            Outcome::Fails(errno) | Outcome::Loses(errno, _) => Err(errno),
        };
        running.end(outcome).map(|bytes| bytes as usize)
    }

    fn write_extents(&self, extents: &mut [Extent<'_>]) {
        // A device has its own order.
        let salt = self.state.lock().changes;
        extents.sort_by_key(|extent| scramble(extent.pos ^ salt));
        for extent in &mut *extents {
            extent.written = Some(self.writepages(extent.pos, extent.segments()));
        }
        extents.sort_by_key(|extent| extent.pos);
    }

    fn flush(&self) -> Result<(), Errno> {
        let running = self.begin(OpKind::Flush, 0..0, 0);
        let flushed = running.unflushed;
        let outcome = match running.outcome {
            Outcome::Works | Outcome::Short(_) => {
                running.change(|medium| medium.flush(flushed));
                Ok(0)
            }
            Outcome::Lies => Ok(0),
            Outcome::Loses(errno, lost) => {
                // Concurrent writes are lost too: no later flush reports them.
                running.change(|medium| medium.lose(medium.unflushed(), lost));
                Err(errno)
            }
            Outcome::Fails(errno) | Outcome::Torn(errno, _) => Err(errno),
        };
        running.end(outcome).map(|_| ())
    }

    fn truncate(&self, size: u64) -> Result<(), Errno> {
        self.begin(OpKind::Truncate, size..u64::MAX, 0)
            .all_or_nothing(|medium| medium.truncate(size))
    }

    fn punch_hole(&self, pos: u64, len: u64) -> Result<(), Errno> {
        self.begin(OpKind::PunchHole, pos..pos.saturating_add(len), len)
            .all_or_nothing(|medium| medium.punch_hole(pos, len))
    }

    fn write_inode(&self) -> Result<(), Errno> {
        let running = self.begin(OpKind::WriteInode, 0..0, 0);
        let outcome = match running.outcome {
            Outcome::Works | Outcome::Short(_) | Outcome::Lies => Ok(0),
            Outcome::Fails(errno) | Outcome::Torn(errno, _) | Outcome::Loses(errno, _) => {
                Err(errno)
            }
        };
        running.end(outcome).map(|_| ())
    }

    fn describe(&self) -> String {
        self.name.clone()
    }
}

#[cfg(test)]
mod tests;
