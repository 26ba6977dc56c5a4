//! Attributes of the source's files: reading them, changing them, noticing that others did.
//!
//! # Model
//!
//! Owner, mode and link count are always the source's. Size, `mtime` and `ctime` of a regular file
//! are ours for as long as nobody else changed the file, because data and times reach the source
//! later than the caller wrote them. Of a file that was never opened they are the source's, too.
//!
//! # Differences from Linux
//!
//! A change from outside is noticed when the file is opened or looked at, and before a write makes a file dirty that was
//! clean (close-to-open). While data of ours waits to be written, ours holds; what others changed meanwhile is kept in the source, and seen
//! afterwards.

use super::file::Descriptors;
use super::idle::Closing;
use super::node::DirNode;
use super::state::{Checked, FileState, LocalChange, Opens, RemoteChange, StatSample};
use super::stats::count;
use super::{NodeOps, Shared};
use foliocache_mm::{AddressSpace, PAGE_SIZE};
use foliocache_sync::Arc;
use foliocache_sys::fd::{self, AsFd, BorrowedFd, Stat};
use foliocache_sys::{Errno, clock};
use foliocache_vfs::{
    Attr, AttrCell, Attributes, Belief, FallocateMode, FileKind, Inode, InodeOperations, OpContext,
    PERMISSION_BITS, SeekSparse, SetAttr, SlabArc, written_mode,
};
use std::ffi::{OsStr, OsString};

/// What an inode remembers of `stat`.
pub(super) fn remembered(stat: &Stat) -> Attributes {
    Attributes {
        mode: stat.mode & PERMISSION_BITS,
        nlink: stat.nlink,
        uid: stat.uid,
        gid: stat.gid,
        rdev: stat.rdev,
        size: stat.size,
        blocks: stat.blocks,
        blksize: stat.blksize,
        atime: stat.atime,
        mtime: stat.mtime,
        ctime: stat.ctime,
        btime: stat.btime,
    }
}

impl Shared {
    /// The attributes of a node that was just found.
    pub(super) fn attributes(&self, stat: &Stat) -> SlabArc<AttrCell> {
        let attributes = remembered(stat);
        self.attributes.alloc(match stat.kind() {
            FileKind::Directory => AttrCell::of_directory(attributes, self.permissions.clone()),
            _ => AttrCell::new(attributes),
        })
    }
}

impl DirNode {
    /// Takes over what the source said at `look`: size and times of a regular file only before it is
    /// first opened, and unless a change of our own came between.
    ///
    /// Context: the attributes locked.
    pub(super) fn refresh(
        &self,
        attributes: &mut Attributes,
        stat: &Stat,
        look: Option<StatSample>,
    ) {
        let ours = (attributes.size, attributes.mtime, attributes.ctime);
        *attributes = remembered(stat);
        if let (Some(file), Some(look)) = (self.regular(), look)
            && (file.has_mapping() || !file.holds(look))
        {
            (attributes.size, attributes.mtime, attributes.ctime) = ours;
        }
    }

    /// Asks the source for the attributes with `ask` and takes them over. If `opens` are held, and nothing of ours waits to
    /// be written, it compares them with what was seen last, too, and takes the source's side if somebody else changed the
    /// file. An answer that should have been compared and was not is provisional: it holds as long as it cannot be compared.
    ///
    /// # Errors
    /// Those of `ask`.
    pub(super) fn revalidate(
        &self,
        opens: Option<&Opens>,
        ask: impl FnOnce() -> Result<Stat, Errno>,
    ) -> Result<(), Errno> {
        let doubts = self.attributes.doubts();
        let asked = self.shared.belief.now();
        let until = self.shared.belief.until(asked, true);
        // What the source says after this look is not our own doing, unless a change of ours is under way or begins meanwhile,
        // which the look knows. Of a file without an address space nothing is cached that could be compared.
        let mapping = opens
            .and_then(|_| self.file().mapping())
            .filter(|mapping| !mapping.is_dirty());
        let look = self.regular().map(FileState::look);
        let stat = ask()?;
        let compared = mapping.zip(look).map(|(mapping, look)| {
            self.compare(&mapping, &stat, look);
            if opens.is_some_and(|opens| opens.writers == 0) {
                self.attributes.settle(mapping.size());
            }
        });
        let may_differ = compared.is_none() && !self.shared.options.exclusive;
        self.attributes.believe_as(doubts, until, |attributes| {
            self.refresh(attributes, &stat, look);
            may_differ && self.regular().is_some_and(FileState::has_mapping)
        });
        if compared.is_some() {
            self.file().io.lock().compared = Some((asked, doubts));
        }
        Ok(())
    }

