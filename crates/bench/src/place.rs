//! Where the files of a case are, and the cache over them.
//!
//! # Model
//!
//! A [`Place`] is a private [`Folder`], on a disk or on a [compressed disk in memory](crate::zram), and a cache of
//! ours over it. Its files hold random bytes, so that nothing on the path can compress them, and all of their
//! blocks are allocated. Everything in it is removed with the place.

use foliocache::{Cache, Directory, DirectoryOptions, File, MappingFaults};
use foliocache_sys::fd::{self, OFlags, OwnedFd};
use foliocache_sys::memory::ReservedRange;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{BenchError, OrSetup, set_up};
use crate::files::{TMPFS_MAGIC, tmpfs};
use crate::guard::{Guard, Thing, run};
use crate::settings::Settings;
use crate::zram;

/// Bytes of a mebibyte, the request of sequential passes.
pub(crate) const MIB: usize = 1 << 20;

/// The soft limit of open files that most processes have.
pub(crate) const USUAL_LIMIT: u64 = 1024;

/// A write here drops the kernel's caches: 2 its dentries and inodes, 3 also its pages.
pub(crate) const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// `statfs.f_type` of ramfs.
const RAMFS_MAGIC: u64 = 0x8584_58f6;

/// Touches as much memory as a pass is about to take, and frees it. Where a virtual machine gives free memory back to its
/// host, the first touch of 2 MiB takes milliseconds, and whichever contestant came next would wait for that.
pub(crate) fn find_memory(bytes: usize) -> io::Result<()> {
    let range = ReservedRange::reserve(bytes)?;
    range.activate(0..range.len(), true)?;
    // Where it cannot be had the pass does without.
    let _ = range.populate(0..range.len());
    Ok(())
}

/// A buffer on a page boundary, as direct I/O wants it.
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    start: usize,
}

impl Buffer {
    /// `len` bytes, all touched, with random contents.
    pub(crate) fn random(len: usize, seed: u64) -> Self {
        let mut buffer = Self {
            bytes: vec![0; len + 4096],
            start: 0,
        };
        buffer.start = buffer.bytes.as_ptr().align_offset(4096);
        buffer.fill(len, seed);
        buffer.bytes.truncate(buffer.start + len);
        buffer
    }

    fn fill(&mut self, len: usize, seed: u64) {
        let mut random = Random(seed);
        for word in self.bytes[self.start..self.start + len].chunks_mut(8) {
            word.copy_from_slice(&random.next().to_le_bytes()[..word.len()]);
        }
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..]
    }
}

/// Numbers that look random, the same for the same seed (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ value >> 31
    }

    /// From 0 to 1, without 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.unit() * n as f64) as usize
    }

    /// Puts a list into an order at random.
    pub(crate) fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.below(last + 1));
        }
    }
}

/// A folder of a case's own, taken away with all that is in it when it goes.
pub(crate) struct Folder {
    path: PathBuf,
    guard: Guard,
}

/// A folder with files and our cache over it. Fields go in this order: the cache lets its files go
/// before they are taken away.
pub(crate) struct Place {
    directory: Directory,
    _cache: Cache,
    folder: Folder,
}

impl Place {
    /// On the disk: below the folder of the settings or in a temporary one, for `len` bytes.
    ///
    /// # Errors
    /// No such folder, no room, memory instead of a disk, no direct I/O.
    pub(crate) fn on_disk(settings: &Settings, memory: u64, len: u64) -> Result<Self, BenchError> {
        Self::new(Folder::on_disk(settings)?, memory, len)
    }

    /// On a compressed disk in memory, for `len` bytes. Its folder is beside those of files on the
    /// disk.
    ///
    /// # Errors
    /// The machine has none, or too little memory.
    pub(crate) fn on_zram(settings: &Settings, memory: u64, len: u64) -> Result<Self, BenchError> {
        // The file system's own tables take a little.
        let size = len + len / 8 + (64 << 20);
        let free = zram::available();
        if free < 2 * size + memory {
            return Err(BenchError::Refused(format!(
                "a disk of {} MiB in memory is too much for the {} MiB that are free",
                size >> 20,
                free >> 20
            )));
        }
        let folder = Folder::on_disk(settings)?;
        zram::mount(&folder.guard, &folder.path, size)?;
        Self::new(folder, memory, len)
    }

    fn new(folder: Folder, memory: u64, len: u64) -> Result<Self, BenchError> {
        let path = &folder.path;
        check_room(path, len + len / 16, 1)?;
        let (directory, cache) = set_up(format!("a cache of {} MiB", memory >> 20), || {
            let cache = Cache::builder().memory(memory).build()?;
            Ok((cache.directory(path)?, cache))
        })?;
        Ok(Self {
            directory,
            _cache: cache,
            folder,
        })
    }

