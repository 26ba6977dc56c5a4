//! A process that may lock next to no memory: the cache works, and says that its buffers are plain.
//!
//! Needs root, to take the right away that would lift the limit.

mod common;

use common::{cache, dirfs, on_disk};
use foliocache_fs::DirFsOptions;
use foliocache_fs::testing::{pattern, read_all, write_all};
use foliocache_vfs::{Advice, FileSystem, OpContext, OpenFlags};
use std::ffi::OsStr;
use std::fs;
use std::process::Command;

const CHILD: &str = "FOLIOCACHE_TEST_MEMLOCK_CHILD";
const TEST: &str = "without_the_right_to_lock_memory_buffers_are_plain_and_the_statistics_say_so";

#[test]
#[ignore = "system tier"]
fn without_the_right_to_lock_memory_buffers_are_plain_and_the_statistics_say_so() {
    if std::env::var_os(CHILD).is_some() {
        return in_the_child();
    }
    let done = Command::new("prlimit")
        .args([
            "--memlock=65536:65536",
            "setpriv",
            "--bounding-set=-ipc_lock",
        ])
        .arg("--inh-caps=-ipc_lock")
        .arg(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", TEST])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{said}");
    assert!(said.contains("1 passed"), "{said}");
}

fn in_the_child() {
    let source = on_disk();
    let mm = cache(64);
    let fs = dirfs(&mm, source.path(), DirFsOptions::default());
    let (root, name) = (fs.root(), OsStr::new("file"));
    let file = fs
        .create(
            &OpContext::ROOT,
            &root,
            name,
            0o644,
            OpenFlags::READ_WRITE,
            true,
        )
        .unwrap();
    let bytes = pattern(7, 8 << 20);
    write_all(&file, &bytes, 0);
    file.fsync().unwrap();
    assert!(fs::read(source.path().join("file")).unwrap() == bytes);
    // More reads than are done without a ring to find out what the device is like.
    for _ in 0..8 {
        file.advise(Advice::DontNeed, 0, 0).unwrap();
        assert!(read_all(&file) == bytes);
    }
    let stats = fs.stats();
    assert!(
        stats.direct_reads > 0 && stats.direct_writes > 0,
        "{stats:?}"
    );
    let rings = stats
        .rings
        .expect("io_uring needs no locked memory for its rings");
    let engine = stats.engine.expect("as rings do");
    assert!(
        rings.refused_buffers + engine.refused_buffers > 0,
        "{stats:?}"
    );
    assert_eq!((rings.fixed_ios, engine.fixed_ios), (0, 0), "{stats:?}");
    assert_eq!(engine.buffers, 0, "{stats:?}");
}
