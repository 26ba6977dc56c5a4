//! The folders in which disks are mounted, and leftovers of killed tests.
//!
//! # Model
//!
//! ```text
//!  TMP/foliocache-disks/PID-START-N/fuse/disk   the file behind the loop device
//!                                  /mounted     the file system on it
//! ```
//!
//! A folder is named after the process that owns it: its number and the time at which it started, since numbers come
//! back. The first disk of a process removes the folders of processes that are gone: it ends the FUSE connection,
//! so that nothing waits for it, unmounts, and detaches loop devices whose file lies in that folder, no others.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mount::{UnmountFlags, unmount};

use super::loopdev;

/// The place of all folders.
fn top() -> PathBuf {
    std::env::temp_dir().join("foliocache-disks")
}

/// The state and the start time of a process.
fn status(pid: u32) -> Option<(String, String)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which may have anything in it.
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<_> = rest.split_ascii_whitespace().collect();
    let field = |at: usize| fields.get(at).map(|&field| field.to_owned());
    Some((field(0)?, field(19)?))
}

/// Whether the first thread of a process has not ended.
pub(super) fn is_alive(pid: u32) -> bool {
    status(pid).is_some_and(|(state, _)| state != "Z" && state != "X")
}

/// A folder for a disk, removed with this.
#[derive(Debug)]
pub(super) struct Folder(PathBuf);

impl Folder {
    /// Makes a folder, after removing the leftovers of killed tests.
    pub(super) fn new() -> io::Result<Folder> {
        static CLEANED: Once = Once::new();
        // Relaxed: a number that no one else gets is all that is needed.
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        CLEANED.call_once(|| remove_left_behind(&top()));
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let pid = std::process::id();
        let (_, start) = status(pid).unwrap_or_default();
        let folder = top().join(format!("{pid}-{start}-{number}"));
        let mut builder = fs::DirBuilder::new();
        // Other users can reach the mounts in it, but not list it.
        builder.mode(0o711).recursive(true);
        builder.create(folder.join("fuse"))?;
        builder.create(folder.join("mounted"))?;
        Ok(Folder(folder))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

/// Removes the folders of processes that are gone.
fn remove_left_behind(top: &Path) {
    for entry in fs::read_dir(top).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let mut parts = name.to_str().unwrap_or_default().split('-');
        let (Some(pid), Some(start)) = (parts.next(), parts.next()) else {
            continue;
        };
        let owner = pid.parse().ok().and_then(status);
        let there = owner.is_some_and(|(state, at)| at == start && state != "Z" && state != "X");
        if !there {
            remove(&entry.path());
        }
    }
}

/// A mount: its place, and the minor number of its device.
struct Mount {
    place: PathBuf,
    minor: String,
    kind: String,
}

/// The mounts below a folder, innermost first.
fn mounts_below(folder: &Path) -> Vec<Mount> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut mounts: Vec<_> = table
        .lines()
        .filter_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let mut fields = left.split(' ').skip(2);
            let (_, minor) = fields.next()?.split_once(':')?;
            let place = PathBuf::from(fields.nth(1)?);
            place.starts_with(folder).then(|| Mount {
                place,
                minor: minor.to_owned(),
                kind: right.split(' ').next().unwrap_or_default().to_owned(),
            })
        })
        .collect();
    mounts.reverse();
    mounts
}

/// Unmounts and detaches everything below a folder, and removes it.
fn remove(folder: &Path) {
    let mounts = mounts_below(folder);
    for mount in mounts.iter().filter(|mount| mount.kind.starts_with("fuse")) {
        // From now on nothing waits for its server.
        let abort = format!("/sys/fs/fuse/connections/{}/abort", mount.minor);
        let _ = fs::write(abort, "1");
    }
    for mount in &mounts {
        let _ = unmount(&mount.place, UnmountFlags::DETACH);
    }
    loopdev::detach_below(folder);
    // A mount that is still there keeps its folder, for the next run.
    for name in ["fuse", "mounted"] {
        let _ = fs::remove_dir(folder.join(name));
    }
    if mounts_below(folder).is_empty() {
        let _ = fs::remove_dir_all(folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_the_dead_are_removed_and_those_of_the_living_stay() {
        let top = tempfile::tempdir().expect("a directory");
        let (_, start) = status(std::process::id()).expect("this process");
        let ours = format!("{}-{start}-0", std::process::id());
        let earlier = format!("{}-1-0", std::process::id());
        for name in [&ours, &earlier, "4194305-77-0", "something"] {
            fs::create_dir_all(top.path().join(name).join("fuse")).expect("a folder");
        }
        remove_left_behind(top.path());
        let mut left: Vec<_> = fs::read_dir(top.path())
            .expect("the folder")
            .map(|entry| entry.expect("an entry").file_name())
            .collect();
        left.sort();
        assert_eq!(left, [ours.as_str(), "something"]);
    }

    #[test]
    fn a_process_is_alive_until_it_ends() {
        assert!(is_alive(std::process::id()));
        let mut child = std::process::Command::new("true").spawn().expect("a child");
        while is_alive(child.id()) {
            std::thread::yield_now();
        }
        child.wait().expect("it ended");
    }
}
