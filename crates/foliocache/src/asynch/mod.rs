//! Async files: the calls of [`File`] as futures, on any executor.
//!
//! # Model
//!
//! ```text
//!   poll: what is in the cache is copied at once ──all of it──▶ ready, nothing else was touched
//!     │ a page is missing            │ the write would have to wait
//!     ▼                              ▼
//!   it is brought into the         a piece of it is copied into an owned buffer, and a worker
//!   *cache*; then poll again       writes that; then poll again with the rest
//! ```
//!
//! No runtime is needed or known: a future does what it can when it is polled, and is woken when it can go on. The
//! store reads a missing page in the background, and its arrival wakes all waiting futures. A few threads for each file system
//! ([`offload`]) do what can only be done by blocking; there is no thread for each request.
//!
//! If pages are evicted between their arrival and the next poll, twice in a row, a worker copies them into an owned buffer. So a
//! read ends however short memory is.
//!
//! # Invariants
//!
//! 1. Nobody but a poll touches the caller's memory: a future may be dropped at any moment.
//! 2. A future that is ready at its first poll asked nothing of a worker and allocated nothing.
//! 3. Work that a dropped future left behind is finished before a later change through the same [`AsyncFile`].
//!
//! # Locking
//!
//! No lock is held between two polls.

mod buffers;
mod offload;
mod request;

pub(crate) use offload::Offload;

use foliocache_mm::{Fetch, Iocb, IovIter, View};
use foliocache_sync::Arc;
use foliocache_sys::Errno;
use foliocache_vfs::OpenFile;
use std::fmt;
use std::future::poll_fn;
use std::io::{IoSlice, IoSliceMut};
use std::ops::RangeBounds;
use std::task::Poll;

use self::buffers::Buffer;
use self::request::{Kind, Stragglers};
use crate::error::{Error, Operation, Result};
use crate::file::{File, bytes_of};
use crate::io_options::IoOptions;
use crate::parent_only::ParentOnly;

/// Fetches in a row after which still nothing could be copied, before a worker copies.
const FRUITLESS_FETCHES: u32 = 2;

/// An open file whose calls are futures.
///
/// Cheap to clone; the clones are one open file. Made by [`File::into_async`]. The futures run on
/// any executor, are [`Send`], and do nothing before their first poll. Errors are those of the
/// calls of [`File`] with the same names.
///
/// ```
/// # use std::{future::Future, pin::pin, task::{Context, Poll, Waker}};
/// # fn block_on<F: Future>(future: F) -> F::Output {
/// #     let mut future = pin!(future);
/// #     loop {
/// #         let context = &mut Context::from_waker(Waker::noop());
/// #         if let Poll::Ready(output) = future.as_mut().poll(context) { return output; }
/// #         std::thread::yield_now();
/// #     }
/// # }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cache = foliocache::Cache::builder().memory("16M").build()?;
/// let file = cache.memfs()?.create("log")?.into_async()?;
/// block_on(async {
///     file.write_all_at(b"hello", 0).await?;
///     file.sync_data().await?; // durable now, or an error
///     let mut word = [0; 5];
///     file.read_exact_at(&mut word, 0).await?; // ready at its first poll: it is in the cache
///     assert_eq!(&word, b"hello");
///     Ok::<(), foliocache::Error>(())
/// })?;
/// # Ok(())
/// # }
/// ```
///
/// # Dropping futures
///
/// A future may be dropped at any time: nothing leaks, and the caller's memory is not touched any more.
///
/// - A dropped **write** or append may leave any prefix in the file, in whole pieces. A piece that a worker had not begun is
///   not written. A piece that it had begun is finished, and later changes and syncs through this `AsyncFile` or its clones wait for
///   it.
/// - The pages of a dropped **read** still arrive in the cache.
/// - A dropped **sync** that was polled once is completed. If it fails, the next sync reports the failure.
///
/// # Threads and memory
///
/// At most four threads for each file system, however many requests: none before the first request that has to wait, and none
/// after some seconds without one. Their buffers are a 64th of the bound (256 KiB to 4 MiB) for each file system, and count
/// against the bound. A write that finds them all in use waits for its turn. Dropping the last clone closes the file, which may
/// block, as with [`File`].
#[derive(Clone)]
pub struct AsyncFile {
    file: Arc<File>,
    offload: Arc<ParentOnly<Offload>>,
    stragglers: Arc<Stragglers>,
}

