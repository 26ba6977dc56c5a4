//! Writing ranges of a file to the source.
//!
//! # Locking
//!
//! As [`state`](super::state) says; the file's `wb_lock` is held by the caller.

use super::NodeOps;
use super::batched::Batched;
use super::stats::count;
use super::transfer;
use crate::coherence::{LocalChange, Verdict};
use foliocache_mm::{Extent, IoSegment, PAGE_SIZE};
use foliocache_sync::Arc;
use foliocache_sys::fd::AsFd;
use foliocache_sys::{Errno, fd};

impl NodeOps {
    /// Writes `segments` at byte `pos`, as [`AddressSpaceOperations::writepages`] does.
    ///
    /// [`AddressSpaceOperations::writepages`]: foliocache_mm::AddressSpaceOperations::writepages
    pub(super) fn write_range(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        let mut extents = [Extent::new(pos, segments.to_vec())];
        self.write_ranges(&mut extents);
        extents[0].written.unwrap_or(Err(Errno::EIO))
    }

    /// Writes `extents`, as [`AddressSpaceOperations::write_extents`] does: one change of the file, which is looked at once.
    ///
    /// [`AddressSpaceOperations::write_extents`]: foliocache_mm::AddressSpaceOperations::write_extents
    pub(super) fn write_ranges(&self, extents: &mut [Extent<'_>]) {
        if let Err(error) = self.try_write_ranges(extents) {
            let left = extents.iter_mut().filter(|extent| extent.written.is_none());
            left.for_each(|extent| extent.written = Some(Err(error)));
        }
    }

    /// # Errors
    /// Nothing was written, for the reason of all extents that do not tell their own.
    fn try_write_ranges(&self, extents: &mut [Extent<'_>]) -> Result<(), Errno> {
        let fds = self.descriptors(true)?;
        let file = self.file();
        if file.io.lock().stale {
            self.drop_stale(&fds);
        }
        let end = extents.last().map_or(0, Extent::end);
        let (room, cached) = {
            let mut io = file.io.lock();
            io.fresh = None;
            io.coherence.writes();
            io.grew |= end > io.reached;
            io.reached = io.reached.max(end);
            (io.room.take(), io.cached.clone())
        };
        let small = room.is_some();
        let writing = self.shared.batches.as_ref().and_then(|batches| {
            (batches.dev == self.identity.dev)
                .then(|| batches.enter(room, Arc::downgrade(&fds.buffered)))
        });
        let change = file.begin_change(LocalChange::Data);
        // Before the write: what it may have done is not durable, however it ends.
        file.data.changed();
        let written = match small {
            true => self.source(&fds).write_to_kernel_cache(extents),
            false => {
                let mut earlier = Ok(());
                let source = self.source(&fds);
                let written = source.write_extents(extents, cached, &mut earlier);
                if let Err(error) = earlier {
                    self.told_early(error);
                }
                written
            }
        };
        let data = file.data.changed();
        file.times.changed();
        // The look lets later changes by others show. A small file is looked at below. Of a marked file the kernel reports them.
        let looks = !small && change.own.at_its_end() == Verdict::Ask;
        let stat = looks.then(|| fd::fstat(fds.buffered.as_fd()).ok());
        self.end_change(change, stat.flatten().as_ref());
        if !extents
            .iter()
            .any(|extent| matches!(extent.written, Some(Ok(_))))
        {
            return Ok(());
        }
        if small {
            count(&self.shared.counters.batched_files);
            // Nothing may be left to do for the file. If it fails it is tried again before a flush.
            let _ = self.restamp(&fds);
        }
        let mut io = file.io.lock();
        if let Some(writing) = &writing {
            let batch = writing.batch.clone();
            io.batched.retain(|old| !old.is_covered_by(&batch));
            // Each file that is not flushed has one, mostly no more: room for four would be a hundred bytes.
            io.batched.reserve_exact(1);
            io.batched.push(Batched {
                batch,
                data,
                size: file.size.begin(),
                small,
            });
        }
        if written.dropped {
            io.cached = None;
        }
        if let Some(range) = written.buffered {
            transfer::extend(&mut io.cached, range);
        }
        drop(io);
        drop(writing);
        for extent in extents {
            if let Some(Ok(done)) = extent.written
                && done < extent.bytes().min(PAGE_SIZE)
            {
                // The caller takes less than a page for nothing. Going on from there tells why.
                let from = extent.pos + done as u64;
                let rest = transfer::part(extent.segments(), done..extent.bytes());
                let more = fd::write_segments(fds.buffered.as_fd(), from, &rest);
                extent.written = Some(more.map(|more| {
                    file.data.changed();
                    transfer::extend(&mut file.io.lock().cached, from..from + more as u64);
                    done + more
                }));
            }
        }
        Ok(())
    }
}
