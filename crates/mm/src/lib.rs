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
//! This crate knows no path, no FUSE, no async runtime, and has no global: two caches in one process share
//! nothing but the RCU domain.
#![deny(unsafe_code)]

mod address_space;
mod bad_memory;
mod bdi;
mod charge;
mod counters;
mod counting;
mod direct_map;
mod dirty;
mod dirty_files;
mod error;
mod errseq;
mod file_frames;
mod filemap;
mod fill;
mod folio;
mod follower;
mod frames;
mod held;
mod held_off;
mod hints;
mod holder;
mod iocb;
mod iov;
mod linear;
mod lookup;
mod mapped;
mod mm;
#[cfg(loom)]
#[doc(hidden)]
pub mod model;
mod nodes;
mod ops;
mod owner;
mod paging;
mod pin;
mod pins;
mod prepare;
mod prepared;
mod pressure;
mod queues;
mod readahead;
mod reclaim;
mod records;
mod registry;
mod reliance;
mod relied;
mod replace;
mod rounds;
pub mod show;
mod shown;
mod shrinker;
mod split;
mod start;
mod stats;
#[cfg(all(test, not(any(loom, shuttle))))]
mod test_store;
mod types;
mod uncached;
mod unreclaimable;
mod views;
mod vma;
mod window;
mod worker;
mod writeback;

pub use bdi::MappingCharge;
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
pub use pressure::{PressureSource, PressureStats};
pub use readahead::{Access, ReadaheadState};
pub use records::{AddressSpace, BackingDevInfo, BdiKind, Mm, MmConfig};
pub use shrinker::{GivenUp, Shrinker};
pub use stats::MmStats;
pub use types::{MAX_FILE_SIZE, PAGE_SHIFT, PAGE_SIZE, PageIndex, offset_in_page, pages_for};
pub use unreclaimable::Unreclaimable;
pub use views::{RawView, View};
pub use vma::{IoLock, Vma};
