//! The page cache as a library: files of a local directory, cached under a hard memory bound, read
//! without a system call once they are in memory, with an fsync that tells the truth.
//!
//! ```
//! use foliocache::Cache;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let temporary = tempfile::tempdir()?;
//! # let path = temporary.path();
//! let cache = Cache::builder().memory("64M").build()?;
//! let data = cache.directory(path)?;
//! let file = data.create("greeting")?;
//! file.write_all_at(b"hello", 0)?;
//! file.sync_data()?; // on the medium now, or an error
//! let mut word = [0; 5];
//! file.read_exact_at(&mut word, 0)?; // no system call
//! assert_eq!(&word, b"hello");
//! println!("{} hits", cache.stats()?.files.hits);
//! cache.close()?; // what could not be written back is listed
//! # Ok(())
//! # }
//! ```
//!
//! # Model
//!
//! ```text
//!  Cache ──directory, memfs──▶ Directory ──open, create, append──▶ File
//!    │ one memory bound           │ names, beneath one directory      │ read_at, write_at, sync_data
//!    └─ several file systems      └─ read_dir, rename, …              └─ std::io::{Read, Write, Seek}
//! ```
//!
//! - **The bound is hard.** Cached pages, what is in flight and the cache's own tables together stay
//!   within [`CacheBuilder::memory`]. Whoever needs memory that is not there waits until some was
//!   reclaimed; it is no error while anything can be. [`Cache::set_memory`] moves the bound,
//!   and memory that becomes short outside makes it give way ([`CacheBuilder::external_pressure`]).
//! - **A hit costs no system call**, takes no lock that readers share and allocates nothing.
//! - **A write is in the cache** when it returns, and durable when a later [`File::sync_data`]
//!   returned `Ok`. A failure is told once to every handle; what could not be written stays in the
//!   cache and is tried again until it is given up explicitly ([`File::discard_failed`]).
//! - **Paths stay below their [`Directory`]**: [`Error::Escape`] otherwise.
//! - **After `fork`** the cache is the parent's; in the child every call gives `ECHILD`.
//!
//! # Mappings
//!
//! [`File::map`] gives addresses at which a part of a file can be read and stored to: a [`Mapping`]. Its pages are
//! those of the cache, inside the bound. `docs/mapping.md` in the repository says when to use it and what it costs.
//!
//! # Pins
//!
//! [`File::pin`] gives addresses of the cache's own memory that stay: a [`FolioPin`], for I/O by a ring of the program's
//! own or by a device, without a copy. `docs/pinning.md` says how.
//!
//! With the feature `cuda` a long-term pin can be registered with the GPU driver: `FolioPin::register_cuda`. The driver is
//! loaded at run time, so a program with the feature builds and runs without one, too.
//!
//! # What it is not for
//!
//! - Processes that share files and need to see each other's writes at once: each cache is private.
//!   What others change in the directory is noticed when a file is opened, unless data of ours waits
//!   to be written.
//! - Programs that cannot be changed: for these the `foliocache mount` command serves the same cache
//!   through FUSE.
//! - Data that is read once. It gains nothing here that `O_DIRECT` would not give.
//! - Small machines' only cache: memory given to this one is taken from the kernel's.
//!
//! # Bad memory
//!
//! [`File::read_raw_at`] and [`File::write_raw_at`] take addresses; [`CacheBuilder::fault_handlers`]
//! says what becomes of a call with a bad one.
#![deny(unsafe_code)]

mod asynch;
mod batch;
mod builder;
mod cache;
mod cursor;
mod directory;
mod error;
mod exit;
mod file;
mod io_options;
mod mapping;
mod metadata;
mod mount;
mod open_options;
mod parent_only;
mod pin;
mod raw;
mod size;
#[cfg(feature = "testing")]
mod testing;
mod walk;

pub use asynch::{AsyncFile, AsyncStats};
pub use batch::ReadRequest;
pub use builder::CacheBuilder;
pub use cache::Cache;
pub use directory::Directory;
pub use error::{CloseError, Error, FailedFile, Operation, Result, UnsyncedFile};
pub use file::File;
pub use foliocache_fs::{
    DirFsError as DirectoryError, DirFsOptions as DirectoryOptions, DirFsStats as DirectoryStats,
    Fallback, WritebackAtClose,
};
pub use foliocache_mm::{
    FaultMode as MappingFaults, FileStats, FrameUsage as MemoryUsage, Holder,
    HugeFrames as HugePages, IoLock, LockedAccess, MIN_LIMIT as MIN_MEMORY, MapError,
    MmError as CacheError, MmStats as CacheStats, PAGE_SIZE, PinError, PinMode, PinnedPart,
    PressureSource, PressureStats, ThrottleStats, UncachedStats, View, VmaAccess as MapAccess,
};
pub use foliocache_sys::Errno;
pub use foliocache_sys::clock::Timespec;
#[cfg(feature = "cuda")]
pub use foliocache_sys::cuda::DriverError as CudaDriverError;
pub use foliocache_sys::uring::EngineStats;
pub use foliocache_sys::userfaultfd::OpenError as FaultsError;
pub use foliocache_vfs::{Advice, Attr, Credentials, Device, FileKind, RenameMode};
pub use io_options::IoOptions;
pub use mapping::Mapping;
pub use metadata::{DirEntry, Metadata, ReadDir};
pub use open_options::OpenOptions;
pub use pin::FolioPin;
#[cfg(feature = "cuda")]
pub use pin::{CudaError, CudaPart, CudaPin};
pub use size::MemorySize;
pub use walk::{Walk, WalkEntry, WalkIter};
