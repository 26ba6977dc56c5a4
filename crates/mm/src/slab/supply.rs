//! The pages of a [`Slab`](super::Slab) that are free, and where all of them lie.
//!
//! # Safety
//!
//! As stated in [`super`].
#![allow(unsafe_code)]

use foliocache_sync::Arc;
use foliocache_sys::memory::{AnonymousRange, PAGE_SIZE};
use std::ptr::NonNull;

/// Pages that are mapped at a time, a multiple of 64: 1 MiB of address space.
pub(super) const REGION_PAGES: usize = if cfg!(loom) { 64 } else { 256 };
#[derive(Default)]
pub(super) struct Supply {
    regions: Vec<Arc<AnonymousRange>>,
    /// A bit for each page that has memory.
    resident: Vec<u64>,
    /// No word before this one has a page without memory.
    first: usize,
    /// Free pages that have memory, and are charged.
    pub(super) warm: Vec<u32>,
    /// The next page that a scan visits.
    hand: usize,
}

impl Supply {
    /// The lowest page without memory: so the order of pages is about that in which they are taken.
    pub(super) fn take(&mut self) -> Option<u32> {
        let words = &self.resident[self.first..];
        let at = self.first + words.iter().position(|&word| word != u64::MAX)?;
        self.first = at;
        let bit = self.resident[at].trailing_ones();
        self.resident[at] |= 1 << bit;
        Some(at as u32 * u64::BITS + bit)
    }

    /// The page has no memory any more.
    pub(super) fn put(&mut self, page: u32) {
        let at = (page / u64::BITS) as usize;
        self.resident[at] &= !(1 << (page % u64::BITS));
        self.first = self.first.min(at);
    }

    /// Has the pages of a new region.
    pub(super) fn add(&mut self, region: AnonymousRange) {
        self.resident.extend([0; REGION_PAGES / 64]);
        self.regions.push(Arc::new(region));
    }

    pub(super) fn region(&self, page: u32) -> (Arc<AnonymousRange>, usize) {
        let page = page as usize;
        (
            Arc::clone(&self.regions[page / REGION_PAGES]),
            page % REGION_PAGES,
        )
    }

    pub(super) fn address(&self, page: u32) -> NonNull<u8> {
        let page = page as usize;
        let base = self.regions[page / REGION_PAGES].as_ptr();
        // SAFETY: within the region.
        unsafe { base.add(page % REGION_PAGES * PAGE_SIZE) }
    }

    /// The next page of the hand.
    pub(super) fn next(&mut self) -> Option<u32> {
        let words = self.resident.len();
        let (first, bit) = (self.hand / 64, self.hand % 64);
        for step in 0..=words {
            // No region is mapped yet, though a page is charged already: there is nothing to come to.
            let at = (first + step).checked_rem(words)?;
            // The first word from the hand on, and at the end of the round its other bits.
            let from = if step == 0 { u64::MAX << bit } else { u64::MAX };
            let word = self.resident[at] & from;
            if word != 0 {
                let page = at * 64 + word.trailing_zeros() as usize;
                self.hand = (page + 1) % (words * 64);
                return Some(page as u32);
            }
        }
        None
    }
}
