//! A process that writes or reads.

use foliocache_sim::Rng;
use foliocache_sim::versions::ledger::Ledger;
use foliocache_sim::versions::place::Plain;
use foliocache_sim::versions::readers::{Reader, Subjects};
use foliocache_sim::versions::writers::Writer;
use foliocache_sim::versions::{ours, theirs, until_the_end};
use std::fs::File;
use std::os::unix::process::{ExitStatusExt, parent_id};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

/// A worker's task: role, place, ledger, seed.
pub(crate) const WORK: &str = "FOLIOCACHE_VERSIONS_WORK";

/// The task of a worker.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Role {
    /// Changes files of the mount: one of [`HOT`](foliocache_sim::versions::HOT).
    Writer(u64),
    /// Changes files in the source.
    Other,
    /// Looks at all files of the mount.
    Reader,
    /// The same, where the kernel keeps pages.
    LenientReader,
    /// Looks at the source.
    SourceReader,
}

impl Role {
    fn word(self) -> String {
        match self {
            Role::Writer(number) => number.to_string(),
            Role::Other => "other".to_owned(),
            Role::Reader => "reader".to_owned(),
            Role::LenientReader => "lenient".to_owned(),
            Role::SourceReader => "source".to_owned(),
        }
    }

    /// Whether it works in the source.
    pub(crate) fn is_beside(self) -> bool {
        matches!(self, Role::Other | Role::SourceReader)
    }
}

/// A process; killed if it is not ended.
#[derive(Debug)]
pub(crate) struct Worker {
    role: Role,
    child: Child,
    said: PathBuf,
}

impl Worker {
    /// Starts one, whose failures go to the file `said`.
    pub(crate) fn start(role: Role, place: &Path, ledger: &Path, seed: u64, said: &Path) -> Worker {
        let paths = [place, ledger].map(|path| path.to_str().unwrap());
        let work = [&role.word(), paths[0], paths[1], &seed.to_string()].join("\n");
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "versions::worker", "--ignored", "--nocapture"]);
        command.args(["--test-threads=1"]).env(WORK, work);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(File::create(said).unwrap());
        let child = command.spawn().unwrap();
        let said = said.to_owned();
        Worker { role, child, said }
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// The failures. `killed`: the mount was killed, so an access to a mapped page may have raised
    /// a signal.
    pub(crate) fn failures(mut self, killed: bool) -> Vec<String> {
        let said = std::fs::read_to_string(&self.said).unwrap_or_default();
        let status = self.child.try_wait().unwrap();
        let Some(status) = status else {
            return vec![format!("{:?} does not end: {said}", self.role)];
        };
        let is_fine = |status: ExitStatus| {
            const SIGBUS: i32 = 7;
            status.success() || killed && status.signal() == Some(SIGBUS)
        };
        match is_fine(status) && said.is_empty() {
            true => Vec::new(),
            false => vec![format!("{:?}, {status}: {said}", self.role)],
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        // One that hangs in the kernel is left to the end of the mount.
        for _ in 0..500 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Works as [`WORK`] says, and prints failures on standard error.
pub(crate) fn run_if_wanted() {
    let Ok(work) = std::env::var(WORK) else {
        return;
    };
    let words: Vec<_> = work.split('\n').collect();
    let &[role, place, ledger, seed] = &words[..] else {
        panic!("{work}");
    };
    let ledger = Ledger::open(Path::new(ledger)).unwrap();
    let place = Plain::new(Path::new(place), true);
    let rng = Rng::new(seed.parse().unwrap());
    let parent = parent_id();
    let goes_on = || parent_id() == parent;
    let read = |subjects, rng| {
        let mut reader = Reader::new(&place, &ledger, rng, subjects);
        until_the_end(&ledger, goes_on, || reader.look())
    };
    let write = |files: Vec<u64>, pauses, rng| {
        let (place, ledger) = (&place, &ledger);
        let mut writer = Writer { place, ledger, rng };
        until_the_end(ledger, goes_on, || match pauses {
            true => writer.step_and_pause(&files),
            false => writer.step(&files),
        })
    };
    let failures = match role {
        "other" => write(theirs(), true, rng),
        "reader" => read(Subjects::All, rng),
        "lenient" => read(Subjects::AllWithTheKernelsPages, rng),
        "source" => read(Subjects::Source, rng),
        writer => write(ours(writer.parse().unwrap()), false, rng),
    };
    for failure in &failures {
        eprintln!("{failure}");
    }
}
