//! What is done with an open file: reading, writing, space, copying.
//!
//! # Model
//!
//! A read of some size is answered with the cache's own memory, where that lies in one piece: the
//! kernel's copy is then the only one. Other reads are answered from a buffer of [`Buffers`](crate::buffers::Buffers); bytes to write lie in
//! the buffer that the request came in. Both belong to the fixed base of the process, see
//! [`Mount::fixed_bytes`](crate::Mount::fixed_bytes).
//!
//! The kernel says with each write whether the bytes come from its cache (somebody stored into a
//! mapping; then any writable handle may serve, and appending handles must not append), whether
//! set-id bits are to go, and whether the data is to be durable when it is answered: of writes that
//! come here directly the kernel syncs none itself.

use crate::front::Front;
use crate::handles::FileHandle;
use crate::stats::add;
use foliocache_sync::Arc;
use foliocache_sync::atomic::{AtomicBool, Ordering};
use foliocache_sys::Errno;
use foliocache_vfs::{FallocateMode, OpContext, OpenFile, SeekSparse};
use fuser::{FileHandle as Fh, WriteFlags};

const O_APPEND: i32 = 0o2000;
const O_DSYNC: i32 = 0o10_000;
const O_SYNC: i32 = 0o4_010_000;
const FALLOC_FL_KEEP_SIZE: i32 = 1;
const FALLOC_FL_PUNCH_HOLE: i32 = 2;
const FALLOC_FL_ZERO_RANGE: i32 = 0x10;
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// Least bytes that are worth folio locks; below, copying them twice costs less.
const MIN_LENT: usize = 32 << 10;

/// Most bytes that one request copies from file to file, so that a copy can be interrupted.
const MAX_COPY: u64 = 16 << 20;

/// Where the answer to a read goes, once.
pub(crate) trait ReadReply {
    fn data(self, bytes: &[u8]);
    fn error(self, error: fuser::Errno);
}

impl ReadReply for fuser::ReplyData {
    fn data(self, bytes: &[u8]) {
        fuser::ReplyData::data(self, bytes);
    }

    fn error(self, error: fuser::Errno) {
        fuser::ReplyData::error(self, error);
    }
}

impl Front {
    /// Reads and answers. `from_cache` says that the bytes go into the kernel's cache.
    pub(crate) fn do_read(
        &self,
        fh: u64,
        pos: u64,
        size: u32,
        from_cache: bool,
        reply: impl ReadReply,
    ) {
        // The kernel asks for no more; the answer may be shorter in any case.
        let size = size.min(crate::mount::MAX_REQUEST) as usize;
        let mut reply = Some(reply);
        let mut answer = |bytes: &[u8]| {
            if let Some(reply) = reply.take() {
                add(&self.counters.bytes_read, bytes.len() as u64);
                reply.data(bytes);
            }
        };
        let done = self.attempt("read", || {
            let handle = self.files.get(fh)?;
            if from_cache {
                // Relaxed: read when the handle is closed, which the kernel orders after this.
                handle.mapped.store(true, Ordering::Relaxed);
                add(&self.counters.bytes_to_kernel_cache, size as u64);
            }
            if size >= MIN_LENT {
                let lent = handle.file.lend(pos, size, |bytes| {
                    answer(bytes);
                    bytes.len()
                });
                if let Some(lent) = lent {
                    add(&self.counters.bytes_lent, lent as u64);
                    return Ok(());
                }
            }
            self.buffers.with(size, |buffer| {
                let n = handle.file.read_at(buffer, pos)?;
                answer(&buffer[..n]);
                Ok(())
            })
        });
        // After a panic in the answer there is no reply left, and the library has sent its own.
        if let (Err(error), Some(reply)) = (done, reply) {
            reply.error(error);
        }
    }

