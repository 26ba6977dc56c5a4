//! Memory of the caller's that is bad, becomes good, or goes away, with the handlers installed.
//!
//! # Safety
//!
//! A [`Memory`] owns its mapping. Raw reads and writes over its bad parts are handled by the fault
//! handlers; slices are made over good parts only.
#![allow(unsafe_code)]
#![cfg(target_arch = "x86_64")]

use crate::common::{PAGE, on_disk, pattern};
use foliocache::{Cache, Directory, Errno, Error, File};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};

struct Memory {
    start: *mut u8,
    len: usize,
}

// SAFETY: an address range; the tests order their accesses.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(len: usize) -> Memory {
        Memory::map(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    /// At addresses that no other code uses: an unmapped part stays unmapped.
    fn map(len: usize, flags: i32, fd: i32) -> Memory {
        static NEXT: AtomicUsize = AtomicUsize::new(1 << 40);
        // Relaxed: only has to differ.
        let at = NEXT.fetch_add(1 << 30, Ordering::Relaxed);
        let at = std::ptr::with_exposed_provenance_mut(at);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = flags | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: a new mapping.
        let start = unsafe { libc::mmap(at, len, protection, flags, fd, 0) };
        assert_eq!(start, at, "{}", std::io::Error::last_os_error());
        let start = start.cast();
        Memory { start, len }
    }

    fn filled(bytes: &[u8]) -> Memory {
        let memory = Memory::new(bytes.len());
        // SAFETY: a mapping of this length, writable, ours.
        unsafe {
            memory
                .start
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
        memory
    }

    fn at(&self, offset: usize) -> *mut u8 {
        self.start.wrapping_add(offset)
    }

    fn protect(&self, from: usize, to: usize, protection: i32) {
        // SAFETY: our mapping; its users expect faults.
        let done = unsafe { libc::mprotect(self.at(from).cast(), to - from, protection) };
        assert_eq!(done, 0);
    }

    fn unmap(&self, from: usize) {
        // SAFETY: our part of the address space; its users expect faults.
        let done = unsafe { libc::munmap(self.at(from).cast(), self.len - from) };
        assert_eq!(done, 0);
    }

    /// Writes from `offset` on to the end of the mapping.
    fn write_to(&self, file: &File, offset: usize, pos: u64) -> Result<usize, Error> {
        // SAFETY: the handlers are installed.
        unsafe { file.write_raw_at(self.at(offset), self.len - offset, pos) }
    }

    /// Reads into everything from `offset` on.
    fn read_from(&self, file: &File, offset: usize, pos: u64) -> Result<usize, Error> {
        // SAFETY: the handlers are installed.
        unsafe { file.read_raw_at(self.at(offset), self.len - offset, pos) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.unmap(0);
    }
}

fn cache() -> Cache {
    let builder = Cache::builder().memory("64M").fault_handlers(true);
    builder.build().expect("a cache")
}

/// Runs a test on a file system in memory and on one over a directory.
fn on_both(test: impl Fn(&Directory)) {
    let (cache, source) = (cache(), on_disk());
    test(&cache.memfs().unwrap());
    test(&cache.directory(source.path()).unwrap());
    cache.close().unwrap();
}

fn content(file: &File) -> Vec<u8> {
    let mut bytes = vec![0xee; file.len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn is_efault(result: Result<usize, Error>) {
    assert_eq!(result.unwrap_err().errno(), Errno::EFAULT);
}

#[test]
fn a_source_that_cannot_be_read_from_its_middle_on() {
    on_both(|dir| {
        let bytes = pattern(1, 4 * PAGE);
        let source = Memory::filled(&bytes);
        source.protect(2 * PAGE, 4 * PAGE, libc::PROT_NONE);
        for (name, offset, pos) in [("a", 0, 0), ("b", 100, 0), ("c", 100, 77), ("d", 0, 5000)] {
            let file = dir.create(name).unwrap();
            let good = 2 * PAGE - offset;
            assert_eq!(source.write_to(&file, offset, pos).unwrap(), good);
            assert_eq!(file.len(), pos + good as u64, "no byte beyond what counts");
            let mut expected = vec![0; pos as usize];
            expected.extend(&bytes[offset..2 * PAGE]);
            assert!(content(&file) == expected, "{name}");
            // No progress at all, at the end of the file, in its middle and beyond it.
            for pos in [file.len(), 10, file.len() + 9 * PAGE as u64] {
                is_efault(source.write_to(&file, 2 * PAGE, pos));
            }
            assert!(content(&file) == expected, "{name}");
            // Over existing data.
            assert_eq!(source.write_to(&file, offset, pos).unwrap(), good);
            assert_eq!(source.write_to(&file, 2 * PAGE - 3, 1).unwrap(), 3);
            expected[1..4].copy_from_slice(&bytes[2 * PAGE - 3..2 * PAGE]);
            assert!(content(&file) == expected, "{name}");
        }
    });
}

#[test]
fn a_source_that_was_never_there() {
    on_both(|dir| {
        let file = dir.create("f").unwrap();
        for addr in [
            std::ptr::null(),
            64 as *const u8,
            (1_usize << 62) as *const u8,
        ] {
            // SAFETY: the handlers are installed.
            is_efault(unsafe { file.write_raw_at(addr, 100, 0) });
            // SAFETY: the handlers are installed.
            assert_eq!(unsafe { file.write_raw_at(addr, 0, 0) }.unwrap(), 0);
        }
        assert_eq!(file.len(), 0);
        // A mapping past the end of its file: SIGBUS.
        let short = tempfile::tempfile().unwrap();
        short.set_len(PAGE as u64).unwrap();
        let source = Memory::map(2 * PAGE, libc::MAP_SHARED, short.as_raw_fd());
        assert_eq!(source.write_to(&file, 0, 3).unwrap(), PAGE);
        is_efault(source.write_to(&file, PAGE, 0));
    });
}

/// The write meets the bad page or not, depending on the timing; the bytes that it reports are
/// there, and nothing else changed.
#[test]
fn a_source_that_becomes_readable_while_the_write_runs() {
    on_both(|dir| {
        let file = dir.create("f").unwrap();
        let bytes = pattern(2, 16 * PAGE);
        let source = Memory::filled(&bytes);
        let (whole, stopped) = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let (mut whole, mut stopped) = (0, 0);
                for round in 0..400_u64 {
                    file.set_len(0).unwrap();
                    if round % 2 == 0 {
                        file.write_all_at(&vec![0xee; 16 * PAGE], 0).unwrap();
                    }
                    let n = source.write_to(&file, 0, 0).unwrap();
                    assert!(n >= 7 * PAGE, "the good pages before it count");
                    let now = content(&file);
                    assert!(now[..n] == bytes[..n]);
                    assert!(now[n..].iter().all(|&byte| byte == 0xee));
                    assert_eq!(now.len(), if round % 2 == 0 { 16 * PAGE } else { n });
                    match n == bytes.len() {
                        true => whole += 1,
                        false => stopped += 1,
                    }
                }
                (whole, stopped)
            });
            while !writer.is_finished() {
                source.protect(7 * PAGE, 9 * PAGE, libc::PROT_NONE);
                std::thread::yield_now();
                source.protect(7 * PAGE, 9 * PAGE, libc::PROT_READ);
                std::thread::yield_now();
            }
            writer.join().unwrap()
        });
        println!("{whole} whole, {stopped} stopped");
        assert_eq!(source.write_to(&file, 0, 0).unwrap(), bytes.len());
        assert!(content(&file) == bytes);
    });
}

