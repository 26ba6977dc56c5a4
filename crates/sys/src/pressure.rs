//! How short of memory the process's surroundings are: cgroup limits, the machine, stalls.
//!
//! # Model
//!
//! ```text
//!   sample ── /proc/self/cgroup, its groups' limit, usage, stat ─▶ a Level for each limit
//!          ── /proc/meminfo ─────────────────────────────────────▶ the machine's Level
//!          └─ memory.pressure of the group, else of the machine ─▶ Stalls
//!   wait   ── time is over, a waker, or the kernel says that memory became short
//! ```
//!
//! The kernel's notifications depend on its features: under version 1, thresholds of the usage and
//! `memory.pressure_level`; under version 2, `memory.events`; with PSI, a trigger on stalls. All
//! are optional and only shorten the wait: without them a sample is taken when the timeout expires.
//! Only the sample counts.
//!
//! The process may be moved to another group at any time, so each sample looks where it is.
//!
//! # Invariants
//!
//! 1. A missing or unreadable file is no error: its figure is missing from the sample.

mod events;
#[cfg(test)]
mod tests;

use crate::Errno;
use crate::event::Event;
use crate::lock::Arc;
use crate::memory::cgroup::{Group, field};
use crate::memory::resident::kib_in;
use events::Events;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The origin of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LevelKind {
    /// A memory cgroup that the process is in.
    Cgroup,
    /// The machine, by its memory.
    Machine,
}

/// One limit and its usage, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// The origin of the limit.
    pub kind: LevelKind,
    /// Bytes that may be used.
    pub limit: u64,
    /// Bytes in use. The kernel's clean page cache is not counted: it makes room by itself.
    pub used: u64,
}

/// Time that tasks lost because memory was short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stalls {
    /// Microseconds in which at least one task stood still, ever.
    pub total_us: u64,
    /// Tasks of the process's own cgroup; else of the whole machine.
    pub own_group: bool,
}

/// The limits around the process at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outside {
    /// Every limit that is known, in no order.
    pub levels: Vec<Level>,
    /// Stalls, where the kernel counts them.
    pub stalls: Option<Stalls>,
}

impl Outside {
    /// The level with the smallest limit; `None` where none is known.
    pub fn smallest(&self) -> Option<Level> {
        self.levels.iter().copied().min_by_key(|level| level.limit)
    }
}

/// Looks at the process's surroundings, and sleeps until they may have changed.
#[derive(Debug)]
pub struct Monitor {
    /// Where the process's own files are: `/proc`.
    proc: PathBuf,
    wake: Arc<Event>,
    /// The text that named `group`, the group that the process was in when it was last looked for.
    named: String,
    group: Option<Group>,
    events: Events,
}

impl Monitor {
    /// A monitor of this process. Costs three or four descriptors.
    ///
    /// # Errors
    /// No descriptor could be had.
    pub fn new() -> Result<Monitor, Errno> {
        Monitor::at(Path::new("/proc"))
    }

    fn at(proc: &Path) -> Result<Monitor, Errno> {
        Ok(Monitor {
            proc: proc.to_owned(),
            wake: Arc::new(Event::new()?),
            named: String::new(),
            group: None,
            events: Events::default(),
        })
    }

    /// An event that ends the sleep, or the next one.
    pub fn waker(&self) -> Arc<Event> {
        Arc::clone(&self.wake)
    }

    /// Looks at everything. Reads some files, which takes 50 to 200 µs; blocks on nothing else.
    pub fn sample(&mut self) -> Outside {
        self.find_group();
        let mut levels = Vec::new();
        let group = self.group.as_ref();
        let mut tightest: Option<(u64, &Path, u64)> = None;
        if let Some(group) = group {
            for dir in group.levels() {
                let own = dir == group.dir();
                let limit = group.limit(dir);
                if limit.is_none() && !own {
                    continue;
                }
                let (reclaimable, hidden) = group.stat(dir);
                // A limit of a group out of sight is shared with other groups out of sight. Taking it
                // for this group's own is the best guess.
                let hidden = hidden.filter(|_| own);
                let limit = limit.into_iter().chain(hidden).min();
                let (Some(limit), Some(usage)) = (limit, group.usage(dir)) else {
                    continue;
                };
                let used = usage.saturating_sub(reclaimable);
                levels.push(Level {
                    kind: LevelKind::Cgroup,
                    limit,
                    used,
                });
                let room = limit.saturating_sub(used);
                if tightest.is_none_or(|(least, ..)| room < least) {
                    tightest = Some((room, dir, limit));
                }
            }
        }
        let pressure = self.pressure_file(group);
        self.events.arm(group, tightest, &pressure.0);
        levels.extend(self.machine());
        Outside {
            levels,
            stalls: stalls_in(&pressure.0, pressure.1),
        }
    }

    /// Sleeps until `timeout` is over, a [waker](Monitor::waker) wakes, or the kernel says that memory is short.
    /// Returns whether the kernel did.
    ///
    /// Context: blocks.
    pub fn wait(&mut self, timeout: Duration) -> bool {
        self.wait_for(timeout, true)
    }

    /// As [`Monitor::wait`], deaf to the kernel: after an event that meant nothing.
    pub fn rest(&mut self, timeout: Duration) {
        self.wait_for(timeout, false);
    }

    fn wait_for(&mut self, timeout: Duration, hear: bool) -> bool {
        let timeout = Timespec {
            tv_sec: timeout.as_secs().min(3600) as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let mut fds = vec![PollFd::new(self.wake.fd(), PollFlags::IN)];
        if hear {
            fds.extend(self.events.descriptors());
        }
        // A signal that interrupts it ends the sleep early, which does no harm.
        let _ = poll(&mut fds, Some(&timeout));
        let woken: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        if !woken[0].is_empty() {
            self.wake.clear();
        }
        hear && self.events.take(&woken[1..])
    }

    /// Looks for the process's group, if the process was moved since.
    fn find_group(&mut self) {
        let named = fs::read_to_string(self.proc.join("self/cgroup")).unwrap_or_default();
        if self.named == named {
            return;
        }
        let mounts = fs::read_to_string(self.proc.join("self/mountinfo")).unwrap_or_default();
        self.group = Group::find(&named, &mounts);
        self.named = named;
        self.events = Events::default();
    }

    /// The file that counts stalls, and whether it is the process's own group's.
    fn pressure_file(&self, group: Option<&Group>) -> (PathBuf, bool) {
        let own = group.map(|group| group.dir().join("memory.pressure"));
        match own.filter(|own| own.exists()) {
            Some(own) => (own, true),
            None => (self.proc.join("pressure/memory"), false),
        }
    }

    fn machine(&self) -> Option<Level> {
        let text = fs::read_to_string(self.proc.join("meminfo")).ok()?;
        let limit = kib_in(&text, "MemTotal")?;
        Some(Level {
            kind: LevelKind::Machine,
            limit,
            used: limit.saturating_sub(kib_in(&text, "MemAvailable")?),
        })
    }
}

/// The stalls in a file of PSI's format.
fn stalls_in(file: &Path, own_group: bool) -> Option<Stalls> {
    let text = fs::read_to_string(file).ok()?;
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    // "avg10=0.00 avg60=0.00 avg300=0.00 total=0": one field a line, then.
    let fields = some.replace(' ', "\n").replace('=', " ");
    Some(Stalls {
        total_us: field(&fields, "total")?,
        own_group,
    })
}
