//! Pressure from outside: the limit gives way when the surroundings run short, and comes back (decision 10).
//!
//! # Model
//!
//! The policy decides; a thread of its own (`follower.rs`) carries it out and knows nothing else. The first look is taken
//! before the cache takes any memory, so that a bound larger than its cgroup is never reached for.
//!
//! # Invariants
//!
//! 1. The limit of the frames is the policy's effective limit: both change under one lock.
//!
//! # Locking
//!
//! *Protects*: the policy, and the limit of the frames with it. *Order*: before `Frames`; nothing
//! else is taken under it. *May block*: as `Frames::set_limit` does.

mod policy;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use foliocache_sync::time::monotonic_ns;
use foliocache_sync::{Arc, Mutex, thread};
use foliocache_sys::event::Event;
use foliocache_sys::pressure::{Monitor, Outside};
use std::time::Duration;

use crate::error::MmError;
use crate::frames::{BLOCK_SIZE, Frames, MIN_LIMIT};
use policy::Policy;
pub(crate) use policy::Usage;

/// Bytes that pressure leaves beside metadata and unreclaimable memory: some blocks, so that one large request does
/// not take all.
const FLOOR: u64 = 2 * MIN_LIMIT;

/// The reason why a cache stays below its configured limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PressureSource {
    /// A memory cgroup has too little room left.
    Cgroup,
    /// The machine has too little memory left.
    Machine,
    /// Tasks are stalled because memory is short (PSI).
    Stalls,
}

/// How a cache follows the pressure from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PressureStats {
    /// Whether the cache follows it: see `MmConfig::external_pressure`.
    pub followed: bool,
    /// The configured limit.
    pub configured_bytes: u64,
    /// The effective limit; less than the configured one under pressure.
    pub effective_bytes: u64,
    /// Why it is below the configured one.
    pub source: Option<PressureSource>,
    /// Steps by which the limit shrank, ever. A step is a 64th of the configured limit, in whole
    /// blocks.
    pub steps_down: u64,
    /// Steps by which it grew again, ever.
    pub steps_up: u64,
}

#[derive(Debug)]
pub(crate) struct Pressure {
    pub(crate) policy: Mutex<Policy>,
    pub(crate) follower: Mutex<Option<Follower>>,
    followed: bool,
    /// Looks that are to panic.
    #[cfg(all(test, not(any(loom, shuttle))))]
    inject_panics: foliocache_sync::atomic::AtomicU32,
}

#[derive(Debug)]
pub(crate) struct Follower {
    pub(crate) thread: thread::JoinHandle<()>,
    pub(crate) waker: Arc<Event>,
}

impl Pressure {
    /// The policy for a limit of `configured` bytes; with a monitor that works if pressure is to be followed.
    ///
    /// `frames` has no block yet: its limit becomes the size that the outside leaves now.
    pub(crate) fn new(
        configured: u64,
        follow: bool,
        frames: &Frames,
    ) -> Result<(Self, Option<Monitor>), MmError> {
        // In a model there is no outside.
        let follow = follow && !cfg!(any(loom, shuttle));
        let mut policy = Policy::new(configured);
        let mut monitor = follow.then(Monitor::new).transpose()?;
        if let Some(monitor) = &mut monitor {
            let outside = monitor.sample();
            adapt(&mut policy, frames, &outside, held(frames, 0, 0))?;
            if policy.effective() < configured {
                tracing::warn!(
                    configured,
                    effective = policy.effective(),
                    source = ?policy.source(),
                    "a memory limit that the surroundings have no room for"
                );
            }
        }
        let pressure = Self {
            policy: Mutex::new(policy),
            follower: Mutex::new(None),
            followed: follow,
            #[cfg(all(test, not(any(loom, shuttle))))]
            inject_panics: Default::default(),
        };
        Ok((pressure, monitor))
    }

    /// Stops the thread and waits for it, unless this is the thread. The cache is on its way out,
    /// so that the thread does not get hold of it any more.
    pub(crate) fn stop(&self) {
        let Some(Follower { thread, waker }) = self.follower.lock().take() else {
            return;
        };
        waker.set();
        if thread.thread().id() != thread::current().id() {
            let _ = thread.join();
        }
    }

    /// Makes `bytes` the configured limit, and the frames keep the effective one.
    ///
    /// Context: may block as `Frames::set_limit` does.
    pub(crate) fn configure(
        &self,
        frames: &Frames,
        bytes: u64,
        held: Usage,
    ) -> Result<(), MmError> {
        frames.check_limit(bytes)?;
        let mut policy = self.policy.lock();
        let floor = held.floor;
        let before = policy.configured;
        let effective = policy.configure(bytes, floor);
        frames.set_limit(effective).inspect_err(|_| {
            policy.configure(before, floor);
        })
    }

    pub(crate) fn stats(&self) -> PressureStats {
        let policy = self.policy.lock();
        PressureStats {
            followed: self.followed,
            configured_bytes: policy.configured,
            effective_bytes: policy.effective(),
            source: policy.source(),
            steps_down: policy.steps_down,
            steps_up: policy.steps_up,
        }
    }
}

/// The memory that the cache holds for certain. Index nodes and tables that may not be touched yet are not in it:
/// once they are touched they count as taken by others, which errs on the safe side.
pub(crate) fn held(frames: &Frames, descriptors: u64, unreclaimable: u64) -> Usage {
    let usage = frames.usage();
    let floor =
        Frames::limit_for(unreclaimable + FLOOR, usage.metadata_bytes).max(frames.least_limit());
    Usage {
        bytes: usage.held_bytes + usage.linear_bytes + descriptors,
        floor: floor.next_multiple_of(BLOCK_SIZE as u64),
    }
}

/// Feeds the observation to the policy, and has the frames keep its limit.
pub(crate) fn adapt(
    policy: &mut Policy,
    frames: &Frames,
    outside: &Outside,
    held: Usage,
) -> Result<(), MmError> {
    let now = Duration::from_nanos(monotonic_ns());
    let (before, source) = (policy.effective(), policy.source());
    let limit = policy.observe(now, outside, held);
    if limit == before {
        return Ok(());
    }
    match limit < before {
        true => {
            tracing::info!(from = before, to = limit, source = ?policy.source(), "memory is short outside: the limit shrinks");
        }
        false => {
            tracing::debug!(from = before, to = limit, ?source, "the limit grows again");
        }
    }
    frames.set_limit(limit)
}
