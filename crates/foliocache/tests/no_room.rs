//! A store that refuses writes: which calls report it, and that the data stays.
//!
//! The store is a directory whose files may not grow past one MiB, by the process's own limit, so
//! the test runs in a separate process and needs no privilege.
//!
//! # Safety
//!
//! The structures handed to the system calls live for the call.
#![allow(unsafe_code)]

mod common;

use common::{cache, is_alone, on_disk, pattern, run_alone};
use foliocache::{Cache, Errno};

const MIB: u64 = 1 << 20;

/// The largest file that this process may make, in bytes.
fn limit_files(bytes: u64) {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: see the module's header.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) };
    assert_eq!(got, 0);
    limit.rlim_cur = bytes.min(limit.rlim_max);
    // SAFETY: see the module's header.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) };
    assert_eq!(set, 0);
}

#[test]
fn a_close_that_would_lose_data_is_refused() {
    let said = run_alone("use_without_room");
    assert!(said.contains("nothing was lost"), "{said}");
}

#[test]
fn use_without_room() {
    if !is_alone() {
        return;
    }
    // SAFETY: ignoring a signal touches no memory.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    limit_files(MIB);
    let bytes = pattern(1, 4 * MIB as usize);
    let (cache, source) = (cache(32), on_disk());
    let dir = cache.directory(source.path()).unwrap();
    let fine = dir.create("fine").unwrap();
    fine.write_all_at(b"fine", 0).unwrap();
    let big = dir.create("big").unwrap();
    big.write_all_at(&bytes, 0).unwrap();
    let error = big.sync_data().unwrap_err();
    assert!(is_no_room(error.errno()), "{error}");

    // The file is named, the others are durable, and the cache goes on.
    let cache = refused(cache);
    assert_eq!(std::fs::read(source.path().join("fine")).unwrap(), b"fine");
    let mut back = vec![0; bytes.len()];
    big.read_exact_at(&mut back, 0).unwrap();
    assert!(back == bytes);
    let failed = big.failed_ranges().unwrap();
    assert!(failed.iter().all(|range| range.start >= MIB), "{failed:?}");
    assert_eq!(failed.last().unwrap().end, 4 * MIB);
    assert!(big.stats().unwrap().failed_pages > 0);
    assert!(cache.stats().unwrap().files.failed_pages > 0);

    // Once there is room everything lands.
    limit_files(u64::MAX);
    cache.sync().unwrap();
    assert_eq!(big.failed_ranges().unwrap(), []);
    assert!(std::fs::read(source.path().join("big")).unwrap() == bytes);

    // Or it is given up, by whoever says so.
    limit_files(MIB);
    big.write_all_at(&vec![0xff; 4 * MIB as usize], 0).unwrap();
    let cache = refused(cache);
    let given_up = big.discard_failed().unwrap();
    assert!(!given_up.is_empty());
    big.read_exact_at(&mut back, 0).unwrap();
    for range in given_up {
        let range = range.start as usize..range.end as usize;
        assert!(back[range.clone()] == bytes[range], "what the store has");
    }
    cache.close().unwrap();
    println!("nothing was lost that was not given up");
}

/// A write that reaches past the limit is cut short there, which has no distinct error number; one
/// that begins past it gets `EFBIG`.
fn is_no_room(errno: Errno) -> bool {
    errno == Errno::EFBIG || errno == Errno::EIO
}

/// Tries to close the cache and gets it back.
fn refused(cache: Cache) -> Cache {
    let refused = cache.close().unwrap_err();
    assert!(is_no_room(refused.errno()), "{refused}");
    let [failed] = refused.failed_files() else {
        panic!("{refused}");
    };
    assert!(failed.file.ends_with("big"), "{failed}");
    assert!(!failed.ranges.is_empty());
    assert!(refused.to_string().contains("big: E"), "{refused}");
    refused.into_cache()
}
