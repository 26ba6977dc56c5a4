//! Shared by all workers: when to stop, how fast to go, and counts of the work done.
//!
//! # Model
//!
//! A [`Worker`] asks [`Worker::goes_on`] before each operation. That waits as long as the pace says, and is false at the end
//! of the round, or once any worker has failed. A governor sets the pace: it looks at the processor time of all processes
//! of the soak and makes the waits longer or shorter.

use foliocache_sim::{Rng, scramble};
use std::collections::BTreeMap;
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The result of a check or an operation, with the error in words.
pub(crate) type Done<T = ()> = Result<T, String>;

/// Adds the operation to an error.
pub(crate) trait Context<T> {
    fn context(self, what: impl FnOnce() -> String) -> Done<T>;
}

impl<T, E: std::fmt::Display> Context<T> for Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Done<T> {
        self.map_err(|error| format!("{}: {error}", what()))
    }
}

/// An error that may say that memory is short.
pub(crate) trait Short {
    fn is_short(&self) -> bool;
}

impl Short for foliocache::Error {
    fn is_short(&self) -> bool {
        // Memory file systems return the second; the disks have room.
        [foliocache::Errno::ENOMEM, foliocache::Errno::ENOSPC].contains(&self.errno())
    }
}

impl Short for std::io::Error {
    fn is_short(&self) -> bool {
        self.kind() == std::io::ErrorKind::OutOfMemory
    }
}

impl Short for rustix::io::Errno {
    fn is_short(&self) -> bool {
        *self == rustix::io::Errno::NOMEM
    }
}

/// Longest time that names may be refused for lack of memory while data waits to be written back.
const SHORT: Duration = Duration::from_secs(20);

/// How often that was. Relaxed: a figure.
pub(crate) static REFUSED: AtomicU64 = AtomicU64::new(0);

/// Repeats an operation that was refused for lack of memory. Metadata waits for no I/O: just after the bound became
/// smaller, a file may be refused until dirty data is written. A repeatable operation has changed nothing then.
pub(crate) fn patiently<T, E: Short>(mut act: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let begun = Instant::now();
    loop {
        match act() {
            Err(error) if error.is_short() && begun.elapsed() < SHORT => {
                REFUSED.fetch_add(1, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(20));
            }
            done => return done,
        }
    }
}

/// The longest wait between two operations of one worker.
const SLOWEST: Duration = Duration::from_millis(400);

/// How often the governor looks.
const LOOK: Duration = Duration::from_millis(200);

/// Ticks a second in `/proc/PID/stat`.
const TICKS: f64 = 100.0;

/// Shared by all workers, for the whole run.
#[derive(Debug, Default)]
pub(crate) struct Run {
    pub(crate) seed: u64,
    /// Percent of one processor that all processes together may use; 0 for no bound.
    pub(crate) cpu: u64,
    /// Relaxed, as the others: hints to loops, which publish nothing.
    stop: AtomicBool,
    failed: AtomicBool,
    wait_micros: AtomicU64,
    bytes: AtomicU64,
    done: Mutex<BTreeMap<&'static str, u64>>,
    failures: Mutex<Vec<String>>,
}

impl Run {
    pub(crate) fn new(seed: u64, cpu: u64) -> Run {
        Run {
            seed,
            cpu,
            ..Run::default()
        }
    }

