//! Mount points: the mount table, unmounting, and clones of mounts.
//!
//! # Model
//!
//! The truth is `/proc/self/mountinfo`, one line a mount, where space, tab, newline and backslash
//! in paths are written as three octal digits behind a backslash. It can be read while the server
//! behind a mount is dead, when every call on the mount point itself fails.
//!
//! # Safety
//!
//! One call (`mount_setattr`) gives the kernel a structure to read, with its size.
#![allow(unsafe_code)]

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, OpenTreeFlags, UnmountFlags};

use crate::Errno;
use crate::fd;

/// One mount of this process's mount namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountInfo {
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// The device number of its file system, major and minor.
    pub device: (u32, u32),
    /// The type of the file system, with its subtype behind a dot (`fuse.name`).
    pub fs_type: String,
    /// The source of the mount.
    pub source: OsString,
    has_quotas: bool,
}

/// All mounts of this process's mount namespace, a mount before those on top of it. May block.
///
/// # Errors
///
/// Those of opening and reading `/proc/self/mountinfo`. Lines that cannot be understood are left
/// out.
pub fn mounts() -> Result<Vec<MountInfo>, Errno> {
    let text = std::fs::read("/proc/self/mountinfo")?;
    Ok(text
        .split(|&byte| byte == b'\n')
        .filter_map(parse_line)
        .collect())
}

/// `id parent major:minor root point options [tag]... - type source super-options`
fn parse_line(line: &[u8]) -> Option<MountInfo> {
    let mut fields = line.split(|&byte| byte == b' ');
    let (major, minor) = std::str::from_utf8(fields.nth(2)?).ok()?.split_once(':')?;
    let device = (major.parse().ok()?, minor.parse().ok()?);
    let mount_point = unescape(fields.nth(1)?).into();
    let options = fields.next()?;
    fields.find(|field| *field == b"-")?;
    Some(MountInfo {
        mount_point,
        device,
        fs_type: unescape(fields.next()?).to_string_lossy().into_owned(),
        source: unescape(fields.next()?),
        has_quotas: has_quota_option(options) || fields.next().is_some_and(has_quota_option),
    })
}

/// Whether options of a mount switch quotas on, as the kernel shows them: `usrquota`, `prjquota`, `grpjquota=file` and similar.
fn has_quota_option(options: &[u8]) -> bool {
    options.split(|&byte| byte == b',').any(|option| {
        let name = option.split(|&byte| byte == b'=').next();
        name.is_some_and(|name| name.ends_with(b"quota") && name != b"noquota")
    })
}

/// Whether a file system on the device `dev` (`st_dev`) is mounted with quotas. May block.
///
/// # Errors
///
/// Those of opening and reading `/proc/self/mountinfo`.
pub fn has_quotas(dev: u64) -> Result<bool, Errno> {
    let device = (rustix::fs::major(dev), rustix::fs::minor(dev));
    let mut mounts = mounts()?.into_iter();
    Ok(mounts.any(|mount| mount.device == device && mount.has_quotas))
}

/// Takes the octal escapes out; a backslash without three octal digits behind it stays.
fn unescape(field: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let escape = match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] => {
                Some((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'))
            }
            _ => None,
        };
        out.push(escape.unwrap_or(*first));
        rest = if escape.is_some() { &rest[4..] } else { tail };
    }
    OsString::from_vec(out)
}

/// Whether `path` is on a mount or a file system that is read-only. May block.
///
/// # Errors
///
/// Those of `statvfs(3)`.
pub fn is_read_only(path: &Path) -> Result<bool, Errno> {
    let flags = rustix::fs::statvfs(path)?.f_flag;
    Ok(flags.contains(rustix::fs::StatVfsMountFlags::RDONLY))
}

