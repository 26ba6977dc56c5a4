//! The file data that the kernel keeps with [`KernelCache::All`] and with [`KernelCache::None`],
//! and its correctness.
//!
//! Another process uses the mount, this program once more: a thread of the process that serves a mount must not
//! wait for it.
//!
//! Needs FUSE and root.
#![allow(unsafe_code)]

use crate::common::no_root_or_fuse;
use foliocache_fs::{DirFs, DirFsOptions};
use foliocache_fuse::{KernelCache, Mount, MountOptions};
use foliocache_mm::{Mm, MmConfig};
use foliocache_sys::Errno;
use foliocache_sys::fd::{Advice, AsFd, fadvise};
use foliocache_vfs::{Remove, SuperBlock};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use std::collections::{BTreeSet, HashMap};
use std::env;
use std::fmt::Debug;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::ptr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of a file.
const SIZE: usize = 20_000;

/// Longer than an unused file stays open, and than an unreported change may go unnoticed.
const LONG: Duration = Duration::from_millis(2500);

/// Longest wait for an event on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The mount point; set for the other process alone.
const PLACE: &str = "FOLIOCACHE_KERNEL_CACHE_PLACE";

/// A file filled with one letter.
fn of(letter: &str) -> String {
    letter.repeat(SIZE)
}

/// The number of bytes, and their values.
fn summary(bytes: &[u8]) -> String {
    let letters: BTreeSet<_> = bytes.iter().map(|&byte| char::from(byte)).collect();
    format!("{} {}", bytes.len(), String::from_iter(letters))
}

fn said<T>(done: io::Result<T>) -> String {
    match done {
        Ok(_) => "ok".to_owned(),
        Err(error) => format!("{:?}", Errno::from_raw(error.raw_os_error().unwrap())),
    }
}

/// Reads a file through a mapping.
fn map(file: &File, flags: MapFlags) -> io::Result<String> {
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let at = unsafe { mmap(ptr::null_mut(), SIZE, ProtFlags::READ, flags, file, 0) }?;
    // SAFETY: mapped, and the file is as long.
    let bytes = unsafe { std::slice::from_raw_parts(at.cast::<u8>(), SIZE) };
    let summary = summary(bytes);
    // SAFETY: the mapping from above, which is no longer in use.
    unsafe { munmap(at, SIZE) }?;
    Ok(summary)
}

/// The other process: carries out commands, line by line.
#[test]
#[ignore = "system tier"]
fn user() {
    let Some(place) = env::var_os(PLACE).map(PathBuf::from) else {
        return;
    };
    let mut open: HashMap<String, File> = HashMap::new();
    for line in io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<_> = line.split(' ').collect();
        let path = place.join(words[1]);
        let file = open.get(words[1]);
        let answer =
            match words[0] {
                "read" => {
                    fs::read(&path).map_or_else(|error| said::<()>(Err(error)), |it| summary(&it))
                }
                "open" => {
                    let file = File::options().read(true).write(true).open(&path);
                    open.insert(words[1].to_owned(), file.unwrap());
                    "ok".to_owned()
                }
                "close" => said(Ok(open.remove(words[1]).unwrap())),
                "reread" => {
                    let mut bytes = vec![0; SIZE];
                    let read = file.unwrap().read_exact_at(&mut bytes, 0);
                    read.map_or_else(|error| said::<()>(Err(error)), |()| summary(&bytes))
                }
                "write" => said(file.unwrap().write_all_at(of(words[2]).as_bytes(), 0)),
                "make" => said(fs::write(&path, of(words[2]))),
                "many" => said((0..1000).try_for_each(|nr| {
                    let path = path.join(nr.to_string());
                    fs::write(&path, of(words[2]))?;
                    fs::remove_file(path)
                })),
                "links" => said((0..200).try_for_each(|nr| {
                    let temporary = path.join("temporary");
                    fs::write(&temporary, of(words[2]))?;
                    fs::hard_link(&temporary, path.join(nr.to_string()))?;
                    fs::remove_file(temporary)
                })),
                "drop" => {
                    let dropped = fadvise(file.unwrap().as_fd(), 0, SIZE as u64, Advice::DontNeed);
                    said(dropped.map_err(io::Error::from))
                }
                "create" => {
                    let mode = u32::from_str_radix(words[2], 8).unwrap();
                    let mut how = File::options();
                    how.read(true).write(true).create_new(true).mode(mode);
                    open.insert(words[1].to_owned(), how.open(&path).unwrap());
                    "ok".to_owned()
                }
                "mode" => {
                    let mode = u32::from_str_radix(words[2], 8).unwrap();
                    said(fs::set_permissions(path, fs::Permissions::from_mode(mode)))
                }
                "unlink" => said(fs::remove_file(&path)),
                "rename" => said(fs::rename(&path, place.join(words[2]))),
                "shared" => map(file.unwrap(), MapFlags::SHARED)
                    .unwrap_or_else(|error| said::<()>(Err(error))),
                "private" => map(file.unwrap(), MapFlags::PRIVATE)
                    .unwrap_or_else(|error| said::<()>(Err(error))),
                _ => panic!("{line}"),
            };
        println!("= {answer}");
    }
}

