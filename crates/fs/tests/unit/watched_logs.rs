//! Files that are synced repeatedly while they are open for writing: others' changes are seen, although a flush
//! does not compare the times.

use crate::common::{cache, dirfs, lacks, on_disk, read_all, root_namei};
use foliocache_fs::{DirFs, DirFsOptions};
use foliocache_vfs::{OpenFile, OpenFlags, OpenHow, SuperBlock};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::process::Command;
use std::ptr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// A change is to be seen after this long at most; the machine may be busy.
const SOON: Duration = Duration::from_secs(20);
/// Bytes of the log.
const LEN: usize = 8192;
/// Records after which a log is watched.
const MANY: u64 = 16;

struct World {
    source: tempfile::TempDir,
    fs: Arc<DirFs>,
    names: SuperBlock,
}

impl World {
    /// With a log. Nothing goes by time.
    fn new() -> World {
        let source = on_disk();
        fs::write(source.path().join("log"), [b'.'; LEN]).expect("a log");
        let mut options = DirFsOptions::default();
        options.revalidate_after = Duration::from_secs(86_400);
        let mm = cache(64);
        let fs = Arc::new(dirfs(&mm, source.path(), options));
        let names = SuperBlock::new(fs.clone(), &mm);
        World { source, fs, names }
    }

    fn path(&self) -> PathBuf {
        self.source.path().join("log")
    }

    fn open(&self, flags: OpenFlags) -> OpenFile {
        let namei = root_namei(&self.names);
        let how = OpenHow {
            flags,
            ..OpenHow::default()
        };
        namei.open(OsStr::new("log"), how).expect("it opens")
    }

    fn watched(&self) -> u64 {
        self.fs.stats().watched_files
    }

    /// A writer that has made this many records durable, each replacing a byte of the first page.
    fn writer(&self, records: u64) -> OpenFile {
        let writer = self.open(OpenFlags::READ_WRITE);
        assert_eq!(read_all(&writer).len(), LEN);
        for record in 0..records {
            assert_eq!(writer.write_at(b"r", record), Ok(1));
            writer.fdatasync().expect("durable");
        }
        writer
    }

    /// A writer of a log that is watched. Records that take long do not count, so on a busy machine it takes more of them.
    fn writer_of_a_log(&self) -> OpenFile {
        let writer = self.writer(MANY);
        let begun = Instant::now();
        while self.watched() == 0 {
            assert!(begun.elapsed() < SOON, "never watched");
            assert_eq!(writer.write_at(b"r", MANY - 1), Ok(1));
            writer.fdatasync().expect("durable");
        }
        writer
    }

    /// This process stores to a page of the log through a mapping.
    #[allow(unsafe_code)]
    fn store(&self, pos: usize) {
        // The kernel stamps by a clock with ticks.
        thread::sleep(Duration::from_millis(30));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(self.path())
            .expect("open");
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, anywhere.
        let at = unsafe { mmap(ptr::null_mut(), LEN, protection, MapFlags::SHARED, &file, 0) };
        let at = at.expect("mapped").cast::<u8>().wrapping_add(pos);
        // SAFETY: within the mapping, which stays.
        unsafe { at.write_volatile(b'M') };
    }

    /// Another process changes bytes, and sets the times back, so that they do not reveal it.
    fn others_write(&self, what: &str, pos: usize) {
        let script = format!(
            "touch -r log times && printf {what} | dd of=log bs=1 seek={pos} conv=notrunc 2> /dev/null \
             && touch -r times log && rm times"
        );
        let dir = self.source.path();
        let status = Command::new("sh")
            .args(["-c", &script])
            .current_dir(dir)
            .status();
        assert!(status.expect("a shell").success(), "{script}");
    }

