//! Batches: many reads in one call, of one file or several.
//!
//! # Model
//!
//! ```text
//!   32 requests at a time, in one RCU read section:
//!     the leaf of each in its index ▶ its slot ▶ its descriptor ▶ its bytes ▶ each copy and its version
//!   then those that were no plain hit:
//!     copy what is there
//!     start reading what is not, eight with one wake-up of the reading thread
//!   enough is on its way: the first that is not done waits, then the next are looked at
//!   all have been looked at: the last waits first
//! ```
//!
//! A single hit in a large file waits three times for memory: for the slot, the descriptor and the bytes, each of
//! which says where the next is. Requests of a group take each of these steps together, and the processor's
//! cache misses overlap. Each request goes through the steps of [`crate::lookup`] in their order; between two
//! of them are steps of others.
//!
//! A plain hit is few bytes of one folio that is in use already. Everything else is read as [`AddressSpace::read`]
//! reads it, first without waiting.
//!
//! # Locking
//!
//! As a single read. Nothing is held between two groups.

use foliocache_sync::prefetch;
use foliocache_sync::rcu::{self, RcuReadGuard};
use foliocache_sys::Errno;
use foliocache_xarray::{Approach, Entry};
use std::fmt;
use std::ptr;

use crate::fill::Plug;
use crate::folio::Folio;
use crate::iocb::Iocb;
use crate::iov::{IovIter, Iovec};
use crate::lookup::{Copying, Lookup};
use crate::readahead::ReadaheadState;
use crate::records::{AddressSpace, Mm};
use crate::types::{PAGE_SIZE, PageIndex, offset_in_page};

/// Requests that are looked up together.
pub(super) const GROUP: usize = 32;

/// Bytes of the longest request that is: it ends the others' wait for the read section, too.
const LONGEST: usize = 4 * PAGE_SIZE;

/// Bytes of a request that are asked for ahead; the processor sees by itself how a long one goes on.
const PREFETCHED: usize = 256;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Most pages that are on their way for one batch: 4 MiB, and one page in so many of the cache. With more, the first
/// pages would be gone before they are copied.
const MAX_PAGES: u64 = 1024;
const PART: u64 = 16;

/// One read of a batch: so many bytes of a file from a position on, and where to put them.
pub struct Request<'a> {
    mapping: &'a AddressSpace,
    handle: &'a ReadaheadState,
    buf: &'a mut [u8],
    pos: u64,
    iocb: Iocb,
    /// Pages that were started for it.
    started: u64,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not looked at yet.
    New,
    /// It has to wait.
    Waiting,
    /// It is over; an error says that nothing was read.
    Done(Result<(), Errno>),
}

impl<'a> Request<'a> {
    /// Fills `buf` from byte `iocb.pos` on, as `iocb` says, once it is part of a batch.
    #[must_use]
    pub fn new(
        mapping: &'a AddressSpace,
        handle: &'a ReadaheadState,
        iocb: Iocb,
        buf: &'a mut [u8],
    ) -> Self {
        Self {
            mapping,
            handle,
            buf,
            pos: iocb.pos,
            iocb: Iocb {
                nowait: true,
                ..iocb
            },
            started: 0,
            state: State::New,
        }
    }

    /// The first byte.
    #[must_use]
    pub fn pos(&self) -> u64 {
        self.pos
    }

    /// The bytes read, as [`AddressSpace::read`] returns them; `EAGAIN` before the end of the batch.
    ///
    /// # Errors
    /// As [`AddressSpace::read`].
    pub fn result(&self) -> Result<usize, Errno> {
        match self.state {
            State::Done(result) => result.map(|()| self.done()),
            State::New | State::Waiting => Err(Errno::EAGAIN),
        }
    }

