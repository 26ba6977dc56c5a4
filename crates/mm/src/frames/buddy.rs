//! The buddy allocator of one block: 512 frames in free chunks of orders 0 to 9.
//!
//! # Model
//!
//! One bit for each naturally aligned chunk of each order, set while that chunk is free as a whole:
//!
//! ```text
//! order   0    1    2    3    4   5   6   7   8   9
//! chunks 512  256  128   64  32  16   8   4   2   1
//! words  0–7 8–11 12–13  14  ──── word 15, at bits 0, 32, 48, 56, 60, 62 ────
//! ```
//!
//! # Invariants
//!
//! 1. A frame is covered by at most one set bit; it is in use exactly if it is covered by none.
//! 2. No two buddies of one order are both set: they would be one chunk of the next order.
//! 3. `counts[order]` is the number of set bits of that order, `orders` has a bit for each order
//!    whose count is not zero, and `free` is the number of frames covered.

use super::{BLOCK_FRAMES, MAX_ORDER};

const ORDERS: usize = MAX_ORDER as usize + 1;
const WORDS: usize = 16;
const FIRST_BIT: [u32; ORDERS] = [0, 512, 768, 896, 960, 992, 1008, 1016, 1020, 1022];

/// Which frames of a block are in use: bit `i % 64` of word `i / 64`.
pub(super) type InUse = [u64; BLOCK_FRAMES as usize / 64];

#[derive(Clone, Debug)]
pub(super) struct Buddy {
    bits: [u64; WORDS],
    counts: [u16; ORDERS],
    orders: u16,
    free: u16,
}

impl Buddy {
    pub(super) fn new() -> Self {
        let mut buddy = Self {
            bits: [0; WORDS],
            counts: [0; ORDERS],
            orders: 0,
            free: BLOCK_FRAMES as u16,
        };
        buddy.set(MAX_ORDER, 0);
        buddy
    }

    #[inline]
    pub(super) fn free_frames(&self) -> u32 {
        u32::from(self.free)
    }

    #[inline]
    pub(super) fn has_order(&self, order: u32) -> bool {
        self.orders >> order != 0
    }

    /// Allocates a chunk of `order`; the first frame's index in the block.
    ///
    /// The smallest chunk that fits is split, so that large ones stay whole.
    pub(super) fn alloc(&mut self, order: u32) -> Option<u32> {
        let fitting = self.orders >> order;
        if fitting == 0 {
            return None;
        }
        let mut at = order + fitting.trailing_zeros();
        let mut chunk = self.first(at);
        self.clear(at, chunk);
        while at > order {
            at -= 1;
            chunk *= 2;
            self.set(at, chunk + 1);
        }
        self.free -= 1 << order;
        Some(chunk << order)
    }

    /// Frees the chunk of `order` whose first frame has index `index`, merging it with its buddies.
    ///
    /// Panics when a frame of it is free already.
    pub(super) fn free(&mut self, index: u32, order: u32) {
        assert!(
            order <= MAX_ORDER && index.is_multiple_of(1 << order) && index < BLOCK_FRAMES,
            "a chunk of order {order} cannot begin at frame {index} of a block"
        );
        assert!(
            !self.overlaps_free(index, order),
            "frame {index} of a block, order {order}, was freed twice"
        );
        self.free += 1 << order;
        let (mut at, mut chunk) = (order, index >> order);
        while at < MAX_ORDER && self.get(at, chunk ^ 1) {
            self.clear(at, chunk ^ 1);
            at += 1;
            chunk >>= 1;
        }
        self.set(at, chunk);
    }

    pub(super) fn in_use(&self) -> InUse {
        let mut used = [u64::MAX; BLOCK_FRAMES as usize / 64];
        for order in 0..=MAX_ORDER {
            for chunk in 0..BLOCK_FRAMES >> order {
                if !self.get(order, chunk) {
                    continue;
                }
                for index in chunk << order..(chunk + 1) << order {
                    used[index as usize / 64] &= !(1 << (index % 64));
                }
            }
        }
        used
    }