    pub(crate) fn guard(&self) -> &Guard {
        &self.folder.guard
    }

    /// KiB that the kernel reads around a miss of a mapping by default.
    pub(crate) fn read_ahead(&self) -> Option<u64> {
        let device = device_number(&self.folder.path)?;
        let setting = format!("/sys/class/bdi/{device}/read_ahead_kb");
        fs::read_to_string(setting).ok()?.trim().parse().ok()
    }

    /// The kernel's path of a file.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path.join(name)
    }

    /// A new handle of ours on a file.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(crate) fn ours(&self, name: &str) -> io::Result<File> {
        let mut options = self.directory.open_options();
        Ok(options.read(true).write(true).open(name)?)
    }

    /// A handle for reads on a file of a new cache that resolves page faults like this.
    ///
    /// # Errors
    /// The cache does not exist or cannot be opened.
    pub(crate) fn of_own_cache(
        &self,
        name: &str,
        memory: u64,
        faults: MappingFaults,
    ) -> io::Result<File> {
        let cache = Cache::builder().memory(memory).mapping_faults(faults);
        // Others write there, which one cache alone may.
        let options = DirectoryOptions::new().read_only(true);
        let directory = cache.build()?.directory_with(&self.folder.path, options)?;
        Ok(directory.open(name)?)
    }

    /// Makes a file of `len` random bytes, all on the disk and none in the kernel's cache.
    ///
    /// # Errors
    /// It cannot be written, or not past the kernel's cache.
    pub(crate) fn make(&self, name: &str, len: u64) -> Result<(), BenchError> {
        let path = self.path(name);
        let made = || {
            fs::File::create(&path)?;
            let file = open_direct(&path)?;
            let mut buffer = Buffer::random(MIB, len);
            for (number, pos) in (0..len).step_by(MIB).enumerate() {
                let part = MIB.min((len - pos) as usize);
                buffer.fill(part, pos ^ number as u64);
                fd::pwrite(file.as_fd(), pos, &buffer.bytes()[..part])?;
            }
            fd::fsync(file.as_fd())?;
            Ok::<_, io::Error>(())
        };
        made().map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => BenchError::Refused(format!(
                "{} has no direct I/O to compare with: give another --dir",
                self.folder.path.display()
            )),
            _ => BenchError::setup(path.display().to_string(), error),
        })
    }

    /// The folder and its file system, for the report.
    pub(crate) fn describe(&self) -> String {
        self.folder.describe()
    }
}

impl Folder {
    /// Below the folder of the settings or that for temporary files, on a disk.
    ///
    /// # Errors
    /// The folder does not exist or is in memory.
    pub(crate) fn on_disk(settings: &Settings) -> Result<Self, BenchError> {
        let dir = settings.dir.clone().unwrap_or_else(temporary);
        if in_memory(&dir) {
            return Err(BenchError::Refused(format!(
                "{} is memory and not a disk: give another --dir",
                dir.display()
            )));
        }
        Self::new(&settings.helper, &dir)
    }

    /// On a tmpfs.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn in_memory(helper: &[OsString]) -> Result<Self, BenchError> {
        let dir = tmpfs().ok_or(io::ErrorKind::NotFound);
        let dir = dir.setting_up("a folder on a tmpfs")?;
        Self::new(helper, Path::new(dir))
    }

    fn new(helper: &[OsString], dir: &Path) -> Result<Self, BenchError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Relaxed: the numbers only have to differ.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // The guard looks for it by this path, wherever it was started.
        let dir = dir
            .canonicalize()
            .map_err(|error| BenchError::Refused(format!("{}: {error}", dir.display())))?;
        let path = dir.join(format!("foliocache-bench-{}-{number}", process::id()));
        let guard = Guard::start(helper)?;
        let told = guard.of(&Thing::Folder(path.clone()));
        told.setting_up("a process that cleans up")?;
        fs::create_dir(&path).setting_up(path.display().to_string())?;
        Ok(Self { path, guard })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Mounts a new tmpfs in it, with this setting of huge pages.
    ///
    /// # Errors
    /// Not root, or the setting is unknown.
    pub(crate) fn mount_tmpfs(&self, name: &str, huge: &str) -> Result<PathBuf, BenchError> {
        let point = self.path.join(name);
        set_up(format!("a tmpfs with huge={huge}"), || {
            self.guard.of(&Thing::Mount(point.clone()))?;
            fs::create_dir(&point)?;
            let options = ["-t", "tmpfs", "-o", &format!("huge={huge}"), "tmpfs"];
            run(Command::new("mount").args(options).arg(&point))
        })?;
        Ok(point)
    }

    /// The kind of its file system; empty if it is not known.
    pub(crate) fn kind(&self) -> String {
        kind(&self.path)
    }

    /// The folder and its file system, for the report.
    pub(crate) fn describe(&self) -> String {
        let parent = self.path.parent().unwrap_or(&self.path);
        format!("{} in {}", self.kind(), parent.display())
    }
}

