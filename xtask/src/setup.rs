//! The needs of the tests, and whether the machine meets them.
//!
//! # Model
//!
//! A [`Need`] is probed by using it, not by reading versions: a ring is made, a cgroup is made, a C
//! program is built. A missing need fails the run. With `--allow-missing` the steps that depend on
//! it are skipped, and the tests of the other steps find the missing needs in `FOLIOCACHE_MISSING`,
//! separated by commas: a test may skip only for a listed need, and prints that it does.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Something that a test needs and a machine may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    Compiler,
    Make,
    Fuse,
    IoUring,
    Userfaultfd,
    Fanotify,
    MemoryCgroup,
    Root,
    Tmpfs,
    Mkfs,
    Fincore,
    CxxCompiler,
    Miri,
}

/// A need that is not met.
#[derive(Clone, Debug)]
pub(crate) struct Missing {
    pub(crate) need: Need,
    pub(crate) why: String,
}

impl Need {
    /// The name in `FOLIOCACHE_MISSING`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Need::Compiler => "cc",
            Need::Make => "make",
            Need::Fuse => "fuse",
            Need::IoUring => "io_uring",
            Need::Userfaultfd => "userfaultfd",
            Need::Fanotify => "fanotify",
            Need::MemoryCgroup => "memcg",
            Need::Root => "root",
            Need::Tmpfs => "tmpfs",
            Need::Mkfs => "mkfs",
            Need::Fincore => "fincore",
            Need::CxxCompiler => "c++",
            Need::Miri => "miri",
        }
    }

    /// Which tests cannot run without it.
    pub(crate) fn affects(self) -> &'static str {
        match self {
            Need::Compiler => {
                "the C project built on the mount, numbers beside those of C headers, the GPU driver's \
                 stand-in, and probing io_uring, userfaultfd, fanotify"
            }
            Need::Make => "the C project built on the mount",
            Need::Fuse => "everything on a mount: fsx, pjdfstest, the C project, kill and clean-up",
            Need::IoUring => "reading in the background",
            Need::Userfaultfd => "tests of mapped files",
            Need::Fanotify => "logs that others write to",
            Need::MemoryCgroup => "the memory bound as the kernel counts it",
            Need::Root => "everything on a mount, and what other users may do",
            Need::Tmpfs => "names and permissions beside those of the kernel",
            Need::Mkfs => "tests on ext4 and on XFS, as root and as another user",
            Need::Fincore => "how much of a file the kernel's cache holds",
            Need::CxxCompiler => "the fuzz targets",
            Need::Miri => "the index, the locks and the state words under Miri",
        }
    }

    /// Without it the run goes on: the same code is tested in another way.
    pub(crate) fn is_optional(self) -> bool {
        matches!(self, Need::Mkfs | Need::CxxCompiler | Need::Miri)
    }

    /// `None` if it is there, else why it counts as missing.
    fn probe(self, scratch: &Path) -> Option<String> {
        match self {
            Need::Compiler => runs("cc", "--version"),
            Need::Make => runs("make", "--version"),
            Need::Fuse => fs::OpenOptions::new()
                .read(true)
                .write(true)
                .open("/dev/fuse")
                .err()
                .map(|e| format!("/dev/fuse: {e}")),
            Need::IoUring | Need::Userfaultfd | Need::Fanotify => {
                kernel_probe(self.name(), scratch)
            }
            Need::MemoryCgroup => memory_cgroup(),
            Need::Root => not_root(),
            Need::Tmpfs => no_tmpfs(),
            Need::Mkfs => ["mkfs.ext4", "mkfs.xfs"]
                .iter()
                .find_map(|program| runs(program, "-V")),
            Need::Fincore => runs("fincore", "--version")
                .map(|why| format!("{why} (in util-linux, or in util-linux-extra)")),
            Need::CxxCompiler => runs("c++", "--version"),
            Need::Miri => crate::sanitize::no_miri(),
        }
    }
}

/// Probes each need once.
pub(crate) fn missing(needs: &[Need], scratch: &Path) -> Vec<Missing> {
    needs
        .iter()
        .filter_map(|&need| need.probe(scratch).map(|why| Missing { need, why }))
        .collect()
}

