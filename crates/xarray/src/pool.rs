//! [`NodePool`]: the memory of all nodes of all indices of one cache, and the limbo in which freed
//! nodes wait.
//!
//! # Model
//!
//! ```text
//!  ChunkSource ──grow──▶ free ──preload──▶ Preload ──insert──▶ tree of an index
//!              ◀─shrink─  ▲ │                │ drop                  │ erase, shrink, drop of the index
//!                         │ └── shards ◀─────┘                       ▼
//!                         └─────────── waiting ◀──── filling ◀───────┘
//!                            grace period over   one cookie for the batch
//! ```
//!
//! The limbo is two lists. Freed nodes are added to *filling*. When *waiting* is empty, *filling*
//! becomes *waiting* and takes one grace-period cookie, which hence covers every node in it; when
//! that grace period is over, the nodes are free. So a node waits two grace periods at most, and
//! the limbo needs no memory of its own. The polls are made when [`LIMBO_BATCH`] nodes are pending,
//! or when there is no free node.
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
//! *Protects*: a shard's lock its stash of free nodes; the shared lock everything else. *Order*:
//! both have the rank `Magazine` and are never held together; RCU's own locks nest inside the
//! shared one. *May block*: never for long; [`NodePool::wait_for_limbo`] waits for readers and says
//! so.
//!
//! # Safety
//!
//! One unsafe operation: chunks are destroyed when their nodes are all free (invariant 3).
#![allow(unsafe_code)]

use foliocache_sync::CachePadded;
use foliocache_sync::rank::{Rank, RankedMutex};
use foliocache_sync::rcu::{self, GpCookie};

use crate::chunk::{CHUNK_SIZE, ChunkSource, Chunks, NODES_PER_CHUNK};
use crate::node::{NodeList, OwnedNode};

/// Pending nodes at which freeing one polls for the end of a grace period.
const LIMBO_BATCH: usize = 64;
/// Stashes of free nodes; threads are spread over them.
const NR_SHARDS: usize = if cfg!(any(loom, shuttle)) { 1 } else { 8 };
/// Nodes that a stash holds at most.
const SHARD_MAX: usize = 32;
/// Nodes that a stash takes at a time beyond what was asked for.
const SHARD_REFILL: usize = if cfg!(any(loom, shuttle)) { 0 } else { 16 };

/// The nodes of all indices of one cache.
pub struct NodePool {
    source: Box<dyn ChunkSource>,
    shards: [CachePadded<RankedMutex<NodeList>>; NR_SHARDS],
    shared: CachePadded<RankedMutex<Shared>>,
}

/// What the shared lock protects.
struct Shared {
    free: NodeList,
    /// Detached nodes that `cookie` covers.
    waiting: NodeList,
    /// `Some` exactly if `waiting` is not empty.
    cookie: Option<GpCookie>,
    /// Nodes detached since `cookie` was taken.
    filling: NodeList,
    chunks: Chunks,
}

impl Shared {
    fn limbo(&self) -> usize {
        self.waiting.len() + self.filling.len()
    }

    /// Moves the limbo on without waiting; how many nodes became free.
    fn advance(&mut self) -> usize {
        let mut freed = 0;
        // Twice: when `waiting` is done, `filling` can begin to wait, and may be done as well.
        for _ in 0..2 {
            if self.cookie.is_some_and(rcu::poll) {
                freed += self.waiting.len();
                self.free.append(&mut self.waiting);
                self.cookie = None;
            }
            if self.cookie.is_some() || self.filling.len() == 0 {
                break;
            }
            self.waiting.append(&mut self.filling);
            self.cookie = Some(rcu::start_poll());
        }
        freed
    }
}

/// Why [`NodePool::preload`] cannot give what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PreloadError {
    /// The source refuses, and the limbo does not hold enough: make room in the bound, then try
    /// again.
    NoMemory {
        /// Nodes missing.
        short: usize,
    },
    /// The source refuses, but enough nodes wait for a grace period: drop all locks, leave the read
    /// section, call [`NodePool::wait_for_limbo`], then try again.
    WouldBlock {
        /// Nodes missing.
        short: usize,
    },
}