    pub(crate) fn do_write(
        &self,
        fh: u64,
        pos: u64,
        data: &[u8],
        how: WriteFlags,
        flags: i32,
    ) -> Result<u32, Errno> {
        let handle = self.files.get(fh)?;
        let from_cache = how.contains(WriteFlags::FUSE_WRITE_CACHE);
        let append = flags & O_APPEND != 0 && !from_cache;
        if how.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) && handle.file.remove_privileges()? {
            self.kernel_pages
                .forget_attributes(handle.file.inode().ino());
        }
        let mut done = 0;
        while done < data.len() {
            let rest = &data[done..];
            let wrote = if append {
                handle.file.append(rest).map(|(_, n)| n)
            } else {
                handle.file.write_at(rest, pos + done as u64)
            };
            match wrote {
                Ok(0) => break,
                Ok(n) => done += n,
                // The kernel takes a short write-out for a whole one.
                Err(error) if done == 0 || from_cache => return Err(error),
                Err(_) => break,
            }
        }
        add(&self.counters.bytes_written, done as u64);
        if done > 0 && !from_cache {
            sync_as_opened(&handle.file, flags)?;
        }
        Ok(done as u32)
    }

    pub(crate) fn do_fallocate(&self, fh: u64, pos: u64, len: u64, mode: i32) -> Result<(), Errno> {
        let handle = self.files.get(fh)?;
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
        handle.file.fallocate(mode, pos, len)
    }

    pub(crate) fn do_lseek(&self, fh: u64, offset: i64, whence: i32) -> Result<i64, Errno> {
        let handle = self.files.get(fh)?;
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
        (fh_in, mut pos_in): (u64, u64),
        (fh_out, mut pos_out): (u64, u64),
        len: u64,
    ) -> Result<u32, Errno> {
        let (from, to) = (self.files.get(fh_in)?, self.files.get(fh_out)?);
        let chunk = crate::mount::MAX_REQUEST as usize;
        let mut left = len.min(MAX_COPY);
        let mut done = 0;
        while left > 0 {
            let step = self.buffers.with(chunk.min(left as usize), |buffer| {
                let n = from.file.read_at(buffer, pos_in)?;
                let mut written = 0;
                while written < n {
                    match to
                        .file
                        .write_at(&buffer[written..n], pos_out + written as u64)
                    {
                        Ok(0) => break,
                        Ok(more) => written += more,
                        Err(error) if written == 0 => return Err(error),
                        Err(_) => break,
                    }
                }
                Ok((n, written))
            });
            let (read, written) = match step {
                Ok(step) => step,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            };
            done += written as u32;
            pos_in += written as u64;
            pos_out += written as u64;
            left -= written as u64;
            if written == 0 || written < read {
                break;
            }
        }
        Ok(done)
    }

    /// The handle of a file that was just opened. From here on the kernel says whose writes take
    /// set-id bits away.
    pub(crate) fn insert_file(&self, file: OpenFile) -> Fh {
        self.kernel_pages.opened(file.inode().ino());
        let handle = FileHandle {
            file: file.writing_as(OpContext::ROOT),
            mapped: AtomicBool::new(false),
        };
        let number = self.files.insert(handle);
        // Relaxed: a statistic.
        self.counters
            .open_files
            .store(self.files.len() as u64, Ordering::Relaxed);
        Fh(number)
    }

    /// Closes a file; the kernel's pages of it go when nobody else has it open.
    pub(crate) fn do_release(&self, fh: u64) {
        let Some(handle) = self.files.remove(fh) else {
            return;
        };
        self.counters
            .open_files
            .store(self.files.len() as u64, Ordering::Relaxed);
        // Relaxed: see `do_read`.
        let mapped = handle.mapped.load(Ordering::Relaxed);
        self.kernel_pages.closed(handle.file.inode().ino(), mapped);
        drop::<Arc<FileHandle>>(handle);
    }
}

/// What `O_SYNC` and `O_DSYNC` promise of a write.
fn sync_as_opened(file: &OpenFile, flags: i32) -> Result<(), Errno> {
    if flags & O_SYNC == O_SYNC {
        file.fsync()
    } else if flags & O_DSYNC != 0 {
        file.fdatasync()
    } else {
        Ok(())
    }
}