    /// A worker of a round. Its draws follow from the seed, its name and the round.
    pub(crate) fn worker(&self, name: String, round: u64) -> Worker<'_> {
        let of_name = name.bytes().fold(round, |hash, byte| {
            scramble(hash.wrapping_mul(257).wrapping_add(u64::from(byte)))
        });
        let rng = Rng::new(self.seed ^ of_name);
        Worker {
            run: self,
            name,
            rng,
            done: BTreeMap::new(),
            bytes: 0,
        }
    }

    pub(crate) fn begin_round(&self) {
        self.stop.store(false, Ordering::Relaxed);
    }

    pub(crate) fn end_round(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    pub(crate) fn fail(&self, what: String) {
        println!("FAILED {what}");
        self.failures.lock().unwrap().push(what);
        self.failed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn failures(&self) -> Vec<String> {
        self.failures.lock().unwrap().clone()
    }

    /// All operations by kind, and the bytes that were read and written.
    pub(crate) fn totals(&self) -> (BTreeMap<&'static str, u64>, u64) {
        let done = self.done.lock().unwrap().clone();
        (done, self.bytes.load(Ordering::Relaxed))
    }

    fn wait(&self) -> Duration {
        Duration::from_micros(self.wait_micros.load(Ordering::Relaxed))
    }

    /// Sets the pace until `ended`: `processes` are those whose time counts, ourselves included.
    pub(crate) fn govern(&self, processes: &[u32], ended: &AtomicBool) {
        if self.cpu == 0 {
            return;
        }
        let mut before = (Instant::now(), cpu_seconds(processes));
        self.wait_micros.store(20_000, Ordering::Relaxed);
        while !ended.load(Ordering::Relaxed) {
            thread::sleep(LOOK);
            let now = (Instant::now(), cpu_seconds(processes));
            let share = 100.0 * (now.1 - before.1) / (now.0 - before.0).as_secs_f64();
            before = now;
            let wait = self.wait_micros.load(Ordering::Relaxed).max(100) as f64;
            let wait = match share > self.cpu as f64 {
                true => wait * 1.2,
                false => wait / 1.2,
            };
            let slowest = SLOWEST.as_micros() as f64;
            self.wait_micros
                .store(wait.min(slowest) as u64, Ordering::Relaxed);
        }
    }
}

/// Processor time of processes, those that have ended left out.
fn cpu_seconds(processes: &[u32]) -> f64 {
    let ticks = processes.iter().filter_map(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |i: usize| fields.get(i)?.parse::<u64>().ok();
        Some(number(11)? + number(12)?)
    });
    ticks.sum::<u64>() as f64 / TICKS
}

/// One thread's part of a round.
pub(crate) struct Worker<'a> {
    pub(crate) run: &'a Run,
    pub(crate) name: String,
    pub(crate) rng: Rng,
    done: BTreeMap<&'static str, u64>,
    bytes: u64,
}

impl Worker<'_> {
    /// Waits as the pace says; false if the worker is to end.
    pub(crate) fn goes_on(&self) -> bool {
        let stops = || self.run.stop.load(Ordering::Relaxed) || self.run.has_failed();
        if stops() {
            return false;
        }
        let until = Instant::now() + self.run.wait();
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            thread::sleep(left.min(Duration::from_millis(50)));
            if stops() {
                return false;
            }
        }
        true
    }

    /// Counts an operation.
    pub(crate) fn did(&mut self, kind: &'static str, bytes: usize) {
        *self.done.entry(kind).or_default() += 1;
        self.bytes += bytes as u64;
    }

    /// Waits until `done`; a prompt event may take `most` on a busy machine.
    pub(crate) fn wait_for(
        &self,
        what: &str,
        most: Duration,
        mut done: impl FnMut() -> Done<bool>,
    ) -> Done {
        let begun = Instant::now();
        while !done()? {
            if begun.elapsed() > most {
                return Err(format!("waited {most:?} for {what}"));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        let mut done = self.run.done.lock().unwrap();
        for (kind, times) in &self.done {
            *done.entry(kind).or_default() += times;
        }
        self.run.bytes.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

/// Runs a part of a worker's round, and notes its failure or its panic.
pub(crate) fn guarded<'a>(mut worker: Worker<'a>, part: impl FnOnce(&mut Worker<'a>) -> Done) {
    let (run, name) = (worker.run, worker.name.clone());
    let part = std::panic::AssertUnwindSafe(|| part(&mut worker));
    match std::panic::catch_unwind(part) {
        Ok(Ok(())) => {}
        Ok(Err(why)) => run.fail(format!("{name}: {why}")),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
            let text = text.unwrap_or_default();
            run.fail(format!("{name}: panicked: {text}"));
        }
    }
}

/// Where two contents differ first, in words; `None` if they do not.
pub(crate) fn difference(found: &[u8], expected: &[u8]) -> Option<String> {
    let at = found.iter().zip(expected).position(|(a, b)| a != b);
    let at = match at {
        None if found.len() == expected.len() => return None,
        None => found.len().min(expected.len()),
        Some(at) => at,
    };
    let show = |bytes: &[u8]| {
        format!(
            "{:02x?}",
            &bytes[at.min(bytes.len())..bytes.len().min(at + 16)]
        )
    };
    Some(format!(
        "differs from byte {at} on: {} bytes {}, expected {} bytes {}",
        found.len(),
        show(found),
        expected.len(),
        show(expected)
    ))
}

/// An error where two contents differ.
pub(crate) fn same(found: &[u8], expected: &[u8], what: impl FnOnce() -> String) -> Done {
    match difference(found, expected) {
        None => Ok(()),
        Some(difference) => Err(format!("{} {difference}", what())),
    }
}