/// The device that a folder is on, as the kernel names it in /sys.
pub(crate) fn device_number(path: &Path) -> Option<String> {
    let device = fs::metadata(path).ok()?.dev();
    let (major, minor) = (device >> 8 & 0xfff, device & 0xff | device >> 12 & 0xf_ff00);
    Some(format!("{major}:{minor}"))
}

/// Whether there is room for `need` bytes in `files` files.
///
/// # Errors
/// There is not.
pub(crate) fn check_room(path: &Path, need: u64, files: u64) -> Result<(), BenchError> {
    let room = fs::File::open(path).and_then(|dir| Ok(fd::fstatvfs(dir.as_fd())?));
    let room = room.setting_up(path.display().to_string())?;
    let free = room.blocks_available * u64::from(room.block_size);
    if free < need {
        return Err(BenchError::Refused(format!(
            "{} MiB are needed in {} and {} are free: give less --memory or another --dir",
            need >> 20,
            path.parent().unwrap_or(path).display(),
            free >> 20
        )));
    }
    // Some file systems make inodes as they need them, and say that they have none.
    if room.files > 0 && room.files_free < files {
        return Err(BenchError::Refused(format!(
            "{files} inodes are needed in {} and {} are free: give fewer --files or another --dir",
            path.parent().unwrap_or(path).display(),
            room.files_free
        )));
    }
    Ok(())
}

fn in_memory(dir: &Path) -> bool {
    let magic = fs::File::open(dir).map(|dir| fd::fs_magic(dir.as_fd()));
    matches!(magic, Ok(Ok(TMPFS_MAGIC | RAMFS_MAGIC)))
}

/// A folder for temporary files that is on a disk.
fn temporary() -> PathBuf {
    let usual = std::env::temp_dir();
    match in_memory(&usual) {
        true => PathBuf::from("/var/tmp"),
        false => usual,
    }
}

/// The kind of file system that `path` is on; empty if it is not known.
fn kind(path: &Path) -> String {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mounts = mounts.lines().filter_map(|line| {
        let (front, back) = line.split_once(" - ")?;
        let point = front.split(' ').nth(4)?;
        (path.starts_with(point)).then_some((point.len(), back.split(' ').next()?))
    });
    // The longest wins, and of equals the last: it was mounted over the others.
    let found = mounts.max_by_key(|(len, _)| *len);
    found.map_or_else(String::new, |(_, kind)| kind.to_owned())
}

/// A file opened to be read and written past the kernel's cache.
pub(crate) fn open_direct(path: &Path) -> io::Result<OwnedFd> {
    Ok(fd::open(path, OFlags::RDWR | OFlags::DIRECT, 0)?)
}

/// Takes a file out of the kernel's cache.
pub(crate) fn drop_from_kernel_cache(path: &Path) -> io::Result<()> {
    let file = fs::File::open(path)?;
    // Whole: to the end of the file.
    Ok(fd::fadvise(file.as_fd(), 0, 0, fd::Advice::DontNeed)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_on_page_boundaries_and_not_compressible() {
        let mut buffer = Buffer::random(MIB, 7);
        let bytes = buffer.bytes();
        assert_eq!((bytes.len(), bytes.as_ptr() as usize % 4096), (MIB, 0));
        let zeros = bytes.iter().filter(|&&byte| byte == 0).count();
        assert!((2048..8192).contains(&zeros), "{zeros} of about 4096");
    }

    #[test]
    fn too_little_room_is_refused_with_the_needed_amount() {
        let temporary = temporary();
        assert!(check_room(&temporary, 1, 1).is_ok());
        let error = check_room(&temporary.join("."), 1 << 60, 1)
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("1099511627776 MiB are needed in "),
            "{error}"
        );
    }

    #[test]
    fn the_root_has_a_kind() {
        assert!(!kind(Path::new("/")).is_empty());
        assert_eq!(kind(Path::new("/proc")), "proc");
    }
}
