//! Names of the source: the [`FileSystem`] of a local directory.
//!
//! # Model
//!
//! Every operation goes straight to the source, relative to the descriptor of the directory. Besides, each node knows where
//! it is. The caller has locked the names of a directory, so a file that is found or made there stays there until its node
//! says so. `Shared::moves` is held, for reading, from before a name is moved or removed until the nodes' locations say so. A
//! walk that does not find a node takes the lock for writing and walks again. So changes in different directories do not
//! wait for each other.
//!
//! # Differences from Linux
//!
//! A new file belongs to the caller that the context names, as far as the process may give
//! files away; without that privilege everything belongs to the process.

use super::descriptors::Descriptors;
use super::identity::Identity;
use super::listings::NamesChange;
use super::names::check_component;
use super::node::{DirNode, NODE_BYTES};
use super::stream::DirStream;
use super::sync_calls::SyncCall;
use super::uncached::Uncached;
use super::{DirFs, NodeOps, WritebackAtClose, written};
use foliocache_sync::Arc;
use foliocache_sync::time::coarse_monotonic_ms;
use foliocache_sys::Errno;
use foliocache_sys::dir;
use foliocache_sys::fd::{self, AsFd, OFlags, xattr};
use foliocache_vfs::{
    Attr, Belief, FileKind, FileSystem, Generation, Inode, New, OpContext, OpenDirectory, OpenFile,
    OpenFlags, ROOT_INO, Remove, RenameMode, SetAttr, SlabArc, StatFs, UncachedDir, XattrMode,
    check_opens,
};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

