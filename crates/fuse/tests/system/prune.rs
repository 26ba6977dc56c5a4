//! A mount keeps the memory of names and inodes within the bound, by asking the kernel to forget.
//!
//! Another process makes the load, this program once more: a thread of the process that serves a
//! mount must not wait for it.
//!
//! Needs FUSE, root, and Linux 6.18.
//!
//! # Safety
//!
//! One mapping, used while it exists.

use foliocache_fs::{DirFs, DirFsOptions};
use foliocache_fuse::{Mount, MountOptions};
use foliocache_mm::{Mm, MmConfig};
use foliocache_vfs::{FileSystem, SuperBlock};
use rustix::mm::{MapFlags, ProtFlags};
use std::env;
use std::ffi::c_void;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// The folder of the load; set for the other process alone.
const PLACE: &str = "FOLIOCACHE_PRUNE_PLACE";
const MIB: u64 = 1 << 20;
const LIMIT: u64 = 16 * MIB;
const DIRS: u64 = 60;
const FILES: u64 = 1000;
/// More than names and inodes leave when they have their share.
const DATA: u64 = 12 * MIB;

fn path_of(place: &Path, dir: u64, file: u64) -> PathBuf {
    place.join(format!("d{dir}/f{file}"))
}

/// Looks up every file by its name, and lists every directory with attributes.
fn find_all(place: &Path) {
    for dir in 0..DIRS {
        for file in 0..FILES {
            fs::symlink_metadata(path_of(place, dir, file)).unwrap();
        }
    }
    for dir in 0..DIRS {
        let entries = fs::read_dir(place.join(format!("d{dir}"))).unwrap();
        let found = entries.filter(|entry| entry.as_ref().unwrap().metadata().unwrap().is_file());
        assert_eq!(found.count() as u64, FILES, "in d{dir}");
    }
}

fn other_process(name: &str, place: &Path) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([
        "--exact",
        &format!("prune::{name}"),
        "--include-ignored",
        "--nocapture",
    ]);
    command.env(PLACE, place);
    command
}

fn place() -> Option<PathBuf> {
    env::var_os(PLACE).map(PathBuf::from)
}

#[test]
#[ignore = "system tier"]
fn walk() {
    let Some(place) = place() else { return };
    let inside = place.join("d7");
    env::set_current_dir(&inside).unwrap();
    let held = File::open(place.join("held")).unwrap();
    for _ in 0..2 {
        find_all(&place);
    }
    assert_eq!(env::current_dir().unwrap(), inside);
    assert_eq!(fs::read_dir(".").unwrap().count() as u64, FILES);
    let mut text = [0; 4];
    held.read_exact_at(&mut text, 0).unwrap();
    assert_eq!(&text, b"held");
    // Data that needs memory.
    let mut data = Vec::new();
    for _ in 0..3 {
        data.clear();
        let mut file = File::open(place.join("data")).unwrap();
        file.read_to_end(&mut data).unwrap();
        assert!(data.len() as u64 == DATA && data.iter().all(|&byte| byte == 7));
    }
}

/// The byte at `pos` in the given round.
fn byte(round: u64, pos: usize) -> u8 {
    (round * 31 + (pos / 512) as u64) as u8
}

/// Stores into a mapping of the file, and unmaps it without a sync.
fn store(path: &Path, round: u64, len: usize) {
    let options = &mut File::options();
    let options = options.read(true).write(true).create(true).truncate(false);
    let file = options.open(path).unwrap();
    file.set_len(len as u64).unwrap();
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let map = unsafe {
        let anywhere = std::ptr::null_mut();
        rustix::mm::mmap(anywhere, len, protection, MapFlags::SHARED, &file, 0)
    };
    let map = map.unwrap();
    // SAFETY: just mapped with this length, and private to this function.
    let bytes = unsafe { std::slice::from_raw_parts_mut(map.cast::<u8>(), len) };
    for (pos, at) in bytes.iter_mut().enumerate() {
        *at = byte(round, pos);
    }
    drop(file);
    // SAFETY: mapped above, and no longer in use.
    unsafe { rustix::mm::munmap(map.cast::<c_void>(), len) }.unwrap();
}

#[test]
#[ignore = "system tier"]
fn walk_and_write() {
    const WRITTEN: usize = 1 << 20;
    let Some(place) = place() else { return };
    let walking = place.clone();
    let walker = thread::spawn(move || find_all(&walking));
    let mut round = 0;
    while !walker.is_finished() {
        store(&place.join("mapped"), round, WRITTEN);
        let bytes: Vec<u8> = (0..WRITTEN).map(|pos| byte(round, pos)).collect();
        fs::write(place.join("written"), &bytes).unwrap();
        for dir in 0..4 {
            fs::symlink_metadata(path_of(&place, dir, round % FILES)).unwrap();
        }
        assert!(fs::read(place.join("mapped")).unwrap() == bytes, "{round}");
        assert!(fs::read(place.join("written")).unwrap() == bytes, "{round}");
        round += 1;
    }
    walker.join().unwrap();
    assert!(round > 2, "{round}");
}

