//! The recording, failing disk itself, under real file systems.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use foliocache_sim::disk::{Disk, Format, Logged, LoggedKind};
use foliocache_sim::{Effect, Lost, OpSet, Rule, When};
use foliocache_sys::Errno;

const PATIENCE: Duration = Duration::from_secs(30);

/// Bytes that are nowhere else.
fn mark(seed: u8) -> Vec<u8> {
    (0..8192_u32)
        .map(|at| (at * 31 + u32::from(seed)) as u8 | 1)
        .collect()
}

fn write_synced(path: &Path, bytes: &[u8]) {
    let mut file = File::create(path).expect("create");
    file.write_all(bytes).expect("write");
    file.sync_all().expect("fsync");
}

fn disks() -> impl Iterator<Item = (Format, Disk)> {
    Format::ALL
        .into_iter()
        .map(|format| (format, Disk::new(format, 1).expect("a disk")))
}

/// Opened past the page cache, to write to the device itself.
fn direct(path: &Path) -> File {
    let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(flags);
    options.open(path).expect("the device")
}

#[repr(align(4096))]
struct Aligned([u8; 8192]);

#[test]
#[ignore = "system tier"]
fn a_disk_logs_data_before_the_flush_that_covers_it() {
    if Disk::skip() {
        return;
    }
    for (format, disk) in disks() {
        let mounted = disk.mount().expect("mount");
        let before = disk.position();
        let bytes = mark(7);
        write_synced(&mounted.path().join("file"), &bytes);
        let log = disk.logged_since(before);
        let found = log.iter().enumerate().find(|(at, entry)| {
            let image = disk.image_of_all(before + *at as u64 + 1);
            entry.kind == LoggedKind::Write && image.read(entry.pos, 8192) == bytes
        });
        let (data, entry) = found.unwrap_or_else(|| panic!("{format:?}: the data is not logged"));
        let flush = log[data..]
            .iter()
            .position(|entry| entry.kind == LoggedKind::Flush);
        assert!(
            flush.is_some(),
            "{format:?}: no flush after the data: {log:?}"
        );
        let now = disk.position();
        assert_eq!(
            disk.image_at(now).read(entry.pos, 8192),
            bytes,
            "{format:?}"
        );
        assert!(
            disk.image_at(before).read(entry.pos, 8192) != bytes,
            "{format:?}"
        );
        mounted.unmount().expect("unmount");
    }
}

#[test]
#[ignore = "system tier"]
fn a_write_to_the_device_is_logged_when_it_returns_and_a_flush_when_it_is_asked() {
    if Disk::skip() {
        return;
    }
    let disk = Disk::blank(8 << 20, 1).expect("a disk");
    let device = direct(disk.device());
    let buffer = Box::new(Aligned(mark(3).try_into().expect("8 KiB")));
    // The kernel flushed the file when it was attached.
    let (start, flushes) = (disk.position(), disk.flushes());
    device.write_all_at(&buffer.0[..512], 512).expect("write");
    device.write_all_at(&buffer.0, 4096).expect("write");
    let of = |kind, pos, len| Logged { kind, pos, len };
    let writes = [
        of(LoggedKind::Write, 512, 512),
        of(LoggedKind::Write, 4096, 8192),
    ];
    assert_eq!(disk.logged_since(start), writes);
    assert_eq!(disk.flushes(), flushes);
    device.sync_data().expect("flush");
    assert_eq!(disk.logged_since(start)[2..], [of(LoggedKind::Flush, 0, 0)]);
    assert_eq!(disk.flushes().last(), Some(&disk.position()));
    rustix::fs::fallocate(
        &device,
        rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE,
        4096,
        4096,
    )
    .expect("discard");
    assert_eq!(
        disk.logged_since(start)[3],
        of(LoggedKind::Zero, 4096, 4096)
    );
    // It reads the contents of the log.
    let mut back = Box::new(Aligned([9; 8192]));
    device.read_exact_at(&mut back.0, 4096).expect("read");
    assert_eq!(back.0[..4096], [0; 4096]);
    assert_eq!(back.0[4096..], buffer.0[4096..]);
}

#[test]
#[ignore = "system tier"]
fn an_image_is_mounted_with_flushed_data_and_may_be_cut_again() {
    if Disk::skip() {
        return;
    }
    for (format, disk) in disks() {
        let mounted = disk.mount().expect("mount");
        let bytes = mark(1);
        write_synced(&mounted.path().join("kept"), &bytes);
        let position = disk.position();
        fs::write(mounted.path().join("unsynced"), &bytes).expect("write");
        let copy = Disk::beside(&disk.image_at(position), 2).expect("a disk");
        let recovered = copy.mount().expect("recovery");
        assert_eq!(
            fs::read(recovered.path().join("kept")).expect("read"),
            bytes
        );
        assert!(!recovered.path().join("unsynced").exists());
        // The recovery was recorded, and so are later operations.
        let first = copy.position();
        assert!(first > 0, "{format:?}: recovery wrote nothing");
        write_synced(&recovered.path().join("later"), &bytes);
        let later = copy.position();
        drop(recovered);
        let images = [
            (copy.image_at(later), true),
            (copy.image_at(first / 2), false),
            (copy.image_with(first, 5), false),
        ];
        for (image, has_later) in images {
            copy.load(&image).expect("another image");
            let again = copy.mount().expect("recovery");
            assert_eq!(fs::read(again.path().join("kept")).expect("read"), bytes);
            assert_eq!(again.path().join("later").exists(), has_later, "{format:?}");
        }
        drop(mounted);
    }
}

