//! [`Chunk`] and [`ChunkSource`]: where the memory of nodes comes from.
//!
//! # Model
//!
//! A chunk is [`CHUNK_SIZE`] bytes. Its first bytes are a header (a link to the next chunk, a count
//! used while shrinking); the rest is an array of nodes. The pool owns the chunk until it gives it
//! back, whole.
//!
//! # Safety
//!
//! [`Chunk::new`] is the caller's promise that the memory is the pool's alone. The header is
//! touched by the holder of the `Chunks` list only, which is behind the pool's lock.
#![allow(unsafe_code)]

use core::alloc::Layout;
use core::ptr::NonNull;

use foliocache_sync::atomic::{AtomicUsize, Ordering};

use crate::node::{Node, OwnedNode};

/// Size and alignment of a [`Chunk`], in bytes.
pub const CHUNK_SIZE: usize = if cfg!(loom) { 8 << 10 } else { 64 << 10 };

/// What stands at the start of a chunk.
struct Header {
    next: Option<NonNull<Header>>,
    /// Free nodes of the chunk, between [`Chunks::count_free`] and [`Chunks::remove_free`]; else
    /// zero.
    free: usize,
}

/// Where the nodes begin: a cache line for the header, or more where a node is aligned to more.
const NODES_AT: usize = if align_of::<Node>() > 64 {
    align_of::<Node>()
} else {
    64
};
const _: () = assert!(size_of::<Header>() <= NODES_AT);

/// Nodes in a chunk.
pub(crate) const NODES_PER_CHUNK: usize = (CHUNK_SIZE - NODES_AT) / size_of::<Node>();
const _: () = assert!(NODES_PER_CHUNK >= 3);

/// A piece of memory for nodes: [`CHUNK_SIZE`] bytes, aligned to as much.
#[derive(Debug)]
pub struct Chunk(NonNull<u8>);

// SAFETY: a chunk is exclusively owned memory (the contract of `Chunk::new`).
unsafe impl Send for Chunk {}

impl Chunk {
    /// Hands memory over.
    ///
    /// # Panics
    ///
    /// If `ptr` is not aligned to [`CHUNK_SIZE`].
    ///
    /// # Safety
    ///
    /// [`CHUNK_SIZE`] bytes from `ptr` on are readable and writable, and nobody else touches them
    /// until the chunk comes back through [`ChunkSource::release`].
    #[must_use]
    pub unsafe fn new(ptr: NonNull<u8>) -> Self {
        assert!(
            ptr.addr().get().is_multiple_of(CHUNK_SIZE),
            "a chunk must be aligned to its size"
        );
        Self(ptr)
    }

    /// The first byte.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.0
    }
}

/// Who supplies a [`crate::NodePool`] with memory and has charged it to its bound.
pub trait ChunkSource: Send + Sync {
    /// A chunk more, or `None` if the bound is reached now.
    ///
    /// Context: called from [`crate::NodePool::preload`] with none of the pool's locks held. It
    /// must not wait.
    fn grow(&self) -> Option<Chunk>;

    /// Takes a chunk back in which no node is in use, or waits for a grace period.
    ///
    /// Context: called from [`crate::NodePool::shrink`], and when the pool is dropped, with none of
    /// its locks held.
    fn release(&self, chunk: Chunk);
}

/// Chunks from the global allocator, up to a number: for tests, models and tools without a memory
/// bound.
#[derive(Debug)]
pub struct HeapChunks {
    left: AtomicUsize,
}

impl HeapChunks {
    const LAYOUT: Layout = match Layout::from_size_align(CHUNK_SIZE, CHUNK_SIZE) {
        Ok(layout) => layout,
        Err(_) => panic!("CHUNK_SIZE is a power of two"),
    };

    /// Up to `max_chunks` chunks at a time.
    #[must_use]
    pub fn new(max_chunks: usize) -> Self {
        Self {
            left: AtomicUsize::new(max_chunks),
        }
    }
}

impl ChunkSource for HeapChunks {
    fn grow(&self) -> Option<Chunk> {
        // Relaxed: a count alone; it orders nothing.
        self.left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(1)
            })
            .ok()?;
        // SAFETY: the layout's size is not zero.
        let ptr = unsafe { std::alloc::alloc(Self::LAYOUT) };
        let Some(ptr) = NonNull::new(ptr) else {
            std::alloc::handle_alloc_error(Self::LAYOUT)
        };
        // SAFETY: fresh memory of CHUNK_SIZE bytes, which only `release` frees.
        Some(unsafe { Chunk::new(ptr) })
    }

    fn release(&self, chunk: Chunk) {
        // SAFETY: every chunk of this source was allocated by `grow` with this layout, and a chunk
        // comes back once.
        unsafe { std::alloc::dealloc(chunk.0.as_ptr(), Self::LAYOUT) };
        // Relaxed: as in `grow`.
        self.left.fetch_add(1, Ordering::Relaxed);
    }
}

