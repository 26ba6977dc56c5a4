//! What a pass cost: time, and the processor's part of it.
//!
//! # Model
//!
//! A [`Meter`] looks at the clock and at the processor time of this process, its rings' workers and
//! the cache's own threads among them. What the kernel's threads did meanwhile (writing back,
//! completing I/O) is counted apart: it is the whole machine's, so on a machine that others use,
//! too, it is not ours alone.

use foliocache_sys::clock::process_cpu_time;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

/// Seconds of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// From beginning to end.
    pub seconds: f64,
    /// Of a processor, in the process that did the work.
    pub process: f64,
    /// Of a processor, in the kernel's own threads; of the whole machine.
    pub kernel_threads: f64,
}

/// Measures from its making to its end.
pub(crate) struct Meter {
    start: Instant,
    process: Duration,
}

impl Meter {
    pub(crate) fn start() -> Self {
        Self {
            process: process_cpu_time(),
            start: Instant::now(),
        }
    }

    /// The cost so far, but for the kernel's threads.
    pub(crate) fn stop(&self) -> Cost {
        let seconds = self.start.elapsed().as_secs_f64();
        let process = process_cpu_time().saturating_sub(self.process);
        Cost {
            seconds,
            process: process.as_secs_f64(),
            kernel_threads: 0.0,
        }
    }
}

/// What each of the kernel's threads has worked so far, in nanoseconds.
pub(crate) struct KernelThreads(HashMap<u32, u64>);

/// The process whose children are the kernel's threads.
const KTHREADD: &str = "2";

impl KernelThreads {
    /// As they are now. Threads that cannot be seen (in a container) count nothing.
    pub(crate) fn now() -> Self {
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        Self(ids.filter_map(|id| Some((id, worked(id)?))).collect())
    }

    /// Seconds that they worked since.
    pub(crate) fn since(&self) -> f64 {
        let now = Self::now().0;
        let each = now
            .iter()
            .map(|(id, ns)| ns.saturating_sub(self.0.get(id).copied().unwrap_or(0)));
        Duration::from_nanos(each.sum()).as_secs_f64()
    }
}

/// Nanoseconds that a thread of the kernel's worked; None for any other.
fn worked(id: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name may hold anything, so the fields begin behind its last parenthesis.
    let (_, fields) = stat.rsplit_once(')')?;
    let parent = fields.split_ascii_whitespace().nth(1)?;
    if parent != KTHREADD {
        return None;
    }
    let scheduled = fs::read_to_string(format!("/proc/{id}/schedstat")).ok()?;
    scheduled.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_measured() {
        let meter = Meter::start();
        let kernel = KernelThreads::now();
        let mut sum = 0_u64;
        while meter.stop().process < 0.01 {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        let cost = meter.stop();
        assert!(cost.seconds > 0.0 && cost.process >= 0.01);
        assert!(kernel.since() >= 0.0);
        assert_eq!(
            worked(std::process::id()),
            None,
            "no thread of the kernel's"
        );
    }
}