    /// Whether the attributes that are believed came with an answer that can be compared by now.
    fn has_to_compare(&self, mapping: &AddressSpace) -> bool {
        self.attributes.is_provisional() && !mapping.is_dirty()
    }

    /// Whether somebody else may have changed the file since it was compared with the source: somebody told of a change,
    /// of ours perhaps, or it is a while ago, since not all is told.
    ///
    /// Context: no lock held.
    pub(super) fn may_have_changed(&self) -> bool {
        let now = self.shared.belief.now();
        let (compared, marked) = {
            let io = self.file().io.lock();
            // What we have just made nobody else writes.
            if io.fresh.is_some() {
                return false;
            }
            if io.written_by_others {
                return true;
            }
            (io.compared, io.marked.clone())
        };
        let look_again = u64::try_from(self.shared.options.revalidate_after.as_millis());
        let told = |doubts| match marked {
            // Of our own writes it is told as well, but apart.
            Some(marked) => marked.has_news(),
            None => doubts != self.attributes.doubts(),
        };
        compared.is_none_or(|(asked, doubts)| {
            // Another thread may have asked since `now`.
            now.saturating_sub(asked) > look_again.unwrap_or(u64::MAX)
                || !Belief::is_same_epoch(asked, now)
                || told(doubts)
        })
    }

    /// Compares the file with the source, if nothing of ours waits to be written: to be called before something does. Whether
    /// it did, or need not: not with `nowait` if it would have to wait.
    ///
    /// Context: no lock held.
    pub(super) fn look_before_write(&self, nowait: bool) -> bool {
        let file = self.file();
        let opens = match nowait {
            true if file.any_fd().is_none() => return false,
            true => file.opens.try_lock(),
            false => Some(file.opens.lock()),
        };
        let Some(opens) = opens else { return false };
        // A source that does not answer says so when the data is written.
        if let Err(error) = self.revalidate(Some(&opens), || self.stat()) {
            tracing::debug!(file = self.display_path(), %error, "not looked at before a write");
        }
        true
    }

    /// Looks whether others changed the file, and notes it: to be called before each change of ours to its data or times, which would hide
    /// theirs. Of a marked file the kernel tells. Whether the source answered, where it was asked.
    ///
    /// Context: `io` not held.
    pub(super) fn look_for_others(&self) -> bool {
        let file = self.file();
        if self.shared.options.exclusive || !file.can_be_compared() {
            return true;
        }
        let look = file.look();
        // A source that does not answer says so when it is changed.
        let stat = self.stat();
        stat.map(|stat| file.note_news(&stat, look)).is_ok()
    }

    /// Whether others wrote to the file since it was compared with the source, or may have: to be asked before something of ours is
    /// written back.
    ///
    /// Context: `io` not held.
    pub(super) fn look_before_writeback(&self) -> bool {
        let answered = self.look_for_others();
        let (noted, marked) = {
            let io = self.file().io.lock();
            (io.written_by_others, io.marked.clone())
        };
        noted || !answered || marked.is_some_and(|marked| marked.has_news())
    }

    /// Compares what the source said at `look` with what was seen of the file last.
    fn compare(&self, mapping: &Arc<AddressSpace>, stat: &Stat, look: StatSample) {
        let file = self.file();
        // What came between a write of ours and the look after it was taken for known.
        let other_size = || {
            let differs = stat.size != mapping.size() && !mapping.is_dirty();
            // A file without a name may have given up what it had to write.
            (differs && file.holds(look) && !self.is_unlinked()).then_some(RemoteChange::Data)
        };
        let news = file.news(stat, look).or_else(other_size);
        if news.is_some() {
            self.attributes.unsettle();
        }
        if news == Some(RemoteChange::Data) {
            if !mapping.backing_changed(stat.size) {
                // Something was written meanwhile, which goes first.
                file.note_news(stat, look);
                return;
            }
            count(&self.shared.counters.invalidations);
        }
        if news.is_some() {
            self.attributes.take_over(|attributes| {
                // A rename beside us, say, changes the source's times between the look and the comparison.
                if file.holds(look) {
                    *attributes = remembered(stat);
                }
            });
            file.took_over(stat, look);
        } else {
            file.settle(stat, look);
        }
    }