/// A directory, mounted, and the process that uses it.
struct Bed {
    top: PathBuf,
    names: Arc<SuperBlock>,
    mount: Mount,
    process: Child,
    say: ChildStdin,
    said: BufReader<ChildStdout>,
}

impl Bed {
    fn new(name: &str, kernel_cache: KernelCache, files: &[&str]) -> Bed {
        let top = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("kernel-cache-{name}-{}", std::process::id()));
        let (source, place) = (top.join("source"), top.join("mount"));
        fs::create_dir_all(&source).unwrap();
        fs::create_dir(&place).unwrap();
        for file in files {
            fs::write(source.join(file), of("a")).unwrap();
        }
        let mm = Mm::new(MmConfig::new(64 << 20)).unwrap();
        let fs = DirFs::open(&mm, &source, DirFsOptions::default()).unwrap();
        let names = Arc::new(SuperBlock::new(Arc::new(fs), &mm));
        let mut options = MountOptions::new(name);
        options.kernel_cache = kernel_cache;
        let mount = Mount::new(names.clone(), &place, &options).unwrap();
        let mut command = Command::new(env::current_exe().unwrap());
        command.args([
            "--exact",
            "kernel_cache::user",
            "--include-ignored",
            "--nocapture",
        ]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.env(PLACE, &place).spawn().unwrap();
        Bed {
            top,
            names,
            mount,
            say: process.stdin.take().unwrap(),
            said: BufReader::new(process.stdout.take().unwrap()),
            process,
        }
    }

    fn source(&self, name: &str) -> PathBuf {
        self.top.join("source").join(name)
    }

    /// Sends a command to the other process; returns its answer.
    fn ask(&mut self, what: &str) -> String {
        writeln!(self.say, "{what}").unwrap();
        loop {
            let mut line = String::new();
            assert!(self.said.read_line(&mut line).unwrap() > 0, "it ended");
            if let Some((_, said)) = line.trim_end().split_once("= ") {
                return said.to_owned();
            }
        }
    }

    /// Has it do something that must succeed.
    fn does(&mut self, what: &str) {
        assert_eq!(self.ask(what), "ok", "{what}");
    }

