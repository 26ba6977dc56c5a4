//! File systems over the cache: memfs and dirfs.
//!
//! # Model
//!
//! | module | what it is |
//! |---|---|
//! | `filesystem` | [`FileSystem`]: what every front door calls |
//! | `inode` | [`Inode`]: what a name leads to |
//! | `open_file` | [`OpenFile`]: reads, writes and syncs through the cache |
//! | `types` | attributes, flags, entries |
#![deny(unsafe_code)]

mod filesystem;
mod inode;
mod open_file;
mod types;

pub use filesystem::{FileSystem, OpenDirectory, ROOT_INO, check_name};
pub use inode::Inode;
pub use open_file::{Advice, OpenFile};
pub use types::{
    Attr, Device, DirEntry, DirEntryBuf, FallocateMode, FileKind, MAX_NAME, OpContext, OpenFlags,
    PERMISSION_BITS, RenameMode, S_ISGID, S_ISUID, S_ISVTX, SeekSparse, SetAttr, SetTime, StatFs,
    XattrMode,
};
