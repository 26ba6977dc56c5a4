//! An async file as tokio's readers and writers see it: with a position.
//!
//! # Model
//!
//! ```text
//!   poll_read    cached ─▶ copied at once        a page is missing ─▶ it is brought into the cache, then copied
//!   poll_write   needs no waiting ─▶ done        else ─▶ a piece is *accepted*: copied, and written by a worker
//!   poll_flush   waits for what was accepted, and tells how it ended
//! ```
//!
//! The traits require that a pending call has done nothing: its future may be dropped and another call made with
//! other bytes. So a read moves the position only when it returns bytes, and a write is pending only before any of
//! it was accepted.
//!
//! # Invariants
//!
//! 1. One accepted piece at a time; every other request waits for it first.
//! 2. Accepted bytes are written, even if this is dropped.

use foliocache_mm::{Iocb, IovIter};
use foliocache_sync::Arc;
use foliocache_sys::Errno;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice, SeekFrom};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ::tokio::io::{AsyncRead, AsyncSeek, AsyncWrite, ReadBuf};

use super::change::gather;
use super::{AsyncFile, FRUITLESS_FETCHES};
use crate::error::{Error, Operation, Result};
use crate::workers::{Buffer, Kind, Pending};

/// An open file with its own position, as tokio's [`AsyncRead`], [`AsyncWrite`] and [`AsyncSeek`].
///
/// From [`AsyncFile::into_tokio`], with the feature `tokio`. It needs nothing of a runtime: any executor will do. Several of
/// them may be made of clones of one file; each has its own position, which begins at 0.
///
/// ```
/// # async fn lines(dir: &foliocache::AsyncDirectory) -> Result<(), Box<dyn std::error::Error>> {
/// use tokio::io::{AsyncBufReadExt, BufReader};
///
/// let mut lines = BufReader::new(dir.open("list").await?.into_tokio()).lines();
/// while let Some(line) = lines.next_line().await? {
///     println!("{line}");
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Reads
///
/// Cached bytes are read at the first poll, as by [`AsyncFile::read_at`]. A read whose future is dropped has read
/// nothing: the position is unchanged, and the pages arrive in the cache. If a worker was reading for it, because
/// the cache is too small for its readers, the next read gets the worker's bytes: those of the time when the
/// dropped read began.
///
/// # Writes
///
/// Bytes that need not wait are written at the first poll, as by [`AsyncFile::write_at`]; through a file that is open for
/// appending they go to the end, and the position follows. Otherwise up to 1 MiB (less in a small cache) is copied, the write
/// is *accepted*, and a worker writes it. The next call waits until it is done. A write whose future is dropped while it is
/// pending has written nothing.
///
/// **Flush** waits until the accepted bytes are in the cache, where every reader sees them, and returns the error
/// if that failed; so does the next write. **Shutdown** does the same. Neither makes anything durable:
/// [`TokioFile::sync_data`] does. Writes after a shutdown are allowed.
///
/// Dropping it finishes the accepted writes, and reports no failure. A change or sync through the [`AsyncFile`] or
/// a clone waits for the writes accepted before.
///
/// # Seeks
///
/// Go anywhere from 0 to the largest offset, past the end too: reads there find nothing, and a write leaves a hole.
pub struct TokioFile {
    file: AsyncFile,
    pos: u64,
    /// The pages or bytes that a read waits for. Seeks and writes forget bytes that were not handed out.
    bringing: Option<BoxFuture<Result<Brought, Errno>>>,
    accepted: Option<Accepted>,
    /// A seek that waits for accepted writes.
    seek: Option<SeekFrom>,
    /// The failure of an accepted write, until it is reported.
    failed: Option<Error>,
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send + Sync>>;

/// The result of a read's wait.
enum Brought {
    /// Pages are in the cache that were not.
    Pages(Iocb),
    /// They were evicted time and again, so a worker has read.
    Bytes(Buffer),
}

/// A piece that a worker writes.
struct Accepted {
    /// Comes to the byte after the piece.
    pending: Pending<u64>,
    pos: u64,
    len: usize,
}

impl AsyncFile {
    /// This file with a position, for code that uses tokio's traits.
    pub fn into_tokio(self) -> TokioFile {
        TokioFile {
            file: self,
            pos: 0,
            bringing: None,
            accepted: None,
            seek: None,
            failed: None,
        }
    }
}

impl TokioFile {
    /// The file. Its calls name their positions, and leave the one here.
    pub fn get_ref(&self) -> &AsyncFile {
        &self.file
    }

