//! The memory that the process takes for names, inodes and handles, measured from outside, stays
//! within the bound.
//!
//! Runs in a separate process for each bound, whose memory is the kernel's count.

use crate::common::{Paths as _, WalkFlags, on_disk};
use foliocache_fs::{DirFs, DirFsOptions, MemFs};
use foliocache_mm::{Mm, MmConfig};
use foliocache_sys::Errno;
use foliocache_sys::memory::Resident;
use foliocache_vfs::{Inode, OpContext, OpenFile, OpenFlags, SlabArc, SuperBlock};
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const NAMES: usize = 300_000;
const DIRS: usize = 300;
const HANDLES: usize = 2_000;
/// Of the file that is read through once the names are there.
const DATA: u64 = 200 * MIB;

/// Allowance beside the bound and the base: page tables are not counted, the test's stacks and heap
/// are.
const SLACK: u64 = 4 * MIB;

const STAY: WalkFlags = WalkFlags {
    follow: true,
    beneath: true,
};

/// Set in the child: the bound in MiB, and the source.
const BOUND: &str = "FOLIOCACHE_TEST_BOUND_MIB";
const SOURCE: &str = "FOLIOCACHE_TEST_SOURCE";

/// Private and shared memory of this process, each page once.
fn held() -> u64 {
    let resident = Resident::of_process().expect("smaps_rollup");
    resident.anonymous + resident.pss_shmem
}

fn path(at: usize) -> String {
    format!("d{}/file-number-{at}", at % DIRS)
}

#[test]
#[ignore = "system tier"]
fn names_inodes_and_handles_stay_within_the_bound() {
    let source = on_disk();
    for dir in 0..DIRS {
        fs::create_dir(source.path().join(format!("d{dir}"))).expect("a directory");
    }
    for at in 0..NAMES {
        fs::File::create(source.path().join(path(at))).expect("a file");
    }
    fs::File::create(source.path().join("data"))
        .and_then(|file| file.set_len(DATA))
        .expect("a file");
    for bound in [64, 1024] {
        alone("body", bound, source.path());
    }
}

#[test]
#[ignore = "system tier"]
fn small_files_of_a_memory_file_system_stay_within_the_bound() {
    alone("memfs_body", 64, Path::new(""));
}

/// Runs a test of this program in a separate process.
fn alone(body: &str, bound: u64, source: &Path) {
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args([
            "--exact",
            &format!("memory_of_names::{body}"),
            "--nocapture",
            "--ignored",
            "--test-threads=1",
        ])
        .env(BOUND, bound.to_string())
        .env(SOURCE, source)
        .output()
        .expect("a child");
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    println!("{said}");
    let ran = output.status.success() && said.contains("1 passed");
    assert!(ran, "{said}");
}

