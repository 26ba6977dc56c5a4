//! A multi-order index with marks and RCU readers; it dereferences no entry.
#![deny(unsafe_code)]

#[cfg(debug_assertions)]
mod check;
mod chunk;
mod entry;
mod guard;
mod insert;
mod node;
mod pool;
mod xarray;

pub use chunk::{CHUNK_SIZE, Chunk, ChunkSource, HeapChunks};
pub use entry::{Entry, Mark};
pub use guard::{Extent, XaGuard};
pub use insert::{InsertError, SplitError};
pub use node::{MAX_ORDER, SLOT_BITS};
pub use pool::{NodePool, PoolStats, Preload, PreloadError};
pub use xarray::{Found, Range, SlotRef, XArray, XaState, max_nodes_needed, split_nodes_needed};
