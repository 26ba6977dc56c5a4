//! Files that are append-only in the source: `chattr +a`.
//!
//! # Model
//!
//! ```text
//!  opened for writing ─▶ EPERM ─▶ opened with O_APPEND ─▶ every write goes to the end of the source's file
//!
//!  written back:  |── page ─────────────|
//!                 |·······|=============|
//!                  stored   appended
//! ```
//!
//! A page is never written in place, and pages are written in order. Of a page of which the source has the beginning only
//! the rest is appended. The beginning is compared with the source, which has it from us: bytes that were written over, before the
//! file became append-only, are refused with `EPERM` and stay dirty. After a failed flush the kernel's pages are
//! dropped, so the comparison reads what the medium has.
//!
//! If others append beside us, what we append lands behind theirs. The cached pages show it elsewhere until all is written;
//! then they are dropped.
//!
//! Whether a file is append-only is found out when it is opened for writing without a descriptor that will do. Once the flag is
//! taken away the next such open gets an ordinary descriptor, when nothing waits for a flush.

use super::NodeOps;
use super::state::FileState;
use super::transfer;
use foliocache_mm::IoSegment;
use foliocache_sys::fd::{AsFd, BorrowedFd};
use foliocache_sys::{Errno, fd};

/// Bytes that are compared at a time.
const PIECE: usize = 64 << 10;

impl FileState {
    /// Whether the source takes bytes at the end of the file alone.
    pub(super) fn appends_only(&self) -> bool {
        self.io.lock().fds.as_ref().is_some_and(|fds| fds.appends)
    }
}

impl NodeOps {
    /// Appends what of `segments`, which lie at `pos` of the file, the source does not have: `stored` bytes of the file are there,
    /// after a failed flush all that the source shows.
    ///
    /// # Errors
    /// As [`AddressSpaceOperations::append_pages`](foliocache_mm::AddressSpaceOperations::append_pages).
    pub(super) fn append_range(
        &self,
        pos: u64,
        segments: &[IoSegment<'_>],
        stored: Option<u64>,
    ) -> Result<usize, Errno> {
        let fds = self.descriptors(true)?;
        if !fds.appends {
            return self.write_range(pos, segments);
        }
        let (file, fd) = (self.file(), fds.buffered.as_fd());
        if file.io.lock().stale {
            self.drop_stale(&fds);
        }
        let end = fd::fstat(fd)?.size;
        let stored = stored.unwrap_or(end);
        let len = transfer::total(segments);
        let there = stored.checked_sub(pos).ok_or(Errno::EIO)?;
        let there = there.min(len as u64) as usize;
        if !has(fd, pos, &transfer::part(segments, 0..there))? {
            return Err(Errno::EPERM);
        }
        if there == len {
            return Ok(len);
        }
        if end != stored {
            file.coherence(|machine| machine.doubt_data());
        }
        let rest = transfer::part(segments, there..len);
        Ok(there + self.write_range(pos + there as u64, &rest)?)
    }
}

/// Whether a file has these bytes at `pos`.
fn has(fd: BorrowedFd<'_>, pos: u64, segments: &[IoSegment<'_>]) -> Result<bool, Errno> {
    let mut at = pos;
    for segment in segments {
        for from in (0..segment.len()).step_by(PIECE) {
            let piece = segment.sub(from, PIECE.min(segment.len() - from));
            let (mut ours, mut theirs) = (vec![0; piece.len()], vec![0; piece.len()]);
            piece.copy_to(0, &mut ours);
            if fd::pread(fd, at, &mut theirs)? < theirs.len() || ours != theirs {
                return Ok(false);
            }
            at += piece.len() as u64;
        }
    }
    Ok(true)
}
