//! The levels of the tree: which bits of an index choose the slot in a node of each level.
//!
//! # Model
//!
//! Level 0 is the lowest. A node at `level` covers `SLOTS^(level + 1)` indices; each of its slots covers `SLOTS^level`.

/// Bits of the index that one level decides.
///
/// Six, so that one node has 64 slots and its bitmaps are words; fewer under a model checker, where
/// a deep tree of few slots shows more than a wide one.
pub(crate) const SLOT_BITS: u32 = if cfg!(loom) {
    2
} else if cfg!(shuttle) {
    4
} else {
    6
};

/// Slots of a node.
pub(crate) const SLOTS: usize = 1 << SLOT_BITS;

/// Levels of a tree that covers all of `u64`.
pub(crate) const LEVELS: usize = 64usize.div_ceil(SLOT_BITS as usize);

/// The largest order of an entry: 2^9 indices.
pub const MAX_ORDER: u32 = 9;

/// The offset of `index` in a node at `level`.
#[inline]
pub(crate) fn offset(index: u64, level: usize) -> usize {
    (index >> shift(level)) as usize & (SLOTS - 1)
}

/// The number of index bits below a slot at `level`.
#[inline]
pub(crate) fn shift(level: usize) -> u32 {
    level as u32 * SLOT_BITS
}

/// The level of a head word's shift, and of the node that an entry of such an order stands in.
#[inline]
pub(crate) fn level_of(shift: u32) -> usize {
    (shift / SLOT_BITS) as usize
}

/// The lowest index in the slot at `level` in which `index` lies is `index & !slot_mask(level)`.
#[inline]
pub(crate) fn slot_mask(level: usize) -> u64 {
    (1u64 << shift(level)) - 1
}

/// The lowest index in the node at `level` in which `index` lies is `index & !node_mask(level)`.
#[inline]
pub(crate) fn node_mask(level: usize) -> u64 {
    match 1u64.checked_shl(shift(level) + SLOT_BITS) {
        Some(span) => span - 1,
        None => u64::MAX,
    }
}

/// The lowest level of a head that covers `index`.
pub(crate) fn level_for(index: u64) -> usize {
    let bits = (u64::BITS - index.leading_zeros()).max(1);
    (bits.div_ceil(SLOT_BITS) - 1) as usize
}
