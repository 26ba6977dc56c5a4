//! What a mount takes of the machine's memory, and what it says when the source cannot take the
//! data.
//!
//! Needs FUSE and root.

mod common;

use common::{Folder, in_kernel_cache, memory_of, pattern, run, shell};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::process::Command;
use std::time::Duration;

#[test]
#[ignore = "system tier"]
fn memory_stays_within_bound_and_base_and_nothing_is_held_twice() {
    const BOUND: u64 = 32 << 20;
    let folder = Folder::new("memory");
    let content = pattern(1 << 20, 3);
    let mut file = File::create(folder.source().join("big")).unwrap();
    for _ in 0..BOUND >> 18 {
        file.write_all(&content).unwrap();
    }
    file.sync_all().unwrap();
    shell(
        folder.top(),
        "mkdir source/many; i=0; while [ $i -lt 2000 ]; do echo $i > source/many/$i; i=$((i+1)); done; sync",
    );
    fs::write("/proc/sys/vm/drop_caches", "1").unwrap();
    let mounted = folder.mount(&["--memory", "32M"]);
    let allowed = BOUND + mounted.fixed_base();
    let check = |what: &str| {
        let anonymous = memory_of(mounted.pid(), "Anonymous:");
        assert!(
            anonymous <= allowed,
            "{anonymous} of {allowed} bytes after {what}"
        );
    };
    // 4 times the bound, read, written, looked at.
    let inside = folder.mount_point().join("big");
    let mut read = File::open(&inside).unwrap();
    let mut buffer = vec![0; 1 << 20];
    for _ in 0..BOUND >> 18 {
        read.read_exact(&mut buffer).unwrap();
        assert!(buffer == content);
    }
    check("reading");
    // Neither the mount's file nor the one behind it fills the kernel's cache.
    let (ours, behind) = (
        in_kernel_cache(&inside),
        in_kernel_cache(&folder.source().join("big")),
    );
    assert!(
        ours == 0,
        "{ours} bytes of the mount's file are in the kernel's cache"
    );
    assert!(
        behind <= 1 << 20,
        "{behind} bytes of the source's file are in the kernel's cache"
    );
    let written = folder.mount_point().join("written");
    let mut out = File::create(&written).unwrap();
    for _ in 0..BOUND >> 18 {
        out.write_all(&content).unwrap();
    }
    check("writing");
    assert_eq!(in_kernel_cache(&written), 0);
    shell(
        &folder.mount_point(),
        "cat many/* > /dev/null; ls -lR > /dev/null",
    );
    check("2000 files");
    // More writers than readers of requests, so that most of them wait with their data in hand.
    let copy = folder.mount_point().join("copy");
    let mut writers: Vec<_> = (0..80)
        .map(|i| {
            let out = format!("of={}{i}", copy.display());
            Command::new("dd")
                .args(["if=/dev/zero", &out, "bs=1M", "count=8", "status=none"])
                .spawn()
                .unwrap()
        })
        .collect();
    while writers
        .iter_mut()
        .any(|writer| writer.try_wait().unwrap().is_none())
    {
        check("many writers began");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(
        writers
            .iter_mut()
            .all(|writer| writer.wait().unwrap().success())
    );
    // A mapping is the exception; its pages go with its last handle.
    shell(
        &folder.mount_point(),
        "cp /bin/sh program; ./program -c true; sleep 0.3",
    );
    assert_eq!(in_kernel_cache(&folder.mount_point().join("program")), 0);
    drop((read, out));
    mounted.end_well();
    assert_eq!(
        fs::metadata(folder.source().join("written")).unwrap().len(),
        4 * BOUND
    );
}

#[test]
#[ignore = "system tier"]
fn what_a_full_source_cannot_take_is_listed_file_by_file() {
    let folder = Folder::new("full");
    run(Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=8M", "none"])
        .arg(folder.source()));
    let mounted = folder.mount(&["--memory", "64M"]);
    let content = pattern(6 << 20, 9);
    let write = |name: &str| fs::write(folder.mount_point().join(name), &content);
    // The cache takes both; or the second one is refused while it is written.
    let accepted: Vec<_> = ["one", "two", "three"]
        .into_iter()
        .filter(|name| write(name).is_ok())
        .collect();
    let ended = mounted.end("TERM");
    let lost: Vec<_> = ended
        .lines
        .iter()
        .filter(|line| line.contains("lost: "))
        .collect();
    let whole =
        |name: &&str| fs::read(folder.source().join(name)).is_ok_and(|found| found == content);
    for name in &accepted {
        let listed = lost
            .iter()
            .any(|line| line.contains(&format!("/{name}: ")) && line.contains("ENOSPC"));
        assert!(listed != whole(name), "{name}: {:?}", ended.lines);
    }
    assert!(!accepted.is_empty());
    assert_eq!(
        ended.code,
        Some(i32::from(!lost.is_empty())),
        "{:?}",
        ended.lines
    );
    assert!(lost.len() + 1 >= accepted.len(), "{:?}", ended.lines);
    assert!(!folder.is_mounted());
}
