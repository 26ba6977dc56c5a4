//! Names of `memfs`: its [`FileSystem`].

use super::MemFs;
use super::node::{
    Data, MemNode, add_links, changed, entries, entries_changed, entry_bytes, new_directory,
};
use foliocache_mm::{MappingCharge, PAGE_SIZE};
use foliocache_sync::Arc;
use foliocache_sync::time::coarse_realtime;
use foliocache_sys::Errno;
use foliocache_vfs::{
    Attr, Device, DirEntry, FileKind, FileSystem, Generation, Inode, MAX_NAME, New, OpContext,
    OpenDirectory, OpenFile, OpenFlags, PERMISSION_BITS, ROOT_INO, Remove, RenameMode, S_ISGID,
    SetAttr, SlabArc, StatFs, XattrMode, check_name, check_opens, cleared_set_id, inode_bytes,
};
use std::ffi::{OsStr, OsString};
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt;

/// Longest target of a symbolic link, in bytes, as on every Linux file system.
const MAX_TARGET: usize = 4095;
/// Longest value of an extended attribute, in bytes.
const MAX_XATTR: usize = 64 << 10;

impl MemFs {
    /// An inode of the caller's for `name`, which must be free.
    fn new_inode(
        &self,
        ctx: &OpContext,
        dir: &Inode,
        name: &OsStr,
        kind: FileKind,
        mode: u32,
        data: Data,
    ) -> Result<SlabArc<Inode>, Errno> {
        Self::check_free(dir, name)?;
        let parent = dir.attributes().get();
        let set_group = parent.mode & S_ISGID != 0;
        let mut mode = match kind {
            FileKind::Symlink => mode,
            _ => mode & !ctx.umask,
        };
        if set_group && kind == FileKind::Directory {
            mode |= S_ISGID;
        }
        let gid = if set_group { parent.gid } else { ctx.gid };
        self.shared.new_inode(kind, mode, ctx.uid, gid, data)
    }

    /// The inode under `name`, which must be there.
    fn existing(dir: &Inode, name: &OsStr) -> Result<SlabArc<Inode>, Errno> {
        check_name_in(dir, name)?;
        entries(dir)?.lock().get(name).ok_or(Errno::ENOENT)
    }

    /// `EEXIST` if `name` exists.
    fn check_free(dir: &Inode, name: &OsStr) -> Result<(), Errno> {
        check_name_in(dir, name)?;
        match entries(dir)?.lock().by_name.contains_key(name) {
            true => Err(Errno::EEXIST),
            false => Ok(()),
        }
    }

    /// Charges a name that is not there, and enters it, unless the directory has been removed.
    fn enter(inode: &SlabArc<Inode>, dir: &Inode, name: &OsStr) -> Result<(), Errno> {
        let node = MemNode::of(dir)?;
        node.charge(entry_bytes(name))?;
        let mut entries = entries(dir)?.lock();
        if entries.dead {
            drop(entries);
            node.uncharge(entry_bytes(name));
            return Err(Errno::ENOENT);
        }
        entries.insert(name, inode.clone());
        drop(entries);
        entries_changed(dir, 1);
        Ok(())
    }

    /// Puts `inode` in the place of the present one under `name`, whose charge stays.
    fn replace(inode: &SlabArc<Inode>, dir: &Inode, name: &OsStr) -> Result<(), Errno> {
        entries(dir)?.lock().insert(name, inode.clone());
        entries_changed(dir, 0);
        Ok(())
    }

    /// Removes an existing name.
    fn remove_entry(dir: &Inode, name: &OsStr) -> Result<(), Errno> {
        let removed = entries(dir)?.lock().remove(name);
        MemNode::of(dir)?.uncharge(entry_bytes(name));
        entries_changed(dir, -1);
        drop(removed);
        Ok(())
    }

    /// `inode` was moved from one directory to another, or to the same.
    fn moved(inode: &Inode, from: &Inode, to: &SlabArc<Inode>) -> Result<(), Errno> {
        changed(inode);
        if inode.is_directory() && from.ino() != to.ino() {
            entries(inode)?.lock().parent = Some(SlabArc::downgrade(to));
            add_links(from, -1);
            add_links(to, 1);
        }
        Ok(())
    }

    /// Whether `inode` is `dir` or above it.
    fn is_above(inode: &SlabArc<Inode>, dir: &SlabArc<Inode>) -> bool {
        let mut at = Some(dir.clone());
        while let Some(here) = at {
            if SlabArc::ptr_eq(&here, inode) {
                return true;
            }
            at = entries(&here)
                .ok()
                .and_then(|entries| entries.lock().above());
        }
        false
    }

