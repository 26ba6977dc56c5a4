//! An open file: an inode, its access mode, and its state of readahead and errors.
//!
//! # Model
//!
//! An [`OpenFile`] is the kernel's open file description. It has no position: every read and write
//! names its own. Closing is dropping; it never fails and makes nothing durable, errors of
//! writeback are reported by [`OpenFile::fsync`].
//!
//! # Differences from Linux
//!
//! Reads do not move `atime` (as on a `noatime` mount).
//!
//! # Safety
//!
//! The inode's reference is taken once, by the drop.
#![allow(unsafe_code)]

mod charge;
mod sync;
mod views;

pub use charge::HandleCharge;

use crate::inode::Inode;
use crate::types::{Advice, FallocateMode, OpContext, OpenFlags, SeekSparse};
use foliocache_mm::slab::SlabArc;
use foliocache_mm::{
    AddressSpace, ErrSeqCursor, Fetch, FolioPin, Iocb, IovIter, LockedAccess, MAX_FILE_SIZE,
    MapError, PinError, PinEvent, PinMode, ReadaheadState, Request, Vma, VmaAccess,
};
use foliocache_sys::Errno;
use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::task::Waker;

/// An open file.
pub struct OpenFile {
    inode: ManuallyDrop<SlabArc<Inode>>,
    /// The inode's, kept here to save the hot paths a step.
    mapping: SlabArc<AddressSpace>,
    flags: OpenFlags,
    ctx: OpContext,
    readahead: ReadaheadState,
    wb_err: ErrSeqCursor,
}

impl OpenFile {
    /// A handle of a regular file; its file system counts it and is called when it is dropped. Makes the file's
    /// address space if it is the first handle.
    ///
    /// # Errors
    /// Those of [`Inode::open_mapping`] and [`OpenFile::charge`].
    pub fn new(inode: SlabArc<Inode>, flags: OpenFlags, ctx: OpContext) -> Result<OpenFile, Errno> {
        let mm = inode.open_mapping()?.mm().clone();
        let charge = Self::charge(&mm)?;
        Self::charged(inode, flags, ctx, charge)
    }

    /// As [`OpenFile::new`], with a charge of [`OpenFile::charge`].
    ///
    /// # Errors
    /// Those of [`Inode::open_mapping`].
    pub fn charged(
        inode: SlabArc<Inode>,
        flags: OpenFlags,
        ctx: OpContext,
        charge: HandleCharge<'_>,
    ) -> Result<OpenFile, Errno> {
        let mapping = inode.open_mapping()?.clone();
        mapping.prefetch_start();
        charge.keep();
        Ok(OpenFile {
            wb_err: mapping.sample_wb_err(),
            readahead: ReadaheadState::new(),
            inode: ManuallyDrop::new(inode),
            mapping,
            flags,
            ctx,
        })
    }

    /// Another handle of the same file with the same access mode, and its own readahead. It separately reports
    /// failures that this one has not reported.
    ///
    /// # Errors
    /// `ENOMEM` if there is no room for it.
    #[doc(alias = "dup")]
    pub fn duplicate(&self) -> Result<OpenFile, Errno> {
        let charge = Self::charge(self.mapping.mm())?;
        self.inode
            .ops()
            .duplicated(&self.inode, self.counts_as_writer());
        charge.keep();
        Ok(OpenFile {
            wb_err: self.wb_err.clone(),
            readahead: ReadaheadState::new(),
            inode: ManuallyDrop::new(SlabArc::clone(&self.inode)),
            mapping: self.mapping.clone(),
            flags: self.flags,
            ctx: self.ctx,
        })
    }

    fn counts_as_writer(&self) -> bool {
        self.flags.write || self.flags.truncate
    }

    /// Maps `len` bytes from `pos` on: [`AddressSpace::map`]. The first store to a clean page moves the times of the
    /// file; of a file that is never written back, the fault that makes a page writable, if it is a store's.
    ///
    /// Context: a handle of the file, open for the same, stays open as long as the mapping.
    ///
    /// # Errors
    /// Those of [`AddressSpace::map`]; `EACCES` if the handle is not open for reading, or for stores not for
    /// writing too, or for appending alone.
    #[doc(alias = "mmap")]
    pub fn map(&self, pos: u64, len: usize, access: VmaAccess) -> Result<Vma, MapError> {
        self.check_map(access == VmaAccess::ReadWrite)?;
        self.inode.ops().keep_readable()?;
        Ok(self.moves_times(self.mapping.map(pos, len, access)?))
    }

