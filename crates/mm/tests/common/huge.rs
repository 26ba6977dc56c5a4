//! Some free huge pages for a test.

use foliocache_sys::memory::free_huge_pages;
use std::fs::{self, File};

const NR: &str = "/proc/sys/vm/nr_hugepages";

/// Free huge pages in the kernel's pool, which is as it was again when this is dropped. One test of the machine has it
/// at a time.
pub(crate) struct HugePool {
    before: String,
    _lock: File,
}

impl HugePool {
    /// A pool of which `free` pages are free; `None`, and says why, where that cannot be had.
    pub(crate) fn of(free: u64) -> Option<Self> {
        let lock = std::env::temp_dir().join("foliocache-huge-pages.lock");
        let lock = File::create(lock).expect("a file");
        lock.lock().expect("a lock");
        let before = fs::read_to_string(NR).unwrap_or_default();
        let pool = Self {
            before: before.trim().to_owned(),
            _lock: lock,
        };
        let Ok(now) = pool.before.parse::<u64>() else {
            eprintln!("SKIPPED: the kernel has no huge pages");
            return None;
        };
        let wanted = (now + free).saturating_sub(free_huge_pages());
        if let Err(error) = fs::write(NR, wanted.to_string()) {
            eprintln!("SKIPPED: {NR} cannot be written: {error}");
            return None;
        }
        if free_huge_pages() != free {
            eprintln!("SKIPPED: the kernel has no memory for {free} huge pages");
            return None;
        }
        Some(pool)
    }
}

impl Drop for HugePool {
    fn drop(&mut self) {
        let _ = fs::write(NR, &self.before);
    }
}