    /// From here on nothing is made in a directory, which must be empty. Of others there is nothing to do.
    fn kill(inode: &Inode) -> Result<(), Errno> {
        if inode.is_directory() {
            let mut entries = entries(inode)?.lock();
            if !entries.by_name.is_empty() {
                return Err(Errno::ENOTEMPTY);
            }
            entries.dead = true;
        }
        Ok(())
    }

    /// Updates an inode after the removal or replacement of one of its names.
    fn unlinked(dir: &Inode, inode: &Inode) {
        if inode.is_directory() {
            add_links(inode, -2);
            add_links(dir, -1);
        } else {
            add_links(inode, -1);
        }
    }
}

impl FileSystem for MemFs {
    fn kind(&self) -> &'static str {
        "memfs"
    }

    fn permissions(&self) -> &Arc<Generation> {
        &self.shared.permissions
    }

    fn root(&self) -> SlabArc<Inode> {
        self.root.clone()
    }

    fn lookup(&self, dir: &SlabArc<Inode>, name: &OsStr) -> Result<SlabArc<Inode>, Errno> {
        let entries = entries(dir)?;
        match name.as_bytes() {
            b"." => Ok(dir.clone()),
            b".." if dir.ino() == ROOT_INO => Ok(dir.clone()),
            b".." => entries.lock().above().ok_or(Errno::ENOENT),
            _ => {
                check_name_in(dir, name)?;
                entries.lock().get(name).ok_or(Errno::ENOENT)
            }
        }
    }

    fn setattr(
        &self,
        ctx: &OpContext,
        inode: &SlabArc<Inode>,
        set: &SetAttr,
    ) -> Result<Attr, Errno> {
        MemNode::of(inode)?;
        if let Some(size) = set.size {
            let mapping = match inode.kind() {
                FileKind::Regular => inode.open_mapping()?,
                FileKind::Directory => return Err(Errno::EISDIR),
                _ => return Err(Errno::EINVAL),
            };
            inode.remove_privileges(ctx)?;
            mapping.truncate(size)?;
            inode.attributes().data_changed();
        }
        let now = coarse_realtime();
        inode.attributes().update(|attributes| {
            if set.uid.is_some() || set.gid.is_some() {
                attributes.uid = set.uid.unwrap_or(attributes.uid);
                attributes.gid = set.gid.unwrap_or(attributes.gid);
                if inode.kind() == FileKind::Regular {
                    attributes.mode = cleared_set_id(attributes.mode);
                }
            }
            if let Some(mode) = set.mode {
                attributes.mode = mode & PERMISSION_BITS;
            }
            if let Some(atime) = set.atime {
                attributes.atime = atime.resolve(now);
            }
            if let Some(mtime) = set.mtime {
                attributes.mtime = mtime.resolve(now);
            }
            attributes.ctime = now;
        });
        self.getattr(inode)
    }

    fn create(
        &self,
        ctx: &OpContext,
        dir: &SlabArc<Inode>,
        name: &OsStr,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<OpenFile, Errno> {
        let charge = OpenFile::charge(&self.shared.mm).map_err(|_| Errno::ENOSPC)?;
        let inode = self.new_inode(ctx, dir, name, FileKind::Regular, mode, Data::File)?;
        // Before the file is visible, because a visible file must be openable.
        inode.open_mapping()?;
        Self::enter(&inode, dir, name)?;
        OpenFile::charged(inode, flags, *ctx, charge)
    }

    fn make(
        &self,
        ctx: &OpContext,
        dir: &SlabArc<Inode>,
        name: &OsStr,
        new: New<'_>,
    ) -> Result<SlabArc<Inode>, Errno> {
        let (kind, mode, data) = match new {
            New::Node { kind, mode, rdev } => {
                let data = match kind {
                    FileKind::Regular => Data::File,
                    FileKind::CharDevice | FileKind::BlockDevice => Data::Special(rdev),
                    FileKind::Fifo | FileKind::Socket => Data::Special(Device::default()),
                    _ => return Err(Errno::EINVAL),
                };
                (kind, mode, data)
            }
            New::Directory { mode } => {
                let data = new_directory(Some(SlabArc::downgrade(dir)));
                (FileKind::Directory, mode, data)
            }
            New::Symlink(target) => match target.len() {
                0 => return Err(Errno::ENOENT),
                len if len > MAX_TARGET => return Err(Errno::ENAMETOOLONG),
                _ => (FileKind::Symlink, 0o777, Data::Symlink(target.to_owned())),
            },
        };
        let inode = self.new_inode(ctx, dir, name, kind, mode, data)?;
        Self::enter(&inode, dir, name)?;
        if kind == FileKind::Directory {
            add_links(dir, 1);
        }
        Ok(inode)
    }

    fn readlink(&self, inode: &SlabArc<Inode>) -> Result<OsString, Errno> {
        match &MemNode::of(inode)?.data {
            Data::Symlink(target) => Ok(target.clone()),
            _ => Err(Errno::EINVAL),
        }
    }

    fn link(
        &self,
        inode: &SlabArc<Inode>,
        dir: &SlabArc<Inode>,
        name: &OsStr,
    ) -> Result<(), Errno> {
        let node = MemNode::of(inode)?;
        Self::check_free(dir, name)?;
        if !Arc::ptr_eq(&node.shared, &self.shared) {
            return Err(Errno::EXDEV);
        }
        if inode.is_directory() {
            return Err(Errno::EPERM);
        }
        // First: its last name may be on its way out.
        if !add_links(inode, 1) {
            return Err(Errno::ENOENT);
        }
        Self::enter(inode, dir, name).inspect_err(|_| {
            add_links(inode, -1);
        })
    }

    fn remove(&self, dir: &SlabArc<Inode>, name: &OsStr, what: Remove) -> Result<(), Errno> {
        if what == Remove::Directory && name.as_bytes() == b".." {
            return Err(Errno::ENOTEMPTY);
        }
        let inode = Self::existing(dir, name)?;
        match what {
            Remove::File if inode.is_directory() => return Err(Errno::EISDIR),
            Remove::File => {}
            Remove::Directory => {
                entries(&inode)?;
                Self::kill(&inode)?;
            }
        }
        Self::remove_entry(dir, name)?;
        Self::unlinked(dir, &inode);
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
        if mode == RenameMode::Whiteout {
            return Err(Errno::EINVAL);
        }
        let moved = Self::existing(from_dir, from)?;
        check_name_in(to_dir, to)?;
        let target = entries(to_dir)?.lock().get(to);
        match (mode, &target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EEXIST),
            (RenameMode::Exchange, None) => return Err(Errno::ENOENT),
            _ => {}
        }
        if moved.is_directory() && Self::is_above(&moved, to_dir) {
            return Err(Errno::EINVAL);
        }
        if let Some(target) = &target {
            if SlabArc::ptr_eq(target, &moved) {
                return Ok(());
            }
            let above = target.is_directory() && Self::is_above(target, from_dir);
            match mode {
                RenameMode::Exchange if above => return Err(Errno::EINVAL),
                RenameMode::Exchange => {}
                _ if above => return Err(Errno::ENOTEMPTY),
                _ => match (moved.is_directory(), target.is_directory()) {
                    (true, false) => return Err(Errno::ENOTDIR),
                    (false, true) => return Err(Errno::EISDIR),
                    _ => Self::kill(target)?,
                },
            }
        }
        // From here on nothing fails but the charge of a new name, which comes first.
        match target {
            None => {
                Self::enter(&moved, to_dir, to)?;
                Self::remove_entry(from_dir, from)?;
            }
            Some(target) => {
                Self::replace(&moved, to_dir, to)?;
                if mode == RenameMode::Exchange {
                    Self::replace(&target, from_dir, from)?;
                    Self::moved(&target, to_dir, from_dir)?;
                } else {
                    Self::remove_entry(from_dir, from)?;
                    Self::unlinked(to_dir, &target);
                }
            }
        }
        Self::moved(&moved, from_dir, to_dir)
    }

    fn open(
        &self,
        ctx: &OpContext,
        inode: &SlabArc<Inode>,
        flags: OpenFlags,
    ) -> Result<OpenFile, Errno> {
        check_opens(inode)?;
        let file = OpenFile::new(inode.clone(), flags, *ctx)?;
        if flags.truncate {
            file.truncate_at_open()?;
        }
        Ok(file)
    }

    fn open_cached(
        &self,
        ctx: &OpContext,
        inode: &SlabArc<Inode>,
        flags: OpenFlags,
    ) -> Result<OpenFile, Errno> {
        check_opens(inode)?;
        if inode.mapping().is_none() {
            return Err(Errno::EAGAIN);
        }
        let charge = OpenFile::charge_at_once(&self.shared.mm)?;
        OpenFile::charged(inode.clone(), flags, *ctx, charge)
    }

    fn opendir(&self, inode: &SlabArc<Inode>) -> Result<Box<dyn OpenDirectory>, Errno> {
        entries(inode)?;
        Ok(Box::new(DirStream(inode.clone())))
    }

    fn opendir_cached(&self, inode: &SlabArc<Inode>) -> Result<Box<dyn OpenDirectory>, Errno> {
        self.opendir(inode)
    }

    fn statfs(&self) -> Result<StatFs, Errno> {
        let usage = self.shared.mm.usage();
        let page = PAGE_SIZE as u64;
        let file = inode_bytes() + MappingCharge::memory_bytes() as u64;
        let free = usage.limit_bytes.saturating_sub(usage.total_bytes()) / page;
        Ok(StatFs {
            block_size: PAGE_SIZE as u32,
            blocks: usage.limit_bytes / page,
            blocks_free: free,
            blocks_available: free,
            files: usage.limit_bytes / file,
            files_free: free * page / file,
            max_name: MAX_NAME as u32,
        })
    }

    fn sync_fs(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn getxattr(&self, inode: &SlabArc<Inode>, name: &OsStr) -> Result<Vec<u8>, Errno> {
        MemNode::of(inode)?
            .xattrs
            .lock()
            .get(name)
            .cloned()
            .ok_or(Errno::ENODATA)
    }

    fn setxattr(
        &self,
        inode: &SlabArc<Inode>,
        name: &OsStr,
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<(), Errno> {
        let node = MemNode::of(inode)?;
        let old = match value {
            Some(value) => node.insert_xattr(name, value, mode)?,
            None => Some(node.xattrs.lock().remove(name).ok_or(Errno::ENODATA)?),
        };
        if let Some(old) = old {
            node.uncharge(xattr_bytes(name, &old));
        }
        changed(inode);
        Ok(())
    }

    fn listxattr(&self, inode: &SlabArc<Inode>) -> Result<Vec<OsString>, Errno> {
        Ok(MemNode::of(inode)?.xattrs.lock().keys().cloned().collect())
    }
}

impl MemNode {
    /// Returns the attribute that was replaced.
    fn insert_xattr(
        &self,
        name: &OsStr,
        value: &[u8],
        mode: XattrMode,
    ) -> Result<Option<Vec<u8>>, Errno> {
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(Errno::ERANGE);
        }
        if value.len() > MAX_XATTR {
            return Err(Errno::E2BIG);
        }
        let mut xattrs = self.xattrs.lock();
        match (mode, xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(Errno::EEXIST),
            (XattrMode::Replace, false) => return Err(Errno::ENODATA),
            _ => {}
        }
        self.charge(xattr_bytes(name, value))?;
        Ok(xattrs.insert(name.to_owned(), value.to_owned()))
    }
}

