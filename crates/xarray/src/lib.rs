//! A multi-order index with marks and RCU readers; it dereferences no entry.
//!
//! An [`XArray`] maps `u64` indices to [`Entry`], a pointer that it never follows. An entry covers 2^n indices, naturally aligned, n up to [`MAX_ORDER`]. Each entry
//! has three [`Mark`]s that can be searched for.
//!
//! # Model
//!
//! A radix tree of nodes with 64 slots (fewer under a model checker). An entry of order n stands at level n / 6, in 2^(n
//! mod 6) neighbouring slots, each of which holds it; a bitmap in the node says which slots
//! continue the one before. An entry at index 0 that is put into an empty index is in the head and needs no node. It moves
//! into one when another entry comes.
//!
//! ```text
//!  head ─▶ level 1  [ • | order 7: A A | . | • | ...        ]   one slot = 64 indices
//!                     │                      │
//!          level 0  [ a | b b b b | . ... ] [ ...           ]   one slot = 1 index
//! ```
//!
//! | who | holds | does |
//! |---|---|---|
//! | reader | an RCU read section | [`XArray::load`], [`XArray::find`] |
//! | writer | the xa_lock, [`XaGuard`] | everything else |
//!
//! Nodes come from a [`NodePool`], which has its memory from a [`ChunkSource`] that has charged it
//! to a bound. Nothing is allocated under the xa_lock: a caller takes a [`Preload`] before it
//! inserts, and gets an error if that was too small.
//!
//! ```
//! # use std::ptr::NonNull;
//! # use foliocache_sync::{Arc, rcu};
//! # use foliocache_xarray::{Entry, InsertError, Mark, NodePool, XArray};
//! # #[repr(align(64))]
//! # struct Object;
//! # fn example(pool: Arc<NodePool>, object: &Object) {
//! let xa = XArray::new(Arc::clone(&pool));
//! let entry = Entry::from_ptr(NonNull::from(object));
//!
//! // Estimate, take nodes, lock, insert; the tree may have changed in between.
//! let mut needed = xa.nodes_needed_range(8, 15, &rcu::read_lock());
//! loop {
//!     let mut preload = pool.preload(needed).expect("room in the bound");
//!     match xa.lock().insert(8, 3, entry, &mut preload) {
//!         Ok(()) => break,
//!         Err(InsertError::NeedNodes) => needed += 1,
//!         Err(InsertError::Occupied) => panic!("this is the only writer"),
//!     }
//! }
//! xa.lock().set_mark(8, Mark::Dirty);
//!
//! let rcu = rcu::read_lock();
//! let (found, slot) = xa.load_slot(11, &rcu).expect("index 11 is covered");
//! assert_eq!(found.as_ptr(), NonNull::from(object));
//! // ... use what the entry stands for, then look again for one load:
//! assert!(slot.holds());
//! let dirty = xa.find(0, u64::MAX, Some(Mark::Dirty), &rcu).expect("one entry is dirty");
//! assert_eq!((dirty.index, dirty.order), (8, 3));
//! # }
//! ```
//!
//! # Invariants
//!
//! 1. A removed entry leaves its slots before their node is detached, so a detached node shows no
//!    entry ([`SlotRef`] builds on that).
//! 2. A node is reused only after a grace period from its detachment, so a read section never sees
//!    a foreign entry.
//! 3. An entry that stays put is in sight all the time, whatever happens beside it: growth,
//!    shrinking and the insertion or removal of others never hide it.
//!
//! # Locking
//!
//! The xa_lock ([`Rank::XaLock`](foliocache_sync::rank::Rank::XaLock)) *protects* every change of
//! one index; under it nothing is allocated, and no other lock is taken. The pool's lock has the
//! rank `Magazine`. Readers lock nothing, and nothing here blocks but [`NodePool::wait_for_limbo`],
//! which waits for readers.
//!
//! # Memory ordering
//!
//! A writer stores the head and the slots with Release, and a reader loads them with Acquire. So all that a
//! caller wrote before it inserted an entry is visible to a reader that loads the entry. For the rest see the
//! node module.
//!
//! # Differences from Linux
//!
//! - Every slot of a multi-order entry holds the entry; there are no sibling words. A reader in the
//!   middle of a large entry needs one load, not two, and [`SlotRef`] has one slot to look at
//!   again. The price is that storing an entry of order n writes up to 32 slots, one after another.
//! - An entry in a node does not return to the head: only an index that became empty begins in its head again.
//! - The head word carries the height, so that a look-up reads no node header.
//! - Nodes do not know their parents; writers keep the path that they came by.
//! - The marks are others: dirty, and two for entries that wait for a flush.
#![deny(unsafe_code)]

mod entry;
mod find;
mod guard;
mod insert;
mod level;
mod node;
mod pool;
#[cfg(feature = "testing")]
mod testing;
mod xarray;

pub use entry::{Entry, Mark};
pub use find::Extent;
pub use guard::XaGuard;
pub use insert::{InsertError, nodes_to_halve};
pub use level::MAX_ORDER;
pub use pool::{CHUNK_SIZE, ChunkSource, NodePool, PoolStats, Preload, PreloadError};
pub use xarray::{Approach, SlotRef, XArray};
