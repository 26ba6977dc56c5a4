//! Attributes of the source's files: reading them and changing them.
//!
//! # Model
//!
//! Owner, mode and link count are always the source's. Size, `mtime` and `ctime` of a regular file
//! are ours until another process changes the file, because data and times reach the source
//! later than the caller wrote them. Of a file that was never opened they are the source's, too.

use super::file_locks::Locks;
use super::idle::Closing;
use super::node::DirNode;
use super::{NodeOps, written};
use crate::coherence::{Cached, LocalChange, Verdict};
use foliocache_mm::{AddressSpace, PAGE_SIZE, SlabArc};
use foliocache_sys::Errno;
use foliocache_sys::fd::{self, AsFd, BorrowedFd, SetTime};
use foliocache_vfs::{
    Attr, Attributes, FallocateMode, FileKind, FileLocks, Inode, InodeOperations, OpContext,
    OpenFlags, PERMISSION_BITS, SeekSparse, SetAttr, written_mode,
};
use std::ffi::{OsStr, OsString};

impl DirNode {
    /// Runs a change of the node's attributes or names in the source. The change of the source's times that it causes does not
    /// count as a change from outside, and `ctime` follows it.
    pub(super) fn own_change<R>(
        &self,
        fd: BorrowedFd<'_>,
        change: impl FnOnce() -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let changed = self.change_and_look(fd, LocalChange::Attributes, change);
        changed.map(|(result, _)| result)
    }

    /// As [`DirNode::own_change`], also for a change of times. Also returns the attributes of a regular file after the
    /// change, if the source told them.
    fn change_and_look<R>(
        &self,
        fd: BorrowedFd<'_>,
        what: LocalChange,
        change: impl FnOnce() -> Result<R, Errno>,
    ) -> Result<(R, Option<Attributes>), Errno> {
        let Some(file) = self.regular() else {
            let result = change();
            self.attributes.doubt();
            return Ok((result?, None));
        };
        if what == LocalChange::Times {
            self.look_for_others();
        }
        let own = file.begin_change(what);
        let result = change();
        let stat = fd::fstat(fd).ok();
        let look = self.end_change(own, stat.as_ref());
        let result = result?;
        let told = stat.map(|stat| {
            file.attributes.changed();
            self.attributes.update(|attributes| {
                self.refresh(attributes, &stat, Some(look));
                attributes.ctime = stat.ctime;
                *attributes
            })
        });
        if !file.holds(look) {
            // The look of another change may have been later, and its answer noted before.
            self.attributes.doubt();
        }
        Ok((result, told))
    }

    /// The attributes to show: the source's as they were seen last, and what we know better.
    fn show(&self, inode: &Inode) -> Attr {
        self.show_told(inode, &self.attributes.get())
    }

    /// As [`DirNode::show`], with what the source has just told.
    fn show_told(&self, inode: &Inode, attributes: &Attributes) -> Attr {
        let mut attr = attributes.of(inode.ino(), self.kind);
        if let Some(mapping) = inode.mapping() {
            attr.size = mapping.size();
            if mapping.has_pages_to_write() {
                // Data without blocks would look like a hole to programs that copy sparse files.
                let stats = mapping.stats();
                let coming = (stats.dirty_pages + stats.writeback_pages + stats.unstable_pages)
                    * (PAGE_SIZE as u64 / 512);
                attr.blocks = attr
                    .blocks
                    .max(attr.size.div_ceil(512).min(attr.blocks + coming));
            }
        }
        attr
    }

    /// Gives up the pages of a file without a name, written or not; does nothing to others. It is called when the inode has no
    /// holder left: a caller that looked the file up before its name was removed may still open it.
    pub(super) fn discard_unnamed(&self) {
        if let Some(file) = self.regular().filter(|_| self.is_unlinked()) {
            let opens = file.opens.lock();
            if opens.handles == 0 {
                file.discard(true);
            }
        }
    }

