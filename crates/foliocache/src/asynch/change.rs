//! Writes and appends.
//!
//! # Model
//!
//! ```text
//!   write    what needs no waiting now, then pieces through a worker
//!   append   all of it now or nothing; then one piece, or the caller's own bytes, through a worker
//! ```

use foliocache_mm::Iocb;
use foliocache_mm::IovIter;
use foliocache_sync::Arc;
use foliocache_sys::Errno;
use foliocache_vfs::OpenFile;
use std::io::IoSlice;

use super::AsyncFile;
use crate::error::{Error, Operation, Result};
use crate::io_options::IoOptions;
use crate::workers::{Buffer, Kind};

impl AsyncFile {
    /// Writes `buf` at byte `pos`, or at the end of a file open for appending; returns the bytes,
    /// fewer than given only before an error, and at the end as [`AsyncFile::append`].
    ///
    /// The bytes are in the cache then and not durable. Ready at the first poll unless it has to wait for memory,
    /// for a lock, for the rest of a partly written page, or because writers are throttled.
    ///
    /// # Errors
    /// As [`File::write_at`](crate::File::write_at).
    pub async fn write_at(&self, buf: &[u8], pos: u64) -> Result<usize> {
        self.write_at_with(buf, pos, IoOptions::new()).await
    }

    /// As [`AsyncFile::write_at`], with `options`.
    ///
    /// # Errors
    /// As [`File::write_at`](crate::File::write_at).
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

    /// Writes `buf` at the end of the file at that moment; returns where the bytes went and how
    /// many. No other append comes between the bytes of one call.
    ///
    /// The first poll appends all of `buf` unless it would have to wait, as in [`AsyncFile::write_at`], or `buf` is longer
    /// than 2 MiB or than a 64th of the bound. Otherwise a worker appends from a buffer of a 256th of the bound (64 KiB to
    /// 1 MiB). It appends all of a `buf` that fits into the buffer. Of a longer `buf` it appends the part that fits, and the
    /// call returns the length of that part. Fewer bytes are appended only before an error. [`AsyncFile::append_all`]
    /// appends any number of bytes.
    ///
    /// If the future is dropped, the file has all of the bytes that the call would have appended, or none.
    ///
    /// # Errors
    /// As [`File::append`](crate::File::append).
    pub async fn append(&self, buf: &[u8]) -> Result<(u64, usize)> {
        self.no_stragglers(Operation::Append).await?;
        let appended = match self.file.open_file().append_all(buf, true) {
            Err(Errno::EAGAIN) => {
                let bufs = [IoSlice::new(buf)];
                let written = self.write_piece(&bufs, 0, None, IoOptions::new()).await;
                written.map(|(pos, n, _)| (pos, n))
            }
            appended => appended.map(|pos| (pos, buf.len())),
        };
        appended.map_err(|errno| self.append_error(buf.len(), errno))
    }

    /// Writes all of `bytes` at the end in one run, however many they are: no other append of this cache comes
    /// between them. Returns where they begin.
    ///
    /// Takes ownership of the bytes, a `Vec<u8>`, a `&'static [u8]` or a `bytes::Bytes`, since a worker may have to
    /// write them. It writes them in place: no copy is made, and only the written pages take memory of the bound.
    ///
    /// Ready at the first poll where [`AsyncFile::append`] is. If the future is dropped, either all bytes are in
    /// the file, or none: a worker that has begun finishes, and any later change or sync of the file through this
    /// `AsyncFile` or a clone of it waits for that.
    ///
    /// # Errors
    /// As [`File::append_all`](crate::File::append_all).
    pub async fn append_all(&self, bytes: impl AsRef<[u8]> + Send + 'static) -> Result<u64> {
        let len = bytes.as_ref().len();
        self.no_stragglers(Operation::Append).await?;
        let mut appended = self.file.open_file().append_all(bytes.as_ref(), true);
        if appended == Err(Errno::EAGAIN) {
            let append = move |open: &OpenFile| open.append_all(bytes.as_ref(), false);
            appended = self.offload(self.change(), append).await;
        }
        appended.map_err(|errno| self.append_error(len, errno))
    }

    #[cold]
    fn append_error(&self, len: usize, errno: Errno) -> Error {
        self.file
            .error(Operation::Append, self.file.cached_len(), len, errno)
    }

    /// Hands the bytes of `bufs` after the first `done`, or as many as a buffer holds, to a worker;
    /// returns where they went, how many were written, and how many were handed over.
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
        let (pos, n) = self.offload(self.change(), write).await?;
        Ok((pos, n, piece))
    }

    /// Of a request that changes the file.
    pub(super) fn change(&self) -> Kind {
        Kind::Change(Arc::clone(&self.stragglers))
    }
}

/// Copies the bytes of `bufs` after the first `skip` into `buffer`, as many as there is room for.
pub(super) fn gather(bufs: &[IoSlice<'_>], mut skip: usize, buffer: &mut Buffer) {
    for buf in bufs {
        let from = skip.min(buf.len());
        skip -= from;
        let n = (buf.len() - from).min(buffer.room() - buffer.bytes.len());
        buffer.bytes.extend_from_slice(&buf[from..from + n]);
    }
}
