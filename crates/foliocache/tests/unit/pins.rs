//! Pinned bytes through the handles of this crate.
//!
//! # Safety
//!
//! Memory is stored to through pins for that, to which no reference exists.
#![allow(unsafe_code)]

use crate::common::{Disk, is_alone, run_alone};
use foliocache::{Errno, Error, FolioPin, MapAccess, PinError, PinEvent, PinMode, RevokeReason};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

const PAGE: u64 = 4096;

fn fill(pin: &FolioPin, byte: u8) {
    for part in pin.parts() {
        for at in 0..part.len {
            // SAFETY: see the module's header.
            unsafe { part.addr.wrapping_add(at).write_volatile(byte) };
        }
    }
}

#[test]
fn bytes_stored_through_a_pin_reach_the_file_and_the_source() {
    let disk = Disk::new(32);
    let file = disk.dir.create("f").unwrap();
    file.set_len(4 * PAGE).unwrap();
    let before = file.metadata().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    let pin = file.pin(PAGE..3 * PAGE, PinMode::WRITE).unwrap();
    assert_eq!((pin.range(), pin.mode()), (PAGE..3 * PAGE, PinMode::WRITE));
    let holder = &file.pinned().unwrap()[0];
    assert_eq!((holder.short_pins, holder.device_writes), (1, 1));
    // It may end on another thread.
    std::thread::spawn(move || fill(&pin, b'd')).join().unwrap();
    let mut bytes = [0; 4 * PAGE as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let zeros = [0; PAGE as usize];
    let device = [b'd'; 2 * PAGE as usize];
    assert!(bytes == [&zeros[..], &device, &zeros].concat()[..]);
    file.sync_data().unwrap();
    assert!(std::fs::read(disk.in_source("f")).unwrap() == bytes);
    let after = file.metadata().unwrap();
    assert!(after.modified().unwrap() > before.modified().unwrap());
    assert_eq!(disk.cache.pinned().unwrap(), []);
}

#[test]
fn an_ebusy_error_names_the_blocking_pin() {
    let disk = Disk::new(32);
    let file = disk.dir.create("named").unwrap();
    file.set_len(16 * PAGE).unwrap();
    let pin = file
        .pin(8 * PAGE..9 * PAGE, PinMode::READ.long_term())
        .unwrap();
    let refused = [
        file.set_len(0).unwrap_err(),
        file.punch_hole(8 * PAGE, 1).unwrap_err(),
    ];
    for error in refused {
        assert_eq!(error.errno(), Errno::EBUSY);
        let told = error.to_string();
        for word in ["named", "long-term", "reads", "bytes 32768..36864"] {
            assert!(told.contains(word), "{told}");
        }
        let Error::Pinned { pins, .. } = error else {
            panic!("{error:?}");
        };
        assert_eq!(pins[0].bytes, 8 * PAGE..9 * PAGE);
    }
    match file.map(.., MapAccess::Read) {
        Err(error) if error.errno() == Errno::EBUSY => {
            let told = error.to_string();
            assert!(
                told.contains("long-term") && told.contains("named"),
                "{told}"
            );
        }
        Err(error) => eprintln!("SKIPPED in part: {error}"),
        Ok(_) => panic!("it is pinned"),
    }
    file.punch_hole(0, 8 * PAGE).unwrap();
    file.set_len(9 * PAGE).unwrap();
    drop(pin);
    file.set_len(0).unwrap();
}

#[test]
fn handles_pin_only_with_their_access_mode() {
    let disk = Disk::new(32);
    disk.dir
        .create("f")
        .unwrap()
        .write_all_at(b"text", 0)
        .unwrap();
    let errno = |file: &foliocache::File, mode| match file.pin(.., mode) {
        Ok(_) => None,
        Err(error) => Some(error.errno()),
    };
    let reads = disk.dir.open("f").unwrap();
    assert_eq!(errno(&reads, PinMode::READ), None);
    assert_eq!(errno(&reads, PinMode::WRITE), Some(Errno::EBADF));
    let beyond = reads.pin(0..5, PinMode::READ).unwrap_err();
    assert_eq!(beyond.errno(), Errno::EINVAL);
    let both = disk.dir.create("empty").unwrap();
    assert_eq!(
        errno(&both, PinMode::WRITE),
        Some(Errno::EINVAL),
        "no bytes"
    );
}

#[test]
fn a_pin_beyond_the_share_is_enobufs_and_names_the_holders() {
    let disk = Disk::new(32);
    let file = disk.dir.create("arena").unwrap();
    file.set_len(64 << 20).unwrap();
    let held = file.pin(0..8 << 20, PinMode::READ.long_term()).unwrap();
    let error = file.pin(8 << 20..40 << 20, PinMode::READ).unwrap_err();
    assert_eq!(error.errno(), Errno::ENOBUFS);
    assert!(error.to_string().contains("arena"), "{error}");
    let Error::Pin {
        cause: PinError::TooMuch { holders, .. },
        ..
    } = error
    else {
        panic!("{error:?}");
    };
    assert!(holders.iter().any(|holder| holder.long_pins > 0));
    assert_eq!(file.pinned().unwrap().len(), 1, "the failed call has none");
    drop(held);
}

#[test]
fn a_pin_outlives_its_handle_and_its_name() {
    let disk = Disk::new(32);
    let memory = disk.cache.memfs().unwrap();
    for dir in [&disk.dir, &memory] {
        let file = dir.create("gone").unwrap();
        file.write_all_at(&[b'a'; 2 * PAGE as usize], 0).unwrap();
        let pin = file.pin(.., PinMode::WRITE.long_term()).unwrap();
        let parts: Vec<_> = pin.parts().collect();
        drop(file);
        // By the same name it is the same file.
        let again = dir.open("gone").unwrap();
        fill(&pin, b'b');
        let mut bytes = [0; 2 * PAGE as usize];
        again.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes.iter().all(|&byte| byte == b'b'));
        drop(again);
        dir.remove_file("gone").unwrap();
        // Others take the memory that is free.
        let other = dir.create("other").unwrap();
        other.write_all_at(&vec![b'o'; 4 << 20], 0).unwrap();
        fill(&pin, b'c');
        assert_eq!(pin.parts().collect::<Vec<_>>(), parts);
        let mut bytes = vec![0; 4 << 20];
        other.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes.iter().all(|&byte| byte == b'o'));
        drop(pin);
        dir.remove_file("other").unwrap();
    }
    assert_eq!(disk.cache.pinned().unwrap(), []);
    disk.cache.clone().close().unwrap();
}