    /// Whether the file may be opened for reading as it was opened last, without a descriptor and without asking: its
    /// pages are all there, and nobody told of a change. Stores through a mapping are not told, so the source is
    /// looked at once a second; with `nowait` it is not looked at, and the answer is no.
    ///
    /// Context: `opens` held.
    pub(super) fn opens_as_before(
        &self,
        opens: &mut Opens,
        mapping: &AddressSpace,
        nowait: bool,
    ) -> bool {
        let now = self.shared.belief.now();
        let holds = |checked: &Checked| {
            checked.watched
                && Belief::is_same_epoch(checked.asked, now)
                && self.attributes.is_watched(now)
                && self.attributes.doubts() == checked.doubts
        };
        let Some(checked) = opens.checked.filter(holds) else {
            return false;
        };
        if self.has_to_compare(mapping) {
            return false;
        }
        let all_there = || mapping.nr_pages() >= mapping.size().div_ceil(PAGE_SIZE as u64);
        let look_again = u64::try_from(self.shared.options.revalidate_after.as_millis());
        if !all_there() || now - checked.asked <= look_again.unwrap_or(u64::MAX) {
            return all_there();
        }
        if nowait {
            return false;
        }
        let looked = match self.is_as_seen(mapping, now) {
            true => Ok(()),
            false => self.revalidate(Some(opens), || self.stat()),
        };
        opens.checked = Some(Checked {
            asked: now,
            ..checked
        });
        looked.is_ok() && self.attributes.doubts() == checked.doubts && all_there()
    }

    /// Whether the source shows the file as it was seen last. Then there is nothing to [revalidate](DirNode::revalidate) of
    /// attributes that are watched. No if that takes more than a look.
    ///
    /// Context: `opens` held.
    fn is_as_seen(&self, mapping: &AddressSpace, now: u64) -> bool {
        if mapping.is_dirty() || !self.attributes.is_settled() {
            return false;
        }
        let file = self.file();
        let doubts = self.attributes.doubts();
        let look = file.look();
        let stat = self.stat();
        stat.is_ok_and(|stat| file.shows_no_news(&stat, look, (now, doubts)))
    }

    /// Opens descriptors, or keeps those `made`, and looks at the source.
    ///
    /// Context: `opens` held.
    ///
    /// # Errors
    /// As [`DirNode::descriptors`], and those of `fstat(2)`.
    pub(super) fn check_open(
        &self,
        opens: &mut Opens,
        made: Option<Descriptors>,
        writable: bool,
    ) -> Result<(), Errno> {
        let file = self.file();
        opens.checked = None;
        let (asked, doubts) = (self.shared.belief.now(), self.attributes.doubts());
        let watched = self.attributes.is_watched(asked);
        let open = || match made {
            Some(fds) => Ok((file.install(fds), None)),
            None => self.open_descriptors(writable),
        };
        if file.has_mapping() {
            self.revalidate(Some(opens), || {
                let (fds, stat) = open()?;
                stat.map_or_else(|| fd::fstat(fds.buffered.as_fd()), Ok)
            })?;
        } else {
            // The address space asks when it is made.
            open()?;
        }
        let checked = Checked {
            asked,
            doubts,
            watched,
        };
        opens.checked = (opens.writers == 0).then_some(checked);
        Ok(())
    }

    /// Runs a change of the node's attributes or names in the source; what it does to the source's
    /// times is no change from outside, and `ctime` follows it.
    pub(super) fn own_change<R>(
        &self,
        fd: BorrowedFd<'_>,
        what: LocalChange,
        change: impl FnOnce() -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let Some(file) = self.regular() else {
            let result = change();
            self.attributes.doubt();
            return result;
        };
        if what == LocalChange::Times {
            self.look_for_others();
        }
        let own = file.begin_change(what);
        let result = change();
        let stat = fd::fstat(fd).ok();
        let look = self.end_change(own, stat.as_ref());
        if let (Ok(_), Some(stat)) = (&result, &stat) {
            file.attributes.changed();
            self.attributes.update(|attributes| {
                self.refresh(attributes, stat, Some(look));
                attributes.ctime = stat.ctime;
            });
        }
        result
    }