    /// Maps `len` bytes from `pos` on and keeps them in memory: [`AddressSpace::map_locked`]. Stores move the times of
    /// the file when they are looked for, at each sync.
    ///
    /// Context: as [`OpenFile::map`].
    ///
    /// # Errors
    /// Those of [`AddressSpace::map_locked`]; `EACCES` as [`OpenFile::map`].
    #[doc(alias = "mlock")]
    pub fn map_locked(&self, pos: u64, len: usize, access: LockedAccess) -> Result<Vma, MapError> {
        self.check_map(access != LockedAccess::Read)?;
        self.inode.ops().keep_readable()?;
        Ok(self.moves_times(self.mapping.map_locked(pos, len, access)?))
    }

    /// Pins bytes of the file: [`AddressSpace::pin`]. If a device may write, the times of the file are as after a write.
    ///
    /// Context: the inode is held as long as the pin, and marked changed at its end if a device may
    /// write.
    ///
    /// # Errors
    /// Those of [`AddressSpace::pin`]; `EBADF` if the handle is not open for reading, or for a device's writes not for
    /// writing too, or for appending alone.
    pub fn pin(&self, bytes: Range<u64>, mode: PinMode) -> Result<FolioPin, PinError> {
        self.check_pin(&bytes, mode)?;
        self.mapping.pin(&self.readahead, bytes, mode)
    }

    /// As [`OpenFile::pin`], with a callback: [`AddressSpace::pin_revocable`].
    ///
    /// # Errors
    /// Those of [`AddressSpace::pin_revocable`] and of [`OpenFile::pin`].
    pub fn pin_revocable(
        &self,
        bytes: Range<u64>,
        mode: PinMode,
        callback: impl Fn(PinEvent) + Send + Sync + 'static,
    ) -> Result<FolioPin, PinError> {
        self.check_pin(&bytes, mode)?;
        (self.mapping).pin_revocable(&self.readahead, bytes, mode, callback)
    }

    fn check_pin(&self, bytes: &Range<u64>, mode: PinMode) -> Result<(), Errno> {
        check(
            self.flags.read && (!mode.device_writes || self.flags.overwrites()),
            bytes.start,
        )?;
        if mode.device_writes {
            self.inode.remove_privileges(&self.ctx)?;
            self.inode.data_changed();
        }
        Ok(())
    }

    fn check_map(&self, stores: bool) -> Result<(), MapError> {
        match self.flags.read && (!stores || self.flags.overwrites()) {
            true => Ok(()),
            false => Err(Errno::EACCES.into()),
        }
    }

    /// Has stores through a mapping move the times of the file.
    fn moves_times(&self, vma: Vma) -> Vma {
        let attributes = self.inode.attributes().clone();
        vma.on_store(move || {
            attributes.data_changed();
        });
        vma
    }

    /// The same with writes on behalf of `ctx`: whether they clear set-id bits.
    #[must_use]
    pub fn writing_as(mut self, ctx: OpContext) -> OpenFile {
        self.ctx = ctx;
        self
    }

    /// The file.
    pub fn inode(&self) -> &SlabArc<Inode> {
        &self.inode
    }

    /// The file's pages.
    pub fn mapping(&self) -> &SlabArc<AddressSpace> {
        &self.mapping
    }

    /// How it was opened.
    pub fn flags(&self) -> OpenFlags {
        self.flags
    }

    /// Size in bytes. Never blocks.
    pub fn size(&self) -> u64 {
        self.mapping.size()
    }

    /// Reads into `buf` from byte `pos` on; returns the bytes read, fewer than asked only at end
    /// of file or before an error. No system call if the pages are cached; otherwise may block on
    /// I/O and for memory of the bound.
    ///
    /// # Errors
    /// `EBADF` if not open for reading, `EINVAL` for a position beyond the largest offset, and
    /// those of the backing store.
    #[inline]
    pub fn read_at(&self, buf: &mut [u8], pos: u64) -> Result<usize, Errno> {
        if self.flags.read && self.flags.is_cached() && self.mapping.read_in_use(pos, buf) {
            return Ok(buf.len());
        }
        self.read_on(buf, pos)
    }