    /// The file, without its position. An accepted write is still finished.
    pub fn into_inner(self) -> AsyncFile {
        self.file
    }

    /// The next byte that is read or written; while a write to the end of a file open for appending is accepted, one before
    /// that.
    pub fn position(&self) -> u64 {
        self.pos
    }

    /// Makes everything durable that was written to the file before the call, as [`AsyncFile::sync_data`]; first as a
    /// flush.
    ///
    /// # Errors
    /// As [`AsyncFile::sync_data`], and those of an accepted write.
    pub async fn sync_data(&mut self) -> Result<()> {
        poll_fn(|context| self.poll_told(context)).await?;
        self.file.sync_data().await
    }

    /// As [`TokioFile::sync_data`], with the attributes, and the name: [`AsyncFile::sync_all`].
    ///
    /// # Errors
    /// As [`TokioFile::sync_data`].
    pub async fn sync_all(&mut self) -> Result<()> {
        poll_fn(|context| self.poll_told(context)).await?;
        self.file.sync_all().await
    }

    /// Ready once nothing is accepted that is not written; how that ended is kept.
    fn poll_written(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(accepted) = &mut self.accepted else {
            return Poll::Ready(());
        };
        match ready!(Pin::new(&mut accepted.pending).poll(context)) {
            Ok(end) => self.pos = end,
            Err(errno) => {
                let (pos, len) = (accepted.pos, accepted.len);
                let error = self
                    .file
                    .blocking()
                    .error(Operation::Write, pos, len, errno);
                self.failed.get_or_insert(error);
            }
        }
        self.accepted = None;
        Poll::Ready(())
    }

    /// As [`Self::poll_written`]; says once how it ended.
    fn poll_told(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        ready!(self.poll_written(context));
        Poll::Ready(self.failed.take().map_or(Ok(()), Err))
    }

    /// Ready once the position was set.
    fn poll_position(&mut self, context: &mut Context<'_>) -> Poll<Result<u64>> {
        ready!(self.poll_written(context));
        let Some(seek) = self.seek.take() else {
            return Poll::Ready(Ok(self.pos));
        };
        let file = self.file.blocking();
        let position = file.sought(seek, self.pos, || file.cached_len())?;
        self.bringing = None;
        self.pos = position;
        Poll::Ready(Ok(position))
    }

    /// Reads up to `buf.len()` bytes; how many.
    fn poll_read_to(&mut self, context: &mut Context<'_>, buf: &mut [u8]) -> Poll<Result<usize>> {
        let pos = ready!(self.poll_position(context))?;
        let read = ready!(self.poll_read_at_position(context, buf));
        let file = self.file.blocking();
        Poll::Ready(read.map_err(|errno| file.error(Operation::Read, pos, buf.len(), errno)))
    }

