//! Rings lent to threads, with one table of registered buffers alike in all of them.
//!
//! # Model
//!
//! The pool makes rings as they are asked for, up to its maximum, and lends the first
//! that is free. Its own table says which memory each slot stands for. A ring follows the table when it is
//! lent: each keeps a list of the slots that changed since. Only *emptying* a slot cannot wait for
//! that, since the memory is about to go away:
//!
//! ```text
//! set_buffer(slot, Some)  table ← memory; the slot goes on every ring's list
//! try_take                the ring registers what is on its list
//! set_buffer(slot, None)  table ← empty; idle rings are emptied at once, lent ones when they
//!                         come back: wait for each of them
//! ```
//!
//! # Invariants
//!
//! 1. A ring has a slot registered only while the pool's table has that memory there, or while
//!    [`RingPool::set_buffer`] that empties the slot waits for it.
//! 2. `rings[i].ring` is `None` exactly while ring `i` is lent or was never made or is broken;
//!    `lent` tells which.
//!
//! # Locking
//!
//! *Protects*: `state` everything but the statistics. *Order*: nothing is taken under it. *May
//! block*: registering buffers happens outside it; making and emptying slots of idle rings inside,
//! a few microseconds each.
//!
//! # Memory ordering
//!
//! The statistics are Relaxed counters: nobody concludes anything about other memory from them.
//!
//! # Safety
//!
//! Buffers are registered with rings by the contract of [`RingPool::set_buffer`] and invariant 1.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU64, Ordering};

use super::lock::{Condvar, Mutex, MutexGuard, lock, wait};
use super::{Io, MAX_BUFFERS, Ring};
use crate::Errno;
use crate::fork::ForkGuard;

/// A buffer's address and length.
type Memory = (usize, usize);

/// What a slot of the pool's table stands for.
#[derive(Clone, Copy, Default)]
struct Slot {
    memory: Option<Memory>,
    /// A ring was refused this memory: it is plain from then on.
    plain: bool,
}

impl Slot {
    fn to_register(self) -> Option<Memory> {
        self.memory.filter(|_| !self.plain)
    }
}

/// One place for a ring.
#[derive(Default)]
struct Place {
    ring: Option<Ring>,
    lent: bool,
    /// Slots that changed since the ring last followed the table.
    changed: Vec<u32>,
    /// How often the ring came back.
    returns: u64,
}

struct State {
    places: Vec<Place>,
    table: Vec<Slot>,
    /// The kernel refused a further ring: it is not asked again.
    exhausted: bool,
}

/// Counts of a pool since it was made, and its present state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingPoolStats {
    /// Rings made and usable.
    pub rings: usize,
    /// Most rings that will be made.
    pub max_rings: usize,
    /// Slots whose memory rings register.
    pub buffers: usize,
    /// Slots whose memory was refused and is used as plain memory.
    pub refused_buffers: usize,
    /// Operations through registered buffers.
    pub fixed_ios: u64,
    /// Other operations.
    pub plain_ios: u64,
    /// Times that no ring was free.
    pub busy: u64,
}

/// Up to a fixed number of rings, shared by any number of threads.
pub struct RingPool {
    state: Mutex<State>,
    returned: Condvar,
    guard: ForkGuard,
    entries: u32,
    slots: u32,
    fixed_ios: AtomicU64,
    plain_ios: AtomicU64,
    busy: AtomicU64,
}