/// Whether the server of the FUSE file system at `path` has ended. Calls `statvfs(3)`, which the kernel never answers from its own
/// caches. Blocks until a living server has answered.
pub fn is_abandoned(path: &Path) -> bool {
    let error = rustix::fs::statvfs(path).err();
    // `ECONNABORTED` if it ends during the call.
    error.is_some_and(|error| {
        [rustix::io::Errno::NOTCONN, rustix::io::Errno::CONNABORTED].contains(&error)
    })
}

/// The mount on top at exactly `path`, which may be relative or lead through symbolic links;
/// `None` when nothing is mounted there. Works when the mounted file system no longer answers.
/// May block.
///
/// # Errors
///
/// Those of resolving the path's parent, and of [`mounts`].
pub fn mount_at(path: &Path) -> Result<Option<MountInfo>, Errno> {
    let real = resolve(path)?;
    Ok(mounts()?
        .into_iter()
        .rfind(|mount| mount.mount_point == real))
}

/// The absolute path without symbolic links. A last component that does not answer (a dead mount)
/// is taken by its name.
fn resolve(path: &Path) -> Result<PathBuf, Errno> {
    let real = |path: &Path| -> Result<PathBuf, Errno> {
        fd::real_path(fd::open(path, OFlags::PATH, 0)?.as_fd())
    };
    match real(path) {
        Ok(found) => Ok(found),
        Err(Errno::ENOENT) => Err(Errno::ENOENT),
        Err(e) => {
            let name = path.file_name().ok_or(e)?;
            let parent = match path.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => parent,
                _ => Path::new("."),
            };
            Ok(real(parent)?.join(name))
        }
    }
}

/// The directory behind `dir` as a detached bind mount without submounts: neither present nor future mounts below
/// it show in it. May block.
///
/// # Errors
///
/// `EPERM` without `CAP_SYS_ADMIN`, `EINVAL` where another user namespace locks the mounts below, `ENOSYS` before
/// Linux 5.12.
#[doc(alias = "open_tree")]
pub fn without_submounts(dir: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = rustix::mount::open_tree(dir, c"", flags)?;
    // Otherwise later mounts on the original would propagate into this one.
    let private = libc::mount_attr {
        attr_set: 0,
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: 0,
    };
    // SAFETY: the kernel reads an empty path and `size_of` bytes of `private`.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const private,
            size_of::<libc::mount_attr>(),
        )
    };
    Errno::result(ret as libc::c_int).map(|_| tree)
}

/// Unmounts `path` without following a symbolic link there. With `detach` the mount disappears from
/// the tree at once and ends with its last user; without it, a busy mount is `EBUSY`. May block.
///
/// # Errors
///
/// Those of `umount2(2)`: `EINVAL` when nothing is mounted there, `EPERM` without privilege.
pub fn unmount(path: &Path, detach: bool) -> Result<(), Errno> {
    let mut flags = UnmountFlags::NOFOLLOW;
    flags.set(UnmountFlags::DETACH, detach);
    Ok(rustix::mount::unmount(path, flags)?)
}

/// Unmounts `path` as [`unmount`] with `detach`, and makes its file system fail every present and
/// future request. A FUSE server gets no more requests. May block.
///
/// # Errors
///
/// See [`unmount`].
pub fn abort(path: &Path) -> Result<(), Errno> {
    let flags = UnmountFlags::NOFOLLOW | UnmountFlags::DETACH | UnmountFlags::FORCE;
    Ok(rustix::mount::unmount(path, flags)?)
}

