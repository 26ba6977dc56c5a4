//! Shared by the tests and the models: memory for nodes from the heap, and numbers as entries.

#![allow(dead_code, reason = "every test file uses a part of it")]

use std::alloc::{Layout, alloc, dealloc};
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use foliocache_xarray::{CHUNK_SIZE, ChunkSource, Entry, Extent, NodePool, XArray};

/// Chunks from the global allocator, up to a number.
struct HeapChunks {
    left: AtomicUsize,
}

const LAYOUT: Layout = match Layout::from_size_align(CHUNK_SIZE, CHUNK_SIZE) {
    Ok(layout) => layout,
    Err(_) => panic!("CHUNK_SIZE is a power of two"),
};

// SAFETY: fresh memory of this layout, which only `release` frees.
unsafe impl ChunkSource for HeapChunks {
    fn grow(&self) -> Option<NonNull<u8>> {
        // Relaxed: a count alone; it orders nothing.
        self.left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(1)
            })
            .ok()?;
        // SAFETY: the layout's size is not zero.
        NonNull::new(unsafe { alloc(LAYOUT) })
    }

    unsafe fn release(&self, chunk: NonNull<u8>) {
        // SAFETY: allocated by `grow` with this layout; the caller's contract.
        unsafe { dealloc(chunk.as_ptr(), LAYOUT) };
        // Relaxed: as in `grow`.
        self.left.fetch_add(1, Ordering::Relaxed);
    }
}

/// A pool of up to `max_chunks` chunks at a time.
pub(crate) fn pool(max_chunks: usize) -> Arc<NodePool> {
    let left = AtomicUsize::new(max_chunks);
    Arc::new(NodePool::new(Box::new(HeapChunks { left })))
}

/// Nodes in indices and preloads.
pub(crate) fn in_use(pool: &NodePool) -> usize {
    let stats = pool.stats();
    stats.nodes - stats.free - stats.limbo
}

/// An entry that stands for a number below 2^57.
pub(crate) fn value(value: usize) -> Entry {
    let address = NonZeroUsize::MIN.saturating_add(value).get() << 6;
    let address = NonZeroUsize::new(address).expect("not too large");
    Entry::from_ptr(NonNull::<u32>::without_provenance(address))
}

/// The number that an entry stands for.
pub(crate) fn value_of(entry: Entry) -> usize {
    (entry.as_ptr::<u32>().addr().get() >> 6) - 1
}

/// Removes the entry that covers `index`, whatever it is.
pub(crate) fn erase(xa: &XArray, index: u64) -> Option<Extent> {
    let mut xa = xa.lock();
    let found = xa.find(index, index, None)?;
    assert_eq!(xa.erase_if(index, found.entry), Some(found));
    Some(found)
}

/// Removes every entry.
pub(crate) fn clear(xa: &XArray) {
    let mut xa = xa.lock();
    while let Some(found) = xa.find(0, u64::MAX, None) {
        xa.erase_if(found.index, found.entry);
    }
}