/// Checks a name in a directory; in one that is gone there is nothing, whatever its name.
fn check_name_in(dir: &Inode, name: &OsStr) -> Result<(), Errno> {
    match entries(dir)?.lock().dead {
        true => Err(Errno::ENOENT),
        false => check_name(name),
    }
}

fn xattr_bytes(name: &OsStr, value: &[u8]) -> u64 {
    (96 + name.len() + value.len()) as u64
}

/// A directory of `memfs` that is being read.
struct DirStream(SlabArc<Inode>);

impl OpenDirectory for DirStream {
    fn read(&self, offset: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<(), Errno> {
        let entries = entries(&self.0)?;
        let mut at = offset;
        loop {
            // One entry a turn: the sink runs without the lock.
            let next = {
                let entries = entries.lock();
                match at {
                    0 => Some((1, OsString::from("."), self.0.clone())),
                    1 => {
                        let parent = entries.above().unwrap_or_else(|| self.0.clone());
                        Some((2, OsString::from(".."), parent))
                    }
                    _ => entries
                        .by_cookie
                        .range((Bound::Excluded(at), Bound::Unbounded))
                        .next()
                        .map(|(&cookie, (name, inode))| (cookie, name.clone(), inode.clone())),
                }
            };
            let Some((cookie, name, inode)) = next else {
                return Ok(());
            };
            let entry = DirEntry {
                ino: inode.ino(),
                next_offset: cookie,
                kind: inode.kind(),
                name: &name,
            };
            if !sink(entry) {
                return Ok(());
            }
            at = cookie;
        }
    }

    fn is_known_at(&self, _offset: u64) -> bool {
        true
    }

    fn fsync(&self) -> Result<(), Errno> {
        Ok(())
    }
}
