//! What the tests of this crate share: caches and sources.
#![allow(dead_code, reason = "every test file uses a part of it")]

use foliocache_fs::{DirFs, DirFsOptions};
use foliocache_mm::{Mm, MmConfig};
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

/// A cache bounded by `mib` MiB.
pub(crate) fn cache(mib: u64) -> Arc<Mm> {
    Mm::new(MmConfig::new(mib << 20)).expect("a cache")
}

/// An empty directory on the disk that holds the build.
pub(crate) fn on_disk() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory")
}

/// An empty directory on a tmpfs.
pub(crate) fn on_tmpfs() -> TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a directory")
}

pub(crate) fn dirfs(mm: &Arc<Mm>, source: &Path, options: DirFsOptions) -> DirFs {
    DirFs::open(mm, source, options).expect("dirfs")
}
