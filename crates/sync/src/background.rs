//! Background threads that outlive a panic.
//!
//! # Model
//!
//! ```text
//!   spawn ─▶ run ──returns──▶ the thread ends
//!             ▲ │ panics
//!   a pause ──┘ └──▶ counted, reported
//! ```
//!
//! A background thread is joined only at the end, so a panic would otherwise end it silently, and with it reclaim
//! or writeback. Locks of this crate are not poisoned by a panic, and guards are dropped while it unwinds, so the
//! restarted thread finds the same state as a new one.
//!
//! In a model nothing is caught: there a panic is how the checker learns that it found something.
//!
//! # Memory ordering
//!
//! The count is a statistic: `Relaxed`.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use foliocache_sys::signal::undisturbed;

use crate::atomic::{AtomicU64, Ordering};
use crate::time::{Duration, sleep};
use crate::{Arc, thread};

/// Pause after the first panic, doubled for each later one.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// Longest pause between a panic and the restart.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The panics of the background threads of one cache.
#[derive(Debug)]
pub struct Panics {
    count: AtomicU64,
    report: fn(thread: &str, message: &str),
}

impl Panics {
    /// None so far. Each will be given to `report`, with the name of the thread.
    pub fn new(report: fn(thread: &str, message: &str)) -> Panics {
        Panics {
            count: AtomicU64::new(0),
            report,
        }
    }

    /// Panics so far.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Runs `work` for the background thread called `thread`; `None` if it panicked, which is then counted
    /// and reported.
    pub fn catch<R>(&self, thread: &str, work: impl FnOnce() -> R) -> Option<R> {
        if cfg!(any(loom, shuttle)) {
            return Some(work());
        }
        let panic = match catch_unwind(AssertUnwindSafe(work)) {
            Ok(result) => return Some(result),
            Err(panic) => panic,
        };
        self.count.fetch_add(1, Ordering::Relaxed);
        (self.report)(thread, message(&*panic));
        // Dropping the payload could panic again.
        std::mem::forget(panic);
        None
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// Starts a background thread that runs `run` until it returns, again after each panic. Signal handlers of the
/// program do not run on it.
///
/// Joining the thread may wait for the pause after a panic, a second at most.
///
/// # Errors
/// The kernel refuses a thread.
pub fn spawn(
    name: &'static str,
    panics: &Arc<Panics>,
    mut run: impl FnMut() + Send + 'static,
) -> io::Result<thread::JoinHandle<()>> {
    let panics = Arc::clone(panics);
    let run = move || {
        let mut pause = FIRST_PAUSE;
        while panics.catch(name, &mut run).is_none() {
            sleep(pause);
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    };
    undisturbed(|| thread::Builder::new().name(name.to_owned()).spawn(run))
}

#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) mod tests {
    use super::*;
    use std::sync::Mutex;

    static REPORTS: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

    /// Whether the calling thread blocks SIGUSR1, a signal of the program's.
    pub(crate) fn is_undisturbed() -> bool {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
        u64::from_str_radix(line.unwrap().trim(), 16).unwrap() & 1 << 9 != 0
    }

    #[test]
    fn handlers_of_the_program_do_not_run_on_a_background_thread() {
        let panics = Arc::new(Panics::new(|_, message| panic!("{message}")));
        let run = || assert!(is_undisturbed());
        spawn("worker", &panics, run).unwrap().join().unwrap();
        assert!(!is_undisturbed());
    }

    #[test]
    fn a_thread_starts_anew_after_each_panic_until_it_returns() {
        let panics = Arc::new(Panics::new(|thread, message| {
            let report = (thread.to_owned(), message.to_owned());
            REPORTS.lock().unwrap().push(report);
        }));
        let mut runs = 0;
        let run = move || {
            runs += 1;
            match runs {
                1 => panic!("the first"),
                2 => panic!("number {runs}"),
                3 => std::panic::panic_any(3),
                _ => {}
            }
        };
        let thread = spawn("worker", &panics, run).unwrap();
        thread.join().unwrap();
        assert_eq!(panics.count(), 3);
        let reports = REPORTS.lock().unwrap();
        let expected = ["the first", "number 2", "no message"];
        assert_eq!(reports.len(), 3);
        for (report, expected) in reports.iter().zip(expected) {
            assert_eq!(*report, ("worker".to_owned(), expected.to_owned()));
        }
    }
}
