//! A source whose missing page is brought in by a thread of this process that itself uses the file
//! that is being written, the very page of it included: userfaultfd in its thread mode.
//!
//! The kernel waits for that thread inside the copy, under the folio lock; no signal comes. What such
//! a thread may do is hence what needs no lock of the page: read it where it is cached, as it was
//! before; read and overwrite other pages.
#![cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
#![allow(missing_docs)]
#![allow(unsafe_code, reason = "userfaultfd by hand")]

mod bad_memory;
mod common;

use bad_memory::{Memory, PAGE, Watch};
use common::{Store, assert_empty, file, pattern, read, storage, write};
use foliocache_mm::{AddressSpace, Iocb, IovIter, ReadaheadState};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// A userfaultfd for one memory, whose pages are missing.
struct UserFault(OwnedFd);

const UFFDIO_API: u64 = 0xc018_aa3f;
const UFFDIO_REGISTER: u64 = 0xc020_aa00;
const UFFDIO_COPY: u64 = 0xc028_aa03;

impl UserFault {
    /// `None` where the kernel does not allow it.
    fn new(memory: &Memory) -> Option<Self> {
        const USER_MODE_ONLY: libc::c_int = 1;
        let flags = libc::O_CLOEXEC | USER_MODE_ONLY;
        // SAFETY: makes a file descriptor or fails.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        if fd < 0 {
            return None;
        }
        // SAFETY: a descriptor that nobody else has.
        let this = Self(unsafe { OwnedFd::from_raw_fd(fd as i32) });
        // Version 0xAA, no feature asked for.
        this.ioctl(UFFDIO_API, &mut [0xaa, 0, 0]);
        // Missing pages alone.
        let (start, len) = (memory.at(0).expose_provenance(), memory.len());
        this.ioctl(UFFDIO_REGISTER, &mut [start as u64, len as u64, 1, 0]);
        Some(this)
    }

    fn ioctl<const N: usize>(&self, request: u64, argument: &mut [u64; N]) {
        // SAFETY: the argument is as long as the request says.
        let rc = unsafe { libc::ioctl(self.0.as_raw_fd(), request, argument.as_mut_ptr()) };
        assert_eq!(rc, 0, "{request:x}: {}", std::io::Error::last_os_error());
    }

    /// The address of the page that somebody waits for.
    fn wait(&self) -> u64 {
        let mut message = [0u64; 4];
        // SAFETY: a message is 32 bytes.
        let n = unsafe { libc::read(self.0.as_raw_fd(), message.as_mut_ptr().cast(), 32) };
        assert_eq!(n, 32);
        assert_eq!(message[0] as u8, 0x12, "a page fault");
        message[2] & !(PAGE as u64 - 1)
    }

    /// Puts a page there and wakes who waits for it.
    fn supply(&self, page: u64, bytes: &[u8]) {
        let from = bytes.as_ptr().expose_provenance() as u64;
        assert_eq!(bytes.len(), PAGE);
        self.ioctl(UFFDIO_COPY, &mut [page, from, PAGE as u64, 0, 0]);
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
            eprintln!("a deadlock: 30 seconds without an end");
            std::process::abort();
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
    let memory = Memory::new(pages);
    let _watch = Watch::pass_all(&memory);
    let _watchdog = watchdog();
    let Some(userfault) = UserFault::new(&memory) else {
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
                let page = userfault.wait();
                let number = (page as usize - memory.at(0).addr()) / PAGE;
                userfault.supply(page, &supply(number));
            }
        });
        Some(access(&memory))
    })
}

fn write_from(file: &Arc<AddressSpace>, pos: u64, memory: &Memory) -> usize {
    // SAFETY: the handlers are installed by `Watch`.
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
        // SAFETY: the handlers are installed by `Watch`.
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
