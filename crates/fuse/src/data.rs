//! Operations on an open file: reading, writing, space, copying.
//!
//! # Model
//!
//! A read from a certain size on is answered with the cache's own memory, if the bytes are
//! contiguous there: the kernel's copy is then the only one. Other reads are answered from a buffer
//! of [`Buffers`](crate::buffers::Buffers). Bytes to write lie in the buffer of the request, or in
//! a copy for a worker. All of these belong to the fixed base of the process, see
//! [`Mount::fixed_bytes`](crate::Mount::fixed_bytes).
//!
//! A thread that must not wait uses [`FuseConn::read_nowait`] and [`FuseConn::write_nowait`], and hands
//! the rest to a worker ([`service`](crate::service)).
//!
//! Each write says whether the bytes come from the kernel's cache (a program stored into a mapping; then any
//! writable handle may serve, and appending handles must not append), whether to clear set-id bits, and whether the
//! data must be durable before the answer: the kernel syncs none of the writes that bypass its cache. Each read and
//! write carries the descriptor's flags, which `fcntl(2)` may change: `O_DIRECT` makes it uncached.

use crate::conn::FuseConn;
use crate::handles::{FileHandle, FileId, NO_HANDLE};
use crate::options::KernelCache;
use crate::stats::{add, subtract};
use foliocache_mm::{Iocb, IovIter, MetadataCharge};
use foliocache_sync::Arc;
use foliocache_sync::atomic::Ordering;
use foliocache_sys::{Errno, credentials};
use foliocache_vfs::{
    FallocateMode, Inode, OpContext, OpenFile, OpenFlags, SeekSparse, SlabArc, written_mode,
};
use fuser::{FileHandle as Fh, INodeNo, WriteFlags};

const O_APPEND: i32 = 0o2000;
pub(crate) const O_DIRECT: i32 = 0o40_000;
const O_DSYNC: i32 = 0o10_000;
const O_SYNC: i32 = 0o4_010_000;
const FALLOC_FL_KEEP_SIZE: i32 = 1;
const FALLOC_FL_PUNCH_HOLE: i32 = 2;
const FALLOC_FL_ZERO_RANGE: i32 = 0x10;
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// The least length for which folio locks pay; below, a second copy costs less.
const MIN_IN_PLACE: usize = 32 << 10;

/// How often a read fetches its pages again when they are evicted before the copy.
const FETCHES: usize = 8;

/// Bytes of one step of a copy from file to file.
const COPY_PIECE: usize = 64 << 10;

/// Most bytes that one request copies from file to file, so that a copy can be interrupted.
const MAX_COPY: u64 = 16 << 20;

/// Where the answer to a read goes.
pub(crate) trait ReadReply: FnOnce(Result<&[u8], fuser::Errno>) {}

impl<R: FnOnce(Result<&[u8], fuser::Errno>)> ReadReply for R {}

/// A read of an open file.
#[derive(Clone, Copy)]
pub(crate) struct ReadRequest {
    pub(crate) file: FileId,
    pub(crate) pos: u64,
    pub(crate) size: u32,
    /// The bytes go into the kernel's cache.
    pub(crate) from_cache: bool,
    /// The descriptor has `O_DIRECT`.
    pub(crate) uncached: bool,
}

impl ReadRequest {
    /// The kernel requests no more. The answer may be shorter.
    fn len(&self) -> usize {
        self.size.min(crate::buffers::MAX_REQUEST) as usize
    }

    fn iocb(&self, nowait: bool) -> Iocb {
        Iocb {
            nowait,
            uncached: self.uncached,
            ..Iocb::at(self.pos)
        }
    }
}

/// A write to an open file, without its bytes.
#[derive(Clone, Copy)]
pub(crate) struct WriteRequest {
    pub(crate) file: FileId,
    pub(crate) pos: u64,
    pub(crate) how: WriteFlags,
    /// The descriptor's flags.
    pub(crate) flags: i32,
    /// The writing process.
    pub(crate) ctx: OpContext,
}

impl WriteRequest {
    /// The bytes come from the kernel's cache. The kernel takes a short write of them for a
    /// complete one.
    pub(crate) fn is_from_cache(&self) -> bool {
        self.how.contains(WriteFlags::FUSE_WRITE_CACHE)
    }

