//! Where a node is found in the source, as names come and go.
//!
//! # Locking
//!
//! As [`node`](super) says.

use super::{DirNode, Location, is};
use crate::dirfs::state::{FileState, Opens};
use foliocache_sync::Arc;
use foliocache_sync::atomic::Ordering;
use foliocache_sync::time::coarse_monotonic_ms;
use foliocache_sys::fd::{FileKind, OwnedFd};
use foliocache_sys::{Errno, dir, fd};
use foliocache_vfs::{Inode, SlabArc};
use std::ffi::OsStr;
use std::mem;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

impl DirNode {
    /// The node was found under `name` in `parent`, whose names are locked.
    pub(in crate::dirfs) fn found_at(&self, parent: &SlabArc<Inode>, name: &OsStr) {
        let mut location = self.location.lock();
        match &*location {
            Location::Root => return,
            _ if self.is_unlinked() => return,
            Location::Named((known, at))
                if at[..] == *name.as_bytes() && SlabArc::ptr_eq(known, parent) =>
            {
                return;
            }
            _ => {}
        }
        let now = Location::Named((parent.clone(), name.as_bytes().into()));
        let gone = match mem::replace(&mut *location, now) {
            Location::Named(old) if self.kind != FileKind::Directory => {
                (None, self.spare.lock().replace(Box::new(old)))
            }
            old => (Some(old), None),
        };
        drop(location);
        drop(gone);
    }

    /// The node was moved away from this name. Context: `moves` held.
    pub(in crate::dirfs) fn left(&self, parent: &Inode, name: &OsStr) {
        let gone = self.spare.lock().take_if(|spare| is(spare, parent, name));
        drop(gone);
    }

    /// The name `name` in `parent` is gone; `fd` is a descriptor of the node, which has `nlink`
    /// names left. Context: `moves` held.
    pub(in crate::dirfs) fn lost_name(
        &self,
        parent: &Inode,
        name: &OsStr,
        fd: &Arc<OwnedFd>,
        nlink: u32,
    ) {
        self.left(parent, name);
        let mut location = self.location.lock();
        if nlink == 0 {
            // Relaxed: see the module's header.
            self.unlinked.store(true, Ordering::Relaxed);
        }
        let here = matches!(&*location, Location::Named(at) if is(at, parent, name));
        if here || nlink == 0 {
            let spare = self.spare.lock().take();
            let now = match spare {
                Some(spare) if nlink > 0 => Location::Named(*spare),
                _ => Location::Pinned(fd.clone()),
            };
            let old = mem::replace(&mut *location, now);
            drop(location);
            drop(old);
        }
    }

    /// Lets go of the descriptor of a closed file, all of whose known names are gone while it has others: it is kept as
    /// long as there is room, and a look-up of one of these names says where the file is. An open of one that is still in memory
    /// asks the source, see [`DirNode::pin`].
    ///
    /// Context: `opens` held, if it is a regular file.
    pub(in crate::dirfs) fn unpin(&self, opens: Option<&Opens>) {
        let handles = opens.as_ref().map(|opens| opens.handles);
        let in_use = |file: &FileState| {
            let dirty = file.mapping().is_some_and(|mapping| mapping.is_dirty());
            handles != Some(0) || file.unflushed() || dirty
        };
        if self.is_unlinked() || self.regular().is_some_and(in_use) {
            return;
        }
        let mut location = self.location.lock();
        if let Location::Pinned(fd) = &*location {
            let fd = fd.clone();
            *location = Location::Detached;
            drop(location);
            self.shared.keep_path(self.id, &fd);
            if let Some(file) = self.regular() {
                file.coherence(|machine| machine.opened(None));
            }
        }
    }

    /// The file is about to be opened: if none of its names is known, its descriptor is kept from now on.
    ///
    /// Context: `opens` held.
    ///
    /// # Errors
    /// `ESTALE` if it has none by now. A look-up that finds a name says where the file is.
    pub(in crate::dirfs) fn pin(&self) -> Result<(), Errno> {
        if matches!(&*self.location.lock(), Location::Detached) {
            self.pin_to(&self.held_fd().ok_or(Errno::ESTALE)?);
        }
        Ok(())
    }

    /// A descriptor leads to the file, if no name does.
    pub(in crate::dirfs) fn pin_to(&self, fd: &Arc<OwnedFd>) {
        let mut location = self.location.lock();
        if matches!(&*location, Location::Detached) {
            *location = Location::Pinned(fd.clone());
        }
    }

    /// Lets go of a node whose last name others removed, if its descriptor shows that; returns whether it does. From then on only
    /// the inode keeps the node. Without a descriptor a removed node looks like one that moved, and only memory is kept.
    pub(in crate::dirfs) fn give_up_if_removed(&self) -> bool {
        let Some(fd) = self.held_fd() else {
            self.give_up_place();
            return false;
        };
        if !fd::fstat(fd.as_fd()).is_ok_and(|stat| stat.nlink == 0) {
            return false;
        }
        let _moves = self.shared.moves.read();
        let mut location = self.location.lock();
        // Relaxed: see the module's header.
        self.unlinked.store(true, Ordering::Relaxed);
        let spare = self.spare.lock().take();
        let old = match &*location {
            // Nothing else keeps the descriptor now, and callers that looked the file up before may need it.
            Location::Named(_) | Location::Detached => {
                Some(mem::replace(&mut *location, Location::Pinned(fd)))
            }
            Location::Root | Location::Pinned(_) => None,
        };
        drop(location);
        drop((old, spare));
        self.shared.path_fds.remove(self.id);
        true
    }

    /// Lets go of the directory above if the node, which is closed, is no longer in it: the directory may be removed too. If
    /// the node moved, a look-up that finds it says where.
    fn give_up_place(&self) {
        let place = self.named();
        let by_name = self.by_name(|dir, name| Ok(((), dir::fstatat(dir, name)?)));
        let Some((parent, name)) = place.filter(|_| by_name.is_none()) else {
            return;
        };
        if let Some(file) = self.regular() {
            let opens = file.opens.lock();
            // Of a handle without a descriptor they are all that can be read.
            if opens.handles > 0 {
                file.coherence(|machine| machine.gone());
                return;
            }
            if let Some(mapping) = file.mapping() {
                mapping.invalidate(0, u64::MAX);
                if mapping.is_dirty() || file.unflushed() {
                    return;
                }
            }
            file.coherence(|machine| machine.opened(None));
        }
        let mut location = self.location.lock();
        if matches!(&*location, Location::Named(at) if is(at, &parent, &name)) {
            let old = mem::replace(&mut *location, Location::Detached);
            drop(location);
            drop(old);
        }
    }

    /// The node's name leads to another node: others replaced it.
    pub(in crate::dirfs) fn note_replaced(&self) {
        if let Some((parent, _)) = self.named() {
            Self::note_replaced_in(&parent);
        }
    }

    pub(in crate::dirfs) fn note_replaced_in(dir: &Inode) {
        if let Some(directory) = DirNode::of(dir).ok().and_then(DirNode::directory) {
            // Not 0. Relaxed: see [`replaced`](crate::dirfs::replaced).
            (directory.replaced_at).store(coarse_monotonic_ms().max(1), Ordering::Relaxed);
        }
    }
}
