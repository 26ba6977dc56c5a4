//! Pins that their holders give up on request.

use crate::common::{Store, assert_empty, file, pattern, read, storage, write};
use foliocache_mm::{
    AddressSpace, FolioPin, MmError, PAGE_SIZE, PinError, PinEvent, PinMode, ReadaheadState,
    RevokeReason, SlabArc, VmaAccess,
};
use foliocache_sys::Errno;
use std::ops::Range;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

const PAGE: u64 = PAGE_SIZE as u64;
const MIB: u64 = 1 << 20;
/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(50);

/// The place of a pin.
type Slot = Arc<Mutex<Option<FolioPin>>>;

/// A holder: its pin, and the events that it got.
struct Holder {
    slot: Slot,
    events: Receiver<PinEvent>,
}

impl Holder {
    fn next(&self) -> PinEvent {
        self.events.recv_timeout(LONG).expect("an event")
    }

    /// The reason of a request, which is next.
    fn asked(&self) -> RevokeReason {
        match self.next() {
            PinEvent::Revoke { reason, .. } => reason,
            other => panic!("{other:?}"),
        }
    }

    fn may_pin(&self) {
        assert_eq!(self.next(), PinEvent::MayPin);
    }

    fn heard_nothing(&self) {
        let next = self.events.recv_timeout(Duration::from_millis(20));
        // Or its callback is gone.
        let nothing = [RecvTimeoutError::Timeout, RecvTimeoutError::Disconnected].map(Err);
        assert!(nothing.contains(&next), "{next:?}");
    }

    fn give_up(&self) {
        drop(self.slot.lock().unwrap().take().expect("it has the pin"));
    }

    fn has(&self) -> bool {
        self.slot.lock().unwrap().is_some()
    }
}

fn pin(file: &SlabArc<AddressSpace>, bytes: Range<u64>, mode: PinMode) -> FolioPin {
    try_pin(file, bytes, mode).expect("a pin")
}

fn try_pin(
    file: &SlabArc<AddressSpace>,
    bytes: Range<u64>,
    mode: PinMode,
) -> Result<FolioPin, PinError> {
    file.pin(&ReadaheadState::new(), bytes, mode)
}

/// A holder that runs `on` at each event, after noting it.
fn try_holder(
    file: &SlabArc<AddressSpace>,
    bytes: Range<u64>,
    on: impl Fn(PinEvent, &Slot) + Send + Sync + 'static,
) -> Result<Holder, PinError> {
    let slot = Slot::default();
    let place = Arc::downgrade(&slot);
    let (note, events) = mpsc::channel();
    let callback = move |event| {
        let _ = note.send(event);
        if let Some(slot) = Weak::upgrade(&place) {
            on(event, &slot);
        }
    };
    let mut held = slot.lock().unwrap();
    let handle = ReadaheadState::new();
    *held = Some(file.pin_revocable(&handle, bytes, PinMode::WRITE, callback)?);
    drop(held);
    Ok(Holder { slot, events })
}

/// One that gives the pin up in its callback.
fn willing(file: &SlabArc<AddressSpace>, bytes: Range<u64>) -> Holder {
    try_holder(file, bytes, |event, slot| {
        if matches!(event, PinEvent::Revoke { .. }) {
            drop(slot.lock().unwrap().take());
        }
    })
    .expect("a pin")
}

/// One whose callback does nothing.
fn passive(file: &SlabArc<AddressSpace>, bytes: Range<u64>) -> Holder {
    try_holder(file, bytes, |_, _| ()).expect("a pin")
}

#[test]
fn a_truncate_waits_until_the_holder_gave_its_pin_up() {
    let (mm, bdi) = storage(32);
    let all = pattern(1, 0, 1 << 20);
    let store = Store::with(&all);
    let file = file(&bdi, &store);
    mm.set_pin_wait(LONG);
    let holder = passive(&file, 10 * PAGE..20 * PAGE);
    let refused = |bytes: Range<u64>| {
        let new = try_holder(&file, bytes.clone(), |_, _| ());
        let new = new.err().map(|error| error.errno());
        let short = try_pin(&file, bytes, PinMode::READ).err();
        (new, short.map(|error| error.errno()))
    };
    thread::scope(|scope| {
        let truncate = scope.spawn(|| file.truncate(15 * PAGE));
        match holder.next() {
            PinEvent::Revoke { reason, within } => {
                assert_eq!(reason, RevokeReason::Truncate);
                assert!(within <= LONG && within > LONG / 2, "{within:?}");
            }
            other => panic!("{other:?}"),
        }
        // Nobody gets the range anew; the rest of the file is as ever.
        let eagain = Some(Errno::EAGAIN);
        assert_eq!(refused(17 * PAGE..18 * PAGE), (eagain, eagain));
        assert_eq!(refused(0..PAGE), (None, None));
        write(&file, file.size(), b"at the end");
        file.sync().expect("sync");
        thread::sleep(SHORT);
        assert!(!truncate.is_finished());
        holder.heard_nothing();
        holder.give_up();
        truncate.join().expect("no panic").expect("it is given up");
    });
    holder.may_pin();
    assert_eq!(file.size(), 15 * PAGE);
    let holder = willing(&file, 10 * PAGE..15 * PAGE);
    file.truncate(0).expect("it gives the pin up at once");
    assert_eq!(holder.asked(), RevokeReason::Truncate);
    holder.may_pin();
    holder.heard_nothing();
    assert_eq!(file.stats().pinned_pages, 0);
    drop(file);
    assert_empty(&mm);
}

