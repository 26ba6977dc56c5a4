//! What the tests of this crate share.
//!
//! # Safety
//!
//! The strings handed to `mount` and `umount` end with NUL and live for the call.
#![allow(
    unsafe_code,
    dead_code,
    missing_docs,
    unreachable_pub,
    reason = "every test file uses a part of it"
)]

use foliocache::{Cache, Directory};
use std::ffi::CString;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

pub const PAGE: usize = 4096;

/// A cache of `mib` MiB.
pub fn cache(mib: u64) -> Cache {
    Cache::builder().memory(mib << 20).build().expect("a cache")
}

/// An empty directory on the disk that holds the build.
pub fn on_disk() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory")
}

/// A cache, a directory on disk, and the directory seen through the cache.
pub struct Disk {
    pub cache: Cache,
    pub dir: Directory,
    pub source: TempDir,
}

impl Disk {
    pub fn new(mib: u64) -> Disk {
        let (cache, source) = (cache(mib), on_disk());
        let dir = cache.directory(source.path()).expect("a directory");
        Disk { cache, dir, source }
    }

    /// The path of a file in the source.
    pub fn in_source(&self, name: &str) -> PathBuf {
        self.source.path().join(name)
    }
}

/// Bytes that differ by position and by `seed`, none of them zero.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|at| {
            let mixed = (at + seed * 0x9e37_79b9).wrapping_mul(0xff51_afd7_ed55_8ccd);
            (mixed >> 56) as u8 | 1
        })
        .collect()
}

/// A tmpfs of one MiB, mounted for a test.
pub struct SmallTmpfs {
    at: TempDir,
}

impl SmallTmpfs {
    /// Mounts it; `None` where that is not allowed.
    pub fn mount() -> Option<SmallTmpfs> {
        let at = on_disk();
        let path = c_path(at.path());
        let (kind, options) = (c"tmpfs".as_ptr(), c"size=1M".as_ptr().cast());
        // SAFETY: the module's premise.
        let mounted = unsafe { libc::mount(kind, path.as_ptr(), kind, 0, options) };
        (mounted == 0).then_some(SmallTmpfs { at })
    }

    pub fn path(&self) -> &Path {
        self.at.path()
    }
}

impl Drop for SmallTmpfs {
    fn drop(&mut self) {
        // SAFETY: the module's premise.
        let unmounted = unsafe { libc::umount2(c_path(self.path()).as_ptr(), libc::MNT_DETACH) };
        assert_eq!(unmounted, 0);
    }
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_encoded_bytes()).expect("no NUL in a temporary path")
}
