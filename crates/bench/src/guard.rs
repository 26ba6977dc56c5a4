//! A process that removes a case's leftovers, however the case ends.
//!
//! # Model
//!
//! ```text
//!  case ──"a folder, a device, a mount, a cgroup"──▶ guard
//!    └─ ends, fails or is killed: the pipe closes ──▶ takes them away, the last one first
//! ```
//!
//! A benchmark is interrupted more often than most programs, and a leftover compressed disk or a
//! gigabyte of files costs the machine more than any of its results are worth. So another process
//! removes each registered thing, one that a signal to the terminal's group does not reach.
//!
//! # Invariants
//!
//! 1. Things are registered before they are made, or in the next step; a registered thing that does
//!    not exist is no error.

use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{BenchError, OrSetup};

/// The argument that makes a helper of a process.
pub(crate) const ROLE: &str = "guard";

/// Something to be taken away.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Thing {
    /// A folder with all that is in it.
    Folder(PathBuf),
    /// A mount at this path.
    Mount(PathBuf),
    /// A compressed disk in memory, by number.
    Zram(u32),
    /// A memory cgroup.
    Cgroup(PathBuf),
}

/// The guard's end here. When the last copy is dropped, it has everything taken away and waits for that: whatever
/// keeps a thing in use holds a copy.
#[derive(Clone)]
pub(crate) struct Guard(Arc<Running>);

struct Running(Mutex<Child>);

impl Guard {
    /// # Errors
    /// There is no helper, or it does not start.
    pub(crate) fn start(helper: &[OsString]) -> Result<Self, BenchError> {
        let child = command(helper, ROLE)?.process_group(0).spawn();
        let child = child.setting_up("a process that cleans up")?;
        Ok(Self(Arc::new(Running(Mutex::new(child)))))
    }

    /// Has `thing` taken away in the end.
    pub(crate) fn of(&self, thing: &Thing) -> io::Result<()> {
        let mut child = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        tell(&mut child, thing)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let child = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        drop(child.stdin.take());
        // The guard has reported its errors itself.
        let _ = child.wait();
    }
}

/// A helper's process, to be talked to by pipes.
pub(crate) fn command(helper: &[OsString], role: &str) -> Result<Command, BenchError> {
    let (program, arguments) = helper.split_first().ok_or(BenchError::Setting(
        "this case needs a helper process, and the settings name none",
    ))?;
    let mut command = Command::new(program);
    command.args(arguments).arg(role);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    Ok(command)
}

/// Writes a line to a helper.
pub(crate) fn tell(helper: &mut Child, what: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    let stdin = helper.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
    stdin.write_all(&line)
}

/// The guard's own life: it hears of things until its input ends, then takes them away.
pub(crate) fn main() -> io::Result<()> {
    let mut things = Vec::new();
    for line in io::stdin().lock().lines() {
        // A line cut short is of a process that was killed while it wrote.
        let Ok(thing) = serde_json::from_str::<Thing>(&line?) else {
            break;
        };
        things.push(thing);
    }
    let mut failure = Ok(());
    for thing in things.iter().rev() {
        if let Err(error) = patiently(|| take_away(thing)) {
            let message = format!("{thing:?} stays behind: {error}");
            failure = Err(io::Error::new(error.kind(), message));
        }
    }
    failure
}

/// How long a thing may stay in use: files of a process that is ending, say.
const PATIENCE: Duration = Duration::from_secs(10);

fn patiently(mut act: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    let start = Instant::now();
    loop {
        match act() {
            Err(error)
                if error.kind() == io::ErrorKind::ResourceBusy && start.elapsed() < PATIENCE =>
            {
                thread::sleep(Duration::from_millis(20));
            }
            other => return other,
        }
    }
}

fn take_away(thing: &Thing) -> io::Result<()> {
    let done = match thing {
        Thing::Folder(path) => fs::remove_dir_all(path),
        Thing::Cgroup(path) => fs::remove_dir(path),
        Thing::Zram(number) => crate::zram::remove(*number),
        Thing::Mount(path) if !is_mounted(path)? => Ok(()),
        // Busy for as long as a file in it is open.
        Thing::Mount(path) => match run(Command::new("umount").arg(path)) {
            Err(_) if is_mounted(path)? => Err(io::ErrorKind::ResourceBusy.into()),
            _ => Ok(()),
        },
    };
    match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

fn is_mounted(path: &Path) -> io::Result<bool> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    Ok(points.map(Path::new).any(|point| point == path))
}

/// Runs a program to its end; its standard error is the error.
pub(crate) fn run(command: &mut Command) -> io::Result<()> {
    let done = command.stdin(Stdio::null()).output()?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    let program = command.get_program().to_string_lossy();
    Err(io::Error::other(format!("{program}: {}", said.trim())))
}