impl FileSystem for DirFs {
    fn kind(&self) -> &'static str {
        "dirfs"
    }

    fn read_only(&self) -> bool {
        self.shared.options.read_only
    }

    fn writes_at_close(&self) -> bool {
        self.shared.options.writeback_at_close == WritebackAtClose::Wait
            || !self.shared.room_is_told
    }

    fn belief(&self) -> Arc<Belief> {
        self.shared.belief.clone()
    }

    fn is_told_all(&self, dir: &Inode, inode: &Inode) -> bool {
        let device = |inode| DirNode::of(inode).map(|node| node.identity.dev);
        inode.attributes().get().nlink == 1 && device(dir) == device(inode)
    }

    fn inode_bytes(&self) -> u64 {
        let shared = &self.shared;
        self.inodes.cache.inode_bytes()
            + shared.watches.as_ref().map_or(0, |watches| watches.bytes())
            + shared.writers.bytes()
            + shared.listings.bytes()
            + shared.attributes.0.bytes()
            + shared.nodes.0.bytes()
            + shared.bdi.mapping_bytes()
    }

    fn shrink_inodes(&self, nr: usize) -> usize {
        let listings = &self.shared.listings;
        // Listings and inodes go in proportion to what they take.
        let wanted = nr as u128 * u128::from(NODE_BYTES);
        let part = wanted * u128::from(listings.bytes()) / u128::from(self.inode_bytes().max(1));
        let freed = (listings.shrink(part as u64) / NODE_BYTES) as usize;
        freed + self.inodes.shrink(nr.saturating_sub(freed))
    }

    fn evict_inodes(&self, inodes: Vec<SlabArc<Inode>>) {
        self.inodes.evict(inodes);
    }

    fn give_up_removed(&self, inode: &SlabArc<Inode>) -> bool {
        if !DirNode::of(inode).is_ok_and(DirNode::give_up_if_removed) {
            return false;
        }
        self.inodes.orphan(inode);
        if inode.kind() == FileKind::Regular
            && let Ok(node) = NodeOps::of(inode)
        {
            node.close_or_wait();
        }
        true
    }

    fn spare_inodes(&self) -> u64 {
        let shared = &self.shared;
        let parts = shared.attributes.0.spare().min(shared.nodes.0.spare());
        parts.min(self.inodes.cache.spare())
    }

    fn reap(&self) -> usize {
        self.inodes.cache.reap()
    }

    fn permissions(&self) -> &Arc<Generation> {
        &self.shared.permissions
    }

    fn root(&self) -> SlabArc<Inode> {
        self.root.clone()
    }

    fn lookup(&self, dir: &SlabArc<Inode>, name: &OsStr) -> Result<SlabArc<Inode>, Errno> {
        self.lookup_with_attributes(dir, name)
            .map(|(inode, _)| inode)
    }

    /// A new inode has the attributes that its identity came with.
    fn lookup_with_attributes(
        &self,
        dir: &SlabArc<Inode>,
        name: &OsStr,
    ) -> Result<(SlabArc<Inode>, bool), Errno> {
        let fd = self.directory(dir)?;
        match name.as_bytes() {
            b"." => return Ok((dir.clone(), false)),
            b".." if dir.ino() == ROOT_INO => return Ok((dir.clone(), false)),
            b".." => {
                let above = DirNode::of(dir)?.named();
                let (parent, _) = above.ok_or(Errno::ENOENT)?;
                return Ok((parent, false));
            }
            _ => check_component(name)?,
        }
        if DirNode::of(dir)?.has_replaced_names() {
            // The file that has the name now; its descriptor is kept.
            let found = self.open_name(fd.as_fd(), name)?;
            let adopted = self.adopt(dir, name, &fd::fstat(found.as_fd())?)?;
            self.shared
                .keep_path(DirNode::of(&adopted.0)?.id, &Arc::new(found));
            return Ok(adopted);
        }
        self.adopt(dir, name, &dir::fstatat(fd.as_fd(), name)?)
    }

    fn setattr(
        &self,
        ctx: &OpContext,
        inode: &SlabArc<Inode>,
        set: &SetAttr,
    ) -> Result<Attr, Errno> {
        self.writable()?;
        self.shared.bdi.mm().check_fork()?;
        DirNode::of(inode)?.setattr(ctx, inode, set)
    }

    fn create(
        &self,
        ctx: &OpContext,
        dir: &SlabArc<Inode>,
        name: &OsStr,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<OpenFile, Errno> {
        self.writable()?;
        check_component(name)?;
        self.shared.relieve()?;
        let dir_fd = self.directory(dir)?;
        let _changes = NamesChange::of(dir);
        // First: without room for its pages a file is not left behind.
        let charge = self.shared.bdi.charge_mapping()?;
        let handle_charge = OpenFile::charge(self.shared.bdi.mm())?;
        let how = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
        let make = || dir::openat(dir_fd.as_fd(), name, how, mode & 0o777);
        let made = (self.shared.with_room(make))
            .inspect_err(|&error| DirNode::note_names_of_others(dir, error))?;
        let stat = fd::fstat_new(made.as_fd())
            .and_then(|stat| self.give_to(ctx, dir_fd.as_fd(), made.as_fd(), mode, stat))
            .inspect_err(|_| {
                let _ = dir::unlinkat(dir_fd.as_fd(), name);
            })?;
        let inode = self.adopt_made(dir, name, &stat)?;
        let file = DirNode::of(&inode)?.file();
        let _ = file.charge.set(charge);
        {
            let mut io = file.io.lock();
            (io.fresh, io.new) = (Some(Box::new(stat)), true);
            io.coherence.made(coarse_monotonic_ms());
        }
        let flags = OpenFlags {
            truncate: false,
            ..flags
        };
        let made = Descriptors::new(made, true);
        self.handle(ctx, &inode, flags, Some((made, handle_charge)))
    }

    fn make(
        &self,
        ctx: &OpContext,
        parent: &SlabArc<Inode>,
        name: &OsStr,
        new: New<'_>,
    ) -> Result<SlabArc<Inode>, Errno> {
        self.writable()?;
        check_component(name)?;
        let dir = self.directory(parent)?;
        let _changes = NamesChange::of(parent);
        let fd = dir.as_fd();
        let mode = match new {
            New::Node { kind, mode, rdev } => {
                dir::mknodat(fd, name, kind, mode & 0o777, rdev.raw())?;
                mode
            }
            New::Directory { mode } => {
                dir::mkdirat(fd, name, mode & 0o777)?;
                mode
            }
            New::Symlink(target) => {
                dir::symlinkat(target, fd, name)?;
                0o777
            }
        };
        let made = self.open_name(dir.as_fd(), name)?;
        let stat = fd::fstat(made.as_fd())?;
        let kind = stat.kind;
        let stat = self
            .give_to(ctx, dir.as_fd(), made.as_fd(), mode, stat)
            .inspect_err(|_| {
                let _ = match kind {
                    FileKind::Directory => dir::rmdirat(dir.as_fd(), name),
                    _ => dir::unlinkat(dir.as_fd(), name),
                };
            })?;
        let inode = self.adopt_made(parent, name, &stat)?;
        let node = DirNode::of(&inode)?;
        self.shared.keep_path(node.id, &Arc::new(made));
        Ok(inode)
    }

    fn readlink(&self, inode: &SlabArc<Inode>) -> Result<OsString, Errno> {
        if inode.kind() != FileKind::Symlink {
            return Err(Errno::EINVAL);
        }
        DirNode::of(inode)?.target()
    }

    fn link(
        &self,
        inode: &SlabArc<Inode>,
        dir: &SlabArc<Inode>,
        name: &OsStr,
    ) -> Result<(), Errno> {
        self.writable()?;
        check_component(name)?;
        let node = DirNode::of(inode)?;
        let fd = node.path_fd()?;
        let dir_fd = self.directory(dir)?;
        let _changes = NamesChange::of(dir);
        node.own_change(fd.as_fd(), || {
            dir::link_fd(fd.as_fd(), dir_fd.as_fd(), name)
        })?;
        node.found_at(dir, name);
        node.name_changed();
        Ok(())
    }

    fn remove(&self, parent: &SlabArc<Inode>, name: &OsStr, what: Remove) -> Result<(), Errno> {
        match name.as_bytes() {
            b".." if what == Remove::Directory => return Err(Errno::ENOTEMPTY),
            _ => check_component(name)?,
        }
        self.writable()?;
        let dir = self.directory(parent)?;
        let remove = || match what {
            Remove::File => dir::unlinkat(dir.as_fd(), name),
            Remove::Directory => dir::rmdirat(dir.as_fd(), name),
        };
        let _changes = NamesChange::of(parent);
        let live = {
            let _moves = self.shared.moves.read();
            let fd = self.open_name(dir.as_fd(), name)?;
            match self.inodes.find(&Identity::of(&fd::fstat(fd.as_fd())?)) {
                None => {
                    remove()?;
                    None
                }
                Some(inode) => {
                    DirNode::of(&inode)?.own_change(fd.as_fd(), remove)?;
                    self.lost_name(&inode, parent, name, fd);
                    Some(inode)
                }
            }
        };
        if let Some(inode) = live {
            self.put_unnamed(inode);
        }
        Ok(())
    }

    fn rename(
        &self,
        from_dir: &SlabArc<Inode>,
        from: &OsStr,
        to_dir: &SlabArc<Inode>,
        to: &OsStr,
        mode: RenameMode,
    ) -> Result<(), Errno> {
        self.writable()?;
        check_component(from)?;
        check_component(to)?;
        let from_fd = self.directory(from_dir)?;
        let to_fd = self.directory(to_dir)?;
        let _changes = [from_dir, to_dir].map(|dir| NamesChange::of(dir));
        let replaced = {
            let _moves = self.shared.moves.read();
            let moved_fd = self.open_name(from_fd.as_fd(), from)?;
            let moved_id = Identity::of(&fd::fstat(moved_fd.as_fd())?);
            let target = match self.open_name(to_fd.as_fd(), to) {
                Ok(fd) => Some((Identity::of(&fd::fstat(fd.as_fd())?), fd)),
                Err(_) => None,
            };
            // Two names of one file: the call does nothing at all.
            let same = target
                .as_ref()
                .is_some_and(|(identity, _)| *identity == moved_id);
            let moved = self.inodes.find(&moved_id);
            let target = target
                .filter(|_| !same)
                .and_then(|(identity, fd)| Some((self.inodes.find(&identity)?, fd)));
            let rename = || dir::renameat2(from_fd.as_fd(), from, to_fd.as_fd(), to, mode);
            let rename_moved = || match &moved {
                Some(inode) => DirNode::of(inode)?.own_change(moved_fd.as_fd(), rename),
                None => rename(),
            };
            // A file that is replaced, or exchanged, is changed by the same call.
            match &target {
                Some((inode, fd)) => DirNode::of(inode)?.own_change(fd.as_fd(), rename_moved)?,
                None => rename_moved()?,
            }
            if same && mode != RenameMode::Exchange {
                return Ok(());
            }
            if let Some(inode) = &moved {
                let node = DirNode::of(inode)?;
                node.found_at(to_dir, to);
                node.left(from_dir, from);
                if !foliocache_sync::planted!(renamed_name_not_synced) {
                    node.name_changed();
                }
            }
            match target {
                Some((inode, _)) if mode == RenameMode::Exchange => {
                    let node = DirNode::of(&inode)?;
                    node.found_at(from_dir, from);
                    node.left(to_dir, to);
                    node.name_changed();
                    None
                }
                Some((inode, fd)) => {
                    self.lost_name(&inode, to_dir, to, fd);
                    Some(inode)
                }
                None => None,
            }
        };
        if let Some(inode) = replaced {
            self.put_unnamed(inode);
        }
        Ok(())
    }

    fn open(
        &self,
        ctx: &OpContext,
        inode: &SlabArc<Inode>,
        flags: OpenFlags,
    ) -> Result<OpenFile, Errno> {
        check_opens(inode)?;
        if flags.write || flags.truncate {
            self.writable()?;
        }
        self.handle(ctx, inode, flags, None)
    }

    fn open_cached(
        &self,
        ctx: &OpContext,
        inode: &SlabArc<Inode>,
        flags: OpenFlags,
    ) -> Result<OpenFile, Errno> {
        check_opens(inode)?;
        let mm = self.shared.bdi.mm();
        mm.check_fork()?;
        let mapping = inode.mapping().ok_or(Errno::EAGAIN)?;
        let node = DirNode::of(inode)?;
        let charge = OpenFile::charge_at_once(mm)?;
        {
            let mut opens = node.file().opens.try_lock().ok_or(Errno::EAGAIN)?;
            if !node.opens_as_before(&opens, mapping, true) {
                return Err(Errno::EAGAIN);
            }
            opens.handles += 1;
        }
        self.shared.counters.opens_from_cache.inc();
        OpenFile::charged(inode.clone(), flags, *ctx, charge)
            .inspect_err(|_| inode.ops().released(inode, false))
    }

    fn opendir(&self, inode: &SlabArc<Inode>) -> Result<Box<dyn OpenDirectory>, Errno> {
        Ok(Box::new(DirStream::open(self, inode)?))
    }

    fn opendir_cached(&self, inode: &SlabArc<Inode>) -> Result<Box<dyn OpenDirectory>, Errno> {
        Ok(Box::new(DirStream::open_listed(self, inode)?))
    }

    fn open_uncached(&self, dir: &SlabArc<Inode>) -> Result<Option<Box<dyn UncachedDir>>, Errno> {
        Ok(Some(Box::new(Uncached::open(self, dir)?)))
    }

    /// Dirty data has no blocks in the source yet, and counts as used.
    fn statfs(&self) -> Result<StatFs, Errno> {
        let mut stat = fd::fstatvfs(self.shared.root.as_fd())?;
        let block = u64::from(stat.block_size).max(1);
        let dirty = self.shared.bdi.nr_dirty_bytes().div_ceil(block);
        stat.blocks_free = stat.blocks_free.saturating_sub(dirty);
        stat.blocks_available = stat.blocks_available.saturating_sub(dirty);
        Ok(stat)
    }

    fn sync_fs(&self) -> Result<(), Errno> {
        let (here, below) = (&self.shared.forgotten, &self.shared.forgotten_below);
        let (begun_here, begun_below) = (here.begin(), below.begin());
        let files = self.sync_files();
        self.shared.close_all_idle();
        let root = self.shared.reopen_root()?;
        let calls = &self.shared.sync_calls;
        let synced = calls.make(SyncCall::All, &root, calls.dev);
        let all_found = self.sync_below();
        files.and(synced)?;
        if let Some(begun) = begun_here {
            here.end(begun);
        }
        if all_found? && let Some(begun) = begun_below {
            below.end(begun);
        }
        Ok(())
    }

    fn getxattr(&self, inode: &SlabArc<Inode>, name: &OsStr) -> Result<Vec<u8>, Errno> {
        xattr::get(DirNode::of(inode)?.path_fd()?.as_fd(), name)
    }

    fn setxattr(
        &self,
        inode: &SlabArc<Inode>,
        name: &OsStr,
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<(), Errno> {
        self.writable()?;
        if written::is_of_privileges(name) {
            written::write_before_privileges(inode)?;
        }
        let node = DirNode::of(inode)?;
        let fd = node.path_fd()?;
        node.own_change(fd.as_fd(), || match value {
            Some(value) => xattr::set(fd.as_fd(), name, value, mode),
            None => xattr::remove(fd.as_fd(), name),
        })
    }

    fn listxattr(&self, inode: &SlabArc<Inode>) -> Result<Vec<OsString>, Errno> {
        xattr::list(DirNode::of(inode)?.path_fd()?.as_fd())
    }
}
