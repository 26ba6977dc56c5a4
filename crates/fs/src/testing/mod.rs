//! The test body that every file system passes.
//!
//! # Model
//!
//! [`CASES`] are named functions over a [`Place`]: a file system and an empty directory in it.
//! [`conformance`] runs all of them, each in a directory of its own, and panics at the first that
//! fails. A case may use nothing but [`FileSystem`], so that it holds for a
//! file system with injected faults as for one without, once its faults are off.

mod attributes;
mod files;
mod names;
mod store;

pub use store::{file_over, open};

use foliocache_sync::Arc;
use foliocache_sys::Errno;
use foliocache_vfs::{FileSystem, Inode, OpContext, OpenFile, OpenFlags};
use std::ffi::OsStr;

/// Where a case runs.
pub struct Place<'a> {
    /// The file system.
    pub fs: &'a dyn FileSystem,
    /// An empty directory that nobody else uses.
    pub dir: Arc<Inode>,
}

/// A named case.
pub type Case = (&'static str, fn(&Place<'_>));

/// All cases.
pub const CASES: &[&[Case]] = &[files::CASES, names::CASES, attributes::CASES];

/// Runs all cases over `fs`, each in a new directory below the root.
///
/// # Panics
/// If one fails.
pub fn conformance(fs: &dyn FileSystem) {
    for (name, case) in CASES.iter().copied().flatten() {
        let dir = fs
            .mkdir(&OpContext::ROOT, &fs.root(), OsStr::new(name), 0o755)
            .unwrap_or_else(|error| panic!("{name}: mkdir: {error}"));
        println!("{}: {name}", fs.kind());
        case(&Place { fs, dir });
    }
    fs.sync_fs().expect("everything is durable at the end");
}

/// Bytes that differ by position and by `seed`.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|at| {
            let mixed =
                (at + seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xff51_afd7_ed55_8ccd);
            (mixed >> 56) as u8 | 1
        })
        .collect()
}

impl Place<'_> {
    /// A new file, open for reading and writing.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn create(&self, name: &str) -> OpenFile {
        self.fs
            .create(
                &OpContext::ROOT,
                &self.dir,
                OsStr::new(name),
                0o644,
                OpenFlags::READ_WRITE,
                true,
            )
            .unwrap_or_else(|error| panic!("create {name}: {error}"))
    }

    /// The inode of a name.
    pub fn lookup(&self, name: &str) -> Result<Arc<Inode>, Errno> {
        self.fs.lookup(&self.dir, OsStr::new(name))
    }

    /// An existing file, opened.
    ///
    /// # Panics
    /// If it cannot be.
    pub fn open(&self, name: &str, flags: OpenFlags) -> OpenFile {
        let inode = self
            .lookup(name)
            .unwrap_or_else(|error| panic!("look up {name}: {error}"));
        self.fs
            .open(&OpContext::ROOT, &inode, flags)
            .unwrap_or_else(|error| panic!("open {name}: {error}"))
    }

    fn mkdir(&self, name: &str) -> Arc<Inode> {
        self.fs
            .mkdir(&OpContext::ROOT, &self.dir, OsStr::new(name), 0o755)
            .unwrap_or_else(|error| panic!("mkdir {name}: {error}"))
    }

    /// Names in the directory, sorted, without `.` and `..`.
    fn names(&self) -> Vec<String> {
        let stream = self.fs.opendir(&self.dir).expect("opendir");
        let mut names: Vec<_> = stream
            .read_all()
            .expect("readdir")
            .into_iter()
            .map(|entry| entry.name.to_string_lossy().into_owned())
            .filter(|name| name != "." && name != "..")
            .collect();
        names.sort();
        names
    }
}

/// Writes all of `bytes`.
///
/// # Panics
/// If that fails or falls short.
pub fn write_all(file: &OpenFile, bytes: &[u8], pos: u64) {
    let n = file.write_at(bytes, pos).expect("write");
    assert_eq!(n, bytes.len(), "a write fell short");
}

/// The whole content.
///
/// # Panics
/// If it cannot be read.
pub fn read_all(file: &OpenFile) -> Vec<u8> {
    let mut bytes = vec![0xee; file.size() as usize + 10];
    let n = file.read_at(&mut bytes, 0).expect("read");
    bytes.truncate(n);
    bytes
}
