//! The kernel's notifications about memory that becomes short.
//!
//! # Model
//!
//! | source | where | becomes readable when |
//! |---|---|---|
//! | thresholds, `memory.pressure_level` | version 1, one eventfd | usage crosses a mark near the limit; reclaim finds little |
//! | `memory.events` | version 2 | the group met a limit |
//! | a trigger on a PSI file | both, with PSI | tasks stood still for a tenth of two seconds |
//!
//! A registration of version 1 lives as long as its eventfd, and is made anew when another group
//! is the tightest or its limit has changed.

use crate::Errno;
use crate::memory::cgroup::{Group, Version};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use rustix::fs::{Mode, OFlags};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Usage at which to wake: the limit minus these fractions of it.
const MARKS: [u64; 3] = [16, 32, 64];

/// 200 ms of stalls within two seconds, a window that needs no privilege.
const TRIGGER: &[u8] = b"some 200000 2000000\0";

/// The kernel's notification descriptors, as far as it has them.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// The group's directory and limit that `group` was armed for.
    armed: Option<(PathBuf, u64)>,
    group: Option<(OwnedFd, Version)>,
    stalls: Option<OwnedFd>,
    /// The trigger was tried. A refusal is final.
    tried: bool,
}

impl Events {
    /// Has the tightest of the limits watched, and stalls in `pressure`.
    pub(super) fn arm(
        &mut self,
        group: Option<&Group>,
        tightest: Option<(u64, &Path, u64)>,
        pressure: &Path,
    ) {
        if !std::mem::replace(&mut self.tried, true) {
            self.stalls = stall_trigger(pressure).ok();
        }
        let (Some(group), Some((_, dir, limit))) = (group, tightest) else {
            return;
        };
        let armed = (dir.to_owned(), limit);
        if self.armed.as_ref() == Some(&armed) {
            return;
        }
        let made = match group.version() {
            Version::V1 => thresholds(dir, limit),
            Version::V2 => events_file(dir),
        };
        self.group = made.ok().map(|fd| (fd, group.version()));
        self.armed = Some(armed);
    }

    /// The descriptors to poll, in the order that [`Events::take`] expects.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = PollFd<'_>> {
        let group = self.group.iter().map(|(fd, version)| {
            let flags = match version {
                Version::V1 => PollFlags::IN,
                Version::V2 => PollFlags::PRI,
            };
            PollFd::new(fd, flags)
        });
        let stalls = self.stalls.iter();
        group.chain(stalls.map(|fd| PollFd::new(fd, PollFlags::PRI)))
    }

    /// Reads the descriptors, so that they are quiet again; returns whether any had an event.
    pub(super) fn take(&mut self, woken: &[PollFlags]) -> bool {
        let mut woken = woken.iter();
        let mut spoke = false;
        if let Some((fd, version)) = &self.group
            && woken.next().is_some_and(|flags| !flags.is_empty())
        {
            spoke = true;
            match version {
                Version::V1 => _ = rustix::io::read(fd, &mut [0; 8]),
                // Reading it again makes it quiet. When its group is gone it never will be.
                Version::V2 if rustix::io::pread(fd, &mut [0; 512], 0).is_err() => {
                    self.group = None;
                }
                Version::V2 => {}
            }
        }
        if let Some(flags) = woken.next()
            && !flags.is_empty()
        {
            spoke = true;
            // The group that the trigger was for is gone.
            if flags.contains(PollFlags::ERR) {
                self.stalls = None;
            }
        }
        spoke
    }
}

/// An eventfd for version 1: usage crossed a mark, or reclaim finds little.
fn thresholds(dir: &Path, limit: u64) -> Result<OwnedFd, Errno> {
    let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let register = |file: &str, argument: String| -> Result<(), Errno> {
        let file = open(&dir.join(file), OFlags::RDONLY)?;
        let control = open(&dir.join("cgroup.event_control"), OFlags::WRONLY)?;
        let (to, of) = (fd.as_raw_fd(), file.as_raw_fd());
        rustix::io::write(&control, format!("{to} {of} {argument}").as_bytes())?;
        Ok(())
    };
    for part in MARKS {
        register("memory.usage_in_bytes", (limit - limit / part).to_string())?;
    }
    // A kernel without it still has the marks.
    let _ = register("memory.pressure_level", "medium".to_owned());
    Ok(fd)
}

fn events_file(dir: &Path) -> Result<OwnedFd, Errno> {
    let fd = open(&dir.join("memory.events"), OFlags::RDONLY)?;
    // Earlier events are no news.
    rustix::io::pread(&fd, &mut [0; 512], 0)?;
    Ok(fd)
}

/// A trigger on a file in the format of PSI, which becomes readable while tasks stand still.
fn stall_trigger(file: &Path) -> Result<OwnedFd, Errno> {
    let fd = open(file, OFlags::RDWR | OFlags::NONBLOCK)?;
    rustix::io::write(fd.as_fd(), TRIGGER)?;
    Ok(fd)
}

fn open(file: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    Ok(rustix::fs::open(
        file,
        flags | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}
