//! File systems over the cache: memfs and dirfs.
//!
//! ```
//! use foliocache_fs::MemFs;
//! use foliocache_mm::{Mm, MmConfig};
//! use foliocache_vfs::{FileSystem, OpContext, OpenFlags};
//! use std::ffi::OsStr;
//!
//! let mm = Mm::new(MmConfig::new(16 << 20))?;
//! let fs = MemFs::new(&mm)?;
//! let name = OsStr::new("greeting");
//! let file = fs.create(&OpContext::ROOT, &fs.root(), name, 0o644, OpenFlags::READ_WRITE)?;
//! file.write_at(b"hello", 0)?;
//! let mut buf = [0; 16];
//! assert_eq!(file.read_at(&mut buf, 1)?, 4);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

mod coherence;
mod dirfs;
mod memfs;

pub use dirfs::{
    DirFs, DirFsError, DirFsOptions, DirFsStats, Fallback, LOSS_TARGET, WritebackAtClose,
};
pub use memfs::MemFs;