#[test]
fn pins_that_are_left_when_the_cache_goes_are_logged() {
    let said = run_alone("pins::a_pin_that_outlives_its_cache");
    let told = said.lines().find(|line| line.contains("pinned still"));
    let told = told.unwrap_or_else(|| panic!("{said}"));
    for word in ["leaked", "long-term", "writes", "bytes "] {
        assert!(told.contains(word), "{told}");
    }
}

#[test]
fn a_pin_that_outlives_its_cache() {
    if is_alone() {
        tracing_subscriber::fmt().with_ansi(false).init();
    }
    let disk = Disk::new(32);
    let file = disk.dir.create("leaked").unwrap();
    file.set_len(8 * PAGE).unwrap();
    let mode = PinMode::WRITE.long_term();
    let pin = file.pin(PAGE..2 * PAGE, mode).unwrap();
    let leaks = disk.cache.pinned().unwrap();
    assert_eq!(leaks.len(), 1);
    assert!(leaks[0].file.ends_with("leaked") && leaks[0].bytes.contains(&PAGE));
    assert_eq!((leaks[0].long_pins, leaks[0].device_writes), (1, 1));
    // It goes on working.
    drop((file, disk));
    fill(&pin, b'x');
}

#[test]
fn a_revocable_pin_is_given_up_for_others_and_taken_again() {
    let disk = Disk::new(32);
    let file = disk.dir.create("arena").unwrap();
    file.set_len(4 * PAGE).unwrap();
    let slot = Arc::new(Mutex::new(None::<FolioPin>));
    let (tell, events) = mpsc::channel();
    let pin_again = |range: std::ops::Range<u64>| {
        let (place, tell) = (Arc::downgrade(&slot), tell.clone());
        let callback = move |event| {
            if matches!(event, PinEvent::Revoke { .. })
                && let Some(place) = place.upgrade()
            {
                // Dropping the last handle of the file's inode here is allowed, too.
                drop(place.lock().unwrap().take());
            }
            let _ = tell.send(event);
        };
        let mut slot = slot.lock().unwrap();
        let pin = file
            .pin_revocable(range.clone(), PinMode::WRITE, callback)
            .unwrap();
        assert!(pin.mode().long_term);
        fill(&pin, b'd');
        *slot = Some(pin);
    };
    pin_again(0..4 * PAGE);
    let other = disk.dir.open_options().write(true).open("arena").unwrap();
    other.set_len(2 * PAGE).unwrap();
    let next = || events.recv_timeout(Duration::from_secs(60)).unwrap();
    match next() {
        PinEvent::Revoke { reason, within } => {
            assert_eq!(reason, RevokeReason::Truncate);
            assert!(within <= Duration::from_secs(1), "{within:?}");
        }
        event => panic!("{event:?}"),
    }
    assert_eq!(next(), PinEvent::MayPin);
    pin_again(0..2 * PAGE);
    other.punch_hole(0, PAGE).unwrap();
    let revoked = next();
    assert!(
        matches!(
            revoked,
            PinEvent::Revoke {
                reason: RevokeReason::PunchHole,
                ..
            }
        ),
        "{revoked:?}"
    );
    assert_eq!(next(), PinEvent::MayPin);
    file.sync_data().unwrap();
    let bytes = std::fs::read(disk.in_source("arena")).unwrap();
    let (hole, kept) = ([0; PAGE as usize], [b'd'; PAGE as usize]);
    assert!(bytes == [hole, kept].concat());
    // Beside a pin without a callback the error names what is in the way, and nobody is asked.
    pin_again(0..2 * PAGE);
    let long = file.pin(0..1, PinMode::READ.long_term()).unwrap();
    let error = other.set_len(0).unwrap_err();
    assert!(matches!(error, Error::Pinned { .. }), "{error}");
    drop(long);
    let reads = disk.dir.open("arena").unwrap();
    let refused = reads.pin_revocable(.., PinMode::WRITE, |_| ()).unwrap_err();
    assert_eq!(refused.errno(), Errno::EBADF);
    drop(slot.lock().unwrap().take());
    assert!(events.try_recv().is_err(), "nobody was asked");
    assert_eq!(disk.cache.pinned().unwrap(), []);
}

#[test]
fn a_smaller_bound_has_revocable_pins_given_up() {
    let disk = Disk::new(64);
    let file = disk.dir.create("arena").unwrap();
    file.set_len(24 << 20).unwrap();
    let slot = Arc::new(Mutex::new(None::<FolioPin>));
    let place = Arc::downgrade(&slot);
    let callback = move |event| {
        if matches!(
            event,
            PinEvent::Revoke {
                reason: RevokeReason::SmallerBound,
                ..
            }
        ) && let Some(place) = place.upgrade()
        {
            drop(place.lock().unwrap().take());
        }
    };
    *slot.lock().unwrap() = Some(file.pin_revocable(.., PinMode::READ, callback).unwrap());
    disk.cache.set_memory("20M").unwrap();
    assert!(slot.lock().unwrap().is_none());
}