#[test]
fn a_hole_punch_and_a_first_mapping_ask_too_and_only_in_their_range() {
    let (mm, bdi) = storage(64);
    let file = file(&bdi, &Store::with(&pattern(1, 0, 1 << 20)));
    mm.set_pin_wait(LONG);
    // Folios of a page each, so that pins do not share one.
    (0..64)
        .rev()
        .for_each(|page| drop(read(&file, page * PAGE, 1)));
    let (first, second) = (
        willing(&file, 0..2 * PAGE),
        willing(&file, 32 * PAGE..33 * PAGE),
    );
    file.punch_hole(32 * PAGE, PAGE).expect("it is given up");
    assert_eq!(second.asked(), RevokeReason::PunchHole);
    second.may_pin();
    first.heard_nothing();
    assert!(first.has());
    let vma = file.map(0, 1 << 20, VmaAccess::Read).expect("a mapping");
    assert_eq!(first.asked(), RevokeReason::FirstMapping);
    first.may_pin();
    drop(vma);
}

#[test]
fn an_operation_fails_when_the_time_is_over_and_the_holder_may_keep_its_pin() {
    let (mm, bdi) = storage(32);
    let all = pattern(1, 0, 1 << 20);
    let file = file(&bdi, &Store::with(&all));
    mm.set_pin_wait(SHORT);
    let holder = passive(&file, 0..PAGE);
    for _ in 0..2 {
        let start = Instant::now();
        assert_eq!(file.truncate(0), Err(Errno::EBUSY));
        assert!(start.elapsed() >= SHORT);
        assert_eq!(holder.asked(), RevokeReason::Truncate);
        holder.may_pin();
        assert!(read(&file, 0, 1 << 20) == all);
        // The range is nobody's to bar any more.
        drop(pin(&file, 0..PAGE, PinMode::READ));
    }
    holder.give_up();
    file.truncate(0).expect("nobody has it");
    holder.heard_nothing();
}

#[test]
fn all_holders_are_asked_and_none_beside_one_without_a_callback() {
    let (mm, bdi) = storage(32);
    let file = file(&bdi, &Store::with(&pattern(1, 0, 1 << 20)));
    // How long each would wait.
    let wait = Duration::from_secs(3);
    mm.set_pin_wait(wait);
    // Three on the same folio, and one beside them.
    let holders = [
        0..4 * PAGE,
        PAGE..2 * PAGE,
        PAGE..2 * PAGE,
        64 * PAGE..80 * PAGE,
    ];
    let holders = holders.map(|bytes| willing(&file, bytes));
    let other = pin(&file, PAGE..2 * PAGE, PinMode::READ.long_term());
    let start = Instant::now();
    assert_eq!(file.truncate(0), Err(Errno::EBUSY));
    assert_eq!(file.punch_hole(0, MIB), Err(Errno::EBUSY));
    assert!(start.elapsed() < wait);
    holders.iter().for_each(Holder::heard_nothing);
    // One in another part of the range.
    drop(other);
    let other = pin(&file, 200 * PAGE..201 * PAGE, PinMode::READ.long_term());
    assert_eq!(file.truncate(0), Err(Errno::EBUSY));
    holders.iter().for_each(Holder::heard_nothing);
    drop(other);
    // A short one is waited for, and the holders are asked meanwhile.
    mm.set_pin_wait(LONG);
    let short = pin(&file, 0..PAGE, PinMode::READ);
    thread::scope(|scope| {
        let truncate = scope.spawn(|| file.truncate(0));
        for holder in &holders {
            assert_eq!(holder.asked(), RevokeReason::Truncate);
        }
        thread::sleep(SHORT);
        assert!(!truncate.is_finished());
        holders.iter().for_each(Holder::heard_nothing);
        drop(short);
        truncate.join().expect("no panic").expect("all are gone");
    });
    holders.iter().for_each(Holder::may_pin);
}

