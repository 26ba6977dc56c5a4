//! Goes to the background, and notifies other processes once the mount serves.
//!
//! # Model
//!
//! ```text
//!  starter ──fork──▶ waits for a byte ───────────────▶ ends with it as its exit code
//!             └────▶ background: mounts, says lines on the starter's standard error
//!                      ├── serves: leaves the starter's directory and streams ──▶ 0
//!                      └── cannot ──▶ the exit code
//! ```
//!
//! The fork comes before the first thread, before signals are blocked and before the cache is made: none of them survives a fork.

use crate::{FAILED, Outcome, log};
use foliocache_sys::Errno;
use foliocache_sys::process::{Forked, fork_into_background, inherited_descriptor};
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::process::ExitCode;

/// The byte that reports to the starter that the mount serves. Other values are exit codes.
const SERVES: u8 = 0;

/// The process that continues, and its data.
pub(crate) enum Side {
    /// The process that was called, with the mount's outcome.
    Starter(Outcome),
    /// The one that is to mount.
    Mounting(Waiting),
}

/// The processes that wait for the mount to serve.
#[derive(Default)]
pub(crate) struct Waiting {
    /// The process that was called, if this one is in its background.
    starter: Option<PipeWriter>,
    ready_fd: Option<File>,
}

/// Takes the descriptor of `--ready-fd`, and forks for `--background`. To be called before anything is opened and before the
/// first thread is started.
///
/// # Errors
/// The line to show. There is no second process then.
pub(crate) fn begin(background: bool, ready_fd: Option<i32>) -> Result<Side, String> {
    let ready_fd = match ready_fd {
        None => None,
        Some(number) => match inherited_descriptor(number) {
            Ok(fd) => Some(File::from(fd)),
            Err(Errno::EINVAL) => {
                return Err(format!(
                    "--ready-fd {number} is a standard stream: give 3 or more"
                ));
            }
            Err(errno) => return Err(format!("--ready-fd {number}: {}", errno.description())),
        },
    };
    if !background {
        let starter = None;
        return Ok(Side::Mounting(Waiting { starter, ready_fd }));
    }
    let cannot = |why: String| format!("cannot go to the background: {why}");
    let (reader, writer) = io::pipe().map_err(|error| cannot(error.to_string()))?;
    match fork_into_background().map_err(|errno| cannot(errno.to_string()))? {
        Forked::Starter => {
            drop(writer);
            Ok(Side::Starter(wait(reader)))
        }
        Forked::Background => {
            drop(reader);
            let starter = Some(writer);
            Ok(Side::Mounting(Waiting { starter, ready_fd }))
        }
    }
}

/// Waits for the other process's report.
fn wait(mut reader: PipeReader) -> Outcome {
    let mut told = [SERVES];
    match reader.read_exact(&mut told) {
        Ok(()) => Ok(ExitCode::from(told[0])),
        Err(_) => {
            let line = "the process in the background ended before the mount served";
            Err((FAILED, line.to_owned()))
        }
    }
}

impl Waiting {
    /// Reports a failure. The line that explains it must have been shown before.
    pub(crate) fn failed(self, exit: u8) {
        if let Some(mut starter) = self.starter {
            // The starter may be gone.
            let _ = starter.write_all(&[exit]);
        }
    }

    /// Leaves the starter's directory and standard streams, and reports that the mount serves.
    ///
    /// # Errors
    /// The line to show, if the starter was ended: then the mount is not wanted any more.
    pub(crate) fn serves(self) -> Result<(), String> {
        if let Some(mut starter) = self.starter {
            let cannot = |why: String| format!("cannot go to the background: {why}");
            std::env::set_current_dir("/").map_err(|error| cannot(error.to_string()))?;
            log::leave_standard_error().map_err(|errno| cannot(errno.to_string()))?;
            let told = starter.write_all(&[SERVES]);
            told.map_err(|_| "the command that started this mount was ended".to_owned())?;
        }
        if let Some(mut ready_fd) = self.ready_fd
            && let Err(error) = ready_fd.write_all(b"\n")
        {
            tracing::warn!(%error, "--ready-fd: cannot write");
        }
        Ok(())
    }
}