impl core::fmt::Display for PreloadError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NoMemory { short } => write!(f, "no memory for {short} index nodes"),
            Self::WouldBlock { short } => write!(f, "{short} index nodes wait for a grace period"),
        }
    }
}

impl core::error::Error for PreloadError {}

/// What a pool holds; see [`NodePool::stats`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolStats {
    /// Chunks held.
    pub chunks: usize,
    /// Bytes of these chunks: what the pool takes of the memory bound.
    pub bytes: usize,
    /// Nodes in these chunks.
    pub nodes: usize,
    /// Nodes in indices and preloads.
    pub in_use: usize,
    /// Nodes that can be had at once.
    pub free: usize,
    /// Detached nodes that wait for a grace period.
    pub limbo: usize,
}

impl NodePool {
    /// A pool without memory, which `source` supplies as it is needed.
    #[must_use]
    pub fn new(source: Box<dyn ChunkSource>) -> Self {
        Self {
            source,
            shards: core::array::from_fn(|_| {
                CachePadded::new(RankedMutex::new(Rank::Magazine, NodeList::new()))
            }),
            shared: CachePadded::new(RankedMutex::new(
                Rank::Magazine,
                Shared {
                    free: NodeList::new(),
                    waiting: NodeList::new(),
                    cookie: None,
                    filling: NodeList::new(),
                    chunks: Chunks::new(),
                },
            )),
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
        let mut preload = self.empty_preload();
        preload.refill(n)?;
        Ok(preload)
    }

    /// A preload without nodes, for an insertion that needs none.
    #[must_use]
    pub fn empty_preload(&self) -> Preload<'_> {
        Preload {
            pool: self,
            nodes: NodeList::new(),
        }
    }

    /// Waits until every node that is in the limbo now is free.
    ///
    /// Context: **blocks** for up to two grace periods. No lock is held, and no RCU read section is
    /// open.
    pub fn wait_for_limbo(&self) {
        let limbo = self.shared.lock().limbo();
        if limbo == 0 {
            return;
        }
        rcu::synchronize();
        if self.advance() < limbo {
            // What was filling had no cookie before the call above, or the poll lags behind.
            rcu::synchronize();
            self.advance();
        }
    }

    /// Moves the limbo on without blocking; how many nodes became free.
    pub fn advance(&self) -> usize {
        self.shared.lock().advance()
    }

    /// Frees the limbo at once, which is wrong: what the canary of the models needs.
    #[cfg(loom)]
    #[doc(hidden)]
    pub fn skip_grace_period(&self) {
        let mut shared = self.shared.lock();
        let shared = &mut *shared;
        shared.free.append(&mut shared.waiting);
        shared.free.append(&mut shared.filling);
        shared.cookie = None;
    }

    /// Gives chunks back in which every node is free; how many bytes. Never blocks for readers.
    ///
    /// Costs a pass over all free nodes, with the pool's lock held.
    pub fn shrink(&self) -> usize {
        let mut stash = NodeList::new();
        for shard in &self.shards {
            stash.append(&mut shard.lock());
        }
        let mut chunks = {
            let mut shared = self.shared.lock();
            let shared = &mut *shared;
            shared.free.append(&mut stash);
            shared.advance();
            let mut free = core::mem::take(&mut shared.free);
            let mut counted = NodeList::new();
            while let Some(node) = free.pop() {
                shared.chunks.count_free(&node);
                counted.push(node);
            }
            while let Some(node) = counted.pop() {
                if !shared.chunks.all_free(&node) {
                    shared.free.push(node);
                }
            }
            shared.chunks.remove_free()
        };
        let bytes = chunks.len() * CHUNK_SIZE;
        self.give_back(&mut chunks);
        bytes
    }

