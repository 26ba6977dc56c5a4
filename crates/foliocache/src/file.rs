//! An open file: reads, writes and syncs through the cache.
//!
//! # Model
//!
//! A [`File`] is an open file description with a position, which only the traits of `std::io` use, and which it shares
//! with its clones. The positional calls go straight to the file's pages: a hit costs no system call,
//! no lock and no allocation.

mod attributes;
mod description;
pub(crate) mod locks;
mod outside;
mod pins;
mod views;

use foliocache_mm::{FileStats, Iocb, IovIter, View};
use foliocache_sync::cell::OnceLock;
use foliocache_sync::{Arc, Mutex};
use foliocache_sys::Errno;
use foliocache_vfs::{Advice, FallocateMode, OpenFile, SeekSparse};
use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::ops::{Range, RangeBounds};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::path::{Path, PathBuf};

use self::description::Description;
use crate::error::{Error, Operation, Result};
use crate::io_options::IoOptions;
use crate::metadata::Metadata;
use crate::mount::VfsMount;
use crate::parent_only::{Forked, ParentOnly};
use crate::range::{bytes_in, bytes_of};
use crate::rights::Rights;

pub use views::ViewRequest;

/// An open file; as [`std::fs::File`].
///
/// Reads and writes at a position take `&self` and may come from any number of threads; a read
/// beside a write of the same bytes may see part of it. `File` and `&File` also implement
/// [`Read`](std::io::Read), [`Write`](std::io::Write) and [`Seek`](std::io::Seek), with one shared
/// position.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::io::{BufRead, BufReader, Write};
///
/// # let cache = foliocache::Cache::builder().memory("16M").build()?;
/// let dir = cache.memfs()?;
/// let mut file = dir.create("list")?;
/// writeln!(file, "one")?;
/// writeln!(file, "two")?;
/// file.write_all_at(b"ONE", 0)?;
/// let lines = BufReader::new(dir.open("list")?).lines();
/// assert_eq!(lines.collect::<Result<Vec<_>, _>>()?, ["ONE", "two"]);
/// # Ok(())
/// # }
/// ```
///
/// Dropping it closes the file. That makes nothing durable and reports no error. [`File::sync_data`] does both, and only after it a
/// crash of the machine loses nothing.
///
/// Written data is in the memory of this process until it is in the source: for an open file after five seconds
/// ([`CacheBuilder::dirty_expire`](crate::CacheBuilder::dirty_expire)), for a closed file some 50 ms later, unless
/// [`DirectoryOptions::writeback_at_close`](crate::DirectoryOptions::writeback_at_close) says otherwise. A process that is killed or aborts before that
/// loses it. One that exits loses it unless the [`Cache`](crate::Cache) was closed or dropped before, or has
/// [`Cache::close_on_exit`](crate::Cache::close_on_exit).
pub struct File {
    /// None before its first use. Dropped before the handle is closed: its locks are of an open file.
    description: OnceLock<Arc<Description>>,
    open: ParentOnly<OpenFile>,
    mount: Arc<VfsMount>,
    rights: Rights,
    path: PathBuf,
}

// As `Directory`.
impl UnwindSafe for File {}
impl RefUnwindSafe for File {}

impl Forked for OpenFile {
    #[inline]
    fn check_fork(&self) -> Result<(), Errno> {
        self.mapping().mm().check_fork()
    }
}

impl File {
    pub(crate) fn new(
        open: OpenFile,
        mount: &Arc<VfsMount>,
        rights: Rights,
        path: PathBuf,
    ) -> Self {
        Self {
            description: OnceLock::new(),
            open: ParentOnly::new(open),
            mount: Arc::clone(mount),
            rights,
            path,
        }
    }

    /// The state that all clones of a handle share.
    fn description(&self) -> &Arc<Description> {
        self.description.get_or_init(Arc::default)
    }

    /// The position, shared by all clones of a handle.
    pub(crate) fn cursor(&self) -> &Mutex<u64> {
        &self.description().position
    }

