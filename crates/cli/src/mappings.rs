//! Takes over the data that programs stored into mapped files of the mount, with a process that asks the kernel for it.
//!
//! # Model
//!
//! ```text
//!  mount ──── a line ────▶ foliocache write-back-mapped MOUNTPOINT ── syncfs ──▶ kernel
//!    ▲ └──── its answer ◀──┘                                                       │
//!    └──────────────────────────── writes of mapped pages ◀────────────────────────┘
//! ```
//!
//! The other process holds the mount open, so it can ask after the mount has left the tree. It must be started before that.

use crate::{FAILED, Outcome};
use clap::Args;
use foliocache_fuse::{MappedStores, Mount};
use foliocache_sys::Errno;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::Duration;

/// Arguments of `foliocache write-back-mapped`.
#[derive(Args)]
pub(crate) struct WriteBackArguments {
    /// Where the mount is.
    pub(crate) mount_point: PathBuf,
    /// Its device number.
    pub(crate) device: Option<u64>,
}

/// Longest that stores into mappings are taken over while programs go on storing.
pub(crate) const TAKE_OVER: Duration = Duration::from_secs(30);

/// The answer for success.
const DONE: &str = "done";

/// How an error begins.
const WHAT: &str = "what programs stored into mapped files";

/// Runs the other process: a call for each line of standard input, its answer to standard output.
pub(crate) fn serve(arguments: &WriteBackArguments) -> Outcome {
    let failed = |errno: &dyn std::fmt::Display| {
        let line = format!("{WHAT} could not all be taken over: {errno}");
        (FAILED, line)
    };
    let mut out = io::stdout();
    let mut answer = |text: &str| writeln!(out, "{text}").and_then(|()| out.flush());
    let point = arguments.mount_point.display();
    let stores = match MappedStores::of(&arguments.mount_point, arguments.device) {
        Ok(stores) => stores,
        Err(errno) => {
            let why = match errno {
                Errno::ESTALE => format!("the mount is no longer at {point}"),
                errno => format!("{point}: {errno}"),
            };
            answer(&why).map_err(|error| failed(&error))?;
            return Err(failed(&why));
        }
    };
    answer(DONE).map_err(|error| failed(&error))?;
    for line in io::stdin().lines() {
        line.map_err(|error| failed(&error))?;
        let said = match stores.write_back() {
            Ok(()) => DONE.to_owned(),
            Err(errno) => errno.to_string(),
        };
        answer(&said).map_err(|error| failed(&error))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The other process, which ends with the value. The mount is in use while it lives.
pub(crate) struct Helper {
    child: Child,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Helper {
    /// Starts it. May block: it opens the mount point.
    ///
    /// # Errors
    /// The line to show, for instance if the mount is no longer in the tree. The stored data is not lost by that.
    pub(crate) fn start(mount: &Mount) -> Result<Helper, String> {
        let cannot =
            |error: &dyn std::fmt::Display| format!("{WHAT} cannot be taken over: {error}");
        let mut child = Command::new("/proc/self/exe")
            .arg("write-back-mapped")
            .arg(mount.mount_point())
            .args(mount.connection().device().map(|device| device.to_string()))
            // A ^C or a hang-up of the terminal is the mount's alone.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| cannot(&error))?;
        let (Some(ask), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(cannot(&"it has no pipes"));
        };
        let answers = BufReader::new(answers);
        let mut helper = Helper {
            child,
            ask,
            answers,
        };
        helper.answer()?;
        Ok(helper)
    }

    /// Takes over the data stored so far, for no longer than `within` while programs go on storing. Blocks.
    pub(crate) fn take_over(&mut self, mount: &Mount, within: Duration) -> Result<(), String> {
        mount.take_over_stores(within, || {
            let asked = self.ask.write_all(b"\n");
            asked.map_err(|error| format!("{WHAT} cannot be taken over: {error}"))?;
            self.answer()
        })
    }

    fn answer(&mut self) -> Result<(), String> {
        let mut line = String::new();
        let why = match self.answers.read_line(&mut line) {
            Ok(0) => "the process that asks for it ended".to_owned(),
            Ok(_) if line.trim() == DONE => return Ok(()),
            Ok(_) => line.trim().to_owned(),
            Err(error) => error.to_string(),
        };
        Err(format!("{WHAT} could not all be taken over: {why}"))
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // It changes nothing by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
