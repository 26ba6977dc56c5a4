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
//! No runtime is needed or known: a future does as much as it can when it is polled, and is woken when it can go
//! on. The store reads a missing page in the background, and its arrival wakes all waiting futures. A few threads
//! for each file system ([`workers`](crate::workers)) make the calls that have to block; there is no thread for
//! each request.
//!
//! If pages are evicted between their arrival and the next poll, twice in a row, a worker copies them into an owned buffer. So a
//! read ends however short memory is.
//!
//! # Invariants
//!
//! 1. Only a poll touches the caller's memory: a future may be dropped at any moment.
//! 2. A future that is ready at its first poll asked nothing of a worker and allocated nothing.
//! 3. Work that a dropped future left behind is finished before a later change through the same [`AsyncFile`].
//!
//! # Locking
//!
//! No lock is held between two polls.

mod change;
mod directory;
#[cfg(feature = "tokio")]
mod tokio;
mod views;

pub use directory::AsyncDirectory;
#[cfg(feature = "tokio")]
pub use tokio::TokioFile;

use foliocache_mm::{Fetch, Iocb, IovIter};
use foliocache_sync::Arc;
use foliocache_sys::Errno;
use foliocache_vfs::OpenFile;
use std::fmt;
use std::future::poll_fn;
use std::io::IoSliceMut;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::task::Poll;

use crate::error::{Error, Operation, Result};
use crate::file::File;
use crate::io_options::IoOptions;
use crate::metadata::Metadata;
use crate::parent_only::ParentOnly;
use crate::workers::{AsyncStats, Buffer, Kind, Offload, Stragglers};

/// Fetches in a row after which still nothing could be copied, before a worker copies.
const FRUITLESS_FETCHES: u32 = 2;

/// An open file whose calls are futures.
///
/// Cheap to clone; the clones are one open file. Made by [`File::into_async`], and by the calls of an
/// [`AsyncDirectory`]. The futures run on
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
/// - A dropped **append** leaves all of its bytes in the file, or none.
/// - A dropped **write** may leave any prefix in the file, in whole pieces. A piece that a worker had not begun is
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
/// block, as with [`File`]; [`AsyncFile::close`] does not.
#[derive(Clone)]
pub struct AsyncFile {
    file: Arc<File>,
    offload: Arc<ParentOnly<Offload>>,
    stragglers: Arc<Stragglers>,
}

// As `Directory`.
impl UnwindSafe for AsyncFile {}
impl RefUnwindSafe for AsyncFile {}

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
        Ok(AsyncFile::new(self, offload))
    }
}

impl AsyncFile {
    fn new(file: File, offload: Arc<ParentOnly<Offload>>) -> Self {
        Self {
            file: Arc::new(file),
            offload,
            stragglers: Arc::default(),
        }
    }

    /// The same open file for calls that block.
    pub fn blocking(&self) -> &File {
        &self.file
    }

    /// The size in bytes, as this cache knows it: others may have changed it since, which [`AsyncFile::metadata`] looks for.
    /// Neither blocks nor fails.
    #[doc(alias = "size")]
    pub fn len(&self) -> u64 {
        self.file.cached_len()
    }

    /// Whether the file holds no byte. As [`AsyncFile::len`].
    pub fn is_empty(&self) -> bool {
        self.len() == 0
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

    /// Figures of the workers that this file shares with the others of its file system. Takes a lock for a moment.
    ///
    /// # Errors
    /// `ECHILD` after a fork.
    pub fn worker_stats(&self) -> Result<AsyncStats> {
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

    /// As [`AsyncFile::read_at`], with `options`.
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
            let read = self.read_owned(rest.len(), waiting).await?;
            match read.bytes.len() {
                // The file ends here.
                0 => return Ok(()),
                n => {
                    rest[..n].copy_from_slice(&read.bytes);
                    iocb.pos += n as u64;
                    done += n;
                }
            }
        }
    }

