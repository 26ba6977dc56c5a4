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

/// Pages that are there already, or in bad memory, and that a fault of a load passes.
const MOST_STOPS: u32 = 16;
/// Pages that are there, protected, and of which a fault of a store makes sure.
const MOST_PROTECTED: u32 = 4;

/// The pages that a fault has put into page tables.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Installed {
    /// From the fault's page on all before this one are there, with its access.
    pub(crate) end: u64,
    /// Pages that were not there before, with this access.
    pub(crate) pages: u64,
}

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

    /// Puts runs of pages into the page tables, the one with `page` first. Huge frames are put there whole. Frames in bad memory
    /// are left out: the kernel refuses them.
    ///
    /// Context: the folios are locked, and the window is in its file's list, which is held shared. For stores there is one run.
    ///
    /// # Errors
    /// `EIO` where `page` is not in memory, or in bad memory.
    pub(crate) fn install(
        &self,
        windows: &Windows<F>,
        runs: &[Range<u64>],
        page: u64,
        access: Access,
    ) -> Result<Installed, Errno> {
        if access == Access::Write {
            return self.map_for_stores(windows, self.whole(&runs[0]), page);
        }
        let (mut stops, mut installed) = (MOST_STOPS, Installed::default());
        let of_page = |run: &&Range<u64>| run.contains(&page);
        let others = runs.iter().filter(|run| !of_page(run));
        for run in runs.iter().filter(of_page).chain(others) {
            let mapped = self.map_missing(windows, self.whole(run), page, &mut stops)?;
            installed.pages += mapped.pages;
            installed.end = match of_page(&run) {
                true => mapped.end,
                false => installed.end,
            };
        }
        Ok(installed)
    }

    /// Maps what is not there of a run of pages, for loads. Each page that is costs a call of its own, so it ends after some.
    fn map_missing(
        &self,
        windows: &Windows<F>,
        run: Range<u64>,
        page: u64,
        stops: &mut u32,
    ) -> Result<Installed, Errno> {
        let (mut at, mut pages, mut missing) = (run.start, 0, None);
        while at < run.end {
            let addresses = self.addresses(&(at..run.end));
            let progress = windows.faults.map(addresses, self.read_access());
            let new = (progress.bytes >> PAGE_SHIFT) as u64;
            (at, pages) = (at + new, pages + new);
            let stopped = match progress.stopped {
                None | Some(Errno::EAGAIN) => continue,
                Some(stopped) => stopped,
            };
            let is_there =
                stopped == Errno::EEXIST || foliocache_sync::planted!(bad_frame_taken_for_mapped);
            if !is_there && at == page {
                return Err(Errno::EIO);
            }
            if !is_there && page < at && missing.is_none() {
                missing = Some(at);
            }
            at = self.whole(&(at..at + 1)).end;
            *stops = stops.saturating_sub(1);
            if *stops == 0 {
                match at <= page && page < run.end {
                    true => at = page,
                    false => break,
                }
            }
        }
        let end = missing.unwrap_or(at);
        Ok(Installed { end, pages })
    }

    /// Maps a run of pages for stores, or allows stores to those that are there.
    fn map_for_stores(
        &self,
        windows: &Windows<F>,
        run: Range<u64>,
        page: u64,
    ) -> Result<Installed, Errno> {
        let (mut at, mut pages, mut stops) = (run.start, 0, MOST_PROTECTED);
        while at < run.end {
            let addresses = self.addresses(&(at..run.end));
            let progress = windows.faults.map(addresses.clone(), Access::Write);
            let new = (progress.bytes >> PAGE_SHIFT) as u64;
            (at, pages) = (at + new, pages + new);
            match progress.stopped {
                None | Some(Errno::EAGAIN) => {}
                Some(Errno::EEXIST) => {
                    if stops == MOST_PROTECTED {
                        // All that are there, at once.
                        windows
                            .faults
                            .allow_writes(self.addresses(&(at..run.end)))?;
                    }
                    pages += 1;
                    at = self.whole(&(at..at + 1)).end.max(page);
                    stops -= 1;
                    if stops == 0 && page < at {
                        break;
                    }
                }
                Some(_) if at < page => at = page,
                Some(_) if at == page => return Err(Errno::EIO),
                Some(_) => break,
            }
        }
        Ok(Installed { end: at, pages })
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
