//! [`Window`]: some pages of a file at some addresses. The procedures are in `window.rs`.

use foliocache_sync::atomic::AtomicU64;
use foliocache_sync::cell::OnceLock;
use foliocache_sys::userfaultfd::Access;
use std::ops::Range;

use super::access::{LockedAccess, VmaAccess};
use super::streams::{Stream, Streams};
use crate::frames::{BLOCK_FRAMES, BLOCK_SIZE, Tables};
use crate::readahead::ReadaheadState;
use crate::slab::SlabWeak;
use crate::types::{PAGE_SHIFT, PAGE_SIZE, PageIndex};

/// Bytes that a window takes besides: the kernel's `vm_area_struct`, entries in lists.
const WINDOW_OVERHEAD: u64 = 512;

/// Some pages of a file at some addresses.
pub(crate) struct Window<F> {
    pub(crate) mapping: SlabWeak<F>,
    pub(crate) pages: Range<u64>,
    pub(crate) access: VmaAccess,
    /// It shows huge frames, whole ones: they may begin before its pages, and end after them.
    pub(crate) huge: bool,
    /// Its pages are held, and the kernel maps them: there are no faults of ours.
    pub(crate) locked: Option<LockedAccess>,
    /// Address of its first page.
    pub(crate) address: usize,
    /// Units of the area that it takes.
    pub(crate) units: Range<u32>,
    /// Of `units`.
    pub(crate) tables: Tables,
    pub(crate) readahead: ReadaheadState,
    /// Pages that stores made dirty and did not wait for yet.
    pub(crate) owed: AtomicU64,
    pub(crate) streams: Streams,
    /// Called before stores can be made, see [`Vma::on_store`](crate::Vma::on_store).
    pub(crate) stored: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl<F> Window<F> {
    /// Bytes that a window onto so many pages takes by itself.
    pub(crate) fn memory_bytes(pages: &Range<u64>) -> u64 {
        let units = (pages.end - pages.start).div_ceil(BLOCK_FRAMES.into()) + 1;
        size_of::<Self>() as u64 + units.div_ceil(64) * 8 + WINDOW_OVERHEAD
    }

    pub(crate) fn address_of(&self, page: u64) -> usize {
        let pages = page.wrapping_sub(self.pages.start) as usize;
        self.address.wrapping_add(pages.wrapping_mul(PAGE_SIZE))
    }

    pub(crate) fn addresses(&self, pages: &Range<u64>) -> Range<usize> {
        self.address_of(pages.start)..self.address_of(pages.end)
    }

    /// The part of `pages` that it shows.
    pub(crate) fn part(&self, pages: &Range<u64>) -> Range<u64> {
        let within = |page: u64| page.clamp(self.pages.start, self.pages.end);
        within(pages.start)..within(pages.end)
    }

    /// Pages that it shows, and those of their huge frames besides.
    pub(crate) fn whole(&self, pages: &Range<u64>) -> Range<u64> {
        match self.huge && !pages.is_empty() {
            true => {
                let unit = u64::from(BLOCK_FRAMES);
                pages.start / unit * unit..pages.end.next_multiple_of(unit)
            }
            false => pages.clone(),
        }
    }

    /// The addresses of a page, or of its huge frame.
    pub(crate) fn around(&self, page: u64) -> Range<usize> {
        self.addresses(&self.whole(&(page..page + 1)))
    }

    /// The page after the last whose page table is that of `page`.
    pub(crate) fn table_end(&self, page: u64) -> u64 {
        let unit = (self.address_of(page) & !(BLOCK_SIZE - 1)) + BLOCK_SIZE;
        (self.pages.start + ((unit - self.address) >> PAGE_SHIFT) as u64).min(self.pages.end)
    }

    /// The tables of pages, counted from the window's first.
    pub(crate) fn units_of(&self, pages: &Range<u64>) -> Range<u32> {
        self.unit_of(pages.start)..self.unit_of(pages.end - 1) + 1
    }

    pub(crate) fn unit_of(&self, page: u64) -> u32 {
        let first = self.address & !(BLOCK_SIZE - 1);
        ((self.address_of(page) - first) / BLOCK_SIZE) as u32
    }

    /// The pages of a table.
    pub(crate) fn pages_of(&self, unit: u32) -> Range<u64> {
        let lead = (self.address % BLOCK_SIZE / PAGE_SIZE) as u64;
        let first = self.pages.start + u64::from(unit) * u64::from(BLOCK_FRAMES);
        let pages = first..first + u64::from(BLOCK_FRAMES);
        self.part(&(pages.start.saturating_sub(lead)..pages.end - lead))
    }

    /// Runs of pages for whose addresses there are page tables. Huge frames need none.
    pub(crate) fn with_tables(&self, pages: &Range<u64>) -> Vec<Range<u64>> {
        let pages = self.part(pages);
        if self.huge && !pages.is_empty() {
            return vec![self.whole(&pages)];
        }
        let (mut runs, mut at): (Vec<Range<u64>>, _) = (Vec::new(), pages.start);
        if pages.is_empty() {
            return runs;
        }
        for unit in self.units_of(&pages) {
            let end = self.table_end(at).min(pages.end);
            if self.tables.has(unit) {
                match runs.last_mut().filter(|run| run.end == at) {
                    Some(run) => run.end = end,
                    None => runs.push(at..end),
                }
            }
            at = end;
        }
        runs
    }

    /// Whether the page table of a page is charged: it is as long as the list of the file's windows is held.
    pub(crate) fn has_table(&self, page: u64) -> bool {
        self.huge || self.tables.has(self.unit_of(page))
    }

    /// The stream of a fault, which is given at most `most` pages.
    pub(crate) fn expect(&self, page: PageIndex, write: bool, most: u64) -> Stream<'_> {
        self.streams.expect(page.0, write, most.max(1).ilog2())
    }

    /// How a page is mapped for reads. The kernel refuses stores to a window for reads. Write protection would leave a
    /// marker for each page that is punched, which the next fault pays for.
    pub(crate) fn read_access(&self) -> Access {
        match self.access {
            VmaAccess::Read => Access::Write,
            VmaAccess::ReadWrite => Access::Read,
        }
    }

    /// Notes stores that were no faults, or that may have been made.
    pub(crate) fn note_stores(&self) {
        if let Some(stored) = self.stored.get() {
            stored();
        }
    }
}
