//! Shared memory: what it costs, what windows see, what a punch leaves.
//!
//! # Safety
//!
//! Pointers are used inside ranges that the test owns, as atomics.
#![allow(unsafe_code)]

use super::*;
use core::sync::atomic::{AtomicU8, Ordering};

const MIB: usize = 1 << 20;

/// `len` bytes behind 2 MiB that are reserved.
fn shared(len: usize) -> (ReservedRange, SharedMemory) {
    let range = ReservedRange::reserve(len + 2 * MIB).unwrap();
    // SAFETY: nobody else knows the range.
    let memory = unsafe { SharedMemory::over(&range, 2 * MIB..len + 2 * MIB) }.unwrap();
    (range, memory)
}

fn byte<'a>(start: *mut u8, at: usize) -> &'a AtomicU8 {
    // SAFETY: callers pass a place in a mapping that outlives the byte.
    unsafe { AtomicU8::from_ptr(start.wrapping_add(at)) }
}

#[test]
fn a_window_shows_the_same_bytes_until_they_are_punched() {
    let (range, memory) = shared(1 << 40);
    assert_eq!(memory.resident(), Ok(0), "a terabyte costs nothing");
    let direct = range.as_ptr().wrapping_add(2 * MIB);
    let far = 700 << 30;
    let bytes = far as u64..far as u64 + MIB as u64;
    let window = Window::new(&memory, bytes.clone(), WindowAccess::ReadWrite).unwrap();
    assert_eq!(window.addresses().len(), MIB);
    byte(direct, far + 5).store(1, Ordering::SeqCst);
    byte(window.as_ptr(), 5 * PAGE_SIZE).store(2, Ordering::SeqCst);
    assert_eq!(byte(window.as_ptr(), 5).load(Ordering::SeqCst), 1);
    assert_eq!(byte(direct, far + 5 * PAGE_SIZE).load(Ordering::SeqCst), 2);
    assert_eq!(memory.resident(), Ok(2 * PAGE_SIZE as u64));
    // SAFETY: nobody uses the page.
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
fn what_is_not_whole_pages_is_refused() {
    let (range, memory) = shared(2 * MIB);
    let window = |bytes| Window::new(&memory, bytes, WindowAccess::Read).map(drop);
    for bytes in [0..0, 0..100, 1..4097, 0..(2 << 20) + 4096] {
        assert_eq!(window(bytes.clone()), Err(Errno::EINVAL), "{bytes:?}");
        // SAFETY: refused.
        let punched = unsafe { memory.punch(bytes.clone()) };
        assert_eq!(punched, Err(Errno::EINVAL), "{bytes:?}");
    }
    // SAFETY: refused.
    let over = unsafe { SharedMemory::over(&range, 0..5 * MIB) };
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
    let window = Window::new(&memory, bytes, WindowAccess::ReadWrite).unwrap();
    byte(direct, 5 * MIB).store(1, Ordering::SeqCst);
    byte(window.as_ptr(), 5 * MIB).store(1, Ordering::SeqCst);
    assert_eq!(memory.resident(), Ok(2 * PAGE_SIZE as u64));
}
