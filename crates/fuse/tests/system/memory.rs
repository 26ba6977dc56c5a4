//! The memory that the process of a mount takes for names, handles and data, measured from outside, stays within
//! the bound.
//!
//! Another process makes the load, this program once more: a thread of the process that serves a
//! mount must not wait for it.
//!
//! Needs FUSE, root, and Linux 6.18.

use foliocache_fs::{DirFs, DirFsOptions};
use foliocache_fuse::{Mount, MountOptions};
use foliocache_mm::{Mm, MmConfig};
use foliocache_sys::memory::Resident;
use foliocache_vfs::SuperBlock;
use std::env;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 64 * MIB;
const NAMES: u64 = 100_000;
const DIRS: u64 = 100;
const HANDLES: usize = 2_000;
/// Files that are opened at random while as many are held open.
const OPENED: u64 = 20_000;
/// Directories that are open at the same time.
const LISTINGS: u64 = 400;
/// Bytes of the file that is read, and of the one that is written.
const DATA: u64 = 128 * MIB;

/// Allowance beside the bound and the base: the heap's tables and holes, and stacks.
const SLACK: u64 = 4 * MIB;

/// The folder of the load; set for the other process alone.
const PLACE: &str = "FOLIOCACHE_MEMORY_PLACE";

fn path_of(place: &Path, at: u64) -> PathBuf {
    place.join(format!("d{}/file-number-{at}", at % DIRS))
}

/// Private and shared memory of this process, with each page counted once.
fn held() -> u64 {
    let resident = Resident::of_process().unwrap();
    resident.anonymous + resident.pss_shmem
}

/// Reports a step to the other process, and waits until it has measured.
fn report(what: &str) {
    println!("now {what}");
    std::io::stdout().flush().unwrap();
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// Makes each thread of the mount use its buffers.
fn warm_up(place: &Path) {
    std::thread::scope(|scope| {
        for thread in 0..16 {
            scope.spawn(move || {
                let path = place.join(format!("warm-{thread}"));
                let mut buffer = vec![thread; MIB as usize];
                let options = &mut File::options();
                let options = options.read(true).write(true).create(true);
                let file = options.open(&path).unwrap();
                for _ in 0..20 {
                    file.write_all_at(&buffer, 0).unwrap();
                    file.read_exact_at(&mut buffer, 0).unwrap();
                }
                fs::remove_file(&path).unwrap();
            });
        }
    });
    report("warm");
}

fn read_through(place: &Path, what: &str) {
    let mut buffer = vec![0; MIB as usize];
    let mut data = File::open(place.join("data")).unwrap();
    for _ in 0..DATA / MIB {
        data.read_exact(&mut buffer).unwrap();
        report(what);
    }
}

#[test]
#[ignore = "system tier"]
fn use_a_mount() {
    let Some(place) = env::var_os(PLACE).map(PathBuf::from) else {
        return;
    };
    warm_up(&place);
    for at in 0..NAMES {
        fs::symlink_metadata(path_of(&place, at)).unwrap();
        if at % 500 == 0 {
            report("names");
        }
    }
    read_through(&place, "data after names");
    // The kernel requests a separate handle for each.
    let mut listings = Vec::new();
    for at in 0..LISTINGS {
        let mut listing = fs::read_dir(place.join(format!("d{}", at % DIRS))).unwrap();
        listing.next().unwrap().unwrap();
        listings.push(listing);
        report("open directories");
    }
    drop(listings);
    let mut random = 12345_u64;
    let mut open = Vec::new();
    for at in 0..OPENED {
        random = random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let file = File::options()
            .read(true)
            .write(true)
            .open(path_of(&place, (random >> 33) % NAMES))
            .unwrap();
        file.write_all_at(b"some bytes", 0).unwrap();
        let mut bytes = [0; 10];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"some bytes");
        match open.len() < HANDLES {
            true => open.push(file),
            false => open[(random >> 20) as usize % HANDLES] = file,
        }
        if at % 100 == 0 {
            report("handles");
        }
    }
    read_through(&place, "data beside handles");
    let mut written = File::create(place.join("written")).unwrap();
    for _ in 0..DATA / MIB {
        written.write_all(&vec![7; MIB as usize]).unwrap();
        report("writing beside handles");
    }
    println!("done");
}

#[test]
#[ignore = "system tier"]
fn names_handles_and_data_of_a_mount_stay_within_the_bound() {
    let top = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("memory-{}", std::process::id()));
    let (source, mount_point) = (top.join("source"), top.join("mount"));
    fs::create_dir_all(&mount_point).unwrap();
    for dir in 0..DIRS {
        fs::create_dir_all(source.join(format!("d{dir}"))).unwrap();
    }
    for at in 0..NAMES {
        File::create(path_of(&source, at)).unwrap();
    }
    let data = File::create(source.join("data")).unwrap();
    data.set_len(DATA).unwrap();
    let before = held();
    let mm = Mm::new(MmConfig::new(LIMIT)).unwrap();
    let fs = Arc::new(DirFs::open(&mm, &source, DirFsOptions::default()).unwrap());
    let names = Arc::new(SuperBlock::new(fs.clone(), &mm));
    let mut mount = Mount::new(names.clone(), &mount_point, &MountOptions::new("memory")).unwrap();
    let allowed = before + LIMIT + mount.fixed_bytes() + SLACK;
    let mut child = Command::new(env::current_exe().unwrap())
        .args([
            "--exact",
            "memory::use_a_mount",
            "--include-ignored",
            "--nocapture",
        ])
        .env(PLACE, &mount_point)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut go_on = child.stdin.take().unwrap();
    let mut base = 0;
    let mut beyond: Vec<(String, u64, u64)> = Vec::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let Some(what) = line.as_ref().unwrap().strip_prefix("now ") else {
            continue;
        };
        let (now, usage) = (held(), mm.usage());
        assert!(usage.total_bytes() <= LIMIT, "{what}: {usage:?}");
        assert!(now <= allowed, "{what}: {now} of {allowed} bytes");
        if what == "warm" {
            base = now - usage.total_bytes();
            println!(
                "base {} KiB of {} KiB",
                (base - before) >> 10,
                mount.fixed_bytes() >> 10
            );
            assert!(base <= before + mount.fixed_bytes());
        }
        if beyond.last().is_none_or(|(last, ..)| last != what) {
            beyond.push((what.to_owned(), 0, 0));
        }
        let (_, most, most_beyond) = beyond.last_mut().unwrap();
        *most = (*most).max(now - base);
        *most_beyond = (*most_beyond).max((now - base).saturating_sub(usage.total_bytes()));
        writeln!(go_on).unwrap();
    }
    assert!(child.wait().unwrap().success());
    for (what, most, most_beyond) in &beyond {
        println!(
            "{what}: {} KiB held, {} KiB beyond what is charged",
            most >> 10,
            most_beyond >> 10
        );
    }
    println!("{:?}\n{:?}\n{:?}", mount.stats(), fs.stats(), mm.usage());
    for (what, most, _) in &beyond {
        assert!(*most <= LIMIT + SLACK, "{what}: {most} of {LIMIT} bytes");
    }
    mount.unmount().unwrap();
    drop(mount);
    fs::remove_dir_all(&top).unwrap();
}