    fn overlaps_free(&self, index: u32, order: u32) -> bool {
        let covered = (order..=MAX_ORDER).any(|at| self.get(at, index >> at));
        covered
            || (0..order).any(|at| {
                self.orders & 1 << at != 0
                    && (index >> at..(index + (1 << order)) >> at).any(|chunk| self.get(at, chunk))
            })
    }

    /// The lowest free chunk of an order that has one.
    fn first(&self, order: u32) -> u32 {
        let first = FIRST_BIT[order as usize];
        let mut word = first as usize / 64;
        let mut bits = self.bits[word] & (u64::MAX << (first % 64));
        // The count of this order is not zero (invariant 3), so a bit is found before its words end.
        while bits == 0 {
            word += 1;
            bits = self.bits[word];
        }
        word as u32 * 64 + bits.trailing_zeros() - first
    }

    #[inline]
    fn get(&self, order: u32, chunk: u32) -> bool {
        let bit = FIRST_BIT[order as usize] + chunk;
        self.bits[bit as usize / 64] & 1 << (bit % 64) != 0
    }

    fn set(&mut self, order: u32, chunk: u32) {
        let bit = FIRST_BIT[order as usize] + chunk;
        self.bits[bit as usize / 64] |= 1 << (bit % 64);
        self.counts[order as usize] += 1;
        self.orders |= 1 << order;
    }

    fn clear(&mut self, order: u32, chunk: u32) {
        let bit = FIRST_BIT[order as usize] + chunk;
        self.bits[bit as usize / 64] &= !(1 << (bit % 64));
        self.counts[order as usize] -= 1;
        if self.counts[order as usize] == 0 {
            self.orders &= !(1 << order);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_block_is_split_and_merged() {
        let mut buddy = Buddy::new();
        assert_eq!(buddy.alloc(0), Some(0));
        assert!(buddy.has_order(8) && !buddy.has_order(9));
        assert_eq!(buddy.alloc(3), Some(8));
        assert_eq!(buddy.free_frames(), 512 - 9);
        assert_eq!(buddy.in_use()[0], 0xff01);
        buddy.free(0, 0);
        buddy.free(8, 3);
        assert_eq!(buddy.alloc(9), Some(0));
        assert_eq!(buddy.alloc(0), None);
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn a_double_free_is_caught() {
        let mut buddy = Buddy::new();
        buddy.alloc(2);
        buddy.free(1, 0);
        buddy.free(0, 2);
    }

    proptest! {
        /// Random orders and frees: no frame twice, the bitmap agrees, and all merges in the end.
        #[test]
        fn no_frame_twice(ops in prop::collection::vec((any::<bool>(), 0u32..10, any::<prop::sample::Index>()), 1..400)) {
            let mut buddy = Buddy::new();
            let mut held: Vec<(u32, u32)> = Vec::new();
            let mut used = [0u64; 8];
            for (alloc, order, which) in ops {
                if alloc || held.is_empty() {
                    let fits = buddy.has_order(order);
                    let got = buddy.alloc(order);
                    prop_assert_eq!(fits, got.is_some());
                    if let Some(index) = got {
                        prop_assert_eq!(index % (1 << order), 0);
                        for i in index..index + (1 << order) {
                            prop_assert_eq!(used[i as usize / 64] >> (i % 64) & 1, 0);
                            used[i as usize / 64] |= 1 << (i % 64);
                        }
                        held.push((index, order));
                    }
                } else {
                    let (index, order) = held.swap_remove(which.index(held.len()));
                    buddy.free(index, order);
                    for i in index..index + (1 << order) {
                        used[i as usize / 64] &= !(1 << (i % 64));
                    }
                }
                prop_assert_eq!(buddy.in_use(), used);
                let count: u32 = used.iter().map(|word| word.count_ones()).sum();
                prop_assert_eq!(buddy.free_frames(), 512 - count);
            }
            for (index, order) in held {
                buddy.free(index, order);
            }
            prop_assert_eq!(buddy.alloc(9), Some(0));
        }
    }
}
