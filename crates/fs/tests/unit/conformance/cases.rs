//! The cases that every file system passes.
//!
//! # Model
//!
//! [`CASES`] are named functions over a [`Place`]: a file system and an empty directory in it.
//! [`conformance`] runs all of them, each in a new directory, and panics at the first failure. A
//! case may use nothing but [`FileSystem`], so that it also applies to a file system with injected
//! faults, once its faults are off.

mod attributes;
mod files;
mod names;

use foliocache_sys::Errno;
use foliocache_vfs::{FileSystem, Inode, New, OpContext, OpenFile, OpenFlags, SlabArc};
use std::ffi::OsStr;

/// Where a case runs.
pub(crate) struct Place<'a> {
    /// The file system.
    pub(crate) fs: &'a dyn FileSystem,
    /// An empty directory without other users.
    pub(crate) dir: SlabArc<Inode>,
}

/// A named case.
pub(crate) type Case = (&'static str, fn(&Place<'_>));

/// All cases.
pub(crate) const CASES: &[&[Case]] = &[files::CASES, names::CASES, attributes::CASES];

/// Runs all cases over `fs`, each in a new directory below the root.
///
/// # Panics
/// If one fails.
pub(crate) fn conformance(fs: &dyn FileSystem) {
    for (name, case) in CASES.iter().copied().flatten() {
        let dir = fs
            .make(
                &OpContext::ROOT,
                &fs.root(),
                OsStr::new(name),
                New::Directory { mode: 0o755 },
            )
            .unwrap_or_else(|error| panic!("{name}: mkdir: {error}"));
        println!("{}: {name}", fs.kind());
        case(&Place { fs, dir });
    }
    fs.sync_fs().expect("everything is durable at the end");
}

impl Place<'_> {
    /// A new file, open for reading and writing.
    ///
    /// # Panics
    /// If it cannot be made.
    pub(crate) fn create(&self, name: &str) -> OpenFile {
        self.fs
            .create(
                &OpContext::ROOT,
                &self.dir,
                OsStr::new(name),
                0o644,
                OpenFlags::READ_WRITE,
            )
            .unwrap_or_else(|error| panic!("create {name}: {error}"))
    }

    /// The inode of a name.
    pub(crate) fn lookup(&self, name: &str) -> Result<SlabArc<Inode>, Errno> {
        self.fs.lookup(&self.dir, OsStr::new(name))
    }

    /// An existing file, opened.
    ///
    /// # Panics
    /// If it cannot be.
    pub(crate) fn open(&self, name: &str, flags: OpenFlags) -> OpenFile {
        let inode = self
            .lookup(name)
            .unwrap_or_else(|error| panic!("look up {name}: {error}"));
        self.fs
            .open(&OpContext::ROOT, &inode, flags)
            .unwrap_or_else(|error| panic!("open {name}: {error}"))
    }

    fn mkdir(&self, name: &str) -> SlabArc<Inode> {
        self.fs
            .make(
                &OpContext::ROOT,
                &self.dir,
                OsStr::new(name),
                New::Directory { mode: 0o755 },
            )
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