#[test]
#[ignore = "system tier"]
fn body() {
    let Some(bound) = std::env::var_os(BOUND) else {
        return;
    };
    let source = std::env::var_os(SOURCE).expect("a source");
    let limit = bound
        .to_str()
        .expect("a number")
        .parse::<u64>()
        .expect("a number")
        * MIB;
    let mm = Mm::new(MmConfig::new(limit)).expect("a cache");
    let fs =
        Arc::new(DirFs::open(&mm, Path::new(&source), DirFsOptions::default()).expect("dirfs"));
    let names = SuperBlock::new(fs.clone(), &mm);
    let base = held();
    let mut most = 0;
    let mut check = |what: &str, at: usize| {
        if at % 250 != 249 {
            return;
        }
        let (now, usage) = (held() - base, mm.usage());
        most = most.max(now.saturating_sub(usage.total_bytes()));
        assert!(usage.total_bytes() <= limit, "{usage:?}");
        if at % 50_000 == 49_999 {
            println!(
                "{what} {at}: {} KiB held, {} KiB charged ({} metadata), {} inodes, {} dentries, most beyond {} KiB",
                now >> 10,
                usage.total_bytes() >> 10,
                usage.metadata_bytes >> 10,
                fs.stats().inodes,
                names.dentry_stats().dentries,
                most >> 10
            );
        }
        assert!(now <= limit + SLACK, "{what}: {now} of {limit} bytes");
    };
    for at in 0..NAMES {
        names
            .stat(names.root(), OsStr::new(&path(at)), STAY, None)
            .expect("it is there");
        check("stat", at);
    }
    let data = names.lookup(names.root(), OsStr::new("data"), STAY, None);
    let data = data.expect("it is there").inode().expect("an inode");
    let data = fs_open(&names, &data).expect("it opens");
    read_through(&data, &mut |at| check("data after names", at));
    let mut open: Vec<OpenFile> = Vec::new();
    let mut random = 12345_u64;
    for at in 0..100_000 {
        random = random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let path = path((random >> 33) as usize % NAMES);
        let dentry = names.lookup(names.root(), OsStr::new(&path), STAY, None);
        let inode = dentry.expect("it is there").inode().expect("an inode");
        let file = fs_open(&names, &inode);
        match file {
            Ok(file) if open.len() < HANDLES => open.push(file),
            Ok(file) => open[(random >> 20) as usize % HANDLES] = file,
            Err(error) => panic!("{error}"),
        }
        check("open", at);
    }
    read_through(&data, &mut |at| check("data beside handles", at));
    drop(open);
    println!(
        "at the end {} KiB beyond what is charged at most",
        most >> 10
    );
}

#[test]
#[ignore = "system tier"]
fn memfs_body() {
    let Some(bound) = std::env::var_os(BOUND) else {
        return;
    };
    let limit = bound
        .to_str()
        .expect("text")
        .parse::<u64>()
        .expect("a number")
        * MIB;
    let mm = Mm::new(MmConfig::new(limit)).expect("a cache");
    let names = SuperBlock::new(Arc::new(MemFs::new(&mm).expect("memfs")), &mm);
    let base = held();
    let (mut open, mut most, mut made) = (Vec::new(), 0, 0);
    let flags = OpenFlags::READ_WRITE;
    let full = loop {
        let name = format!("file-number-{made}");
        let root = names.root();
        let file = names.create(&OpContext::ROOT, root, name.as_ref(), 0o644, flags, None);
        let file = match file {
            Ok((file, _)) => file,
            Err(error) => break error,
        };
        // Every tenth has data, and some are held open.
        if made % 10 == 0
            && let Err(error) = file.write_at(b"some bytes", 0)
        {
            break error;
        }
        if open.len() < HANDLES {
            open.push(file);
        }
        made += 1;
        if made % 250 == 0 {
            let (now, usage) = (held() - base, mm.usage());
            most = most.max(now);
            assert!(usage.total_bytes() <= limit, "{usage:?}");
            // Of the bound, and of the charges.
            assert!(now <= usage.total_bytes() + SLACK, "{now} bytes, {usage:?}");
        }
    };
    println!("{made} files, {} KiB held at most", most >> 10);
    assert!([Errno::ENOSPC, Errno::ENOMEM].contains(&full), "{full}");
    assert!(made > 20_000, "{made}");
}

fn read_through(file: &OpenFile, check: &mut dyn FnMut(usize)) {
    let mut buffer = vec![0; MIB as usize / 8];
    let step = buffer.len() as u64;
    for at in 0..DATA / step {
        let read = file.read_at(&mut buffer, at * step);
        assert_eq!(read.expect("it can be read") as u64, step);
        // Every other time is one that is looked at.
        check(at as usize * 125 + 124);
    }
}

fn fs_open(names: &SuperBlock, inode: &SlabArc<Inode>) -> Result<OpenFile, foliocache_sys::Errno> {
    names.fs().open(&OpContext::ROOT, inode, OpenFlags::READ)
}
