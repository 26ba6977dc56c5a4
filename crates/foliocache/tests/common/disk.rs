//! A cache over a directory on disk, and tests that run in a separate process. The tests of
//! `foliocache-cuda` use it too.
#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    reason = "every test file uses a part of it"
)]

use foliocache::{Cache, Directory};
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// A cache of `mib` MiB.
pub fn cache(mib: u64) -> Cache {
    Cache::builder().memory(mib << 20).build().expect("a cache")
}

/// An empty directory in `FOLIOCACHE_TEST_DIR`, or on the disk that holds the build.
pub fn on_disk() -> TempDir {
    let top = std::env::var_os("FOLIOCACHE_TEST_DIR");
    let top = top.unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into());
    tempfile::tempdir_in(top).expect("a directory")
}

/// Whether the machine is known to lack a need of a test, which then prints so and is skipped.
pub fn lacks(need: &str) -> bool {
    let missing = std::env::var("FOLIOCACHE_MISSING").unwrap_or_default();
    let lacks = missing.split(',').any(|name| name == need);
    if lacks {
        eprintln!("SKIPPED: there is no {need}");
    }
    lacks
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

/// Runs the test `body` of this test program, named with its module, in a separate process with the variable
/// [`ALONE`] set, and returns its output. For effects on the whole process.
pub fn run_alone(body: &str) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command
        .args([
            "--exact",
            body,
            "--nocapture",
            "--test-threads=1",
            "--include-ignored",
        ])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    let ran = output.status.success() && said.contains("1 passed");
    assert!(ran, "{said}");
    said
}

/// Set in the process of [`run_alone`].
pub const ALONE: &str = "FOLIOCACHE_TEST_ALONE";

/// Whether this is that process.
pub fn is_alone() -> bool {
    std::env::var_os(ALONE).is_some()
}
