//! The common part of the operations on names: finding, making, removing, opening.

use super::descriptors::Descriptors;
use super::identity::Identity;

use super::node::{DirNode, Location};
use super::stats::count;
use super::{DirFs, Shared};
use foliocache_sync::Arc;
use foliocache_sys::fd::{self, AsFd, BorrowedFd, OFlags, OwnedFd, Stat, xattr};
use foliocache_sys::{Errno, dir};
use foliocache_vfs::{
    FileKind, HandleCharge, Inode, OpContext, OpenFile, OpenFlags, PERMISSION_BITS, S_ISGID,
    SlabArc, check_name,
};
use std::ffi::OsStr;
use std::mem;
use std::os::unix::ffi::OsStrExt;

impl Shared {
    pub(super) fn new_inode(
        self: &Arc<Shared>,
        ino: u64,
        stat: &Stat,
        location: Location,
    ) -> Inode {
        let attributes = self.attributes(stat);
        let node = DirNode::new(self, ino, stat, attributes.clone(), location);
        let node = self.nodes.alloc(node);
        Inode::new(ino, node.identity.generation(), node.kind, attributes, node)
    }
}

impl DirFs {
    pub(super) fn writable(&self) -> Result<(), Errno> {
        if self.shared.options.read_only {
            Err(Errno::EROFS)
        } else {
            Ok(())
        }
    }

    /// A descriptor of a directory.
    pub(super) fn directory(&self, dir: &Inode) -> Result<Arc<OwnedFd>, Errno> {
        let node = DirNode::of(dir)?;
        if dir.kind() != FileKind::Directory {
            return Err(Errno::ENOTDIR);
        }
        if !Arc::ptr_eq(&node.shared, &self.shared) {
            return Err(Errno::EXDEV);
        }
        self.shared.bdi.mm().check_fork()?;
        node.path_fd()
    }

    /// The inode of a file under `name` in `parent`, whose attributes are `stat`, and whether it was made, with these
    /// attributes.
    pub(super) fn adopt(
        &self,
        parent: &SlabArc<Inode>,
        name: &OsStr,
        stat: &Stat,
    ) -> Result<(SlabArc<Inode>, bool), Errno> {
        let mut made = false;
        let wanted = self.inodes.numbers().of(stat.dev.raw(), stat.ino);
        let inode = self
            .inodes
            .find_or_insert(Identity::of(stat), wanted, |ino| {
                made = true;
                let location = Location::Named((parent.clone(), name.as_bytes().into()));
                self.shared.new_inode(ino, stat, location)
            });
        DirNode::of(&inode)?.found_at(parent, name);
        Ok((inode, made))
    }

    /// The inode of what we have just made under `name` in `parent`.
    pub(super) fn adopt_made(
        &self,
        parent: &SlabArc<Inode>,
        name: &OsStr,
        stat: &Stat,
    ) -> Result<SlabArc<Inode>, Errno> {
        let (inode, made) = self.adopt(parent, name, stat)?;
        let node = DirNode::of(&inode)?;
        if !made {
            // A file that was removed outside had its identity.
            node.attributes
                .take_over(|attributes| *attributes = stat.attributes);
        }
        node.attributes.doubt();
        node.name_changed();
        Ok(inode)
    }

    /// Opens what is under `name`, for its identity.
    pub(super) fn open_name(&self, dir: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
        let open = || dir::openat(dir, name, OFlags::PATH, 0);
        self.shared.with_room(open)
    }

    /// Gives what was just made, with the attributes `stat`, to the caller, with the mode asked for; the
    /// attributes that it has then.
    pub(super) fn give_to(
        &self,
        ctx: &OpContext,
        dir: BorrowedFd<'_>,
        made: BorrowedFd<'_>,
        mode: u32,
        stat: Stat,
    ) -> Result<Stat, Errno> {
        let uid = (stat.uid != ctx.uid).then_some(ctx.uid);
        let mut gid = (stat.gid != ctx.gid).then_some(ctx.gid);
        // In a set-group-id directory the directory's group and its bit are handed down.
        if gid.is_some() && fd::fstat(dir)?.mode & S_ISGID != 0 {
            gid = None;
        }
        let mut given = false;
        if uid.is_some() || gid.is_some() {
            match fd::fchown(made, uid, gid) {
                Ok(()) => given = true,
                Err(Errno::EPERM) => {}
                Err(error) => return Err(error),
            }
        }
        if stat.kind != FileKind::Symlink {
            let found = stat.mode;
            let mut wanted = mode & !ctx.umask & PERMISSION_BITS;
            if stat.kind == FileKind::Directory {
                wanted |= found & S_ISGID;
            }
            if wanted & 0o777 != found & 0o777 && has_default_acl(dir)? {
                // The source has applied it, and the umask does not count.
                wanted = wanted & !0o777 | found & 0o777;
            }
            if given || found != wanted {
                fd::fchmod(made, wanted)?;
                given = true;
            }
        }
        match given {
            true => fd::fstat(made),
            false => Ok(stat),
        }
    }

