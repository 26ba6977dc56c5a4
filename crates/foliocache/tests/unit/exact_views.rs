//! Exact views, as a user of the library has them.
//!
//! # Safety
//!
//! Tokens come from `into_raw` and are given back once; their bytes are read before that.
#![allow(unsafe_code)]

use crate::common::executor::{block_on, poll_once};
use crate::common::{Disk, PAGE, pattern};
use foliocache::{Errno, Error, File, View};
use std::collections::HashMap;
use std::ffi::c_void;
use std::io::ErrorKind;
use std::ptr::NonNull;
use std::task::Poll;
use yoke::Yoke;

const SIZE: usize = 3 << 20;

fn written(disk: &Disk, name: &str, seed: u64) -> Vec<u8> {
    let bytes = pattern(seed, SIZE);
    std::fs::write(disk.in_source(name), &bytes).unwrap();
    bytes
}

#[test]
fn an_exact_view_is_the_range_or_an_error_like_that_of_an_exact_read() {
    let disk = Disk::new(32);
    let bytes = written(&disk, "f", 1);
    let file = disk.dir.open("f").unwrap();
    assert!(*file.view_exact(..).unwrap() == bytes);
    assert!(*file.view_exact(10..).unwrap() == bytes[10..]);
    assert_eq!(*file.view_exact(5..=9).unwrap(), bytes[5..10]);
    assert!(file.view_exact(SIZE as u64..).unwrap().is_empty());
    assert!(file.view_exact(SIZE as u64 + 9..).unwrap().is_empty());
    let end = SIZE as u64;
    for (range, missing) in [
        (end - 5..end + 1, end..end + 1),
        (end + 3..end + 5, end + 3..end + 5),
        (0..u64::MAX, end..u64::MAX),
    ] {
        let error = file.view_exact(range).unwrap_err();
        let Error::UnexpectedEof { range, path } = &error else {
            panic!("{error}");
        };
        assert_eq!(*range, missing);
        assert!(path.ends_with("f"));
        assert_eq!(std::io::Error::from(error).kind(), ErrorKind::UnexpectedEof);
    }
    let write_only = disk.dir.open_options().write(true).open("f").unwrap();
    assert_eq!(
        write_only.view_exact(..9).unwrap_err().errno(),
        Errno::EBADF
    );
    assert_eq!(
        write_only.view_exact(9..9).unwrap_err().errno(),
        Errno::EBADF
    );
    assert_eq!(
        write_only.views(&[0..9, 5..6]).unwrap_err().errno(),
        Errno::EBADF
    );
}

#[test]
fn copies_that_have_their_quarter_of_the_bound_are_refused_and_nothing_else_is() {
    let disk = Disk::new(16);
    let bytes = written(&disk, "f", 1);
    let file = disk.dir.open("f").unwrap();
    let all = file.view_exact(..).unwrap();
    assert!(all.is_copy());
    let stats = disk.cache.stats().unwrap();
    assert!(stats.copied_view_bytes >= SIZE as u64);
    let error = file.view_exact(..).unwrap_err();
    assert_eq!(error.errno(), Errno::ENOBUFS, "{error}");
    let mut read = vec![0; SIZE];
    file.read_exact_at(&mut read, 0).unwrap();
    assert!(read == bytes && *all == bytes);
    drop(all);
    assert_eq!(disk.cache.stats().unwrap().copied_view_bytes, 0);
    assert!(*file.view_exact(..).unwrap() == bytes);
}

