//! Threads replace, append to, rewrite and remake files through the library, and others do so in the source, while
//! threads read them: a reader sees one version, whole ([`versions`](foliocache_sim::versions)).
//!
//! Each way to write back at a close, in 16 MiB and in more. `FOLIOCACHE_STRESS` is the number of seconds, at least 6.
//! `FOLIOCACHE_SEED` has the threads choose other files.

use crate::common::on_disk;
use foliocache::{
    DirEntry, Directory, DirectoryOptions, File, Metadata, Permissions, RenameMode,
    WritebackAtClose,
};
use foliocache_sim::Rng;
use foliocache_sim::versions::ledger::Ledger;
use foliocache_sim::versions::place::{How, Place, Plain, Status, can_have_capabilities};
use foliocache_sim::versions::readers::{Left, Reader, Subjects, look_at_the_source};
use foliocache_sim::versions::writers::Writer;
use foliocache_sim::versions::{FILES, HOT, ours, theirs, until_the_end};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |n| n.parse().expect("a number"))
}

struct Library(Directory);

fn status(metadata: &Metadata) -> Status {
    Status {
        len: metadata.len(),
        mode: metadata.mode() & 0o7777,
    }
}

impl Place for Library {
    type File = File;

    fn open(&self, name: &str, how: How) -> io::Result<File> {
        let mut options = self.0.open_options();
        match how {
            How::Read => options.read(true),
            How::New => options.write(true).create_new(true),
            How::Truncate => options.write(true).truncate(true),
            How::Append => options.append(true),
        };
        Ok(options.open(name)?)
    }

    fn read_at(&self, file: &File, bytes: &mut [u8], pos: u64) -> io::Result<usize> {
        Ok(file.read_at(bytes, pos)?)
    }

    fn write(&self, mut file: &File, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        Ok(file.sync_all()?)
    }

    fn close(&self, file: File) -> io::Result<()> {
        drop(file);
        Ok(())
    }

    fn status(&self, file: &File) -> io::Result<Status> {
        Ok(status(&file.metadata()?))
    }

    fn status_of(&self, name: &str) -> io::Result<Status> {
        Ok(status(&self.0.metadata(name)?))
    }

    fn attribute(&self, file: &File, attribute: &str) -> io::Result<Option<Vec<u8>>> {
        Ok(file.get_xattr(attribute)?)
    }

    fn set_attribute(&self, name: &str, attribute: &str, value: &[u8]) -> io::Result<()> {
        Ok(self.0.set_xattr(name, attribute, value)?)
    }

    fn set_mode(&self, name: &str, mode: u32) -> io::Result<()> {
        let permissions = Permissions::from_mode(mode);
        Ok(self.0.set_permissions(name, permissions)?)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(self.0.rename(from, to)?)
    }

    fn exchange(&self, a: &str, b: &str) -> io::Result<()> {
        Ok(self.0.rename_with(a, b, RenameMode::Exchange)?)
    }

    fn link(&self, existing: &str, new: &str) -> io::Result<()> {
        Ok(self.0.hard_link(existing, new)?)
    }

    fn unlink(&self, name: &str) -> io::Result<()> {
        Ok(self.0.remove_file(name)?)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let name = |entry: DirEntry| entry.file_name().to_string_lossy().into_owned();
        let entries = self.0.read_dir(".")?;
        Ok(entries
            .map(|entry| entry.map(name))
            .collect::<foliocache::Result<_>>()?)
    }

    fn mapped(&self, _: &File, _: usize) -> io::Result<Option<Vec<u8>>> {
        Ok(None)
    }
}

/// Works for `time`. Returns the errors.
fn play(when: WritebackAtClose, mib: u64, time: Duration, seed: u64) -> Vec<String> {
    let (top, source) = (on_disk(), on_disk());
    let ledger = Ledger::open(&top.path().join("ledger")).expect("a ledger");
    ledger.set_capabilities(can_have_capabilities(source.path()).expect("a file"));
    let beside = Plain::new(source.path(), true);
    let rng = |worker| Rng::new(seed.wrapping_mul(100) + worker);
    let writer = |worker| Writer {
        place: &beside,
        ledger: &ledger,
        rng: rng(worker),
    };
    for file in 0..FILES.len() as u64 {
        writer(0).reset(file).expect("files to begin with");
    }
    let cache = crate::common::cache(mib);
    let options = DirectoryOptions::new().writeback_at_close(when);
    let dir = cache.directory_with(source.path(), options);
    let library = Library(dir.expect("a directory"));
    let failures = Mutex::new(Vec::new());
    let end = Instant::now() + time;
    let goes_on = || Instant::now() < end;
    let work = |step: &mut dyn FnMut() -> Result<(), String>| {
        let failed = until_the_end(&ledger, goes_on, step);
        failures.lock().unwrap().extend(failed);
    };
    thread::scope(|scope| {
        let (work, rng, library, ledger) = (&work, &rng, &library, &ledger);
        for number in 0..HOT {
            scope.spawn(move || {
                let (place, rng) = (library, rng(number));
                let mut writer = Writer { place, ledger, rng };
                let files = ours(number);
                work(&mut || writer.step(&files));
            });
        }
        scope.spawn(|| {
            let (mut writer, files) = (writer(HOT), theirs());
            work(&mut || writer.step_and_pause(&files));
        });
        for worker in 3..6 {
            scope.spawn(move || {
                let mut reader = Reader::new(library, ledger, rng(worker), Subjects::All);
                work(&mut || reader.look());
            });
        }
        scope.spawn(|| {
            let mut reader = Reader::new(&beside, ledger, rng(6), Subjects::Source);
            work(&mut || reader.look());
        });
    });
    let mut failures = failures.into_inner().unwrap();
    if failures.is_empty() {
        drop(library);
        cache.close().expect("everything is written back");
        failures = look_at_the_source(&beside, &ledger, Left::All);
    }
    let looks = ledger.looks().0;
    println!("{when:?}, {mib} MiB: {looks} looks, {failures:#?}");
    failures
}

fn run(when: WritebackAtClose) {
    let seconds = number("FOLIOCACHE_STRESS", 1).max(6);
    let seed = number("FOLIOCACHE_SEED", 0);
    for mib in [16, 64] {
        let failures = play(when, mib, Duration::from_secs(seconds) / 6, seed);
        assert!(failures.is_empty(), "{when:?}, {mib} MiB: {failures:#?}");
    }
}

#[test]
fn readers_see_whole_versions_where_closed_files_are_written_soon() {
    run(WritebackAtClose::Begin);
}

#[test]
fn readers_see_whole_versions_where_a_close_waits() {
    run(WritebackAtClose::Wait);
}

#[test]
fn readers_see_whole_versions_where_write_back_is_late() {
    run(WritebackAtClose::Delayed);
}