/// What the async files of one file system asked of its workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AsyncStats {
    /// Requests handed to workers, ever.
    pub requests: u64,
    /// Requests that workers are at now.
    pub running: usize,
    /// Worker threads now.
    pub workers: usize,
    /// Bytes of the buffers that are in use now.
    pub buffered: u64,
}

impl File {
    /// This open file, for async callers.
    ///
    /// The first one of a file system charges buffers to the bound, for as long as there is one.
    /// May block for a moment to make room for them; no I/O.
    ///
    /// # Errors
    /// `ENOMEM` if the bound leaves no room for the buffers, `ECHILD` after a fork. The file is
    /// closed then.
    pub fn into_async(self) -> Result<AsyncFile> {
        let offload = self.mount().offload();
        let offload = offload.map_err(|errno| self.path_error(Operation::Open, errno))?;
        Ok(AsyncFile {
            file: Arc::new(self),
            offload,
            stragglers: Arc::default(),
        })
    }
}

impl AsyncFile {
    /// The same open file for calls that block.
    pub fn blocking(&self) -> &File {
        &self.file
    }

    /// The size in bytes. Neither blocks nor fails.
    #[doc(alias = "size")]
    pub fn len(&self) -> u64 {
        self.file.len()
    }

    /// Whether the file holds no byte.
    pub fn is_empty(&self) -> bool {
        self.file.is_empty()
    }

