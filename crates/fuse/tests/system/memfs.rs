//! A directory of a cache in memory, mounted by the library and used beside the mount.
//!
//! Needs FUSE and root.

use foliocache::{Cache, Credentials, Errno};
use foliocache_fuse::{MountError, MountOptions, mount};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

#[test]
#[ignore = "system tier"]
fn a_directory_is_mounted_used_and_dropped() {
    let point =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("memfs-{}", std::process::id()));
    fs::create_dir_all(&point).unwrap();
    let cache = Cache::builder().memory("16M").build().unwrap();
    let memfs = cache.memfs().unwrap();
    let options = MountOptions::new("memory");
    let mut mounted = mount(&memfs, &point, &options).unwrap();
    fs::create_dir(point.join("dir")).unwrap();
    // Neither a part of a file system nor a view with other credentials.
    let other = memfs.with_credentials(Credentials::new(1000, 1000, &[]));
    for part in [memfs.open_dir("dir").unwrap(), other] {
        let refused = mount(&part, &point, &options).err();
        assert!(matches!(refused, Some(MountError::NotWhole)));
    }
    fs::write(point.join("dir/file"), vec![7; 1_000_000]).unwrap();
    assert_eq!(
        fs::read(point.join("dir/file")).unwrap(),
        vec![7; 1_000_000]
    );
    // Reads are requests. Nothing was mapped, so the kernel's cache got nothing.
    let stats = mounted.stats();
    assert_eq!((stats.read_bytes, stats.kernel_cache_bytes), (1_000_000, 0));
    // Memory file systems may take half the bound.
    let error = fs::write(point.join("large"), vec![1; 12 << 20]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::ENOSPC.raw()));
    let open = fs::File::open(point.join("dir/file")).unwrap();
    assert_eq!(mounted.unmount().unwrap_err().errno(), Errno::EBUSY);
    assert!(!mounted.is_ended() && mounted.stats().written_bytes > 1_000_000);
    drop(open);
    mounted.unmount().unwrap();
    assert!(mounted.is_ended());
    // The files belong to the directory, not to the mount.
    assert_eq!(memfs.metadata("dir/file").unwrap().len(), 1_000_000);
    let again = mount(&memfs, &point, &options).unwrap();
    assert_eq!(fs::read(point.join("dir/file")).unwrap().len(), 1_000_000);
    drop(again);
    assert_eq!(fs::read_dir(&point).unwrap().count(), 0);
    fs::remove_dir(&point).unwrap();
}

/// The kernel may give the device number of an ended mount to the next one.
#[test]
#[ignore = "system tier"]
fn mount_that_was_unmounted_by_others_ends_no_other_mount() {
    let top = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let [one, two] = ["one", "two"].map(|name| {
        let point = top.join(format!("memfs-{name}-{}", std::process::id()));
        fs::create_dir_all(&point).unwrap();
        point
    });
    let cache = Cache::builder().memory("16M").build().unwrap();
    let options = MountOptions::new("memory");
    for _ in 0..5 {
        let first = mount(&cache.memfs().unwrap(), &one, &options).unwrap();
        let umount = Command::new("umount").arg(&one).status().unwrap();
        assert!(umount.success());
        while !first.is_ended() {
            thread::sleep(Duration::from_millis(1));
        }
        let second = mount(&cache.memfs().unwrap(), &two, &options).unwrap();
        drop(first);
        fs::write(two.join("file"), "data").unwrap();
        assert!(!second.is_ended());
    }
    fs::remove_dir(&one).unwrap();
    fs::remove_dir(&two).unwrap();
}