    /// What the pool holds now. Takes its locks one after another: a sum over moving parts, exact
    /// when nothing moves.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        let stashed: usize = self.shards.iter().map(|shard| shard.lock().len()).sum();
        let shared = self.shared.lock();
        let chunks = shared.chunks.len();
        let nodes = chunks * NODES_PER_CHUNK;
        let free = (shared.free.len() + stashed).min(nodes);
        let limbo = shared.limbo();
        PoolStats {
            chunks,
            bytes: chunks * CHUNK_SIZE,
            nodes,
            in_use: nodes.saturating_sub(free + limbo),
            free,
            limbo,
        }
    }

    /// Puts detached nodes into the limbo.
    pub(crate) fn retire(&self, nodes: &mut NodeList) {
        if nodes.len() == 0 {
            return;
        }
        let mut shared = self.shared.lock();
        shared.filling.append(nodes);
        if shared.limbo() >= LIMBO_BATCH {
            shared.advance();
        }
    }

    /// Fills `nodes` up to `n`.
    fn fill(&self, nodes: &mut NodeList, n: usize) -> Result<(), PreloadError> {
        if nodes.len() >= n {
            return Ok(());
        }
        nodes.take_from(&mut self.shard().lock(), n - nodes.len());
        let mut stash = NodeList::new();
        let mut chunk = None;
        let mut stolen = false;
        while nodes.len() < n {
            let short = {
                let mut shared = self.shared.lock();
                let shared = &mut *shared;
                if let Some(chunk) = chunk.take() {
                    let free = &mut shared.free;
                    shared.chunks.add(chunk, |node| free.push(node));
                }
                if shared.free.len() < n - nodes.len() {
                    shared.advance();
                }
                nodes.take_from(&mut shared.free, n - nodes.len());
                if nodes.len() == n {
                    stash.take_from(&mut shared.free, SHARD_REFILL);
                    break;
                }
                n - nodes.len()
            };
            chunk = self.source.grow();
            if chunk.is_some() {
                continue;
            }
            if stolen {
                let waiting = self.shared.lock().limbo();
                return Err(if waiting >= short {
                    PreloadError::WouldBlock { short }
                } else {
                    PreloadError::NoMemory { short }
                });
            }
            for shard in &self.shards {
                nodes.take_from(&mut shard.lock(), n - nodes.len());
            }
            stolen = true;
        }
        if stash.len() > 0 {
            self.stash(&mut stash);
        }
        Ok(())
    }

    /// Puts nodes that were never in a tree, or have left the limbo, into this thread's stash.
    fn stash(&self, nodes: &mut NodeList) {
        let mut shard = self.shard().lock();
        let room = SHARD_MAX.saturating_sub(shard.len());
        shard.take_from(nodes, room);
        drop(shard);
        if nodes.len() > 0 {
            self.shared.lock().free.append(nodes);
        }
    }

    fn shard(&self) -> &RankedMutex<NodeList> {
        let shard = if NR_SHARDS == 1 {
            0
        } else {
            foliocache_sync::thread_shard() % NR_SHARDS
        };
        &self.shards[shard]
    }

    fn give_back(&self, chunks: &mut Chunks) {
        // SAFETY: invariant 3; the nodes of these chunks are in no list any more, and no reader had
        // them since they left the limbo.
        unsafe { chunks.destroy_nodes() };
        while let Some(chunk) = chunks.pop() {
            self.source.release(chunk);
        }
    }
}

impl Drop for NodePool {
    fn drop(&mut self) {
        let mut chunks = core::mem::take(&mut self.shared.lock().chunks);
        self.give_back(&mut chunks);
    }
}

impl core::fmt::Debug for NodePool {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("NodePool")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// Nodes taken from a pool before the xa_lock, for an insertion under it. What is left goes back
/// when it is dropped.
#[derive(Debug)]
pub struct Preload<'p> {
    pool: &'p NodePool,
    nodes: NodeList,
}

impl Preload<'_> {
    /// Nodes at hand.
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Takes nodes until `n` are at hand. As [`NodePool::preload`]; on an error what was at hand
    /// stays.
    ///
    /// # Errors
    ///
    /// [`PreloadError`], as there.
    pub fn refill(&mut self, n: usize) -> Result<(), PreloadError> {
        self.pool.fill(&mut self.nodes, n)
    }

    /// Whether the nodes are of `pool`.
    pub(crate) fn is_of(&self, pool: &NodePool) -> bool {
        core::ptr::eq(self.pool, pool)
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
            self.pool.stash(&mut self.nodes);
        }
    }
}