    /// Has a worker run `task`, which may block.
    async fn offload<V: Send + 'static>(
        &self,
        kind: Kind,
        mut task: impl FnMut(&OpenFile) -> Result<V, Errno> + Send + 'static,
    ) -> Result<V, Errno> {
        let file = Arc::clone(&self.file);
        let task = Box::new(move || task(file.open_file()));
        self.offload.submit(kind, task)?.await
    }

    /// What was asked of the workers that this file shares with the others of its file system.
    ///
    /// # Errors
    /// `ECHILD` after a fork.
    pub fn async_stats(&self) -> Result<AsyncStats> {
        self.file.check(Operation::Stats)?;
        Ok(self.offload.stats())
    }

    /// Reads into `buf` from byte `pos` on; returns the bytes, fewer than asked only at the end of
    /// the file or before an error.
    ///
    /// Ready at the first poll if everything is in the cache, without a system call. Missing pages are read into memory of the
    /// bound, with readahead.
    ///
    /// # Errors
    /// As [`File::read_at`].
    pub async fn read_at(&self, buf: &mut [u8], pos: u64) -> Result<usize> {
        self.read_at_with(buf, pos, IoOptions::new()).await
    }

    /// As [`AsyncFile::read_at`], in the way that `options` say.
    ///
    /// # Errors
    /// As [`File::read_at`].
    pub async fn read_at_with(
        &self,
        buf: &mut [u8],
        pos: u64,
        options: IoOptions,
    ) -> Result<usize> {
        let mut iocb = Iocb {
            nowait: true,
            ..options.iocb(pos)
        };
        match self.read_on(&mut iocb, buf).await {
            Err(errno) if iocb.pos == pos => {
                Err(self.file.error(Operation::Read, pos, buf.len(), errno))
            }
            _ => Ok((iocb.pos - pos) as usize),
        }
    }

    /// Reads into `buf` from byte `iocb.pos` on, which moves with each byte that is read, also before an error.
    pub(crate) async fn read_on(&self, iocb: &mut Iocb, buf: &mut [u8]) -> Result<(), Errno> {
        let (open, pos) = (self.file.open_file(), iocb.pos);
        let (mut done, mut fruitless) = (0, 0);
        loop {
            let result = open.read_iter(iocb, &mut IovIter::destination(&mut buf[done..]));
            let before = std::mem::replace(&mut done, (iocb.pos - pos) as usize);
            match result {
                Err(Errno::EAGAIN) => {}
                result => return result.map(drop),
            }
            fruitless = if done > before { 0 } else { fruitless + 1 };
            let rest = &mut buf[done..];
            if fruitless <= FRUITLESS_FETCHES && !iocb.direct {
                self.fetch(iocb, rest.len()).await?;
                continue;
            }
            fruitless = 0;
            let waiting = Iocb {
                nowait: false,
                fetched: 0,
                ..*iocb
            };
            match self.read_owned(rest, waiting).await? {
                // The file ends here.
                0 => return Ok(()),
                n => {
                    iocb.pos += n as u64;
                    done += n;
                }
            }
        }
    }

    /// Bytes of `range` without a copy, as many as lie in one folio: [`File::view`].
    ///
    /// Ready at the first poll if they are in the cache.
    ///
    /// # Errors
    /// As [`File::read_at`].
    pub async fn view(&self, range: impl RangeBounds<u64>) -> Result<View> {
        let range = bytes_of(range, u64::MAX);
        let (pos, len) = (range.start, range.end.saturating_sub(range.start));
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let mut iocb = Iocb {
            nowait: true,
            ..Iocb::at(pos)
        };
        let mut view = self.file.open_file().view(&mut iocb, len);
        for _ in 0..FRUITLESS_FETCHES {
            if !matches!(view, Err(Errno::EAGAIN)) {
                break;
            }
            view = match self.fetch(&mut iocb, len).await {
                Ok(()) => self.file.open_file().view(&mut iocb, len),
                Err(errno) => Err(errno),
            };
        }
        if matches!(view, Err(Errno::EAGAIN)) {
            let take = move |open: &OpenFile| open.view(&mut Iocb::at(pos), len);
            view = self.offload(Kind::Read, take).await;
        }
        view.map_err(|errno| self.file.error(Operation::Read, pos, len, errno))
    }

    /// Has the page of byte `iocb.pos` brought in, as for a read of `len` bytes.
    async fn fetch(&self, iocb: &mut Iocb, len: usize) -> Result<(), Errno> {
        let (open, len) = (self.file.open_file(), len as u64);
        let mut may_start = true;
        let started = poll_fn(|context| {
            // Looked at again at every poll: executors poll for reasons of their own, too.
            let fetch = open.start_fetch(iocb, len, may_start, context.waker());
            may_start = false;
            match fetch {
                Ok(Fetch::Waiting) => Poll::Pending,
                fetch => Poll::Ready(fetch),
            }
        });
        if started.await? == Fetch::Blocked {
            let mut at = *iocb;
            let fetch = move |open: &OpenFile| open.fetch(&mut at, len).map(|()| at);
            *iocb = self.offload(Kind::Read, fetch).await?;
        }
        Ok(())
    }

    /// Reads by way of a buffer; returns the bytes, fewer than asked if the buffer is shorter.
    async fn read_owned(&self, buf: &mut [u8], mut iocb: Iocb) -> Result<usize, Errno> {
        let mut buffer = Some(self.offload.reads.take(buf.len()).await?);
        let read = move |open: &OpenFile| {
            let mut buffer = buffer.take().ok_or(Errno::EIO)?;
            buffer.bytes.resize(buffer.room(), 0);
            let n = open.read_iter(&mut iocb, &mut IovIter::destination(&mut buffer.bytes))?;
            buffer.bytes.truncate(n);
            Ok(buffer)
        };
        let buffer = self.offload(Kind::Read, read).await?;
        buf[..buffer.bytes.len()].copy_from_slice(&buffer.bytes);
        Ok(buffer.bytes.len())
    }

    /// Fills `buf` from byte `pos` on.
    ///
    /// # Errors
    /// As [`File::read_exact_at`].
    pub async fn read_exact_at(&self, mut buf: &mut [u8], mut pos: u64) -> Result<()> {
        while !buf.is_empty() {
            let n = self.read_at(buf, pos).await?;
            if n == 0 {
                return Err(Error::UnexpectedEof {
                    path: self.file.path().to_owned(),
                    range: pos..pos.saturating_add(buf.len() as u64),
                });
            }
            buf = &mut buf[n..];
            pos += n as u64;
        }
        Ok(())
    }

    /// As [`AsyncFile::read_at`], into several buffers, one after another.
    ///
    /// # Errors
    /// As [`AsyncFile::read_at`].
    pub async fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], pos: u64) -> Result<usize> {
        let mut done = 0;
        for buf in bufs.iter_mut().filter(|buf| !buf.is_empty()) {
            match self.read_at(buf, pos.saturating_add(done as u64)).await {
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

    /// Writes `buf` at byte `pos`, or at the end of a file open for appending; returns the bytes,
    /// fewer than given only before an error, and at the end as [`AsyncFile::append`].
    ///
    /// The bytes are in the cache then and not durable. Ready at the first poll unless it has to wait
    /// for memory, for a lock, for the rest of a page that is written in part, or because so much is
    /// dirty that writers pause.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub async fn write_at(&self, buf: &[u8], pos: u64) -> Result<usize> {
        self.write_at_with(buf, pos, IoOptions::new()).await
    }

    /// As [`AsyncFile::write_at`], in the way that `options` say.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub async fn write_at_with(&self, buf: &[u8], pos: u64, options: IoOptions) -> Result<usize> {
        self.write_vectored_with(&[IoSlice::new(buf)], pos, options)
            .await
    }

    /// Writes all of `buf` at byte `pos`.
    ///
    /// # Errors
    /// As [`AsyncFile::write_at`]; part of `buf` may have been written.
    pub async fn write_all_at(&self, mut buf: &[u8], mut pos: u64) -> Result<()> {
        while !buf.is_empty() {
            let n = self.write_at(buf, pos).await?;
            if n == 0 {
                return Err(self
                    .file
                    .error(Operation::Write, pos, buf.len(), Errno::EIO));
            }
            buf = &buf[n..];
            pos += n as u64;
        }
        Ok(())
    }

    /// As [`AsyncFile::write_at`], from several buffers, one after another.
    ///
    /// # Errors
    /// As [`AsyncFile::write_at`].
    pub async fn write_vectored_at(&self, bufs: &[IoSlice<'_>], pos: u64) -> Result<usize> {
        self.write_vectored_with(bufs, pos, IoOptions::new()).await
    }

    async fn write_vectored_with(
        &self,
        bufs: &[IoSlice<'_>],
        pos: u64,
        options: IoOptions,
    ) -> Result<usize> {
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        let refused = |errno| self.file.error(Operation::Write, pos, len, errno);
        self.no_stragglers(Operation::Write).await?;
        let mut done = 0;
        loop {
            let mut iocb = Iocb {
                nowait: true,
                ..options.iocb(pos.saturating_add(done as u64))
            };
            let result = {
                let mut iter = IovIter::sources(bufs);
                iter.advance(done);
                let result = self.file.open_file().write_iter(&mut iocb, &mut iter);
                done = len - iter.remaining();
                result
            };
            match result {
                Ok(_) => return Ok(done),
                Err(Errno::EAGAIN) => {}
                Err(_) if done > 0 => return Ok(done),
                Err(errno) => return Err(refused(errno)),
            }
            let at = (!self.file.appends()).then(|| pos.saturating_add(done as u64));
            match self.write_piece(bufs, done, at, options).await {
                Ok((_, n, piece)) => {
                    done += n;
                    if n < piece || done == len || at.is_none() {
                        return Ok(done);
                    }
                }
                Err(_) if done > 0 => return Ok(done),
                Err(errno) => return Err(refused(errno)),
            }
        }
    }

    /// Writes `buf` at the end, wherever that is once the writer has the file to itself; returns
    /// where the bytes went and how many: in one run, which is all of them up to a 256th of the
    /// bound (64 KiB to 1 MiB), and of more at least as many.
    ///
    /// # Errors
    /// As [`File::append`].
    pub async fn append(&self, buf: &[u8]) -> Result<(u64, usize)> {
        self.no_stragglers(Operation::Append).await?;
        let appended = match buf.is_empty() {
            true => self.file.open_file().append(buf),
            false => {
                let written = self
                    .write_piece(&[IoSlice::new(buf)], 0, None, IoOptions::new())
                    .await;
                written.map(|(pos, n, _)| (pos, n))
            }
        };
        appended.map_err(|errno| {
            self.file
                .error(Operation::Append, self.len(), buf.len(), errno)
        })
    }

    /// Hands what follows the first `done` bytes of `bufs`, or as much of it as a buffer holds, to
    /// a worker; returns where it went, how many bytes of it, and how many were handed over.
    async fn write_piece(
        &self,
        bufs: &[IoSlice<'_>],
        done: usize,
        pos: Option<u64>,
        options: IoOptions,
    ) -> Result<(u64, usize, usize), Errno> {
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        let mut buffer = self.offload.writes.take(len - done).await?;
        gather(bufs, done, &mut buffer);
        let piece = buffer.bytes.len();
        let write = move |open: &OpenFile| {
            let mut iocb = options.iocb(pos.unwrap_or_default());
            iocb.append = pos.is_none();
            let n = open.write_iter(&mut iocb, &mut IovIter::source(&buffer.bytes))?;
            Ok((iocb.pos - n as u64, n))
        };
        let kind = Kind::Change(Arc::clone(&self.stragglers));
        let (pos, n) = self.offload(kind, write).await?;
        Ok((pos, n, piece))
    }

    /// Makes durable everything that was written to the file before the call, through any handle, with the attributes that are
    /// needed to find it.
    ///
    /// # Errors
    /// As [`File::sync_data`].
    #[doc(alias = "fdatasync")]
    pub async fn sync_data(&self) -> Result<()> {
        self.sync(true).await
    }

    /// As [`AsyncFile::sync_data`], with the attributes, and the name of a file that was made,
    /// renamed or linked since.
    ///
    /// # Errors
    /// As [`File::sync_data`].
    #[doc(alias = "fsync")]
    pub async fn sync_all(&self) -> Result<()> {
        self.sync(false).await
    }

    async fn sync(&self, datasync: bool) -> Result<()> {
        self.no_stragglers(Operation::Sync).await?;
        let sync = move |open: &OpenFile| Ok(open.sync_on_behalf(datasync));
        let done = self.offload(Kind::Sync, sync).await;
        let result = done.and_then(|(result, told)| {
            self.file.open_file().was_told(&told);
            result
        });
        result.map_err(|errno| self.file.path_error(Operation::Sync, errno))
    }

    /// Sets the size in bytes; what is new reads as zeros.
    ///
    /// # Errors
    /// As [`File::set_len`].
    #[doc(alias = "ftruncate")]
    pub async fn set_len(&self, len: u64) -> Result<()> {
        self.no_stragglers(Operation::SetLen).await?;
        let kind = Kind::Change(Arc::clone(&self.stragglers));
        let done = self.offload(kind, move |open| open.set_len(len)).await;
        done.map_err(|errno| self.file.path_error(Operation::SetLen, errno))
    }

    /// Waits until no change is under way whose future was dropped; `ECHILD` in a forked child.
    async fn no_stragglers(&self, operation: Operation) -> Result<()> {
        self.file.check(operation)?;
        poll_fn(|context| self.stragglers.poll_none(context)).await;
        Ok(())
    }
}

/// Copies what follows the first `skip` bytes of `bufs` into `buffer`, as much as there is room.
fn gather(bufs: &[IoSlice<'_>], mut skip: usize, buffer: &mut Buffer) {
    for buf in bufs {
        let from = skip.min(buf.len());
        skip -= from;
        let n = (buf.len() - from).min(buffer.room() - buffer.bytes.len());
        buffer.bytes.extend_from_slice(&buf[from..from + n]);
    }
}

impl fmt::Debug for AsyncFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.fmt(f)
    }
}
