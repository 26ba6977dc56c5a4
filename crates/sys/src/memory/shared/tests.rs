//! Shared memory: its cost, the view through windows, the effect of a punch.
//!
//! # Safety
//!
//! Pointers are used inside ranges that the test owns, as atomics.
#![allow(unsafe_code)]

use super::*;
use crate::usercopy;
use crate::userfaultfd::Handler;
use core::sync::atomic::{AtomicU8, Ordering};

const MIB: usize = 1 << 20;

/// `len` bytes behind 2 MiB that are reserved.
fn shared(len: usize) -> (ReservedRange, SharedMemory) {
    let range = ReservedRange::reserve(len + 2 * MIB).unwrap();
    // SAFETY: the range is private to this test.
    let memory = unsafe { SharedMemory::over(&range, 2 * MIB..len + 2 * MIB, false) }.unwrap();
    (range, memory)
}

fn byte<'a>(start: *mut u8, at: usize) -> &'a AtomicU8 {
    // SAFETY: callers pass a place in a mapping that outlives the byte.
    unsafe { AtomicU8::from_ptr(start.wrapping_add(at)) }
}

impl WindowArea {
    fn as_ptr(&self) -> *mut u8 {
        self.range.as_ptr()
    }
}

/// The size of the process's page tables, in bytes. Other tests change it too: compare with room to
/// spare.
fn page_tables() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmPTE:"));
    let kib = line
        .and_then(|line| line.split_whitespace().nth(1))
        .unwrap();
    kib.parse::<usize>().unwrap() << 10
}

/// The lines of the process's map that lie in a range.
fn mappings(addresses: Range<usize>) -> Vec<(Range<usize>, String)> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let hex = |text: &str| usize::from_str_radix(text, 16).unwrap();
    let mut found = Vec::new();
    for line in maps.lines() {
        let (start, rest) = line.split_once('-').unwrap();
        let (end, rest) = rest.split_once(' ').unwrap();
        let range = hex(start)..hex(end);
        if range.start < addresses.end && range.end > addresses.start {
            found.push((range, rest[..4].to_owned()));
        }
    }
    found
}

#[test]
fn a_window_shows_the_same_bytes_until_they_are_punched() {
    let (range, memory) = shared(1 << 40);
    assert_eq!(memory.resident(), Ok(0), "a terabyte costs nothing");
    let direct = range.as_ptr().wrapping_add(2 * MIB);
    let far = 700 << 30;
    let bytes = far as u64..far as u64 + MIB as u64;
    let window = WindowArea::reserve(MIB).unwrap();
    assert_eq!(window.addresses().len(), 2 * MIB);
    // SAFETY: the area is new, and the memory outlives it.
    unsafe { window.map(0, &memory, bytes.clone(), WindowAccess::ReadWrite, None) }.unwrap();
    byte(direct, far + 5).store(1, Ordering::SeqCst);
    byte(window.as_ptr(), 5 * PAGE_SIZE).store(2, Ordering::SeqCst);
    assert_eq!(byte(window.as_ptr(), 5).load(Ordering::SeqCst), 1);
    assert_eq!(byte(direct, far + 5 * PAGE_SIZE).load(Ordering::SeqCst), 2);
    assert_eq!(memory.resident(), Ok(2 * PAGE_SIZE as u64));
    // SAFETY: the page is not in use.
    unsafe { memory.punch(bytes.start..bytes.start + PAGE_SIZE as u64) }.unwrap();
    assert_eq!(memory.resident(), Ok(PAGE_SIZE as u64));
    assert_eq!(byte(window.as_ptr(), 5).load(Ordering::SeqCst), 0);
    assert_eq!(
        memory.resident(),
        Ok(2 * PAGE_SIZE as u64),
        "a read makes a page"
    );
    drop(window);
    assert_eq!(byte(direct, far + 5 * PAGE_SIZE).load(Ordering::SeqCst), 2);
}

