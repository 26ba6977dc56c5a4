//! A source whose missing page is brought in by a thread of this process that itself uses the file
//! that is being written, the very page of it included: userfaultfd in its thread mode.
//!
//! The kernel waits for that thread inside the copy, under the folio lock; no signal comes. What such
//! a thread may do is hence what needs no lock of the page: read it where it is cached, as it was
//! before; read and overwrite other pages.
#![cfg(target_arch = "x86_64")]
#![allow(unsafe_code, reason = "memory whose pages are missing")]

use crate::common::{Store, assert_empty, file, pattern, read, storage, write};
use foliocache_mm::{AddressSpace, Iocb, IovIter, ReadaheadState, SlabArc};
use foliocache_sys::memory::{
    PAGE_SIZE as PAGE, ReservedRange, SharedMemory, WindowAccess, WindowArea,
};
use foliocache_sys::usercopy;
use foliocache_sys::userfaultfd::{Access, Handler, OpenError, Userfaultfd};
use std::os::unix::net::UnixStream;

/// A window whose pages are missing.
struct Memory {
    range: ReservedRange,
    _shared: SharedMemory,
    window: WindowArea,
    faults: Userfaultfd,
    len: usize,
}

impl Memory {
    /// `None` where the kernel does not allow it.
    fn new(pages: usize) -> Option<Self> {
        let faults = match Userfaultfd::open(Handler::Thread) {
            Err(OpenError::Forbidden | OpenError::Unsupported) => return None,
            opened => opened.unwrap(),
        };
        let len = pages * PAGE;
        let range = ReservedRange::reserve(len).unwrap();
        // SAFETY: nobody else knows the range.
        let shared = unsafe { SharedMemory::over(&range, 0..len, false) }.unwrap();
        let window = WindowArea::reserve(len).unwrap();
        let (bytes, access) = (0..len as u64, WindowAccess::ReadWrite);
        // SAFETY: a new area; a thread answers its faults.
        unsafe { window.map(0, &shared, bytes, access, Some(&faults)) }.unwrap();
        Some(Self {
            range,
            _shared: shared,
            window,
            faults,
            len,
        })
    }

    fn at(&self, offset: usize) -> *mut u8 {
        let start = self.window.addresses().start;
        std::ptr::with_exposed_provenance_mut::<u8>(start).wrapping_add(offset)
    }

    fn len(&self) -> usize {
        self.len
    }

    /// A copy of the bytes, whose pages are no longer missing.
    fn bytes(&self) -> Vec<u8> {
        // SAFETY: the mapping is as long, and nobody writes.
        unsafe { std::slice::from_raw_parts(self.at(0), self.len) }.to_vec()
    }

    /// The number of the page that somebody waits for.
    fn wait(&self) -> usize {
        let (never, _open) = UnixStream::pair().unwrap();
        let never = never.into();
        loop {
            if let Some(fault) = self.faults.next_fault().unwrap() {
                assert!(fault.missing());
                return (fault.address - self.window.addresses().start) / PAGE;
            }
            self.faults.wait(&never).unwrap();
        }
    }

    /// Puts a page there and wakes who waits for it.
    fn supply(&self, page: usize, bytes: &[u8]) {
        assert_eq!(bytes.len(), PAGE);
        let place = self.range.as_ptr().wrapping_add(page * PAGE);
        // SAFETY: a page of ours, which is mapped nowhere else yet.
        unsafe { place.copy_from(bytes.as_ptr(), PAGE) };
        let start = self.window.addresses().start + page * PAGE;
        let mapped = self.faults.map(start..start + PAGE, Access::Write);
        assert_eq!(mapped.stopped, None);
    }
}

/// Ends the process where a deadlock would keep it for ever.
fn watchdog() -> impl Drop {
    struct Watchdog(Option<std::sync::mpsc::Sender<()>>);
    impl Drop for Watchdog {
        fn drop(&mut self) {
            self.0.take();
        }
    }
    let (alive, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let wait = end.recv_timeout(std::time::Duration::from_secs(30));
        if wait == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            crate::common::stuck::abort("a deadlock: 30 seconds without an end");
        }
    });
    Watchdog(Some(alive))
}

