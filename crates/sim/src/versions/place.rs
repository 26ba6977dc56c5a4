//! A directory as writers and readers see it: a cache, a mount, or the source itself.
//!
//! # Safety
//!
//! A mapped file does not change, and the mapping is unmapped before the call returns. A descriptor
//! is closed by its owner.
#![allow(unsafe_code)]

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::IntoRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, XattrFlags, fgetxattr, renameat_with, setxattr};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::{CAPABILITY, NET_RAW};

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// For reading.
    Read,
    /// For writing, new.
    New,
    /// For writing, emptied.
    Truncate,
    /// For appending.
    Append,
}

/// The result of `stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The length in bytes.
    pub len: u64,
    /// The permissions, set-id bits included.
    pub mode: u32,
}

/// A directory. Names are of files right in it. The errors are those of the kernel.
#[allow(
    clippy::missing_errors_doc,
    reason = "the trait says it once for all its functions"
)]
pub trait Place {
    /// An open file.
    type File;

    /// Opens a file.
    fn open(&self, name: &str, how: How) -> io::Result<Self::File>;
    /// `pread`.
    fn read_at(&self, file: &Self::File, bytes: &mut [u8], pos: u64) -> io::Result<usize>;
    /// Appends all bytes to those written so far.
    fn write(&self, file: &Self::File, bytes: &[u8]) -> io::Result<()>;
    /// `fsync`.
    fn sync(&self, file: &Self::File) -> io::Result<()>;
    /// `close`, which may report that the file was not written.
    fn close(&self, file: Self::File) -> io::Result<()>;
    /// `fstat`.
    fn status(&self, file: &Self::File) -> io::Result<Status>;
    /// `stat`.
    fn status_of(&self, name: &str) -> io::Result<Status>;
    /// `fgetxattr`.
    fn attribute(&self, file: &Self::File, attribute: &str) -> io::Result<Option<Vec<u8>>>;
    /// `setxattr`.
    fn set_attribute(&self, name: &str, attribute: &str, value: &[u8]) -> io::Result<()>;
    /// `chmod`.
    fn set_mode(&self, name: &str, mode: u32) -> io::Result<()>;
    /// `rename`.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// `renameat2` with `RENAME_EXCHANGE`.
    fn exchange(&self, a: &str, b: &str) -> io::Result<()>;
    /// `link`.
    fn link(&self, existing: &str, new: &str) -> io::Result<()>;
    /// `unlink`.
    fn unlink(&self, name: &str) -> io::Result<()>;
    /// `readdir`.
    fn names(&self) -> io::Result<Vec<String>>;
    /// The bytes of an unchanging file, through a mapping; `None` where files are not mapped.
    fn mapped(&self, file: &Self::File, len: usize) -> io::Result<Option<Vec<u8>>>;
}

/// A directory of the kernel: the source, or a mount.
#[derive(Clone, Debug)]
pub struct Plain {
    top: PathBuf,
    maps: bool,
}

impl Plain {
    /// A directory whose files are mapped, or not.
    pub fn new(top: &Path, maps: bool) -> Plain {
        let top = top.to_owned();
        Plain { top, maps }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.top.join(name)
    }
}

fn status(metadata: &fs::Metadata) -> Status {
    Status {
        len: metadata.len(),
        mode: metadata.mode() & 0o7777,
    }
}

impl Place for Plain {
    type File = File;

    fn open(&self, name: &str, how: How) -> io::Result<File> {
        let mut options = OpenOptions::new();
        match how {
            How::Read => options.read(true),
            How::New => options.write(true).create_new(true),
            How::Truncate => options.write(true).truncate(true),
            How::Append => options.append(true),
        };
        options.open(self.at(name))
    }

    fn read_at(&self, file: &File, bytes: &mut [u8], pos: u64) -> io::Result<usize> {
        FileExt::read_at(file, bytes, pos)
    }

    fn write(&self, mut file: &File, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }

    fn close(&self, file: File) -> io::Result<()> {
        // SAFETY: the descriptor is owned by `file`, which is gone.
        Ok(unsafe { rustix::io::try_close(file.into_raw_fd()) }?)
    }

    fn status(&self, file: &File) -> io::Result<Status> {
        Ok(status(&file.metadata()?))
    }

    fn status_of(&self, name: &str) -> io::Result<Status> {
        Ok(status(&fs::metadata(self.at(name))?))
    }

    fn attribute(&self, file: &File, attribute: &str) -> io::Result<Option<Vec<u8>>> {
        let mut value = [0; 64];
        match fgetxattr(file, attribute, &mut value) {
            Ok(len) => Ok(Some(value[..len].to_vec())),
            Err(Errno::NODATA) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    fn set_attribute(&self, name: &str, attribute: &str, value: &[u8]) -> io::Result<()> {
        Ok(setxattr(
            self.at(name),
            attribute,
            value,
            XattrFlags::empty(),
        )?)
    }

    fn set_mode(&self, name: &str, mode: u32) -> io::Result<()> {
        fs::set_permissions(self.at(name), Permissions::from_mode(mode))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.at(from), self.at(to))
    }

    fn exchange(&self, a: &str, b: &str) -> io::Result<()> {
        let (a, b, flags) = (self.at(a), self.at(b), RenameFlags::EXCHANGE);
        Ok(renameat_with(CWD, a, CWD, b, flags)?)
    }

    fn link(&self, existing: &str, new: &str) -> io::Result<()> {
        fs::hard_link(self.at(existing), self.at(new))
    }

    fn unlink(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.at(name))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
        fs::read_dir(&self.top)?
            .map(|entry| entry.map(name))
            .collect()
    }

    fn mapped(&self, file: &File, len: usize) -> io::Result<Option<Vec<u8>>> {
        if !self.maps || len == 0 {
            return Ok(None);
        }
        let (null, read, private) = (std::ptr::null_mut(), ProtFlags::READ, MapFlags::PRIVATE);
        // SAFETY: the kernel chooses the place.
        let at = unsafe { mmap(null, len, read, private, file, 0) }?;
        let mut bytes = vec![0; len];
        // SAFETY: `len` bytes are mapped, and the file does not change, by the caller's contract.
        unsafe { std::ptr::copy_nonoverlapping(at.cast(), bytes.as_mut_ptr(), len) };
        // SAFETY: as mapped above, and not borrowed.
        unsafe { munmap(at, len) }?;
        Ok(Some(bytes))
    }
}

/// Whether we may give files in a directory capabilities.
///
/// # Errors
/// If no file can be made there.
pub fn can_have_capabilities(top: &Path) -> io::Result<bool> {
    let (place, name) = (Plain::new(top, false), ".capability");
    drop(place.open(name, How::New)?);
    let set = place.set_attribute(name, CAPABILITY, &NET_RAW);
    place.unlink(name)?;
    Ok(set.is_ok())
}
