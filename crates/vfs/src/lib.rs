//! Shared by all file systems above the page cache: the caches of names and inodes.
//!
//! # Model
//!
//! | module | what it is |
//! |---|---|
//! | `hash` | [`RcuHash`](hash::RcuHash): an intrusive hash table, looked up under RCU, that grows by itself |
//! | `icache` | [`InodeCache`]: the inodes in memory, one for each identity |
//! | [`dcache`] | which name in which directory leads to which inode |
//! | `limbo` | what is unpublished and waits for its readers, and the thread that frees it |
//! | `generation` | [`Generation`]: whether what was remembered may have changed |
//! | `filesystem` | [`FileSystem`]: what every front door calls |
//! | `inode` | [`Inode`]: what a name leads to |
//! | `belief` | [`Belief`]: how long what a store said is believed |
//! | `attr` | [`AttrCell`]: attributes that an inode keeps in memory |
//! | `open_file` | [`OpenFile`]: reads, writes and syncs through the cache |
//! | `types` | attributes, flags, entries |
//! | `super_block` | [`SuperBlock`]: a file system with its names in memory |
//! | `walk` | from a path to what it leads to |
//! | `credentials` | [`Credentials`]: the permissions of a caller |
//!
//! # Locking
//!
//! A part of a hash is changed under a lock of rank
//! [`HashBucket`](foliocache_sync::rank::Rank::HashBucket), which is held for a bounded number of steps.
//! Look-ups that hit take no lock.
#![deny(unsafe_code)]

mod attr;
mod belief;
mod cached;
mod credentials;
pub mod dcache;
mod entries;
mod epoch;
mod filesystem;
mod generation;
pub mod hash;
mod icache;
mod inode;
mod limbo;
mod locks;
mod namei;
mod open_file;
mod super_block;
#[cfg(any(loom, shuttle, feature = "testing"))]
mod testing;
mod types;
mod uncached;
mod walk;

pub use attr::{AttrCell, cleared_set_id, written_mode};
pub use belief::{Belief, Change, News, Told, Validity};
pub use credentials::{Access, Credentials};
pub use entries::{Entries, Found};
pub use filesystem::{FileSystem, OpenDirectory, ROOT_INO, check_name, check_opens};
#[cfg(any(loom, shuttle, feature = "testing"))]
pub use foliocache_mm::Unbounded;
#[cfg(loom)]
pub use foliocache_mm::slab::model::pages as slab_model;
pub use foliocache_mm::{MetadataBound, SharedSlab, SlabArc, SlabWeak};
pub use generation::{Changing, Generation};
#[cfg(any(loom, shuttle, feature = "testing"))]
pub use icache::InodeCacheStats;
pub use icache::{CachedInode, Iget, InodeCache, InodeLink, NewInode, hash_ino};
pub use inode::{Inode, InodeOperations, inode_bytes};
pub use locks::{Contended, FileLocks};
pub use namei::{Namei, OpenHow};
pub use open_file::{HandleCharge, OpenFile};
pub use super_block::{InodeHolder, Named, Observer, SuperBlock};
pub use types::{
    Advice, Attr, Attributes, Device, DirEntry, DirEntryBuf, FallocateMode, FileKind, MAX_NAME,
    New, OpContext, OpenFlags, PERMISSION_BITS, Remove, RenameMode, S_ISGID, S_ISUID, S_ISVTX,
    SeekSparse, SetAttr, SetTime, StatFs, XattrMode,
};
pub use uncached::UncachedDir;
pub use walk::WalkError;
