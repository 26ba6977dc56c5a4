//! Accesses of mapped files, ours and the kernel's alike.
//!
//! # Safety
//!
//! Files of a case keep their length while it runs, and have no other users. A store is one instruction, so that
//! concurrent readers see the old byte or the new one.
#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};

use foliocache_sys::memory::WindowAccess;
use foliocache_sys::testing::FileMapping;

use crate::files::PAGE;

/// Addresses that are a file's.
pub(crate) trait Mapped {
    /// The first of them, at a page, and how many there are. They are mapped for as long as the value is there.
    fn range(&self) -> (*mut u8, usize);
}

/// A file mapped by the kernel.
pub(crate) struct Kernels(FileMapping);

impl Kernels {
    /// Maps `len` bytes of a file, for loads and stores.
    pub(crate) fn new(file: &fs::File, len: usize) -> io::Result<Self> {
        Ok(Self(FileMapping::new(
            file.as_fd(),
            len,
            WindowAccess::ReadWrite,
        )?))
    }

    /// Opens a file and maps it for reads; `random` advises the kernel of random access.
    pub(crate) fn open(path: &Path, random: bool) -> io::Result<Self> {
        let file = fs::File::open(path)?;
        let len = file.metadata()?.len() as usize;
        let mapping = FileMapping::new(file.as_fd(), len, WindowAccess::Read)?;
        if random {
            mapping.advise_random()?;
        }
        Ok(Self(mapping))
    }
}

impl Mapped for Kernels {
    fn range(&self) -> (*mut u8, usize) {
        (self.0.as_ptr(), self.0.len())
    }
}

impl Mapped for foliocache::Mapping {
    fn range(&self) -> (*mut u8, usize) {
        (self.as_ptr(), self.len())
    }
}

/// The access to each page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Load,
    Store,
}

/// The pages that are accessed, and in what order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// From the first to the last.
    Up,
    /// From the last to the first.
    Down,
    /// One of so many, upwards.
    Every(usize),
}

/// One access to each page, from the first to the last.
pub(crate) fn touch(mapped: &dyn Mapped, access: Access) {
    touch_in(mapped, access, Order::Up);
}

/// One access to each page of an order; how many.
pub(crate) fn touch_in(mapped: &dyn Mapped, access: Access, order: Order) -> usize {
    let (start, len) = mapped.range();
    let pages = len.div_ceil(PAGE);
    let (step, last) = match order {
        Order::Every(step) => (step, 0),
        Order::Up => (1, 0),
        Order::Down => (1, pages - 1),
    };
    let touched = pages.div_ceil(step);
    for nth in 0..touched {
        // Counted from the far end, downwards.
        let at = (nth * step).abs_diff(last) * PAGE;
        // SAFETY: inside of the range, mapped and as long as its file (the module's premise).
        let byte = unsafe { AtomicU8::from_ptr(start.wrapping_add(at)) };
        // Relaxed: the byte is all there is.
        match access {
            Access::Load => drop(std::hint::black_box(byte.load(Ordering::Relaxed))),
            Access::Store => byte.store(2, Ordering::Relaxed),
        }
    }
    touched
}

/// Copies to `part` from `pos` on. Nothing stores there meanwhile.
#[inline]
pub(crate) fn copy(mapped: &impl Mapped, part: &mut [u8], pos: u64) -> io::Result<()> {
    let (start, len) = mapped.range();
    let pos = pos as usize;
    if pos + part.len() > len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let from = start.wrapping_add(pos);
    // SAFETY: inside of the range, mapped and as long as its file (the module's premise); the two are not the same
    // memory, and nothing stores to the file.
    unsafe { std::ptr::copy_nonoverlapping(from, part.as_mut_ptr(), part.len()) };
    Ok(())
}

/// Faults of this process that the kernel resolved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageFaults {
    /// Without I/O.
    pub(crate) minor: u64,
    /// With a wait for a disk.
    pub(crate) major: u64,
}

/// The faults so far.
pub(crate) fn page_faults() -> io::Result<PageFaults> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The name may hold anything, so the fields begin behind its last parenthesis.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let mut fields = fields.split_ascii_whitespace().skip(7).step_by(2);
    let mut number = || fields.next()?.parse().ok();
    let faults = number().zip(number());
    let (minor, major) = faults.ok_or(io::ErrorKind::InvalidData)?;
    Ok(PageFaults { minor, major })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_and_their_faults() {
        const PAGES: usize = 64;
        let file = tempfile().unwrap();
        file.set_len((PAGES * PAGE) as u64).unwrap();
        let mapped = Kernels::new(&file, PAGES * PAGE).unwrap();
        let before = page_faults().unwrap().minor;
        touch(&mapped, Access::Store);
        let faults = page_faults().unwrap().minor - before;
        assert!(faults > 0, "{faults}");
        touch(&mapped, Access::Load);
        let mut part = [0; 64];
        let last = (PAGES - 1) * PAGE;
        copy(&mapped, &mut part, last as u64).unwrap();
        assert_eq!((part[0], part[1]), (2, 0));
        let end = (PAGES * PAGE) as u64;
        assert!(copy(&mapped, &mut part, end).is_err());
    }

    fn tempfile() -> io::Result<fs::File> {
        let path = std::env::temp_dir().join(format!("foliocache-mapped-{}", std::process::id()));
        let file = fs::File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)?;
        fs::remove_file(&path)?;
        Ok(file)
    }
}