    fn append(&self) -> bool {
        self.flags & O_APPEND != 0 && !self.is_from_cache()
    }

    fn iocb(&self, nowait: bool) -> Iocb {
        Iocb {
            nowait,
            append: self.append(),
            uncached: self.flags & O_DIRECT != 0,
            ..Iocb::at(self.pos)
        }
    }

    /// The same write without its first `done` bytes.
    pub(crate) fn after(mut self, done: usize) -> WriteRequest {
        self.pos += done as u64;
        self
    }
}

impl FuseConn {
    /// Reads and answers. May wait.
    pub(crate) fn read(&self, request: &ReadRequest, reply: impl ReadReply) {
        self.begin_read(request);
        let handle = || self.file(request.file, false);
        self.read_with(request, handle, reply, &mut request.iocb(false));
    }

    /// Reads and answers if all of it is in the cache. Does not wait; if it would have to, returns the reply and
    /// the position of the first missing byte.
    pub(crate) fn read_nowait<R: ReadReply>(
        &self,
        request: &ReadRequest,
        reply: R,
    ) -> Option<(R, u64)> {
        self.begin_read(request);
        let handle = match self.open_file(request.file, false) {
            Ok(None) => return Some((reply, request.pos)),
            Ok(Some(handle)) => Ok(handle),
            Err(error) => Err(error),
        };
        let mut iocb = request.iocb(true);
        let unanswered = self.read_with(request, || handle, reply, &mut iocb);
        unanswered.map(|reply| (reply, iocb.pos))
    }

    /// Continues where [`FuseConn::read_nowait`] stopped, with what it returned. Takes a buffer only once the bytes
    /// are cached, so threads that wait for a store hold none.
    pub(crate) fn fetch_and_read<R: ReadReply>(
        &self,
        request: &ReadRequest,
        (mut reply, missing_at): (R, u64),
    ) {
        let end = request.pos + request.len() as u64;
        let mut iocb = request.iocb(true);
        iocb.pos = missing_at;
        let handle = || self.file(request.file, false);
        for _ in 0..FETCHES {
            // Bytes that were read before are read again and count once.
            iocb.fetched = iocb.fetched.max(iocb.pos);
            iocb.pos = request.pos;
            match self.read_with(request, handle, reply, &mut iocb) {
                None => return,
                Some(unanswered) => reply = unanswered,
            }
            let fetched = self.catch("read", || {
                let missing = end - iocb.pos;
                handle()?.file.fetch(&mut iocb, missing)
            });
            if fetched.is_err() {
                // The read returns how far it got.
                break;
            }
        }
        iocb.fetched = iocb.fetched.max(iocb.pos);
        iocb.pos = request.pos;
        iocb.nowait = false;
        self.read_with(request, handle, reply, &mut iocb);
    }

