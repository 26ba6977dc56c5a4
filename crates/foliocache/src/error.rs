//! Errors: the operation that failed, the file and range, and the cause.

use foliocache_fs::DirFsError as DirectoryError;
use foliocache_mm::{Holder, MapError, MmError as CacheError, PinError};
use foliocache_sys::Errno;
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The result of calls of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed.
///
/// [`Error::errno`] says it in the kernel's terms.
///
/// # As a [`std::io::Error`]
///
/// A failure that is a number of the system, as most are, becomes that number: `raw_os_error` and `kind` are those that
/// `std::fs` would give. An [`io::Error`] has no room for a text beside it, so the path is lost: print the `Error` itself to
/// see it. The library's own errors, such as [`Error::Escape`] and [`Error::NotDurable`], have no number there. They keep
/// their text, have the kind that fits, and can be had back with [`io::Error::downcast`].
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Something with a range of a file failed.
    #[error("cannot {operation} {}, bytes {}..{}: {errno}", .path.display(), .range.start, .range.end)]
    File {
        /// The operation that failed.
        operation: Operation,
        /// The file, as it was opened.
        path: PathBuf,
        /// The bytes meant.
        range: Range<u64>,
        /// The cause.
        errno: Errno,
    },
    /// Something with a whole file or a name failed.
    #[error("cannot {operation} {}: {errno}", .path.display())]
    Path {
        /// The operation that failed.
        operation: Operation,
        /// The file or name.
        path: PathBuf,
        /// The cause.
        errno: Errno,
    },
    /// A path leads out of its directory: it is absolute, has more `..` than names before them, or goes through a symbolic link
    /// whose target does so.
    #[error("cannot {operation} {}", display_escape(.path, .directory))]
    Escape {
        /// The operation that failed.
        operation: Operation,
        /// The path.
        path: PathBuf,
        /// The directory that it must stay in.
        directory: PathBuf,
    },
    /// The file ended before the buffer was full.
    #[error("cannot fill the buffer from {}: bytes {}..{} are past its end", .path.display(), .range.start, .range.end)]
    UnexpectedEof {
        /// The file.
        path: PathBuf,
        /// The bytes that are missing.
        range: Range<u64>,
    },
    /// The file holds bytes that are no UTF-8 text.
    #[error("cannot read {} as text: it is not UTF-8", .path.display())]
    NotUtf8 {
        /// The file.
        path: PathBuf,
    },
    /// The file system does not support this.
    #[error("{0}")]
    Unsupported(&'static str),
    /// A setting is invalid.
    #[error("{0}")]
    Setting(String),
    /// The cache cannot be made, or its memory not be changed.
    #[error(transparent)]
    Memory(#[from] CacheError),
    /// A directory cannot be used as the store of a file system.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// A directory lies above a directory or a file that the cache already uses, or below one on another mounted file system: the same
    /// file would be cached twice, by two file systems.
    #[error("{} overlaps {}, which the cache uses already", .path.display(), .used.display())]
    Overlap {
        /// The requested directory.
        path: PathBuf,
        /// The directory in use.
        used: PathBuf,
    },
    /// Something about the cache as a whole failed.
    #[error("cannot {operation}: {errno}")]
    Cache {
        /// The operation that failed.
        operation: Operation,
        /// The cause.
        errno: Errno,
    },
    /// A file could not be mapped.
    #[error("cannot map {}, bytes {}..{}: {cause}", .path.display(), .range.start, .range.end)]
    Map {
        /// The file, as it was opened.
        path: PathBuf,
        /// The bytes meant.
        range: Range<u64>,
        /// The cause.
        #[source]
        cause: MapError,
    },
    /// Bytes of a file could not be pinned.
    #[error("cannot pin {}, bytes {}..{}: {cause}", .path.display(), .range.start, .range.end)]
    Pin {
        /// The file, as it was opened.
        path: PathBuf,
        /// The bytes meant.
        range: Range<u64>,
        /// The cause.
        #[source]
        cause: PinError,
    },
    /// Pins of a file are in the way.
    #[error("cannot {operation} {}: {}", .path.display(), display_pins(.pins))]
    Pinned {
        /// The operation that failed.
        operation: Operation,
        /// The file, as it was opened.
        path: PathBuf,
        /// The pinned bytes in the way, listed just after the failure.
        pins: Vec<Holder>,
    },
    /// Files could not be made durable.
    #[error("{}", display_failed(.0))]
    NotDurable(Vec<FailedFile>),
}

macro_rules! operations {
    ($($name:ident = $words:literal,)*) => {
        /// The operation of a call that failed, in the words of its message: "cannot ... the file".
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Operation {
            $(#[doc = concat!("\"", $words, "\"")] $name,)*
        }

        impl fmt::Display for Operation {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$name => $words,)* })
            }
        }
    };
}

