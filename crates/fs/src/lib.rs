//! File systems over the cache: memfs and dirfs.
//!
//! # Model
//!
//! | module | what it is |
//! |---|---|
//! | `filesystem` | [`FileSystem`]: what every front door calls |
//! | `inode` | [`Inode`]: what a name leads to |
//! | `open_file` | [`OpenFile`]: reads, writes and syncs through the cache |
//! | `table` | the inodes in memory, by number and by identity |
//! | `attr` | attributes that an inode keeps in memory |
//! | `types` | attributes, flags, entries |
//! | `dirfs` | [`DirFs`]: a local directory through the cache |
//! | `memfs` | [`MemFs`]: the cache is the store |
//!
//! ```
//! use foliocache_fs::{FileSystem, MemFs, OpContext, OpenFlags};
//! use foliocache_mm::{Mm, MmConfig};
//! use std::ffi::OsStr;
//!
//! let mm = Mm::new(MmConfig::new(16 << 20))?;
//! let fs = MemFs::new(&mm)?;
//! let name = OsStr::new("greeting");
//! let file = fs.create(&OpContext::ROOT, &fs.root(), name, 0o644, OpenFlags::READ_WRITE, true)?;
//! file.write_at(b"hello", 0)?;
//! let mut buf = [0; 16];
//! assert_eq!(file.read_at(&mut buf, 1)?, 4);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

mod attr;
mod dirfs;
mod filesystem;
mod inode;
mod memfs;
mod open_file;
mod table;
#[cfg(feature = "testing")]
pub mod testing;
mod types;

pub use dirfs::{DirFs, DirFsError, DirFsOptions, DirFsStats, Fallback};
pub use filesystem::{FileSystem, OpenDirectory, ROOT_INO, check_name};
pub use inode::Inode;
pub use memfs::MemFs;
pub use open_file::{Advice, OpenFile};
pub use types::{
    Attr, Device, DirEntry, DirEntryBuf, FallocateMode, FileKind, MAX_NAME, OpContext, OpenFlags,
    PERMISSION_BITS, RenameMode, S_ISGID, S_ISUID, S_ISVTX, SeekSparse, SetAttr, SetTime, StatFs,
    XattrMode,
};