    /// The bytes that it is to fill, with those that were read at the beginning.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.buf
    }

    fn is_done(&self) -> bool {
        matches!(self.state, State::Done(_))
    }

    fn done(&self) -> usize {
        (self.iocb.pos - self.pos) as usize
    }

    /// The rest of the request: where to go on, and the memory for it.
    pub fn rest(&mut self) -> (&mut Iocb, &mut [u8]) {
        let done = self.done();
        (&mut self.iocb, &mut self.buf[done..])
    }

    /// Says how it ended. An error counts only if nothing was read.
    pub fn end(&mut self, result: Result<(), Errno>) {
        self.state = State::Done(result.or_else(|errno| match self.done() {
            0 => Err(errno),
            _ => Ok(()),
        }));
    }

    /// Reads the rest of it, and waits for that.
    fn finish(&mut self) {
        self.iocb.nowait = false;
        let result = self.read();
        self.end(result);
    }

    fn read(&mut self) -> Result<(), Errno> {
        let (mapping, handle) = (self.mapping, self.handle);
        let (iocb, rest) = self.rest();
        let read = mapping.read_on(handle, iocb, &mut IovIter::destination(rest));
        read.map(drop)
    }

    /// The way to its leaf, if it may be a plain hit.
    #[inline(always)]
    fn approach<'g>(&self, file: &OfFile<'g>, rcu: &'g RcuReadGuard) -> Option<Approach<'g>> {
        let len = self.buf.len();
        let plain = matches!(self.state, State::New)
            && self.iocb.is_cached()
            && len.wrapping_sub(1) < LONGEST
            && file.holds(self.pos, len);
        match plain {
            true => file.mapping.index.approach(PageIndex::of(self.pos).0, rcu),
            false => None,
        }
    }

    fn folio_of(&self, entry: Entry) -> &'a Folio {
        self.mapping.mm().folios.of_entry(entry)
    }

    /// The look-up from the leaf on, up to step 4; returns where the bytes are, too.
    #[inline(always)]
    fn find<'g>(&self, leaf: Approach<'g>) -> Option<(Copying<'g>, *const u8)>
    where
        'a: 'g,
    {
        let (entry, slot) = leaf.load_slot()?;
        let lookup = Lookup::of_slot(self.pos, slot, self.folio_of(entry))?;
        let (identity, offset) = (lookup.identity, lookup.identity.offset(self.pos));
        let len = self.buf.len();
        if !lookup.seen.is_in_use() || len > identity.bytes() - offset {
            return None;
        }
        let frame = self.mapping.mm().frames.addr(identity.frame);
        let from = frame.wrapping_add(offset).cast_const();
        let line = from.wrapping_sub(offset % LINE);
        for ahead in (0..offset % LINE + len.min(PREFETCHED)).step_by(LINE) {
            prefetch(line.wrapping_add(ahead));
        }
        Some((lookup.copying(), from))
    }

    /// Copies its cached bytes. Waits for nothing.
    #[cold]
    fn look(&mut self, missing: bool) {
        // One page that is known to be missing is not looked for again.
        let within_page = offset_in_page(self.pos) + self.buf.len() <= PAGE_SIZE;
        let read = match missing && within_page {
            true => Err(Errno::EAGAIN),
            false => self.read(),
        };
        match read {
            Err(Errno::EAGAIN) => self.state = State::Waiting,
            result => self.end(result),
        }
    }

    /// Starts reading its missing pages.
    fn start(&mut self, plug: &mut Plug) {
        let (mapping, handle) = (self.mapping, self.handle);
        let (iocb, rest) = self.rest();
        self.started = mapping.start_missing(handle, iocb, rest.len() as u64, plug);
    }
}

impl fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("file", &self.mapping.name())
            .field("pos", &self.pos)
            .field("len", &self.buf.len())
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl<'a> AsMut<Request<'a>> for Request<'a> {
    fn as_mut(&mut self) -> &mut Request<'a> {
        self
    }
}

/// Reads all requests, each as [`AddressSpace::read`] would by itself, with an end of its own
/// ([`Request::result`]); those that have one already are left alone.
///
/// Blocks for I/O, whose reads are all started before the first is waited for as far as there is memory for
/// it, and for memory of the bound.
pub fn read_batch<'a, R: AsMut<Request<'a>>>(requests: &mut [R]) {
    let mut batch = Batch::new(requests);
    while let Some(request) = batch.next_to_finish() {
        request.as_mut().finish();
    }
}

/// Most pages that are on their way for one batch.
pub(super) fn most_started(mm: &Mm) -> u64 {
    MAX_PAGES.min(mm.frames.capacity() / PART)
}

/// A batch on its way.
#[derive(Debug)]
pub struct Batch<'r, R> {
    requests: &'r mut [R],
    /// Requests before this one were looked at.
    looked: usize,
    /// Requests before this one are done.
    done: usize,
    /// And those from this one on, of those that were looked at.
    end: usize,
    /// Pages that were started for requests that are not done.
    started: u64,
}

impl<'r, 'a, R: AsMut<Request<'a>>> Batch<'r, R> {
    /// A batch of these requests.
    pub fn new(requests: &'r mut [R]) -> Self {
        Self {
            requests,
            looked: 0,
            done: 0,
            end: 0,
            started: 0,
        }
    }

    /// The next request that has to wait. By then all requests that need not wait are done, and the reads of the
    /// others are on their way, or as many as may be at once. The caller waits for it, and says so by
    /// [`Request::end`], before the next call. `None` when all are done.
    ///
    /// Does not block.
    pub fn next_to_finish(&mut self) -> Option<&mut R> {
        while self.looked < self.requests.len() {
            let mm = self.requests[self.looked].as_mut().mapping.mm();
            if self.started <= most_started(mm) {
                self.look();
                continue;
            }
            let request = self.requests[self.done].as_mut();
            if !request.is_done() {
                return self.requests.get_mut(self.done);
            }
            self.started -= std::mem::take(&mut request.started);
            self.done += 1;
        }
        // Reads end about in the order in which they began: a thread that waits for the last is woken once, and not
        // by each of them.
        while self.done < self.end {
            let last = self.end - 1;
            if !self.requests[last].as_mut().is_done() {
                return self.requests.get_mut(last);
            }
            self.end = last;
        }
        None
    }

