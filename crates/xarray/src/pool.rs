//! [`NodePool`]: the memory of all nodes of all indices of one cache, and the limbo in which freed
//! nodes wait.
//!
//! # Model
//!
//! ```text
//!  ChunkSource ──grow──▶ free ──preload──▶ Preload ──insert──▶ tree of an index
//!              ◀─shrink─  ▲ ▲                │ drop                  │ erase, shrink, drop of the index
//!                         │ └────────────────┘                       ▼
//!                         └───────────────── limbo ◀─────────────────┘
//!                               grace period over
//! ```
//!
//! A chunk is [`CHUNK_SIZE`] bytes, an array of nodes. The pool owns it until it gives it back, whole.
//!
//! The limbo ([`Retired`]) allocates nothing: its lists go through the nodes. It polls when [`LIMBO_BATCH`] nodes are
//! pending, or when there is no free node.
//!
//! # Invariants
//!
//! 1. A node is in one list, one [`Preload`] or one tree.
//! 2. A node leaves the limbo only after a grace period that began after it was detached.
//! 3. Chunks are given back only when all their nodes are in the free list, or when the pool is
//!    dropped; then no index lives, since each holds the pool.
//!
//! # Locking
//!
//! *Protects*: one lock all lists. *Order*: rank `Magazine`; RCU's own locks nest inside it. *May
//! block*: never for long; [`NodePool::wait_for_limbo`] waits for readers and says so.
//!
//! # Safety
//!
//! Memory that a [`ChunkSource`] gave is made nodes, and given back when they are all free (invariant
//! 3).
#![allow(unsafe_code)]

use core::ptr::NonNull;
use foliocache_sync::collections::HashMap;

use foliocache_sync::rank::{Rank, RankedMutex};
use foliocache_sync::rcu;
use foliocache_sync::retired::{List, Retired};

use crate::node::{Node, NodeList, OwnedNode};

/// Size and alignment of the memory that a [`ChunkSource`] supplies at a time, in bytes.
pub const CHUNK_SIZE: usize = if cfg!(loom) { 8 << 10 } else { 64 << 10 };

/// Nodes in a chunk.
const NODES_PER_CHUNK: usize = CHUNK_SIZE / size_of::<Node>();
const _: () = assert!(NODES_PER_CHUNK >= 3);

/// Pending nodes at which freeing one polls for the end of a grace period.
const LIMBO_BATCH: usize = 64;

/// The supplier of a [`NodePool`]'s memory, which has charged that to its bound.
///
/// # Safety
///
/// The address that `grow` returns is aligned to [`CHUNK_SIZE`]. So many bytes from there on are readable and
/// writable, and only the pool touches them until `release` gets them back.
pub unsafe trait ChunkSource: Send + Sync {
    /// A chunk more, or `None` if the bound is reached now.
    ///
    /// Context: called from [`NodePool::preload`] without the pool's lock. It must not wait.
    fn grow(&self) -> Option<NonNull<u8>>;

    /// Takes a chunk back in which no node is in use, or waits for a grace period.
    ///
    /// Context: called from [`NodePool::shrink`], and when the pool is dropped, without the pool's lock.
    ///
    /// # Safety
    ///
    /// `grow` of this source returned `chunk`, it was not released since, and nothing refers to it.
    unsafe fn release(&self, chunk: NonNull<u8>);
}

/// The nodes of all indices of one cache.
pub struct NodePool {
    source: Box<dyn ChunkSource>,
    lists: RankedMutex<{ Rank::Magazine as u8 }, Lists>,
}

/// The lists that the lock protects.
#[derive(Default)]
struct Lists {
    free: NodeList,
    limbo: Retired<NodeList>,
    chunks: Vec<NonNull<u8>>,
}

// SAFETY: the chunks are memory that the pool alone has (the contract of `ChunkSource`).
unsafe impl Send for Lists {}

impl List for NodeList {
    fn len(&self) -> usize {
        self.len()
    }

    fn append(&mut self, other: &mut Self) {
        self.append(other);
    }
}

impl Lists {
    /// Moves the limbo on without waiting; how many nodes became free.
    fn advance(&mut self) -> usize {
        let before = self.free.len();
        self.limbo.advance(&mut self.free);
        self.free.len() - before
    }

    /// Takes a chunk over, which the source of the pool gave.
    fn add(&mut self, chunk: NonNull<u8>) {
        self.chunks.push(chunk);
        for i in 0..NODES_PER_CHUNK {
            // SAFETY: within the chunk, by the definition of NODES_PER_CHUNK.
            let node = unsafe { chunk.byte_add(i * size_of::<Node>()) };
            // SAFETY: the chunk is ours by the contract of `ChunkSource`, and CHUNK_SIZE and the size
            // of a node are multiples of a node's alignment.
            self.free.push(unsafe { OwnedNode::carve(node.cast()) });
        }
    }
}

/// Why [`NodePool::preload`] failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreloadError {
    /// The source refuses, and the limbo does not hold enough: make room in the bound, then try
    /// again.
    NoMemory,
    /// The source refuses, but enough nodes wait for a grace period: drop all locks, leave the read
    /// section, call [`NodePool::wait_for_limbo`], then try again.
    WouldBlock,
}

/// The nodes of a pool; see [`NodePool::stats`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolStats {
    /// All nodes: those below, and those in indices and preloads.
    pub nodes: usize,
    /// Nodes that can be had at once.
    pub free: usize,
    /// Detached nodes that wait for a grace period.
    pub limbo: usize,
}

