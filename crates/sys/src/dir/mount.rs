//! Mount points: what is mounted where, and taking it off.
//!
//! # Model
//!
//! The truth is `/proc/self/mountinfo`, one line a mount, where space, tab, newline and backslash
//! in paths are written as three octal digits behind a backslash. It can be read while the server
//! behind a mount is dead, when every call on the mount point itself fails.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, UnmountFlags};

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
    /// What is mounted.
    pub source: OsString,
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
    fields.find(|field| *field == b"-")?;
    Some(MountInfo {
        mount_point,
        device,
        fs_type: text(fields.next()?),
        source: unescape(fields.next()?),
    })
}

fn text(field: &[u8]) -> String {
    unescape(field).to_string_lossy().into_owned()
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
        let fd = fd::open(path, OFlags::PATH, 0)?;
        let link = rustix::fs::readlink(fd::proc_path(fd.as_fd()), Vec::new())?;
        Ok(OsString::from_vec(link.into_bytes()).into())
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

/// Takes off what is mounted at `path`, not following a symbolic link there. With `detach` the
/// mount disappears from the tree at once and ends when its last user is gone; without, a mount in
/// use is `EBUSY`. May block.
///
/// # Errors
///
/// Those of `umount2(2)`: `EINVAL` when nothing is mounted there, `EPERM` without privilege.
pub fn unmount(path: &Path, detach: bool) -> Result<(), Errno> {
    let mut flags = UnmountFlags::NOFOLLOW;
    flags.set(UnmountFlags::DETACH, detach);
    Ok(rustix::mount::unmount(path, flags)?)
}

/// Takes off what is mounted at `path` as [`unmount`] with `detach`, and tells its file system to
/// end every request that is under way and every one to come with an error. For a FUSE mount that
/// means that its server is asked nothing any more. May block.
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
/// `ENOENT` when there is no such file system any more, `EPERM` without privilege.
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
