//! The page cache itself: frames, folios, address spaces, read, write, writeback and reclaim.
//!
//! # Model
//!
//! ```text
//!   AddressSpace (one a file) ──index──▶ Folio (descriptor) ──▶ frame (4 KiB of memory)
//!        │ ops                              │ queue
//!        ▼                                  ▼
//!   the file system's store            Mm (one a cache): frames, queues, the bound
//!        ▲
//!        └── BackingDevInfo (one a file system): dirty limits, flusher
//! ```
//!
//! # Layers
//!
//! The modules below stand in layers, the lowest first. None knows the one above, by import or by call, and `cargo xtask tidy` checks it
//! (decision 86). The state of a service is a type of its own below the records, and its procedures stand above them.
//!
//! This crate knows no path, no FUSE, no async runtime, and has no global: two caches in one process share
//! nothing but the RCU domain.
#![deny(unsafe_code)]

// Values, which are no state of a cache.
mod error;
mod errseq;
mod iocb;
mod iov;
mod ops;
mod paging;
pub mod show;
mod types;
mod worker;

// Memory: the bound, frames, waiting for memory.
mod bound;
mod direct_map;
mod frames;
mod nodes;
#[doc(hidden)]
pub mod slab;

// Folios: descriptor, state word, pool.
mod folio;

// The state of each service: no file and no cache is known here.
mod counters;
mod dirty;
mod hints;
mod lookup;
mod mapped;
mod pins;
mod pressure;
mod queues;
mod readahead;
mod reliance;
mod rounds;
mod shrinker;
mod views;

// Core: the records of a cache, and the way from a folio to its file.
mod address_space;
mod counting;
mod dirty_files;
mod file_frames;
mod file_locks;
mod held_off;
mod owner;
mod prepared;
mod records;
mod registry;
mod shown;
mod start;
mod unnoticed;

// Services: procedures on records.
mod bad_memory;
mod bdi;
mod charge;
mod fill;
mod follower;
mod held;
mod holder;
mod linear;
mod pin;
mod prepare;
mod reclaim;
mod relied;
mod replace;
mod revoke;
mod split;
mod told;
mod uncached;
mod unreclaimable;
mod window;
mod writeback;

// Operations on files.
mod filemap;
mod vma;

// A cache as a whole.
mod mm;
mod stats;

#[cfg(loom)]
#[doc(hidden)]
pub mod model;
#[cfg(all(test, not(any(loom, shuttle))))]
mod test_store;
#[cfg(any(test, loom, shuttle, feature = "testing"))]
mod testing;

pub use bdi::MappingCharge;
pub use bound::MetadataBound;
pub use charge::MetadataCharge;
pub use counters::{FileStats, UncachedStats};
pub use dirty::ThrottleStats;
pub use error::MmError;
pub use errseq::ErrSeqCursor;
pub use filemap::{Batch, Fetch, Request, ViewRequest, read_batch, view_batch};
pub use frames::{
    BLOCK_FRAMES, BLOCK_SIZE, BlockNumber, FrameKind, FrameNumber, FrameUsage, Frames, HugeFrames,
    MAX_ORDER, MIN_LIMIT, Reservation, Ticket,
};
pub use holder::Holder;
pub use iocb::Iocb;
pub use iov::IovIter;
pub use mapped::{FaultMode, LockedAccess, MapError, VmaAccess};
pub use ops::{AddressSpaceOperations, Extent, IoSegment, ReadDone, ReadMode};
#[cfg(shuttle)]
#[doc(hidden)]
pub use paging::model::{Step, leave_out};
pub use pin::{FolioPin, PinError, PinMode, PinnedPart};
pub use pins::{PinEvent, RevokeReason};
pub use pressure::{PressureSource, PressureStats};
pub use readahead::{Access, ReadaheadState};
pub use records::{AddressSpace, BackingDevInfo, BdiKind, Mm, MmConfig};
pub use shrinker::{GivenUp, Shrinker};
pub use slab::{SharedSlab, SlabArc, SlabWeak};
pub use stats::MmStats;
#[cfg(any(test, loom, shuttle, feature = "testing"))]
pub use testing::Unbounded;
pub use types::{MAX_FILE_SIZE, PAGE_SHIFT, PAGE_SIZE, PageIndex, offset_in_page, pages_for};
pub use unreclaimable::Unreclaimable;
pub use views::{RawView, View};
pub use vma::{IoLock, Vma};
