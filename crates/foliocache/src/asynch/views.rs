//! Views for async callers.

use foliocache_mm::{Iocb, View};
use foliocache_sys::Errno;
use foliocache_vfs::OpenFile;
use std::ops::RangeBounds;

use super::{AsyncFile, FRUITLESS_FETCHES};
use crate::error::{Operation, Result};
use crate::range::{bytes_in, bytes_of};
use crate::workers::Kind;

impl AsyncFile {
    /// Bytes of `range` without a copy, as many as lie in one folio: [`File::view`](crate::File::view).
    ///
    /// Ready at the first poll if they are in the cache.
    ///
    /// # Errors
    /// As [`File::read_at`](crate::File::read_at).
    pub async fn view(&self, range: impl RangeBounds<u64>) -> Result<View> {
        let range = bytes_of(range, u64::MAX);
        let (pos, len) = (range.start, bytes_in(&range));
        let view = self.taken(pos, len, OpenFile::view).await;
        view.map_err(|errno| self.file.error(Operation::Read, pos, len, errno))
    }

    /// All bytes of `range`: [`File::view_exact`](crate::File::view_exact).
    ///
    /// Ready at the first poll if one folio that is in the cache has them. A worker makes a copy.
    ///
    /// # Errors
    /// As [`File::view_exact`](crate::File::view_exact).
    pub async fn view_exact(&self, range: impl RangeBounds<u64>) -> Result<View> {
        let range = bytes_of(range, self.file.len());
        let (pos, len) = (range.start, bytes_in(&range));
        let view = self.taken(pos, len, OpenFile::view_exact).await;
        self.file.exact(&range, view)
    }

    /// The result of `take` on `len` bytes from `pos` on.
    async fn taken<V: Send + 'static>(
        &self,
        pos: u64,
        len: usize,
        take: fn(&OpenFile, &mut Iocb, usize) -> Result<V, Errno>,
    ) -> Result<V, Errno> {
        let mut iocb = Iocb {
            nowait: true,
            ..Iocb::at(pos)
        };
        let mut view = take(self.file.open_file(), &mut iocb, len);
        for _ in 0..FRUITLESS_FETCHES {
            if !matches!(view, Err(Errno::EAGAIN)) {
                break;
            }
            view = match self.fetch(&mut iocb, len).await {
                Ok(()) => take(self.file.open_file(), &mut iocb, len),
                Err(errno) => Err(errno),
            };
        }
        if matches!(view, Err(Errno::EAGAIN)) {
            // Pages that were fetched for it count once.
            let iocb = Iocb {
                nowait: false,
                ..iocb
            };
            let take = move |open: &OpenFile| take(open, &mut { iocb }, len);
            view = self.offload(Kind::Read, take).await;
        }
        view
    }
}