#[test]
fn a_source_that_vanishes_during_the_write() {
    on_both(|dir| {
        let bytes = pattern(3, 8 << 20);
        for round in 0..10 {
            let file = dir.create("f").unwrap();
            let source = Memory::filled(&bytes);
            let from = (1 + round % 7) << 20;
            let n = std::thread::scope(|scope| {
                let writer = scope.spawn(|| source.write_to(&file, 0, 0));
                while file.len() < (round as u64) << 18 && !writer.is_finished() {
                    std::hint::spin_loop();
                }
                source.unmap(from);
                writer.join().unwrap().unwrap()
            });
            assert!(n >= from && n <= bytes.len(), "{n} of {from}");
            assert_eq!(file.len(), n as u64);
            assert!(content(&file) == bytes[..n]);
        }
    });
}

#[test]
fn destinations_that_cannot_be_written() {
    on_both(|dir| {
        let file = dir.create("f").unwrap();
        let bytes = pattern(4, 4 * PAGE);
        file.write_all_at(&bytes, 0).unwrap();
        let target = Memory::new(4 * PAGE);
        for bad in [libc::PROT_NONE, libc::PROT_READ] {
            target.protect(2 * PAGE, 4 * PAGE, bad);
            for (offset, pos) in [(0, 0), (5, 0), (0, 5), (PAGE + 1, 2 * PAGE)] {
                let good = 2 * PAGE - offset;
                let n = target.read_from(&file, offset, pos as u64).unwrap();
                assert_eq!(n, good);
                // SAFETY: these pages are readable, and not written to.
                let got = unsafe { std::slice::from_raw_parts(target.at(offset), n) };
                assert!(got == &bytes[pos..pos + n]);
            }
            is_efault(target.read_from(&file, 2 * PAGE, 0));
            // Past the end there is nothing to copy, so nothing that could go wrong.
            assert_eq!(target.read_from(&file, 2 * PAGE, 1 << 30).unwrap(), 0);
        }
        // SAFETY: the handlers are installed.
        is_efault(unsafe { file.read_raw_at(std::ptr::null_mut(), 64, 0) });
        // The same where the pages have to be brought in first.
        file.sync_data().unwrap();
        file.advise(foliocache::Advice::DontNeed, ..).unwrap();
        is_efault(target.read_from(&file, 2 * PAGE, 0));
        assert!(content(&file) == bytes);
    });
}
