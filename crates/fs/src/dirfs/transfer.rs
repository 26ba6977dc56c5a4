//! Moving bytes between folios and the source: direct or buffered, by `preadv` or in the background.
//!
//! # Model
//!
//! A write is cut at block boundaries; `block` is what direct I/O asks for, a page at least:
//!
//! ```text
//!  |·····|=========================|····|
//!   head          middle            tail
//!  buffered       direct          buffered
//! ```
//!
//! Head and tail are shorter than a block. Folios begin at page boundaries, so there is a head
//! only where a block is larger than a page, and a tail only at the end of the file (the same
//! exception aside). A tail is written buffered because a padded block would need an `ftruncate`
//! afterwards, and a kill in between leaves the padding in the file. Data that was written buffered
//! leaves the kernel's cache after the next flush, or before a direct write goes over it.
//!
//! A file of a few pages is read with one call through its buffered descriptor, which takes the pages that it
//! brought into the kernel's cache out again: opening a second descriptor for direct I/O would take longer than
//! the read. Pages that others had there stay.
//!
//! A read in the background goes to the engine of the file system if it can be direct, and is done
//! here and now if not, or if the caller had better do it (see
//! [`Engine::is_synchronous`](foliocache_sys::uring::Engine::is_synchronous)). The part that the engine or
//! direct I/O refuses is read again the blocking way, by the thread that learns of it: once a file
//! where direct I/O is refused, and always where rings are, since the engine fails on the spot then.
//!
//! Extents that lie apart are written many at a time, if they are direct as a whole.
//!
//! # Invariants
//!
//! 1. Pieces of an extent are written in file order and the first that falls short ends the write, so the count
//!    returned is a prefix.

use super::Shared;
use super::descriptors::{Descriptors, Direct};
use super::stats::{Fallback, count};
use foliocache_mm::{PAGE_SIZE, ReadDone};
use foliocache_sync::Arc;
use foliocache_sync::atomic::Ordering;
use foliocache_sys::fd::{self, Advice, BorrowedFd, Extent, IoSegment};
use foliocache_sys::uring::Engine;
use foliocache_sys::{Errno, fd::AsFd};
use smallvec::SmallVec;
use std::ops::Range;

/// How bytes go between memory and the source.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Path {
    Direct,
    Buffered,
}

/// The effect of a write on the kernel's cache.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// Bytes written, a prefix of what was asked.
    pub(super) bytes: usize,
    /// The pages that an earlier write had left in the kernel's cache were taken out.
    pub(super) dropped: bool,
    /// The range of the file that went through the kernel's cache, with what lies between two.
    pub(super) buffered: Option<Range<u64>>,
}

/// The range that covers `covered` and `range`.
pub(super) fn extend(covered: &mut Option<Range<u64>>, range: Range<u64>) {
    *covered = Some(match covered.take() {
        Some(old) => old.start.min(range.start)..old.end.max(range.end),
        None => range,
    });
}

pub(super) fn total(segments: &[IoSegment<'_>]) -> usize {
    segments.iter().map(IoSegment::len).sum()
}

/// The part of `segments` that holds the bytes of `range`, counted from their beginning.
pub(super) fn part<'a>(segments: &[IoSegment<'a>], range: Range<usize>) -> Vec<IoSegment<'a>> {
    let mut parts = Vec::new();
    let mut at = 0;
    for segment in segments {
        let (from, to) = (range.start.max(at), range.end.min(at + segment.len()));
        if from < to {
            parts.push(segment.sub(from - at, to - from));
        }
        at += segment.len();
    }
    parts
}

/// The longest file that is read without a descriptor for direct I/O.
const FEW_PAGES: u64 = 4 * PAGE_SIZE as u64;

/// The file in the source, through its descriptors.
#[derive(Clone, Copy)]
pub(super) struct SourceFile<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) fds: &'a Arc<Descriptors>,
}

