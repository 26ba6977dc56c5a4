//! Without reports of the kernel, changes by others are seen after `revalidate_after`.
//!
//! Each test runs itself once more, in new namespaces.

use crate::common::{Paths as _, WalkFlags, cache, dirfs, lacks, on_disk, read_all, root_namei};
use foliocache_fs::{DirFs, DirFsOptions};
use foliocache_sys::Errno;
use foliocache_vfs::{OpenFlags, OpenHow, SuperBlock};
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// A change is to be seen after this long at most; the machine may be busy.
const SOON: Duration = Duration::from_secs(20);

/// Whether this is the run in the namespaces. If not, they are made with `options`, prepared by `script`, and the test runs there.
fn inside(test: &str, options: &str, script: &str) -> bool {
    const INSIDE: &str = "FOLIOCACHE_INSIDE";
    if env::var_os(INSIDE).is_some() {
        return true;
    }
    let unshare = || {
        let mut unshare = Command::new("unshare");
        unshare.args([options, "--map-root-user"]);
        unshare
    };
    if !unshare().arg("true").status().is_ok_and(|it| it.success()) {
        eprintln!("SKIPPED: there are no namespaces");
        return false;
    }
    let program = env::current_exe().expect("this program");
    let output = unshare()
        .args(["sh", "-euc"])
        .arg(format!(
            "{script}; exec \"$0\" --exact not_watched::{test} --nocapture"
        ))
        .arg(program)
        .env(INSIDE, "1")
        .output();
    let output = output.expect("unshare");
    let told = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let passed = output.status.success() && told.contains("1 passed");
    assert!(passed, "{test}: {told}{errors}");
    false
}

struct World {
    source: PathBuf,
    fs: Arc<DirFs>,
    names: SuperBlock,
}

impl World {
    fn new(source: &Path) -> World {
        let mut options = DirFsOptions::default();
        options.revalidate_after = Duration::from_millis(20);
        let mm = cache(16);
        let fs = Arc::new(dirfs(&mm, source, options));
        let names = SuperBlock::new(fs.clone(), &mm);
        World {
            source: source.into(),
            fs,
            names,
        }
    }

    fn size(&self, path: &str) -> Result<u64, Errno> {
        let stay = WalkFlags {
            follow: false,
            beneath: true,
        };
        let stat = (self.names).stat(self.names.root(), OsStr::new(path), stay, None);
        stat.map(|attr| attr.size).map_err(|error| error.errno())
    }

    fn read(&self, path: &str) -> Vec<u8> {
        let how = OpenHow {
            flags: OpenFlags::READ,
            ..OpenHow::default()
        };
        let file = root_namei(&self.names).open(OsStr::new(path), how);
        read_all(&file.expect("it opens"))
    }

    /// Others change a file in `dir` that was used before, and make and remove one.
    #[track_caller]
    fn sees_changes(&self, dir: &str) {
        let at = |name: &str| format!("{dir}/{name}");
        let place = |name: &str| self.source.join(at(name));
        assert_eq!(self.size(&at("none")), Err(Errno::ENOENT));
        assert_eq!(self.read(&at("file")), b"old");
        fs::write(place("file"), "newer").expect("written");
        fs::write(place("none"), "").expect("made");
        let begun = Instant::now();
        while self.read(&at("file")) != b"newer" {
            assert!(begun.elapsed() < SOON, "{dir}");
        }
        self.becomes(&at("file"), Ok(5));
        self.becomes(&at("none"), Ok(0));
        fs::remove_file(place("file")).expect("removed");
        self.becomes(&at("file"), Err(Errno::ENOENT));
    }

    #[track_caller]
    fn becomes(&self, path: &str, size: Result<u64, Errno>) {
        let begun = Instant::now();
        while self.size(path) != size {
            assert!(begun.elapsed() < SOON, "{path}: {:?}", self.size(path));
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Directories `0` to `n`, each with a file.
fn fill(source: &Path, n: u64) {
    for dir in 0..n {
        let dir = source.join(format!("{dir}"));
        fs::create_dir(&dir).expect("a directory");
        fs::write(dir.join("file"), "old").expect("a file");
    }
}

#[test]
fn beyond_the_limit_of_watches_changes_are_seen_by_time() {
    let test = "beyond_the_limit_of_watches_changes_are_seen_by_time";
    let limit = "echo 10 > /proc/sys/user/max_inotify_watches";
    if !inside(test, "--user", limit) {
        return;
    }
    let source = on_disk();
    fill(source.path(), 30);
    let world = World::new(source.path());
    for dir in 0..30 {
        assert_eq!(world.size(&format!("{dir}/file")), Ok(3));
    }
    let stats = world.fs.stats();
    assert!(
        stats.watches <= 10 && stats.watches_refused > 0,
        "{stats:?}"
    );
    for dir in 0..30 {
        world.sees_changes(&format!("{dir}"));
    }
}

#[test]
fn changes_of_a_layered_file_system_are_seen_by_time() {
    let test = "changes_of_a_layered_file_system_are_seen_by_time";
    if lacks("root") || !inside(test, "--mount", "true") {
        return;
    }
    let (layers, source) = (on_disk(), on_disk());
    for layer in ["lower", "upper", "work"] {
        fs::create_dir(layers.path().join(layer)).expect("a directory");
    }
    fill(&layers.path().join("lower"), 3);
    let status = Command::new("mount")
        .args(["-t", "overlay", "none", "-o"])
        .arg("lowerdir=lower,upperdir=upper,workdir=work")
        .arg(source.path())
        .current_dir(layers.path())
        .status();
    assert!(status.expect("mount").success());
    let world = World::new(source.path());
    for dir in 0..3 {
        world.sees_changes(&format!("{dir}"));
    }
    assert_eq!(world.fs.stats().watches, 0);
    drop(world);
    let unmounted = Command::new("umount").arg(source.path()).status();
    assert!(unmounted.expect("umount").success());
}
