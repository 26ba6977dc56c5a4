//! Pins under random schedules, against what would write, move or take what is pinned: devices write to memory that is
//! the file's, and what they wrote is not lost.
//!
//! Mutations of `pin/bar.rs` that `pins_against_truncate_against_reclaim` finds: a pin that does not look for bars,
//! and a truncate that does not wait for short pins.
//!
//! # Safety
//!
//! A device touches the memory of its pin, as volatile accesses.
#![allow(unsafe_code)]

use crate::yielding_store::{Machine, Store, join, read, spawn, write};
use foliocache_mm::{
    AddressSpace, FolioPin, PAGE_SIZE, PinError, PinEvent, PinMode, ReadaheadState, SlabArc,
};
use foliocache_sync::model::sample;
use foliocache_sync::{Arc, Mutex, thread};
use foliocache_sys::Errno;
use shuttle::rand::Rng;
use std::ops::Range;

const PAGE: u64 = PAGE_SIZE as u64;

/// A pin, tried for as long as somebody waits for those there are; `None` if the range is not in the file.
fn pin(file: &SlabArc<AddressSpace>, bytes: Range<u64>, mode: PinMode) -> Option<FolioPin> {
    loop {
        match file.pin(&ReadaheadState::new(), bytes.clone(), mode) {
            Ok(pin) => return Some(pin),
            Err(PinError::Barred) => thread::yield_now(),
            Err(PinError::Failed(Errno::EINVAL)) => return None,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Has a device fill all parts, and look whether they stay what it wrote.
fn device(pin: &FolioPin, byte: u8) {
    let parts: Vec<_> = pin.parts().collect();
    for part in &parts {
        for at in (0..part.len).step_by(512) {
            // SAFETY: see the module's header.
            unsafe { part.addr.wrapping_add(at).write_volatile(byte) };
            // A device takes its time.
            (0..16).for_each(|_| thread::yield_now());
        }
    }
    assert_eq!(parts, pin.parts().collect::<Vec<_>>(), "it moved");
    for part in parts {
        for at in (0..part.len).step_by(512) {
            // SAFETY: see the module's header.
            let found = unsafe { part.addr.wrapping_add(at).read_volatile() };
            assert_eq!(found, byte, "the memory is somebody else's");
        }
    }
}

/// Lets others run, for a time that the schedule's own source of chance chooses.
fn pause() {
    for _ in 0..shuttle::rand::thread_rng().gen_range(0..600) {
        thread::yield_now();
    }
}

/// The bytes that devices write.
fn device_bytes(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().step_by(512).copied().collect()
}

/// A device writes while the file is synced, and its clean pages are dropped.
#[test]
fn unpin_against_writeback_against_reclaim() {
    sample(2000, || {
        let machine = Machine::new(|_| ());
        let store = Store::new(vec![b'a'; PAGE_SIZE]);
        let file = machine.file(&store);
        let threads = [
            spawn(&file, |file| {
                for byte in [b'b', b'c'] {
                    let pin = pin(file, 0..PAGE, PinMode::WRITE).expect("in the file");
                    device(&pin, byte);
                }
                let read = device_bytes(&read(file, 0, PAGE_SIZE));
                assert_eq!(read, [b'c'; 8], "it is lost");
            }),
            spawn(&file, |file| (0..4).for_each(|_| file.sync().unwrap())),
            spawn(&file, |file| {
                for _ in 0..8 {
                    file.sync().unwrap();
                    file.invalidate(0, PAGE);
                }
            }),
        ];
        join(threads);
        let read = device_bytes(&read(&file, 0, PAGE_SIZE));
        assert_eq!(read, [b'c'; 8], "it is lost");
        machine.end(vec![(file, store)]);
    });
}

/// The file is cut before what is pinned, and others use the memory that becomes free.
#[test]
fn pins_against_truncate_against_reclaim() {
    sample(2000, || {
        let machine = Machine::new(|_| ());
        let (store, others) = (
            Store::new(vec![b'a'; 2 * PAGE_SIZE]),
            Store::new(vec![b'o'; 4 * PAGE_SIZE]),
        );
        let (file, other) = (machine.file(&store), machine.file(&others));
        let left = machine.leave(5);
        let threads = [
            spawn(&file, |file| {
                for _ in 0..3 {
                    if let Some(pin) = pin(file, PAGE..2 * PAGE, PinMode::WRITE) {
                        device(&pin, b'd');
                        let read = device_bytes(&read(file, PAGE, PAGE_SIZE));
                        assert_eq!(read, [b'd'; 8], "cut off under a pin");
                    }
                }
            }),
            spawn(&file, |file| {
                for _ in 0..3 {
                    // The first pin takes longer to come than a truncate.
                    pause();
                    file.truncate(PAGE).unwrap();
                    assert_eq!(file.pinned(), [], "nobody has what is gone");
                    file.truncate(2 * PAGE).unwrap();
                }
            }),
            spawn(&other, |other| {
                for page in 0..4 {
                    let read = read(other, page * PAGE, PAGE_SIZE);
                    assert!(
                        read.iter().all(|&byte| byte == b'o'),
                        "a device wrote to it"
                    );
                }
            }),
        ];
        join(threads);
        let bytes = device_bytes(&read(&file, PAGE, PAGE_SIZE));
        assert!(
            [[0; 8], [b'd'; 8]].iter().any(|all| bytes == all),
            "{bytes:?}"
        );
        drop(left);
        machine.end(vec![(file, store), (other, others)]);
    });
}

/// A page of a large folio is pinned that is cut, written and moved.
#[test]
fn pins_against_split_against_migration() {
    sample(1000, || {
        let machine = Machine::new(|_| ());
        let store = Store::new(Vec::new());
        let file = machine.file(&store);
        write(&file, 0, 8 * PAGE_SIZE, b'a');
        let mm = Arc::clone(&machine.mm);
        let threads = [
            spawn(&file, |file| {
                let pin = pin(file, 3 * PAGE..4 * PAGE, PinMode::WRITE).expect("in the file");
                device(&pin, b'd');
            }),
            spawn(&file, |file| {
                // It is split for that, and moved, unless it is pinned as a whole.
                let mode = PinMode::READ.long_term();
                let pin = pin(file, PAGE..2 * PAGE, mode).expect("in the file");
                let parts: Vec<_> = pin.parts().collect();
                (0..64).for_each(|_| thread::yield_now());
                assert_eq!(parts, pin.parts().collect::<Vec<_>>(), "it moved");
            }),
            spawn(&file, |file| {
                while file.punch_hole(5 * PAGE, PAGE) == Err(Errno::EBUSY) {
                    thread::yield_now();
                }
            }),
            spawn(&file, |file| {
                write(file, 7 * PAGE, PAGE_SIZE, b'w');
                file.sync().unwrap();
            }),
            thread::spawn(move || {
                let _ = mm.set_limit(3 << 20);
            }),
        ];
        join(threads);
        let bytes = read(&file, 0, 8 * PAGE_SIZE);
        let page = |page: usize| &bytes[page * PAGE_SIZE..(page + 1) * PAGE_SIZE];
        assert!(page(1).iter().all(|&byte| byte == b'a'));
        assert_eq!(device_bytes(page(3)), [b'd'; 8]);
        assert!(page(5).iter().all(|&byte| byte == 0));
        assert!(page(7).iter().all(|&byte| byte == b'w'));
        machine.end(vec![(file, store)]);
    });
}

/// A page is cut off again and again under holders that give it up when they are asked, or by themselves, and beside short
/// pins. No truncate fails, and each holder that was asked is told of the end.
#[test]
fn revoke_against_unpin_against_pin_against_truncate() {
    const TRUNCATES: usize = 2;
    sample(1000, || {
        let machine = Machine::new(|_| ());
        let store = Store::new(vec![b'a'; 2 * PAGE_SIZE]);
        let file = machine.file(&store);
        let holder = |itself: bool| {
            move |file: &SlabArc<AddressSpace>| {
                for _ in 0..2 {
                    let slot = Arc::new(Mutex::new(None::<FolioPin>));
                    let heard = Arc::new(Mutex::new(Vec::new()));
                    let (place, note) = (Arc::clone(&slot), Arc::clone(&heard));
                    let on = move |event| {
                        note.lock().push(event);
                        if !itself && event != PinEvent::MayPin {
                            let pin = place.lock().take();
                            thread::yield_now();
                            drop(pin);
                        }
                    };
                    let on = Arc::new(on);
                    loop {
                        let call = Arc::clone(&on);
                        let mut slot = slot.lock();
                        let handle = ReadaheadState::new();
                        let bytes = PAGE..2 * PAGE;
                        let callback = move |event| call(event);
                        match file.pin_revocable(&handle, bytes, PinMode::WRITE, callback) {
                            Ok(pin) => break *slot = Some(pin),
                            Err(PinError::Barred | PinError::Failed(Errno::EINVAL)) => {}
                            Err(error) => panic!("{error}"),
                        }
                        drop(slot);
                        thread::yield_now();
                    }
                    if let Some(pin) = &*slot.lock() {
                        device(pin, b'd');
                        let read = device_bytes(&read(file, PAGE, PAGE_SIZE));
                        assert_eq!(read, [b'd'; 8], "cut off under a pin");
                    }
                    // By itself, or since nobody will ask.
                    drop(slot.lock().take());
                    // The callback is gone when nothing more is due to it.
                    while Arc::strong_count(&on) > 1 {
                        thread::yield_now();
                    }
                    let heard = heard.lock();
                    for (at, event) in heard.iter().enumerate() {
                        assert_eq!(at % 2 == 1, *event == PinEvent::MayPin, "{heard:?}");
                    }
                    assert_eq!(heard.len() % 2, 0, "it waits for ever: {heard:?}");
                }
            }
        };
        let threads = [
            spawn(&file, holder(true)),
            spawn(&file, holder(false)),
            spawn(&file, |file| {
                if let Some(pin) = pin(file, PAGE..2 * PAGE, PinMode::READ) {
                    let parts: Vec<_> = pin.parts().collect();
                    thread::yield_now();
                    assert_eq!(parts, pin.parts().collect::<Vec<_>>(), "it moved");
                }
            }),
            spawn(&file, |file| {
                for _ in 0..TRUNCATES {
                    pause();
                    file.truncate(PAGE).expect("all give way");
                    assert_eq!(file.pinned(), [], "nobody has what is gone");
                    file.truncate(2 * PAGE).unwrap();
                }
            }),
        ];
        join(threads);
        machine.end(vec![(file, store)]);
    });
}
