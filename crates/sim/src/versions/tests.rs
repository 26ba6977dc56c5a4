//! The judge's own tests: the kernel's file systems pass, and damage is found.

use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use super::ledger::Ledger;
use super::place::{Place, Plain};
use super::readers::{Left, Reader, Subjects, look_at_the_source};
use super::writers::Writer;
use super::{FILES, HOT, Kind, VERSION, content, mode, ours, theirs, until_the_end};
use crate::Rng;

/// All files, and their ledger.
fn begin(top: &Path) -> (Plain, Ledger) {
    let ledger = Ledger::open(&top.join("ledger")).expect("a ledger");
    let source = top.join("source");
    fs::create_dir(&source).expect("a directory");
    let place = Plain::new(&source, true);
    let mut writer = Writer {
        place: &place,
        ledger: &ledger,
        rng: Rng::new(1),
    };
    for file in 0..FILES.len() as u64 {
        writer.reset(file).expect("a file");
    }
    (place, ledger)
}

/// A directory of the kernel, on the disk of the build.
fn directory() -> tempfile::TempDir {
    let here = std::env::current_exe().expect("this program");
    let build = here.parent().expect("its folder");
    tempfile::tempdir_in(build).expect("a directory")
}

#[test]
fn readers_of_the_kernels_file_system_find_nothing() {
    let top = directory();
    let (place, ledger) = begin(top.path());
    let end = Instant::now() + Duration::from_secs(1);
    let failures = Mutex::new(Vec::new());
    let work = |step: &mut dyn FnMut() -> Result<(), String>| {
        let failed = until_the_end(&ledger, || Instant::now() < end, step);
        failures.lock().expect("no thread panics").extend(failed);
    };
    thread::scope(|scope| {
        let (work, place, ledger) = (&work, &place, &ledger);
        for number in 0..=HOT {
            let files = if number < HOT { ours(number) } else { theirs() };
            let rng = Rng::new(number);
            let mut writer = Writer { place, ledger, rng };
            scope.spawn(move || work(&mut || writer.step(&files)));
        }
        for (seed, subjects) in [(10, Subjects::All), (11, Subjects::Source)] {
            let mut reader = Reader::new(place, ledger, Rng::new(seed), subjects);
            scope.spawn(move || work(&mut || reader.look()));
        }
    });
    let mut failures = failures.into_inner().expect("no thread panicked");
    failures.extend(look_at_the_source(&place, &ledger, Left::All));
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn damage_is_found() {
    let top = directory();
    let (place, ledger) = begin(top.path());
    let source = top.path().join("source");
    let of_kind = |kind| FILES.iter().position(|subject| subject.kind == kind);
    let file = of_kind(Kind::Replaced).expect("one") as u64;
    let name = FILES[file as usize].name;
    let path = source.join(name);
    let found = || look_at_the_source(&place, &ledger, Left::Synced);
    assert_eq!(found(), Vec::<String>::new());

    let whole = fs::read(&path).expect("it is there");
    for (told, bytes) in [
        (": zeros", vec![0; whole.len()]),
        (": 0 bytes", Vec::new()),
        (
            " bytes; from 0: version 1 of",
            whole[..whole.len() - 1].to_vec(),
        ),
        ("version 2 is not in 1..=1", content(file).bytes(2)),
    ] {
        fs::write(&path, bytes).expect("damage");
        let found = found();
        assert!(
            found.len() == 1 && found[0].contains(told),
            "{told}: {found:?}"
        );
    }
    fs::write(&path, &whole).expect("as it was");
    place.set_mode(name, 0o700).expect("another mode");
    assert!(found()[0].contains("Status"), "{:?}", found());
    place.set_mode(name, mode(1)).expect("as it was");
    place.set_attribute(name, VERSION, b"2").expect("another");
    assert!(found()[0].contains(VERSION), "{:?}", found());
    place
        .set_attribute(name, VERSION, &1u64.to_le_bytes())
        .expect("as it was");
    assert_eq!(found(), Vec::<String>::new());

    fs::remove_file(&path).expect("it was there");
    assert!(found()[0].contains("there is none"), "{:?}", found());

    let log = of_kind(Kind::Log).expect("one");
    let path = source.join(FILES[log].name);
    let record = fs::read(&path).expect("it is there");
    fs::write(&path, &record[..record.len() - 1]).expect("damage");
    assert_eq!(found().len(), 2, "{:?}", found());
}
