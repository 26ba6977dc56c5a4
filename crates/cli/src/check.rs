//! Checks a source and a mount point. Each problem is one line.
//!
//! # Model
//!
//! Everything is checked before anything is changed, with one exception: a mount point that a
//! killed foliocache left behind can be neither used nor examined, so it is explained and
//! unmounted.

use crate::log::say;
use foliocache_sys::Errno;
use foliocache_sys::dir::mount as mounts;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The type by which the kernel lists our mounts.
pub(crate) const FS_TYPE: &str = "fuse.foliocache";

/// A source and a mount point that can be used, both absolute and without symbolic links.
#[derive(Debug)]
pub(crate) struct Places {
    pub(crate) source: PathBuf,
    pub(crate) mount_point: PathBuf,
}

/// Checks both; `Err` is the line to show.
pub(crate) fn places(source: &Path, mount_point: &Path) -> Result<Places, String> {
    let source = directory("SOURCE", source)?;
    clear_stale(mount_point)?;
    let mount_point = directory("MOUNTPOINT", mount_point)?;
    let (from, to) = (source.display(), mount_point.display());
    if source == mount_point {
        return Err(format!(
            "SOURCE and MOUNTPOINT are the same directory: {from}"
        ));
    }
    if mount_point.starts_with(&source) {
        return Err(format!(
            "MOUNTPOINT {to} is inside SOURCE {from}: it would show itself without end"
        ));
    }
    if source.starts_with(&mount_point) {
        return Err(format!(
            "SOURCE {from} is inside MOUNTPOINT {to}: it would be hidden by the mount"
        ));
    }
    if let Ok(Some(mounted)) = mounts::mount_at(&mount_point)
        && mounted.fs_type == FS_TYPE
    {
        let shown = mounted.source.to_string_lossy();
        return Err(format!(
            "MOUNTPOINT {to} shows {shown} already: unmount it first"
        ));
    }
    let mut entries = fs::read_dir(&mount_point)
        .map_err(|error| cannot_use("MOUNTPOINT", &mount_point, &error))?;
    if entries.next().is_some() {
        return Err(format!(
            "MOUNTPOINT {to} is not empty: what is in it would be hidden by the mount"
        ));
    }
    Ok(Places {
        source,
        mount_point,
    })
}

fn directory(what: &str, path: &Path) -> Result<PathBuf, String> {
    let real = path
        .canonicalize()
        .map_err(|error| cannot_use(what, path, &error))?;
    let about = fs::metadata(&real).map_err(|error| cannot_use(what, path, &error))?;
    if !about.is_dir() {
        return Err(format!("{what} {} is not a directory", path.display()));
    }
    fs::read_dir(&real).map_err(|error| cannot_use(what, path, &error))?;
    Ok(real)
}

fn cannot_use(what: &str, path: &Path, error: &io::Error) -> String {
    let path = path.display();
    match error.kind() {
        io::ErrorKind::NotFound => format!("{what} {path} does not exist"),
        io::ErrorKind::PermissionDenied => format!("{what} {path}: permission denied"),
        _ => match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ENOTCONN) => {
                format!("{what} {path} is a mount whose server has ended: unmount it first")
            }
            Some(errno) => format!("{what} {path}: {}", errno.description()),
            None => format!("{what} {path}: {error}"),
        },
    }
}

/// Takes away a mount of ours whose process is gone.
fn clear_stale(mount_point: &Path) -> Result<(), String> {
    let shown = mount_point.display();
    // As many as were killed one after another on top of each other.
    loop {
        let stale = match mounts::mount_at(mount_point) {
            Ok(Some(mount)) if mount.fs_type == FS_TYPE => mount,
            // Not ours: its next user reports the error.
            _ => return Ok(()),
        };
        if !mounts::is_abandoned(mount_point) {
            return Ok(());
        }
        mounts::unmount(&stale.mount_point, true).map_err(|errno| {
            format!(
                "MOUNTPOINT {shown} was left behind by a foliocache that was killed, and cannot \
                 be taken away: {}",
                errno.description()
            )
        })?;
        say(&format!(
            "{shown} was left behind by a foliocache that was killed; taken away. \
             What was fsynced is in {}, what was not written back yet is lost.",
            stale.source.to_string_lossy()
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_that_cannot_be_used() {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        for name in ["source", "source/below", "empty", "full"] {
            fs::create_dir(at(name)).unwrap();
        }
        fs::write(at("full/file"), "x").unwrap();
        fs::write(at("file"), "x").unwrap();
        std::os::unix::fs::symlink(at("source"), at("link")).unwrap();
        let table = [
            ("none", "empty", "does not exist"),
            ("source", "none", "does not exist"),
            ("file", "empty", "is not a directory"),
            ("source", "file", "is not a directory"),
            ("source", "source", "same directory"),
            ("link", "source", "same directory"),
            ("source", "source/below", "is inside SOURCE"),
            ("source/below", "source", "is inside MOUNTPOINT"),
            ("link/below", "source", "is inside MOUNTPOINT"),
            ("source", "full", "is not empty"),
        ];
        for (source, mount_point, says) in table {
            let line = places(&at(source), &at(mount_point)).unwrap_err();
            assert!(line.contains(says), "{source} on {mount_point}: {line}");
            assert!(!line.contains('\n'), "{line}");
        }
        let good = places(&at("link"), &at("empty")).unwrap();
        assert_eq!(good.source, at("source").canonicalize().unwrap());
    }
}