/// The value of `FOLIOCACHE_MISSING`.
pub(crate) fn names(missing: &[Missing]) -> String {
    missing
        .iter()
        .map(|m| m.need.name())
        .collect::<Vec<_>>()
        .join(",")
}

fn runs(program: &str, argument: &str) -> Option<String> {
    let status = Command::new(program)
        .arg(argument)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match status {
        Ok(status) if status.success() => None,
        Ok(status) => Some(format!("`{program} {argument}`: {status}")),
        Err(e) => Some(format!("`{program}`: {e}")),
    }
}

/// Says so where there is no tmpfs at the places where the tests look for one.
fn no_tmpfs() -> Option<String> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let found = mounts.lines().any(|line| {
        let mut fields = line.split(' ').skip(1);
        let place = fields.next().unwrap_or_default();
        ["/dev/shm", "/tmp", "/run"].contains(&place) && fields.next() == Some("tmpfs")
    });
    (!found).then(|| "none at /dev/shm, /tmp or /run".to_owned())
}

/// The user's number, unless it is root's.
fn not_root() -> Option<String> {
    match Command::new("id").arg("-u").output() {
        Ok(out) => match String::from_utf8_lossy(&out.stdout).trim() {
            "0" => None,
            user => Some(format!("run by user {user}")),
        },
        Err(error) => Some(format!("`id`: {error}")),
    }
}

/// Builds and runs `probe.c`, and looks for the line of `name`.
fn kernel_probe(name: &str, scratch: &Path) -> Option<String> {
    let answer = || -> Result<String, String> {
        fs::create_dir_all(scratch).map_err(|e| format!("{}: {e}", scratch.display()))?;
        let (source, program) = (scratch.join("probe.c"), scratch.join("probe"));
        fs::write(&source, include_str!("probe.c")).map_err(|e| format!("probe.c: {e}"))?;
        let built = Command::new("cc")
            .arg("-o")
            .arg(&program)
            .arg(&source)
            .output();
        match built {
            Ok(out) if out.status.success() => {}
            Ok(out) => return Err(String::from_utf8_lossy(&out.stderr).trim().to_owned()),
            Err(e) => return Err(format!("cannot be probed without a C compiler: {e}")),
        }
        let out = Command::new(&program)
            .output()
            .map_err(|e| format!("probe: {e}"))?;
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    };
    match answer() {
        Ok(lines) => probe_line(&lines, name),
        Err(why) => Some(why),
    }
}

/// `None` if the probe's output has `NAME ok`.
fn probe_line(lines: &str, name: &str) -> Option<String> {
    let answer = lines
        .lines()
        .find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
    match answer {
        Some("ok") => None,
        Some(error) => Some(error.to_owned()),
        None => Some("the probe gave no answer".to_owned()),
    }
}

/// Makes and removes a memory cgroup, of version 1 or 2.
fn memory_cgroup() -> Option<String> {
    let v1 = Path::new("/sys/fs/cgroup/memory");
    let v2 = Path::new("/sys/fs/cgroup");
    let name = format!("foliocache-xtask-{}", std::process::id());
    let parent = if v1.join("memory.limit_in_bytes").exists() || v1.join("tasks").exists() {
        v1
    } else if v2.join("cgroup.controllers").exists() {
        let on = fs::read_to_string(v2.join("cgroup.subtree_control")).unwrap_or_default();
        if !on
            .split_whitespace()
            .any(|controller| controller == "memory")
        {
            return Some("the memory controller is not enabled for child cgroups".to_owned());
        }
        v2
    } else {
        return Some("no memory controller under /sys/fs/cgroup".to_owned());
    };
    let group = parent.join(name);
    match fs::create_dir(&group) {
        Ok(()) => fs::remove_dir(&group)
            .err()
            .map(|e| format!("{}: {e}", group.display())),
        Err(e) => Some(format!("{}: {e}", group.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_lines() {
        let lines = "io_uring ok\nuserfaultfd Operation not permitted\n";
        assert_eq!(probe_line(lines, "io_uring"), None);
        assert_eq!(
            probe_line(lines, "userfaultfd").as_deref(),
            Some("Operation not permitted")
        );
        assert!(probe_line(lines, "io").is_some());
    }

    #[test]
    fn a_program_that_is_not_there_is_missing() {
        assert!(runs("foliocache-no-such-program", "--version").is_some());
    }
}
