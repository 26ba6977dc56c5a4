//! Exact views, and many of them in one call.

use foliocache_mm::{Iocb, View, ViewRequest as Request, view_batch};
use std::ops::{Range, RangeBounds};

use crate::error::{Error, Operation, Result};
use crate::file::File;
use crate::range::{bytes_in, bytes_of};

/// One view of a batch: its range and its result. Made by [`File::view_request`] for [`File::view_batch`].
#[derive(Debug)]
pub struct ViewRequest<'a> {
    file: &'a File,
    range: Range<u64>,
    request: Request<'a>,
}

impl ViewRequest<'_> {
    /// The view.
    ///
    /// # Errors
    /// As [`File::view_exact`], with this file, this range and the cause; `EAGAIN` before the batch has ended.
    pub fn result(&self) -> Result<&View> {
        self.file.exact(&self.range, self.request.result())
    }

    /// As [`ViewRequest::result`], with the view itself.
    ///
    /// # Errors
    /// As [`ViewRequest::result`].
    pub fn into_view(self) -> Result<View> {
        self.file.exact(&self.range, self.request.into_result())
    }
}

#[doc(hidden)]
impl<'a> AsMut<Request<'a>> for ViewRequest<'a> {
    fn as_mut(&mut self) -> &mut Request<'a> {
        &mut self.request
    }
}

impl File {
    /// All bytes of `range`, neither more nor fewer. A range that is open at its end ends with the file, as long as that is when
    /// this is called.
    ///
    /// If one folio of the cache has all of them, the view is that of [`File::view`]: no copy, and its folio stays
    /// in the bound. Otherwise it is a copy, and [`View::is_copy`] says so. A copy's bytes, and 64 more, count in
    /// the bound while it exists ([`CacheStats::copied_view_bytes`](crate::CacheStats::copied_view_bytes)) and the
    /// cache is open. All copies together take at most a quarter of the bound. A copy that is made during a write
    /// may contain part of it, like a read; it does not change afterwards.
    ///
    /// Neither blocks nor allocates if one folio that is in the cache has the bytes. Else it blocks as [`File::read_at`], and for the
    /// memory of the copy up to a second after nothing more could be reclaimed.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cache = foliocache::Cache::builder().memory("16M").build()?;
    /// # let file = cache.memfs()?.create("page")?;
    /// file.write_all_at(&[7; 100_000], 0)?;
    /// let record = file.view_exact(4_000..30_000)?; // wherever folios end
    /// assert_eq!(record.len(), 26_000);
    /// assert!(file.view_exact(99_999..100_001).is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::UnexpectedEof`] if the file ends before the range does, and those of [`File::read_at`]. `ENOBUFS`
    /// if copies have their quarter of the bound: drop some. `ENOMEM` if there is no memory for another one,
    /// because unreclaimable memory takes its share.
    #[inline]
    pub fn view_exact(&self, range: impl RangeBounds<u64>) -> Result<View> {
        let range = bytes_of(range, self.len());
        let view = self
            .open_file()
            .view_exact(&mut Iocb::at(range.start), bytes_in(&range));
        self.exact(&range, view)
    }

    /// A view of all bytes of `range`, as of [`File::view_exact`], for [`File::view_batch`]. Takes no view yet; an end that is
    /// open is that of the file now.
    pub fn view_request(&self, range: impl RangeBounds<u64>) -> ViewRequest<'_> {
        let range = bytes_of(range, self.len());
        ViewRequest {
            request: self
                .open_file()
                .view_request(Iocb::at(range.start), bytes_in(&range)),
            file: self,
            range,
        }
    }

    /// Takes many views in one call, of one or several files of one cache. Each request ends as [`File::view_exact`] would,
    /// independently of the others.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use foliocache::File;
    /// # let cache = foliocache::Cache::builder().memory("16M").build()?;
    /// # let (terms, positions) = (cache.memfs()?.create("t")?, cache.memfs()?.create("p")?);
    /// # terms.write_all_at(&[7; 640], 0)?;
    /// # positions.write_all_at(&[8; 640], 0)?;
    /// let mut requests = [terms.view_request(64..128), positions.view_request(..100)];
    /// File::view_batch(&mut requests)?; // the first error, if there is any
    /// let [terms, positions] = requests.map(|request| request.into_view());
    /// assert_eq!((terms?.len(), positions?.len()), (64, 100));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// All reads of missing bytes are started before the first is waited for (if the store reads in the
    /// background), up to 4 MiB and a 16th of the bound at a time. Blocks for them and for memory of the bound.
    /// Requests that have a result already are skipped. The views of a batch are kept together: they hold memory of
    /// the bound until they are dropped.
    ///
    /// # Errors
    /// The first of the requests' errors, after all have ended; [`ViewRequest::result`] has each.
    pub fn view_batch(requests: &mut [ViewRequest<'_>]) -> Result<()> {
        view_batch(requests);
        requests
            .iter()
            .try_for_each(|request| request.result().map(drop))
    }

    /// The views of several ranges of this file, in their order: [`File::view_batch`], of which it keeps nothing if one fails.
    ///
    /// # Errors
    /// The first of those of [`File::view_exact`].
    pub fn views(&self, ranges: &[Range<u64>]) -> Result<Vec<View>> {
        let ranges = ranges.iter().cloned();
        let mut requests: Vec<_> = ranges.map(|range| self.view_request(range)).collect();
        view_batch(&mut requests);
        requests.into_iter().map(ViewRequest::into_view).collect()
    }

    /// The result of an exact view of `range`, with its error in words.
    pub(crate) fn exact<V>(
        &self,
        range: &Range<u64>,
        view: std::result::Result<Option<V>, foliocache_sys::Errno>,
    ) -> Result<V> {
        match view {
            Ok(Some(view)) => Ok(view),
            Ok(None) => Err(Error::UnexpectedEof {
                path: self.path().to_owned(),
                range: range.start.max(self.len()).min(range.end)..range.end,
            }),
            Err(errno) => Err(self.error(Operation::Read, range.start, bytes_in(range), errno)),
        }
    }
}
