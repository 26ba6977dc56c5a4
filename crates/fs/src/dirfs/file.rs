//! A regular file of the source: its descriptors, and the operations behind its address space.
//!
//! # Model
//!
//! Two descriptors are open while the file is in use: a buffered one, and one for direct I/O from
//! the first write on, or the first read of a file of more than a few pages. They are writable from the first handle on that may write.
//!
//! A write leaves the file `unflushed` until a flush succeeded, and only a file without handles,
//! without anything unflushed and without folios that still have to be written loses its
//! descriptors: a descriptor that is closed takes the kernel's report of a failed writeback with
//! it, and another process may move the name away that we would find the file again by. One with handles loses them
//! where the process has hardly any left, see [`shortage`](super::shortage).
//!
//! The bytes of a write reach the source later than the write, and the source stamps them with that later time:
//! see [`times`](super::times).
//!
//! **After a failed flush** the kernel's pages of the file are dropped before they are written to again. Linux keeps
//! a page whose write failed, as clean. ext4 allocates a page's block as unwritten, and forgets to note that it is written if the
//! first write of the page failed: the page is written again without an error, and reads as zeros once the kernel has
//! dropped it. A page that is made anew has no such past.
//!
//! [`state`](super::state) describes the state of a file, and how a change from outside is distinguished from our own.
//!
//! # Locking
//!
//! As [`state`](super::state) says. No lock is held across I/O but `opens`, by callers.

use super::NodeOps;
use super::descriptors::Descriptors;
use super::magic::XFS;
use super::node::DirNode;
use super::stats::count;
use super::sync_calls::SyncCall;
use super::transfer::{self, SourceFile};
use crate::coherence::{Answer, LocalChange};
use foliocache_mm::{
    AddressSpace, AddressSpaceOperations, Extent, IoSegment, PAGE_SIZE, ReadDone, ReadMode, SlabArc,
};
use foliocache_sync::Arc;
use foliocache_sys::fd::{Advice, AsFd};
use foliocache_sys::uring::Engine;
use foliocache_sys::{Errno, fd};
use std::mem;
use std::ops::Range;

/// Whether a range of a file lies in a page.
fn is_one_page(range: &Range<u64>) -> bool {
    let page = |at| at / PAGE_SIZE as u64;
    range.is_empty() || page(range.start) == page(range.end - 1)
}

impl DirNode {
    pub(super) fn source<'a>(&'a self, fds: &'a Arc<Descriptors>) -> SourceFile<'a> {
        let shared = &self.shared;
        SourceFile { shared, fds }
    }