    fn begin_read(&self, request: &ReadRequest) {
        add(&self.counters.requests, 1);
        if request.from_cache {
            add(&self.counters.kernel_cache_bytes, request.len() as u64);
            if let Ok(handle) = self.files.get(request.file.fh) {
                // Relaxed: read when the handle is closed, which the kernel orders after this.
                handle.mapped.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Answers a read as `iocb` says; if it has to wait, returns the reply, with `iocb.pos` at the first missing
    /// byte.
    fn read_with<R: ReadReply>(
        &self,
        request: &ReadRequest,
        handle: impl FnOnce() -> Result<Arc<FileHandle>, Errno>,
        reply: R,
        iocb: &mut Iocb,
    ) -> Option<R> {
        let size = request.len();
        let mut reply = Some(reply);
        let mut answer = |bytes: &[u8]| {
            if let Some(reply) = reply.take() {
                add(&self.counters.read_bytes, bytes.len() as u64);
                reply(Ok(bytes));
            }
        };
        let done = self.catch("read", || {
            let handle = handle()?;
            if size >= MIN_IN_PLACE && !request.uncached {
                let in_place = handle.file.read_in_place(iocb, size, |bytes| {
                    answer(bytes);
                    bytes.len()
                });
                if let Some(read) = in_place {
                    add(&self.counters.in_place_bytes, read as u64);
                    return Ok(());
                }
            }
            self.buffers.with(size, |buffer| {
                let read = handle
                    .file
                    .read_iter(iocb, &mut IovIter::destination(buffer));
                match read {
                    Ok(n) => answer(&buffer[..n]),
                    Err(Errno::EAGAIN) if iocb.nowait => {}
                    Err(errno) => return Err(errno),
                }
                Ok(())
            })
        });
        match (done, reply) {
            (Ok(()), reply) => reply,
            (Err(error), Some(reply)) => {
                reply(Err(error));
                None
            }
            // A panic in the answer: the library has sent an answer.
            (Err(_), None) => None,
        }
    }

    /// Writes as much as it can without waiting; returns the bytes done, and whether the write is
    /// complete.
    pub(crate) fn write_nowait(
        &self,
        request: &WriteRequest,
        data: &[u8],
    ) -> Result<(usize, bool), Errno> {
        let kills = request.how.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let syncs = request.flags & (O_SYNC | O_DSYNC) != 0 && !request.is_from_cache();
        if kills || syncs || request.append() {
            return Ok((0, false));
        }
        let Some(handle) = self.open_file(request.file, true)? else {
            return Ok((0, false));
        };
        let mut iter = IovIter::source(data);
        let result = handle.file.write_iter(&mut request.iocb(true), &mut iter);
        let done = data.len() - iter.remaining();
        add(&self.counters.written_bytes, done as u64);
        match result {
            Err(Errno::EAGAIN) => Ok((done, false)),
            result => result.map(|n| (n, true)),
        }
    }

    /// Writes. May wait.
    pub(crate) fn do_write(&self, request: &WriteRequest, data: &[u8]) -> Result<u32, Errno> {
        let &WriteRequest {
            file, how, flags, ..
        } = request;
        let handle = self.file(file, true)?;
        let from_cache = request.is_from_cache();
        if how.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
            self.remove_privileges(&request.ctx, handle.file.inode())?;
        }
        let (mut iocb, mut iter) = (request.iocb(false), IovIter::source(data));
        while iter.remaining() > 0 {
            match handle.file.write_iter(&mut iocb, &mut iter) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if iter.remaining() == data.len() || from_cache => return Err(error),
                Err(_) => break,
            }
        }
        let done = data.len() - iter.remaining();
        add(&self.counters.written_bytes, done as u64);
        if done > 0 && !from_cache {
            sync_as_opened(&handle.file, flags)?;
        }
        Ok(done as u32)
    }

    /// Clears set-id bits before an unprivileged caller changes the data. With `FUSE_HANDLE_KILLPRIV_V2` the kernel
    /// leaves that to the server, and flags only the writes that need it. May block on I/O if there are such bits.
    pub(crate) fn remove_privileges(
        &self,
        ctx: &OpContext,
        inode: &SlabArc<Inode>,
    ) -> Result<(), Errno> {
        let (mode, _, group) = inode.attributes().owner();
        let is_member = || ctx.gid == group || credentials::is_further_group(ctx.pid, group);
        let left = |in_group| written_mode(mode, in_group);
        // For most files the group does not matter, and finding it needs a look at the process.
        let in_group = left(true) == left(false) || is_member();
        if left(in_group) != mode {
            inode.ops().remove_privileges(inode, in_group)?;
            self.kernel_pages.forget_attributes(inode.ino());
        }
        Ok(())
    }

    pub(crate) fn do_fallocate(
        &self,
        ctx: &OpContext,
        file: FileId,
        pos: u64,
        len: u64,
        mode: i32,
    ) -> Result<(), Errno> {
        let handle = self.file(file, true)?;
        const PUNCH: i32 = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
        const ZERO_KEEP: i32 = FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE;
        let mode = match mode {
            0 => FallocateMode::Allocate,
            FALLOC_FL_KEEP_SIZE => FallocateMode::AllocateKeepSize,
            PUNCH => FallocateMode::PunchHole,
            FALLOC_FL_ZERO_RANGE => FallocateMode::ZeroRange,
            ZERO_KEEP => FallocateMode::ZeroRangeKeepSize,
            _ => return Err(Errno::EOPNOTSUPP),
        };
        if ctx.uid != 0 {
            self.remove_privileges(ctx, handle.file.inode())?;
        }
        handle.file.fallocate(mode, pos, len)?;
        sync_as_opened(&handle.file, handle.flags)
    }

    pub(crate) fn do_lseek(&self, file: FileId, offset: i64, whence: i32) -> Result<i64, Errno> {
        let handle = self.file(file, false)?;
        let what = match whence {
            SEEK_DATA => SeekSparse::Data,
            SEEK_HOLE => SeekSparse::Hole,
            _ => return Err(Errno::EINVAL),
        };
        let pos = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
        let found = handle.file.seek_sparse(what, pos)?;
        i64::try_from(found).map_err(|_| Errno::EOVERFLOW)
    }

    /// Copies through the cache: both files' pages, no trip through the kernel.
    pub(crate) fn do_copy(
        &self,
        ctx: &OpContext,
        (from, mut pos_in): (FileId, u64),
        (to, mut pos_out): (FileId, u64),
        len: u64,
    ) -> Result<u32, Errno> {
        let (from, to) = (self.file(from, false)?, self.file(to, true)?);
        if ctx.uid != 0 {
            self.remove_privileges(ctx, to.file.inode())?;
        }
        let mut left = len.min(MAX_COPY);
        let mut done = 0;
        let mut piece = vec![0; COPY_PIECE];
        while left > 0 {
            let buffer = &mut piece[..COPY_PIECE.min(left as usize)];
            let mut step = || {
                let read = from.file.read_at(buffer, pos_in)?;
                to.file.write_at(&buffer[..read], pos_out)
            };
            let copied = match step() {
                Ok(0) => break,
                Ok(copied) => copied as u64,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            };
            done += copied as u32;
            pos_in += copied;
            pos_out += copied;
            left -= copied;
        }
        if done > 0 {
            sync_as_opened(&to.file, to.flags)?;
        }
        Ok(done)
    }

    /// The flags to open a file with that the kernel creates with these flags.
    pub(crate) fn flags_of_created(&self, flags: OpenFlags) -> OpenFlags {
        match self.kernel_opens {
            true => OpenFlags::READ_WRITE,
            false => flags,
        }
    }

    /// Adds the handle of a file that was just opened with `flags`.
    pub(crate) fn insert_file(&self, file: OpenFile, charge: MetadataCharge, flags: i32) -> Fh {
        if self.kernel_opens {
            // The kernel will not report its close.
            self.unopened.put(Arc::new(FileHandle::new(file, charge)));
            return Fh(NO_HANDLE);
        }
        self.nodes.opened(file.inode().ino());
        add(&self.counters.open_files, 1);
        let handle = FileHandle::new(file, charge);
        Fh(self.files.insert(FileHandle { flags, ..handle }))
    }

    /// A program closes a file: writes back dirty data.
    ///
    /// # Errors
    /// A writeback error that the handle has not reported yet; without an open handle, an error of data that still
    /// waits to be written.
    pub(crate) fn do_flush(&self, id: FileId) -> Result<(), Errno> {
        if let Some(open) = self.open_file(id, true)? {
            return open.file.write_back();
        }
        let inode = self.inode(INodeNo(id.ino))?;
        // Its handle was closed since, but its data may still be under writeback, or have failed.
        let Some(mapping) = inode.mapping().filter(|mapping| mapping.is_dirty()) else {
            return Ok(());
        };
        let told = mapping.sample_wb_err();
        inode.ops().write_back(&inode);
        mapping.check_wb_err(&told)
    }

    /// Closes a file. After the last close the kernel's pages of it are dropped, unless it is to
    /// keep them.
    pub(crate) fn do_release(&self, fh: u64) {
        let Some(handle) = self.files.remove(fh) else {
            return;
        };
        subtract(&self.counters.open_files, 1);
        // Relaxed: see `begin_read`.
        let mapped = handle.mapped.load(Ordering::Relaxed);
        let ino = handle.file.inode().ino();
        if self.nodes.closed(ino, mapped) && self.kernel_cache != KernelCache::All {
            self.kernel_pages.drop_pages(ino);
        }
    }
}

/// Makes a change of the data durable as `O_SYNC` and `O_DSYNC` promise.
fn sync_as_opened(file: &OpenFile, flags: i32) -> Result<(), Errno> {
    if flags & O_SYNC == O_SYNC {
        file.fsync()
    } else if flags & O_DSYNC != 0 {
        file.fdatasync()
    } else {
        Ok(())
    }
}
