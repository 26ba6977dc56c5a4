//! Shared by the tests of failing disks: a stage, which is a disk with the files that a case starts with, and the
//! promises for each file.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "a module of each test, which uses a part of it"
)]

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use foliocache::{Cache, Directory, DirectoryOptions, File};
use foliocache_sim::disk::{Disk, DiskImage, Format, Mounted};
use foliocache_sim::{DurabilityOracle, Fill, Image, Mix, Operation, Workload};

use crate::common::{PATIENCE, within};

pub const PAGE: u64 = 4096;
pub const MIB: u64 = 1 << 20;

/// Files that are there from the beginning, and their size.
pub const FILES: usize = 5;
pub const FILE_SIZE: u64 = MIB + 777;

/// Bytes written beyond this would be more than a file may have.
pub const MIX: Mix = Mix {
    write: 40,
    append: 6,
    read: 30,
    truncate: 6,
    punch: 6,
    fsync: 10,
    max_size: FILE_SIZE + (256 << 10),
    max_len: 96 << 10,
};

/// A disk, and the content that every case on it begins with.
#[derive(Debug)]
pub struct Stage {
    pub disk: Disk,
    base: DiskImage,
}

/// The name of a file of the base.
pub fn base_name(i: usize) -> String {
    format!("f{i}")
}

/// The content of a file of the base.
pub fn base_fill(i: usize) -> Fill {
    Fill(0xba5e + i as u64)
}

impl Stage {
    /// A disk with [`FILES`] files and a directory `d`.
    pub fn new(format: Format) -> Stage {
        let disk = Disk::new(format, 1).expect("a disk");
        let mounted = disk.mount().expect("mount");
        fs::create_dir(mounted.path().join("d")).expect("mkdir");
        for i in 0..FILES {
            let bytes = base_fill(i).bytes(0, FILE_SIZE as usize);
            fs::write(mounted.path().join(base_name(i)), bytes).expect("write");
        }
        mounted.unmount().expect("unmount");
        let base = disk.image_of_all(disk.position());
        Stage { disk, base }
    }

    /// The disk as at first, mounted.
    pub fn begin(&self) -> Mounted {
        self.disk.load(&self.base).expect("the base");
        self.disk.mount().expect("mount")
    }

    pub fn format(&self) -> Format {
        self.disk.format().expect("a file system")
    }

    /// Mounts a broken file system as its user would: by the journal, and if that is not enough,
    /// after the repair tool.
    pub fn mount_again(&self) -> Mounted {
        self.disk.mount().unwrap_or_else(|error| {
            eprintln!("{:?}: mount: {error}: repaired", self.format());
            let (tool, option) = match self.format() {
                Format::Ext4 => ("e2fsck", "-fy"),
                Format::Xfs => ("xfs_repair", "-L"),
            };
            let _ = Command::new(tool)
                .arg(option)
                .arg(self.disk.device())
                .output();
            self.disk.mount().expect("mount")
        })
    }
}

/// A cache of the smallest size, so that everything is evicted and read again, with an eager flusher.
pub fn small_cache() -> Cache {
    Cache::builder()
        .memory(4 * MIB)
        .external_pressure(false)
        .dirty_expire(Duration::from_millis(40))
        .build()
        .expect("a cache")
}

/// The directory of a mounted file system, with no other users.
pub fn directory(cache: &Cache, mounted: &Mounted) -> foliocache::Result<Directory> {
    cache.directory_with(mounted.path(), DirectoryOptions::new().exclusive(true))
}

pub fn open(dir: &Directory, name: &str) -> foliocache::Result<File> {
    dir.open_options().read(true).write(true).open(name)
}

/// Reads a range that must be there as a whole.
pub fn read(file: &File, pos: u64, len: usize) -> foliocache::Result<Vec<u8>> {
    let mut bytes = vec![0xa5; len];
    let mut done = 0;
    while done < len {
        match file.read_at(&mut bytes[done..], pos + done as u64)? {
            0 => break,
            n => done += n,
        }
    }
    bytes.truncate(done);
    Ok(bytes)
}

