//! Memory that the kernel does not take back at once, or not at all.
#![allow(unsafe_code)]

use crate::common::{Store, file, pattern, read, storage, write};
use foliocache_mm::{AddressSpace, BLOCK_SIZE, FrameNumber, Mm};
use std::sync::Arc;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// How long something that must happen may take on a loaded machine.
const LONG: Duration = Duration::from_secs(60);

/// Has `madvise` fail with EPERM in this thread and those that it starts, where memory is to be given back.
fn refuse_to_give_back() {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let advice = std::mem::offset_of!(libc::seccomp_data, args) as u32 + 2 * 8;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut filter = [
        step(
            LOAD,
            0,
            0,
            std::mem::offset_of!(libc::seccomp_data, nr) as u32,
        ),
        step(EQUAL, 0, 4, libc::SYS_madvise as u32),
        step(LOAD, 0, 0, advice),
        step(EQUAL, 1, 0, libc::MADV_DONTNEED as u32),
        step(EQUAL, 0, 1, libc::MADV_DONTNEED_LOCKED as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: only flags are passed.
    let allowed = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    // SAFETY: the program is valid for the call.
    let done = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) };
    assert_eq!(
        (allowed, done),
        (0, 0),
        "{}",
        std::io::Error::last_os_error()
    );
}

fn wait_for(mm: &Mm, what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LONG, "{what}: {:#?}", mm.stats());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn locked_memory_is_given_back() {
    let (mm, bdi) = storage(32);
    let store = Store::with(&[]);
    let file = file(&bdi, &store);
    let bytes = pattern(1, 0, 24 << 20);
    write(&file, 0, &bytes);
    file.sync().expect("sync");
    for block in 0..3 {
        let start = mm.frames().addr(FrameNumber(block * 512));
        // SAFETY: locking a block of the cache changes no byte of it.
        let locked = unsafe { libc::mlock(start.cast(), BLOCK_SIZE) };
        assert_eq!(locked, 0, "{}", std::io::Error::last_os_error());
    }
    let limit = 6 * MIB;
    mm.set_limit(limit).expect("a limit in range");
    wait_for(&mm, "a shrink", || mm.usage().total_bytes() <= limit);
    assert_eq!(mm.stats().give_back_failures, 0);
    assert!(read(&file, 0, bytes.len()) == bytes);
}

#[test]
fn memory_that_the_kernel_does_not_take_back_stays_in_use_and_is_counted() {
    refuse_to_give_back();
    let (mm, bdi) = storage(32);
    let store = Store::with(&[]);
    let file = file(&bdi, &store);
    let bytes = pattern(1, 0, 24 << 20);
    write(&file, 0, &bytes);
    file.sync().expect("sync");
    let held = mm.usage().blocks_held;
    let limit = 8 * MIB;
    mm.set_limit(limit).expect("a limit in range");
    // The reclaimer tries again, and outlives it.
    let first = mm.stats().give_back_failures;
    assert!(first > 0, "{:#?}", mm.stats());
    wait_for(&mm, "another try", || mm.stats().give_back_failures > first);
    let stats = mm.stats();
    assert_eq!(stats.memory.blocks_held, held, "{stats:#?}");
    assert_eq!(stats.background_panics, 0);
    assert!(read(&file, 0, bytes.len()) == bytes);
    mm.set_limit(32 * MIB).expect("a limit in range");
    let more = pattern(2, 0, 24 << 20);
    write(&file, 0, &more);
    file.sync().expect("sync");
    assert!(store.content() == more);
}

/// The index of a sparse file takes a node for each of its pages; the nodes of one that is gone are reused.
#[test]
fn index_nodes_that_the_kernel_does_not_take_back_are_charged_once() {
    const PAGES: u64 = 400;
    refuse_to_give_back();
    let (mm, bdi) = storage(32);
    let mut metadata = Vec::new();
    for round in 0..6 {
        let store: Arc<Store> = Store::with(&[]);
        let file = AddressSpace::new(&bdi, store, PAGES << 30);
        for page in 0..PAGES {
            assert_eq!(read(&file, page << 30, 1), [0]);
        }
        drop(file);
        mm.set_limit((32 - round % 2) * MIB)
            .expect("a limit in range");
        metadata.push(mm.usage().metadata_bytes);
    }
    assert!(metadata[5] <= metadata[1] + (64 << 10), "{metadata:?}");
}
