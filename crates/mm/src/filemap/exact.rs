//! Exact views: all of a range, in place if one folio has it, else as a copy that counts in the bound.
//!
//! # Model
//!
//! ```text
//!   the folio of the first byte ── has all of the range ──▶ a view in place
//!     │ has a part, or cannot be viewed
//!     ▼
//!   charge a copy ([`crate::charge`]) ─▶ what the folio has, from the view ─▶ the rest, as a read ─▶ a view that is a copy
//! ```
//!
//! A batch starts the reads of all that is missing before it waits for the first, as [`batch`](super::batch) does for reads.
//!
//! # Locking
//!
//! As [`view`](super::view). Nothing is held while memory is waited for, but a view of the first folio.

use foliocache_sys::Errno;

use super::batch::{GROUP, most_started};
use crate::counters::bump;
use crate::fill::Plug;
use crate::frames::BLOCK_SIZE;
use crate::iocb::Iocb;
use crate::iov::IovIter;
use crate::readahead::ReadaheadState;
use crate::records::AddressSpace;
use crate::views::View;

impl AddressSpace {
    /// The `len` bytes from `iocb.pos` on; `None` if the file ends before the last. `iocb.pos` moves past them. They are not
    /// copied if they lie in one folio that can be viewed.
    ///
    /// Where they are in the cache in one piece it neither blocks nor allocates. Else it blocks as a read, and for the
    /// memory of a copy. With `iocb.nowait` that is `EAGAIN`. Counts as a read by `handle`.
    ///
    /// # Errors
    /// As [`AddressSpace::read`]. `ENOBUFS` if copies hold their share of the bound, a quarter; `ENOMEM` if there is no memory
    /// for another.
    pub fn view_exact(
        &self,
        handle: &ReadaheadState,
        iocb: &mut Iocb,
        len: usize,
    ) -> Result<Option<View>, Errno> {
        self.mm().check_fork()?;
        if len == 0 {
            return Ok(Some(View::empty()));
        }
        if self.left(iocb.pos, len) < len {
            return Ok(None);
        }
        let start = iocb.pos;
        let part = self.first_part(handle, iocb, len)?;
        let view = match part {
            Some(view) if view.len() == len => return Ok(Some(view)),
            part => self.copy_exact(handle, iocb, len, part),
        };
        if !matches!(view, Ok(Some(_))) {
            iocb.pos = start;
        }
        view
    }

    /// A view of the first bytes in place, if that is possible; `iocb.pos` moves past them.
    fn first_part(
        &self,
        handle: &ReadaheadState,
        iocb: &mut Iocb,
        len: usize,
    ) -> Result<Option<View>, Errno> {
        if len > BLOCK_SIZE {
            // No folio is larger.
            return match iocb.nowait {
                true => Err(Errno::EAGAIN),
                false => Ok(None),
            };
        }
        let least = if iocb.nowait { len } else { 1 };
        if !iocb.uncached
            && let Some(view) = self.view_hit(handle, iocb, len, least)
        {
            iocb.pos += view.len() as u64;
            return Ok(Some(view));
        }
        if iocb.nowait {
            return Err(Errno::EAGAIN);
        }
        Ok(self.view_in_place(handle, iocb, len)?.ok())
    }

    /// A copy of `len` bytes, of which `part` are the first.
    #[cold]
    fn copy_exact(
        &self,
        handle: &ReadaheadState,
        iocb: &mut Iocb,
        len: usize,
        part: Option<View>,
    ) -> Result<Option<View>, Errno> {
        let making = self.mm().charge_copy(len)?;
        let mut bytes = vec![0; len].into_boxed_slice();
        let mut done = 0;
        if let Some(part) = part {
            done = part.len();
            bytes[..done].copy_from_slice(&part);
        }
        while done < len {
            let rest = &mut IovIter::destination(&mut bytes[done..]);
            match self.read(handle, iocb, rest)? {
                // It was cut meanwhile.
                0 => return Ok(None),
                n => done += n,
            }
        }
        bump(&self.mm().events.copied_views, 1);
        Ok(Some(View::copied(making.end(bytes))))
    }
}

/// One view of a batch: so many bytes of a file from a position on.
#[derive(Debug)]
pub struct ViewRequest<'a> {
    mapping: &'a AddressSpace,
    handle: &'a ReadaheadState,
    iocb: Iocb,
    len: usize,
    /// Pages that were started for it.
    started: u64,
    result: Result<Option<View>, Errno>,
}

impl<'a> ViewRequest<'a> {
    /// Asks for the `len` bytes from `iocb.pos` on, as `iocb` says, once it is part of a batch.
    #[must_use]
    pub fn new(
        mapping: &'a AddressSpace,
        handle: &'a ReadaheadState,
        iocb: Iocb,
        len: usize,
    ) -> Self {
        Self {
            mapping,
            handle,
            iocb,
            len,
            started: 0,
            result: Err(Errno::EAGAIN),
        }
    }

    /// The result of [`AddressSpace::view_exact`]; `EAGAIN` before the end of the batch.
    ///
    /// # Errors
    /// As [`AddressSpace::view_exact`].
    pub fn result(&self) -> Result<Option<&View>, Errno> {
        match &self.result {
            Ok(view) => Ok(view.as_ref()),
            Err(errno) => Err(*errno),
        }
    }

    /// As [`ViewRequest::result`], with the view itself.
    ///
    /// # Errors
    /// As [`ViewRequest::result`].
    pub fn into_result(self) -> Result<Option<View>, Errno> {
        self.result
    }

    /// Says that it failed, before the batch.
    pub fn fail(&mut self, errno: Errno) {
        self.result = Err(errno);
    }

    fn is_done(&self) -> bool {
        !matches!(self.result, Err(Errno::EAGAIN))
    }

    fn view(&mut self, nowait: bool) {
        self.iocb.nowait = nowait;
        self.result = self
            .mapping
            .view_exact(self.handle, &mut self.iocb, self.len);
    }

    /// Takes what is in the cache in one piece, or starts to read what is missing.
    fn look(&mut self, plug: &mut Plug) {
        self.view(true);
        if !self.is_done() {
            self.started =
                self.mapping
                    .start_missing(self.handle, &mut self.iocb, self.len as u64, plug);
        }
    }

    /// Waits for it; returns the pages that are not on their way any more.
    fn finish(&mut self) -> u64 {
        if !self.is_done() {
            self.view(false);
        }
        std::mem::take(&mut self.started)
    }
}

impl<'a> AsMut<ViewRequest<'a>> for ViewRequest<'a> {
    fn as_mut(&mut self) -> &mut ViewRequest<'a> {
        self
    }
}

/// Takes all views, each as [`AddressSpace::view_exact`] would by itself, with a result of its own
/// ([`ViewRequest::result`]); those that have one already are left alone.
///
/// Blocks for I/O, whose reads are all started before the first is waited for as far as there is memory for it, and for
/// memory of the bound.
pub fn view_batch<'a, R: AsMut<ViewRequest<'a>>>(requests: &mut [R]) {
    let (mut looked, mut done, mut started) = (0, 0, 0);
    while looked < requests.len() {
        if started > most_started(requests[looked].as_mut().mapping.mm()) {
            started -= requests[done].as_mut().finish();
            done += 1;
            continue;
        }
        let mut plug = Plug::default();
        for request in requests[looked..].iter_mut().take(GROUP) {
            let request = request.as_mut();
            if !request.is_done() {
                request.look(&mut plug);
                started += request.started;
            }
            looked += 1;
        }
    }
    for request in &mut requests[done..] {
        request.as_mut().finish();
    }
}