    /// As [`OpenFile::read_at`], after a miss.
    #[cold]
    fn read_on(&self, buf: &mut [u8], pos: u64) -> Result<usize, Errno> {
        self.check_read(pos)?;
        let iocb = &mut Iocb::at(pos);
        self.flags.apply(iocb);
        self.mapping
            .read_on(&self.readahead, iocb, &mut IovIter::destination(buf))
    }

    /// As [`OpenFile::read_at`], into whatever memory `iter` stands for, as `iocb` says.
    ///
    /// # Errors
    /// As [`OpenFile::read_at`], `EFAULT` for bad memory, and `EAGAIN` of [`AddressSpace::read`].
    #[inline]
    pub fn read_iter(&self, iocb: &mut Iocb, iter: &mut IovIter<'_>) -> Result<usize, Errno> {
        self.check_read(iocb.pos)?;
        self.flags.apply(iocb);
        self.mapping.read(&self.readahead, iocb, iter)
    }

    /// A read for [`foliocache_mm::read_batch`], which ends it as [`OpenFile::read_iter`] would end.
    #[inline]
    pub fn read_request<'a>(&'a self, mut iocb: Iocb, buf: &'a mut [u8]) -> Request<'a> {
        self.flags.apply(&mut iocb);
        let mut request = Request::new(&self.mapping, &self.readahead, iocb, buf);
        if let Err(errno) = self.check_read(iocb.pos) {
            request.end(Err(errno));
        }
        request
    }

    #[inline]
    fn check_read(&self, pos: u64) -> Result<(), Errno> {
        check(self.flags.read, pos)
    }

    /// Runs `with` on the cached bytes from `iocb.pos` on, at most `len`, in place. Returns `None`, without having
    /// run it, if they are not contiguous in the cache, and where [`OpenFile::read_at`] would fail. Does not block.
    ///
    /// Context: `with` holds up writers of the same bytes. It must not use this cache, and should
    /// be no longer than a copy.
    pub fn read_in_place<R>(
        &self,
        iocb: &Iocb,
        len: usize,
        with: impl FnOnce(&[u8]) -> R,
    ) -> Option<R> {
        if !self.flags.is_cached() {
            return None;
        }
        self.check_read(iocb.pos).ok()?;
        self.mapping.read_in_place(&self.readahead, iocb, len, with)
    }

    /// Has the page of byte `iocb.pos` brought in; see [`AddressSpace::start_fetch`]. Does not block.
    ///
    /// # Errors
    /// As [`OpenFile::read_at`].
    pub fn start_fetch(
        &self,
        iocb: &mut Iocb,
        len: u64,
        may_start: bool,
        waker: &Waker,
    ) -> Result<Fetch, Errno> {
        self.check_read(iocb.pos)?;
        self.mapping
            .start_fetch(&self.readahead, iocb, len, may_start, waker)
    }

    /// Brings in the page of byte `iocb.pos` as a read of `len` bytes there would, with readahead.
    /// Blocks on I/O and for memory of the bound.
    ///
    /// # Errors
    /// As [`OpenFile::read_at`].
    pub fn fetch(&self, iocb: &mut Iocb, len: u64) -> Result<(), Errno> {
        self.check_read(iocb.pos)?;
        self.mapping.fetch(&self.readahead, iocb, len)
    }