#[test]
fn a_pin_whose_callback_panicked_is_one_without() {
    let (mm, bdi) = storage(32);
    let file = file(&bdi, &Store::with(&pattern(1, 0, 1 << 20)));
    mm.set_pin_wait(LONG);
    let panics = mm.panics().count();
    let holder = try_holder(&file, 0..PAGE, |_, _| panic!("meant to")).expect("a pin");
    let beside = willing(&file, 512 << 10..MIB);
    let start = Instant::now();
    // It is asked before it is known, and then no longer waited for.
    assert_eq!(file.truncate(0), Err(Errno::EBUSY));
    assert_eq!(file.truncate(0), Err(Errno::EBUSY));
    assert!(start.elapsed() < LONG / 2);
    assert_eq!(holder.asked(), RevokeReason::Truncate);
    holder.heard_nothing();
    assert_eq!(mm.panics().count(), panics + 1);
    // The others are called as before.
    assert_eq!(beside.asked(), RevokeReason::Truncate);
    beside.may_pin();
    holder.give_up();
    let last = willing(&file, 0..PAGE);
    file.truncate(0).expect("it is given up");
    assert_eq!(last.asked(), RevokeReason::Truncate);
    last.may_pin();
}

#[test]
fn a_callback_may_use_the_cache_and_what_it_starts_asks_nobody() {
    let (mm, bdi) = storage(32);
    let file = file(&bdi, &Store::with(&pattern(1, 0, 1 << 20)));
    mm.set_pin_wait(LONG);
    let other = passive(&file, 128 * PAGE..129 * PAGE);
    let same = file.clone();
    let cache = Arc::clone(&mm);
    let holder = try_holder(&file, 0..PAGE, move |event, slot| {
        if event == PinEvent::MayPin {
            return;
        }
        read(&same, 0, 1 << 20);
        write(&same, 64 * PAGE, b"in a callback");
        same.sync().expect("sync");
        // Nobody could be called for these.
        assert_eq!(same.truncate(128 * PAGE), Err(Errno::EBUSY));
        assert_eq!(same.punch_hole(0, PAGE), Err(Errno::EBUSY));
        cache.set_limit(24 << 20).expect("there is room");
        drop(pin(&same, 200 * PAGE..201 * PAGE, PinMode::WRITE));
        drop(slot.lock().unwrap().take());
    })
    .expect("a pin");
    let start = Instant::now();
    file.punch_hole(0, PAGE).expect("it is given up");
    assert!(start.elapsed() < LONG / 2);
    assert_eq!(holder.asked(), RevokeReason::PunchHole);
    holder.may_pin();
    assert_eq!(mm.panics().count(), 0);
    other.heard_nothing();
}