    /// Runs a change of the file's size or allocation, which the source stamps with the right time
    /// by itself.
    fn change_size(
        &self,
        resize: impl FnOnce(&Arc<Descriptors>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let fds = self.descriptors(true)?;
        let file = self.file();
        self.look_for_others();
        let change = file.begin_change(LocalChange::Data);
        let result = resize(&fds);
        file.size.changed();
        let stat = fd::fstat(fds.buffered.as_fd()).ok();
        self.end_change(change, stat.as_ref());
        if let (Ok(()), Some(stat)) = (result, &stat) {
            self.attributes.update(|attributes| {
                attributes.mtime = stat.mtime;
                attributes.ctime = stat.ctime;
            });
        }
        result
    }

    /// Allocates space in the source, where the size stays.
    pub(super) fn allocate(&self, pos: u64, len: u64) -> Result<(), Errno> {
        self.change_size(|fds| fd::allocate(fds.buffered.as_fd(), pos, len))
    }

    /// Whether a range has blocks though the source would not allocate it: XFS wants room for more. A write needs none.
    fn has_place(&self, pos: u64, len: u64) -> bool {
        self.descriptors(true).is_ok_and(|fds| {
            let fd = fds.buffered.as_fd();
            fd::fs_magic(fd) == Ok(XFS) && fd::has_own_blocks(fd, pos..pos + len) == Ok(true)
        })
    }

    /// Makes the attributes and the name durable after the data was.
    pub(super) fn sync_attributes(&self, datasync: bool) -> Result<(), Errno> {
        if let Some(file) = self.regular() {
            let held = file.io.lock().fds.clone();
            let is_durable = || file.attributes.is_durable() && !file.io.lock().overwritten;
            let nothing = || held.is_none() && is_durable();
            if !(datasync || nothing()) {
                let fds = match held.map_or_else(|| self.descriptors(false), Ok) {
                    // A handle that needed none is open, and the mode is another one since.
                    Err(Errno::EACCES) => None,
                    opened => Some(opened?),
                };
                fds.as_ref().map_or(Ok(()), |fds| self.restamp(fds))?;
                let _syncing = file.syncing.lock();
                let calls = &self.shared.sync_calls;
                let fsync = || match &fds {
                    _ if foliocache_sync::planted!(attributes_not_synced) => Ok(()),
                    Some(fds) => calls.make(SyncCall::File, &fds.buffered, self.identity.dev),
                    None => self.sync_file_system(self),
                };
                if mem::take(&mut file.io.lock().overwritten) {
                    file.attributes.changed();
                }
                let synced = file.attributes.sync(fsync);
                synced.inspect_err(|&error| self.told_early(error))?;
            }
        }
        self.sync_name()
    }

    /// Makes data and size durable that no batch has made so.
    ///
    /// Context: `syncing` held.
    fn flush_data(&self) -> Result<(), Errno> {
        let file = self.file();
        let (data, size) = (file.data.begin(), file.size.begin());
        if data.is_none() && size.is_none() {
            return Ok(());
        }
        count(&self.shared.counters.flushes);
        let fds = self.descriptors(false)?;
        let grew = mem::take(&mut file.io.lock().grew);
        let calls = &self.shared.sync_calls;
        let flushed = calls.make(SyncCall::Data, &fds.buffered, self.identity.dev);
        let told_before = file.io.lock().error.take();
        let flushed = flushed.and(told_before.map_or(Ok(()), Err));
        flushed.inspect_err(|_| file.io.lock().grew |= grew)?;
        let data = match foliocache_sync::planted!(write_beside_a_sync_durable) {
            true => file.data.begin().or(data),
            false => data,
        };
        if let Some(begun) = data {
            file.data.end(begun);
        }
        match size {
            Some(begun) => file.size.end(begun),
            None => file.io.lock().overwritten |= !grew,
        }
        if let Some(mapping) = file.mapping() {
            file.io.lock().reached = mapping.size();
        }
        Ok(())
    }

    /// Has the kernel read the last page of the file if that is not full: the kernel needs it when the end of the page is
    /// written. Does not wait.
    pub(super) fn read_tail(&self, mapping: &AddressSpace) {
        let (size, page) = (mapping.size(), PAGE_SIZE as u64);
        if let Some(fd) = self.file().any_fd().filter(|_| size % page > 0) {
            // A hint: without it the page is read when it is needed.
            let _ = fd::fadvise(fd.as_fd(), size - size % page, page, Advice::WillNeed);
        }
    }

    /// The engine, if reads of the file can go by it. The first read opens the descriptors, which may
    /// block, so it cannot.
    fn direct_engine(&self) -> Option<&Engine> {
        let direct = self.file().io.lock().fds.as_ref()?.has_direct();
        self.shared.engine.as_deref().filter(|_| direct)
    }
}

impl NodeOps {
    /// Makes the address space of a file that has none, see [`InodeOperations::new_mapping`].
    ///
    /// [`InodeOperations::new_mapping`]: foliocache_vfs::InodeOperations::new_mapping
    ///
    /// # Errors
    /// `ENOMEM` if the bound has no room; those of [`DirNode::path_fd`] and `fstat(2)`.
    pub(super) fn make_mapping(&self) -> Result<SlabArc<AddressSpace>, Errno> {
        let file = self.file();
        let charge = match file.charge.get() {
            Some(charge) => charge,
            None => {
                let charge = self.shared.bdi.charge_mapping()?;
                file.charge.get_or_init(|| charge)
            }
        };
        let _opens = file.opens.lock();
        loop {
            let (doubts, until) = (self.attributes.doubts(), self.shared.believable_until());
            let look = file.look();
            let made = file.unchanged_since_made();
            let stat = made.map_or_else(|| self.stat(), Ok)?;
            let mapping = charge.make(Arc::new(self.clone()), stat.size);
            let take_over = |attributes: &mut _| {
                self.refresh(attributes, &stat, Some(look));
                file.mapping.get_or_init(|| SlabArc::downgrade(&mapping));
            };
            let is_latest = match made {
                // Another process may have changed it since.
                Some(_) => {
                    self.attributes.update(take_over);
                    true
                }
                None => self.attributes.believe(doubts, until, take_over),
            };
            if is_latest {
                let answer = Answer::new(look, None, &stat);
                file.coherence(|machine| machine.took_over(&answer));
                return Ok(mapping);
            }
        }
    }
}

impl AddressSpaceOperations for NodeOps {
    fn read_folios(&self, pos: u64, segments: &[IoSegment]) -> Result<usize, Errno> {
        let fds = self.descriptors(false)?;
        let source = self.source(&fds);
        let size = self.file().mapping().map(|mapping| mapping.size());
        let read = size.and_then(|size| source.read_few_pages(pos, segments, size));
        read.map_or_else(|| source.read(pos, segments), Ok)
    }

