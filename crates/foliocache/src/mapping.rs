//! Mapped files: addresses at which a part of a file can be read and stored to.
//!
//! # Safety
//!
//! A mapping's addresses show the file's pages for as long as it exists, and nothing else. References to them
//! borrow it. The functions that return plain slices state which other changes the caller must exclude.
#![allow(unsafe_code)]

use foliocache_mm::{IoLock, LockedAccess, MapError, Vma, VmaAccess as MapAccess};
use foliocache_sync::atomic::AtomicU8;
use foliocache_sys::Errno;
use foliocache_vfs::{Advice, OpenFile};
use std::fmt;
use std::ops::{Range, RangeBounds};
use std::panic::{RefUnwindSafe, UnwindSafe};

use crate::error::{Error, Operation, Result};
use crate::file::File;
use crate::parent_only::{Forked, ParentOnly};
use crate::range::bytes_of;

/// A mapped part of a file, from [`File::map`] or [`File::map_locked`].
///
/// Its pages are pages of the cache, inside the memory bound. Readers of the file see a store at once, and the mapping shows
/// a write at once. Unused pages leave the cache like others, and come back by a page fault. Offsets are in bytes from the first
/// byte of the mapping.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use foliocache::{Cache, MapAccess};
/// use std::sync::atomic::Ordering;
///
/// # let cache = Cache::builder().memory("32M").build()?;
/// let file = cache.memfs()?.create("counters")?;
/// file.set_len(4096)?;
/// let mapping = file.map(.., MapAccess::ReadWrite)?;
/// let bytes = mapping.as_atomics().expect("it is mapped for stores");
/// bytes[100].fetch_add(1, Ordering::Relaxed);
/// let mut byte = [0];
/// file.read_exact_at(&mut byte, 100)?;
/// assert_eq!(byte, [1]);
/// mapping.sync(..)?; // durable now, or an error
/// # Ok(())
/// # }
/// ```
///
/// It keeps the file open, even after its [`File`] is dropped. Dropping it unmaps it and makes nothing durable:
/// [`Mapping::sync`] does. It reports errors of write-back as a separate handle would.
///
/// # Signals
///
/// A touch of an address is SIGBUS if the page lies beyond the end of the file *now*, if the store cannot read it, or if there
/// is no room for it. The next touch tries again; in [`Thread`](crate::MappingFaults::Thread) mode a page that failed twice fails for a second. A store to a read mapping is
/// SIGSEGV, and so is every touch in a forked child, where no mapping exists. Without a handler these signals end the process. They
/// are no undefined behaviour. [`Mapping::read_at`] and [`Mapping::write_at`] return errors instead.
pub struct Mapping {
    vma: ParentOnly<Vma>,
    file: File,
}

// As `Directory`.
impl UnwindSafe for Mapping {}
impl RefUnwindSafe for Mapping {}

impl Forked for Vma {
    fn check_fork(&self) -> Result<(), Errno> {
        self.mapping().mm().check_fork()
    }
}

impl File {
    /// Maps a range of the file, in bytes. It must begin at a multiple of 4 KiB. An open end is the current end of the file;
    /// an end beyond that leaves room for the file to grow.
    ///
    /// The first mapping of a part of a file moves its cached pages: it blocks for memory, and for I/O under way, at most five
    /// seconds for each. The first mapping of a cache reserves addresses and, with [`MappingFaults::Thread`], starts threads. A
    /// mapping takes some 800 bytes of the bound, and 4 KiB for every 2 MiB of it that are touched.
    ///
    /// [`MappingFaults::Thread`]: crate::MappingFaults::Thread
    ///
    /// # Errors
    /// [`Error::Map`], whose cause names the remedy: `EPERM` if the process may not resolve page faults, `EACCES`
    /// if the file is not open for reading, or for [`MapAccess::ReadWrite`] not for writing too, or for appending;
    /// `EINVAL` for no bytes (an empty file, for instance) or a start that is no multiple of 4 KiB, `EFBIG`,
    /// `ENOMEM`, `EBUSY` if I/O does not end ([`MapError::Busy`]), `ECHILD` after a fork.
    ///
    /// [`MapAccess::ReadWrite`]: crate::MapAccess::ReadWrite
    #[doc(alias = "mmap")]
    pub fn map(&self, range: impl RangeBounds<u64>, access: MapAccess) -> Result<Mapping> {
        self.map_with(range, |file, pos, len| file.map(pos, len, access))
    }

