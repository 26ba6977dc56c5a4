//! Unit tests of the faulty backend.

use foliocache_mm::{AddressSpaceOperations, IoSegment};
use foliocache_sync::time::Duration;
use foliocache_sync::{Arc, thread};
use foliocache_sys::Errno;

use super::FaultyBackend;
use crate::{Effect, Faults, Lost, OpKind, OpSet, Rule, When};

/// One page of memory, page aligned.
#[repr(align(4096))]
struct Page([u8; 4096]);

fn write(backend: &FaultyBackend, pos: u64, byte: u8, len: usize) -> Result<usize, Errno> {
    let mut page = Box::new(Page([byte; 4096]));
    backend.writepages(pos, &[IoSegment::from_mut(&mut page.0[..len])])
}

fn read(backend: &FaultyBackend, pos: u64) -> Result<Vec<u8>, Errno> {
    let mut page = Box::new(Page([0xee; 4096]));
    let bytes = backend.read_folios(pos, &[IoSegment::from_mut(&mut page.0)])?;
    Ok(page.0[..bytes].to_vec())
}

#[test]
fn reads_see_writes_and_power_cuts_leave_only_flushed_data() {
    let backend = FaultyBackend::new("a", &Faults::new(0));
    assert_eq!(write(&backend, 0, 1, 4096), Ok(4096));
    assert_eq!(write(&backend, 4096, 2, 100), Ok(100));
    assert_eq!(read(&backend, 4096), Ok(vec![2; 100]));
    assert_eq!((backend.durable().size(), backend.unflushed()), (0, 2));
    assert_eq!(backend.flush(), Ok(()));
    assert_eq!((backend.durable().size(), backend.unflushed()), (4196, 0));
    assert_eq!(backend.power_cut(1), backend.live());
    assert_eq!(backend.truncate(50), Ok(()));
    assert_eq!(backend.punch_hole(0, 10), Ok(()));
    assert_eq!(read(&backend, 0), Ok([vec![0; 10], vec![1; 40]].concat()));
    assert_eq!(backend.describe(), "a");
    assert_eq!(backend.broken_contract(), Vec::<String>::new());
    let counts = backend.faults().counts();
    assert_eq!(counts.begun_of(OpSet::WRITE), 2);
    assert_eq!(counts.bytes[OpKind::Write as usize], 4196);
}

#[test]
fn faults_have_their_documented_effects() {
    let faults = Faults::new(0);
    let backend = FaultyBackend::new("a", &faults);
    write(&backend, 0, 1, 4096).expect("no fault yet");

    let id = faults.add(Rule::new(
        OpSet::READ | OpSet::WRITE,
        Effect::Fail(Errno::ENOSPC),
    ));
    assert_eq!(write(&backend, 0, 2, 4096), Err(Errno::ENOSPC));
    assert_eq!(read(&backend, 0), Err(Errno::ENOSPC));
    assert_eq!(backend.flush(), Ok(()));
    faults.remove(id);
    assert_eq!(read(&backend, 0), Ok(vec![1; 4096]));

    let id = faults.add(Rule::new(OpSet::WRITE, Effect::ShortTo(1024)));
    assert_eq!(write(&backend, 0, 2, 4096), Ok(1024));
    faults.remove(id);
    assert_eq!(
        read(&backend, 0),
        Ok([vec![2; 1024], vec![1; 3072]].concat())
    );

    faults.add(Rule::new(OpSet::WRITE, Effect::Torn(Errno::EIO)).times(1));
    assert_eq!(write(&backend, 0, 3, 4096), Err(Errno::EIO));
    let torn = read(&backend, 0).expect("the fault is spent");
    let landed = torn
        .chunks(512)
        .filter(|sector| **sector == [3; 512])
        .count();
    assert!((1..8).contains(&landed), "some sectors land: {landed}");

    faults.add(Rule::new(OpSet::FLUSH, Effect::Lose(Errno::EIO, Lost::DataAndLive)).times(1));
    assert_eq!(backend.flush(), Err(Errno::EIO));
    assert_eq!(read(&backend, 0), Ok(vec![1; 4096]), "the last good flush");
    assert_eq!(backend.flush(), Ok(()));
    assert_eq!(backend.durable(), backend.live());
    assert!(
        faults.trace_text(3).contains("Flush EIO"),
        "{}",
        faults.trace_text(3)
    );
}

