//! A file system in memory, mounted by the library alone.
//!
//! Needs FUSE and root.

use foliocache_fs::MemFs;
use foliocache_fuse::{Mount, MountOptions};
use foliocache_mm::{Mm, MmConfig};
use foliocache_sync::Arc;
use foliocache_sys::Errno;
use foliocache_vfs::SuperBlock;
use std::fs;
use std::path::Path;

#[test]
#[ignore = "system tier"]
fn mounted_used_and_dropped() {
    let point =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("memfs-{}", std::process::id()));
    fs::create_dir_all(&point).unwrap();
    let mm = Mm::new(MmConfig::new(16 << 20)).unwrap();
    let memfs = Arc::new(SuperBlock::new(Arc::new(MemFs::new(&mm).unwrap()), &mm));
    let mut mount = Mount::new(memfs.clone(), &point, &MountOptions::new("memory")).unwrap();
    fs::create_dir(point.join("dir")).unwrap();
    fs::write(point.join("dir/file"), vec![7; 1_000_000]).unwrap();
    assert_eq!(
        fs::read(point.join("dir/file")).unwrap(),
        vec![7; 1_000_000]
    );
    // Reads come to us; nothing was mapped, so the kernel's cache was given nothing.
    let stats = mount.stats();
    assert_eq!(
        (stats.bytes_read, stats.bytes_to_kernel_cache),
        (1_000_000, 0)
    );
    // Half the bound is what memory file systems may take.
    let error = fs::write(point.join("large"), vec![1; 12 << 20]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::ENOSPC.raw()));
    let open = fs::File::open(point.join("dir/file")).unwrap();
    assert_eq!(mount.unmount().unwrap_err().errno(), Errno::EBUSY);
    assert!(!mount.is_ended() && mount.stats().bytes_written > 1_000_000);
    drop(open);
    mount.unmount().unwrap();
    assert!(mount.is_ended());
    // The files are the file system's, not the mount's.
    let again = Mount::new(memfs, &point, &MountOptions::new("memory")).unwrap();
    assert_eq!(fs::read(point.join("dir/file")).unwrap().len(), 1_000_000);
    drop(again);
    assert_eq!(fs::read_dir(&point).unwrap().count(), 0);
    fs::remove_dir(&point).unwrap();
}
