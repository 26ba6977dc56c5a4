//! Where log lines and the command's messages go: standard error, or a file that can be opened anew.
//!
//! # Model
//!
//! Log lines go to the file if there is one, otherwise to standard error. Messages ([`say`]) go to standard error, and to the
//! file too. Each line is appended with one call, so a file that was renamed and opened anew has whole lines. A live line at
//! the bottom of the terminal is taken away while something is written to standard error ([`write_around`]).
//!
//! # Locking
//!
//! The lock of the file protects the descriptor. A line is written under it.

use foliocache_sys::Errno;
use foliocache_sys::process::{detach_standard_streams, set_standard_error};
use indicatif::ProgressBar;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

/// The log file, if there is one. There is one a process.
static LOG: OnceLock<LogFile> = OnceLock::new();

/// The live line on standard error, if there is one. There is one a process.
static LIVE_LINE: OnceLock<ProgressBar> = OnceLock::new();

struct LogFile {
    path: PathBuf,
    file: Mutex<File>,
    /// Standard error is the log file too. `Relaxed`: set before any thread starts that could write
    /// to it.
    is_standard_error: AtomicBool,
}

impl LogFile {
    fn append(&self, line: &[u8]) -> io::Result<()> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(line)
    }
}

fn open(path: &Path) -> Result<File, String> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600);
    let opened = options.open(path);
    opened.map_err(|error| format!("cannot open the log file {}: {error}", path.display()))
}

/// Sends failures and recoveries to standard error, or to the file at `path`; with `-v` also slow I/O, waits of writers and
/// memory that is short, and with each further `-v` more.
///
/// # Errors
/// The line to show when the file cannot be opened.
pub(crate) fn start(verbose: u8, path: Option<&Path>) -> Result<(), String> {
    if let Some(path) = path {
        // The working directory may be another one when it is opened anew.
        let path = std::path::absolute(path)
            .map_err(|error| format!("cannot open the log file {}: {error}", path.display()))?;
        let file = Mutex::new(open(&path)?);
        let is_standard_error = AtomicBool::new(false);
        let _ = LOG.set(LogFile {
            path,
            file,
            is_standard_error,
        });
    }
    let level = match verbose {
        // A reader of a failure also sees the recovery.
        0 => "warn,foliocache::recovery=info",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let filter = tracing_subscriber::EnvFilter::try_from_env("FOLIOCACHE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(level));
    let mut lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| LogWriter)
        .with_target(false);
    if path.is_some() {
        lines = lines.with_ansi(false);
    }
    lines.init();
    Ok(())
}

/// Keeps `live_line` apart from all that is written to standard error from now on.
pub(crate) fn write_around(live_line: ProgressBar) {
    let _ = LIVE_LINE.set(live_line);
}

/// Runs `write`, which writes to standard error, with the live line out of its way.
fn around_the_live_line<R>(write: impl FnOnce() -> R) -> R {
    match LIVE_LINE.get() {
        Some(line) => line.suspend(write),
        None => write(),
    }
}

/// Says something on standard error, and in the log file if there is one. A closed terminal is no reason to stop.
pub(crate) fn say(text: &str) {
    if !is_standard_error() {
        let _ = around_the_live_line(|| writeln!(io::stderr(), "foliocache: {text}"));
    }
    note(text);
}

/// Answers SIGHUP: opens the log file anew, as after it was renamed. If that fails, the lines go on to the old
/// file. Without a log file nothing happens.
pub(crate) fn hang_up() {
    let Some(log) = LOG.get() else {
        tracing::debug!("SIGHUP: there is no log file to open anew, and the mount goes on");
        return;
    };
    match open(&log.path) {
        Ok(file) => {
            if is_standard_error() {
                // If this fails, standard error stays the old file.
                let _ = set_standard_error(file.as_fd());
            }
            *log.file.lock().unwrap_or_else(PoisonError::into_inner) = file;
            tracing::info!("SIGHUP: the log file is opened anew");
        }
        Err(why) => say(&format!("SIGHUP: {why}; the log goes on in the old file")),
    }
}

/// Gives up the standard streams of the starter. Standard error becomes the log file, so messages of libraries and panics are
/// kept. Without a log file they are lost.
///
/// # Errors
/// There is no `/dev/null`.
pub(crate) fn leave_standard_error() -> Result<(), Errno> {
    let Some(log) = LOG.get() else {
        return detach_standard_streams(None);
    };
    detach_standard_streams(Some(
        log.file
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_fd(),
    ))?;
    log.is_standard_error.store(true, Ordering::Relaxed);
    Ok(())
}

/// Whether standard error is the log file.
fn is_standard_error() -> bool {
    let relaxed = Ordering::Relaxed;
    LOG.get()
        .is_some_and(|log| log.is_standard_error.load(relaxed))
}

/// Appends a message to the log file, if there is one.
fn note(text: &str) {
    let Some(log) = LOG.get() else { return };
    let mut line = String::new();
    // Neither writing to a string nor a full disk is a reason to stop.
    let _ = SystemTime.format_time(&mut Writer::new(&mut line));
    let _ = log.append(format!("{line} {text}\n").as_bytes());
}

/// The writer of log lines. It hides errors: the subscriber would report them on standard error, which may be the closed
/// terminal that caused them.
struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let _ = match LOG.get() {
            Some(log) => log.append(line),
            None => around_the_live_line(|| io::stderr().write_all(line)),
        };
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
