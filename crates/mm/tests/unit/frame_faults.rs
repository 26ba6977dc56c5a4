//! Faults of the cache's own memory, as bad RAM makes them: data that the store has is read again into
//! memory that works, and data that only the cache has is never given up in silence.
#![cfg(target_arch = "x86_64")]
#![allow(unsafe_code, reason = "takes away access to a frame of the cache")]

use crate::common::{Store, assert_empty, file, pattern, storage, write};
use foliocache_mm::{
    AddressSpace, BackingDevInfo, BdiKind, Fetch, Iocb, IovIter, PAGE_SIZE, ReadaheadState, SlabArc,
};
use foliocache_sys::{Errno, usercopy};
use std::sync::Arc;
use std::task::Waker;

const PAGES: usize = 8;
/// The page whose memory goes bad.
const BAD: usize = 5;

/// A file of `PAGES` pages, cached.
struct Cached {
    file: SlabArc<AddressSpace>,
    store: Arc<Store>,
    content: Vec<u8>,
    /// Where the page `BAD` was when it was spoilt.
    spoilt: Option<usize>,
}

impl Cached {
    fn new(bdi: &Arc<BackingDevInfo>) -> Self {
        usercopy::install_handlers().unwrap();
        let content = pattern(1, 0, PAGES * PAGE_SIZE);
        let store = Store::with(&content);
        let cached = Self {
            file: file(bdi, &store),
            store,
            content,
            spoilt: None,
        };
        assert_eq!(cached.read().unwrap().len(), cached.content.len());
        cached
    }

    fn read(&self) -> Result<Vec<u8>, Errno> {
        self.read_page(0, PAGES)
    }

    fn read_page(&self, page: usize, pages: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; pages * PAGE_SIZE];
        let mut iter = IovIter::destination(&mut bytes);
        let pos = (page * PAGE_SIZE) as u64;
        let n = self
            .file
            .read(&ReadaheadState::new(), &mut Iocb::at(pos), &mut iter)?;
        bytes.truncate(n);
        Ok(bytes)
    }

    fn protect(&self, prot: i32) {
        let at = self.spoilt.expect("a page that was spoilt");
        let at = std::ptr::with_exposed_provenance_mut(at);
        // SAFETY: a frame of the cache, which the tests touch through `usercopy` alone meanwhile.
        let rc = unsafe { libc::mprotect(at, PAGE_SIZE, prot) };
        assert_eq!(rc, 0);
    }

    /// Makes the memory of the page `BAD` inaccessible.
    fn spoil(&mut self) {
        let (handle, pos) = (ReadaheadState::new(), (BAD * PAGE_SIZE) as u64);
        let at = |bytes: &[u8]| bytes.as_ptr().expose_provenance();
        self.spoilt = self
            .file
            .read_in_place(&handle, &Iocb::at(pos), PAGE_SIZE, at);
        self.protect(libc::PROT_NONE);
    }

    fn mend(&self) {
        self.protect(libc::PROT_READ | libc::PROT_WRITE);
    }

    fn faults(&self) -> u64 {
        self.file.mm().stats().memory_faults
    }
}

#[test]
fn a_clean_page_in_bad_memory_is_read_again_from_the_store() {
    let (mm, bdi) = storage(8);
    let mut cached = Cached::new(&bdi);
    for round in 1..=3 {
        cached.spoil();
        assert_eq!(
            cached.read_page(BAD, 1).unwrap(),
            cached.content[BAD * PAGE_SIZE..][..PAGE_SIZE]
        );
        assert!(cached.read().unwrap() == cached.content);
        assert_eq!(cached.faults(), round);
    }
    assert!(!cached.file.is_dirty());
    drop(cached);
    assert_empty(&mm);
}