impl std::fmt::Debug for RingPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RingPool")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl RingPool {
    /// A pool of up to `max_rings` rings (at least 1) that keep `entries` operations in flight
    /// each, with `slots` slots for registered buffers (0: none; at most [`MAX_BUFFERS`] are made,
    /// and slots beyond are plain). The first ring is made at once, to know that the kernel allows
    /// it; where it has no sparse tables all slots are plain.
    ///
    /// # Errors
    ///
    /// Those of [`Ring::new`].
    pub fn new(max_rings: usize, entries: u32, slots: u32) -> Result<RingPool, Errno> {
        let mut slots = slots.min(MAX_BUFFERS);
        let mut ring = Ring::new(entries)?;
        if slots > 0 && ring.register_sparse_buffers(slots).is_err() {
            slots = 0;
        }
        let mut places: Vec<Place> = Vec::new();
        places.resize_with(max_rings.max(1), Place::default);
        places[0].ring = Some(ring);
        Ok(RingPool {
            state: Mutex::new(State {
                places,
                table: Vec::new(),
                exhausted: false,
            }),
            returned: Condvar::new(),
            guard: ForkGuard::new()?,
            entries,
            slots,
            fixed_ios: AtomicU64::new(0),
            plain_ios: AtomicU64::new(0),
            busy: AtomicU64::new(0),
        })
    }

    /// A ring for the calling thread until the guard is dropped, or `None` when all are lent (or
    /// the kernel gives no further one, or in a forked child): do the I/O without one then.
    ///
    /// Does not wait for other users. Registers buffers that were set since the ring was last
    /// used, a few microseconds each. Forgetting a guard blocks [`RingPool::set_buffer`] for ever.
    pub fn try_take(&self) -> Option<RingGuard<'_>> {
        self.guard.check().ok()?;
        let Some((place, ring, changed)) = self.take_place() else {
            // Relaxed: see the module.
            self.busy.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        let mut lent = RingGuard {
            pool: self,
            place,
            before: ring.operations(),
            ring: Some(ring),
        };
        lent.follow(&changed);
        Some(lent)
    }

    /// Takes an idle ring, or makes one. With it come the slots to bring up to date.
    #[allow(clippy::type_complexity, reason = "used once")]
    fn take_place(&self) -> Option<(usize, Ring, Vec<(u32, Slot)>)> {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        // Low places first: the same few rings stay warm.
        let index = match state.places.iter().position(|place| place.ring.is_some()) {
            Some(index) => index,
            None => self.make(state)?,
        };
        let place = &mut state.places[index];
        let ring = place.ring.take()?;
        place.lent = true;
        let changed = std::mem::take(&mut place.changed);
        let changed = changed
            .into_iter()
            .map(|slot| (slot, state.table[slot as usize]))
            .collect();
        Some((index, ring, changed))
    }

    /// Makes a ring in a free place.
    fn make(&self, state: &mut State) -> Option<usize> {
        if state.exhausted {
            return None;
        }
        let index = state.places.iter().position(|place| !place.lent)?;
        let made = Ring::new(self.entries).and_then(|mut ring| {
            if self.slots > 0 {
                ring.register_sparse_buffers(self.slots)?;
            }
            Ok(ring)
        });
        let Ok(ring) = made else {
            state.exhausted = true;
            return None;
        };
        let changed = (0_u32..)
            .zip(&state.table)
            .filter(|(_, slot)| slot.to_register().is_some())
            .map(|(index, _)| index)
            .collect();
        let place = &mut state.places[index];
        place.ring = Some(ring);
        place.changed = changed;
        Some(index)
    }

    /// Says what memory `slot` stands for, for every ring there is and will be; `None` empties it.
    ///
    /// Emptying (also in order to put other memory there) waits until no ring has the slot any
    /// more: the I/O of rings lent at that moment is over when it returns. Setting waits for
    /// nothing and never fails: memory that the kernel refuses to register is plain from then on
    /// and counted. A caller that holds a [`RingGuard`] would wait for itself. In a forked child
    /// this does nothing.
    ///
    /// # Safety
    ///
    /// From setting a slot until the call that empties it has returned (or the pool is dropped),
    /// the memory stays mapped as it is, and no reference to it is made that relies on its bytes
    /// not changing. Segments name the slot as their block only if they lie inside the memory. Calls
    /// for one slot come one after the other.
    pub unsafe fn set_buffer(&self, slot: u32, buffer: Option<(*mut u8, usize)>) {
        if self.guard.is_child() || slot >= self.slots {
            return;
        }
        let memory = buffer.map(|(addr, len)| (addr as usize, len));
        let mut state = lock(&self.state);
        if state.table.len() <= slot as usize {
            state.table.resize(slot as usize + 1, Slot::default());
        }
        if state.table[slot as usize].memory == memory {
            return;
        }
        state = self.empty(state, slot);
        if memory.is_some() {
            state.table[slot as usize] = Slot {
                memory,
                plain: false,
            };
            for place in &mut state.places {
                if place.ring.is_some() || place.lent {
                    place.changed.push(slot);
                }
            }
        }
    }

    /// Empties `slot` in the table and in every ring, waiting for those that are lent.
    fn empty<'a>(&'a self, mut state: MutexGuard<'a, State>, slot: u32) -> MutexGuard<'a, State> {
        if state.table[slot as usize].memory.is_none() {
            return state;
        }
        state.table[slot as usize] = Slot::default();
        let mut lent = Vec::new();
        for (index, place) in state.places.iter_mut().enumerate() {
            place.changed.retain(|&changed| changed != slot);
            if place.lent {
                place.changed.push(slot);
                lent.push((index, place.returns));
            } else {
                clear(place, slot);
            }
        }
        while lent
            .iter()
            .any(|&(index, returns)| state.places[index].returns == returns)
        {
            state = wait(&self.returned, state);
        }
        state
    }

    /// Counts and present state. Takes the pool's lock for a moment.
    pub fn stats(&self) -> RingPoolStats {
        let state = lock(&self.state);
        let count = |test: fn(&Slot) -> bool| state.table.iter().filter(|slot| test(slot)).count();
        RingPoolStats {
            rings: state
                .places
                .iter()
                .filter(|place| place.ring.is_some() || place.lent)
                .count(),
            max_rings: state.places.len(),
            buffers: count(|slot| slot.to_register().is_some()),
            refused_buffers: count(|slot| slot.plain),
            // Relaxed: see the module.
            fixed_ios: self.fixed_ios.load(Ordering::Relaxed),
            plain_ios: self.plain_ios.load(Ordering::Relaxed),
            busy: self.busy.load(Ordering::Relaxed),
        }
    }
}