/// The chunks of a pool, linked through their headers.
#[derive(Debug, Default)]
pub(crate) struct Chunks {
    head: Option<NonNull<Header>>,
    len: usize,
}

// SAFETY: the list owns its chunks' headers, and a chunk is `Send`.
unsafe impl Send for Chunks {}

impl Chunks {
    /// No chunks.
    pub(crate) const fn new() -> Self {
        Self { head: None, len: 0 }
    }

    /// How many.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Takes a chunk over and calls `node` with every node in it.
    pub(crate) fn add(&mut self, chunk: Chunk, mut node: impl FnMut(OwnedNode)) {
        let header: NonNull<Header> = chunk.0.cast();
        // The header's address is found again from the address of a node: `Chunks::header_of`.
        header.expose_provenance();
        // SAFETY: the chunk is ours (the contract of `Chunk::new`), and aligned for anything.
        unsafe {
            header.write(Header {
                next: self.head,
                free: 0,
            })
        };
        self.head = Some(header);
        self.len += 1;
        for i in 0..NODES_PER_CHUNK {
            // SAFETY: within the chunk, by the definition of NODES_PER_CHUNK.
            let ptr = unsafe { chunk.0.byte_add(NODES_AT + i * size_of::<Node>()) };
            // SAFETY: the chunk is ours; NODES_AT and the size of a node are multiples of its
            // alignment.
            node(unsafe { OwnedNode::carve(ptr.cast()) });
        }
    }

    /// The header of the chunk that `node` is in.
    fn header_of(&mut self, node: &OwnedNode) -> &mut Header {
        let header =
            core::ptr::with_exposed_provenance_mut::<Header>(node.addr() & !(CHUNK_SIZE - 1));
        // SAFETY: nodes are carved in `add` alone, from chunks aligned to CHUNK_SIZE, whose first
        // bytes are a header that the holder of this list alone touches.
        unsafe { &mut *header }
    }

    /// Counts a free node of its chunk; [`Chunks::all_free`] then tells whether they all are.
    pub(crate) fn count_free(&mut self, node: &OwnedNode) {
        self.header_of(node).free += 1;
    }

    /// Whether every node of the chunk of `node` was counted.
    pub(crate) fn all_free(&mut self, node: &OwnedNode) -> bool {
        self.header_of(node).free == NODES_PER_CHUNK
    }

    /// Resets the counts, and takes out one chunk after another of which every node was counted.
    pub(crate) fn remove_free(&mut self) -> Self {
        let mut kept = Self::new();
        let mut free = Self::new();
        while let Some(mut header) = self.pop_header() {
            // SAFETY: the holder of this list alone touches the headers of its chunks.
            let count = core::mem::take(unsafe { &mut header.as_mut().free });
            let list = if count == NODES_PER_CHUNK {
                &mut free
            } else {
                &mut kept
            };
            list.push_header(header);
        }
        *self = kept;
        free
    }

    /// Takes out any chunk. Its nodes are the caller's to have destroyed.
    pub(crate) fn pop(&mut self) -> Option<Chunk> {
        self.pop_header().map(|header| Chunk(header.cast()))
    }

    /// Destroys the nodes of every chunk.
    ///
    /// # Safety
    ///
    /// No list, tree or reader has any of them.
    pub(crate) unsafe fn destroy_nodes(&mut self) {
        let mut next = self.head;
        while let Some(header) = next {
            for i in 0..NODES_PER_CHUNK {
                // SAFETY: within the chunk, by the definition of NODES_PER_CHUNK.
                let ptr = unsafe { header.byte_add(NODES_AT + i * size_of::<Node>()) };
                // SAFETY: carved in `add`; the caller's contract.
                unsafe { ptr.cast::<Node>().drop_in_place() };
            }
            // SAFETY: the holder of this list alone touches the headers of its chunks.
            next = unsafe { header.as_ref() }.next;
        }
    }

    fn push_header(&mut self, mut header: NonNull<Header>) {
        // SAFETY: the holder of this list alone touches the headers of its chunks.
        unsafe { header.as_mut() }.next = self.head;
        self.head = Some(header);
        self.len += 1;
    }

    fn pop_header(&mut self) -> Option<NonNull<Header>> {
        let header = self.head?;
        // SAFETY: the holder of this list alone touches the headers of its chunks.
        self.head = unsafe { header.as_ref() }.next;
        self.len -= 1;
        Some(header)
    }
}
