//! Where log lines go: standard error, or a file that can be opened anew.
//!
//! # Model
//!
//! Without a file the lines go to standard error. With one they go there alone, and what the command says on standard
//! error goes there, too. Each line is appended with one call, so a file that was renamed and opened anew has whole lines.
//!
//! # Locking
//!
//! The lock of the file protects the descriptor. A line is written under it.

use crate::status::{beside_the_line, say};
use foliocache_sys::Errno;
use foliocache_sys::process::{detach_standard_streams, set_standard_error};
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

struct LogFile {
    path: PathBuf,
    file: Mutex<File>,
    /// Standard error is the file, too. `Relaxed`: set before the first thread that could say anything is started.
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
        // That something works again is for those who were told that it does not.
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

/// Does what a hang-up asks for: opens the log file anew, as after it was renamed. If that fails, the lines go on to the old
/// file. Without a log file nothing happens.
pub(crate) fn hang_up() {
    let Some(log) = LOG.get() else {
        tracing::debug!("SIGHUP: there is no log file to open anew, and the mount goes on");
        return;
    };
    match open(&log.path) {
        Ok(file) => {
            if is_standard_error() {
                // What fails is the old file's descriptor, which is kept then.
                let _ = set_standard_error(file.as_fd());
            }
            *log.file.lock().unwrap_or_else(PoisonError::into_inner) = file;
            tracing::info!("SIGHUP: the log file is opened anew");
        }
        Err(why) => say(&format!("SIGHUP: {why}; the log goes on in the old file")),
    }
}

/// Leaves the standard streams of whoever started the process. Standard error becomes the log file, so that nothing is lost that
/// a library or a panic says there; without a log file all of it is lost.
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

/// Whether what is written to standard error is in the log file by that.
pub(crate) fn is_standard_error() -> bool {
    let relaxed = Ordering::Relaxed;
    LOG.get()
        .is_some_and(|log| log.is_standard_error.load(relaxed))
}

/// Appends to the log file, if there is one, what the command says on standard error.
pub(crate) fn note(text: &str) {
    let Some(log) = LOG.get() else { return };
    let mut line = String::new();
    // Neither writing to a string nor a full disk is a reason to stop.
    let _ = SystemTime.format_time(&mut Writer::new(&mut line));
    let _ = log.append(format!("{line} {text}\n").as_bytes());
}

/// The place of log lines. That nobody listens any more, as after the terminal was closed, is no error: the subscriber
/// would tell of it on standard error, which may be what is gone.
struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let _ = match LOG.get() {
            Some(log) => log.append(line),
            None => beside_the_line(|| io::stderr().write_all(line)),
        };
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