/// Runs `access` on memory whose pages are all missing; `supply` gives the content of each, by its
/// number.
fn with_missing_pages<R: Send>(
    pages: usize,
    mut supply: impl FnMut(usize) -> Vec<u8> + Send,
    access: impl FnOnce(&Memory) -> R + Send,
) -> Option<R> {
    usercopy::install_handlers().unwrap();
    let _watchdog = watchdog();
    let Some(memory) = Memory::new(pages) else {
        let known = std::env::var("FOLIOCACHE_MISSING").unwrap_or_default();
        assert!(
            known.split(',').any(|name| name == "userfaultfd"),
            "userfaultfd is not allowed here; `cargo xtask test --allow-missing` runs without it"
        );
        eprintln!("SKIPPED: userfaultfd is not allowed here");
        return None;
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..pages {
                let number = memory.wait();
                memory.supply(number, &supply(number));
            }
        });
        Some(access(&memory))
    })
}

fn write_from(file: &SlabArc<AddressSpace>, pos: u64, memory: &Memory) -> usize {
    // SAFETY: the handlers are installed.
    let mut iter = unsafe { IovIter::raw_source(memory.at(0), memory.len()) };
    file.write(&mut Iocb::at(pos), &mut iter).unwrap()
}

/// The source is, in effect, a mapping of the pages that are written: page 1 onto page 1.
#[test]
fn a_source_that_is_the_written_page_itself() {
    let (_mm, bdi) = storage(8);
    let content = pattern(1, 0, 6 * PAGE);
    let file = file(&bdi, &Store::with(&content));
    read(&file, 0, 6 * PAGE);
    for (pos, pages) in [(PAGE, 1), (PAGE, 3), (PAGE + 100, 2)] {
        let aligned = pos / PAGE * PAGE;
        let map = |number: usize| read(&file, (aligned + number * PAGE) as u64, PAGE);
        let source: Vec<u8> = (0..pages).flat_map(map).collect();
        let mut expected = read(&file, 0, 6 * PAGE);
        let Some(n) =
            with_missing_pages(pages, map, |memory| write_from(&file, pos as u64, memory))
        else {
            return;
        };
        assert_eq!(n, pages * PAGE);
        if pos == aligned {
            // Each page onto itself: nothing changed.
            expected[pos..pos + n].copy_from_slice(&source);
            assert!(read(&file, 0, 6 * PAGE) == expected);
        }
        file.sync().unwrap();
    }
}

/// Each page of the source comes from a thread that reads pages which are not cached, and
/// overwrites a cached one, of the same file, under a bound that makes it reclaim.
#[test]
fn a_source_that_is_brought_in_through_the_same_file() {
    const PAGES: usize = 16;
    let (mm, bdi) = storage(4);
    let content = pattern(2, 0, 1024 * PAGE);
    let file = file(&bdi, &Store::with(&content));
    let far = |number: usize| ((200 + 37 * number) * PAGE) as u64;
    let supply = |number: usize| {
        read(&file, 1000 * PAGE as u64, 10);
        write(&file, 1000 * PAGE as u64, b"beside");
        read(&file, far(number), PAGE)
    };
    let Some(n) = with_missing_pages(PAGES, supply, |memory| write_from(&file, 4096, memory))
    else {
        return;
    };
    assert_eq!(n, PAGES * PAGE);
    let mut expected = content;
    expected[1000 * PAGE..1000 * PAGE + 6].copy_from_slice(b"beside");
    for number in 0..PAGES {
        let at = far(number) as usize;
        let page = expected[at..at + PAGE].to_vec();
        expected[(1 + number) * PAGE..(2 + number) * PAGE].copy_from_slice(&page);
    }
    assert!(read(&file, 0, 1024 * PAGE) == expected);
    file.sync().unwrap();
    drop(file);
    assert_empty(&mm);
}

/// A destination that is missing: the thread reads and overwrites what is being read.
#[test]
fn a_destination_that_is_brought_in_through_the_same_file() {
    let (_mm, bdi) = storage(8);
    let content = pattern(3, 0, 8 * PAGE);
    let file = file(&bdi, &Store::with(&content));
    read(&file, 0, 8 * PAGE);
    let supply = |number: usize| {
        let page = read(&file, (number * PAGE) as u64, PAGE);
        write(&file, (number * PAGE) as u64, &page);
        file.sync().unwrap();
        vec![0xaa; PAGE]
    };
    let read_all = |memory: &Memory| {
        // SAFETY: the handlers are installed.
        let mut iter = unsafe { IovIter::raw_destination(memory.at(0), 4 * PAGE) };
        let n = file
            .read(&ReadaheadState::new(), &mut Iocb::at(0), &mut iter)
            .unwrap();
        (n, memory.bytes())
    };
    let Some((n, bytes)) = with_missing_pages(4, supply, read_all) else {
        return;
    };
    assert_eq!(n, 4 * PAGE);
    assert!(bytes == content[..4 * PAGE]);
}