impl<'a> SourceFile<'a> {
    /// Reads from a file of `size` bytes, if it is short and has no descriptor for direct I/O; the bytes read, all
    /// that were asked for up to its end. On `None` call [`SourceFile::read`], which also returns errors.
    pub(super) fn read_few_pages(
        &self,
        pos: u64,
        segments: &[IoSegment<'_>],
        size: u64,
    ) -> Option<usize> {
        // Relaxed: see `Shared::dont_cache_refused`.
        let refused = || self.shared.dont_cache_refused.load(Ordering::Relaxed);
        if size > FEW_PAGES || !self.shared.options.direct || self.fds.has_direct() || refused() {
            return None;
        }
        match fd::read_segments_dontcache(self.fds.buffered.as_fd(), pos, segments) {
            Ok(n) if n == total(segments) || pos + n as u64 >= size => {
                count(&self.shared.counters.buffered_reads);
                Some(n)
            }
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => {
                // Relaxed: as above.
                self.shared
                    .dont_cache_refused
                    .store(true, Ordering::Relaxed);
                None
            }
            Ok(_) | Err(_) => None,
        }
    }

    /// Reads into `segments` from byte `pos` on.
    pub(super) fn read(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        let len = total(segments);
        if len == 0 {
            return Ok(0);
        }
        if let Some(direct) = self.direct_for(pos, len) {
            let fd = direct.fd.as_fd();
            let read = || fd::read_segments(fd, pos, segments);
            let done = match &self.shared.engine {
                Some(engine) => engine.run_blocking(read),
                None => read(),
            };
            match done {
                Err(Errno::EINVAL) => self.fds.give_up_direct(self.shared, Errno::EINVAL),
                done => {
                    count(&self.shared.counters.direct_reads);
                    return done;
                }
            }
        }
        count(&self.shared.counters.buffered_reads);
        let done = fd::read_segments(self.fds.buffered.as_fd(), pos, segments)?;
        drop_behind(self.fds.buffered.as_fd(), pos..pos + len as u64);
        Ok(done)
    }

    /// The descriptor for a direct read of a range, if it can be one.
    fn direct_for(&self, pos: u64, len: usize) -> Option<&'a Direct> {
        self.fds.direct(self.shared).filter(|direct| {
            len > 0 && pos.is_multiple_of(direct.block as u64) && len.is_multiple_of(direct.block)
        })
    }

