//! `open` with `O_CREAT` of a file that another process made after the kernel had looked it up.
//!
//! Then the kernel has checked only the directory. The file must still be opened as by `open(2)`:
//! by its own mode, through a symbolic link, never a directory for writing.
//!
//! Needs FUSE and root.

use crate::common::{HookedFs, Mounted, mm, no_root_or_fuse, shell_as_user};
use foliocache_sync::Arc;
use foliocache_sync::atomic::{AtomicBool, Ordering};
use foliocache_sys::Errno;
use foliocache_vfs::{FileSystem, New, OpContext, OpenFlags, SetAttr};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// The name that appears between the kernel's look-up and its create request.
const RACED: &str = "raced";

/// Makes a file with a mode and some bytes, as root.
fn make_file(fs: &dyn FileSystem, name: &str, mode: u32) {
    let (root, flags) = (OpContext::ROOT, OpenFlags::READ_WRITE);
    let file = fs.create(&root, &fs.root(), OsStr::new(name), mode, flags);
    let file = file.unwrap();
    file.write_at(b"secret", 0).unwrap();
    let set = SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    };
    fs.setattr(&root, file.inode(), &set).unwrap();
}

/// Mounts a world-writable directory. The first look-up of [`RACED`] does not find it, and `appear`
/// makes it right after.
fn mount_with_race(
    test: &str,
    appear: impl Fn(&dyn FileSystem) + Send + Sync + 'static,
) -> Mounted {
    let mm = mm();
    let mut fs = HookedFs::new(&mm);
    let set = SetAttr {
        mode: Some(0o777),
        ..SetAttr::default()
    };
    fs.memory
        .setattr(&OpContext::ROOT, &fs.memory.root(), &set)
        .unwrap();
    let raced = Arc::new(AtomicBool::new(false));
    fs.before_lookup = Box::new(move |memory, name| {
        if name == RACED && !raced.swap(true, Ordering::Relaxed) {
            appear(memory);
            return Err(Errno::ENOENT);
        }
        Ok(())
    });
    Mounted::new(test, &mm, fs)
}

#[test]
#[ignore = "system tier"]
fn create_does_not_open_a_file_that_its_mode_forbids() {
    if no_root_or_fuse() {
        return;
    }
    for script in [": >> raced", ": > raced"] {
        let mounted = mount_with_race("forbidden", |fs| make_file(fs, RACED, 0o600));
        let (code, said) = shell_as_user(&mounted.point, script);
        assert!(
            said.contains("Permission denied"),
            "{script}: {code:?} {said}"
        );
        assert_eq!(fs::read(mounted.at(RACED)).unwrap(), b"secret", "{script}");
    }
}

#[test]
#[ignore = "system tier"]
fn create_opens_a_file_that_its_mode_allows() {
    if no_root_or_fuse() {
        return;
    }
    let mounted = mount_with_race("allowed", |fs| make_file(fs, RACED, 0o4666));
    assert_eq!(
        shell_as_user(&mounted.point, "echo more >> raced"),
        (Some(0), String::new())
    );
    assert_eq!(fs::read(mounted.at(RACED)).unwrap(), b"secretmore\n");
    // A write and a truncation without privilege clear the set-user-id bit.
    assert_eq!(
        fs::metadata(mounted.at(RACED)).unwrap().mode() & 0o7777,
        0o666
    );
    drop(mounted);
    let mounted = mount_with_race("allowed", |fs| make_file(fs, RACED, 0o4666));
    assert_eq!(
        shell_as_user(&mounted.point, ": > raced"),
        (Some(0), String::new())
    );
    assert_eq!(fs::read(mounted.at(RACED)).unwrap(), b"");
    assert_eq!(
        fs::metadata(mounted.at(RACED)).unwrap().mode() & 0o7777,
        0o666
    );
}

#[test]
#[ignore = "system tier"]
fn create_follows_a_link_and_refuses_a_directory() {
    if no_root_or_fuse() {
        return;
    }
    let mounted = mount_with_race("link", |fs| {
        make_file(fs, "target", 0o600);
        let (name, target) = (OsStr::new(RACED), OsStr::new("target"));
        fs.make(&OpContext::ROOT, &fs.root(), name, New::Symlink(target))
            .unwrap();
    });
    let (_, said) = shell_as_user(&mounted.point, ": > raced");
    assert!(said.contains("Permission denied"), "{said}");
    assert_eq!(fs::read(mounted.at("target")).unwrap(), b"secret");
    drop(mounted);
    let mounted = mount_with_race("directory", |fs| {
        fs.make(
            &OpContext::ROOT,
            &fs.root(),
            OsStr::new(RACED),
            New::Directory { mode: 0o777 },
        )
        .unwrap();
    });
    let (_, said) = shell_as_user(&mounted.point, ": > raced");
    assert!(said.contains("Is a directory"), "{said}");
}

#[test]
#[ignore = "system tier"]
fn exclusive_create_still_says_that_the_file_exists() {
    if no_root_or_fuse() {
        return;
    }
    let mounted = mount_with_race("exclusive", |fs| make_file(fs, RACED, 0o666));
    let (_, said) = shell_as_user(&mounted.point, "set -C; : > raced");
    assert!(said.contains("File exists"), "{said}");
}