#[test]
fn dropping_a_pin_does_not_wait_for_its_callback() {
    let (mm, bdi) = storage(32);
    let file = file(&bdi, &Store::with(&pattern(1, 0, 1 << 20)));
    mm.set_pin_wait(LONG);
    let (go_on, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let alive = Arc::new(());
    let owned = Arc::clone(&alive);
    let holder = try_holder(&file, 0..PAGE, move |event, _| {
        let _owned = &owned;
        if matches!(event, PinEvent::Revoke { .. }) {
            wait.lock().unwrap().recv_timeout(LONG).expect("told to");
        }
    })
    .expect("a pin");
    // The next one cannot be told while the first is busy.
    let late = passive(&file, 512 << 10..(512 << 10) + PAGE);
    thread::scope(|scope| {
        let truncate = scope.spawn(|| file.truncate(0));
        assert_eq!(holder.asked(), RevokeReason::Truncate);
        holder.give_up();
        late.give_up();
        truncate.join().expect("no panic").expect("all are gone");
        // The cache goes on beside a callback that hangs.
        file.truncate(MIB).expect("larger");
        file.sync().expect("sync");
        let third = passive(&file, 0..PAGE);
        mm.set_pin_wait(SHORT);
        assert_eq!(file.truncate(0), Err(Errno::EBUSY), "nobody can be told");
        go_on.send(()).expect("it waits");
        holder.may_pin();
        // The request was over before its turn came.
        third.heard_nothing();
        third.give_up();
    });
    // It was dropped before its turn came.
    late.heard_nothing();
    let start = Instant::now();
    while Arc::strong_count(&alive) > 1 {
        assert!(start.elapsed() < LONG, "a callback is kept");
        thread::yield_now();
    }
}

/// Three large pins.
#[test]
fn a_smaller_bound_asks_the_oldest_holders_and_no_more_than_it_needs() {
    let (mm, bdi) = storage(64);
    let file = file(&bdi, &Store::with(&pattern(1, 0, 24 << 20)));
    mm.set_pin_wait(LONG);
    let holders = [0, 8, 16].map(|at| willing(&file, at * MIB..(at + 8) * MIB));
    // What is far too small asks nobody.
    let too_small = mm.set_limit(2 << 20);
    assert!(matches!(too_small, Err(MmError::LimitTooSmall { .. })));
    holders.iter().for_each(Holder::heard_nothing);
    mm.set_limit(28 << 20).expect("a pin is given up");
    assert_eq!(holders[0].asked(), RevokeReason::SmallerBound);
    holders[0].may_pin();
    assert!(holders[2].has());
    holders[2].heard_nothing();
    // It need not do without those that keep theirs.
    mm.set_pin_wait(SHORT);
    holders.iter().for_each(|holder| {
        holder.slot.lock().unwrap().take();
    });
    let keeps = passive(&file, 0..MIB);
    let big = passive(&file, 8 * MIB..16 * MIB);
    let start = Instant::now();
    let refused = mm.set_limit(9 << 20);
    assert!(matches!(refused, Err(MmError::LimitTooSmall { .. })));
    assert!(start.elapsed() >= SHORT);
    assert_eq!(big.asked(), RevokeReason::SmallerBound);
    big.may_pin();
    assert_eq!(mm.usage().limit_bytes, 28 << 20, "it stays");
    drop((keeps, big));
}

/// A small pin in each of many blocks.
#[test]
fn a_smaller_bound_asks_the_holders_of_scattered_blocks() {
    let (mm, bdi) = storage(64);
    let file = file(&bdi, &Store::with(&pattern(1, 0, 40 << 20)));
    mm.set_pin_wait(LONG);
    read(&file, 0, 40 << 20);
    let parts = (0..16).map(|at| at * 2 * MIB..at * 2 * MIB + (256 << 10));
    let holders: Vec<_> = parts.map(|bytes| willing(&file, bytes)).collect();
    let before = holders.len();
    mm.set_limit(20 << 20).expect("it is set in any case");
    let kept = holders.iter().filter(|holder| holder.has()).count();
    assert!(kept < before, "none gave way");
    assert!(kept > 0, "more gave way than needed");
    let start = Instant::now();
    while mm.usage().held_bytes > 20 << 20 {
        assert!(start.elapsed() < LONG, "memory is kept");
        thread::sleep(Duration::from_millis(5));
    }
    // In order of age.
    assert!(holders[..before - kept].iter().all(|holder| !holder.has()));
}

#[test]
fn a_pin_beyond_the_share_asks_revocable_ones_which_take_nothing_from_each_other() {
    let (mm, bdi) = storage(32);
    let file = file(&bdi, &Store::with(&pattern(1, 0, 32 << 20)));
    mm.set_pin_wait(LONG);
    let most = mm.stats().unreclaimable.most_pinned_pages * PAGE / (2 * MIB) * 2 * MIB;
    let step = 2 * MIB;
    let holders: Vec<_> = (0..most / step - 1)
        .map(|at| willing(&file, at * step..(at + 1) * step))
        .collect();
    let full = |at: u64| (most + at * step)..(most + (at + 2) * step);
    // A revocable one is refused, as if there were none to ask.
    let refused = try_holder(&file, full(0), |_, _| ()).err().expect("full");
    assert_eq!(refused.errno(), Errno::ENOBUFS);
    holders.iter().for_each(Holder::heard_nothing);
    // One without a callback has the oldest given up.
    let pinned = pin(&file, full(0), PinMode::READ.long_term());
    assert_eq!(holders[0].asked(), RevokeReason::Budget);
    holders[0].may_pin();
    assert!(holders.last().expect("several").has());
    // Those that do not give way are asked in vain.
    drop((pinned, holders));
    mm.set_pin_wait(SHORT);
    let stays: Vec<_> = (0..most / step - 1)
        .map(|at| passive(&file, at * step..(at + 1) * step))
        .collect();
    thread::scope(|scope| {
        let asking = scope.spawn(|| try_pin(&file, full(0), PinMode::READ).map(drop));
        assert_eq!(stays[0].asked(), RevokeReason::Budget);
        // No new revocable ones meanwhile; others within the share come and go.
        let new = try_holder(&file, 0..PAGE, |_, _| ()).err().expect("barred");
        assert_eq!(new.errno(), Errno::EAGAIN);
        drop(pin(&file, 0..PAGE, PinMode::READ));
        let refused = asking.join().expect("no panic").expect_err("full");
        assert_eq!(refused.errno(), Errno::ENOBUFS);
    });
    stays[0].may_pin();
    drop(try_holder(&file, 0..PAGE, |_, _| ()).expect("no longer barred"));
    drop(stays);
    file.sync().expect("sync");
    drop(file);
    assert_empty(&mm);
}

/// Reads go through twice the memory while a callback hangs, and a pin is waited for.
#[test]
fn reclaim_does_not_wait_for_a_callback() {
    let (mm, bdi) = storage(32);
    let first = file(&bdi, &Store::with(&pattern(1, 0, 1 << 20)));
    let other = file(&bdi, &Store::with(&pattern(2, 0, 64 << 20)));
    mm.set_pin_wait(LONG);
    let (go_on, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let holder = try_holder(&first, 0..PAGE, move |event, slot| {
        if matches!(event, PinEvent::Revoke { .. }) {
            wait.lock().unwrap().recv_timeout(LONG).expect("told to");
            drop(slot.lock().unwrap().take());
        }
    })
    .expect("a pin");
    thread::scope(|scope| {
        let truncate = scope.spawn(|| first.truncate(0));
        assert_eq!(holder.asked(), RevokeReason::Truncate);
        for at in 0..64 {
            read(&other, at * MIB, 1 << 20);
            write(&other, at * MIB, &[1; 100]);
        }
        other.sync().expect("sync");
        go_on.send(()).expect("it waits");
        truncate.join().expect("no panic").expect("it is given up");
    });
    holder.may_pin();
}

#[test]
fn a_pin_that_is_refused_leaves_no_holder() {
    let (mm, bdi) = storage(32);
    let file = file(&bdi, &Store::with(&pattern(1, 0, 1 << 20)));
    mm.set_pin_wait(LONG);
    let alive = Arc::new(());
    for (start, end) in [(0, 0), (9, 3), (0, MIB + 1), (u64::MAX - 1, u64::MAX)] {
        let bytes = start..end;
        let owned = Arc::clone(&alive);
        let refused = try_holder(&file, bytes, move |_, _| drop(Arc::clone(&owned)));
        let error = refused.err().expect("not in the file");
        assert_eq!(error.errno(), Errno::EINVAL);
    }
    assert_eq!(Arc::strong_count(&alive), 1);
    file.truncate(0).expect("nobody has it");
}

/// Holders that pin again whenever they may, against truncates and drops of their own accord.
#[test]
fn requests_and_answers_alternate_whatever_the_holder_does() {
    let (mm, bdi) = storage(32);
    let file = file(&bdi, &Store::with(&pattern(1, 0, 1 << 20)));
    mm.set_pin_wait(LONG);
    thread::scope(|scope| {
        for part in 0..3 {
            let file = &file;
            scope.spawn(move || {
                let bytes = part * 16 * PAGE..(part * 16 + 8) * PAGE;
                for round in 0..200 {
                    let held = match part {
                        0 => try_holder(file, bytes.clone(), |_, _| ()),
                        _ => try_holder(file, bytes.clone(), |event, slot| {
                            if matches!(event, PinEvent::Revoke { .. }) {
                                drop(slot.lock().unwrap().take());
                            }
                        }),
                    };
                    let holder = match held {
                        Ok(holder) => holder,
                        Err(error) => {
                            let expected = [Errno::EAGAIN, Errno::EINVAL];
                            assert!(expected.contains(&error.errno()), "{error}");
                            thread::yield_now();
                            continue;
                        }
                    };
                    if round % 3 > 0 {
                        thread::sleep(Duration::from_micros(50));
                    }
                    drop(holder.slot.lock().unwrap().take());
                    // Its callback ends with the last event that is due to it.
                    let events: Vec<_> = holder.events.iter().collect();
                    for (at, event) in events.iter().enumerate() {
                        let is_request = matches!(event, PinEvent::Revoke { .. });
                        assert_eq!(is_request, at % 2 == 0, "{events:?}");
                    }
                    assert_eq!(events.len() % 2, 0, "it waits for ever: {events:?}");
                }
            });
        }
        scope.spawn(|| {
            for at in 0..300 {
                file.truncate(at % 3 * 20 * PAGE)
                    .expect("all give their pins up");
                file.truncate(MIB).expect("larger");
            }
        });
    });
    assert_eq!(file.stats().pinned_pages, 0);
    assert_eq!(mm.panics().count(), 0);
    file.sync().expect("sync");
    drop(file);
    assert_empty(&mm);
}