    fn start_read(&self, pos: u64, segments: &[IoSegment<'static>], done: ReadDone) {
        match self.descriptors(false) {
            Ok(fds) => self.source(&fds).start_read(pos, segments, done),
            Err(error) => done(Err(error)),
        }
    }

    fn begin_reads(&self) {
        if let Some(engine) = &self.shared.engine {
            engine.wake();
        }
    }

    fn read_mode(&self) -> ReadMode {
        match self.direct_engine() {
            Some(engine) if engine.is_synchronous() => ReadMode::Copying,
            Some(engine) if engine.failed().is_none() => ReadMode::Background,
            _ => ReadMode::Waiting,
        }
    }

    fn writepages(&self, pos: u64, segments: &[IoSegment]) -> Result<usize, Errno> {
        match self.descriptors(true)?.appends {
            true => self.append_range(pos, segments, None),
            false => self.write_range(pos, segments),
        }
    }

    fn write_extents(&self, extents: &mut [Extent<'_>]) {
        if !self.descriptors(true).is_ok_and(|fds| fds.appends) {
            return self.write_ranges(extents);
        }
        for extent in extents {
            extent.written = Some(self.append_range(extent.pos, extent.segments(), None));
        }
    }

    fn appends_only(&self) -> bool {
        self.file().appends_only()
    }

    fn append_pages(
        &self,
        pos: u64,
        segments: &[IoSegment],
        stored: Option<u64>,
    ) -> Result<usize, Errno> {
        self.append_range(pos, segments, stored)
    }

    fn flush(&self) -> Result<(), Errno> {
        let file = self.file();
        let _syncing = file.syncing.lock();
        // Before anything is dirty again.
        let failed = |_: &Errno| file.io.lock().stale = true;
        let (batched, cached) = {
            let mut io = file.io.lock();
            (std::mem::take(&mut io.batched), io.cached.clone())
        };
        if let Some(batches) = &self.shared.batches {
            for batched in batched {
                if batched.small {
                    let settled = batches.settle(&self.shared, &batched.batch);
                    settled.inspect_err(failed)?;
                } else if !batched.batch.has_succeeded() {
                    // The file's own descriptor knows how it went, and of what came later.
                    break;
                }
                file.data.end(batched.data);
                let size = batched.size.into_iter();
                size.for_each(|size| file.size.end(size));
            }
        }
        self.flush_data().inspect_err(failed)?;
        let mut io = file.io.lock();
        // Data that was written beside the flush is not in the source yet, and cannot be dropped.
        // Nor is the page at the end of a log, which the next record would read back.
        let writing = io.writing;
        let flushed = io
            .cached
            .take_if(|range| Some(&*range) == cached.as_ref() && !(writing && is_one_page(range)));
        if let Some((cached, fds)) = flushed.zip(io.fds.clone()) {
            drop(io);
            transfer::drop_behind(fds.buffered.as_fd(), cached);
        }
        Ok(())
    }

    fn flush_together(&self) {
        if let Some(batches) = &self.shared.batches {
            batches.settle_open(&self.shared);
        }
    }

    /// Linux sets the size before it gives blocks back, or before it changes its journal. If that fails, the file has its new size
    /// although the call failed: then it is the next flush that fails.
    fn truncate(&self, size: u64) -> Result<(), Errno> {
        self.change_size(|fds| {
            let fd = fds.buffered.as_fd();
            let before = fd::fstat(fd)?.size;
            if fds.appends && before == size {
                return Ok(());
            }
            let done = fd::ftruncate(fd, size);
            let is_done = || before != size && fd::fstat(fd).is_ok_and(|stat| stat.size == size);
            if done.is_err() && is_done() {
                self.file().io.lock().error = done.err();
                return Ok(());
            }
            done
        })
    }

    fn punch_hole(&self, pos: u64, len: u64) -> Result<(), Errno> {
        self.change_size(|fds| match fd::punch_hole(fds.buffered.as_fd(), pos, len) {
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => {
                let size = fd::fstat(fds.buffered.as_fd())?.size;
                self.source(fds)
                    .write_zeros(pos..(pos + len).min(size).max(pos))
            }
            done => done,
        })
    }

    /// Times can wait for the last close of a writer, or an fsync, where they are not compared: in a directory that is ours
    /// alone, and of a file that is marked.
    fn write_inode(&self) -> Result<(), Errno> {
        let (fds, writing) = {
            let io = self.file().io.lock();
            (io.fds.clone(), io.writing)
        };
        let waits = |fds: &Arc<_>| self.shared.options.exclusive || self.is_marked_or_marks(fds);
        if let Some(fds) = fds.filter(|fds| !(writing && waits(fds))) {
            // Data becomes durable without its time. That is set again with the attributes, which tells of the error.
            let _ = self.restamp(&fds);
        }
        Ok(())
    }

    /// Not where nothing is watched: a network file system may take long to answer, or for ever.
    fn is_shared(&self) -> bool {
        self.shared.watches.is_some() && !self.shared.options.exclusive
    }

    fn may_have_changed(&self) -> bool {
        DirNode::may_have_changed(self)
    }

    fn look_before_write(&self, nowait: bool) -> bool {
        if !nowait {
            self.open_before_write();
        }
        DirNode::look_before_write(self, nowait)
    }

    fn look_before_writeback(&self) -> bool {
        DirNode::look_before_writeback(self)
    }

    fn keep_readable(&self) -> bool {
        self.keep_readable_unless_busy()
    }

    fn free_space(&self) -> Option<u64> {
        let stat = fd::fstatvfs(self.shared.root.as_fd()).ok()?;
        // Some sources know of no blocks at all.
        (stat.blocks > 0).then(|| stat.blocks_available * u64::from(stat.block_size))
    }

    fn allocate_space(&self, pos: u64, len: u64) -> Result<(), Errno> {
        match self.allocate(pos, len) {
            Err(Errno::ENOSPC | Errno::EDQUOT) if self.has_place(pos, len) => Ok(()),
            done => done,
        }
    }

    fn describe(&self) -> String {
        self.display_path()
    }
}
