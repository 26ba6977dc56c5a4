//! The operations behind an address space, which a file system implements.
//!
//! # Model
//!
//! ```text
//!  read_folios ──▶ folios become uptodate
//!  writepages  ──▶ folios go from dirty to unstable (written, not yet on the medium)
//!  flush       ──▶ what was unstable before the call, and was not written since, is clean
//! ```
//!
//! # Locking
//!
//! | operation | `i_rwsem` | `wb_lock` | `invalidate_lock` | folio lock | may block |
//! |---|---|---|---|---|---|
//! | `read_folios` | any | no | any | the folios being filled | yes |
//! | `start_read` | any | no | no | the folios being filled, until `done` | no, or as `read_folios` |
//! | `begin_reads` | any | no | no | those of reads that were started | no |
//! | `keep_readable` | no | no | no | no | yes |
//! | `look_before_writeback` | any | held | any | no | yes |
//! | `writepages` | any | held | any | no (the folios are under writeback) | yes |
//! | `write_extents`, `append_pages` | as `writepages` | | | | yes |
//! | `flush` | any | no | no | no | yes |
//! | `write_inode` | any | held | no | no | yes |
//! | `truncate` | exclusive | held | exclusive | no | yes |
//! | `punch_hole` | exclusive | held | exclusive | no | yes |
//!
//! A read may thus be beside a `truncate` or a `punch_hole`, which wait for its folios afterwards and take
//! nothing that it read there. A `flush` may be beside any other operation of the
//! file but a second `flush`.
//!
//! The memory of the segments belongs to folios that the cache keeps in place (locked, or under
//! writeback) until the call returns; an implementation does not touch it afterwards.
//!
//! None is ever called inside an RCU read section. None may call back into the address space it
//! serves, and none may wait for memory of the same cache: writeback is what frees memory.

use foliocache_sys::Errno;
pub use foliocache_sys::fd::{Extent, IoSegment};

/// The callback of a started read. It is called once the read has ended, with what
/// [`AddressSpaceOperations::read_folios`] would return.
pub type ReadDone = Box<dyn FnOnce(Result<usize, Errno>) + Send>;

/// How the reads of a store go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadMode {
    /// The caller waits, whichever operation it calls.
    Waiting,
    /// The caller waits, but no longer than the copy takes, as for a device that is memory: short reads cost
    /// little more than long ones, and what they bring in is in the processor's caches when it is used.
    Copying,
    /// [`AddressSpaceOperations::start_read`] returns before its read has ended, or waits no longer than a
    /// copy takes. An async caller's thread starts reads only then.
    Background,
}

