//! Batches: many reads in one call, of one file or several.

use foliocache_mm::{Batch, Request, read_batch};

use crate::asynch::AsyncFile;
use crate::error::{Operation, Result};
use crate::file::File;
use crate::io_options::IoOptions;

/// One read of a batch: its range, its buffer and its result.
///
/// Made by [`File::read_request`] for [`File::read_batch`], and by [`AsyncFile::read_request`] for
/// [`AsyncFile::read_batch`].
#[derive(Debug)]
pub struct ReadRequest<'a, F = File> {
    file: &'a F,
    request: Request<'a>,
}

impl<F: AsRef<File>> ReadRequest<'_, F> {
    /// The bytes that were read, fewer than asked only at the end of the file or before an error.
    ///
    /// # Errors
    /// As [`File::read_at`], with this file, this range and the cause; `EAGAIN` before the batch has ended.
    #[inline]
    pub fn result(&self) -> Result<usize> {
        let request = &self.request;
        request.result().map_err(|errno| {
            let (pos, len) = (request.pos(), request.bytes().len());
            self.file.as_ref().error(Operation::Read, pos, len, errno)
        })
    }

    /// The bytes that were read.
    ///
    /// # Errors
    /// As [`ReadRequest::result`].
    #[inline]
    pub fn bytes(&self) -> Result<&[u8]> {
        Ok(&self.request.bytes()[..self.result()?])
    }
}

/// How the whole batch went: the first error.
fn first_error<F: AsRef<File>>(requests: &[ReadRequest<'_, F>]) -> Result<()> {
    requests
        .iter()
        .try_for_each(|request| request.result().map(drop))
}

#[doc(hidden)]
impl<'a, F> AsMut<Request<'a>> for ReadRequest<'a, F> {
    #[inline]
    fn as_mut(&mut self) -> &mut Request<'a> {
        &mut self.request
    }
}

impl File {
    /// A read of `buf.len()` bytes from byte `pos` on, for [`File::read_batch`]. Reads nothing yet.
    #[inline]
    pub fn read_request<'a>(&'a self, buf: &'a mut [u8], pos: u64) -> ReadRequest<'a> {
        self.read_request_with(buf, pos, IoOptions::new())
    }

    /// As [`File::read_request`], with `options`.
    #[inline]
    pub fn read_request_with<'a>(
        &'a self,
        buf: &'a mut [u8],
        pos: u64,
        options: IoOptions,
    ) -> ReadRequest<'a> {
        ReadRequest {
            file: self,
            request: self.open_file().read_request(options.iocb(pos), buf),
        }
    }

    /// Reads many ranges in one call, of one or several files of one cache. Each request ends as [`File::read_at`] would,
    /// independently of the others.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use foliocache::File;
    /// # let cache = foliocache::Cache::builder().memory("16M").build()?;
    /// # let (table, log) = (cache.memfs()?.create("t")?, cache.memfs()?.create("l")?);
    /// # table.write_all_at(&[7; 640], 0)?;
    /// const ROW: usize = 64;
    /// let ids = [3, 8, 1];
    /// let mut rows = [0; 3 * ROW];
    /// let mut tail = [0; 16];
    /// let mut requests: Vec<_> = ids
    ///     .iter()
    ///     .zip(rows.chunks_mut(ROW))
    ///     .map(|(id, row)| table.read_request(row, id * ROW as u64))
    ///     .collect();
    /// requests.push(log.read_request(&mut tail, 0));
    /// File::read_batch(&mut requests)?; // the first error, if there is any
    /// for request in &requests {
    ///     println!("{} bytes", request.bytes()?.len());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Hits are looked up 32 at a time, so the processor waits for the memory of all of them at once. In a file much larger than
    /// the processor's caches, a hit of 64 bytes takes a third to a fifth of the time of a single read; with only 8 requests, half.
    /// Longer reads gain less, because the copy dominates; from 16 KiB on they are read one by one.
    ///
    /// For misses, all reads from the store are started before the first is waited for (if the store reads in the
    /// background), up to 4 MiB and a 16th of the bound at a time. Blocks for them and for memory of the bound, and allocates only
    /// for misses. Requests that have a result already are skipped.
    ///
    /// # Errors
    /// The first of the requests' errors, after all have ended; [`ReadRequest::result`] has each.
    pub fn read_batch(requests: &mut [ReadRequest<'_>]) -> Result<()> {
        read_batch(requests);
        first_error(requests)
    }
}

impl AsyncFile {
    /// A read of `buf.len()` bytes from byte `pos` on, for [`AsyncFile::read_batch`]. Reads nothing yet.
    #[inline]
    pub fn read_request<'a>(&'a self, buf: &'a mut [u8], pos: u64) -> ReadRequest<'a, AsyncFile> {
        self.read_request_with(buf, pos, IoOptions::new())
    }

    /// As [`AsyncFile::read_request`], with `options`.
    #[inline]
    pub fn read_request_with<'a>(
        &'a self,
        buf: &'a mut [u8],
        pos: u64,
        options: IoOptions,
    ) -> ReadRequest<'a, AsyncFile> {
        let open = self.blocking().open_file();
        ReadRequest {
            file: self,
            request: open.read_request(options.iocb(pos), buf),
        }
    }

    /// As [`File::read_batch`], for async files: ready at the first poll if everything is in the cache.
    ///
    /// If the future is dropped, finished requests keep their bytes, and another batch can finish the others.
    ///
    /// # Errors
    /// As [`File::read_batch`].
    pub async fn read_batch(requests: &mut [ReadRequest<'_, AsyncFile>]) -> Result<()> {
        let mut batch = Batch::new(requests);
        while let Some(waiting) = batch.next_to_finish() {
            let (iocb, rest) = waiting.request.rest();
            let result = waiting.file.read_on(iocb, rest).await;
            waiting.request.end(result);
        }
        first_error(requests)
    }
}

impl AsRef<File> for File {
    fn as_ref(&self) -> &File {
        self
    }
}

impl AsRef<File> for AsyncFile {
    fn as_ref(&self) -> &File {
        self.blocking()
    }
}