    /// The handle of an open file; `made` is there already of one that was just made.
    pub(super) fn handle(
        &self,
        ctx: &OpContext,
        inode: &SlabArc<Inode>,
        flags: OpenFlags,
        made: Option<(Descriptors, HandleCharge<'_>)>,
    ) -> Result<OpenFile, Errno> {
        let mm = self.shared.bdi.mm();
        mm.check_fork()?;
        if flags.write {
            self.shared.ctimes.make_room();
        }
        if made.is_none() {
            let room = self.shared.relieve();
            // One for reading alone gives way again.
            (if flags.write { room } else { Ok(()) })?;
        }
        let (fds, charge) = match made {
            Some((fds, charge)) => (Some(fds), charge),
            None => (None, OpenFile::charge(mm)?),
        };
        let node = DirNode::of(inode)?;
        let file = node.file();
        let writable = flags.write || flags.truncate;
        {
            let mut opens = file.opens.lock();
            let cached = inode.mapping().filter(|_| fds.is_none() && !writable);
            if cached.is_some_and(|mapping| node.opens_as_before(&opens, mapping, false)) {
                self.shared.counters.opens_from_cache.inc();
            } else {
                count(&self.shared.counters.opens_asked);
                node.check_open(&opens, fds, flags)?;
            }
            opens.handles += 1;
            file.count_writer(&mut opens, writable);
            if writable {
                if !mem::replace(&mut file.io.lock().noted, true) {
                    self.shared.ctimes.expect();
                }
                node.attributes.unsettle();
            }
        }
        self.shared.close_idle(1);
        // Made after the file is found to open at all. Its handle is counted by then, so it is not evicted.
        let how = OpenFlags {
            append_only: writable && file.appends_only(),
            ..flags
        };
        let handle = OpenFile::charged(inode.clone(), how, *ctx, charge)
            .inspect_err(|_| inode.ops().released(inode, writable))?;
        if flags.truncate {
            handle.truncate_at_open()?;
        }
        Ok(handle)
    }

    /// A name of `inode` is gone. Context: `moves` held.
    pub(super) fn lost_name(
        &self,
        inode: &SlabArc<Inode>,
        parent: &Inode,
        name: &OsStr,
        fd: OwnedFd,
    ) {
        let Ok(node) = DirNode::of(inode) else { return };
        let nlink = match inode.kind() {
            FileKind::Directory => 0,
            // A file that cannot be asked is taken for alive: at worst its pages stay a little longer.
            _ => fd::fstat(fd.as_fd()).map_or(1, |stat| stat.nlink),
        };
        node.lost_name(parent, name, &Arc::new(fd), nlink);
        if nlink == 0 {
            self.inodes.orphan(inode);
        }
    }

    /// Lets go of an inode that lost a name. If it has no other name and no other holder, all of it is given up. Otherwise another
    /// thread may be about to open it, and its pages stay.
    pub(super) fn put_unnamed(&self, inode: SlabArc<Inode>) {
        if let Ok(node) = DirNode::of(&inode) {
            if foliocache_sync::planted!(data_given_up_with_the_name) {
                node.discard_unnamed();
            }
            let opens = node.regular().map(|file| file.opens.lock());
            node.unpin(opens.as_deref());
        }
        Inode::put(inode);
    }
}

/// Whether a directory hands an access control list down to what is made in it.
fn has_default_acl(dir: BorrowedFd<'_>) -> Result<bool, Errno> {
    match xattr::get(dir, "system.posix_acl_default".as_ref()) {
        Ok(_) => Ok(true),
        Err(Errno::ENODATA | Errno::EOPNOTSUPP) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Checks a name but for its length: there the kernel knows what else may be wrong first.
pub(super) fn check_component(name: &OsStr) -> Result<(), Errno> {
    match check_name(name) {
        Err(Errno::ENAMETOOLONG) => Ok(()),
        checked => checked,
    }
}