impl NodePool {
    /// An empty pool, which takes memory from `source` as it is needed.
    #[must_use]
    pub fn new(source: Box<dyn ChunkSource>) -> Self {
        Self {
            source,
            lists: RankedMutex::new(Lists::default()),
        }
    }

    /// Takes `n` nodes before the xa_lock is taken, since nothing is allocated under it.
    ///
    /// Never blocks. May grow the pool by chunks, which the source charges to the bound.
    ///
    /// # Errors
    ///
    /// [`PreloadError`], if the source refuses and too few nodes are free; nothing is kept then.
    #[doc(alias = "xas_nomem")]
    #[doc(alias = "radix_tree_preload")]
    pub fn preload(&self, n: usize) -> Result<Preload<'_>, PreloadError> {
        let mut lists = self.lists.lock();
        while lists.free.len() < n {
            if lists.advance() > 0 {
                continue;
            }
            let refused = match lists.free.len() + lists.limbo.len() {
                enough if enough >= n => PreloadError::WouldBlock,
                _ => PreloadError::NoMemory,
            };
            drop(lists);
            let chunk = self.source.grow().ok_or(refused)?;
            lists = self.lists.lock();
            lists.add(chunk);
        }
        let nodes = lists.free.take(n);
        Ok(Preload { pool: self, nodes })
    }

    /// Waits until every node that is in the limbo now is free.
    ///
    /// Context: **blocks** for up to two grace periods. No lock is held, and no RCU read section is
    /// open.
    pub fn wait_for_limbo(&self) {
        let limbo = self.lists.lock().limbo.len();
        if limbo == 0 {
            return;
        }
        rcu::synchronize();
        if self.advance() < limbo {
            // The filling list had no cookie before the call above, or the poll lags behind.
            rcu::synchronize();
            self.advance();
        }
    }

    /// Moves the limbo on without blocking; how many nodes became free.
    pub fn advance(&self) -> usize {
        self.lists.lock().advance()
    }

    /// Frees the limbo at once, which is wrong: for the canary of the models.
    #[cfg(loom)]
    #[doc(hidden)]
    pub fn skip_grace_period(&self) {
        let lists = &mut *self.lists.lock();
        lists.free.append(&mut lists.limbo.take_all());
    }

    /// Gives chunks back in which every node is free; how many bytes. Never blocks for readers.
    ///
    /// Costs a pass over all free nodes, with the pool's lock held.
    pub fn shrink(&self) -> usize {
        let whole = {
            let lists = &mut *self.lists.lock();
            lists.advance();
            let chunk_of = |node: &OwnedNode| node.addr() & !(CHUNK_SIZE - 1);
            let mut free = HashMap::default();
            let mut counted = NodeList::default();
            while let Some(node) = lists.free.pop() {
                *free.entry(chunk_of(&node)).or_insert(0) += 1;
                counted.push(node);
            }
            let is_whole = |chunk: usize| free.get(&chunk) == Some(&NODES_PER_CHUNK);
            while let Some(node) = counted.pop() {
                if !is_whole(chunk_of(&node)) {
                    lists.free.push(node);
                }
            }
            let whole = |chunk: &mut NonNull<u8>| is_whole(chunk.addr().get());
            lists.chunks.extract_if(.., whole).collect::<Vec<_>>()
        };
        let bytes = whole.len() * CHUNK_SIZE;
        self.give_back(whole);
        bytes
    }

    /// The counts of now.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        let lists = self.lists.lock();
        PoolStats {
            nodes: lists.chunks.len() * NODES_PER_CHUNK,
            free: lists.free.len(),
            limbo: lists.limbo.len(),
        }
    }

    /// Puts detached nodes into the limbo.
    pub(crate) fn retire(&self, nodes: &mut NodeList) {
        if nodes.len() == 0 {
            return;
        }
        let mut lists = self.lists.lock();
        lists.limbo.filling().append(nodes);
        if lists.limbo.len() >= LIMBO_BATCH {
            lists.advance();
        }
    }

    fn give_back(&self, chunks: Vec<NonNull<u8>>) {
        for chunk in chunks {
            // SAFETY: invariant 3; the chunk was in the list, which has only those of `grow`. Its nodes are
            // in no list any more, and no reader had them since they left the limbo.
            unsafe { self.source.release(chunk) };
        }
    }
}

impl Drop for NodePool {
    fn drop(&mut self) {
        let chunks = core::mem::take(&mut self.lists.lock().chunks);
        self.give_back(chunks);
    }
}

impl core::fmt::Debug for NodePool {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("NodePool")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// Nodes taken from a pool before the xa_lock, for an insertion under it. Nodes that are left go back
/// when it is dropped.
#[derive(Debug)]
pub struct Preload<'p> {
    pool: &'p NodePool,
    nodes: NodeList,
}

impl Preload<'_> {
    /// Whether the nodes are of `pool`.
    pub(crate) fn is_of(&self, pool: &NodePool) -> bool {
        core::ptr::eq(self.pool, pool)
    }

    /// The number of nodes at hand.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Takes an empty node.
    pub(crate) fn take(&mut self) -> OwnedNode {
        let node = self
            .nodes
            .pop()
            .expect("the caller counted the nodes it needs");
        node.reset();
        node
    }
}

impl Drop for Preload<'_> {
    fn drop(&mut self) {
        if self.nodes.len() > 0 {
            self.pool.lists.lock().free.append(&mut self.nodes);
        }
    }
}