    /// Waits until a new handle reads bytes.
    #[track_caller]
    fn reads(&self, wanted: &[u8], pos: usize) {
        let begun = Instant::now();
        loop {
            let all = read_all(&self.open(OpenFlags::READ));
            let got = &all[pos..pos + wanted.len()];
            if got == wanted {
                return;
            }
            assert!(begun.elapsed() < SOON, "{:?}", String::from_utf8_lossy(got));
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn read_all(&self) -> usize {
        read_all(&self.open(OpenFlags::READ)).len()
    }

    fn in_source(&self, len: usize, pos: usize) -> Vec<u8> {
        fs::read(self.path()).expect("read")[pos..pos + len].to_vec()
    }
}

#[test]
fn writes_by_others_stay_when_a_log_record_in_the_same_page_follows() {
    if lacks("fanotify") {
        return;
    }
    let world = World::new();
    let writer = world.writer_of_a_log();
    for round in 0..3 {
        world.others_write("theirs", 100 + 10 * round);
        assert_eq!(writer.write_at(b"!", 50 + round as u64), Ok(1));
        writer.fdatasync().expect("durable");
        assert_eq!(world.in_source(6, 100 + 10 * round), b"theirs", "{round}");
        assert_eq!(world.in_source(1, 50 + round), b"!");
        world.reads(b"theirs", 100 + 10 * round);
    }
}

#[test]
fn writes_by_others_to_a_watched_log_are_read_at_the_next_open() {
    if lacks("fanotify") {
        return;
    }
    let world = World::new();
    let writer = world.writer_of_a_log();
    world.others_write("theirs", 5000);
    world.reads(b"theirs", 5000);
    assert_eq!(world.watched(), 1);
    drop(writer);
}

#[test]
fn writes_by_others_are_seen_after_the_last_writer_of_a_log_closes() {
    if lacks("fanotify") {
        return;
    }
    let world = World::new();
    let writer = world.writer_of_a_log();
    world.others_write("theirs", 5000);
    drop(writer);
    assert_eq!(world.watched(), 0);
    world.reads(b"theirs", 5000);
}

/// The kernel reports these writes too as this process's.
#[test]
fn writes_of_this_process_past_the_cache_are_seen_and_kept() {
    if lacks("fanotify") {
        return;
    }
    let world = World::new();
    let write = |pos| {
        let past = OpenOptions::new().write(true).open(world.path());
        past.and_then(|file| file.write_all_at(b"past", pos))
            .expect("written");
    };
    let writer = world.writer_of_a_log();
    write(5000);
    world.reads(b"past", 5000);
    for record in 0..MANY {
        write(100 + 10 * record);
        assert_eq!(writer.write_at(b"R", record), Ok(1));
        writer.fdatasync().expect("durable");
        assert_eq!(world.in_source(4, 100 + 10 * record as usize), b"past");
    }
    write(6000);
    drop(writer);
    world.reads(b"past", 6000);
    assert_eq!(world.in_source(MANY as usize, 0), [b'R'; MANY as usize]);
}

/// Records alone are no news.
#[test]
fn a_log_without_other_writers_is_never_dropped_from_the_cache() {
    if lacks("fanotify") {
        return;
    }
    let world = World::new();
    let writer = world.writer(10 * MANY);
    assert_eq!(world.read_all(), LEN);
    drop(writer);
    assert_eq!(world.read_all(), LEN);
    assert_eq!(world.fs.stats().invalidations, 0);
}

/// The kernel reports no stores; they are later than our last record.
#[test]
fn stores_through_a_mapping_of_a_log_are_noticed_by_its_modification_time() {
    if lacks("fanotify") {
        return;
    }
    let world = World::new();
    let writer = world.writer_of_a_log();
    world.store(5000);
    world.reads(b"M", 5000);
    drop(writer);

    let world = World::new();
    let writer = world.writer_of_a_log();
    world.store(5000);
    drop(writer);
    world.reads(b"M", 5000);
}

#[test]
fn a_log_has_the_time_of_its_last_record_when_its_last_writer_has_closed() {
    if lacks("fanotify") {
        return;
    }
    let world = World::new();
    let writer = world.writer_of_a_log();
    let other = world.open(OpenFlags::WRITE);
    drop(writer);
    assert_eq!(world.watched(), 1);
    assert_eq!(other.write_at(b"x", 1), Ok(1));
    other.fdatasync().expect("durable");
    let mtime = other.inode().attributes().get().mtime;
    drop(other);
    assert_eq!(world.watched(), 0);
    let shown = fs::metadata(world.path()).expect("it is there");
    assert_eq!(
        (shown.mtime(), shown.mtime_nsec() as u32),
        (mtime.sec, mtime.nsec)
    );
    assert_eq!(world.in_source(1, 1), b"x");
}

#[test]
fn a_file_that_is_made_durable_a_few_times_is_not_watched() {
    let world = World::new();
    for _ in 0..3 {
        // Each writer starts anew.
        let writer = world.writer(3);
        assert_eq!(world.watched(), 0);
        drop(writer);
    }
}
