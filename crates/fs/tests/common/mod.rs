//! Shared by the tests of this crate: caches, sources and contents.
#![allow(dead_code, reason = "every test file uses a part of it")]

use foliocache_fs::{DirFs, DirFsOptions};
use foliocache_mm::{Mm, MmConfig};
use foliocache_vfs::dcache::DentryRef;
use foliocache_vfs::{Attr, Credentials, Inode, Namei, OpContext, OpenFile, SuperBlock, WalkError};
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use tempfile::TempDir;

/// A cache bounded by `mib` MiB.
pub(crate) fn cache(mib: u64) -> Arc<Mm> {
    Mm::new(MmConfig::new(mib << 20)).expect("a cache")
}

/// An empty directory in `FOLIOCACHE_TEST_DIR`, or on the disk that holds the build.
pub(crate) fn on_disk() -> TempDir {
    let top = std::env::var_os("FOLIOCACHE_TEST_DIR");
    let top = top.unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into());
    tempfile::tempdir_in(top).expect("a directory")
}

/// Whether the machine is known to lack a need of a test, which then prints so and is skipped.
pub(crate) fn lacks(need: &str) -> bool {
    let missing = std::env::var("FOLIOCACHE_MISSING").unwrap_or_default();
    let lacks = missing.split(',').any(|name| name == need);
    if lacks {
        eprintln!("SKIPPED: there is no {need}");
    }
    lacks
}

/// A place on a tmpfs; `None` where the machine is known to lack one.
pub(crate) fn tmpfs() -> Option<&'static Path> {
    const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;
    if lacks("tmpfs") {
        return None;
    }
    let places = ["/dev/shm", "/tmp", "/run"].map(Path::new);
    let found = places.into_iter().find(|place| {
        let is_tmpfs = rustix::fs::statfs(*place).is_ok_and(|fs| fs.f_type == TMPFS_MAGIC);
        is_tmpfs && tempfile::tempdir_in(place).is_ok()
    });
    Some(found.expect("a tmpfs at /dev/shm, /tmp or /run"))
}

/// An empty directory on a tmpfs.
pub(crate) fn on_tmpfs() -> TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a directory")
}

pub(crate) fn dirfs(mm: &Arc<Mm>, source: &Path, options: DirFsOptions) -> DirFs {
    DirFs::open(mm, source, options).expect("dirfs")
}

/// Paths from the root of `names`, which do not leave it, as root.
pub(crate) fn root_namei(names: &SuperBlock) -> Namei<'_> {
    Namei {
        names,
        start: names.root(),
        beneath: true,
        ctx: OpContext::ROOT,
        credentials: None,
    }
}

/// How a path is walked.
#[derive(Clone, Copy, Default)]
pub(crate) struct WalkFlags {
    pub(crate) follow: bool,
    pub(crate) beneath: bool,
}

/// Paths from any directory, on behalf of any caller.
pub(crate) trait Paths {
    fn paths<'a>(
        &'a self,
        start: &'a DentryRef<Inode>,
        beneath: bool,
        credentials: Option<&'a Credentials>,
    ) -> Namei<'a>;

    fn stat(
        &self,
        start: &DentryRef<Inode>,
        path: &OsStr,
        flags: WalkFlags,
        credentials: Option<&Credentials>,
    ) -> Result<Attr, WalkError> {
        let paths = self.paths(start, flags.beneath, credentials);
        paths.stat(path, flags.follow)
    }

    fn lookup(
        &self,
        start: &DentryRef<Inode>,
        path: &OsStr,
        flags: WalkFlags,
        credentials: Option<&Credentials>,
    ) -> Result<DentryRef<Inode>, WalkError> {
        let paths = self.paths(start, flags.beneath, credentials);
        paths.lookup(path, flags.follow)
    }

    fn remembers(
        &self,
        start: &DentryRef<Inode>,
        path: &OsStr,
        credentials: Option<&Credentials>,
    ) -> bool {
        self.paths(start, false, credentials).remembers(path)
    }
}

impl Paths for SuperBlock {
    fn paths<'a>(
        &'a self,
        start: &'a DentryRef<Inode>,
        beneath: bool,
        credentials: Option<&'a Credentials>,
    ) -> Namei<'a> {
        Namei {
            start,
            beneath,
            credentials,
            ..root_namei(self)
        }
    }
}

/// Bytes that differ by position and by `seed`.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|at| {
            let mixed =
                (at + seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xff51_afd7_ed55_8ccd);
            (mixed >> 56) as u8 | 1
        })
        .collect()
}

/// Writes all of `bytes`.
pub(crate) fn write_all(file: &OpenFile, bytes: &[u8], pos: u64) {
    let n = file.write_at(bytes, pos).expect("write");
    assert_eq!(n, bytes.len(), "a write fell short");
}

/// The whole content.
pub(crate) fn read_all(file: &OpenFile) -> Vec<u8> {
    let mut bytes = vec![0xee; file.size() as usize + 10];
    let n = file.read_at(&mut bytes, 0).expect("read");
    bytes.truncate(n);
    bytes
}

/// Runs a program that must succeed.
pub(crate) fn run(program: &str, arguments: &[&OsStr]) {
    let done = Command::new(program).args(arguments).output();
    let done = done.unwrap_or_else(|error| panic!("{program}: {error}"));
    let error = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{program} {arguments:?}: {error}");
}
