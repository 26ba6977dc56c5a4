//! Rings of the program's own that read into pinned folios and write from them, on a real disk.
//!
//! # Safety
//!
//! A ring is handed addresses of pinned memory. Its requests have ended, and buffers are no longer registered, when
//! the pins are dropped.
#![allow(unsafe_code)]

#[path = "../../examples/pin_revocable.rs"]
mod pin_revocable;

use crate::common::{Disk, on_disk, pattern};
use foliocache::{FolioPin, PinMode};
use io_uring::{IoUring, opcode, squeue, types};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const MIB: usize = 1 << 20;
const DEPTH: usize = 64;
const CHUNK: usize = 64 << 10;

fn direct(path: &Path) -> Option<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(libc::O_DIRECT)
        .open(path);
    file.inspect_err(|error| eprintln!("SKIPPED: no direct I/O here: {error}"))
        .ok()
}

fn ring() -> Option<IoUring> {
    let ring = IoUring::new(DEPTH as u32);
    ring.inspect_err(|error| eprintln!("SKIPPED: no io_uring: {error}"))
        .ok()
}

/// Runs a request for each chunk of a pin's memory; `make` is given its address, length, byte of the file and part.
fn run(ring: &mut IoUring, pin: &FolioPin, make: impl Fn(*mut u8, u32, u64, u16) -> squeue::Entry) {
    let mut in_flight = 0;
    let reap = |ring: &mut IoUring| {
        ring.submit_and_wait(1).expect("a completion");
        let done = ring.completion().next().expect("one was waited for");
        assert_eq!(done.result(), done.user_data() as i32, "all of it");
    };
    for (part, at) in pin.parts().enumerate() {
        for offset in (0..at.len).step_by(CHUNK) {
            let len = (at.len - offset).min(CHUNK) as u32;
            if in_flight == DEPTH {
                reap(ring);
                in_flight -= 1;
            }
            let addr = at.addr.wrapping_add(offset);
            let request =
                make(addr, len, at.pos + offset as u64, part as u16).user_data(len.into());
            // SAFETY: see the module's header.
            unsafe { ring.submission().push(&request) }.expect("room");
            ring.submit().expect("submitted");
            in_flight += 1;
        }
    }
    (0..in_flight).for_each(|_| reap(ring));
}

/// Ends the pressure, also if the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Pushes out whatever can go, until `stop`.
fn press(disk: &Disk, stop: &AtomicBool) {
    let other = disk.dir.create("other").unwrap();
    other.set_len(64 << 20).unwrap();
    let mut buf = vec![0; MIB];
    while !stop.load(Ordering::Relaxed) {
        for at in 0..64 {
            other.read_exact_at(&mut buf, (at * MIB) as u64).unwrap();
        }
    }
}

#[test]
#[ignore = "system tier"]
fn a_ring_reads_into_pinned_folios_and_writes_from_them() {
    let (disk, elsewhere) = (Disk::new(32), on_disk());
    let bytes = pattern(1, 8 * MIB);
    let paths = ["from", "to"].map(|name| elsewhere.path().join(name));
    std::fs::write(&paths[0], &bytes).unwrap();
    let [Some(from), Some(to)] = [&paths[0], &paths[1]].map(|path| direct(path)) else {
        return;
    };
    let Some(mut ring) = ring() else { return };
    let file = disk.dir.create("f").unwrap();
    file.set_len(8 * MIB as u64).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| press(&disk, &stop));
        let _stop = Stop(&stop);
        for start in (0..8 * MIB as u64).step_by(MIB) {
            let pin = file.pin(start..start + MIB as u64, PinMode::WRITE).unwrap();
            run(&mut ring, &pin, |addr, len, pos, _| {
                let read = opcode::Read::new(types::Fd(from.as_raw_fd()), addr, len);
                read.offset(pos).build()
            });
        }
        for start in (0..8 * MIB as u64).step_by(MIB) {
            let pin = file.pin(start..start + MIB as u64, PinMode::READ).unwrap();
            run(&mut ring, &pin, |addr, len, pos, _| {
                let write = opcode::Write::new(types::Fd(to.as_raw_fd()), addr, len);
                write.offset(pos).build()
            });
        }
    });
    let mut read = vec![0; 8 * MIB];
    file.read_exact_at(&mut read, 0).unwrap();
    assert!(read == bytes, "what the device wrote is in the cache");
    assert!(std::fs::read(&paths[1]).unwrap() == bytes);
    file.sync_data().unwrap();
    assert!(std::fs::read(disk.in_source("f")).unwrap() == bytes);
    assert_eq!(disk.cache.pinned().unwrap(), []);
}

#[test]
#[ignore = "system tier"]
fn a_pinned_arena_is_registered_once_and_used_for_long() {
    let (disk, elsewhere) = (Disk::new(32), on_disk());
    let path = elsewhere.path().join("from");
    let Some(from) = direct(&path) else { return };
    let Some(mut ring) = ring() else { return };
    let arena = disk.dir.create("arena").unwrap();
    arena.set_len(4 * MIB as u64).unwrap();
    let pin = arena.pin(.., PinMode::WRITE.long_term()).unwrap();
    let buffers: Vec<_> = pin
        .parts()
        .map(|part| libc::iovec {
            iov_base: part.addr.cast(),
            iov_len: part.len,
        })
        .collect();
    // SAFETY: see the module's header.
    if let Err(error) = unsafe { ring.submitter().register_buffers(&buffers) } {
        eprintln!("SKIPPED: no buffers can be registered: {error}");
        return;
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| press(&disk, &stop));
        let _stop = Stop(&stop);
        for round in 0..8 {
            let bytes = pattern(round, 4 * MIB);
            std::fs::write(&path, &bytes).unwrap();
            File::open(&path).unwrap().sync_all().unwrap();
            run(&mut ring, &pin, |addr, len, pos, part| {
                let read = opcode::ReadFixed::new(types::Fd(from.as_raw_fd()), addr, len, part);
                read.offset(pos).build()
            });
            let mut read = vec![0; 4 * MIB];
            arena.read_exact_at(&mut read, 0).unwrap();
            assert!(read == bytes, "round {round}");
            // It is written while it is registered.
            arena.sync_data().unwrap();
            assert!(std::fs::read(disk.in_source("arena")).unwrap() == bytes);
            assert!(arena.set_len(0).is_err(), "a device has it");
        }
    });
    ring.submitter().unregister_buffers().unwrap();
    drop(pin);
    arena.set_len(0).unwrap();
    assert_eq!(disk.cache.stats().unwrap().unreclaimable.pinned_pages, 0);
}

/// The example.
#[test]
#[ignore = "system tier"]
fn a_ring_gives_its_registered_buffers_up_while_others_need_the_pages() {
    let (disk, elsewhere) = (Disk::new(32), on_disk());
    let path = elsewhere.path().join("from");
    std::fs::write(&path, pattern(1, MIB)).unwrap();
    if direct(&path).is_none() || ring().is_none() {
        return;
    }
    let arena = disk.dir.create("arena").unwrap();
    let used = pin_revocable::run(&path, &arena).unwrap();
    assert!(
        used.len() > 1 && used.is_sorted_by(|a, b| a > b),
        "{used:?}"
    );
    assert_eq!(arena.len(), pin_revocable::ARENA >> pin_revocable::CUTS);
    assert_eq!(disk.cache.pinned().unwrap(), []);
    arena.sync_data().unwrap();
    let read = std::fs::read(disk.in_source("arena")).unwrap();
    assert!(
        read[..65536] == pattern(1, MIB)[..65536],
        "what the device wrote"
    );
}