/// Tells the FUSE file system with this device number to end every request that is under way and every one to come with
/// an error. It works where [`abort`] has no path to name: after the mount was detached. May block.
///
/// # Errors
///
/// `ENOENT` if the file system no longer exists, `EPERM` without privilege.
pub fn abort_fuse(device: (u32, u32)) -> Result<(), Errno> {
    // The kernel's own form of the number.
    let number = device.0 << 20 | device.1;
    let file = format!("{number}/abort");
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let mounted = Path::new("/sys/fs/fuse/connections").join(&file);
    let file = match rustix::fs::open(&mounted, flags, Mode::empty()) {
        Ok(file) => file,
        // The control file system need not be mounted: a mount of our own is in no tree.
        Err(_) => {
            let context = rustix::mount::fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
            rustix::mount::fsconfig_create(context.as_fd())?;
            let root = rustix::mount::fsmount(
                context.as_fd(),
                FsMountFlags::FSMOUNT_CLOEXEC,
                MountAttrFlags::empty(),
            )?;
            rustix::fs::openat(root.as_fd(), &file, flags, Mode::empty())?
        }
    };
    rustix::io::write(&file, b"1")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_found_among_the_options_of_a_device() {
        let is_with_quotas = |line: &[u8]| {
            let mount = parse_line(line);
            mount.is_some_and(|mount| mount.device == (7, 1) && mount.has_quotas)
        };
        let with = |mount: &str, all: &str| {
            let line = format!("36 35 7:1 / /mnt/x {mount} shared:1 - ext4 /dev/loop1 {all}");
            is_with_quotas(line.as_bytes())
        };
        for options in [
            "rw,usrquota",
            "prjquota",
            "rw,usrjquota=aquota.user,jqfmt=vfsv1",
        ] {
            assert!(with("rw,relatime", options), "{options}");
            assert!(with(options, "rw"), "{options}");
        }
        for options in ["rw", "rw,noquota,inode64", "rw,uqnoenforce"] {
            assert!(!with("rw", options), "{options}");
        }
        assert!(!is_with_quotas(b"36 35 7:2 / / rw - ext4 none usrquota"));
        assert!(!is_with_quotas(b""));
    }

    #[test]
    fn a_line_with_escapes_and_tags() {
        let line = br"36 35 98:0 /mnt1 /mnt\0402\134x rw,noatime shared:1 master:2 - fuse.ext\0113 /dev/root rw,errors=continue";
        let mount = parse_line(line).unwrap();
        assert_eq!(mount.mount_point, Path::new(r"/mnt 2\x"));
        assert_eq!(mount.device, (98, 0));
        assert_eq!(mount.fs_type, "fuse.ext\t3");
        assert_eq!(mount.source, "/dev/root");
    }

    #[test]
    fn lines_that_are_cut_are_left_out() {
        assert_eq!(parse_line(b""), None);
        assert_eq!(parse_line(b"36 35 98:0 / /mnt rw shared:1"), None);
        assert_eq!(unescape(br"a\1\999\04").as_encoded_bytes(), br"a\1\999\04");
    }

    #[test]
    fn file_systems_of_the_kernel_are_neither_abandoned_nor_read_only() {
        assert!(!is_abandoned(Path::new("/proc")));
        assert!(!is_abandoned(Path::new("/proc/none")));
        assert_eq!(is_read_only(Path::new("/proc/self")), Ok(false));
        assert_eq!(is_read_only(Path::new("/proc/none")), Err(Errno::ENOENT));
    }

    #[test]
    fn proc_is_a_mount_point_and_its_insides_are_not() {
        let mounted = |path: &str| mount_at(Path::new(path)).map(|mount| mount.map(|m| m.fs_type));
        assert_eq!(mounted("/proc"), Ok(Some("proc".into())));
        assert_eq!(mounted("/proc/../proc"), Ok(Some("proc".into())));
        assert_eq!(mounted("/proc/self"), Ok(None));
        assert_eq!(mounted("/proc/none"), Err(Errno::ENOENT));
    }

    #[test]
    fn no_fuse_file_system_to_abort() {
        let e = abort_fuse((0, 0xf_ffff)).unwrap_err();
        assert!(
            matches!(
                e,
                Errno::ENOENT | Errno::EPERM | Errno::ENODEV | Errno::ENOSYS
            ),
            "{e}"
        );
    }

    #[test]
    fn nothing_to_unmount() {
        let e = unmount(Path::new("/proc/self"), false).unwrap_err();
        assert!(
            matches!(e, Errno::EINVAL | Errno::EPERM | Errno::ENOENT),
            "{e}"
        );
    }
}