    /// Takes the next group as far as it goes without waiting.
    fn look(&mut self) {
        let first = self.looked;
        let group = &mut self.requests[first..];
        let len = group.len().min(GROUP);
        let group = &mut group[..len];
        self.looked += len;
        let Read { mut open, missing } = read_hits(group);
        if open == 0 {
            return;
        }
        for at in ones(open) {
            let request = group[at].as_mut();
            request.look(missing >> at & 1 == 1);
            open ^= u32::from(request.is_done()) << at;
        }
        let mut plug = Plug::default();
        for at in ones(open) {
            let request = group[at].as_mut();
            request.start(&mut plug);
            self.started += request.started;
            self.end = first + at + 1;
        }
    }
}

/// The places of the ones, from the lowest on.
fn ones(mut bits: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let at = bits.trailing_zeros();
        bits &= bits.wrapping_sub(1);
        (at < u32::BITS).then_some(at as usize)
    })
}

/// The rest of a group: a bit for each request that is not done, and for each whose page is missing.
struct Read {
    open: u32,
    missing: u32,
}

/// Reads those requests of a group that are plain hits.
fn read_hits<'a, R: AsMut<Request<'a>>>(group: &mut [R]) -> Read {
    const _: () = assert!(GROUP <= u32::BITS as usize);
    let (mut open, mut missing) = (0, 0);
    let rcu = rcu::read_lock();
    let mut leaves = [const { None }; GROUP];
    let mut before = None;
    for (request, leaf) in group.iter_mut().zip(&mut leaves) {
        let request = request.as_mut();
        let file = OfFile::next(before, request.mapping);
        *leaf = request.approach(&file, &rcu);
        before = Some(file);
    }
    for (at, request) in group.iter_mut().enumerate() {
        let Some(leaf) = leaves[at] else { continue };
        // Only to ask for the descriptor: the look-up begins after it.
        match leaf.load_slot() {
            Some((entry, _)) => prefetch(request.as_mut().folio_of(entry)),
            None => missing |= 1 << at,
        }
    }
    let mut found = [const { None }; GROUP];
    for (at, request) in group.iter_mut().enumerate() {
        if let Some(leaf) = leaves[at] {
            found[at] = request.as_mut().find(leaf);
        }
    }
    let mut hits = Hits { of: None, pages: 0 };
    for (at, request) in group.iter_mut().enumerate() {
        let request = request.as_mut();
        let Some((copying, from)) = found[at] else {
            open |= u32::from(!request.is_done()) << at;
            continue;
        };
        let (mapping, len) = (request.mapping, request.buf.len());
        let copied = Iovec::destination(request.buf).copy_from_frame(from);
        // A truncate beside the copy may have zeroed what it cut off.
        if copied.is_ok() && copying.validate() && mapping.left(request.pos, len) == len {
            let last = offset_in_page(request.pos) + len - 1;
            request.iocb.pos += len as u64;
            request.state = State::Done(Ok(()));
            hits.add(mapping, last / PAGE_SIZE + 1);
        } else {
            open |= 1 << at;
        }
    }
    drop(rcu);
    hits.count();
    Read { open, missing }
}

/// The file of requests in a row, and its size before their copies.
#[derive(Clone, Copy)]
struct OfFile<'g> {
    mapping: &'g AddressSpace,
    /// Zero in a forked child, which can read nothing.
    size: u64,
}

impl<'g> OfFile<'g> {
    /// That of a request's file, which may be that of the request before.
    #[inline(always)]
    fn next(before: Option<Self>, mapping: &'g AddressSpace) -> Self {
        match before {
            Some(same) if ptr::eq(same.mapping, mapping) => same,
            _ => Self {
                mapping,
                size: match mapping.mm().check_fork() {
                    Ok(()) => mapping.size(),
                    Err(_) => 0,
                },
            },
        }
    }

    #[inline(always)]
    fn holds(&self, pos: u64, len: usize) -> bool {
        self.size.saturating_sub(pos) >= len as u64
    }
}

/// Hits of requests in a row that are of one file.
struct Hits<'g> {
    of: Option<&'g AddressSpace>,
    pages: usize,
}

impl<'g> Hits<'g> {
    #[inline(always)]
    fn add(&mut self, mapping: &'g AddressSpace, pages: usize) {
        if !self.of.is_some_and(|of| ptr::eq(of, mapping)) {
            self.count();
            *self = Self {
                of: Some(mapping),
                pages: 0,
            };
        }
        self.pages += pages;
    }

    fn count(&self) {
        if let Some(mapping) = self.of {
            mapping.count_hits(self.pages as u64);
        }
    }
}