#[test]
fn unaligned_and_out_of_range_requests_are_refused() {
    let (range, memory) = shared(2 * MIB);
    let area = WindowArea::reserve(2 * MIB).unwrap();
    // SAFETY: the area is not in use.
    let window = |at, bytes| unsafe { area.map(at, &memory, bytes, WindowAccess::Read, None) };
    assert_eq!(window(2 * MIB - PAGE_SIZE, 0..8192), Err(Errno::EINVAL));
    assert_eq!(window(100, 0..4096), Err(Errno::EINVAL));
    assert_eq!(window(usize::MAX - 4095, 0..4096), Err(Errno::EINVAL));
    assert_eq!(area.zap(0..2 * MIB + PAGE_SIZE), Err(Errno::EINVAL));
    // SAFETY: the area is not in use.
    let unmapped = unsafe { area.unmap(1..PAGE_SIZE) };
    assert_eq!(unmapped, Err(Errno::EINVAL));
    for bytes in [0..0, 0..100, 1..4097, 0..(2 << 20) + 4096] {
        assert_eq!(window(0, bytes.clone()), Err(Errno::EINVAL), "{bytes:?}");
        // SAFETY: refused.
        let punched = unsafe { memory.punch(bytes.clone()) };
        assert_eq!(punched, Err(Errno::EINVAL), "{bytes:?}");
    }
    // SAFETY: refused.
    let over = unsafe { SharedMemory::over(&range, 0..5 * MIB, false) };
    assert_eq!(over.err(), Some(Errno::EINVAL));
}

/// The setting is the machine's: it is set back also when the test fails.
struct Always(String);

impl Always {
    const PATH: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

    fn new() -> std::io::Result<Always> {
        let old = std::fs::read_to_string(Always::PATH)?;
        let chosen = old.split(['[', ']']).nth(1).unwrap_or("never").to_owned();
        std::fs::write(Always::PATH, "always")?;
        Ok(Always(chosen))
    }
}

impl Drop for Always {
    fn drop(&mut self) {
        let _ = std::fs::write(Always::PATH, &self.0);
    }
}

#[test]
fn one_touch_makes_one_page_also_where_huge_pages_are_always_used() {
    let Ok(_always) = Always::new() else {
        eprintln!(
            "SKIPPED: {} cannot be set: not root, or no huge pages",
            Always::PATH
        );
        return;
    };
    let (range, memory) = shared(64 * MIB);
    let direct = range.as_ptr().wrapping_add(2 * MIB);
    let bytes = 32 << 20..64 << 20;
    let window = WindowArea::reserve(32 * MIB).unwrap();
    let faults = Userfaultfd::open(Handler::Signal).unwrap();
    let access = WindowAccess::ReadWrite;
    // SAFETY: the area is not in use; the page that is touched was mapped.
    unsafe { window.map(0, &memory, bytes, access, Some(&faults)) }.unwrap();
    byte(direct, 37 * MIB).store(1, Ordering::SeqCst);
    let page = window.addresses().start + 5 * MIB;
    let mapped = faults.map(page..page + PAGE_SIZE, crate::userfaultfd::Access::Write);
    assert_eq!(mapped.stopped, None);
    byte(direct, 5 * MIB).store(1, Ordering::SeqCst);
    byte(window.as_ptr(), 5 * MIB).store(1, Ordering::SeqCst);
    assert_eq!(memory.resident(), Ok(2 * PAGE_SIZE as u64));
}

#[test]
fn no_touch_escapes_the_userfaultfd_of_a_window() {
    usercopy::install_handlers().unwrap();
    let (_range, memory) = shared(4 * MIB);
    let area = WindowArea::reserve(4 * MIB).unwrap();
    let faults = Userfaultfd::open(Handler::Signal).unwrap();
    let done = AtomicU8::new(0);
    std::thread::scope(|scope| {
        for at in [0, 2 * MIB] {
            let (area, done) = (&area, &done);
            scope.spawn(move || {
                while done.load(Ordering::Relaxed) == 0 {
                    let place = area.as_ptr().wrapping_add(at);
                    // SAFETY: the byte's value does not matter; a fault is returned as an error.
                    let written = unsafe { usercopy::copy(place, &1, 1) };
                    assert!(written.is_err(), "a page without a fault");
                }
            });
        }
        for _ in 0..2000 {
            for at in [0, 2 * MIB] {
                let bytes = at as u64..(at + 2 * MIB) as u64;
                let access = WindowAccess::ReadWrite;
                // SAFETY: the place is reserved; those that touch it survive that.
                unsafe { area.map(at, &memory, bytes, access, Some(&faults)) }.unwrap();
            }
            // SAFETY: the area is not in use.
            unsafe { area.unmap(0..4 * MIB) }.unwrap();
        }
        done.store(1, Ordering::Relaxed);
    });
    assert_eq!(memory.resident(), Ok(0));
}

