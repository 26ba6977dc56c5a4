//! The tree of small files, ours over it, and the process that changes its files.

use foliocache::{Cache, Directory};
use foliocache_sys::fd::{OFlags, OwnedFd};
use foliocache_sys::{fd, testing};
use std::ffi::CString;
use std::io;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::SystemTime;

use super::LEN;
use crate::cases::create::Ours;
use crate::cases::prelude::*;
use crate::latency::Latency;

/// Longest that a change from outside may stay unseen before the case fails.
const UNSEEN: Duration = Duration::from_secs(30);

/// A tree of files that stays.
pub(super) struct Tree {
    pub(super) path: PathBuf,
    /// The descriptor from which the kernel's side starts.
    pub(super) fd: OwnedFd,
    pub(super) dirs: usize,
    /// Paths from the top, and the same for the kernel.
    pub(super) names: Vec<(String, CString)>,
}

impl Tree {
    pub(super) fn new(folder: &Folder, dirs: usize, files: usize) -> io::Result<Rc<Tree>> {
        let path = folder.path().join("hot");
        let mut names = Vec::new();
        for dir in 0..dirs {
            fs::create_dir_all(path.join(dir.to_string()))?;
            for file in 0..files {
                let name = format!("{dir}/{file}");
                fs::write(path.join(&name), [file as u8; LEN])?;
                names.push((name.clone(), CString::new(name)?));
            }
        }
        let fd = fd::open(&path, OFlags::PATH | OFlags::DIRECTORY, 0)?;
        Ok(Rc::new(Tree {
            path,
            fd,
            dirs,
            names,
        }))
    }

    /// Any file.
    pub(super) fn any(&self, random: &mut Random) -> &(String, CString) {
        &self.names[random.below(self.names.len())]
    }

    /// A file in each directory.
    pub(super) fn in_each_dir(&self) -> impl Iterator<Item = &str> {
        let each = self.names.len() / self.dirs;
        let names = self.names.iter().step_by(each);
        names.map(|(name, _)| name.as_str())
    }
}

/// Another process, which changes files of a tree.
pub(super) struct Outsider {
    child: Child,
    answers: BufReader<ChildStdout>,
    changes: usize,
}

impl Outsider {
    pub(super) fn new(tree: &Tree) -> io::Result<Outsider> {
        let mut command = Command::new("sh");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.current_dir(&tree.path).spawn()?;
        let answers = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Outsider {
            child,
            answers: BufReader::new(answers),
            changes: 0,
        })
    }

    /// Rewrites a file at the same length; returns its new beginning.
    pub(super) fn change(&mut self, name: &str) -> io::Result<String> {
        self.changes += 1;
        let begins = format!("{} ", self.changes);
        let stdin = self.child.stdin.as_mut();
        let stdin = stdin.ok_or(io::ErrorKind::BrokenPipe)?;
        // `printf` and `echo` are the shell's own: no process is started.
        writeln!(stdin, "printf '%-{LEN}s' {} > {name} && echo", self.changes)?;
        stdin.flush()?;
        match self.answers.read_line(&mut String::new())? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(begins),
        }
    }
}

impl Drop for Outsider {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Ours over a tree, made when it is first used: limits of descriptors are the process's.
pub(super) struct Opened {
    ours: Ours,
    made: Option<(Directory, Cache)>,
}

impl Opened {
    pub(super) fn new(ours: Ours) -> Self {
        Self { ours, made: None }
    }

    /// With all files read once, in both caches.
    pub(super) fn warm(&mut self, tree: &Tree) -> io::Result<()> {
        if self.made.is_none() {
            self.made = Some(self.ours.open(&tree.path)?);
            for (name, path) in &tree.names {
                read_kernel(tree, path, LEN)?;
                read(self.directory(), name, LEN)?;
            }
        }
        Ok(())
    }

    pub(super) fn directory(&self) -> &Directory {
        &self.made.as_ref().expect("made before a turn").0
    }
}

/// Opens, reads and closes.
pub(super) fn read(directory: &Directory, name: &str, len: usize) -> io::Result<()> {
    let mut bytes = [0; LEN];
    let file = directory.open(name)?;
    let read = file.read_at(&mut bytes[..len], 0)?;
    black_box(&bytes);
    whole(read, len)
}

pub(super) fn read_kernel(tree: &Tree, name: &CString, len: usize) -> io::Result<()> {
    let mut bytes = [0; LEN];
    let file = testing::open_path(tree.fd.as_fd(), name, OFlags::RDONLY, 0)?;
    let read = fd::pread(file.as_fd(), 0, &mut bytes[..len])?;
    black_box(&bytes);
    whole(read, len)
}

/// Whether a file shows this new beginning, with another time than before. The time is read first: opening the file
/// may look at the source, and would show a change that `metadata` missed.
fn is_seen(
    directory: &Directory,
    name: &str,
    begins: &str,
    before: SystemTime,
) -> io::Result<bool> {
    if directory.metadata(name)?.modified()? == before {
        return Ok(false);
    }
    let mut bytes = [0; 32];
    let bytes = &mut bytes[..begins.len()];
    directory.open(name)?.read_at(bytes, 0)?;
    Ok(bytes == begins.as_bytes())
}

/// How long changes from outside stay unseen.
pub(super) fn unseen(
    tree: &Tree,
    directory: &Directory,
    outsider: &mut Outsider,
) -> io::Result<Outcome> {
    let mut names = tree.in_each_dir();
    let (mut waiting, mut delays) = (Vec::new(), Vec::new());
    loop {
        // One more change, and a look at all that are not seen yet.
        let next = names.next();
        if let Some(name) = next {
            let before = directory.metadata(name)?.modified()?;
            let start = Instant::now();
            waiting.push((name, outsider.change(name)?, before, start));
        } else if waiting.is_empty() {
            break;
        }
        let mut unseen = Vec::new();
        for (name, begins, before, start) in waiting {
            if is_seen(directory, name, &begins, before)? {
                delays.push(start.elapsed().as_secs_f64() * 1e3);
            } else if start.elapsed() > UNSEEN {
                return Err(io::Error::other("a change from outside is never seen"));
            } else {
                unseen.push((name, begins, before, start));
            }
        }
        waiting = unseen;
    }
    delays.sort_by(f64::total_cmp);
    let within = |permille: usize| {
        let at = (delays.len() * permille).div_ceil(1000);
        delays[at.saturating_sub(1)]
    };
    Ok(Outcome::plain(within(990)).latency(Latency {
        p50: within(500) * 1e3,
        p99: within(990) * 1e3,
        p99_9: within(999) * 1e3,
    }))
}