/// Empties `slot` in an idle ring. A ring that refuses is given up: closing it empties its table.
fn clear(place: &mut Place, slot: u32) {
    if let Some(ring) = &mut place.ring {
        // SAFETY: no memory is registered.
        let cleared = unsafe { ring.update_buffer(slot, None) };
        if cleared.is_err() {
            place.ring = None;
            place.changed.clear();
        }
    }
}

/// A ring on loan; goes back when dropped.
#[derive(Debug)]
pub struct RingGuard<'p> {
    pool: &'p RingPool,
    place: usize,
    /// There until drop.
    ring: Option<Ring>,
    /// The ring's counts when it was taken.
    before: (u64, u64),
}

impl RingGuard<'_> {
    /// See [`Ring::submit_and_wait`].
    pub fn submit_and_wait(&mut self, ios: &[Io<'_>], results: &mut Vec<Result<usize, Errno>>) {
        match &mut self.ring {
            Some(ring) => ring.submit_and_wait(ios, results),
            None => unreachable!("the ring is there until drop"),
        }
    }

    /// How many operations are kept in flight.
    pub fn depth(&self) -> usize {
        self.ring.as_ref().map_or(0, Ring::depth)
    }

    /// Brings the ring's table up to date.
    fn follow(&mut self, changed: &[(u32, Slot)]) {
        let Some(ring) = &mut self.ring else { return };
        let mut refused = Vec::new();
        let mut out_of_memory = false;
        for &(slot, wanted) in changed {
            let Some((addr, len)) = wanted.to_register() else {
                continue;
            };
            if out_of_memory {
                refused.push((slot, wanted));
                continue;
            }
            let buffer = Some((std::ptr::with_exposed_provenance_mut(addr), len));
            // SAFETY: the table had this memory after the ring was lent, so by the contract of
            // `set_buffer` it is valid until the call that empties the slot has seen this ring
            // come back, where the slot is emptied.
            match unsafe { ring.update_buffer(slot, buffer) } {
                Ok(()) => {}
                Err(e) => {
                    // Beyond the limit of locked memory the next ones would be refused as well.
                    out_of_memory |= e == Errno::ENOMEM;
                    refused.push((slot, wanted));
                }
            }
        }
        if refused.is_empty() {
            return;
        }
        let mut state = lock(&self.pool.state);
        for (slot, wanted) in refused {
            let now = &mut state.table[slot as usize];
            if now.memory == wanted.memory {
                now.plain = true;
            }
        }
    }
}

impl Drop for RingGuard<'_> {
    fn drop(&mut self) {
        let Some(ring) = self.ring.take() else { return };
        // A child has its own copy of a lock that some thread of the parent may hold.
        if self.pool.guard.is_child() {
            return;
        }
        let (fixed, plain) = ring.operations();
        // Relaxed: see the module.
        self.pool
            .fixed_ios
            .fetch_add(fixed - self.before.0, Ordering::Relaxed);
        self.pool
            .plain_ios
            .fetch_add(plain - self.before.1, Ordering::Relaxed);
        let mut guard = lock(&self.pool.state);
        let state = &mut *guard;
        let place = &mut state.places[self.place];
        place.lent = false;
        place.returns += 1;
        if ring.broken().is_none() {
            place.ring = Some(ring);
            // Whatever changed meanwhile may be memory that somebody waits to give back. What the
            // table has there now is registered when the ring is next lent.
            for slot in place.changed.clone() {
                clear(place, slot);
            }
            let table = &state.table;
            place
                .changed
                .retain(|&slot| table[slot as usize].to_register().is_some());
        } else {
            place.changed.clear();
            drop(ring);
        }
        drop(guard);
        self.pool.returned.notify_all();
    }
}