    /// Has the page of byte `iocb.pos` brought in, as for a read of `len` bytes.
    async fn fetch(&self, iocb: &mut Iocb, len: usize) -> Result<(), Errno> {
        let (open, len) = (self.file.open_file(), len as u64);
        let mut may_start = true;
        let started = poll_fn(|context| {
            // Checked at every poll: executors also poll for other reasons.
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

    /// Reads up to `len` bytes into a buffer, fewer if the longest there is is shorter.
    async fn read_owned(&self, len: usize, mut iocb: Iocb) -> Result<Buffer, Errno> {
        let mut buffer = Some(self.offload.reads.take(len).await?);
        let read = move |open: &OpenFile| {
            let mut buffer = buffer.take().ok_or(Errno::EIO)?;
            buffer.bytes.resize(buffer.room(), 0);
            let n = open.read_iter(&mut iocb, &mut IovIter::destination(&mut buffer.bytes))?;
            buffer.bytes.truncate(n);
            Ok(buffer)
        };
        self.offload(Kind::Read, read).await
    }

    /// Fills `buf` from byte `pos` on.
    ///
    /// # Errors
    /// As [`File::read_exact_at`].
    pub async fn read_exact_at(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        let done = self.read_full_at(buf, pos).await?;
        self.file.check_filled(pos, done, buf.len())
    }

    /// Reads into `buf` from byte `pos` on, as far as the file goes; returns the bytes.
    ///
    /// # Errors
    /// As [`File::read_full_at`].
    pub async fn read_full_at(&self, buf: &mut [u8], pos: u64) -> Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            let at = pos.saturating_add(done as u64);
            match self.read_at(&mut buf[done..], at).await? {
                0 => break,
                n => done += n,
            }
        }
        Ok(done)
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
        let done = self.offload(Kind::Always, sync).await;
        let result = done.and_then(|(result, told)| {
            self.file.open_file().was_told(&told);
            result
        });
        result.map_err(|errno| self.file.path_error(Operation::Sync, errno))
    }

    /// The attributes.
    ///
    /// Ready at the first poll if they are known and no change was reported, see
    /// [`DirectoryOptions::revalidate_after`](crate::DirectoryOptions::revalidate_after). Otherwise a worker asks the store.
    ///
    /// # Errors
    /// As [`File::metadata`].
    #[doc(alias = "fstat")]
    pub async fn metadata(&self) -> Result<Metadata> {
        if let Some(known) = self.file.known_metadata()? {
            return Ok(known);
        }
        self.on_worker(Kind::Read, Operation::Metadata, File::metadata)
            .await
    }

    /// Closes the file on a worker if this is its last clone, and waits for that: nothing of it blocks the caller, as a
    /// drop might. Makes nothing durable; [`AsyncFile::sync_data`] does.
    ///
    /// The file is closed even if the future is dropped.
    ///
    /// # Errors
    /// `ECHILD` after a fork.
    pub async fn close(self) -> Result<()> {
        self.file.check(Operation::Close)?;
        let Self { file, offload, .. } = self;
        let path = file.path().to_owned();
        let Some(file) = Arc::into_inner(file) else {
            return Ok(());
        };
        let closed = offload.call(Kind::Always, move || drop(file)).await;
        closed.map_err(Error::at(Operation::Close, &path))
    }

    /// Runs `call` on a worker of the file system, with the file. It may make any blocking call, such as [`File::set_len`],
    /// [`File::try_lock`] or [`File::advise`]. See [`AsyncDirectory::run`].
    ///
    /// ```
    /// # async fn example(file: &foliocache::AsyncFile) -> foliocache::Result<()> {
    /// use foliocache::TryLockError;
    ///
    /// match file.run(|file| Ok(file.try_lock())).await? {
    ///     Ok(()) => file.run(|file| file.set_len(0)).await?,
    ///     Err(TryLockError::WouldBlock) => {} // try again later
    ///     Err(TryLockError::Error(error)) => return Err(error),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// If the future is dropped before a worker has begun, nothing is done. If a worker has begun, it finishes `call`, and later changes and
    /// syncs through this `AsyncFile` or its clones wait for that. Never wait for a lock of others in it ([`File::lock`]): the holder of
    /// the lock may need the worker.
    ///
    /// # Errors
    /// As [`AsyncDirectory::run`].
    #[doc(alias = "spawn_blocking")]
    pub async fn run<V: Send + 'static>(
        &self,
        call: impl FnOnce(&File) -> Result<V> + Send + 'static,
    ) -> Result<V> {
        self.no_stragglers(Operation::Run).await?;
        self.on_worker(self.change(), Operation::Run, call).await
    }

    /// As [`AsyncFile::offload`], for a call of [`File`].
    async fn on_worker<V: Send + 'static>(
        &self,
        kind: Kind,
        operation: Operation,
        call: impl FnOnce(&File) -> Result<V> + Send + 'static,
    ) -> Result<V> {
        let file = Arc::clone(&self.file);
        let done = self.offload.call(kind, move || call(&file)).await;
        done.unwrap_or_else(|errno| Err(self.file.path_error(operation, errno)))
    }

    /// Waits for changes whose futures were dropped; `ECHILD` in a forked child.
    async fn no_stragglers(&self, operation: Operation) -> Result<()> {
        self.file.check(operation)?;
        poll_fn(|context| self.stragglers.poll_none(context)).await;
        Ok(())
    }
}

impl fmt::Debug for AsyncFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.fmt(f)
    }
}