    /// Maps a range of the file and keeps it in memory until the mapping is dropped. No touch waits for I/O, and none is
    /// a fault that this library resolves, in either mode. The range must lie within the file and begin at a multiple of 4 KiB.
    ///
    /// Reads missing pages, makes huge pages if the kernel has some and [`LockedAccess`] allows it, and blocks for that. All
    /// memory that is locked here and by [`Mapping::lock_for_io`] takes at most half of the memory for pages, each page counted
    /// once ([`CacheStats::unreclaimable`]). Pages of a memory file system are not counted again. The mapping itself is charged as
    /// [`File::map`] says, its page tables at once.
    ///
    /// A part that is truncated afterwards cannot be accessed any more: a touch is SIGSEGV, even when the file has grown again.
    ///
    /// [`CacheStats::unreclaimable`]: crate::CacheStats::unreclaimable
    ///
    /// # Errors
    /// [`Error::Map`] as for [`File::map`], and `ENOBUFS` beyond the share ([`MapError::TooMuchHeld`]), `EINVAL`
    /// beyond the end of the file, and those of the store.
    #[doc(alias = "mlock")]
    pub fn map_locked(
        &self,
        range: impl RangeBounds<u64>,
        access: LockedAccess,
    ) -> Result<Mapping> {
        self.map_with(range, |file, pos, len| file.map_locked(pos, len, access))
    }

    fn map_with(
        &self,
        range: impl RangeBounds<u64>,
        map: impl Fn(&OpenFile, u64, usize) -> Result<Vma, MapError>,
    ) -> Result<Mapping> {
        let range = bytes_of(range, self.cached_len());
        let mapped = || {
            let file = self.duplicate()?;
            let len = usize::try_from(range.end.saturating_sub(range.start));
            let len = len.map_err(|_| Errno::EFBIG)?;
            let vma = map(file.open_file(), range.start, len)?;
            Ok(Mapping {
                vma: ParentOnly::new(vma),
                file,
            })
        };
        mapped().map_err(|cause| Error::Map {
            path: self.path().to_owned(),
            range: range.clone(),
            cause,
        })
    }
}

impl Mapping {
    /// The address of its first byte, which stays as long as the mapping.
    ///
    /// A touch may be a signal: see the type. Writers of the file change the bytes at any time, so accesses through it must be
    /// atomic or volatile.
    pub fn as_ptr(&self) -> *mut u8 {
        self.vma.address()
    }

    /// The length, in bytes.
    pub fn len(&self) -> usize {
        self.vma.len()
    }

