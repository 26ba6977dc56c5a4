//! Writing back and ending, and the list of what was lost.
//!
//! # Model
//!
//! ```text
//!  what programs stored into mappings ──▶ all dirty files ──▶ unmount, or cut programs off
//!                                                  ──▶ what came in meanwhile ──▶ the list
//! ```
//!
//! The work is done by a thread of its own, because a medium that does not answer may block it for
//! ever; the main thread goes on to listen. A second signal gives up: it lists what is not in the
//! source, file by file, and ends the process.

use crate::status::{INTERVAL, StatusLine, show};
use crate::{FAILED, status};
use foliocache::Cache;
use foliocache_fuse::Mount;
use foliocache_sys::signal::Signals;
use foliocache_sys::{Errno, dir};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// How often progress is said where no line is shown.
const PROGRESS: Duration = Duration::from_secs(3);

/// A mount with all that belongs to it.
pub(crate) struct Mounted {
    pub(crate) cache: Cache,
    pub(crate) mount: Mount,
}

/// What came of it.
#[derive(Default)]
struct Outcome {
    /// What the user should know though nothing is lost.
    notes: Vec<String>,
    /// What failed besides files.
    errors: Vec<String>,
    /// Files with data that is not in the source: bytes, and why.
    lost: BTreeMap<String, (u64, Option<Errno>)>,
}

/// Writes everything back and unmounts; the exit status says whether all of it went well.
pub(crate) fn end(mounted: Mounted, signals: &Signals, status: &StatusLine) -> ExitCode {
    let cache = mounted.cache.clone();
    let mount_point = mounted.mount.mount_point().to_owned();
    let (done, outcome) = mpsc::channel();
    let worker = thread::Builder::new()
        .name("shutdown".to_owned())
        .spawn(move || {
            // The receiver is gone only if the process is about to end.
            let _ = done.send(write_back_and_unmount(mounted));
        });
    if let Err(error) = worker {
        status.say(&format!("cannot start a thread: {error}"));
        return ExitCode::from(FAILED);
    }
    let mut said = Instant::now();
    let outcome = loop {
        match outcome.recv_timeout(Duration::ZERO) {
            Ok(outcome) => break outcome,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                status.say("writing back panicked");
                return ExitCode::from(FAILED);
            }
        }
        let left = not_durable(&cache);
        status.working(format!(
            "writing back, {} to go; another ^C gives up and loses what is left",
            show(left)
        ));
        if status.is_hidden() && said.elapsed() >= PROGRESS {
            said = Instant::now();
            status.say(&format!("writing back, {} to go", show(left)));
        }
        if let Ok(Some(signal)) = signals.wait(INTERVAL / 10) {
            status.clear();
            status.say(&format!("{} again: given up", signal.name()));
            // The mount dies with the process; out of the tree it is in nobody's way.
            let _ = dir::mount::abort(&mount_point);
            let outcome = Outcome {
                lost: not_written(&cache),
                ..Outcome::default()
            };
            let exit = report(&outcome, status);
            // The worker may be blocked for good: no destructor may wait for it.
            std::process::exit(exit.into());
        }
    };
    status.clear();
    ExitCode::from(report(&outcome, status))
}

fn write_back_and_unmount(mut mounted: Mounted) -> Outcome {
    let mut outcome = Outcome::default();
    let (cache, mount) = (&mounted.cache, &mut mounted.mount);
    if !mount.is_ended()
        && let Err(why) = mount.take_over_stores(|| write_back_mapped(mount.mount_point()))
    {
        outcome.errors.push(why);
    }
    // The errors are those that the second round finds again.
    let _ = cache.sync();
    if let Err(error) = mount.unmount() {
        if error.errno() == Errno::EBUSY {
            outcome.notes.push(format!(
                "{} is in use: programs in it are cut off",
                mount.mount_point().display()
            ));
        }
        if let Err(error) = mount.detach() {
            outcome
                .errors
                .push(format!("{}: {error}", mount.mount_point().display()));
        }
        tracing::debug!(%error, "cut off");
    }
    let synced = cache.sync();
    outcome.lost = not_written(cache);
    if let Err(error) = synced {
        if error.failed_files().is_empty() {
            outcome.errors.push(error.to_string());
        }
        for failed in error.failed_files() {
            let lost = outcome.lost.entry(failed.file.clone()).or_default();
            lost.1 = Some(failed.errno);
        }
    }
    if let Err(error) = cache.discard_unsynced() {
        outcome.errors.push(error.to_string());
    }
    outcome
}

/// Has another process run [`foliocache_fuse::write_back_mapped`]. What fails on the way to us is the kernel's to tell;
/// what reached us is listed file by file.
fn write_back_mapped(mount_point: &Path) -> Result<(), String> {
    let cannot = |error: std::io::Error| {
        format!("what programs stored into mapped files was not taken over: {error}")
    };
    let done = Command::new("/proc/self/exe")
        .arg("write-back-mapped")
        .arg(mount_point)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .map_err(cannot)?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    Err(said.trim().trim_start_matches("foliocache: ").to_owned())
}

/// Bytes that are not safely in the source.
fn not_durable(cache: &Cache) -> u64 {
    cache.stats().map_or(0, |stats| status::not_durable(&stats))
}

/// Files with data that is not safely in the source.
fn not_written(cache: &Cache) -> BTreeMap<String, (u64, Option<Errno>)> {
    let files = cache.unsynced_files().unwrap_or_default();
    let lost = |file: foliocache::UnsyncedFile| (file.file, (file.bytes, file.errno));
    files.into_iter().map(lost).collect()
}

/// Shows the outcome; returns the exit status.
fn report(outcome: &Outcome, status: &StatusLine) -> u8 {
    for note in outcome.notes.iter().chain(&outcome.errors) {
        status.say(note);
    }
    for (file, (bytes, errno)) in &outcome.lost {
        let why = errno.map_or("not written yet".to_owned(), |errno| errno.to_string());
        status.say(&format!("lost: {file}: {}: {why}", show(*bytes)));
    }
    if outcome.lost.is_empty() && outcome.errors.is_empty() {
        status.say("everything is written back");
        0
    } else {
        FAILED
    }
}