/// The operations of one file's backing store.
///
/// Every method may block on I/O. An error leaves the cache's data as it was: dirty folios stay
/// dirty and are retried, unstable folios become dirty again after a failed [`flush`].
///
/// [`flush`]: AddressSpaceOperations::flush
#[doc(alias = "address_space_operations")]
pub trait AddressSpaceOperations: Send + Sync {
    /// Reads into `segments` from byte `pos`, which is page aligned, as is every segment.
    ///
    /// Returns the bytes read: fewer than asked only at end of file; the cache zeroes the rest.
    ///
    /// # Errors
    /// Any error of the medium. Nothing of the range is then taken as read.
    fn read_folios(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno>;

    /// Starts reading as [`AddressSpaceOperations::read_folios`] does for a caller that waits, and calls `done` once when it
    /// has ended: on any thread, perhaps before this returns. It may begin no sooner than
    /// [`AddressSpaceOperations::begin_reads`] is called.
    ///
    /// The memory of the segments stays the read's until `done` is called. A store that drops `done`
    /// uncalled must not touch the memory any more. One that cannot read in the background reads
    /// here, as the default does.
    fn start_read(&self, pos: u64, segments: &[IoSegment<'static>], done: ReadDone) {
        done(self.read_folios(pos, segments));
    }

    /// Has all reads begin that were started, those of other files of the file system, too. Does not block.
    fn begin_reads(&self) {}

    /// How its reads go now. Does not block.
    fn read_mode(&self) -> ReadMode {
        ReadMode::Waiting
    }

    /// Writes `segments` at byte `pos`, which is page aligned; the last segment ends at the end
    /// of the file, at any byte. After [`AddressSpaceOperations::look_before_writeback`] said so, both may be any
    /// byte. Durable only after [`AddressSpaceOperations::flush`].
    ///
    /// Returns the bytes written. After a short count the rest is handed over again at once, from
    /// the last whole page on: an implementation that wrote some before an error returns the count
    /// and gives the error then.
    ///
    /// # Errors
    /// Any error of the medium. The whole range then stays dirty.
    fn writepages(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno>;

    /// Writes several extents, in ascending order and apart from each other, as
    /// [`AddressSpaceOperations::writepages`] writes one, and tells in each what it would return. In any order, and many at a
    /// time where the store gains by it; by default one after the other.
    fn write_extents(&self, extents: &mut [Extent<'_>]) {
        for extent in extents {
            extent.written = Some(self.writepages(extent.pos, extent.segments()));
        }
    }

    /// Whether the store takes bytes at the end of the file alone. It is given dirty data in order then, by
    /// [`AddressSpaceOperations::append_pages`]. Does not block.
    fn appends_only(&self) -> bool {
        false
    }

    /// As [`AddressSpaceOperations::writepages`], where [`AddressSpaceOperations::appends_only`] said so. `stored` bytes of the
    /// file are in the store; `None` after a flush failed. Bytes of the call that lie among them are not written again. A
    /// short count may end at any byte.
    ///
    /// # Errors
    /// As `writepages`; `EPERM` if bytes of the call that are `stored` differ from the store's.
    fn append_pages(
        &self,
        pos: u64,
        segments: &[IoSegment<'_>],
        stored: Option<u64>,
    ) -> Result<usize, Errno> {
        let _ = stored;
        self.writepages(pos, segments)
    }

    /// Makes durable whatever `writepages`, `truncate`, `punch_hole` and `write_inode` completed
    /// before the call. The next flush covers what they do while it runs.
    ///
    /// # Errors
    /// Any error of the medium. All data that no earlier flush made durable, what was written during
    /// the call included, and the size are then taken as not written at all, and written again; holes
    /// are not punched again.
    fn flush(&self) -> Result<(), Errno>;

    /// Makes durable, as far as that is one operation of the store, what `writepages` completed of all files in
    /// it. The flush of each file follows, and says how it went. By default does nothing. Called with no lock.
    fn flush_together(&self) {}

    /// Sets the size of the backing file, in bytes, both ways; new bytes read as zeros.
    ///
    /// # Errors
    /// Any error of the medium; the size is then unchanged.
    fn truncate(&self, size: u64) -> Result<(), Errno>;

    /// Makes `len` bytes at `pos` read as zeros and frees their space where it can; the size
    /// stays.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the backing cannot; any error of the medium.
    fn punch_hole(&self, pos: u64, len: u64) -> Result<(), Errno>;

    /// Writes the inode's attributes (times above all) after its data was written and before
    /// they are flushed.
    ///
    /// # Errors
    /// Any error of the medium.
    fn write_inode(&self) -> Result<(), Errno> {
        Ok(())
    }

    /// Whether others may change files in the store, and asking it about that is cheap. Always the same answer.
    fn is_shared(&self) -> bool {
        false
    }

    /// Whether others may have changed the file in the store, so that it should be
    /// [looked at](AddressSpaceOperations::look_before_write) before a write makes it dirty. Does not block. Called with no
    /// lock.
    fn may_have_changed(&self) -> bool {
        false
    }

    /// Looks whether others changed the file in the store, and has the cached pages
    /// [dropped](crate::AddressSpace::backing_changed) then: a write of a part of a page would bring back the rest of it.
    /// With `nowait` it returns false instead of waiting for another thread or the medium. Called with no lock.
    fn look_before_write(&self, _nowait: bool) -> bool {
        true
    }

    /// Looks whether others changed the file in the store since the last look, before neighbouring pages go to
    /// [`writepages`](AddressSpaceOperations::writepages). If so, of a page that was written to in part only that part
    /// is written, and what is cached is to be
    /// [dropped](crate::AddressSpace::backing_changed) when nothing is dirty any more. May block.
    fn look_before_writeback(&self) -> bool {
        false
    }

    /// Reclaim wants pages that handles [rely on](crate::AddressSpace::rely_on_pages): keeps the file readable from the store, and
    /// calls [`end_reliance`](crate::AddressSpace::end_reliance), or, if that is not possible,
    /// [`lose_reliance`](crate::AddressSpace::lose_reliance). False: the file is in use, so it is to be asked again. May block.
    fn keep_readable(&self) -> bool {
        true
    }

    /// Bytes that the store has room for, of all its files together; `None` if it does not tell. Should not wait for
    /// the medium.
    fn free_space(&self) -> Option<u64> {
        None
    }

    /// Gives `len` bytes at `pos` their place in the store, whatever the size, where they have none. Reads of them
    /// return the same bytes as before.
    ///
    /// # Errors
    /// `ENOSPC`, `EDQUOT`; `EOPNOTSUPP` where the store cannot.
    fn allocate_space(&self, _pos: u64, _len: u64) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// A name for the file in errors and lists, a path where there is one.
    fn describe(&self) -> String;
}
