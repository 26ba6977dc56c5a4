//! Objects without a memory bound, for tests and models.

use crate::bound::MetadataBound;
use crate::slab::{SharedSlab, SlabArc};
use foliocache_sync::Arc;

/// Has room for everything, and counts nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unbounded;

impl MetadataBound for Unbounded {
    fn charge(&self, _bytes: u64) -> bool {
        true
    }

    fn uncharge(&self, _bytes: u64) {}
}

impl<T> SlabArc<T> {
    /// An object in a private slab, without a charge.
    pub fn new(value: T) -> Self {
        SharedSlab::new(Arc::new(Unbounded)).alloc(value)
    }
}
