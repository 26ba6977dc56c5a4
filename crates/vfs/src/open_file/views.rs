//! Views of an open file: which handles allow them.

use foliocache_mm::{Iocb, View, ViewRequest};
use foliocache_sys::Errno;

use super::OpenFile;

impl OpenFile {
    /// Bytes from `iocb.pos` on without a copy, up to the end of their folio; see [`AddressSpace::view`](foliocache_mm::AddressSpace::view).
    ///
    /// # Errors
    /// As [`OpenFile::read_at`], and `EAGAIN` of [`AddressSpace::read`](foliocache_mm::AddressSpace::read).
    #[inline]
    pub fn view(&self, iocb: &mut Iocb, len: usize) -> Result<View, Errno> {
        self.check_read(iocb.pos)?;
        iocb.uncached |= !self.flags.is_cached();
        self.mapping.view(&self.readahead, iocb, len)
    }

    /// All `len` bytes from `iocb.pos` on, `None` if the file ends before; see [`AddressSpace::view_exact`](foliocache_mm::AddressSpace::view_exact).
    ///
    /// # Errors
    /// As [`OpenFile::view`], `ENOBUFS` and `ENOMEM` of [`AddressSpace::view_exact`](foliocache_mm::AddressSpace::view_exact).
    #[inline]
    pub fn view_exact(&self, iocb: &mut Iocb, len: usize) -> Result<Option<View>, Errno> {
        self.check_read(iocb.pos)?;
        iocb.uncached |= !self.flags.is_cached();
        self.mapping.view_exact(&self.readahead, iocb, len)
    }

    /// A view of `len` bytes from `iocb.pos` on, for a batch.
    pub fn view_request(&self, mut iocb: Iocb, len: usize) -> ViewRequest<'_> {
        iocb.uncached |= !self.flags.is_cached();
        let mut request = ViewRequest::new(&self.mapping, &self.readahead, iocb, len);
        if let Err(errno) = self.check_read(iocb.pos) {
            request.fail(errno);
        }
        request
    }
}
