//! The page cache as a library: files cached under a hard memory bound.
#![deny(unsafe_code)]

mod builder;
mod cache;
mod cursor;
mod directory;
mod error;
mod file;
mod metadata;
mod mount;
mod open_options;
mod parent_only;
mod raw;
mod size;
mod walk;

pub use builder::CacheBuilder;
pub use cache::Cache;
pub use directory::Directory;
pub use error::{CloseError, Error, FailedFile, Operation, Result};
pub use file::File;
pub use foliocache_fs::{
    Advice, Attr, DirFsOptions as DirectoryOptions, DirFsStats as DirectoryStats, Fallback,
    FileKind,
};
pub use foliocache_mm::{FileStats, FrameUsage as MemoryUsage, MmStats as CacheStats};
pub use foliocache_sys::Errno;
pub use metadata::{DirEntry, Metadata, ReadDir};
pub use open_options::OpenOptions;
pub use size::MemorySize;