    /// Has it read a file until it is all `letter`; returns how long that took.
    fn sees(&mut self, what: &str, letter: &str) -> Duration {
        let (start, wanted) = (Instant::now(), summary(of(letter).as_bytes()));
        loop {
            let seen = self.ask(what);
            if seen == wanted {
                return start.elapsed();
            }
            assert!(start.elapsed() < PATIENCE, "{what}: {seen}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn end(mut self) {
        drop(self.say);
        assert!(self.process.wait().unwrap().success());
        assert_eq!(self.mount.stats().panics, 0);
        self.mount.unmount().unwrap();
        fs::remove_dir_all(&self.top).unwrap();
    }
}

/// Waits until `found` returns `wanted`.
#[track_caller]
fn wait_until<T: PartialEq + Debug>(wanted: &T, found: impl Fn() -> T) {
    let start = Instant::now();
    loop {
        let found = found();
        if found == *wanted {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{found:?}, not {wanted:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Files of a test that this process has open.
fn open_files(test: &str) -> Vec<PathBuf> {
    let links = fs::read_dir("/proc/self/fd").unwrap();
    let files = links.filter_map(|link| fs::read_link(link.unwrap().path()).ok());
    let of_the_test = format!("/kernel-cache-{test}-");
    files
        .filter(|file| file.to_string_lossy().contains(&of_the_test))
        .collect()
}

/// Those of them that are unlinked.
fn unnamed_files(test: &str) -> Vec<PathBuf> {
    let unnamed = |file: &PathBuf| file.to_string_lossy().ends_with(" (deleted)");
    open_files(test).into_iter().filter(unnamed).collect()
}

#[test]
#[ignore = "system tier"]
fn rereading_pages_in_the_kernel_cache_makes_no_read_request() {
    if no_root_or_fuse() {
        return;
    }
    let mut bed = Bed::new("keeps", KernelCache::All, &["f"]);
    assert_eq!(bed.ask("read f"), summary(of("a").as_bytes()));
    // The first read changed the access time, as far as the kernel knows.
    bed.ask("read f");
    thread::sleep(LONG);
    let before = bed.mount.stats();
    assert_eq!(
        before.kernel_cache_bytes,
        before.read_bytes.next_multiple_of(4096)
    );
    for _ in 0..10 {
        assert_eq!(bed.ask("read f"), summary(of("a").as_bytes()));
    }
    let after = bed.mount.stats();
    assert_eq!(after.read_bytes, before.read_bytes);
    // The kernel may have forgotten the name in between.
    let asked = after.requests - before.requests;
    assert!(asked < 5, "{asked} requests");
    // Until another process changes it, also to the same size. An unreported change may go
    // unnoticed for a second each time.
    let mut delays = ["b", "c", "d", "e", "f"].map(|letter| {
        fs::write(bed.source("f"), of(letter)).unwrap();
        bed.sees("read f", letter)
    });
    delays.sort();
    assert!(delays[2] < Duration::from_millis(500), "{delays:?}");
    bed.end();
}

#[test]
#[ignore = "system tier"]
fn files_that_the_kernel_does_not_open_are_written_and_closed() {
    if no_root_or_fuse() {
        return;
    }
    let mut bed = Bed::new("writes", KernelCache::All, &["f"]);
    bed.does("open f");
    for letter in ["b", "c"] {
        bed.does(&format!("write f {letter}"));
        bed.sees("read f", letter);
        bed.does("drop f");
        bed.sees("reread f", letter);
    }
    bed.does("make new d");
    bed.sees("read new", "d");
    bed.names.fs().sync_fs().unwrap();
    assert_eq!(fs::read_to_string(bed.source("f")).unwrap(), of("c"));
    assert_eq!(fs::read_to_string(bed.source("new")).unwrap(), of("d"));
    let open_files = || fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open_files();
    bed.does("many . e");
    // Some are closed a little later.
    let after = open_files();
    assert!(after < before + 400, "{after}, were {before}");
    let names = bed.names.clone();
    let writers = || {
        let file = names.lookup_name(names.root(), "f".as_ref());
        file.unwrap().inode.ops().writers()
    };
    // It stays open for a second, in which this thread may not run.
    let mut is_open = || {
        bed.does("write f c");
        writers() > 0
    };
    assert!((0..20).any(|_| is_open()));
    wait_until(&0, writers);
    bed.does("close f");
    bed.end();
}

#[test]
#[ignore = "system tier"]
fn directories_that_others_remove_are_forgotten() {
    if no_root_or_fuse() {
        return;
    }
    let mut bed = Bed::new("gone", KernelCache::All, &[]);
    fs::create_dir_all(bed.source("above/below")).unwrap();
    fs::write(bed.source("above/below/f"), of("a")).unwrap();
    fs::create_dir(bed.source("moved")).unwrap();
    assert_eq!(bed.ask("read above/below/f"), summary(of("a").as_bytes()));
    for missing in ["above/none", "above/below/none", "moved/none"] {
        assert_eq!(bed.ask(&format!("read {missing}")), "ENOENT");
    }
    fs::remove_dir_all(bed.source("above")).unwrap();
    fs::rename(bed.source("moved"), bed.source("elsewhere")).unwrap();
    // They are not used meanwhile.
    wait_until(&Vec::new(), || unnamed_files("gone"));
    assert_eq!(bed.ask("read above/below/f"), "ENOENT");
    bed.end();
}

#[test]
#[ignore = "system tier"]
fn an_open_file_without_a_name_keeps_its_data() {
    if no_root_or_fuse() {
        return;
    }
    let mut bed = Bed::new("unnamed", KernelCache::All, &["removed", "replaced"]);
    for name in ["removed", "replaced"] {
        bed.does(&format!("open {name}"));
        bed.does(&format!("write {name} b"));
    }
    bed.does("unlink removed");
    bed.does("make other x");
    bed.does("rename other replaced");
    for letter in ["b", "c"] {
        // Only this process has it open.
        thread::sleep(LONG);
        for name in ["removed", "replaced"] {
            bed.does(&format!("drop {name}"));
            bed.sees(&format!("reread {name}"), letter);
            bed.does(&format!("write {name} c"));
        }
    }
    bed.sees("read replaced", "x");
    assert!(unnamed_files("unnamed").len() >= 2);
    for name in ["removed", "replaced"] {
        bed.does(&format!("close {name}"));
    }
    wait_until(&Vec::new(), || unnamed_files("unnamed"));
    bed.end();
}

#[test]
#[ignore = "system tier"]
fn file_that_was_only_looked_up_keeps_writes_after_its_removal() {
    if no_root_or_fuse() {
        return;
    }
    let files = ["removed", "replaced", "library"];
    let mut bed = Bed::new("looked-up", KernelCache::All, &files);
    bed.does("make other x");
    for name in files {
        // No request reports this.
        bed.does(&format!("open {name}"));
    }
    bed.does("unlink removed");
    bed.does("rename other replaced");
    for name in files {
        bed.does(&format!("write {name} b"));
    }
    // The library beside the mount.
    let (root, name) = (bed.names.root(), "library".as_ref());
    bed.names.remove(root, name, Remove::File, None).unwrap();
    for _ in 0..2 {
        thread::sleep(LONG);
        for name in files {
            bed.does(&format!("drop {name}"));
            let seen = bed.ask(&format!("reread {name}"));
            assert_eq!(seen, summary(of("b").as_bytes()), "{name}");
        }
    }
    for name in files {
        bed.does(&format!("close {name}"));
    }
    wait_until(&Vec::new(), || unnamed_files("looked-up"));
    bed.end();
}

#[test]
#[ignore = "system tier"]
fn file_that_loses_one_of_two_names_is_not_kept_open() {
    if no_root_or_fuse() {
        return;
    }
    let mut bed = Bed::new("links", KernelCache::All, &[]);
    bed.does("links . b");
    bed.names.fs().sync_fs().unwrap();
    let inode = |name: &str| {
        let found = bed.names.lookup_name(bed.names.root(), name.as_ref());
        found.unwrap().inode
    };
    wait_until(&0, || {
        let writers = (0..200).filter(|nr| inode(&nr.to_string()).ops().writers() > 0);
        writers.count()
    });
    bed.end();
}

#[test]
#[ignore = "system tier"]
fn unmounting_closes_files_that_the_kernel_did_not_open() {
    if no_root_or_fuse() {
        return;
    }
    let mut bed = Bed::new("unmounted", KernelCache::All, &["f"]);
    let file = bed.names.lookup_name(bed.names.root(), "f".as_ref());
    let inode = file.unwrap().inode;
    // It stays open for a second, in which this thread may not run.
    let mut is_open = || {
        bed.does("open f");
        bed.does("write f b");
        bed.does("close f");
        inode.ops().writers() == 1
    };
    assert!((0..20).any(|_| is_open()));
    bed.mount.unmount().unwrap();
    assert_eq!(inode.ops().writers(), 0);
    bed.end();
}

/// Runs a closure on a thread without `CAP_DAC_OVERRIDE`, as are the threads that it starts.
fn without_override<R: Send + 'static>(run: impl FnOnce() -> R + Send + 'static) -> R {
    let limited = move || {
        let mut sets = capabilities(None).unwrap();
        for set in [&mut sets.effective, &mut sets.permitted] {
            set.remove(CapabilitySet::DAC_OVERRIDE);
        }
        set_capabilities(None, sets).unwrap();
        run()
    };
    thread::spawn(limited).join().unwrap()
}

#[test]
#[ignore = "system tier"]
fn open_file_that_may_not_be_opened_again_is_written_without_privileges() {
    if no_root_or_fuse() {
        return;
    }
    let mut bed = without_override(|| Bed::new("unprivileged", KernelCache::All, &["f"]));
    bed.does("open f");
    bed.does("mode f 444");
    bed.does("create new 444");
    for letter in ["b", "c"] {
        for name in ["f", "new"] {
            bed.does(&format!("write {name} {letter}"));
            bed.does(&format!("drop {name}"));
            let seen = bed.ask(&format!("reread {name}"));
            assert_eq!(seen, summary(of(letter).as_bytes()), "{name}");
        }
        // They are not in use.
        thread::sleep(LONG);
    }
    // The kernel still keeps the bytes that were read.
    bed.ask("read f");
    let before = bed.mount.stats();
    for _ in 0..10 {
        assert_eq!(bed.ask("read f"), summary(of("c").as_bytes()));
    }
    assert_eq!(bed.mount.stats().read_bytes, before.read_bytes);
    bed.does("close f");
    bed.does("close new");
    wait_until(&0, || bed.mount.stats().open_files);
    bed.end();
}

#[test]
#[ignore = "system tier"]
fn without_the_kernels_cache_nothing_is_mapped_shared() {
    if no_root_or_fuse() {
        return;
    }
    let mut bed = Bed::new("none", KernelCache::None, &["f"]);
    for _ in 0..2 {
        assert_eq!(bed.ask("read f"), summary(of("a").as_bytes()));
    }
    let stats = bed.mount.stats();
    assert_eq!(stats.read_bytes, 2 * SIZE as u64);
    assert_eq!(stats.kernel_cache_bytes, 0);
    bed.does("open f");
    assert_eq!(bed.ask("shared f"), "ENODEV");
    // As running programs are.
    assert_eq!(bed.ask("private f"), summary(of("a").as_bytes()));
    bed.end();
}