    pub(super) fn setattr(
        &self,
        ctx: &OpContext,
        inode: &Inode,
        set: &SetAttr,
    ) -> Result<Attr, Errno> {
        if let Some(size) = set.size {
            let mapping = match self.kind {
                FileKind::Regular => inode.open_mapping()?,
                FileKind::Directory => return Err(Errno::EISDIR),
                _ => return Err(Errno::EINVAL),
            };
            inode.remove_privileges(ctx)?;
            let node = NodeOps::of(inode)?;
            let cut = {
                // Without a handle no other call closes the descriptors that this needs.
                let _closing = Closing(&node);
                let _opens = self.file().opens.lock();
                self.attributes.unsettle();
                mapping.truncate(size)
            };
            self.shared.limit_idle();
            cut?;
        }
        if written::gives_privileges(set) {
            written::write_before_privileges(inode)?;
        }
        let fd = self.path_fd()?;
        let fd = fd.as_fd();
        let mut told = None;
        if set.uid.is_some() || set.gid.is_some() {
            let chown = || fd::fchown(fd, set.uid, set.gid);
            ((), told) = self.change_and_look(fd, LocalChange::Attributes, chown)?;
        }
        if let Some(mode) = set.mode {
            let chmod = || fd::fchmod(fd, mode & PERMISSION_BITS);
            ((), told) = self.change_and_look(fd, LocalChange::Attributes, chmod)?;
        }
        if set.atime.is_some() || set.mtime.is_some() {
            // A write-back beside it does not set an older time.
            let _stamping = self.regular().map(|file| file.stamping.lock());
            let utimens = || fd::futimens(fd, set.atime, set.mtime);
            ((), told) = self.change_and_look(fd, LocalChange::Times, utimens)?;
            if let Some((mtime, file)) = set.mtime.zip(self.regular()) {
                file.coherence(|machine| machine.stamped_by_us());
                let mtime = match mtime {
                    SetTime::At(time) if i32::try_from(time.sec).is_ok() => time,
                    // The source has taken its own clock, which is finer than ours, or the nearest time that it has.
                    _ => fd::fstat(fd)?.mtime,
                };
                // Data that is still dirty goes out later and is stamped with this again. Where there can be none the time is
                // the source's.
                let stamp = |attributes: &mut Attributes| {
                    if file.has_mapping() {
                        attributes.mtime = mtime;
                    }
                };
                self.attributes.update(stamp);
                told.as_mut().map(stamp);
            }
        }
        let is_known = || {
            let cached = inode.mapping().map(|mapping| Cached {
                size: mapping.size(),
                dirty: mapping.is_dirty(),
            });
            self.regular().is_some_and(|file| {
                let io = file.io.lock();
                io.coherence.after_change(cached, io.writing) != Verdict::Ask
            })
        };
        match told.filter(|_| is_known()) {
            Some(told) => Ok(self.show_told(inode, &told)),
            None => self.getattr(inode),
        }
    }
}

impl InodeOperations for DirNode {
    fn getattr(&self, inode: &Inode) -> Result<Attr, Errno> {
        self.shared.bdi.mm().check_fork()?;
        let opens = self.regular().and_then(|file| file.opens.try_lock());
        self.revalidate(opens.as_deref(), || self.stat())?;
        drop(opens);
        self.shared.close_idle(1);
        Ok(self.show(inode))
    }

    fn new_mapping(&self, inode: &Inode) -> Result<SlabArc<AddressSpace>, Errno> {
        NodeOps::of(inode)?.make_mapping()
    }

    fn cached_attr(&self, inode: &Inode, now: u64, attr: &mut Attr) -> bool {
        let has_to_compare =
            || (inode.mapping()).is_some_and(|mapping| self.has_to_compare(mapping));
        let believed = self.attributes.is_believed(now) && !has_to_compare();
        if believed {
            *attr = self.show(inode);
        }
        believed
    }

    fn last_attr(&self, inode: &Inode) -> Option<Attr> {
        self.regular().map(|_| self.show(inode))
    }

    fn prefetch(&self) {
        self.prefetch_file();
    }

    fn times_moved(&self) {
        if let Some(file) = self.regular() {
            file.times.changed();
        }
    }

    fn cached_target(&self) -> Option<&OsStr> {
        self.cached_link().map(OsString::as_os_str)
    }

    fn remove_privileges(&self, _inode: &Inode, in_group: bool) -> Result<(), Errno> {
        let fd = self.path_fd()?;
        let fd = fd.as_fd();
        let mode = fd::fstat(fd)?.mode;
        let left = written_mode(mode, in_group);
        if left != mode {
            self.own_change(fd, || fd::fchmod(fd, left))?;
        }
        Ok(())
    }

    fn sync(&self, _inode: &Inode, datasync: bool) -> Result<(), Errno> {
        self.sync_attributes(datasync)
    }

    fn allocate(
        &self,
        _inode: &Inode,
        mode: FallocateMode,
        pos: u64,
        len: u64,
    ) -> Result<(), Errno> {
        match mode {
            FallocateMode::Allocate | FallocateMode::AllocateKeepSize => self.allocate(pos, len),
            FallocateMode::ZeroRange | FallocateMode::ZeroRangeKeepSize => {
                match self.allocate(pos, len) {
                    // The zeros are there; only their space cannot be promised.
                    Err(Errno::EOPNOTSUPP) => Ok(()),
                    done => done,
                }
            }
            FallocateMode::PunchHole => Ok(()),
        }
    }