/// The structure that ports need: a view and a slice borrowed from it, moved together.
#[test]
fn the_address_stays_when_a_view_moves() {
    let disk = Disk::new(32);
    let bytes = written(&disk, "f", 1);
    let file = disk.dir.open("f").unwrap();
    for range in [100..200, 0..SIZE as u64] {
        let view = file.view_exact(range.clone()).unwrap();
        let address = view.as_ptr();
        let mut boxed = Box::new(view);
        let mut other = file.view_exact(7..9).unwrap();
        let elsewhere = other.as_ptr();
        std::mem::swap(&mut *boxed, &mut other);
        assert_eq!((boxed.as_ptr(), other.as_ptr()), (elsewhere, address));
        let mut many: Vec<View> = Vec::with_capacity(1);
        many.push(other);
        // The vector moves its elements as it grows.
        for _ in 0..100 {
            many.push(file.view_exact(7..9).unwrap());
        }
        let there = std::thread::spawn(move || many.swap_remove(0))
            .join()
            .unwrap();
        assert_eq!(there.as_ptr(), address);
        let there: Yoke<&'static [u8], View> =
            Yoke::attach_to_cart(there, |bytes| &bytes[bytes.len() - 10..]);
        let moved = Box::new(there);
        drop(boxed);
        assert_eq!(
            moved.get().as_ptr(),
            address.wrapping_add(range.count() - 10)
        );
        assert!(bytes.windows(10).any(|at| at == *moved.get()));
    }
}

#[test]
fn an_exact_view_stays_as_it_is_when_others_change_the_file() {
    let disk = Disk::new(32);
    let bytes = written(&disk, "f", 1);
    let file = disk.dir.open("f").unwrap();
    let (copy, in_place) = (
        file.view_exact(..).unwrap(),
        file.view_exact(5..50).unwrap(),
    );
    assert!(copy.is_copy() && !in_place.is_copy());
    drop(file);
    let newer = pattern(2, SIZE + 5);
    std::fs::write(disk.in_source("f"), &newer).unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    loop {
        let now = disk.dir.open("f").unwrap().view_exact(..);
        if now.is_ok_and(|now| *now == newer) {
            break;
        }
        assert!(
            std::time::Instant::now() < deadline,
            "the change is not seen"
        );
    }
    assert!(*copy == bytes);
    assert_eq!(*in_place, bytes[5..50]);
    std::fs::write(disk.in_source("f"), b"short").unwrap();
    loop {
        let file = disk.dir.open("f").unwrap();
        if file.len() == 5 {
            let error = file.view_exact(0..6).unwrap_err();
            assert!(matches!(error, Error::UnexpectedEof { .. }), "{error}");
            break;
        }
        assert!(
            std::time::Instant::now() < deadline,
            "the change is not seen"
        );
    }
    assert!(*copy == bytes);
}

#[test]
fn a_batch_of_views_is_of_several_files_and_each_has_its_error() {
    let disk = Disk::new(32);
    let (one, other) = (written(&disk, "a", 1), written(&disk, "b", 2));
    let files = ["a", "b"].map(|name| disk.dir.open(name).unwrap());
    let ranges: Vec<_> = (0..100_u64)
        .map(|i| i * 30_001..i * 30_001 + 9_000)
        .collect();
    let mut requests: Vec<_> = ranges
        .iter()
        .flat_map(|range| {
            files
                .each_ref()
                .map(|file| file.view_request(range.clone()))
        })
        .collect();
    requests.push(files[1].view_request(SIZE as u64 - 3..SIZE as u64 + 1));
    requests.push(files[0].view_request(SIZE as u64 - 3..));
    let error = File::view_batch(&mut requests).unwrap_err();
    assert!(error.to_string().contains('b'), "{error}");
    let last = requests.pop().unwrap().into_view().unwrap();
    assert_eq!(*last, one[SIZE - 3..]);
    assert!(matches!(
        requests.pop().unwrap().result().unwrap_err(),
        Error::UnexpectedEof { .. }
    ));
    for (i, request) in requests.into_iter().enumerate() {
        let bytes = [&one, &other][i % 2];
        let at = ranges[i / 2].start as usize;
        assert!(*request.into_view().unwrap() == bytes[at..at + 9_000]);
    }
    let views = files[0].views(&ranges).unwrap();
    assert!(
        std::iter::zip(&views, &ranges)
            .all(|(view, range)| **view == one[range.start as usize..range.end as usize])
    );
    let error = files[0].views(&[0..9, 9..u64::MAX]).unwrap_err();
    assert!(matches!(error, Error::UnexpectedEof { .. }), "{error}");
}