    /// Starts reading into `segments` from byte `pos` on. The caller wakes the engine. `done` gets the result that [`SourceFile::read`]
    /// would return.
    pub(super) fn start_read(&self, pos: u64, segments: &[IoSegment<'static>], done: ReadDone) {
        let engine = self.shared.engine.as_ref();
        let direct = self.direct_for(pos, total(segments));
        let (Some(engine), Some(direct)) =
            (engine.filter(|engine| !engine.is_synchronous()), direct)
        else {
            return done(self.read(pos, segments));
        };
        let fd = direct.fd.clone();
        // For the fallback, which reads into the same memory.
        let memory: SmallVec<[_; 1]> = segments.into();
        let ended = {
            let (shared, fds) = (self.shared.clone(), self.fds.clone());
            Box::new(move |result| {
                let source = SourceFile {
                    shared: &shared,
                    fds: &fds,
                };
                let result = source.finish_read(pos, &memory, result);
                // Before the caller is told, because it may take the file system down.
                drop((shared, fds));
                done(result);
            })
        };
        engine.submit(fd, pos, segments, ended);
    }

    /// Ends a read in the background that has `result`; reads again if the ring or direct I/O refused it.
    pub(super) fn finish_read(
        &self,
        pos: u64,
        segments: &[IoSegment<'_>],
        result: Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        match result {
            Err(Errno::EINVAL) => self.fds.give_up_direct(self.shared, Errno::EINVAL),
            Err(reason)
                if let Some(engine) = &self.shared.engine
                    && engine.failed().is_some() =>
            {
                self.shared.counters.fell_back(Fallback::IoUring, reason);
            }
            // The ring could not take it; the way without a ring can.
            Err(Errno::ENOSYS | Errno::EPERM | Errno::ENOMEM | Errno::EBUSY) => {}
            done => {
                count(&self.shared.counters.direct_reads);
                count(&self.shared.counters.background_reads);
                return done;
            }
        }
        self.read(pos, segments)
    }

    /// Writes `extents`, in ascending order, and tells in each what became of it; many at a time where they can be direct and the
    /// device does not work in the thread that asks it. `cached` is the range of the file that an earlier write left
    /// in the kernel's cache. `earlier` becomes the error of such a write: the kernel tells it here, and no flush later.
    pub(super) fn write_extents(
        &self,
        extents: &mut [Extent<'_>],
        mut cached: Option<Range<u64>>,
        earlier: &mut Result<(), Errno>,
    ) -> Written {
        let mut all = Written::default();
        let mut write_one = |extent: &mut Extent<'_>, cached: &mut Option<Range<u64>>| {
            let (pos, segments) = (extent.pos, extent.segments());
            let written = self.write(pos, segments, cached.clone(), earlier);
            extent.written = Some(written.map(|written| {
                if written.dropped {
                    (all.dropped, *cached) = (true, None);
                }
                if let Some(range) = written.buffered {
                    extend(&mut all.buffered, range);
                }
                written.bytes
            }));
        };
        let engine = self.shared.engine.as_deref();
        let mut nr = 0;
        // The first writes tell what the device is like.
        while nr < extents.len()
            && (nr + 1 == extents.len() || engine.is_none_or(|engine| engine.is_synchronous()))
        {
            write_one(&mut extents[nr], &mut cached);
            nr += 1;
        }
        let rest = &mut extents[nr..];
        if let Some(engine) = engine {
            self.write_together(engine, rest, cached.as_ref());
        }
        for extent in rest.iter_mut().filter(|extent| extent.written.is_none()) {
            write_one(extent, &mut cached);
        }
        all
    }

    /// Writes those of `extents` through a ring that can be direct as a whole and have nothing in the kernel's cache, and tells in each what became
    /// of it. The others are to be written one by one, and so is what the ring could not take.
    fn write_together(
        &self,
        engine: &Engine,
        extents: &mut [Extent<'_>],
        cached: Option<&Range<u64>>,
    ) {
        // The descriptor for direct I/O may not be open yet, and is not opened for parts of pages.
        let has_page = |extent: &Extent<'_>| is_whole_page_in(extent.pos..extent.end());
        let wanted = extents.iter().any(has_page);
        let Some(direct) = wanted.then(|| self.fds.direct(self.shared)).flatten() else {
            return;
        };
        let block = direct.block as u64;
        let is_fit = |extent: &&mut Extent<'_>| {
            let overlaps =
                |cached: &Range<u64>| cached.start < extent.end() && extent.pos < cached.end;
            let is_direct = extent.pos.is_multiple_of(block) && extent.end().is_multiple_of(block);
            is_direct && !cached.is_some_and(overlaps)
        };
        let mut together: Vec<_> = extents.iter_mut().filter(is_fit).collect();
        let _ = engine.write_all(direct.fd.as_fd(), &mut together);
        for extent in together {
            match extent.written {
                Some(Err(Errno::EINVAL)) => {
                    self.fds.give_up_direct(self.shared, Errno::EINVAL);
                    extent.written = None;
                }
                Some(_) => count(&self.shared.counters.direct_writes),
                None => {}
            }
        }
    }

    /// As [`SourceFile::write_extents`], one extent.
    fn write(
        &self,
        pos: u64,
        segments: &[IoSegment<'_>],
        cached: Option<Range<u64>>,
        earlier: &mut Result<(), Errno>,
    ) -> Result<Written, Errno> {
        let end = pos + total(segments) as u64;
        let direct = is_whole_page_in(pos..end).then(|| self.fds.direct(self.shared));
        let middle = match direct.flatten() {
            Some(direct) => {
                let block = direct.block as u64;
                let from = pos.next_multiple_of(block).min(end);
                from..(end - end % block).max(from)
            }
            None => end..end,
        };
        let mut written = Written::default();
        if let Some(cached) = cached
            && cached.start < middle.end
            && middle.start < cached.end
        {
            // Before the direct write, not after: the kernel would write the old bytes over the new.
            let fd = self.fds.buffered.as_fd();
            let len = cached.end - cached.start;
            *earlier = fd::sync_file_range(fd, cached.start, len, fd::SyncRange::Wait);
            (*earlier)?;
            drop_behind(fd, cached);
            written.dropped = true;
        }
        let pieces = [
            (Path::Buffered, pos..middle.start),
            (Path::Direct, middle.clone()),
            (Path::Buffered, middle.end..end),
        ];
        for (path, range) in pieces {
            if range.is_empty() {
                continue;
            }
            let segments = part(
                segments,
                (range.start - pos) as usize..(range.end - pos) as usize,
            );
            let (path, result) = self.write_piece(path, range.start, &segments);
            if path == Path::Buffered && result.is_ok() {
                extend(&mut written.buffered, range.clone());
            }
            match result {
                Ok(n) => {
                    written.bytes += n;
                    if (n as u64) < range.end - range.start {
                        break;
                    }
                }
                Err(error) if written.bytes == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(written)
    }

    /// Writes `extents` to the kernel's cache, and leaves it to the kernel when they go further.
    pub(super) fn write_to_kernel_cache(&self, extents: &mut [Extent<'_>]) -> Written {
        let mut all = Written::default();
        for extent in extents {
            count(&self.shared.counters.buffered_writes);
            let (fd, pos) = (self.fds.buffered.as_fd(), extent.pos);
            let written = fd::write_segments(fd, pos, extent.segments());
            if let Ok(bytes) = written {
                extend(&mut all.buffered, pos..pos + bytes as u64);
            }
            extent.written = Some(written);
        }
        all
    }

    /// Writes one piece; a direct one that is refused goes buffered.
    fn write_piece(
        &self,
        path: Path,
        pos: u64,
        segments: &[IoSegment<'_>],
    ) -> (Path, Result<usize, Errno>) {
        if path == Path::Direct
            && let Some(direct) = self.fds.direct(self.shared)
        {
            let fd = direct.fd.as_fd();
            let write = || fd::write_segments(fd, pos, segments);
            let done = match &self.shared.engine {
                Some(engine) => engine.run_blocking(write),
                None => write(),
            };
            match done {
                Err(Errno::EINVAL) => self.fds.give_up_direct(self.shared, Errno::EINVAL),
                done => {
                    count(&self.shared.counters.direct_writes);
                    return (Path::Direct, done);
                }
            }
        }
        count(&self.shared.counters.buffered_writes);
        let done = fd::write_segments(self.fds.buffered.as_fd(), pos, segments);
        if let Ok(n) = done
            && n > PAGE_SIZE
        {
            // Starts the kernel's own writeback now, so that the flush finds little to do. An error is that of finding a place
            // for the data, which the kernel may have dropped: no flush reports it.
            match fd::sync_file_range(
                self.fds.buffered.as_fd(),
                pos,
                n as u64,
                fd::SyncRange::Start,
            ) {
                Ok(()) | Err(Errno::ENOSYS | Errno::EPERM) => {}
                Err(error) => return (Path::Buffered, Err(error)),
            }
        }
        (Path::Buffered, done)
    }

    /// Makes a range read as zeros by writing them, for a source that punches no holes.
    pub(super) fn write_zeros(&self, range: Range<u64>) -> Result<(), Errno> {
        self.shared
            .counters
            .fell_back(Fallback::PunchHole, Errno::EOPNOTSUPP);
        let zeros = [0; 64 << 10];
        let mut at = range.start;
        while at < range.end {
            let len = (range.end - at).min(zeros.len() as u64);
            fd::pwrite(self.fds.buffered.as_fd(), at, &zeros[..len as usize])?;
            at += len;
        }
        Ok(())
    }
}

/// Whether something of a range may go by the descriptor for direct I/O.
fn is_whole_page_in(range: Range<u64>) -> bool {
    let page = PAGE_SIZE as u64;
    range.start.next_multiple_of(page) + page <= range.end
}

/// Takes the clean pages of a range out of the kernel's cache; dirty ones stay.
pub(super) fn drop_behind(fd: BorrowedFd<'_>, range: Range<u64>) {
    let page = PAGE_SIZE as u64;
    let from = range.start - range.start % page;
    let to = range.end.next_multiple_of(page);
    // A hint: what is not dropped costs the kernel memory that it can take back.
    let _ = fd::fadvise(fd, from, to - from, Advice::DontNeed);
}