    fn poll_read_at_position(
        &mut self,
        context: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<Result<usize, Errno>> {
        let mut iocb = Iocb {
            nowait: true,
            ..Iocb::at(self.pos)
        };
        let mut fruitless = 0;
        loop {
            if let Some(bringing) = &mut self.bringing {
                let brought = ready!(bringing.as_mut().poll(context));
                self.bringing = None;
                match brought? {
                    Brought::Pages(now) => iocb = now,
                    Brought::Bytes(read) => {
                        let n = read.bytes.len().min(buf.len());
                        buf[..n].copy_from_slice(&read.bytes[..n]);
                        self.pos += n as u64;
                        return Poll::Ready(Ok(n));
                    }
                }
            }
            let open = self.file.blocking().open_file();
            let result = open.read_iter(&mut iocb, &mut IovIter::destination(buf));
            let n = (iocb.pos - self.pos) as usize;
            match result {
                _ if n > 0 => {
                    self.pos += n as u64;
                    return Poll::Ready(Ok(n));
                }
                Ok(_) => return Poll::Ready(Ok(0)),
                Err(Errno::EAGAIN) => {}
                Err(errno) => return Poll::Ready(Err(errno)),
            }
            fruitless += 1;
            let by_worker = fruitless > FRUITLESS_FETCHES || iocb.direct;
            let bringing = bring(self.file.clone(), iocb, buf.len(), by_worker);
            self.bringing = Some(Box::pin(bringing));
        }
    }

    fn poll_write_from(
        &mut self,
        context: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let pos = ready!(self.poll_position(context))?;
        ready!(self.poll_told(context))?;
        self.file.blocking().check(Operation::Write)?;
        ready!(self.file.stragglers.poll_none(context));
        self.bringing = None;
        let len = bufs.iter().map(|buf| buf.len()).sum();
        let written = ready!(self.poll_write_at_position(context, bufs, len));
        let file = self.file.blocking();
        Poll::Ready(written.map_err(|errno| file.error(Operation::Write, pos, len, errno)))
    }

    fn poll_write_at_position(
        &mut self,
        context: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
        len: usize,
    ) -> Poll<Result<usize, Errno>> {
        let mut iocb = Iocb {
            nowait: true,
            ..Iocb::at(self.pos)
        };
        let mut iter = IovIter::sources(bufs);
        let open = self.file.blocking().open_file();
        let result = open.write_iter(&mut iocb, &mut iter);
        let done = len - iter.remaining();
        match result {
            _ if done > 0 => {
                self.pos = iocb.pos;
                return Poll::Ready(Ok(done));
            }
            Ok(_) => return Poll::Ready(Ok(0)),
            Err(Errno::EAGAIN) => {}
            Err(errno) => return Poll::Ready(Err(errno)),
        }
        let mut buffer = ready!(self.file.offload.writes.poll_take(len, context))?;
        gather(bufs, 0, &mut buffer);
        let piece = buffer.bytes.len();
        self.accept(buffer)?;
        Poll::Ready(Ok(piece))
    }

    /// Has a worker write all of `buffer` at the position.
    fn accept(&mut self, buffer: Buffer) -> Result<(), Errno> {
        let (file, pos, len) = (Arc::clone(&self.file.file), self.pos, buffer.bytes.len());
        let write = Box::new(move || {
            let mut iocb = Iocb::at(pos);
            let n =
                (file.open_file()).write_iter(&mut iocb, &mut IovIter::source(&buffer.bytes))?;
            match n == len {
                true => Ok(iocb.pos),
                false => Err(iocb.failed.unwrap_or(Errno::EIO)),
            }
        });
        let kind = Kind::Accepted(Arc::clone(&self.file.stragglers));
        let pending = self.file.offload.submit(kind, write)?;
        self.accepted = Some(Accepted { pending, pos, len });
        if !self.file.blocking().appends() {
            self.pos += len as u64;
        }
        Ok(())
    }
}

/// Fetches the missing part of a read of `len` bytes.
async fn bring(
    file: AsyncFile,
    mut iocb: Iocb,
    len: usize,
    by_worker: bool,
) -> Result<Brought, Errno> {
    if by_worker {
        let waiting = Iocb {
            nowait: false,
            fetched: 0,
            ..iocb
        };
        return Ok(Brought::Bytes(file.read_owned(len, waiting).await?));
    }
    file.fetch(&mut iocb, len).await?;
    Ok(Brought::Pages(iocb))
}

impl AsyncRead for TokioFile {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buf.remaining() > 0 {
            let n = ready!(self.poll_read_to(context, buf.initialize_unfilled()))?;
            buf.advance(n);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TokioFile {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(self.poll_write_from(context, &[IoSlice::new(buf)]));
        Poll::Ready(written.map_err(io::Error::from))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(self.poll_write_from(context, bufs));
        Poll::Ready(written.map_err(io::Error::from))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let told = ready!(self.poll_told(context));
        Poll::Ready(told.map_err(io::Error::from))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(context)
    }
}

impl AsyncSeek for TokioFile {
    fn start_seek(mut self: Pin<&mut Self>, position: SeekFrom) -> io::Result<()> {
        if self.seek.is_some() {
            return Err(io::Error::other("another seek is in progress"));
        }
        self.seek = Some(position);
        Ok(())
    }

    fn poll_complete(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
        let position = ready!(self.poll_position(context));
        Poll::Ready(position.map_err(io::Error::from))
    }
}

impl fmt::Debug for TokioFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokioFile")
            .field("file", &self.file)
            .field("position", &self.pos)
            .finish_non_exhaustive()
    }
}
