//! The cost of a pass: elapsed time and processor time.
//!
//! # Model
//!
//! A [`Meter`] reads the clock and the processor time of this process, including its rings' workers and the cache's
//! threads, and the part of those threads, which it recognises by name. In a memory cgroup the callers reclaim the
//! pages. The work of the kernel's threads meanwhile (writeback, completions) is counted apart: it is the whole
//! machine's, so on a shared machine it is not ours alone.

use foliocache_sys::testing::process_cpu_time;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Seconds of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cost {
    /// From beginning to end.
    pub(crate) seconds: f64,
    /// Of a processor, in the process that did the work.
    pub(crate) process: f64,
    /// The part of `process` in the cache's thread that reclaims.
    pub(crate) reclaim: f64,
    /// The part of `process` in the cache's other threads and in workers of rings.
    pub(crate) background: f64,
    /// Of a processor, in the kernel's own threads; of the whole machine.
    pub(crate) kernel_threads: f64,
}

/// Measures from its making to its end.
pub(crate) struct Meter {
    start: Instant,
    process: Duration,
    threads: HashMap<u32, (Part, u64)>,
    kernel: KernelThreads,
}

/// The purpose of a thread of this process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Reclaim,
    Background,
}

impl Part {
    /// None for callers. The kernel keeps 15 bytes of a name.
    fn of(name: &str) -> Option<Self> {
        match name.trim_end() {
            "foliocache-recl" => Some(Self::Reclaim),
            name if name.starts_with("foliocache-") || name.starts_with("iou-") => {
                Some(Self::Background)
            }
            _ => None,
        }
    }
}

/// The processor time of each thread of this process that is no caller, in nanoseconds.
fn threads() -> HashMap<u32, (Part, u64)> {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten();
    let each = threads.flatten().filter_map(|thread| {
        let path = thread.path();
        let part = Part::of(&fs::read_to_string(path.join("comm")).ok()?)?;
        let id = thread.file_name().to_str()?.parse().ok()?;
        Some((id, (part, scheduled(&path)?)))
    });
    each.collect()
}

/// Nanoseconds that a thread worked, by its folder in /proc.
fn scheduled(folder: &Path) -> Option<u64> {
    let text = fs::read_to_string(folder.join("schedstat")).ok()?;
    text.split(' ').next()?.parse().ok()
}

impl Meter {
    pub(crate) fn start() -> Self {
        Self {
            kernel: KernelThreads::now(),
            threads: threads(),
            process: process_cpu_time(),
            start: Instant::now(),
        }
    }

    /// The cost so far.
    pub(crate) fn stop(&self) -> Cost {
        let seconds = self.start.elapsed().as_secs_f64();
        let process = process_cpu_time().saturating_sub(self.process);
        let threads = threads();
        let of = |wanted: Part| {
            let each = threads.iter().filter(|(_, (part, _))| *part == wanted);
            let ns = each.map(|(id, (_, ns))| ns.saturating_sub(self.before(*id)));
            Duration::from_nanos(ns.sum()).as_secs_f64()
        };
        Cost {
            seconds,
            process: process.as_secs_f64(),
            reclaim: of(Part::Reclaim),
            background: of(Part::Background),
            kernel_threads: self.kernel.since(),
        }
    }

    /// The processor time of a thread at the start.
    fn before(&self, thread: u32) -> u64 {
        self.threads.get(&thread).map_or(0, |(_, ns)| *ns)
    }
}

/// The processor time of each of the kernel's threads, in nanoseconds.
struct KernelThreads(HashMap<u32, u64>);

/// The process whose children are the kernel's threads.
const KTHREADD: &str = "2";

impl KernelThreads {
    /// As they are now. Threads that cannot be seen (in a container) count nothing.
    fn now() -> Self {
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        Self(ids.filter_map(|id| Some((id, worked(id)?))).collect())
    }

    /// Seconds that they worked since.
    fn since(&self) -> f64 {
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
    scheduled(Path::new(&format!("/proc/{id}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{self, TryRecvError};

    fn this_thread() -> u32 {
        let link = fs::read_link("/proc/thread-self").unwrap();
        link.file_name().unwrap().to_str().unwrap().parse().unwrap()
    }

    #[test]
    fn work_is_measured() {
        let meter = Meter::start();
        let mut sum = 0_u64;
        while meter.stop().process < 0.01 {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        let cost = meter.stop();
        assert!(cost.seconds > 0.0 && cost.process >= 0.01);
        assert!(!threads().contains_key(&this_thread()), "a caller");
        assert!(cost.kernel_threads >= 0.0);
        assert_eq!(
            worked(std::process::id()),
            None,
            "no thread of the kernel's"
        );
    }

    #[test]
    fn threads_are_told_apart_by_name() {
        // As the kernel has them.
        assert!(Part::of("foliocache-recl\n") == Some(Part::Reclaim));
        for name in ["foliocache-flus\n", "iou-wrk-17\n"] {
            assert!(Part::of(name) == Some(Part::Background), "{name}");
        }
        assert!(Part::of("foliocache\n").is_none());
    }

    /// Threads of other tests belong to the process too: only the time that this test adds is
    /// certain.
    #[test]
    fn time_of_the_reclaimer_is_its_own() {
        let meter = Meter::start();
        let (sender, ended) = mpsc::channel::<()>();
        let (its_id, id) = mpsc::channel();
        let spin = move || {
            its_id.send(this_thread()).unwrap();
            // Alive until it was measured.
            while ended.try_recv() == Err(TryRecvError::Empty) {}
        };
        let named = std::thread::Builder::new().name("foliocache-reclaim".to_owned());
        let thread = named.spawn(spin).unwrap();
        while meter.stop().reclaim < 0.005 {
            std::thread::yield_now();
        }
        let (part, _) = threads()[&id.recv().unwrap()];
        assert!(part == Part::Reclaim, "not a part of the background");
        drop(sender);
        thread.join().unwrap();
    }
}
