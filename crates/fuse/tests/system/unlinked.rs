//! Files of a mount that lose their names while programs open them: each open sees one version, whole, whether its
//! data was written to the source or not. Their cached pages go when the kernel forgets them.
//!
//! Another process uses the mount, this program once more: a thread of the process that serves a mount must not
//! wait for it.
//!
//! Needs FUSE and root.

use crate::common::no_root_or_fuse;
use foliocache_fs::{DirFs, DirFsOptions, WritebackAtClose};
use foliocache_fuse::{KernelCache, Mount, MountOptions};
use foliocache_mm::{Mm, MmConfig};
use foliocache_vfs::SuperBlock;
use rustix::fs::OFlags;
use std::env;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of a file: too large for batches of small files.
const LEN: usize = 100 << 10;

/// Longest wait for an event on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The mount point; set for the other process alone.
const PLACE: &str = "FOLIOCACHE_UNLINKED_PLACE";

/// A version of a file: all its bytes are equal, and none is zero.
fn version(round: u64) -> Vec<u8> {
    vec![(round % 255) as u8 + 1; LEN]
}

#[track_caller]
fn assert_whole(bytes: &[u8]) {
    let first = bytes.first().copied().unwrap_or(0);
    let whole = bytes.len() == LEN && first != 0 && bytes == vec![first; LEN];
    assert!(whole, "{} bytes, the first is {first}", bytes.len());
}

/// An `O_PATH` handle of a file that has a name.
fn open_path(path: &Path) -> io::Result<File> {
    let flags = OFlags::PATH.bits().cast_signed();
    File::options().read(true).custom_flags(flags).open(path)
}

/// Opens the file behind such a handle.
fn reopen(handle: &File) -> File {
    File::open(format!("/proc/self/fd/{}", handle.as_raw_fd())).unwrap()
}