    /// Always false: a mapping has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.vma.is_empty()
    }

    /// The bytes of the file that it shows, those beyond its end included.
    pub fn file_range(&self) -> Range<u64> {
        self.vma.range()
    }

    /// The access that it was mapped for.
    pub fn access(&self) -> MapAccess {
        self.vma.access()
    }

    /// The bytes, for loads and stores beside those of others. `None` if it is mapped for reads, because a store would fail.
    ///
    /// A touch may be a signal: see the type.
    pub fn as_atomics(&self) -> Option<&[AtomicU8]> {
        // SAFETY: the addresses are the mapping's, which is borrowed, and may be stored to. While this exists they
        // are only accessed atomically, by the contracts of the plain slices. The cache's own accesses use other
        // addresses, and code outside Rust.
        (self.access() == MapAccess::ReadWrite)
            .then(|| unsafe { std::slice::from_raw_parts(self.as_ptr().cast(), self.len()) })
    }

    /// The bytes.
    ///
    /// A touch may be a signal: see the type.
    ///
    /// # Safety
    /// While the slice exists, nothing changes its bytes: no store through any mapping, and no write, truncate or punch of
    /// the file through any handle. Nor do other programs change the file in the directory, since an open takes their
    /// changes over. The slice is not used in a forked child.
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: the addresses are the mapping's, which is borrowed; the rest is the caller's contract.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }

    /// The bytes, mutable. A store to a read mapping is SIGSEGV.
    ///
    /// A touch may be a signal: see the type.
    ///
    /// # Safety
    /// While the slice exists, nothing else changes its bytes, as with [`Mapping::as_slice`], and nothing reads them
    /// through other mappings of the file. Reads of the file are allowed.
    pub unsafe fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the addresses are the mapping's, which is borrowed; the rest is the caller's contract.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len()) }
    }

    /// Reads from `offset` into `buf`, through the cache: no page fault, and no signal. Returns the number of bytes, fewer than
    /// asked at the end of the file or of the mapping.
    ///
    /// # Errors
    /// As [`File::read_at`].
    pub fn read_at(&self, buf: &mut [u8], offset: usize) -> Result<usize> {
        let len = buf.len().min(self.len().saturating_sub(offset));
        self.file.read_at(&mut buf[..len], self.position(offset))
    }

    /// Writes `buf` at `offset`, through the cache: no page fault, and no signal. Returns the number of bytes, fewer than given at
    /// the end of the file or of the mapping: like a store, it does not extend the file.
    ///
    /// # Errors
    /// As [`File::write_at`]; `EACCES` if it is mapped for reads, `EFAULT` if `offset` is at the end or beyond.
    pub fn write_at(&self, buf: &[u8], offset: usize) -> Result<usize> {
        let pos = self.position(offset);
        let end = self.file_range().end.min(self.file.cached_len());
        let len = (buf.len() as u64).min(end.saturating_sub(pos)) as usize;
        let refused = match self.access() {
            MapAccess::Read => Some(Errno::EACCES),
            MapAccess::ReadWrite => (len == 0 && !buf.is_empty()).then_some(Errno::EFAULT),
        };
        match refused {
            Some(errno) => Err(self.file.error(Operation::Write, pos, buf.len(), errno)),
            None => self.file.write_at(&buf[..len], pos),
        }
    }

    /// Makes durable all stores and writes to a range before the call. Blocks for the I/O: the dirty data of all folios that the
    /// range touches (2 MiB each at most), and a flush of the file.
    ///
    /// # Errors
    /// As [`File::sync_data`]; `EINVAL` for a range beyond the mapping.
    #[doc(alias = "msync")]
    pub fn sync(&self, range: impl RangeBounds<usize>) -> Result<()> {
        let part = self.part(Operation::Sync, range)?;
        let range = self.position(part.start)..self.position(part.end);
        self.file
            .with(Operation::Sync, |open| open.sync_range(range))
    }

    /// Reads the missing pages of a range and maps it for loads, so that the next touches are no faults. It is a hint: pages may
    /// leave again at any time, and in a range larger than the bound the first have left already. Blocks for I/O and memory. The
    /// first store to a page is still a fault.
    ///
    /// # Errors
    /// `EINVAL` for a range beyond the mapping, `EFAULT` beyond the end of the file, those of the store, `ECHILD`
    /// after a fork.
    #[doc(alias = "MADV_POPULATE_READ")]
    pub fn populate(&self, range: impl RangeBounds<usize>) -> Result<()> {
        let part = self.part(Operation::Populate, range)?;
        let done = self.vma.populate(part.clone(), false);
        done.map_err(|errno| {
            let pos = self.position(part.start);
            self.file.error(Operation::Populate, pos, part.len(), errno)
        })
    }

    /// Keeps a range in memory and in the page tables until the result is dropped, for stores too if the mapping is for stores.
    /// Meanwhile system calls may use these addresses in both modes, and so may direct I/O and `io_uring`, which keep them
    /// beyond the call. Drop the lock after they are done.
    ///
    /// Reads missing pages, and blocks for that. Counts against the share of [`File::map_locked`]. A range of a
    /// mapping for stores counts as dirty all the time: each write-back writes all of it, from a copy, and it stays
    /// dirty.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use foliocache::{Cache, MapAccess, MappingFaults};
    /// # let cache = Cache::builder().memory("32M").mapping_faults(MappingFaults::Inline).build()?;
    /// # let file = cache.memfs()?.create("received")?;
    /// # let (mut reader, mut writer) = std::io::pipe()?;
    /// # std::io::Write::write_all(&mut writer, b"from a pipe")?;
    /// file.set_len(1 << 20)?;
    /// let mapping = file.map(.., MapAccess::ReadWrite)?;
    /// {
    ///     let _lock = mapping.lock_for_io(..4096)?;
    ///     // SAFETY: the file has no other users.
    ///     let target = unsafe { std::slice::from_raw_parts_mut(mapping.as_ptr(), 4096) };
    ///     std::io::Read::read(&mut reader, target)?;
    /// }
    /// # let mut bytes = [0; 11];
    /// # file.read_exact_at(&mut bytes, 0)?;
    /// # assert_eq!(&bytes, b"from a pipe");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Map`]: `ENOBUFS` beyond the share ([`MapError::TooMuchHeld`]), `EINVAL` for no bytes or bytes beyond
    /// the mapping, `EFAULT` beyond the end of the file, those of the store, `ECHILD` after a fork.
    #[doc(alias = "mlock")]
    pub fn lock_for_io(&self, range: impl RangeBounds<usize>) -> Result<IoLock<'_>> {
        let part = self.bytes_of(range);
        let locked = self.vma.lock_for_io(part.start as usize..part.end as usize);
        locked.map_err(|cause| Error::Map {
            path: self.file.path().to_owned(),
            range: self.position(part.start as usize)..self.position(part.end as usize),
            cause,
        })
    }

    /// Announces how a range will be used. A pattern applies to the whole mapping. [`Advice::WillNeed`] blocks until the range is in
    /// the cache; [`Advice::DontNeed`] drops its clean pages.
    ///
    /// # Errors
    /// `EINVAL` for a range beyond the mapping; as [`File::advise`].
    #[doc(alias = "madvise")]
    pub fn advise(&self, advice: Advice, range: impl RangeBounds<usize>) -> Result<()> {
        let part = self.part(Operation::Advise, range)?;
        if let Some(access) = advice.pattern() {
            self.vma.readahead().advise(access);
        }
        let range = self.position(part.start)..self.position(part.end);
        self.file.advise(advice, range)
    }

    /// The position in the file of the byte at `offset`; the end for a byte beyond it.
    fn position(&self, offset: usize) -> u64 {
        self.file_range().start + offset.min(self.len()) as u64
    }

    fn bytes_of(&self, range: impl RangeBounds<usize>) -> Range<u64> {
        let bounds = (
            range.start_bound().map(|&start| start as u64),
            range.end_bound().map(|&end| end as u64),
        );
        bytes_of(bounds, self.len() as u64)
    }

    /// A range within the mapping, unless this is a forked child.
    fn part(&self, operation: Operation, range: impl RangeBounds<usize>) -> Result<Range<usize>> {
        self.file.check(operation)?;
        let part = self.bytes_of(range);
        if part.start <= part.end && part.end <= self.len() as u64 {
            return Ok(part.start as usize..part.end as usize);
        }
        let pos = self.position(part.start as usize);
        let len = part.end.saturating_sub(part.start) as usize;
        Err(self.file.error(operation, pos, len, Errno::EINVAL))
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping")
            .field("path", &self.file.path())
            .field("range", &self.file_range())
            .field("access", &self.access())
            .finish_non_exhaustive()
    }
}
