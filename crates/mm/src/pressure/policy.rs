//! The policy: how large the cache may be, from what was seen outside. No clock, no file, no lock.
//!
//! # Model
//!
//! ```text
//!  configured ──────────────────────────────────────────────  what the user asked for
//!                 cap ───────────────┐        ┌───┘           whole steps of a 64th
//!                                    └────────┘
//!  allowed  ~~~~~~~~~~~~~~~~~~~~~~\__/~~~~~~~~~~~~~~~~~~~~~   held + least(limit − used − reserve)
//! ```
//!
//! The *allowed* size does not depend on what the cache holds: each byte that it takes is a byte of room less
//! (decision 10). Stalls say only that memory is short, not how much: each second of them takes a stride (a 16th) of
//! what is held.
//!
//! # Invariants
//!
//! 1. `floor ≤ effective ≤ configured` after each look, unless the user configured less than the floor.
//!    The floor leaves room to work beside metadata and what cannot be reclaimed: below it all callers would get
//!    ENOMEM, and the system would gain nothing.
//! 2. It shrinks at once, by as many steps as are needed. It grows a stride at a time, not before
//!    [`CALM`] without pressure, and only where half a stride more than that is allowed: what makes it
//!    grow cannot make it shrink.

use foliocache_sys::pressure::{Level, LevelKind, Outside};
use std::time::Duration;

use super::PressureSource;
use crate::frames::BLOCK_SIZE;

const MIB: u64 = 1 << 20;

/// The part of the configured limit that is one step: what is allowed is rounded down to whole ones.
const STEPS: u64 = 64;

/// The part of it that is one stride: as far as it grows at a time, and as much as a second of stalls takes.
const STRIDES: u64 = 16;

/// Time without pressure before the cache grows again.
pub(crate) const CALM: Duration = Duration::from_secs(3);

const GROWTH_PAUSE: Duration = Duration::from_millis(500);

const STALL_PAUSE: Duration = Duration::from_secs(1);

const STALL_WINDOW: Duration = Duration::from_millis(200);

/// The part of the time that must be lost to stalls before they count: a tenth.
const STALL_PART: u64 = 10;

/// Stalls of the whole machine count while it has less than this part of its memory left.
const MACHINE_SHORT_PART: u64 = 8;

/// Pause before the next look while nothing is near, while something is, and under pressure.
const PAUSES: [Duration; 3] = [
    Duration::from_secs(1),
    Duration::from_millis(250),
    Duration::from_millis(100),
];