    /// As [`OpenFile::read_at`], into several buffers, one after another.
    ///
    /// # Errors
    /// As [`OpenFile::read_at`], if nothing was read.
    pub fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], pos: u64) -> Result<usize, Errno> {
        let mut done = 0;
        for buf in bufs.iter_mut().filter(|buf| !buf.is_empty()) {
            match self.read_at(buf, pos.saturating_add(done as u64)) {
                Ok(n) => {
                    done += n;
                    if n < buf.len() {
                        break;
                    }
                }
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Writes `buf` at byte `pos`, or at the end if the file is open for appending; returns the
    /// bytes written. May block for memory of the bound and be throttled by writeback.
    ///
    /// # Errors
    /// `EBADF` if not open for writing, `EINVAL` for a position beyond the largest offset, `EFBIG`
    /// at the largest size, `EPERM` in a file that is append-only, `ENOSPC`, and those of the backing store.
    #[inline]
    pub fn write_at(&self, buf: &[u8], pos: u64) -> Result<usize, Errno> {
        let may = self.flags.overwrites() && self.flags.is_cached();
        if may && !self.inode.has_privileges_to_remove(&self.ctx) {
            let hit = self.mapping.overwrite(pos, buf);
            if hit > 0 {
                self.inode.data_changed();
            }
            if hit > 0 && hit == buf.len() {
                return Ok(hit);
            }
            return self.write_rest(buf, pos, hit);
        }
        self.write_rest(buf, pos, 0)
    }

    /// The rest of [`OpenFile::write_at`] when `done` bytes were a hit.
    #[cold]
    fn write_rest(&self, buf: &[u8], pos: u64, done: usize) -> Result<usize, Errno> {
        let iocb = &mut Iocb::at(pos + done as u64);
        match self.write_iter(iocb, &mut IovIter::source(&buf[done..])) {
            Ok(n) => Ok(done + n),
            Err(_) if done > 0 => Ok(done),
            Err(error) => Err(error),
        }
    }

    /// As [`OpenFile::write_at`], from whatever memory `iter` stands for, as `iocb` says.
    ///
    /// # Errors
    /// As [`OpenFile::write_at`], `EFAULT` for bad memory, and `EAGAIN` of [`AddressSpace::write`].
    #[inline]
    pub fn write_iter(&self, iocb: &mut Iocb, iter: &mut IovIter<'_>) -> Result<usize, Errno> {
        iocb.append |= self.flags.append;
        self.flags.apply(iocb);
        if iocb.append {
            iocb.pos = self.size();
        }
        check(self.flags.write, iocb.pos)?;
        let wanted = iter.remaining();
        if wanted == 0 {
            return Ok(0);
        }
        if self.flags.append_only && !iocb.append {
            if iocb.pos < self.size() {
                return Err(Errno::EPERM);
            }
            iocb.append = true;
        }
        if !iocb.nowait {
            self.inode.remove_privileges(&self.ctx)?;
        } else if self.inode.has_privileges_to_remove(&self.ctx) {
            return Err(Errno::EAGAIN);
        }
        let result = self.mapping.write(iocb, iter);
        if iter.remaining() < wanted {
            self.inode.data_changed();
        }
        result
    }

    /// As [`OpenFile::write_at`], from several buffers, one after another. Also returns where the written bytes end.
    ///
    /// # Errors
    /// As [`OpenFile::write_at`].
    pub fn write_vectored_from(
        &self,
        bufs: &[IoSlice<'_>],
        pos: u64,
    ) -> Result<(u64, usize), Errno> {
        let mut iocb = Iocb::at(pos);
        let n = self.write_iter(&mut iocb, &mut IovIter::sources(bufs))?;
        Ok((iocb.pos, n))
    }

    /// Writes `buf` at the end, atomically against other appends; returns where it begins and the
    /// bytes written.
    ///
    /// # Errors
    /// As [`OpenFile::write_at`].
    pub fn append(&self, buf: &[u8]) -> Result<(u64, usize), Errno> {
        let mut iocb = Iocb {
            append: true,
            ..Iocb::at(0)
        };
        let n = self.write_iter(&mut iocb, &mut IovIter::source(buf))?;
        Ok((iocb.pos - n as u64, n))
    }

    /// As [`OpenFile::append`], all of `buf` in one run; returns where it begins.
    ///
    /// # Errors
    /// As [`OpenFile::write_at`]; a first part of `buf` may be in the file then. With `nowait` `EAGAIN` where it would
    /// have to wait; nothing is written then.
    pub fn append_all(&self, buf: &[u8], nowait: bool) -> Result<u64, Errno> {
        let mut iocb = Iocb {
            append: true,
            nowait,
            ..Iocb::at(0)
        };
        let n = self.write_iter(&mut iocb, &mut IovIter::source(buf))?;
        match n == buf.len() {
            true => Ok(iocb.pos - n as u64),
            false => Err(iocb.failed.unwrap_or(Errno::EIO)),
        }
    }

    /// Sets the size; new bytes read as zeros.
    ///
    /// # Errors
    /// `EINVAL` if not open for writing, `EFBIG`, and those of the backing store.
    #[doc(alias = "ftruncate")]
    pub fn set_len(&self, size: u64) -> Result<(), Errno> {
        if !self.flags.write {
            return Err(Errno::EINVAL);
        }
        self.truncate(size)
    }

    /// `O_TRUNC`, which asks for no right to write.
    pub fn truncate_at_open(&self) -> Result<(), Errno> {
        self.truncate(0)
    }

    fn truncate(&self, size: u64) -> Result<(), Errno> {
        if size > MAX_FILE_SIZE {
            return Err(Errno::EFBIG);
        }
        self.inode.remove_privileges(&self.ctx)?;
        // Before, so that a backing store that stamps the change itself has the last word.
        self.inode.attributes().data_changed();
        self.mapping.truncate(size)
    }

    /// Gives space to a range or takes it away.
    ///
    /// # Errors
    /// `EBADF` if not open for writing, `EINVAL` for an empty range, `EFBIG`, `ENOSPC`,
    /// `EOPNOTSUPP`, and those of the backing store.
    pub fn fallocate(&self, mode: FallocateMode, pos: u64, len: u64) -> Result<(), Errno> {
        check(self.flags.write, pos)?;
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        let allocates = matches!(
            mode,
            FallocateMode::Allocate | FallocateMode::AllocateKeepSize
        );
        if self.flags.append_only && !allocates {
            return Err(Errno::EPERM);
        }
        let end = pos
            .checked_add(len)
            .filter(|&end| end <= MAX_FILE_SIZE)
            .ok_or(Errno::EFBIG)?;
        self.inode.remove_privileges(&self.ctx)?;
        self.inode.attributes().data_changed();
        if !allocates {
            self.mapping.punch_hole(pos, len)?;
        }
        // Afterwards: the zeroed range gets its space.
        self.inode.ops().allocate(&self.inode, mode, pos, len)?;
        if matches!(mode, FallocateMode::Allocate | FallocateMode::ZeroRange) {
            self.mapping.extend(end)?;
        }
        Ok(())
    }

    /// Makes a range read as zeros and frees its space; the size stays.
    ///
    /// # Errors
    /// As [`OpenFile::fallocate`].
    pub fn punch_hole(&self, pos: u64, len: u64) -> Result<(), Errno> {
        self.fallocate(FallocateMode::PunchHole, pos, len)
    }

    /// The next data or hole from byte `pos` on.
    ///
    /// # Errors
    /// `ENXIO` at or past the end of the file, or if no data follows.
    #[doc(alias = "lseek")]
    pub fn seek_sparse(&self, what: SeekSparse, pos: u64) -> Result<u64, Errno> {
        if pos >= self.size() {
            return Err(Errno::ENXIO);
        }
        self.inode.ops().seek_sparse(&self.inode, what, pos)
    }

    /// Says how `len` bytes at `pos` will be used; 0 means to the end. The pattern of access is
    /// this handle's, and `WillNeed` blocks until the range is in the cache.
    ///
    /// # Errors
    /// Those of the backing store.
    pub fn advise(&self, advice: Advice, pos: u64, len: u64) -> Result<(), Errno> {
        let len = if len == 0 { u64::MAX - pos } else { len };
        if let Some(access) = advice.pattern() {
            self.readahead.advise(access);
        }
        match advice {
            Advice::WillNeed => self.mapping.populate(pos, len)?,
            // Pages that exist nowhere else stay.
            Advice::DontNeed if self.inode.ops().keep_readable().is_err() => {}
            Advice::DontNeed => _ = self.mapping.invalidate(pos, len),
            Advice::Normal | Advice::Sequential | Advice::Random => {}
        }
        Ok(())
    }
}

#[inline]
fn check(allowed: bool, pos: u64) -> Result<(), Errno> {
    match allowed {
        false => Err(Errno::EBADF),
        true if pos > MAX_FILE_SIZE => Err(Errno::EINVAL),
        true => Ok(()),
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.mapping.end_uncached(&self.readahead);
        self.inode
            .ops()
            .released(&self.inode, self.counts_as_writer());
        HandleCharge::give_back(self.mapping.mm());
        // SAFETY: see the module's header.
        Inode::put(unsafe { ManuallyDrop::take(&mut self.inode) });
    }
}

impl fmt::Debug for OpenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenFile")
            .field("inode", &**self.inode)
            .field("flags", &self.flags)
            .finish_non_exhaustive()
    }
}
