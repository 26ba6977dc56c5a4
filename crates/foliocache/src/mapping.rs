//! Mapped files: addresses at which a part of a file can be read and stored to.
//!
//! # Safety
//!
//! A mapping's addresses show the file's pages for as long as it exists, and nothing else. References to them borrow
//! it. What else changes the same bytes is the contract of the functions that give plain slices.
#![allow(unsafe_code)]

use foliocache_mm::{IoLock, LockedAccess, MapError, Vma, VmaAccess};
use foliocache_sync::atomic::AtomicU8;
use foliocache_sys::Errno;
use foliocache_vfs::{Advice, OpenFile};
use std::fmt;
use std::ops::{Range, RangeBounds};

use crate::error::{Error, Operation, Result};
use crate::file::{File, bytes_of};
use crate::parent_only::{Forked, ParentOnly};

/// A mapped part of a file, from [`File::map`] or [`File::map_locked`].
///
/// Its pages are those of the cache, inside the memory bound: a store is seen by every reader of the file at once,
/// and a write by whoever looks at the mapping. Pages that nobody uses leave the cache as others do, and come back
/// by a page fault. Offsets are counted in bytes from the first byte of the mapping.
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
/// It keeps the file open, whatever becomes of the [`File`] that it was made of. Dropping it unmaps it and makes
/// nothing durable: [`Mapping::sync`] does. Errors of writeback are told to it as to a handle of its own.
///
/// # Signals
///
/// A touch of an address ends in SIGBUS where the page lies beyond the end of the file *now*, or cannot be read from
/// the store, or not be made room for; it is tried again with the next touch, after a failure of the store a second
/// later. A store to a mapping for reads is SIGSEGV. So is every touch in a forked child, where no mapping exists.
/// Without a handler of the program's these end the process; no touch is undefined behaviour for that reason.
/// [`Mapping::read_at`] and [`Mapping::write_at`] give errors instead.
pub struct Mapping {
    vma: ParentOnly<Vma>,
    file: File,
}

impl Forked for Vma {
    fn check_fork(&self) -> Result<(), Errno> {
        self.mapping().mm().check_fork()
    }
}

impl File {
    /// Maps a range of the file, in bytes, that begins at a multiple of 4 KiB. An open end is the end of the file
    /// now; an end beyond that leaves room for the file to grow into.
    ///
    /// The first mapping of a part of a file moves what is cached of it: it blocks for memory, and for I/O that is
    /// under way, of which each may take five seconds. The first mapping of a cache reserves addresses and, with [`MappingFaults::Thread`], starts
    /// threads. A mapping takes some 800 bytes of the bound, and 4 KiB for every 2 MiB of it that are touched.
    ///
    /// [`MappingFaults::Thread`]: crate::MappingFaults::Thread
    ///
    /// # Errors
    /// [`Error::Map`], whose cause says what to do about it: `EPERM` where the process may not resolve page faults,
    /// `EACCES` if the file is not open for reading, or for [`MapAccess::ReadWrite`] not for writing too, or for
    /// appending; `EINVAL` for no bytes (an empty file, for instance) or a start that is no multiple of 4 KiB,
    /// `EFBIG`, `ENOMEM`, `EBUSY` where I/O does not end ([`MapError::Busy`]), `ECHILD` after a fork.
    ///
    /// [`MapAccess::ReadWrite`]: crate::MapAccess::ReadWrite
    #[doc(alias = "mmap")]
    pub fn map(&self, range: impl RangeBounds<u64>, access: VmaAccess) -> Result<Mapping> {
        self.map_with(range, |file, pos, len| file.map(pos, len, access))
    }

    /// Maps a range of the file and keeps it in memory until the mapping is dropped: no touch waits for I/O, and none is
    /// a fault that this library resolves, in either mode. The range lies within the file and begins at a multiple of
    /// 4 KiB.
    ///
    /// Reads what is missing, makes huge pages of it where the kernel has some and [`LockedAccess`] allows it, and
    /// blocks for that. All that is locked for [`Mapping::lock_for_io`] and here takes at most half of the memory
    /// for pages, each page counted once ([`CacheStats::unreclaimable`]). Pages of a memory file system are not counted
    /// again. The mapping itself is charged as [`File::map`] says, its page tables at once.
    ///
    /// What is cut off the file afterwards cannot be accessed any more: a touch is SIGSEGV, also when the file
    /// grows again.
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
        let range = bytes_of(range, self.len());
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
    /// A touch may be a signal: see the type. Whoever writes the file changes what is there at any time, so accesses
    /// through it are to be atomic or volatile.
    pub fn as_ptr(&self) -> *mut u8 {
        self.vma.address()
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.vma.len()
    }