#[test]
fn windows_come_and_go_without_a_trace() {
    let (_range, memory) = shared(64 * MIB);
    let area = WindowArea::reserve(64 * MIB).unwrap();
    let faults = Userfaultfd::open(Handler::Signal).unwrap();
    let start = area.addresses().start;
    let reserved = || vec![(area.addresses(), "---p".to_owned())];
    assert_eq!(mappings(area.addresses()), reserved());
    let window = |at: usize, access, faults| {
        let bytes = at as u64..(at + 2 * MIB) as u64;
        // SAFETY: the place is reserved and not in use.
        unsafe { area.map(at, &memory, bytes, access, faults) }.unwrap();
    };
    // Neighbours that show neighbouring bytes become one mapping, and come apart again.
    window(0, WindowAccess::Read, Some(&faults));
    window(2 * MIB, WindowAccess::Read, Some(&faults));
    window(4 * MIB, WindowAccess::ReadWrite, Some(&faults));
    window(6 * MIB, WindowAccess::ReadWrite, None);
    let at = |from: usize, to: usize| start + from * MIB..start + to * MIB;
    let access = |text: &str| text.to_owned();
    assert_eq!(
        mappings(area.addresses()),
        [
            (at(0, 4), access("r--s")),
            (at(4, 6), access("rw-s")),
            (at(6, 8), access("rw-s")),
            (at(8, 64), access("---p")),
        ]
    );
    // SAFETY: the window is not in use.
    unsafe { area.unmap(2 * MIB..4 * MIB) }.unwrap();
    assert_eq!(mappings(area.addresses()).len(), 5);
    let protected = |at: Range<usize>| faults.write_protect(at);
    assert_eq!(protected(at(0, 2)), Ok(()));
    assert_eq!(protected(at(4, 6)), Ok(()));
    assert_eq!(protected(at(6, 8)), Err(Errno::ENOENT), "it has none");
    // SAFETY: the windows are not in use.
    unsafe { area.unmap(0..8 * MIB) }.unwrap();
    assert_eq!(mappings(area.addresses()), reserved());
}

/// The effect of `zap`, and the freeing of page tables: those of a window with the window, those of
/// the direct map on request.
#[test]
fn page_tables_go_with_a_window_and_when_asked() {
    const LEN: usize = 2 << 30;
    let (range, memory) = shared(LEN);
    let area = WindowArea::reserve(LEN).unwrap();
    let faults = Userfaultfd::open(Handler::Signal).unwrap();
    let access = WindowAccess::ReadWrite;
    // SAFETY: the place is reserved; only pages that are mapped are touched.
    unsafe { area.map(0, &memory, 0..LEN as u64, access, Some(&faults)) }.unwrap();
    let direct = range.as_ptr().wrapping_add(2 * MIB);
    let before = page_tables();
    for at in (0..LEN).step_by(2 * MIB) {
        byte(direct, at).store(1, Ordering::SeqCst);
        let page = area.addresses().start + at;
        let access = crate::userfaultfd::Access::Read;
        assert_eq!(faults.map(page..page + PAGE_SIZE, access).stopped, None);
    }
    let tables = LEN / 2 / MIB * PAGE_SIZE;
    assert!(page_tables() > before + 2 * tables - tables / 4);
    area.zap(0..2 * MIB).unwrap();
    assert_eq!(byte(direct, 0).load(Ordering::SeqCst), 1, "the page stays");
    // SAFETY: the windows are not in use.
    unsafe { area.unmap(0..LEN) }.unwrap();
    assert!(page_tables() < before + tables + tables / 4);
    // SAFETY: the bytes are not in use.
    unsafe { memory.drop_page_tables(&range, 0..LEN as u64) }.unwrap();
    assert!(page_tables() < before + tables / 4);
    let addresses = direct.addr()..direct.addr() + LEN;
    // SAFETY: the bytes are not in use.
    unsafe { memory.drop_page_tables(&range, 2 << 20..4 << 20) }.unwrap();
    let whole = [(addresses.clone(), "rw-s".to_owned())];
    assert_eq!(mappings(addresses), whole, "still one mapping");
    assert_eq!(byte(direct, 4 * MIB).load(Ordering::SeqCst), 1);
    assert_eq!(memory.resident(), Ok((LEN / 2 / MIB * PAGE_SIZE) as u64));
}
