//! The page cache as a library: files of a local directory, cached under a hard memory bound, read without a system call once
//! they are in memory, and kept until an `fsync` has really succeeded.
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
//! println!("{} hits", cache.stats()?.files.hit_pages);
//! cache.close()?; // writes everything back, or names each file that failed
//! # Ok(())
//! # }
//! ```
//!
//! # Model
//!
//! ```text
//!  Cache ──directory, memfs──▶ Directory ──open, create, append──▶ File
//!    │ one memory bound           │ names, beneath one directory      │ read_at, write_at, sync_data
//!    ├─ several file systems      └─ read_dir, rename, …              └─ std::io::{Read, Write, Seek}
//!    └─file, adopt──▶ File, without its directory
//! ```
//!
//! - **The bound is hard.** Cached pages, data in flight and the cache's own tables together stay within
//!   [`CacheBuilder::memory`]. A caller that needs memory waits until some is reclaimed; that is no error while anything can be
//!   reclaimed. [`Cache::set_memory`] moves the bound, and memory pressure outside shrinks it
//!   ([`CacheBuilder::external_pressure`]).
//! - **A hit costs no system call**, takes no lock that readers share and allocates nothing.
//! - **A write is in the cache** when it returns, and durable after a later [`File::sync_data`] returned `Ok`. Every handle gets
//!   a failure once. Failed data stays in the cache and is retried until it is given up explicitly ([`File::discard_failed`]).
//! - **Paths stay below their [`Directory`]**: [`Error::Escape`] otherwise.
//! - **After `fork`** the cache is the parent's; in the child every call gives `ECHILD`.
//!
//! # Mappings
//!
//! [`File::map`] returns addresses at which a program reads and stores to a part of a file: a [`Mapping`]. Its
//! pages are pages of the cache, inside the bound. `docs/mapping.md` in the repository says when to use it, and its
//! cost.
//!
//! # Views
//!
//! [`File::view`] returns bytes where they lie in the cache, as a [`View`]: a slice that never changes, at an address that stays.
//! [`File::view_exact`] has any range, and [`File::view_batch`] many. With the feature `stable_deref` a view is a
//! `stable_deref_trait::StableDeref`. [`View::into_raw`] gives it to callbacks of C.
//!
//! # Pins
//!
//! [`File::pin`] returns addresses of the cache's own memory that stay valid: a [`FolioPin`], for I/O without a copy by an io_uring of
//! the program or by a device. `docs/pinning.md` says how.
//!
//! The crate `foliocache-cuda` registers a long-term pin with the GPU driver.
//!
//! # Async
//!
//! [`Directory::into_async`] and [`File::into_async`] give an [`AsyncDirectory`] and an [`AsyncFile`], whose calls are
//! futures for any executor. A call is ready at its first poll if the cache has the answer. Other calls go through a few
//! threads for each file system. [`AsyncDirectory::run`] and [`AsyncFile::run`] run any blocking call there. No call blocks the executor. With the feature `tokio` an async file is a reader and writer
//! of tokio's: `AsyncFile::into_tokio`. The example `crash_safe_log` is a log on tokio.
//!
//! # When not to use it
//!
//! - Processes that share files and need to see each other's writes at once: each cache is private. A change by others in the
//!   directory is seen when a file is opened, unless our data waits to be written.
//! - Programs that cannot be changed: use the `foliocache mount` command, which serves the same cache through FUSE.
//! - Data that is read once: `O_DIRECT` is enough.
//! - Machines with little memory: memory of this cache is missing in the kernel's.
//!
//! # Logging
//!
//! The library reports to [`tracing`](https://docs.rs/tracing) events that no call can return: settings that the kernel refused, memory
//! that became short, errors of background threads. The targets are the names of its crates and modules (`foliocache_mm::…`,
//! `foliocache_fs::…`). Data that is lost, or that could not be written when its cache was dropped, has the target
//! `foliocache::loss` and the level error. Where no subscriber listens that is written to standard error.
//!
//! # Bad memory
//!
//! [`File::read_raw_at`] and [`File::write_raw_at`] take addresses. [`CacheBuilder::fault_handlers`] decides whether a bad address is
//! an error or a fault.
#![deny(unsafe_code)]

mod asynch;
mod attributes;
mod batch;
mod builder;
mod cache;
mod cursor;
mod directory;
mod directory_options;
mod error;
mod exit;
mod file;
mod file_options;
mod io_options;
mod joined;
mod mapping;
mod metadata;
mod mount;
mod open_how;
mod parent_only;
mod pin;
mod range;
mod raw;
mod read_batch;
mod rights;
mod setters;
mod size;
#[cfg(feature = "testing")]
mod testing;
mod walk;
mod workers;

#[cfg(feature = "tokio")]
pub use asynch::TokioFile;
pub use asynch::{AsyncDirectory, AsyncFile};
pub use attributes::{FileTimes, Permissions};
pub use batch::ReadRequest;
pub use builder::CacheBuilder;
pub use cache::{Cache, CloseError};
pub use directory::{DirEntry, Directory, OpenOptions, ReadDir};
pub use directory_options::DirectoryOptions;
pub use error::{Error, FailedFile, Operation, Result, UnsyncedFile};
pub use file::locks::TryLockError;
pub use file::{File, ViewRequest};
pub use file_options::FileOptions;
#[doc(inline)]
pub use foliocache_fs::{
    DirFsError as DirectoryError, DirFsStats as DirectoryStats, Fallback, WritebackAtClose,
};
#[doc(inline)]
pub use foliocache_mm::{
    BlockNumber, FaultMode as MappingFaults, FileStats, FrameUsage as MemoryUsage, Holder,
    HugeFrames as HugePages, IoLock, LockedAccess, MIN_LIMIT as MIN_MEMORY, MapError,
    MmError as CacheError, MmStats as CacheStats, PAGE_SIZE, PinError, PinEvent, PinMode,
    PinnedPart, PressureSource, PressureStats, RawView, RevokeReason, ThrottleStats, UncachedStats,
    Unreclaimable, View, VmaAccess as MapAccess, show,
};
#[doc(inline)]
pub use foliocache_sys::{
    Errno, clock::Timespec, fd::LockKind, uring::EngineStats, userfaultfd::OpenError as FaultsError,
};
#[doc(inline)]
pub use foliocache_vfs::{
    Advice, Attr, Attributes, Credentials, Device, FileKind, RenameMode, StatFs,
};
pub use io_options::IoOptions;
pub use mapping::Mapping;
pub use metadata::Metadata;
pub use pin::FolioPin;
pub use read_batch::ReadBatch;
pub use size::MemorySize;
pub use walk::{Walk, WalkEntry, WalkIter};
pub use workers::AsyncStats;
