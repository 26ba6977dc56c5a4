//! Makes the kernel forget inodes when memory is short.
//!
//! # Model
//!
//! ```text
//!  reclaim ──want_back──▶ wanted ──▶ this thread: chooses nodes ──prune──▶ kernel
//!                                        ▲                                   │
//!     names and inodes given up ◀── what came back ◀──forget── workers ◀─────┘
//! ```
//!
//! Inodes that the kernel remembers are held for it ([`nodes`](crate::nodes)) and cannot be evicted. When memory is
//! short, reclaim says how many it wants back. The thread asks the kernel for a batch of nodes, least used first,
//! waits until no more of them come back, frees those, and continues until there are enough or all nodes were
//! examined. If hardly any came back they are in use, and the thread pauses for a while.
//!
//! A dedicated thread does this, because the kernel may have to write an inode's data to us before it can forget
//! it.
//!
//! Once memory was refused, requests that tell the kernel of more inodes wait for a round
//! ([`Pruner::wait_for_room`]). One reader always takes the kernel's forgets ([`service`](crate::service)).
//!
//! # Locking
//!
//! `state`, a [`Leaf`](foliocache_sync::rank::Rank::Leaf), protects the figures and the nodes that came back. Nodes are dropped after it
//! is released.

use crate::device::Device;
use crate::nodes::{Nodes, PATIENCE};
use crate::stats::{Counters, add};
use foliocache_sync::rank::LeafMutex;
use foliocache_sync::time::{Duration, Instant};
use foliocache_sync::{Arc, Condvar};
use foliocache_vfs::{InodeHolder, Named, SuperBlock};

/// Nodes of one request, as many as the kernel takes at once.
const BATCH: usize = 512;

/// The forgets of a request are queued when its write returns. Once none came for this long, the other nodes are in
/// use.
const SILENCE: Duration = Duration::from_millis(2);

/// If fewer than one in this many nodes came back, the others are in use.
const WORTH: usize = 16;

/// The pause after that.
const HOPELESS: Duration = Duration::from_secs(1);

#[derive(Default)]
struct State {
    /// Nodes still wanted.
    wanted: usize,
    /// Nodes that the kernel was asked for and has forgotten.
    returned: Vec<Named>,
    /// Wakes the thread when this many are back.
    awaited: usize,
    /// Batches that were freed.
    rounds: u64,
    hopeless_until: Option<Instant>,
    stopped: bool,
}

/// The number of nodes that reclaim wants back, and those that came.
pub(crate) struct Pruner {
    state: LeafMutex<State>,
    /// Wakes the thread.
    wake: Condvar,
    /// Wakes waiting requests.
    round_done: Condvar,
    counters: Arc<Counters>,
}

impl Pruner {
    /// Nothing is wanted yet.
    pub(crate) fn new(counters: Arc<Counters>) -> Pruner {
        Pruner {
            state: LeafMutex::default(),
            wake: Condvar::new(),
            round_done: Condvar::new(),
            counters,
        }
    }

    pub(crate) fn stop(&self) {
        self.state.lock().stopped = true;
        self.wake.notify_all();
        self.round_done.notify_all();
    }

    /// The kernel has forgotten a node, as it was asked to.
    pub(crate) fn took_back(&self, gone: Named) {
        add(&self.counters.forgotten_on_request, 1);
        let mut state = self.state.lock();
        if state.stopped {
            drop(state);
            return;
        }
        state.returned.push(gone);
        if state.returned.len() >= state.awaited {
            self.wake.notify_one();
        }
    }

    /// If memory was refused, waits for a round, but not long. For requests that tell the kernel of
    /// an inode, or open one.
    ///
    /// Context: a request that may wait, with no lock.
    #[inline]
    pub(crate) fn wait_for_room(&self, names: &SuperBlock) {
        if names.mm().metadata_was_refused() {
            self.wait_for_round();
        }
    }

    #[cold]
    fn wait_for_round(&self) {
        let until = Instant::now() + PATIENCE;
        let mut state = self.state.lock();
        let rounds = state.rounds;
        while state.wanted > 0 && state.rounds == rounds && !state.stopped {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.round_done.wait_timeout_ranked(state, left).0;
        }
    }

    /// The thread's work, until [`stop`](Self::stop).
    pub(crate) fn run(&self, names: &SuperBlock, nodes: &Nodes, device: &Device) {
        loop {
            let mut state = self.state.lock();
            while state.wanted == 0 && state.returned.is_empty() && !state.stopped {
                state = self.wake.wait_ranked(state);
            }
            if state.stopped {
                let returned = std::mem::take(&mut state.returned);
                drop(state);
                drop(returned);
                return;
            }
            // Nodes that came late.
            let late = std::mem::take(&mut state.returned);
            let wanted = state.wanted > 0;
            drop(state);
            names.give_up(late);
            if wanted {
                self.prune(names, nodes, device);
            }
        }
    }

    /// Makes the kernel forget as many nodes as are wanted, or as there are.
    fn prune(&self, names: &SuperBlock, nodes: &Nodes, device: &Device) {
        // Two rounds: a node gets a second chance in the first one only.
        let known = nodes.len();
        let mut left = 2 * known;
        let mut all = 0;
        loop {
            let wanted = {
                let mut state = self.state.lock();
                if left == 0 || state.wanted == 0 || state.stopped {
                    if left == 0 && all <= known / WORTH {
                        state.hopeless_until = Some(Instant::now() + HOPELESS);
                    }
                    state.wanted = 0;
                    self.round_done.notify_all();
                    return;
                }
                state.wanted.min(BATCH)
            };
            let (chosen, seen) = nodes.choose(wanted);
            left = left.saturating_sub(seen.max(1));
            if chosen.is_empty() {
                continue;
            }
            add(&self.counters.asked_to_forget, chosen.len() as u64);
            if let Err(error) = device.prune(&chosen) {
                // Most likely the mount is ending.
                tracing::debug!(%error, "the kernel does not forget what it was asked to");
                left = 0;
                continue;
            }
            let returned = self.wait_for_forgets(chosen.len());
            let nr = returned.len();
            all += nr;
            names.give_up(returned);
            let mut state = self.state.lock();
            state.wanted = state.wanted.saturating_sub(nr);
            state.rounds += 1;
            self.round_done.notify_all();
        }
    }

    /// Waits until all requested nodes are forgotten or no more come; returns them.
    fn wait_for_forgets(&self, asked: usize) -> Vec<Named> {
        let mut state = self.state.lock();
        state.awaited = asked;
        let mut seen = state.returned.len();
        let mut since = Instant::now();
        while seen < asked && !state.stopped {
            // The thread may also be woken for other reasons.
            let Some(left) = SILENCE.checked_sub(since.elapsed()) else {
                break;
            };
            state = self.wake.wait_timeout_ranked(state, left).0;
            if state.returned.len() > seen {
                (seen, since) = (state.returned.len(), Instant::now());
            }
        }
        state.awaited = 0;
        std::mem::take(&mut state.returned)
    }
}

impl InodeHolder for Pruner {
    fn want_back(&self, nr: usize) -> bool {
        let mut state = self.state.lock();
        let now = Instant::now();
        if state.stopped || state.hopeless_until.is_some_and(|until| now < until) {
            return false;
        }
        state.wanted = state.wanted.max(nr);
        self.wake.notify_one();
        true
    }
}
