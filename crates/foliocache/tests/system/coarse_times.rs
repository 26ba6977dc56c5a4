//! Locks over a file system that gives two changes of one clock tick the same time: ramfs.

use crate::common::{cache, lacks, on_disk};
use foliocache::{DirectoryOptions, LockKind};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

/// Unmounts also after a panic.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = unmount(self.0, UnmountFlags::DETACH);
    }
}

#[test]
#[ignore = "system tier"]
fn a_lock_shows_writes_by_others_in_the_same_clock_tick() {
    if lacks("root") {
        return;
    }
    let top = on_disk();
    mount("none", top.path(), "ramfs", MountFlags::empty(), None).expect("a ramfs");
    let _mounted = Mounted(top.path());
    for watch in [true, false] {
        let cache = cache(16);
        let options = DirectoryOptions::new().watch(watch);
        let dir = cache.directory_with(top.path(), options).unwrap();
        let file = dir.create("f").unwrap();
        let path = top.path().join("f");
        let mut options = fs::File::options();
        let beside = options.read(true).write(true).open(&path).unwrap();
        let mut same = 0;
        for round in 0..2000u64 {
            if round % 100 == 1 {
                // The stamp is old, and may still be that of both.
                thread::sleep(Duration::from_millis(30));
            }
            file.lock_range(.., LockKind::Exclusive).unwrap();
            let mut seen = [0; 8];
            let n = file.read_full_at(&mut seen, 0).unwrap();
            assert_eq!(n, if round == 0 { 0 } else { 8 });
            assert_eq!(u64::from_le_bytes(seen), 2 * round);
            file.write_all_at(&(2 * round + 1).to_le_bytes(), 0)
                .unwrap();
            file.unlock_range(..).unwrap();
            let ours = fs::metadata(&path).unwrap().modified().unwrap();
            beside.read_exact_at(&mut seen, 0).unwrap();
            assert_eq!(u64::from_le_bytes(seen), 2 * round + 1);
            beside
                .write_all_at(&(2 * round + 2).to_le_bytes(), 0)
                .unwrap();
            same += u64::from(fs::metadata(&path).unwrap().modified().unwrap() == ours);
        }
        println!("{same} changes by others had the time of ours");
        drop(file);
        dir.remove_file("f").unwrap();
    }
}