#[test]
#[ignore = "system tier"]
fn a_missing_flush_shows_in_the_image() {
    if Disk::skip() {
        return;
    }
    for (format, disk) in disks() {
        let mounted = disk.mount().expect("mount");
        let bytes = mark(1);
        let path = mounted.path().join("file");
        write_synced(&path, &bytes);
        // The disk lies: it reports a flush that did not happen.
        disk.faults().add(Rule::new(OpSet::FLUSH, Effect::Lie));
        let file = OpenOptions::new().write(true).open(&path).expect("open");
        file.write_all_at(&[0xaa; 4096], 0).expect("write");
        file.sync_all().expect("a lie");
        let copy = Disk::beside(&disk.image_at(disk.position()), 2).expect("a disk");
        let recovered = copy.mount().expect("recovery");
        let found = fs::read(recovered.path().join("file")).expect("read");
        assert_eq!(found, bytes, "{format:?}: the old data");
        disk.faults().heal();
        file.write_all_at(&[0xaa; 4096], 0).expect("write");
        file.sync_all().expect("no lie");
        drop((recovered, file));
        copy.load(&disk.image_at(disk.position())).expect("load");
        let recovered = copy.mount().expect("recovery");
        let found = fs::read(recovered.path().join("file")).expect("read");
        assert_eq!(found[..4096], [0xaa; 4096], "{format:?}: the new data");
    }
}

#[test]
#[ignore = "system tier"]
fn the_nth_operation_fails_and_the_next_works() {
    if Disk::skip() {
        return;
    }
    let disk = Disk::blank(8 << 20, 1).expect("a disk");
    let device = direct(disk.device());
    let faults = disk.faults();
    let mut buffer = Box::new(Aligned([7; 8192]));
    let raw = |error: std::io::Error| error.raw_os_error();

    let rule = faults.fail_nth(OpSet::WRITE, 2, Errno::EIO);
    let outcomes = [0, 1, 2].map(|at| device.write_all_at(&buffer.0[..512], at * 512).map_err(raw));
    assert_eq!(outcomes, [Ok(()), Err(Some(5)), Ok(())]);
    assert_eq!(faults.remove(rule), Some(1));

    faults.fail_from(OpSet::READ, 1, Errno::EIO);
    for _ in 0..2 {
        assert!(device.read_exact_at(&mut buffer.0[..512], 0).is_err());
    }
    faults.heal();
    device
        .read_exact_at(&mut buffer.0[..512], 0)
        .expect("well again");

    faults.fail_nth(OpSet::FLUSH, 1, Errno::EIO);
    assert_eq!(device.sync_data().map_err(raw), Err(Some(5)));
    device.sync_data().expect("well again");
    faults.fail_nth(OpSet::WRITE, 1, Errno::ENOSPC);
    let full = device.write_all_at(&buffer.0[..512], 0).map_err(raw);
    assert_eq!(full, Err(Some(28)), "errors keep their kind");

    // A torn write fails and leaves some of its sectors.
    faults.heal();
    buffer.0.fill(0);
    device.write_all_at(&buffer.0, 0).expect("zeros");
    faults.add(Rule::new(OpSet::WRITE, Effect::Torn(Errno::EIO)));
    buffer.0.fill(7);
    device.write_all_at(&buffer.0, 0).expect_err("torn");
    faults.heal();
    device.read_exact_at(&mut buffer.0, 0).expect("read");
    let (mut old, mut new) = (0, 0);
    for sector in buffer.0.chunks(512) {
        assert!(
            sector.iter().all(|&byte| byte == sector[0]),
            "half a sector"
        );
        match sector[0] {
            0 => old += 1,
            7 => new += 1,
            other => panic!("a byte that was never written: {other}"),
        }
    }
    assert!(old > 0 && new > 0, "{old} old sectors, {new} new ones");
    // A failed flush loses the data that it covers.
    device.sync_data().expect("flush");
    buffer.0.fill(8);
    device.write_all_at(&buffer.0, 0).expect("write");
    let lose = Effect::Lose(Errno::EIO, Lost::DataAndLive);
    faults.add(Rule::new(OpSet::FLUSH, lose).when(When::Nth(1)));
    device.sync_data().expect_err("lost");
    device.read_exact_at(&mut buffer.0, 0).expect("read");
    assert!(buffer.0.iter().all(|&byte| byte != 8));
    let counts = faults.counts();
    assert!(counts.begun_of(OpSet::WRITE) >= 7, "{counts:?}");
    assert_eq!(counts.failed_of(OpSet::FLUSH), 2, "{counts:?}");
}