/// A VFS of SQLite implements `xFetch` and `xUnfetch` like this: C gets an address, and gives back
/// only that.
struct Fetched {
    file: File,
    /// Tokens by address: a page may be fetched twice.
    tokens: HashMap<*const u8, Vec<NonNull<c_void>>>,
}

unsafe extern "C" fn fetch(this: *mut c_void, at: i64, len: i32, to: *mut *const c_void) -> i32 {
    // SAFETY: the test hands in a `Fetched`.
    let this = unsafe { &mut *this.cast::<Fetched>() };
    let (at, len) = (at as u64, len as u64);
    let (address, code) = match this.file.view_exact(at..at + len) {
        Ok(view) => {
            let raw = view.into_raw();
            this.tokens.entry(raw.address).or_default().push(raw.token);
            (raw.address.cast(), 0)
        }
        Err(error) => (std::ptr::null(), error.errno().raw()),
    };
    // SAFETY: the test hands in the address of a variable.
    unsafe { to.write(address) };
    code
}

unsafe extern "C" fn unfetch(this: *mut c_void, address: *const c_void) -> i32 {
    // SAFETY: as in `fetch`.
    let this = unsafe { &mut *this.cast::<Fetched>() };
    let tokens = this.tokens.get_mut(&address.cast()).unwrap();
    // SAFETY: a token of `fetch`, removed here, so given back once.
    drop(unsafe { View::from_raw(tokens.pop().unwrap()) });
    0
}

#[test]
fn callbacks_of_c_hand_views_out_and_get_them_back() {
    let disk = Disk::new(32);
    let bytes = written(&disk, "f", 1);
    let mut fetched = Fetched {
        file: disk.dir.open("f").unwrap(),
        tokens: HashMap::new(),
    };
    let this = (&raw mut fetched).cast::<c_void>();
    let held = || {
        let stats = disk.cache.stats().unwrap();
        (
            stats.unreclaimable.viewed_pages > 0,
            stats.copied_view_bytes > 0,
        )
    };
    let mut out = Vec::new();
    for (at, len) in [(0, PAGE), (0, PAGE), (100, SIZE - 100), (PAGE, PAGE)] {
        let mut address = std::ptr::null();
        // SAFETY: as the callbacks ask for.
        let code = unsafe { fetch(this, at as i64, len as i32, &raw mut address) };
        assert_eq!(code, 0);
        // SAFETY: fetched, and not unfetched yet.
        let seen = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), len) };
        assert!(*seen == bytes[at..at + len]);
        out.push(address);
    }
    assert_eq!(out[0], out[1], "one page of the cache");
    assert_eq!(held(), (true, true));
    for address in out {
        // SAFETY: fetched above, and not unfetched yet.
        assert_eq!(unsafe { unfetch(this, address) }, 0);
    }
    assert_eq!(held(), (false, false));
    let mut none = std::ptr::dangling();
    // SAFETY: `this` is the structure made above; the range reaches past the end of the file.
    let code = unsafe { fetch(this, SIZE as i64 - 1, 2, &raw mut none) };
    assert!(code != 0 && none.is_null());
}

#[test]
fn async_exact_views_are_ready_at_once_or_made_by_a_worker() {
    let disk = Disk::new(32);
    let bytes = written(&disk, "f", 1);
    let file = disk.dir.open("f").unwrap().into_async().unwrap();
    assert_eq!(*block_on(file.view_exact(5..100)).unwrap(), bytes[5..100]);
    match poll_once(Box::pin(file.view_exact(5..100)).as_mut()) {
        Poll::Ready(view) => assert_eq!(*view.unwrap(), bytes[5..100]),
        Poll::Pending => panic!("it is in the cache"),
    }
    let all = block_on(file.view_exact(..)).unwrap();
    assert!(*all == bytes && all.is_copy());
    let error = block_on(file.view_exact(..SIZE as u64 + 1)).unwrap_err();
    assert!(matches!(error, Error::UnexpectedEof { .. }), "{error}");
}