    fn seek_sparse(&self, inode: &Inode, what: SeekSparse, pos: u64) -> Result<u64, Errno> {
        let mapping = inode.open_mapping()?;
        let size = mapping.size();
        if mapping.is_relied_on() && matches!(self.descriptors(false), Err(Errno::ESTALE)) {
            // Holes are not told any more. Cached pages can be read as data.
            return match what {
                _ if pos >= size => Err(Errno::ENXIO),
                SeekSparse::Data => Ok(pos),
                SeekSparse::Hole => Ok(size),
            };
        }
        // The source knows of no hole that is dirty in the cache, and of no data either.
        mapping.sync()?;
        let fds = self.descriptors(false)?;
        let (fd, size) = (fds.buffered.as_fd(), mapping.size());
        if pos >= size {
            return Err(Errno::ENXIO);
        }
        match (what, fd::seek_sparse(fd, what, pos)?) {
            (SeekSparse::Data, found) => found.filter(|&at| at < size).ok_or(Errno::ENXIO),
            (SeekSparse::Hole, found) => Ok(found.map_or(size, |at| at.min(size))),
        }
    }

    fn asked_while_watched(&self, doubts: u32) {
        if let Some(file) = self.regular() {
            file.coherence(|machine| machine.watched(doubts));
        }
    }

    fn keep_readable(&self) -> Result<(), Errno> {
        self.keep_readable_open()
    }

    fn revalidate(&self, inode: &Inode) -> Result<bool, Errno> {
        NodeOps::of(inode)?.see_others_unless_unwritten()
    }

    fn new_locks(&self, inode: &Inode, flags: OpenFlags) -> Result<Box<dyn FileLocks>, Errno> {
        Ok(Box::new(Locks::new(&NodeOps::of(inode)?, flags)?))
    }

    fn writers(&self) -> u32 {
        let Some(file) = self.regular() else { return 0 };
        // Another thread opens it, or closes it.
        file.opens.try_lock().map_or(1, |opens| opens.writers)
    }

    fn duplicated(&self, _: &Inode, writable: bool) {
        let mut opens = self.file().opens.lock();
        opens.handles += 1;
        self.file().count_writer(&mut opens, writable);
    }

    fn released(&self, inode: &Inode, writable: bool) {
        if self.shared.bdi.mm().check_fork().is_err() {
            return;
        }
        let (last, written) = {
            let mut opens = self.file().opens.lock();
            opens.handles -= 1;
            opens.writers -= u32::from(writable);
            if writable && opens.writers == 0 {
                self.end_writing();
            }
            if opens.writers == 0
                && !self.attributes.is_settled()
                && !self.attributes.is_provisional()
                && let Some(mapping) = inode.mapping().filter(|mapping| !mapping.is_dirty())
            {
                self.attributes.settle(mapping.size());
            }
            if opens.handles == 0
                && let Some(mapping) = inode.mapping()
            {
                mapping.end_reliance();
            }
            (opens.handles == 0, writable && opens.writers == 0)
        };
        let (has_descriptors, gone) = match last || written {
            true => {
                let mut io = self.file().io.lock();
                let gone = last && io.coherence.closed() == Verdict::GoneButOpen;
                (io.fds.is_some(), gone)
            }
            false => (false, false),
        };
        if gone && !foliocache_sync::planted!(removed_file_kept_by_its_last_close) {
            self.look_whether_removed();
        }
        // Without descriptors there is nothing to close, and nothing on its way.
        if (last || written)
            && (self.is_unlinked() || has_descriptors)
            && let Ok(node) = NodeOps::of(inode)
        {
            node.closed(last, written);
        }
        if last && self.shared.held.is_some() {
            self.let_go(&self.file().opens.lock());
        }
        self.shared.close_idle(2);
        self.shared.limit_idle();
    }

    fn write_back(&self, inode: &Inode) {
        if let Ok(node) = NodeOps::of(inode)
            && !node.is_unlinked()
            && !node.write_in_batch()
        {
            node.write_out();
        }
    }

    fn write_and_wait(&self, inode: &Inode) -> Result<(), Errno> {
        NodeOps::of(inode)?.write_and_wait()
    }

    /// Lets go of the file in the source, which frees its space, and of its pages. It cannot be opened any more.
    fn evict(&self, _inode: &Inode) {
        if !self.is_unlinked() || self.shared.bdi.mm().check_fork().is_err() {
            return;
        }
        self.discard_unnamed();
        if let Some(file) = self.regular() {
            let fds = file.io.lock().fds.take();
            drop(fds);
        }
        self.shared.path_fds.remove(self.id);
        self.detach();
    }

    /// Descriptors go with the node.
    fn dropped(&self, _inode: &Inode) {
        if self.is_unlinked()
            && self.shared.bdi.mm().check_fork().is_ok()
            && let Some(file) = self.regular()
            && let Some(_opens) = file.opens.try_lock()
        {
            file.discard(false);
        }
    }
}