fn read_all(mut file: File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

/// Replaces `v`, or removes it as well, while other threads open it in two ways.
fn race(place: &Path, removes: bool) {
    const ROUNDS: u64 = 100;
    let (temporary, path) = (&place.join(".t"), &place.join("v"));
    fs::write(path, version(0)).unwrap();
    let (done, found) = (&AtomicBool::new(false), &AtomicU64::new(0));
    thread::scope(|scope| {
        let read = |by_path: bool| {
            while !done.load(Ordering::Relaxed) {
                let opened = match by_path {
                    true => open_path(path).map(|handle| reopen(&handle)),
                    false => File::open(path),
                };
                match opened {
                    Ok(file) => {
                        assert_whole(&read_all(file));
                        found.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) => assert!(removes, "{error}"),
                }
            }
        };
        let readers = [false, true, false].map(|by_path| scope.spawn(move || read(by_path)));
        // A reader that failed has ended.
        let failed = || readers.iter().any(|reader| reader.is_finished());
        for round in 0.. {
            if (round >= ROUNDS && found.load(Ordering::Relaxed) >= ROUNDS) || failed() {
                break;
            }
            fs::write(temporary, version(round)).unwrap();
            fs::rename(temporary, path).unwrap();
            if removes {
                fs::remove_file(path).unwrap();
            }
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// Makes a file, unlinks it, and closes it.
fn use_temporary(path: &Path, round: u64) {
    let mut file = File::create(path).unwrap();
    file.write_all(&version(round)).unwrap();
    fs::remove_file(path).unwrap();
    assert_whole(&read_all(reopen(&file)));
}

/// The other process: carries out commands, line by line.
#[test]
#[ignore = "system tier"]
fn user_of_the_mount() {
    let Some(place) = env::var_os(PLACE).map(PathBuf::from) else {
        return;
    };
    let file = place.join("file");
    let mut held = None;
    for line in io::stdin().lines() {
        match line.unwrap().as_str() {
            "replace" => race(&place, false),
            "remove" => race(&place, true),
            "temporary" => (0..50).for_each(|round| use_temporary(&file, round)),
            "hold" => {
                fs::write(&file, version(1)).unwrap();
                held = Some(open_path(&file).unwrap());
                fs::remove_file(&file).unwrap();
            }
            "reopen" => assert_whole(&read_all(reopen(held.as_ref().unwrap()))),
            "let go" => held = None,
            line => panic!("{line}"),
        }
        println!("= done");
    }
}

/// A directory, mounted, and the process that uses it.
struct Bed {
    top: PathBuf,
    mm: Arc<Mm>,
    fs: Arc<DirFs>,
    mount: Mount,
    process: Child,
    say: ChildStdin,
    said: BufReader<ChildStdout>,
}

impl Bed {
    /// With a bound of this many MiB. No file is written back because of its age.
    fn new(mib: u64, kernel_cache: KernelCache, mode: WritebackAtClose) -> Bed {
        let name = format!("unlinked-{kernel_cache:?}-{mode:?}-{}", std::process::id());
        let top = Path::new(env!("CARGO_TARGET_TMPDIR")).join(&name);
        let _ = fs::remove_dir_all(&top);
        let (source, place) = (top.join("source"), top.join("mount"));
        fs::create_dir_all(&source).unwrap();
        fs::create_dir(&place).unwrap();
        let mut config = MmConfig::new(mib << 20);
        config.dirty_expire = Duration::from_secs(3600);
        let mm = Mm::new(config).unwrap();
        let mut options = DirFsOptions::default();
        options.writeback_at_close = mode;
        let fs = Arc::new(DirFs::open(&mm, &source, options).unwrap());
        let names = Arc::new(SuperBlock::new(fs.clone(), &mm));
        let mut options = MountOptions::new(name);
        options.kernel_cache = kernel_cache;
        let mount = Mount::new(names, &place, &options).unwrap();
        let mut command = Command::new(env::current_exe().unwrap());
        command.args([
            "--exact",
            "unlinked::user_of_the_mount",
            "--include-ignored",
            "--nocapture",
        ]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.env(PLACE, &place).spawn().unwrap();
        Bed {
            top,
            mm,
            fs,
            mount,
            say: process.stdin.take().unwrap(),
            said: BufReader::new(process.stdout.take().unwrap()),
            process,
        }
    }

    /// Has the other process do something.
    #[track_caller]
    fn does(&mut self, what: &str) {
        writeln!(self.say, "{what}").unwrap();
        loop {
            let mut line = String::new();
            assert!(
                self.said.read_line(&mut line).unwrap() > 0,
                "{what}: it ended"
            );
            if line.trim_end().ends_with("= done") {
                return;
            }
        }
    }

    fn resident_pages(&self) -> u64 {
        self.mm.stats().files.resident_pages
    }

    /// Waits until no data is cached and none waits to be written: the kernel sends its forgets a
    /// little later.
    fn wait_until_empty(&self) {
        let start = Instant::now();
        let left = || (self.resident_pages(), self.fs.bdi().nr_not_durable());
        while left() != (0, 0) {
            assert!(start.elapsed() < PATIENCE, "{:?}", left());
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn writes(&self) -> u64 {
        let stats = self.fs.stats();
        stats.direct_writes + stats.buffered_writes
    }

    fn end(mut self) {
        drop(self.say);
        assert!(self.process.wait().unwrap().success());
        assert_eq!(self.mount.stats().panics, 0);
        self.mount.unmount().unwrap();
        fs::remove_dir_all(&self.top).unwrap();
    }
}

const MODES: [WritebackAtClose; 3] = [
    WritebackAtClose::Begin,
    WritebackAtClose::Wait,
    WritebackAtClose::Delayed,
];

const KEPT: [KernelCache; 3] = [KernelCache::Mapped, KernelCache::None, KernelCache::All];

/// Runs the test on mounts of all kinds.
fn on_all(mib: u64, run: impl Fn(&mut Bed)) {
    if no_root_or_fuse() {
        return;
    }
    for (kernel_cache, mode) in KEPT
        .into_iter()
        .flat_map(|kept| MODES.map(|mode| (kept, mode)))
    {
        let mut bed = Bed::new(mib, kernel_cache, mode);
        run(&mut bed);
        bed.end();
    }
}

#[test]
#[ignore = "system tier"]
fn a_file_that_is_replaced_or_removed_while_programs_open_it_is_one_version_whole() {
    on_all(16, |bed| {
        bed.does("replace");
        bed.does("remove");
    });
}

#[test]
#[ignore = "system tier"]
fn a_file_without_a_name_that_a_program_holds_keeps_its_data_until_it_lets_go() {
    on_all(16, |bed| {
        bed.does("hold");
        for _ in 0..2 {
            bed.does("reopen");
            assert!(bed.resident_pages() >= (LEN / 4096) as u64);
        }
        bed.does("let go");
        bed.wait_until_empty();
    });
}

/// Under a bound that is large for all of them together.
#[test]
#[ignore = "system tier"]
fn temporary_files_of_programs_are_not_written_and_go_when_the_kernel_forgets_them() {
    on_all(128, |bed| {
        bed.does("temporary");
        bed.wait_until_empty();
        assert_eq!(bed.writes(), 0);
    });
}