#[test]
fn a_flush_covers_only_writes_complete_when_it_began() {
    let faults = Faults::new(0);
    let backend = FaultyBackend::new("a", &faults);
    write(&backend, 0, 1, 4096).expect("no fault yet");
    faults.add(Rule::new(OpSet::FLUSH, Effect::Hang));
    let flushing = Arc::clone(&backend);
    let thread = thread::spawn(move || flushing.flush());
    assert!(faults.wait_hung(1, Duration::from_secs(10)));
    write(&backend, 4096, 2, 4096).expect("no fault on writes");
    assert_eq!(backend.broken_contract(), Vec::<String>::new());
    faults.heal();
    assert_eq!(thread.join().expect("no panic"), Ok(()));
    assert_eq!(backend.durable().size(), 4096);
}

#[test]
fn second_flush_beside_one_breaks_the_contract() {
    let faults = Faults::new(0);
    let backend = FaultyBackend::new("a", &faults);
    faults.add(Rule::new(OpSet::FLUSH, Effect::Hang).times(1));
    let flushing = Arc::clone(&backend);
    let thread = thread::spawn(move || flushing.flush());
    assert!(faults.wait_hung(1, Duration::from_secs(10)));
    assert_eq!(backend.flush(), Ok(()));
    assert_eq!(backend.broken_contract().len(), 1);
    faults.heal();
    assert_eq!(thread.join().expect("no panic"), Ok(()));
}

#[test]
fn failed_flush_loses_concurrent_writes() {
    let faults = Faults::new(0);
    let backend = FaultyBackend::new("a", &faults);
    faults.add(Rule::new(OpSet::FLUSH, Effect::Hang).times(1));
    faults.add(Rule::new(OpSet::FLUSH, Effect::Lose(Errno::EIO, Lost::Data)).times(1));
    let flushing = Arc::clone(&backend);
    let thread = thread::spawn(move || flushing.flush());
    if faults.wait_hung(1, Duration::from_secs(10)) {
        write(&backend, 0, 1, 4096).expect("no fault on writes");
        faults.release(Ok(()));
    }
    assert_eq!(thread.join().expect("no panic"), Err(Errno::EIO));
    assert_eq!(backend.flush(), Ok(()));
    assert_eq!(backend.durable().size(), 0);
}

#[test]
fn odd_pieces_are_told() {
    let backend = FaultyBackend::new("a", &Faults::new(0));
    write(&backend, 512, 1, 100).expect("works all the same");
    assert_eq!(backend.broken_contract().len(), 1);
}

#[test]
fn cuts_are_captured_after_changes() {
    let faults = Faults::new(0);
    let backend = FaultyBackend::new("a", &faults);
    backend.cut_every(2, 7);
    for i in 0..6 {
        write(&backend, i * 4096, 1, 4096).expect("no fault");
        read(&backend, 0).expect("no fault");
    }
    let cuts = backend.take_cuts();
    assert_eq!(
        cuts.iter().map(|cut| cut.seq).collect::<Vec<_>>(),
        [3, 7, 11]
    );
    assert!(cuts.iter().all(|cut| cut.image.size() <= 6 * 4096));
    assert!(backend.take_cuts().is_empty());
}

#[test]
fn a_chance_hits_the_same_operations_again() {
    let run = || {
        let faults = Faults::new(11);
        let backend = FaultyBackend::new("a", &faults);
        let chance = When::Chance { part: 1, whole: 4 };
        faults.add(Rule::new(OpSet::WRITE, Effect::Torn(Errno::EIO)).when(chance));
        for i in 0..40 {
            let _ = write(&backend, (i % 7) * 4096, i as u8 + 1, 4096);
        }
        backend.live()
    };
    assert_eq!(run(), run());
}
