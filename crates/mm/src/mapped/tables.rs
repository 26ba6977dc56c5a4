//! The page tables of a window: emptying, filling and protecting them.
//!
//! # Safety
//!
//! The memory behind a window belongs to folios, and the program uses its addresses only while it has the
//! [`Vma`](crate::Vma).
#![allow(unsafe_code)]

use foliocache_sys::Errno;
use foliocache_sys::userfaultfd::Access;
use std::ops::Range;

use super::access::{LockedAccess, VmaAccess};
use super::window::Window;
use super::windows::Windows;
use crate::frames::BLOCK_FRAMES;
use crate::types::{PAGE_SHIFT, PAGE_SIZE};

impl<F> Window<F> {
    /// Empties the page tables of those of `pages` that it shows.
    pub(crate) fn zap(&self, windows: &Windows<F>, pages: &Range<u64>) {
        if self.locked.is_some() {
            return;
        }
        for run in self.with_tables(pages) {
            let zapped = windows.area.zap(windows.offset(self.addresses(&run)));
            debug_assert!(zapped.is_ok(), "{zapped:?}");
        }
    }

    /// Lets those of `pages` that it shows be tried again.
    pub(crate) fn end_poison(&self, windows: &Windows<F>, pages: &Range<u64>) {
        let here = self.addresses(&self.part(pages));
        windows.end_poison(|_, page| page.start < here.end && here.start < page.end);
    }

    /// Has stores to those of `pages` that it shows be faults.
    pub(crate) fn write_protect(&self, windows: &Windows<F>, pages: &Range<u64>) {
        if self.locked.is_some() || self.access == VmaAccess::Read {
            return;
        }
        for run in self.with_tables(pages) {
            let protected = windows.faults.write_protect(self.addresses(&run));
            debug_assert!(protected.is_ok(), "{protected:?}");
        }
    }

    /// Puts a page that is not in memory there, and into the page tables, for reads; whether it did. The direct map does
    /// not have it then, so its eviction takes one mapping away and not two.
    ///
    /// Context: as of [`Window::install`].
    pub(crate) fn place(&self, windows: &Windows<F>, page: u64, bytes: &[u8; PAGE_SIZE]) -> bool {
        let to = self.address_of(page);
        let progress = windows.faults.copy(to, bytes, self.read_access());
        progress.stopped.is_none()
    }

    /// Puts pages into the page tables, from the first on, up to the first that is there; returns the page
    /// after the last that is there now with this access. Huge frames are put there whole.
    ///
    /// Context: the folios are locked, and the window is in its file's list, which is held shared.
    ///
    /// # Errors
    /// `EIO` where the first page is not in memory.
    pub(crate) fn install(
        &self,
        windows: &Windows<F>,
        pages: Range<u64>,
        access: Access,
    ) -> Result<u64, Errno> {
        let faults = &windows.faults;
        let protection = match access {
            Access::Read => self.read_access(),
            Access::Write => Access::Write,
        };
        let pages = self.whole(&pages);
        let mut at = pages.start;
        while at < pages.end {
            let progress = faults.map(self.addresses(&(at..pages.end)), protection);
            at += (progress.bytes >> PAGE_SHIFT) as u64;
            match progress.stopped {
                None | Some(Errno::EAGAIN) => {}
                // Of a read fault, another thread was faster; of a write fault, they are write-protected.
                Some(Errno::EEXIST) if access == Access::Read => {
                    return Ok(at.max(self.whole(&(pages.start..pages.start + 1)).end));
                }
                Some(Errno::EEXIST) => {
                    faults.allow_writes(self.addresses(&(at..pages.end)))?;
                    return Ok(pages.end);
                }
                Some(_) if at > pages.start => return Ok(at),
                Some(_) => return Err(Errno::EIO),
            }
        }
        Ok(at)
    }

    /// Has the kernel map all its pages. Context: they are held, and the page tables are charged.
    pub(crate) fn fill(&self, windows: &Windows<F>) {
        let addresses = self.addresses(&self.whole(&self.pages));
        let write = self.locked == Some(LockedAccess::Untracked);
        if let Err(error) = windows.area.populate(windows.offset(addresses), write) {
            tracing::debug!(%error, "pages of a locked mapping will be mapped as they are touched");
        }
    }

    /// Takes those of `pages` that it shows out of a window without faults, for good.
    pub(crate) fn cut(&self, windows: &Windows<F>, pages: &Range<u64>) {
        let mut part = self.part(pages);
        if self.huge {
            // The file has a part of its last frame.
            let first = part.start.next_multiple_of(BLOCK_FRAMES.into());
            part = first..self.whole(&part).end;
        }
        if self.locked.is_none() || part.is_empty() {
            return;
        }
        // SAFETY: the program has been told that what is cut off the file cannot be accessed.
        if let Err(error) = unsafe { windows.area.unmap(windows.offset(self.addresses(&part))) } {
            tracing::error!(%error, "pages that the file no longer has stay mapped");
        }
    }
}
