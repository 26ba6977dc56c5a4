//! Disks that are full, read-only, gone, or hang, under the library over ext4 and XFS.

use std::time::Duration;

use crate::common::PATIENCE;
use crate::failing::{
    FILE_SIZE, MIB, PAGE, Stage, base_fill, directory, on_each, open, read, small_cache, unmount,
};
use foliocache::{Cache, Errno};
use foliocache_sim::disk::Disk;
use foliocache_sim::{Effect, Fill, OpSet, Rule};
use rustix::mount::{MountFlags, mount_remount};

const CHUNK: usize = 64 << 10;

#[test]
#[ignore = "system tier"]
fn a_full_disk_refuses_writes_and_everything_accepted_is_on_it() {
    on_each(|stage| {
        let mounted = stage.begin();
        let stat = rustix::fs::statvfs(mounted.path()).expect("statvfs");
        let free = stat.f_bavail * stat.f_frsize;
        let filler = std::fs::File::create(mounted.path().join("filler")).expect("create");
        let most = free - 12 * MIB;
        rustix::fs::fallocate(&filler, rustix::fs::FallocateFlags::empty(), 0, most).expect("room");
        drop(filler);
        let cache = small_cache();
        let dir = directory(&cache, &mounted).expect("the directory");
        let file = dir
            .open_options()
            .read(true)
            .write(true)
            .create(true)
            .open("new")
            .expect("new");
        let mut accepted = 0_u64;
        // To the last page.
        for len in [CHUNK, PAGE as usize] {
            let error = loop {
                match file.write_at(&Fill(1).bytes(accepted, len), accepted) {
                    Ok(n) => accepted += n as u64,
                    Err(error) => break error,
                }
                assert!(accepted < 64 * MIB, "there is no room for this");
            };
            assert_eq!(error.errno(), Errno::ENOSPC, "{error}");
        }
        assert!(accepted > MIB, "{accepted} bytes of some 12 MiB");
        file.sync_all().expect("what was accepted is written");
        // It has its blocks.
        for pos in (0..accepted - CHUNK as u64).step_by(5 * CHUNK) {
            file.write_all_at(&Fill(1).bytes(pos, CHUNK), pos)
                .expect("an overwrite takes no room");
        }
        file.sync_all().expect("an overwrite takes no room");
        std::fs::remove_file(mounted.path().join("filler")).expect("room again");
        let rest = Fill(1).bytes(accepted, CHUNK);
        let begun = std::time::Instant::now();
        while let Err(error) = file.write_all_at(&rest, accepted) {
            assert_eq!(error.errno(), Errno::ENOSPC, "{error}");
            assert!(
                begun.elapsed() < PATIENCE / 2,
                "refused though there is room"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        file.sync_all().expect("room again");
        drop((file, dir));
        cache.close().expect("nothing is left to lose");
        unmount(mounted);
        let again = stage.mount_again();
        let found = std::fs::read(again.path().join("new")).expect("read");
        assert_eq!(found.len() as u64, accepted + CHUNK as u64);
        assert!(found == Fill(1).bytes(0, found.len()));
        unmount(again);
    });
}

/// The disk breaks for good below data that is dirty.
fn breaks(stage: &Stage, how: impl Fn(&Disk)) {
    let mounted = stage.begin();
    let cache = small_cache();
    let dir = directory(&cache, &mounted).expect("the directory");
    let [file, observer] = [0; 2].map(|_| open(&dir, "f0").expect("open"));
    file.write_all_at(&Fill(1).bytes(0, CHUNK), 0)
        .expect("write");
    file.sync_all().expect("the disk is well");
    // The grown part below must not be read first.
    read(&observer, FILE_SIZE - PAGE, PAGE as usize).expect("the disk is well");
    how(&stage.disk);
    let at = 512 << 10;
    file.write_all_at(&Fill(2).bytes(at, CHUNK), at)
        .expect("the cache takes it");
    // The file grows, which the journal must know.
    let end = FILE_SIZE;
    file.write_all_at(&Fill(3).bytes(end, 100), end)
        .expect("the cache takes it");
    file.sync_all().expect_err("the disk is broken");
    file.sync_data().expect_err("still");
    observer.sync_all().expect_err("every handle is told");
    assert!(
        read(&observer, at, CHUNK).expect("dirty data is readable") == Fill(2).bytes(at, CHUNK)
    );
    assert!(read(&observer, end, 100).expect("dirty data is readable") == Fill(3).bytes(end, 100));
    // Elsewhere, the old bytes or an error.
    let other = open(&dir, "f1");
    for pos in (0..FILE_SIZE).step_by(PAGE as usize) {
        let Ok(Ok(found)) = other.as_ref().map(|file| read(file, pos, PAGE as usize)) else {
            continue;
        };
        assert!(found == base_fill(1).bytes(pos, found.len()), "at {pos}");
    }
    drop((file, observer, other, dir));
    let refused = cache.close().expect_err("data would be lost");
    let names = format!("{:?}", refused.failed_files());
    assert!(names.contains("f0"), "{names}");
    let cache = refused.into_cache();
    cache.discard_unsynced().expect("given up");
    let files = cache.stats().expect("stats").files;
    assert_eq!(files.unsynced_pages() + files.failed_pages, 0, "{files:?}");
    drop(cache);
    stage.disk.faults().heal();
    unmount(mounted);
    let again = stage.mount_again();
    let found = std::fs::read(again.path().join("f0")).expect("read");
    assert!(
        found[..CHUNK] == Fill(1).bytes(0, CHUNK),
        "acknowledged data is lost"
    );
    unmount(again);
}

#[test]
#[ignore = "system tier"]
fn a_file_system_that_became_read_only_by_an_error_loses_nothing_silently() {
    on_each(|stage| {
        breaks(stage, |disk| {
            disk.faults()
                .add(Rule::new(OpSet::WRITE, Effect::Fail(Errno::EIO)));
        });
    });
}

#[test]
#[ignore = "system tier"]
fn a_disk_that_vanishes_loses_nothing_silently() {
    on_each(|stage| breaks(stage, Disk::vanish));
}

#[test]
#[ignore = "system tier"]
fn a_remount_read_only_refuses_changes_until_it_is_writable_again() {
    on_each(|stage| {
        let mounted = stage.begin();
        let cache = small_cache();
        let dir = directory(&cache, &mounted).expect("the directory");
        let file = open(&dir, "f0").expect("open");
        file.write_all_at(&Fill(1).bytes(0, CHUNK), 0)
            .expect("write");
        let remount = |flags| mount_remount(mounted.path(), flags, "");
        // The kernel refuses it below a file with dirty data, which is open in the source.
        assert_eq!(remount(MountFlags::RDONLY), Err(rustix::io::Errno::BUSY));
        drop(file);
        cache.sync().expect("sync");
        let became = crate::failing::eventually(|| remount(MountFlags::RDONLY).is_ok());
        assert!(became, "an unused file keeps the mount writable");
        let error = dir.create("new").map(|_| ()).expect_err("read-only");
        assert_eq!(error.errno(), Errno::EROFS, "{error}");
        // Refused at once, or not durable: never silently lost.
        if let Ok(file) = open(&dir, "f0")
            && file.write_all_at(&Fill(2).bytes(0, CHUNK), 0).is_ok()
        {
            file.sync_all().expect_err("read-only");
        }
        let reader = dir.open("f1").expect("reading goes on");
        assert!(read(&reader, 0, CHUNK).expect("read") == base_fill(1).bytes(0, CHUNK));
        drop(reader);
        remount(MountFlags::empty()).expect("writable");
        let file = open(&dir, "f0").expect("open");
        file.write_all_at(&Fill(3).bytes(0, CHUNK), 0)
            .expect("write");
        let _ = file.sync_all();
        file.sync_all().expect("writable again");
        drop((file, dir));
        cache.close().expect("nothing is left to lose");
        unmount(mounted);
        let again = stage.mount_again();
        let found = std::fs::read(again.path().join("f0")).expect("read");
        assert!(found[..CHUNK] == Fill(3).bytes(0, CHUNK));
        unmount(again);
    });
}

#[test]
#[ignore = "system tier"]
fn a_hung_disk_delays_no_other_file_system_while_the_limit_shrinks() {
    on_each(|stage| {
        let other = Stage::new(stage.format());
        let (hung, well) = (stage.begin(), other.begin());
        let cache = Cache::builder().memory(32 * MIB).external_pressure(false);
        let cache = cache
            .dirty_expire(Duration::from_millis(40))
            .build()
            .expect("a cache");
        let dirs = [&hung, &well].map(|mounted| directory(&cache, mounted).expect("the directory"));
        let stuck = open(&dirs[0], "f0").expect("open");
        read(&stuck, 0, FILE_SIZE as usize).expect("read");
        stage.disk.faults().hang(OpSet::ALL);
        let writer = std::thread::spawn(move || {
            stuck
                .write_all_at(&Fill(1).bytes(0, 8 * CHUNK), 0)
                .expect("write");
            let synced = stuck.sync_all();
            (stuck, synced)
        });
        assert!(stage.disk.faults().wait_hung(1, PATIENCE), "it hangs");
        let file = open(&dirs[1], "f0").expect("open");
        for (round, limit) in [(0, 32), (1, 16), (2, 8)] {
            cache.set_memory(limit * MIB).expect("a smaller limit");
            for pos in (0..16 * MIB).step_by(CHUNK) {
                file.write_all_at(&Fill(round).bytes(pos, CHUNK), pos)
                    .expect("write");
            }
            file.sync_all().expect("the other disk is well");
            for pos in (0..16 * MIB).step_by(CHUNK) {
                assert!(read(&file, pos, CHUNK).expect("read") == Fill(round).bytes(pos, CHUNK));
            }
            let used = cache.stats().expect("stats").memory.total_bytes();
            assert!(used <= limit * MIB, "{used} bytes of {limit} MiB");
        }
        assert!(!writer.is_finished(), "it hangs");
        stage.disk.faults().heal();
        let (stuck, synced) = writer.join().expect("no panic");
        synced.expect("it goes on");
        assert!(read(&stuck, 0, 8 * CHUNK).expect("read") == Fill(1).bytes(0, 8 * CHUNK));
        drop((stuck, file, dirs));
        cache.close().expect("nothing is left to lose");
        unmount(hung);
        unmount(well);
        let again = stage.mount_again();
        let found = std::fs::read(again.path().join("f0")).expect("read");
        assert!(found[..8 * CHUNK] == Fill(1).bytes(0, 8 * CHUNK));
        unmount(again);
    });
}