    /// The attributes to show: the source's as they were seen last, and what we know better.
    fn show(&self, inode: &Inode) -> Attr {
        let mut attr = self.attributes.get().of(inode.ino(), self.kind);
        if let Some(mapping) = inode.mapping() {
            attr.size = mapping.size();
            if mapping.has_pages_to_write() {
                // Data without blocks would look like a hole to whoever copies sparse files.
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

    /// Gives up the pages of a file that neither a name nor a handle leads to; does nothing to others. What
    /// keeps its space in the source goes with the inode.
    pub(super) fn discard_unused(&self) {
        if let Some(file) = self.regular().filter(|_| self.is_unlinked()) {
            let opens = file.opens.lock();
            if opens.handles == 0 {
                file.discard();
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
                // Without a handle nobody else closes the descriptors that this needs.
                let _closing = Closing(&node);
                let _opens = self.file().opens.lock();
                self.attributes.unsettle();
                mapping.truncate(size)
            };
            self.shared.limit_idle();
            cut?;
        }
        let fd = self.path_fd()?;
        let fd = fd.as_fd();
        if set.uid.is_some() || set.gid.is_some() {
            self.own_change(fd, LocalChange::Attributes, || {
                fd::fchown(fd, set.uid, set.gid)
            })?;
        }
        if let Some(mode) = set.mode {
            self.own_change(fd, LocalChange::Attributes, || {
                fd::fchmod(fd, mode & PERMISSION_BITS)
            })?;
        }
        if set.atime.is_some() || set.mtime.is_some() {
            let now = clock::coarse_realtime();
            self.own_change(fd, LocalChange::Times, || {
                fd::futimens(fd, set.atime, set.mtime)
            })?;
            if let Some(mtime) = set.mtime {
                if let Some(file) = self.regular() {
                    file.io.lock().stamped_by_others = false;
                }
                let mut mtime = mtime.resolve(now);
                if i32::try_from(mtime.sec).is_err() {
                    // The source may have no such time, and has taken the nearest that it has.
                    mtime = fd::fstat(fd)?.mtime;
                }
                // Data that is still dirty goes out later and is stamped with this again.
                self.attributes
                    .update(|attributes| attributes.mtime = mtime);
            }
        }
        // The last change ended with a look at the source.
        let changed = SetAttr { size: None, ..*set } != SetAttr::default();
        if changed && self.regular().is_some_and(FileState::is_known) {
            return Ok(self.show(inode));
        }
        self.getattr(inode)
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

    fn new_mapping(&self, inode: &Inode) -> Result<Arc<AddressSpace>, Errno> {
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

    fn prefetch(&self) {
        self.prefetch_file();
    }

    fn cached_target(&self) -> Option<&OsStr> {
        self.cached_link().map(OsString::as_os_str)
    }

    fn remove_privileges(&self, _inode: &Inode, in_group: bool) -> Result<(), Errno> {
        let fd = self.path_fd()?;
        let fd = fd.as_fd();
        let mode = fd::fstat(fd)?.mode & PERMISSION_BITS;
        let left = written_mode(mode, in_group);
        if left != mode {
            self.own_change(fd, LocalChange::Attributes, || fd::fchmod(fd, left))?;
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
        if let Some(file) = self.regular()
            && let Some(checked) = &mut file.opens.lock().checked
        {
            checked.watched |= checked.doubts == doubts;
        }
    }

    fn keep_readable(&self) -> Result<(), Errno> {
        self.descriptors(false).map(drop)
    }

    fn writers(&self) -> u32 {
        let Some(file) = self.regular() else { return 0 };
        // Somebody opens it, or closes it.
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
            (opens.handles == 0, writable && opens.writers == 0)
        };
        // Without descriptors there is nothing to close, and nothing on its way.
        if (last || written)
            && (self.is_unlinked() || self.file().any_fd().is_some())
            && let Ok(node) = NodeOps::of(inode)
        {
            node.closed(last, written);
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

    /// Lets go of the file in the source, which frees its space, and of its pages. Nobody can open it any more.
    fn evict(&self, _inode: &Inode) {
        if !self.is_unlinked() || self.shared.bdi.mm().check_fork().is_err() {
            return;
        }
        self.discard_unused();
        if let Some(file) = self.regular() {
            let fds = file.io.lock().fds.take();
            drop(fds);
        }
        self.shared.path_fds.remove(self.id);
        self.detach();
    }
}