    /// The file's path when it was opened, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn open_file(&self) -> &OpenFile {
        &self.open
    }

    pub(crate) fn mount(&self) -> &VfsMount {
        &self.mount
    }

    /// Whether every write goes to the end.
    pub(crate) fn appends(&self) -> bool {
        self.open.flags().append
    }

    #[cold]
    pub(crate) fn error(&self, operation: Operation, pos: u64, len: usize, errno: Errno) -> Error {
        Error::File {
            operation,
            path: self.path.clone(),
            range: pos..pos.saturating_add(len as u64),
            errno,
        }
    }

    #[cold]
    pub(crate) fn path_error(&self, operation: Operation, errno: Errno) -> Error {
        Error::at(operation, &self.path)(errno)
    }

    pub(crate) fn check_fork(&self) -> Result<(), Errno> {
        self.open.check_fork()
    }

    /// `ECHILD` in a forked child.
    pub(crate) fn check(&self, operation: Operation) -> Result<()> {
        self.with(operation, |_| Ok(()))
    }

    /// Runs an operation that is no hot path, unless this is a forked child.
    pub(crate) fn with<T>(
        &self,
        operation: Operation,
        act: impl FnOnce(&OpenFile) -> Result<T, Errno>,
    ) -> Result<T> {
        let done = self.open.check_fork().and_then(|()| act(&self.open));
        done.map_err(|errno| self.path_error(operation, errno))
    }

    /// Reads into `buf` from byte `pos` on; returns the bytes, fewer than asked only at the end of
    /// the file or before an error.
    ///
    /// A hit makes no system call and writes nothing that others share. A miss blocks for I/O and
    /// takes memory of the bound, waiting for it if it must.
    ///
    /// # Errors
    /// Only if nothing was read: `EBADF` if not open for reading, `EINVAL` for a position beyond
    /// the largest offset, `ECHILD` after a fork, those of the backing store.
    #[inline]
    pub fn read_at(&self, buf: &mut [u8], pos: u64) -> Result<usize> {
        let done = self.open.read_at(buf, pos);
        done.map_err(|errno| self.error(Operation::Read, pos, buf.len(), errno))
    }

    /// As [`File::read_at`], with `options`.
    ///
    /// # Errors
    /// As [`File::read_at`].
    pub fn read_at_with(&self, buf: &mut [u8], pos: u64, options: IoOptions) -> Result<usize> {
        let len = buf.len();
        let iter = &mut IovIter::destination(buf);
        let done = self.open.read_iter(&mut options.iocb(pos), iter);
        done.map_err(|errno| self.error(Operation::Read, pos, len, errno))
    }

    #[inline]
    pub(crate) fn read_iter(&self, iter: &mut IovIter<'_>, pos: u64, len: usize) -> Result<usize> {
        let done = self.open.read_iter(&mut Iocb::at(pos), iter);
        done.map_err(|errno| self.error(Operation::Read, pos, len, errno))
    }

    /// Fills `buf` from byte `pos` on.
    ///
    /// # Errors
    /// [`Error::UnexpectedEof`] if the file ends before, and those of [`File::read_at`]; `buf` then
    /// may be filled in part.
    pub fn read_exact_at(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        let done = self.read_full_at(buf, pos)?;
        self.check_filled(pos, done, buf.len())
    }

    /// An error unless all `len` bytes from `pos` on were read.
    pub(crate) fn check_filled(&self, pos: u64, done: usize, len: usize) -> Result<()> {
        if done == len {
            return Ok(());
        }
        Err(Error::UnexpectedEof {
            path: self.path.clone(),
            range: pos + done as u64..pos.saturating_add(len as u64),
        })
    }

    /// Bytes of `range` in place, without a copy: from its start on, as many as one folio has, at most 2 MiB; none
    /// at the end of the file. As after a short read, call it again for the rest. [`File::view_exact`] returns all
    /// of a range.
    ///
    /// The bytes are *frozen*: they stay as they are, whatever is written to the file, truncated or evicted, and as long
    /// as the [`View`] is kept, even after the file and the cache are gone. Meanwhile a view keeps the memory of its whole folio
    /// in the bound, and a write of the folio makes another copy of it there. If that is not possible, the view is a copy: see
    /// [`View::is_copy`].
    ///
    /// Neither blocks nor allocates if the bytes are in the cache. Else as [`File::read_at`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cache = foliocache::Cache::builder().memory("16M").build()?;
    /// # let file = cache.memfs()?.create("page")?;
    /// use bytes::Bytes;
    ///
    /// file.write_all_at(b"HTTP/1.1", 0)?;
    /// let body = Bytes::from_owner(file.view(..)?); // no copy: it is in the cache
    /// file.write_all_at(b"changed!", 0)?;
    /// let version = body.slice(5..);
    /// drop((file, body));
    /// assert_eq!(version, "1.1");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`File::read_at`].
    #[inline]
    pub fn view(&self, range: impl RangeBounds<u64>) -> Result<View> {
        let range = bytes_of(range, u64::MAX);
        let len = bytes_in(&range);
        let view = self.open.view(&mut Iocb::at(range.start), len);
        view.map_err(|errno| self.error(Operation::Read, range.start, len, errno))
    }

    /// As [`File::read_at`], into several buffers, one after another.
    ///
    /// # Errors
    /// As [`File::read_at`].
    pub fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], pos: u64) -> Result<usize> {
        let len = bufs.iter().map(|buf| buf.len()).sum();
        let done = self.open.read_vectored_at(bufs, pos);
        done.map_err(|errno| self.error(Operation::Read, pos, len, errno))
    }

    /// Writes `buf` at byte `pos`, or at the end of a file open for appending; returns the bytes,
    /// fewer than given only before an error.
    ///
    /// The bytes are in the cache then and not durable. Blocks for memory of the bound, for its
    /// share of the dirty limits, and for I/O where a page is written in part that is not cached.
    ///
    /// # Errors
    /// Only if nothing was written: `EBADF` if not open for writing, `EINVAL` for a position beyond the largest
    /// offset, `EFBIG`, `ENOSPC` where a file system in memory is full, `ECHILD` after a fork, those of the backing
    /// store. `ENOSPC` and `EDQUOT` also after all was written, if others took the room meanwhile: the data is
    /// dirty and retried. For an append the next sync reports that.
    #[inline]
    pub fn write_at(&self, buf: &[u8], pos: u64) -> Result<usize> {
        let done = self.open.write_at(buf, pos);
        done.map_err(|errno| self.error(Operation::Write, pos, buf.len(), errno))
    }

    /// As [`File::write_at`], with `options`.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn write_at_with(&self, buf: &[u8], pos: u64, options: IoOptions) -> Result<usize> {
        let iter = &mut IovIter::source(buf);
        let done = self.open.write_iter(&mut options.iocb(pos), iter);
        done.map_err(|errno| self.error(Operation::Write, pos, buf.len(), errno))
    }

    #[inline]
    pub(crate) fn write_iter(&self, iter: &mut IovIter<'_>, pos: u64, len: usize) -> Result<usize> {
        let done = self.open.write_iter(&mut Iocb::at(pos), iter);
        done.map_err(|errno| self.error(Operation::Write, pos, len, errno))
    }

    /// The address of the `len` bytes from `pos` on, if they are contiguous in the cache. For the benchmark that
    /// copies them without the cache; the memory may belong to another file a moment later.
    #[cfg(feature = "bench")]
    #[doc(hidden)]
    pub fn cached_at(&self, pos: u64, len: usize) -> Option<*const u8> {
        self.open.read_in_place(&Iocb::at(pos), len, <[u8]>::as_ptr)
    }

    /// Writes all of `buf` at byte `pos`.
    ///
    /// # Errors
    /// As [`File::write_at`]; part of `buf` may have been written.
    pub fn write_all_at(&self, mut buf: &[u8], mut pos: u64) -> Result<()> {
        while !buf.is_empty() {
            let n = self.write_at(buf, pos)?;
            if n == 0 {
                return Err(self.error(Operation::Write, pos, buf.len(), Errno::EIO));
            }
            buf = &buf[n..];
            pos += n as u64;
        }
        Ok(())
    }

    /// As [`File::write_at`], from several buffers, one after another.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn write_vectored_at(&self, bufs: &[IoSlice<'_>], pos: u64) -> Result<usize> {
        self.write_vectored_from(bufs, pos).map(|(_, n)| n)
    }

    /// The same; also returns where the written bytes end.
    pub(crate) fn write_vectored_from(
        &self,
        bufs: &[IoSlice<'_>],
        pos: u64,
    ) -> Result<(u64, usize)> {
        let len = bufs.iter().map(|buf| buf.len()).sum();
        let done = self.open.write_vectored_from(bufs, pos);
        done.map_err(|errno| self.error(Operation::Write, pos, len, errno))
    }

    /// Writes `buf` at the end of the file at that moment; returns where the bytes went and how many, fewer than
    /// given only before an error. Blocks as [`File::write_at`], and for other appends and changes of the size.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn append(&self, buf: &[u8]) -> Result<(u64, usize)> {
        let done = self.open.append(buf);
        done.map_err(|errno| self.error(Operation::Append, self.cached_len(), buf.len(), errno))
    }

    /// As [`File::append`], all of `buf` in one run: no other append of this cache comes between. Returns where it begins.
    ///
    /// A `buf` that is a [`Mapping`](crate::Mapping) of a file of this cache is appended in runs of 1 MiB.
    ///
    /// # Errors
    /// As [`File::write_at`]; a first part of `buf` may be in the file then.
    pub fn append_all(&self, buf: &[u8]) -> Result<u64> {
        let done = self.open.append_all(buf, false);
        done.map_err(|errno| self.error(Operation::Append, self.cached_len(), buf.len(), errno))
    }

    /// Makes durable everything that was written to the file before the call, through any handle, with the attributes that are
    /// needed to find it. Blocks for the I/O.
    ///
    /// # Errors
    /// `Ok` means that all of it is on the medium. Every handle that was open when a failure happened gets it once, and so does every
    /// handle opened while failed data remains. That data stays in the cache and is retried.
    #[doc(alias = "fdatasync")]
    pub fn sync_data(&self) -> Result<()> {
        self.with(Operation::Sync, OpenFile::fdatasync)
    }

    /// As [`File::sync_data`], with the attributes, and the name of a file that was made, renamed
    /// or linked since.
    ///
    /// # Errors
    /// As [`File::sync_data`].
    #[doc(alias = "fsync")]
    pub fn sync_all(&self) -> Result<()> {
        self.with(Operation::Sync, OpenFile::fsync)
    }

    /// Makes a range durable: the bytes of it that were written before the call, through any handle, with as much of the attributes
    /// as is needed to find them. Blocks for the I/O.
    ///
    /// It writes the folios that the range touches, which are 2 MiB at most, and flushes the file. Dirty data elsewhere in the
    /// file is not written for it. Unlike `sync_file_range(2)` it is a promise about the medium: that call flushes nothing.
    ///
    /// # Errors
    /// As [`File::sync_data`]. Also reports a failure elsewhere in the file that this handle has
    /// not reported yet.
    #[doc(alias = "sync_file_range")]
    #[doc(alias = "msync")]
    pub fn sync_range(&self, range: impl RangeBounds<u64>) -> Result<()> {
        let range = bytes_of(range, u64::MAX);
        self.with(Operation::Sync, |open| match range.is_empty() {
            true => Ok(()),
            false => open.sync_range(range),
        })
    }

    /// Sets the size in bytes; new bytes read as zeros. May block for I/O.
    ///
    /// # Errors
    /// `EINVAL` if not open for writing, `EFBIG`, [`Error::Pinned`] if a part that would be cut off is pinned,
    /// `ECHILD` after a fork, those of the backing store; size and data are then unchanged.
    #[doc(alias = "ftruncate")]
    pub fn set_len(&self, len: u64) -> Result<()> {
        let done = self.with(Operation::SetLen, |open| open.set_len(len));
        self.name_pins(Operation::SetLen, len..u64::MAX, done)
    }

    /// Makes `len` bytes at `pos` read as zeros and frees their space; the size stays. May block
    /// for I/O.
    ///
    /// # Errors
    /// `EBADF` if not open for writing, `EINVAL` for no bytes, `EFBIG`, [`Error::Pinned`] where the range is pinned,
    /// `ECHILD` after a fork, those of the backing store.
    #[doc(alias = "fallocate")]
    pub fn punch_hole(&self, pos: u64, len: u64) -> Result<()> {
        let done = self.with(Operation::PunchHole, |open| open.punch_hole(pos, len));
        let range = pos..pos.saturating_add(len);
        self.name_pins(Operation::PunchHole, range, done)
    }

    /// Gives space in the backing store to `len` bytes at `pos`; the size grows if they end beyond
    /// it. May block for I/O; takes no memory of the bound.
    ///
    /// # Errors
    /// `EBADF` if not open for writing, `EINVAL` for no bytes, `EFBIG`, `ENOSPC`, `EOPNOTSUPP`
    /// where the store cannot or is memory, `ECHILD` after a fork.
    #[doc(alias = "posix_fallocate")]
    pub fn allocate(&self, pos: u64, len: u64) -> Result<()> {
        let mode = FallocateMode::Allocate;
        self.with(Operation::Allocate, |open| open.fallocate(mode, pos, len))
    }

    /// The first byte of data at or after `pos`; `None` if only a hole follows. May block for I/O: dirty data of
    /// the file is made durable first.
    ///
    /// A store that does not know its holes, and a file system in memory, take the whole file for data.
    ///
    /// # Errors
    /// `ECHILD` after a fork, those of the backing store.
    #[doc(alias = "SEEK_DATA")]
    pub fn seek_data(&self, pos: u64) -> Result<Option<u64>> {
        self.seek_sparse(SeekSparse::Data, pos)
    }

    /// Where a hole begins, at byte `pos` or after it; the end of the file is one. `None` for a `pos` that is not within the
    /// file. Otherwise as [`File::seek_data`].
    ///
    /// # Errors
    /// As [`File::seek_data`].
    #[doc(alias = "SEEK_HOLE")]
    pub fn seek_hole(&self, pos: u64) -> Result<Option<u64>> {
        self.seek_sparse(SeekSparse::Hole, pos)
    }

    fn seek_sparse(&self, what: SeekSparse, pos: u64) -> Result<Option<u64>> {
        self.with(Operation::SeekSparse, |open| {
            match open.seek_sparse(what, pos) {
                Ok(found) => Ok(Some(found)),
                Err(Errno::ENXIO) => Ok(None),
                Err(errno) => Err(errno),
            }
        })
    }

    /// Says how a range will be used: the pattern is this handle's, for all of the file;
    /// [`Advice::WillNeed`] blocks until the range is in the cache, [`Advice::DontNeed`] drops its
    /// clean pages and leaves dirty ones. In a range larger than the bound the first pages have left again.
    ///
    /// # Errors
    /// `ECHILD` after a fork; for [`Advice::WillNeed`] those of the backing store.
    #[doc(alias = "posix_fadvise")]
    pub fn advise(&self, advice: Advice, range: impl RangeBounds<u64>) -> Result<()> {
        let range = bytes_of(range, u64::MAX);
        self.with(Operation::Advise, |open| match range.is_empty() {
            true => Ok(()),
            false => open.advise(advice, range.start, range.end - range.start),
        })
    }

    /// Another handle of the file. Both share one position and the same [locks](File#locks), as in `std`; each has
    /// its own readahead, and each reports a failed writeback.
    ///
    /// # Errors
    /// `ENOMEM` if the bound has no room for it, `ECHILD` after a fork.
    #[doc(alias = "dup")]
    pub fn try_clone(&self) -> Result<File> {
        let file = self.duplicate();
        let mut file = file.map_err(|errno| self.path_error(Operation::Clone, errno))?;
        file.description = OnceLock::from(Arc::clone(self.description()));
        Ok(file)
    }

    /// Another handle of the file, with its own position.
    pub(crate) fn duplicate(&self) -> Result<File, Errno> {
        self.open.check_fork()?;
        let open = self.open.duplicate()?;
        let (rights, path) = (self.rights.clone(), self.path.clone());
        Ok(File::new(open, &self.mount, rights, path))
    }

    /// The attributes as they are now. May block for I/O. If others replaced the file in the source, and the cache has no
    /// descriptor of it, the attributes that were known last.
    ///
    /// # Errors
    /// `ECHILD` after a fork, those of the backing store.
    pub fn metadata(&self) -> Result<Metadata> {
        self.with(Operation::Metadata, |open| {
            let names = self.mount.super_block()?;
            let attr = names.fs().getattr_open(open.inode())?;
            Ok(Metadata::new(attr, self.mount.dev()))
        })
    }

    /// The attributes, if they are known without a question to the source. Does not block.
    pub(crate) fn known_metadata(&self) -> Result<Option<Metadata>> {
        self.with(Operation::Metadata, |open| {
            let names = self.mount.super_block()?;
            let known = names.known_attr(open.inode());
            Ok(known.map(|attr| Metadata::new(attr, self.mount.dev())))
        })
    }

    /// Figures of this file, through whatever handle, since it came into memory. Does not wait for I/O.
    ///
    /// # Errors
    /// `ECHILD` after a fork.
    pub fn stats(&self) -> Result<FileStats> {
        self.with(Operation::Stats, |open| Ok(open.mapping().stats()))
    }

    /// The byte ranges whose last write to the backing store failed. They are kept and tried
    /// again.
    ///
    /// # Errors
    /// `ECHILD` after a fork.
    pub fn failed_ranges(&self) -> Result<Vec<Range<u64>>> {
        self.with(Operation::Stats, |open| Ok(open.mapping().failed_ranges()))
    }

    /// Gives up the bytes whose last write to the backing store failed, and returns their ranges:
    /// reads return the store's bytes. **The data is lost.** Blocks for writeback that is under
    /// way.
    ///
    /// # Errors
    /// `ECHILD` after a fork.
    pub fn discard_failed(&self) -> Result<Vec<Range<u64>>> {
        self.with(Operation::Discard, |open| {
            Ok(open.mapping().discard_failed())
        })
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File")
            .field("path", &self.path)
            .field("len", &self.cached_len())
            .finish_non_exhaustive()
    }
}