/// The content of a file of the kernel's file system.
pub fn content(path: &Path) -> std::io::Result<Image> {
    let mut image = Image::new();
    image.write(0, &fs::read(path)?);
    Ok(image)
}

/// Unmounts, which the kernel allows once no descriptor is left: a leak fails here.
pub fn unmount(mounted: Mounted) {
    let path = mounted.path().to_owned();
    if let Err(error) = mounted.unmount_within(Duration::from_secs(10)) {
        panic!(
            "what is left keeps the mount: {error}: {:?}",
            descriptors(&path)
        );
    }
}

/// Descriptors of this process below `path`.
fn descriptors(path: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir("/proc/self/fd").expect("descriptors");
    all.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .filter(|target| target.starts_with(path))
        .collect()
}

/// Waits until `done`; false if that takes longer than a minute.
pub fn eventually(mut done: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + Duration::from_secs(60);
    while !done() {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// Threads of this process.
pub fn threads() -> usize {
    fs::read_dir("/proc/self/task").expect("threads").count()
}

/// The contents that one file must have, in the cache and on the medium.
#[derive(Clone, Debug)]
pub struct Promise {
    /// The present content, and the possible contents of the medium. The first is the cache's; the others include a
    /// failed operation, which the kernel may have done in part.
    oracles: Vec<DurabilityOracle>,
    /// Ranges where a hole was refused, and nothing was written since. Linux may have made it in part, for good:
    /// each byte there is unchanged or zero.
    refused: Vec<Range<u64>>,
    /// Names that it may have on the medium, the present one last.
    pub names: Vec<String>,
    /// Whether it must be there at all: it was durable once.
    pub durable: bool,
    /// Whether it was replaced or removed.
    pub gone: bool,
}

impl Promise {
    /// A file of the base.
    pub fn base(i: usize) -> Promise {
        let mut image = Image::new();
        image.write(0, &base_fill(i).bytes(0, FILE_SIZE as usize));
        Promise {
            oracles: vec![DurabilityOracle::new(image)],
            refused: Vec::new(),
            names: vec![base_name(i)],
            durable: true,
            gone: false,
        }
    }

    /// A file that was just made.
    pub fn new(name: &str) -> Promise {
        Promise {
            oracles: vec![DurabilityOracle::new(Image::new())],
            refused: Vec::new(),
            names: vec![name.to_owned()],
            durable: false,
            gone: false,
        }
    }

    pub fn name(&self) -> &str {
        self.names.last().expect("a name")
    }

    pub fn size(&self) -> u64 {
        self.oracles[0].content().size()
    }

    /// The bytes that the file must have at `pos`, given that `found` was read there.
    pub fn expected(&self, pos: u64, found: &[u8], len: usize) -> Vec<u8> {
        let mut expected = self.oracles[0].content().read(pos, len);
        let perhaps = |at: u64| self.refused.iter().any(|hole| hole.contains(&at));
        for (i, byte) in expected.iter_mut().enumerate() {
            if found.get(i) == Some(&0) && perhaps(pos + i as u64) {
                *byte = 0;
            }
        }
        expected
    }

    /// Something was done.
    pub fn done(&mut self, operation: &Operation) {
        let written = match *operation {
            Operation::Write { pos, len, .. } => pos..pos + len as u64,
            _ => 0..0,
        };
        if !written.is_empty() {
            let left = |hole: Range<u64>| {
                let before = hole.start..hole.end.min(written.start);
                let after = hole.start.max(written.end)..hole.end;
                [before, after].into_iter().filter(|rest| !rest.is_empty())
            };
            self.refused = self.refused.drain(..).flat_map(left).collect();
        }
        for oracle in &mut self.oracles {
            oracle.record(operation);
        }
    }

    /// Something failed, and the cache says that it was not done. The medium may know better.
    pub fn failed(&mut self, operation: &Operation) {
        if let Operation::PunchHole { pos, len } = *operation {
            self.refused.push(pos..pos.saturating_add(len));
        }
        // The states that the medium may have, whatever happens later.
        if self.oracles.len() < 8 {
            let mut other = self.oracles[0].clone();
            other.record(operation);
            self.oracles.push(other);
        }
    }

    /// All of it is durable.
    pub fn acknowledge(&mut self) {
        self.oracles.truncate(1);
        self.oracles[0].acknowledge();
    }

    /// So is its name.
    pub fn acknowledge_name(&mut self) {
        let present = self.name().to_owned();
        self.names = vec![present];
        self.durable = true;
    }

    /// Bytes of a refused hole, as if nothing of it had been made.
    fn settled(&self, pos: u64, mut bytes: Vec<u8>) -> Vec<u8> {
        let present = self.oracles[0].content().read(pos, bytes.len());
        for (byte, present) in bytes.iter_mut().zip(present) {
            if *byte == 0 {
                *byte = present;
            }
        }
        bytes
    }

    /// Whether a medium may hold this.
    pub fn check(&self, image: &Image) -> Result<(), String> {
        let mut image = image.clone();
        for hole in &self.refused {
            let end = hole.end.min(image.size());
            if hole.start < end {
                let bytes = image.read_vec(hole.start, (end - hole.start) as usize);
                image.write(hole.start, &self.settled(hole.start, bytes));
            }
        }
        let mut first = None;
        for oracle in &self.oracles {
            match oracle.check(&image) {
                Ok(()) => return Ok(()),
                Err(violation) => first = first.or(Some(violation.to_string())),
            }
        }
        Err(first.expect("there is an oracle"))
    }

    pub fn workload(&self, seed: u64) -> Workload {
        Workload::resume(seed, MIX, self.size())
    }
}

/// Checks a file system against the promises: each name has contents that a file with that name may
/// have, and each durable file is there.
pub fn check_medium(top: &Path, promises: &[Promise], what: &str) {
    let mut found = vec![false; promises.len()];
    for name in names_below(top) {
        let image =
            content(&top.join(&name)).unwrap_or_else(|error| panic!("{what}: {name}: {error}"));
        let candidates: Vec<_> = (0..promises.len())
            .filter(|&i| promises[i].names.contains(&name))
            .collect();
        assert!(
            !candidates.is_empty(),
            "{what}: {name}: no file had this name"
        );
        let mut reasons = Vec::new();
        for i in candidates {
            match promises[i].check(&image) {
                Ok(()) => found[i] = true,
                Err(reason) => reasons.push(reason),
            }
        }
        let explained = found
            .iter()
            .zip(promises)
            .any(|(&found, promise)| found && promise.names.contains(&name));
        assert!(explained, "{what}: {name}: {reasons:#?}");
    }
    for (found, promise) in found.iter().zip(promises) {
        let needed = promise.durable && !promise.gone;
        assert!(*found || !needed, "{what}: {:?} is lost", promise.names);
    }
}

/// Names of all files of a file system, as paths from its root.
pub fn names_below(top: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for (folder, prefix) in [(top.to_owned(), ""), (top.join("d"), "d/")] {
        for entry in fs::read_dir(folder).expect("a listing") {
            let entry = entry.expect("an entry");
            if entry.file_type().expect("a type").is_file() {
                names.push(format!("{prefix}{}", entry.file_name().to_string_lossy()));
            }
        }
    }
    names.sort();
    names
}

/// Runs `body` on each file system; it must come back.
pub fn on_each(body: impl Fn(&Stage) + Copy + Send + 'static) {
    if Disk::skip() {
        return;
    }
    for format in Format::ALL {
        let stage = Stage::new(format);
        let state = move || format!("{format:?}");
        within(PATIENCE, state, move || body(&stage));
    }
}