operations! {
    Read = "read",
    Write = "write",
    Append = "append to",
    Seek = "seek in",
    SetLen = "set the length of",
    PunchHole = "punch a hole in",
    Allocate = "allocate space in",
    Advise = "advise on",
    Populate = "populate a mapping of",
    Sync = "sync",
    Lock = "lock",
    Unlock = "unlock",
    Discard = "discard failed data of",
    Stats = "read the figures of",
    Open = "open",
    Close = "close",
    Create = "create",
    CreateDir = "create the directory",
    Remove = "remove",
    Rename = "rename",
    HardLink = "link to",
    Symlink = "create the symbolic link",
    ReadLink = "read the symbolic link",
    Metadata = "read the attributes of",
    SetMetadata = "change the attributes of",
    ReadDir = "read the directory",
    Copy = "copy to",
    Clone = "make another handle of",
    SeekSparse = "find data or a hole in",
    GetXattr = "read an extended attribute of",
    SetXattr = "change an extended attribute of",
    StatFs = "read the room of the file system of",
    InstallHandlers = "install the fault handlers",
    SetMemory = "change the memory bound",
    Mount = "use as a directory",
    Run = "run a call on",
}

impl Operation {
    /// Whether it changes names or attributes, which a read-only directory refuses.
    pub(crate) fn changes_names(self) -> bool {
        use Operation::*;
        let of_names = matches!(
            self,
            Create | CreateDir | Remove | Rename | HardLink | Symlink
        );
        of_names || matches!(self, SetMetadata | SetXattr)
    }
}

/// A file that could not be made durable.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailedFile {
    /// The file, as its file system names it.
    pub file: String,
    /// The bytes whose last write failed. Empty where they were written but the medium did not
    /// confirm them, and where not data but names failed.
    pub ranges: Vec<Range<u64>>,
    /// The cause.
    pub errno: Errno,
}

/// A file with data that is not durable yet; from [`Cache::unsynced_files`](crate::Cache::unsynced_files).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnsyncedFile {
    /// The file, as its file system names it.
    pub file: String,
    /// How much, in bytes, rounded up to pages but not beyond the end of the file.
    pub bytes: u64,
    /// The newest error of writing the file.
    pub errno: Option<Errno>,
}

impl fmt::Display for FailedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file, self.errno)
    }
}

fn display_escape(path: &Path, directory: &Path) -> String {
    let (given, of) = (path.display(), directory.display());
    if !path.is_absolute() {
        return format!("{given}: the path leads out of {of}");
    }
    let hint = match path.strip_prefix(directory) {
        Ok(below) if !below.as_os_str().is_empty() => format!("; there it is {}", below.display()),
        _ => String::new(),
    };
    format!("{given}: {given} is absolute, and paths are relative to the directory {of}{hint}")
}

fn display_pins(pins: &[Holder]) -> String {
    let list: Vec<String> = pins.iter().map(Holder::to_string).collect();
    list.join("; ")
}

fn display_failed(files: &[FailedFile]) -> String {
    let list: Vec<String> = files.iter().map(FailedFile::to_string).collect();
    format!("{} not durable: {}", list.len(), list.join("; "))
}

impl Error {
    /// The error of an operation on the file or directory at `path`.
    pub(crate) fn at(operation: Operation, path: &Path) -> impl Fn(Errno) -> Self + Copy {
        move |errno| Self::Path {
            operation,
            path: path.to_owned(),
            errno,
        }
    }

    /// The error of an operation on the cache.
    pub(crate) fn of_cache(operation: Operation) -> impl Fn(Errno) -> Self {
        move |errno| Self::Cache { operation, errno }
    }

    /// The error number that says the same.
    pub fn errno(&self) -> Errno {
        match self {
            Self::File { errno, .. } | Self::Path { errno, .. } | Self::Cache { errno, .. } => {
                *errno
            }
            Self::Escape { .. } => Errno::EXDEV,
            Self::UnexpectedEof { .. } => Errno::ENODATA,
            Self::NotUtf8 { .. } => Errno::EILSEQ,
            Self::Unsupported(_) => Errno::EOPNOTSUPP,
            Self::Setting(_) => Errno::EINVAL,
            Self::Memory(error) => error.errno(),
            Self::Directory(error) => error.errno(),
            Self::Overlap { .. } | Self::Pinned { .. } => Errno::EBUSY,
            Self::Map { cause, .. } => cause.errno(),
            Self::Pin { cause, .. } => cause.errno(),
            Self::NotDurable(files) => files.first().map_or(Errno::EIO, |file| file.errno),
        }
    }

    /// The files that could not be made durable, if that is the error.
    pub fn failed_files(&self) -> &[FailedFile] {
        match self {
            Self::NotDurable(files) => files,
            _ => &[],
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = match error {
            Error::File { errno, .. }
            | Error::Path { errno, .. }
            | Error::Cache { errno, .. }
            | Error::Map {
                cause: MapError::Failed(errno),
                ..
            }
            | Error::Pin {
                cause: PinError::Failed(errno),
                ..
            } => return errno.into(),
            Error::UnexpectedEof { .. } => io::ErrorKind::UnexpectedEof,
            Error::NotUtf8 { .. } => io::ErrorKind::InvalidData,
            _ => io::Error::from(error.errno()).kind(),
        };
        io::Error::new(kind, error)
    }
}