#[test]
#[ignore = "system tier"]
fn a_disk_hangs_and_goes_on_and_vanishes_and_comes_back() {
    if Disk::skip() {
        return;
    }
    for (format, disk) in disks() {
        let mounted = disk.mount().expect("mount");
        let path = mounted.path().join("file");
        write_synced(&path, &mark(1));
        let faults = disk.faults();
        faults.hang(OpSet::WRITE);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let file = OpenOptions::new().write(true).open(&path).expect("open");
                file.write_all_at(&[2; 4096], 0).expect("write");
                file.sync_all()
            });
            assert!(faults.wait_hung(1, PATIENCE), "{format:?}");
            assert!(
                !writer.is_finished(),
                "{format:?}: an fsync while the disk hangs"
            );
            // It hangs for writes alone.
            let mut bytes = [0; 512];
            let device = File::open(disk.device()).expect("the device");
            device.read_exact_at(&mut bytes, 0).expect("read");
            faults.heal();
            let outcome = writer.join().expect("the writer");
            outcome.unwrap_or_else(|error| panic!("{format:?}: {error}"));
        });
        assert_eq!(fs::read(&path).expect("read")[..4096], [2; 4096]);

        disk.vanish();
        let device = direct(disk.device());
        let mut buffer = Box::new(Aligned([0; 8192]));
        device
            .read_exact_at(&mut buffer.0, 0)
            .expect_err("vanished");
        faults.heal();
        device.read_exact_at(&mut buffer.0, 0).expect("back again");
        assert_eq!(fs::read(&path).expect("read")[..4096], [2; 4096]);
    }
}

/// The environment of the process that the next test kills.
const VICTIM: &str = "FOLIOCACHE_TEST_VICTIM";

#[test]
#[ignore = "system tier"]
fn mounts_and_devices_of_a_killed_test_are_removed_by_the_next_run() {
    if Disk::skip() {
        return;
    }
    if std::env::var_os(VICTIM).is_some() {
        let disk = Disk::new(Format::Ext4, 1).expect("a disk");
        let mounted = disk.mount().expect("mount");
        let file = File::create(mounted.path().join("file")).expect("create");
        disk.faults().hang(OpSet::WRITE | OpSet::FLUSH);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (&file).write_all(&[1; 100_000]).expect("write");
                let _ = file.sync_all();
            });
            assert!(disk.faults().wait_hung(1, PATIENCE));
            println!("{}", disk.device().display());
            std::io::stdout().flush().expect("flush");
        });
        return;
    }
    // Elsewhere, since concurrent tests also remove leftovers.
    let place = tempfile::tempdir().expect("a directory");
    let mut victim = Command::new(std::env::current_exe().expect("this program"))
        .env("TMPDIR", place.path())
        .args(["--exact", "--ignored", "--nocapture"])
        .arg("disk::mounts_and_devices_of_a_killed_test_are_removed_by_the_next_run")
        .env(VICTIM, "1")
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    // Killed while a thread of it waits for a disk that hangs.
    let mut shown = String::new();
    let mut out = victim.stdout.take().expect("a pipe");
    while !shown.contains("/dev/loop") || !shown.ends_with('\n') {
        let mut byte = [0];
        assert_eq!(out.read(&mut byte).expect("read"), 1, "it ended: {shown}");
        shown.push(char::from(byte[0]));
    }
    victim.kill().expect("kill");
    let killed = Instant::now();
    victim.wait().expect("it ends");
    let took = killed.elapsed();
    assert!(
        took < PATIENCE,
        "a thread in an fsync of a disk that hangs: {took:?}"
    );
    let named = |pid: u32| format!("/foliocache-disks/{pid}-");
    let table = || fs::read_to_string("/proc/self/mountinfo").expect("the mounts");
    assert!(table().contains(&named(victim.id())), "it left its mounts");
    // The next run. In this process a disk may have been made before.
    let next = Command::new(std::env::current_exe().expect("this program"))
        .env("TMPDIR", place.path())
        .args(["--exact", "--ignored"])
        .arg("disk::a_write_to_the_device_is_logged_when_it_returns_and_a_flush_when_it_is_asked")
        .output()
        .expect("a child");
    assert!(next.status.success(), "{next:?}");
    assert!(!table().contains(&named(victim.id())), "{}", table());
    let folders = fs::read_dir(place.path().join("foliocache-disks")).expect("folders");
    let prefix = format!("{}-", victim.id());
    for folder in folders {
        let name = folder.expect("a folder").file_name();
        assert!(!name.to_string_lossy().starts_with(&prefix), "{name:?}");
    }
    let device = shown
        .split_whitespace()
        .find(|word| word.starts_with("/dev/loop"));
    let device = Path::new(device.expect("a name"))
        .file_name()
        .expect("a name");
    let backing = Path::new("/sys/block")
        .join(device)
        .join("loop/backing_file");
    let backing = fs::read_to_string(backing).unwrap_or_default();
    assert!(!backing.contains(&named(victim.id())), "{backing}");
}