#[test]
fn a_read_that_does_not_wait_leaves_bad_memory_to_one_that_does() {
    let (mm, bdi) = storage(8);
    let mut cached = Cached::new(&bdi);
    cached.spoil();
    let handle = ReadaheadState::new();
    let pos = (BAD * PAGE_SIZE) as u64;
    let mut bytes = vec![0; PAGE_SIZE];
    let mut iter = IovIter::destination(&mut bytes);
    let mut iocb = Iocb {
        nowait: true,
        ..Iocb::at(pos)
    };
    let looked = cached.file.read(&handle, &mut iocb, &mut iter);
    assert_eq!(looked, Err(Errno::EAGAIN));
    let len = PAGE_SIZE as u64;
    let fetch = cached
        .file
        .start_fetch(&handle, &mut iocb, len, true, Waker::noop());
    assert_eq!(fetch.unwrap(), Fetch::Blocked);
    cached.file.fetch(&handle, &mut iocb, len).unwrap();
    let looked = cached.file.read(&handle, &mut iocb, &mut iter);
    assert_eq!(looked, Ok(PAGE_SIZE));
    assert!(bytes == cached.content[BAD * PAGE_SIZE..][..PAGE_SIZE]);
    drop(cached);
    assert_empty(&mm);
}

#[test]
fn a_write_to_a_clean_page_in_bad_memory_is_made_in_other_memory() {
    let (mm, bdi) = storage(8);
    for len in [50, PAGE_SIZE, 2 * PAGE_SIZE] {
        for offset in [0, 100] {
            let mut cached = Cached::new(&bdi);
            cached.spoil();
            let pos = BAD * PAGE_SIZE + offset;
            let bytes = pattern(2, 0, len);
            write(&cached.file, pos as u64, &bytes);
            cached.content[pos..pos + len].copy_from_slice(&bytes);
            assert!(cached.read().unwrap() == cached.content);
            cached.file.sync().unwrap();
            assert!(cached.store.content() == cached.content);
        }
    }
    assert_empty(&mm);
}

#[test]
fn a_dirty_page_in_bad_memory_is_eio_and_stays_dirty() {
    let (mm, bdi) = storage(8);
    let mut cached = Cached::new(&bdi);
    let pos = BAD * PAGE_SIZE;
    let bytes = pattern(2, 0, 100);
    write(&cached.file, pos as u64, &bytes);
    cached.content[pos..pos + 100].copy_from_slice(&bytes);
    cached.spoil();
    let written = cached
        .file
        .write(&mut Iocb::at(pos as u64), &mut IovIter::source(&[0; 100]));
    let read = cached.read_page(BAD, 1);
    // Before writeback, which reads the frame without looking out for faults in this store.
    cached.mend();
    assert_eq!(read.unwrap_err(), Errno::EIO);
    assert_eq!(written.unwrap_err(), Errno::EIO);
    assert!(cached.faults() >= 2);
    assert!(cached.file.is_dirty());
    cached.file.sync().unwrap();
    assert!(cached.store.content() == cached.content);
    drop(cached);
    assert_empty(&mm);
}

#[test]
fn a_write_that_stops_in_bad_memory_counts_nothing_of_that_folio() {
    let (mm, bdi) = storage(8);
    let mut cached = Cached::new(&bdi);
    // The folio of the bad page and the one before are dirty: neither can be read again.
    let pos = (BAD - 1) * PAGE_SIZE;
    write(&cached.file, 0, &cached.content);
    cached.spoil();
    let bytes = vec![7; 2 * PAGE_SIZE];
    let written = cached
        .file
        .write(&mut Iocb::at(pos as u64), &mut IovIter::source(&bytes));
    cached.mend();
    if let Ok(n) = written {
        assert!(cached.read_page(BAD - 1, 2).unwrap()[..n] == bytes[..n]);
        assert!(n <= PAGE_SIZE, "{n} bytes cannot have been written");
    }
    assert!(cached.file.is_dirty());
    drop(cached);
    assert_empty(&mm);
}

#[test]
fn a_page_of_a_memory_file_in_bad_memory_is_eio() {
    let mm = storage(8).0;
    let bdi = BackingDevInfo::new(&mm, "memory", BdiKind::Memory).unwrap();
    let mut cached = Cached::new(&bdi);
    write(&cached.file, 0, &cached.content);
    cached.spoil();
    let read = cached.read_page(BAD, 1);
    cached.mend();
    assert_eq!(read.unwrap_err(), Errno::EIO);
    assert_eq!(cached.faults(), 1);
    assert!(cached.read().unwrap() == cached.content);
    drop(cached);
    assert_empty(&mm);
}
