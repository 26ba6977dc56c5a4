//! Batches with one piece of memory for all buffers, which allocate nothing when they are repeated.
//!
//! # Model
//!
//! ```text
//!  ranges  [(pos, len), (pos, len), …]
//!  arena   │ the first range's bytes │ the second's │ …     one after another, each with room for its length
//! ```

use foliocache_mm::{Batch, Request, read_batch};
use foliocache_sys::Errno;
use std::fmt;

use crate::asynch::AsyncFile;
use crate::error::{Operation, Result};
use crate::file::File;
use crate::io_options::IoOptions;

/// The results of a [`File::read_batch_into`], with memory for its requests that the next one uses again.
///
/// Its memory grows to that of the largest batch, some 150 bytes for each range, and does not count against the bound.
#[derive(Default)]
pub struct ReadBatch {
    parts: Vec<Part>,
    /// Empty between two batches: only its capacity is kept.
    requests: Vec<Request<'static>>,
}

/// One range of a batch.
struct Part {
    /// Where its bytes begin in the arena.
    start: usize,
    result: Result<usize, Errno>,
}

/// Gives the room of a list to a list of requests of another lifetime.
fn reused<'a>(mut requests: Vec<Request<'_>>) -> Vec<Request<'a>> {
    requests.clear();
    // The list is empty, so nothing is converted. The standard library leaves the memory where it is.
    requests
        .into_iter()
        .map(|_| -> Request<'a> { unreachable!("the list is empty") })
        .collect()
}

impl ReadBatch {
    /// For the first batch. Allocates nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many ranges the last batch had.
    #[must_use]
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Whether the last batch had no range, or there was none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The bytes that were read of range `index`, fewer than its length only at the end of the file or before an error. Those are the first
    /// bytes of its part of the arena.
    ///
    /// # Errors
    /// As [`File::read_at`], by number; `EINVAL` for an index that the batch does not have.
    pub fn result(&self, index: usize) -> Result<usize, Errno> {
        self.parts
            .get(index)
            .map_or(Err(Errno::EINVAL), |part| part.result)
    }

    /// The bytes that were read of each range, in order. `arena` is the memory that the batch was read into. A range that
    /// failed has no bytes.
    ///
    /// # Panics
    /// If `arena` is shorter than that.
    pub fn parts<'a>(&self, arena: &'a [u8]) -> impl ExactSizeIterator<Item = &'a [u8]> {
        (self.parts.iter()).map(move |part| &arena[part.start..][..part.result.unwrap_or(0)])
    }

    /// Requests for `ranges`, as many as there is room for.
    ///
    /// # Errors
    /// If the arena is too small.
    fn requests<'a>(
        &mut self,
        file: &'a File,
        ranges: &[(u64, usize)],
        mut arena: &'a mut [u8],
    ) -> Result<Vec<Request<'a>>> {
        self.parts.clear();
        let mut requests = reused(std::mem::take(&mut self.requests));
        let mut start = 0;
        for &(pos, len) in ranges {
            let Some((buf, rest)) = arena.split_at_mut_checked(len) else {
                self.parts.clear();
                self.requests = reused(requests);
                return Err(file.error(Operation::Read, pos, len, Errno::EINVAL));
            };
            arena = rest;
            let iocb = IoOptions::new().iocb(pos);
            requests.push(file.open_file().read_request(iocb, buf));
            let result = Err(Errno::EAGAIN);
            self.parts.push(Part { start, result });
            start += len;
        }
        Ok(requests)
    }

    /// Takes the results over.
    ///
    /// # Errors
    /// The first of them.
    fn end(&mut self, file: &File, requests: Vec<Request<'_>>) -> Result<()> {
        let mut first = Ok(());
        for (part, request) in self.parts.iter_mut().zip(&requests) {
            part.result = request.result();
            if let (Err(errno), true) = (part.result, first.is_ok()) {
                let (pos, len) = (request.pos(), request.bytes().len());
                first = Err(file.error(Operation::Read, pos, len, errno));
            }
        }
        self.requests = reused(requests);
        first
    }
}

impl fmt::Debug for ReadBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadBatch")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl File {
    /// Reads many ranges of the file, each a position and a length in bytes, into one piece of memory: the bytes of each follow those of
    /// the range before it, with room for its length. As [`File::read_batch`], which has one buffer for each range and may read
    /// several files.
    ///
    /// `batch` has the results, and the memory of the requests: a batch that is no larger than one before it, of hits, allocates
    /// nothing.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use foliocache::ReadBatch;
    ///
    /// # let cache = foliocache::Cache::builder().memory("16M").build()?;
    /// # let table = cache.memfs()?.create("t")?;
    /// # table.write_all_at(&[7; 640], 0)?;
    /// let (mut batch, mut arena) = (ReadBatch::new(), vec![0; 1 << 20]); // made once
    /// for rows in [[3, 8, 1], [0, 2, 9]] {
    ///     let ranges = rows.map(|row| (row * 64, 64));
    ///     table.read_batch_into(&ranges, &mut arena, &mut batch)?;
    ///     for row in batch.parts(&arena) {
    ///         println!("{row:?}");
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Blocks for misses and for memory of the bound, as [`File::read_batch`].
    ///
    /// # Errors
    /// `EINVAL` if the arena is too small: then nothing was read. Otherwise the first error of a range, after all have ended;
    /// [`ReadBatch::result`] has each.
    pub fn read_batch_into(
        &self,
        ranges: &[(u64, usize)],
        arena: &mut [u8],
        batch: &mut ReadBatch,
    ) -> Result<()> {
        let mut requests = batch.requests(self, ranges, arena)?;
        read_batch(&mut requests);
        batch.end(self, requests)
    }
}

impl AsyncFile {
    /// As [`File::read_batch_into`]: ready at the first poll if everything is in the cache.
    ///
    /// If the future is dropped, some ranges are read and others are not, and the batch says of none that it was.
    ///
    /// # Errors
    /// As [`File::read_batch_into`].
    pub async fn read_batch_into(
        &self,
        ranges: &[(u64, usize)],
        arena: &mut [u8],
        batch: &mut ReadBatch,
    ) -> Result<()> {
        let mut requests = batch.requests(self.blocking(), ranges, arena)?;
        let mut reading = Batch::new(&mut requests);
        while let Some(waiting) = reading.next_to_finish() {
            let (iocb, rest) = waiting.rest();
            let result = self.read_on(iocb, rest).await;
            waiting.end(result);
        }
        batch.end(self.blocking(), requests)
    }
}