/// A mount of many files.
struct Mounted {
    top: PathBuf,
    mount_point: PathBuf,
    mm: Arc<Mm>,
    fs: Arc<DirFs>,
    names: Arc<SuperBlock>,
    mount: Mount,
}

impl Mounted {
    fn new(name: &str) -> Mounted {
        let top = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("prune-{name}-{}", std::process::id()));
        let (source, mount_point) = (top.join("source"), top.join("mount"));
        fs::create_dir_all(&mount_point).unwrap();
        for dir in 0..DIRS {
            fs::create_dir_all(source.join(format!("d{dir}"))).unwrap();
            for file in 0..FILES {
                File::create(path_of(&source, dir, file)).unwrap();
            }
        }
        fs::write(source.join("held"), "held").unwrap();
        fs::write(source.join("data"), vec![7; DATA as usize]).unwrap();
        let mm = Mm::new(MmConfig::new(LIMIT)).unwrap();
        let fs = Arc::new(DirFs::open(&mm, &source, DirFsOptions::default()).unwrap());
        let names = Arc::new(SuperBlock::new(fs.clone(), &mm));
        let options = MountOptions::new("prune");
        let mount = Mount::new(names.clone(), &mount_point, &options).unwrap();
        Mounted {
            top,
            mount_point,
            mm,
            fs,
            names,
            mount,
        }
    }

    /// Has another process run `name`, and checks the bound meanwhile; returns the most inodes that were refused
    /// memory at once.
    fn watch(&self, name: &str) -> u64 {
        let mut child = other_process(name, &self.mount_point).spawn().unwrap();
        let mut uncharged = 0;
        let status = loop {
            let usage = self.mm.usage();
            assert!(usage.total_bytes() <= LIMIT, "{usage:?}");
            uncharged = uncharged.max(self.fs.stats().inodes_uncharged);
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            thread::sleep(Duration::from_millis(2));
        };
        assert!(status.success());
        uncharged
    }

    /// The memory of names and inodes.
    fn held(&self) -> u64 {
        let names = self.names.dentry_stats();
        let table = names.table_bytes;
        names.dentries * foliocache_vfs::dcache::DENTRY_BYTES + table + self.fs.inode_bytes()
    }

    /// Ends it; the kernel forgets everything before.
    fn end(mut self) {
        let start = Instant::now();
        while self.mount.stats().lookups > 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "never forgotten");
            let drop_caches = ["-c", "echo 2 > /proc/sys/vm/drop_caches"];
            assert!(
                Command::new("sh")
                    .args(drop_caches)
                    .status()
                    .unwrap()
                    .success()
            );
            thread::sleep(Duration::from_millis(50));
        }
        let stats = self.mount.stats();
        assert_eq!((stats.panics, stats.open_files), (0, 0), "{stats:?}");
        self.mount.unmount().unwrap();
        fs::remove_dir_all(&self.top).unwrap();
    }
}

#[test]
#[ignore = "system tier"]
fn inodes_remembered_by_the_kernel_stay_within_the_bound() {
    let mounted = Mounted::new("walk");
    let uncharged = mounted.watch("walk");
    let start = Instant::now();
    let share = LIMIT / 4 + LIMIT / 32;
    while mounted.held() > share {
        let held = mounted.held();
        // It took 2 to 40 s on a quiet machine.
        assert!(
            start.elapsed() < Duration::from_secs(180),
            "{held} of {share}"
        );
        thread::sleep(Duration::from_millis(50));
    }
    let stats = mounted.mount.stats();
    println!("{uncharged} inodes at most without memory, {stats:?}");
    assert!(uncharged < 200, "{uncharged} inodes without memory");
    // An inode that was refused memory stays uncharged as long as it lives.
    let uncharged = mounted.fs.stats().inodes_uncharged;
    assert!(uncharged < 50, "{uncharged} inodes still without memory");
    assert!(stats.forgotten_on_request > DIRS * FILES, "{stats:?}");
    assert!(stats.asked_to_forget >= stats.forgotten_on_request);
    mounted.end();
}

#[test]
#[ignore = "system tier"]
fn data_is_right_while_the_kernel_is_asked_to_forget() {
    let mounted = Mounted::new("write");
    mounted.watch("walk_and_write");
    let stats = mounted.mount.stats();
    assert!(stats.forgotten_on_request > DIRS * FILES / 4, "{stats:?}");
    mounted.end();
}

#[test]
#[ignore = "system tier"]
fn a_mount_ends_while_the_kernel_is_asked_to_forget() {
    let mut mounted = Mounted::new("end");
    let mut child = other_process("walk", &mounted.mount_point);
    let child = child.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = child.spawn().unwrap();
    while mounted.mount.stats().forgotten_on_request < 5000 {
        assert!(child.try_wait().unwrap().is_none());
        thread::sleep(Duration::from_millis(5));
    }
    let start = Instant::now();
    mounted.mount.detach().unwrap();
    assert!(start.elapsed() < Duration::from_secs(5), "{start:?}");
    assert!(!child.wait().unwrap().success());
    fs::remove_dir_all(&mounted.top).unwrap();
}