/// Bytes left free under a limit, for what others take between two looks.
fn reserve(level: &Level) -> u64 {
    match level.kind {
        LevelKind::Cgroup => (level.limit / 32).clamp(4 * MIB, 64 * MIB),
        LevelKind::Machine => (level.limit / 64).clamp(16 * MIB, 256 * MIB),
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    /// Bytes that would go back to the system if the cache were gone, at least.
    pub(crate) bytes: u64,
    /// Least limit under which it can work, unreclaimable memory included.
    pub(crate) floor: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Policy {
    pub(crate) configured: u64,
    /// The bytes that the outside leaves, in whole steps; `None` while that is no less than
    /// configured.
    cap: Option<u64>,
    /// The size that the last look found allowed, and the level that limits it; `None` when nothing
    /// does.
    allowed: Option<(u64, PressureSource)>,
    source: Option<PressureSource>,
    last_pressure: Duration,
    last_growth: Duration,
    /// Stalls and time at the beginning of the current measurement.
    stalls_from: Option<(u64, Duration)>,
    pub(crate) steps_down: u64,
    pub(crate) steps_up: u64,
}

impl Policy {
    pub(crate) fn new(configured: u64) -> Self {
        Self {
            configured,
            ..Self::default()
        }
    }

    pub(crate) fn effective(&self) -> u64 {
        self.cap
            .map_or(self.configured, |cap| cap.min(self.configured))
    }

    /// Why the limit is below the configured one.
    pub(crate) fn source(&self) -> Option<PressureSource> {
        self.source.filter(|_| self.effective() < self.configured)
    }

    /// The user asks for another limit; returns the one to keep.
    pub(crate) fn configure(&mut self, bytes: u64, floor: u64) -> u64 {
        self.configured = bytes;
        match (self.cap, self.allowed) {
            (Some(cap), _) if cap >= bytes => self.cap = None,
            (None, Some((allowed, source))) if allowed < bytes => {
                self.cap = Some(self.steps_in(allowed).max(floor));
                self.source = Some(source);
            }
            _ => {}
        }
        self.effective()
    }

    /// Takes in what was seen at `now`; returns the limit to keep.
    pub(crate) fn observe(&mut self, now: Duration, seen: &Outside, held: Usage) -> u64 {
        let before = self.effective();
        let tightest = seen
            .levels
            .iter()
            .map(|level| (allowed(level, held.bytes), level.kind.into()))
            .min_by_key(|&(allowed, _)| allowed);
        self.allowed = tightest;
        let stalled = self.stalled(now, seen);
        match tightest {
            Some((allowed, source)) if allowed < before => {
                self.shrink(now, self.steps_in(allowed), held.floor, source);
            }
            _ if stalled => {
                if now.saturating_sub(self.last_pressure) >= STALL_PAUSE {
                    let less = before.min(held.bytes).saturating_sub(self.stride());
                    self.shrink(now, less, held.floor, PressureSource::Stalls);
                }
            }
            _ => self.grow(now),
        }
        // Unreclaimable memory may have grown since the limit shrank.
        if self.cap.is_some_and(|cap| cap < held.floor) {
            self.cap = Some(held.floor).filter(|&floor| floor < self.configured);
        }
        self.effective()
    }

    /// How long to wait for the next look, if the kernel does not say anything before.
    pub(crate) fn pause(&self) -> Duration {
        let margin = self.configured / 4;
        match (self.cap, self.allowed) {
            (Some(_), _) => PAUSES[2],
            (None, Some((allowed, _))) if allowed < self.configured.saturating_add(margin) => {
                PAUSES[1]
            }
            _ => PAUSES[0],
        }
    }

    fn step(&self) -> u64 {
        self.blocks_of_part(STEPS)
    }

    fn stride(&self) -> u64 {
        self.blocks_of_part(STRIDES)
    }

    /// A part of the configured limit, in whole blocks.
    fn blocks_of_part(&self, part: u64) -> u64 {
        (self.configured / part)
            .next_multiple_of(BLOCK_SIZE as u64)
            .max(BLOCK_SIZE as u64)
    }

    fn steps_in(&self, bytes: u64) -> u64 {
        bytes / self.step() * self.step()
    }

    fn shrink(&mut self, now: Duration, to: u64, floor: u64, source: PressureSource) {
        self.last_pressure = now;
        let before = self.effective();
        let to = to.max(floor);
        if to >= before {
            return;
        }
        self.cap = Some(to);
        self.source = Some(source);
        self.steps_down += (before - to).div_ceil(self.step());
    }

    fn grow(&mut self, now: Duration) {
        let Some(cap) = self.cap else { return };
        let calm = now.saturating_sub(self.last_pressure) >= CALM;
        if !calm || now.saturating_sub(self.last_growth) < GROWTH_PAUSE {
            return;
        }
        let allowed = self.allowed.map_or(u64::MAX, |(allowed, _)| allowed);
        let room = allowed.saturating_sub(self.stride() / 2);
        let wanted = (cap + self.stride()).min(self.configured);
        let next = match wanted <= room {
            true => wanted,
            false => self.steps_in(room),
        };
        if next <= cap {
            return;
        }
        self.last_growth = now;
        self.steps_up += (next - cap).div_ceil(self.step());
        self.cap = (next < self.configured).then_some(next);
    }

    /// Whether too much time was lost to stalls since the last measurement.
    fn stalled(&mut self, now: Duration, seen: &Outside) -> bool {
        let Some(stalls) = seen.stalls else {
            self.stalls_from = None;
            return false;
        };
        let Some((total, since)) = self.stalls_from else {
            self.stalls_from = Some((stalls.total_us, now));
            return false;
        };
        let over = now.saturating_sub(since);
        if over < STALL_WINDOW {
            return false;
        }
        self.stalls_from = Some((stalls.total_us, now));
        let lost = stalls.total_us.saturating_sub(total);
        if u128::from(lost * STALL_PART) < over.as_micros() {
            return false;
        }
        stalls.own_group
            || seen.levels.iter().any(|level| {
                level.kind == LevelKind::Machine
                    && level.limit.saturating_sub(level.used) < level.limit / MACHINE_SHORT_PART
            })
    }
}

/// Bytes that a level leaves the cache if the other levels stay as they are.
fn allowed(level: &Level, held: u64) -> u64 {
    // A limit may have been lowered below what is used.
    (held + level.limit).saturating_sub(level.used + reserve(level))
}

impl From<LevelKind> for PressureSource {
    fn from(kind: LevelKind) -> Self {
        match kind {
            LevelKind::Cgroup => Self::Cgroup,
            LevelKind::Machine => Self::Machine,
        }
    }
}
