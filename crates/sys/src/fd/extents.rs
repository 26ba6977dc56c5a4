//! The allocated ranges of a file that it does not share.
//!
//! # Safety
//!
//! The call writes to the structure that it is given, which has the layout of the kernel's `struct fiemap`.
#![allow(unsafe_code)]

use super::BorrowedFd;
use crate::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use std::ops::Range;

/// Most extents that one call returns.
const EXTENTS: usize = 32;

/// The extent is the last of the file.
const LAST: u32 = 0x1;
/// Another file shares the extent, so a write to it needs new blocks.
const SHARED: u32 = 0x2000;

/// `struct fiemap_extent`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// `struct fiemap`, without its extents.
#[derive(Default)]
#[repr(C)]
struct Header {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
}

#[derive(Default)]
#[repr(C)]
struct Map {
    header: Header,
    extents: [Extent; EXTENTS],
}

const _: () = assert!(size_of::<Header>() == 32 && size_of::<Extent>() == 56);

/// `FS_IOC_FIEMAP`.
const FIEMAP: Opcode = opcode::read_write::<Header>(b'f', 11);

/// Whether all of a range has blocks in the file's own name, written or not: overwriting it takes no room on a file system that
/// writes in place. A system call for each 32 extents; may block on I/O.
///
/// # Errors
///
/// `EOPNOTSUPP` where the file system does not say, `EIO`, `EINVAL` for no bytes.
pub fn has_own_blocks(fd: BorrowedFd<'_>, range: Range<u64>) -> Result<bool, Errno> {
    let mut at = range.start;
    loop {
        let mut map = Map {
            header: Header {
                start: at,
                length: range.end.saturating_sub(at),
                count: EXTENTS as u32,
                ..Header::default()
            },
            ..Map::default()
        };
        // SAFETY: the structure is the kernel's for this code (see the module's header).
        let call = unsafe { Updater::<FIEMAP, Map>::new(&mut map) };
        // SAFETY: the kernel writes to the structure alone, at most `count` extents.
        unsafe { ioctl(fd, call) }?;
        let found = &map.extents[..EXTENTS.min(map.header.mapped as usize)];
        for extent in found {
            if extent.logical > at || extent.flags & SHARED != 0 {
                return Ok(false);
            }
            at = extent.logical + extent.length;
            if at >= range.end {
                return Ok(true);
            }
            if extent.flags & LAST != 0 {
                return Ok(false);
            }
        }
        if found.is_empty() {
            return Ok(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    #[test]
    fn blocks_of_written_and_of_allocated_bytes_are_found_and_holes_are_not() {
        let path = std::env::temp_dir().join(format!("foliocache-extents-{}", std::process::id()));
        let file = File::create_new(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        // More extents than one call returns.
        for page in (0..200).step_by(2) {
            file.write_all_at(&[7; 4096], page * 4096).unwrap();
        }
        crate::fd::allocate(file.as_fd(), 200 * 4096, 8192).unwrap();
        file.sync_all().unwrap();
        let has =
            |pages: Range<u64>| has_own_blocks(file.as_fd(), pages.start * 4096..pages.end * 4096);
        if has(0..1) == Err(Errno::EOPNOTSUPP) {
            println!(
                "skipped: the file system of {} has no FIEMAP",
                path.display()
            );
            return;
        }
        assert_eq!(has(0..1), Ok(true));
        assert_eq!(has(0..2), Ok(false));
        assert_eq!(has(198..199), Ok(true));
        assert_eq!(has(200..202), Ok(true), "allocated and not written");
        assert_eq!(has(201..300), Ok(false));
        assert_eq!(has(300..301), Ok(false));
        for page in (1..200).step_by(2) {
            file.write_all_at(&[7; 4096], page * 4096).unwrap();
        }
        assert_eq!(has(0..202), Ok(true));
        assert_eq!(has(0..0), Err(Errno::EINVAL));
    }
}