    /// Never: a mapping has bytes.
    pub fn is_empty(&self) -> bool {
        self.vma.is_empty()
    }

    /// The bytes of the file that it shows, those beyond its end included.
    pub fn file_range(&self) -> Range<u64> {
        self.vma.range()
    }

    /// What it was mapped for.
    pub fn access(&self) -> VmaAccess {
        self.vma.access()
    }

    /// The bytes, for loads and stores that may meet others'; `None` if it is mapped for reads, where a store could
    /// not be made.
    ///
    /// A touch may be a signal: see the type.
    pub fn as_atomics(&self) -> Option<&[AtomicU8]> {
        // SAFETY: the addresses are the mapping's, which is borrowed, and may be stored to. Nothing but atomic
        // accesses is made to them while this exists, but for what the contracts of the plain slices rule out. The
        // cache's own accesses go by other addresses, and by code that is not Rust's.
        (self.access() == VmaAccess::ReadWrite)
            .then(|| unsafe { std::slice::from_raw_parts(self.as_ptr().cast(), self.len()) })
    }

    /// The bytes.
    ///
    /// A touch may be a signal: see the type.
    ///
    /// # Safety
    /// While the slice exists nothing changes its bytes: no store through any mapping, no write, truncate or punch
    /// of the file through any handle. With a directory below, neither do other programs change the file there: what
    /// they change is taken over when the file is opened. The slice is not used in a forked child.
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: the addresses are the mapping's, which is borrowed; the rest is the caller's contract.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }

    /// The bytes, to be changed. A store to a mapping for reads is SIGSEGV.
    ///
    /// A touch may be a signal: see the type.
    ///
    /// # Safety
    /// While the slice exists nothing else changes its bytes, as with [`Mapping::as_slice`], and nothing reads them
    /// through other mappings of the file. Reads of the file are allowed.
    pub unsafe fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the addresses are the mapping's, which is borrowed; the rest is the caller's contract.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len()) }
    }

    /// Reads into `buf` what is at `offset`, through the cache: no page fault, and no signal. Returns the bytes,
    /// fewer than asked at the end of the file or of the mapping.
    ///
    /// # Errors
    /// As [`File::read_at`].
    pub fn read_at(&self, buf: &mut [u8], offset: usize) -> Result<usize> {
        let len = buf.len().min(self.len().saturating_sub(offset));
        self.file.read_at(&mut buf[..len], self.position(offset))
    }

    /// Writes `buf` at `offset`, through the cache: no page fault, and no signal. Returns the bytes, fewer than given
    /// at the end of the file or of the mapping: it makes no file longer, as stores do not.
    ///
    /// # Errors
    /// As [`File::write_at`]; `EACCES` if it is mapped for reads, `EFAULT` if `offset` is at the end or beyond.
    pub fn write_at(&self, buf: &[u8], offset: usize) -> Result<usize> {
        let pos = self.position(offset);
        let end = self.file_range().end.min(self.file.len());
        let len = (buf.len() as u64).min(end.saturating_sub(pos)) as usize;
        let refused = match self.access() {
            VmaAccess::Read => Some(Errno::EACCES),
            VmaAccess::ReadWrite => (len == 0 && !buf.is_empty()).then_some(Errno::EFAULT),
        };
        match refused {
            Some(errno) => Err(self.file.error(Operation::Write, pos, buf.len(), errno)),
            None => self.file.write_at(&buf[..len], pos),
        }
    }

    /// Makes durable what was stored to a range of the mapping, and what was written to that of the file, before the
    /// call. Blocks for the I/O: what is dirty of all folios that the range touches, which are 2 MiB at most, and a flush
    /// of the file.
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

    /// Reads what is missing of a range and maps it for loads, so that the next touches are no faults. A hint: the
    /// pages may leave again at any time, and if the range is larger than the bound the first have left already.
    /// Blocks for I/O and memory. The first store to a page stays a fault.
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

    /// Keeps a range in memory and in the page tables until the result is dropped, for stores too if the mapping is for
    /// stores: system calls may be handed these addresses in both modes, direct I/O, `io_uring` and whatever else keeps
    /// them for longer than the call included. Drop the lock after they are done.
    ///
    /// Reads what is missing, and blocks for that. Counts against the share of [`File::map_locked`]. A range of a
    /// mapping for stores counts as stored to for as long: each writeback writes all of it, from a copy, and it
    /// stays dirty.
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
    ///     // SAFETY: nobody else uses the file.
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

    /// Says how a range will be used: the pattern is this mapping's, for all of it; [`Advice::WillNeed`] blocks until
    /// the range is in the cache, [`Advice::DontNeed`] drops its clean pages.
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

    /// Where the byte at `offset` is in the file; the end for what is beyond.
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
