//! The identity of this process to a file system.
//!
//! # Model
//!
//! A file belongs to the effective user and group of the process that creates it, and the bits of
//! its umask are cleared in the file's mode. The kernel does that for system calls; a file system
//! that creates files for others has to know the numbers.

use crate::Errno;
use crate::fd::{BorrowedFd, proc_path};
use rustix::thread::CapabilitySet;

/// On whose behalf an operation is made.
///
/// File systems check no permissions: the front door does (the kernel on a mount, the process
/// itself in the library). They use this for the owner of new files, and for clearing set-id bits
/// at an unprivileged write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpContext {
    /// User of the caller.
    pub uid: u32,
    /// Group of the caller.
    pub gid: u32,
    /// Process of the caller, 0 if there is none.
    pub pid: u32,
    /// Bits that are cleared in the mode of a new file.
    pub umask: u32,
}

impl OpContext {
    /// Root without a umask: a new file belongs to user 0 with exactly the requested mode.
    pub const ROOT: OpContext = OpContext {
        uid: 0,
        gid: 0,
        pid: 0,
        umask: 0,
    };
}

/// The usual umask, for where the process's own cannot be known.
const USUAL_UMASK: u32 = 0o022;

/// The effective user of the process now. Does not block.
pub fn effective_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether the calling thread may open files whatever their mode says, and so the threads that it starts: `CAP_DAC_OVERRIDE`
/// is in effect. Does not block.
pub fn overrides_modes() -> bool {
    has(CapabilitySet::DAC_OVERRIDE)
}

/// Whether the kernel takes mounts from the calling thread: `CAP_SYS_ADMIN` is in effect. Does not block.
pub fn may_mount() -> bool {
    has(CapabilitySet::SYS_ADMIN)
}

fn has(capability: CapabilitySet) -> bool {
    match rustix::thread::capabilities(None) {
        Ok(sets) => sets.effective.contains(capability),
        Err(_) => effective_user() == 0,
    }
}

/// Whether the calling thread may open the file behind `fd` for reading, for writing, or both, as mode and owner are now.
/// Where the kernel does not know the call it may. May block.
///
/// # Errors
///
/// Those of `faccessat2(2)`: `EACCES`, `EROFS`.
#[doc(alias = "faccessat2")]
pub fn check_access(fd: BorrowedFd<'_>, read: bool, write: bool) -> Result<(), Errno> {
    use rustix::fs::{Access, AtFlags, CWD, accessat};
    let mut access = Access::empty();
    access.set(Access::READ_OK, read);
    access.set(Access::WRITE_OK, write);
    match accessat(CWD, proc_path(fd), access, AtFlags::EACCESS) {
        Err(rustix::io::Errno::NOSYS) => Ok(()),
        done => Ok(done?),
    }
}

/// The credentials of the process now. Reads a file under `/proc`, since asking the kernel for the
/// umask would change it for an instant; where there is no `/proc`, the umask is taken to be 022.
pub fn current() -> OpContext {
    OpContext {
        uid: effective_user(),
        gid: rustix::process::getegid().as_raw(),
        pid: std::process::id(),
        umask: umask().unwrap_or(USUAL_UMASK),
    }
}

fn umask() -> Option<u32> {
    u32::from_str_radix(&status("self", "Umask:")?, 8).ok()
}

/// Whether `group` is one of the further groups of the process or thread `pid`; not if there is none by now. Reads a file under
/// `/proc`.
pub fn is_further_group(pid: u32, group: u32) -> bool {
    let groups = status(&pid.to_string(), "Groups:").unwrap_or_default();
    groups.split_whitespace().any(|of| of.parse() == Ok(group))
}

/// A line of a process's status.
fn status(process: &str, line: &str) -> Option<String> {
    let text = std::fs::read(format!("/proc/{process}/status")).ok()?;
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().find_map(|text| text.strip_prefix(line))?;
    Some(line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_umask_is_the_processes_own() {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("umask-{}", std::process::id()));
        drop(std::fs::File::create_new(&path).unwrap());
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(super::umask(), Some(0o666 & !mode & 0o777));
        assert_eq!(super::current().pid, std::process::id());
    }

    #[test]
    fn further_groups_are_those_of_the_process() {
        let (pid, groups) = (std::process::id(), rustix::process::getgroups().unwrap());
        for group in &groups {
            assert!(super::is_further_group(pid, group.as_raw()));
        }
        let other = (1..).find(|&group| groups.iter().all(|of| of.as_raw() != group));
        assert!(!super::is_further_group(pid, other.unwrap()));
        assert!(!super::is_further_group(0, 0));
    }
}
