//! A node of the source: its identity, its place, and how it is found again.
//!
//! # Model
//!
//! ```text
//!  identity   (device, inode number, birth time)
//!  location   (parent, name): where it was seen last
//!  path_fd()  walks there from the root, one component at a time, and compares the identity of each
//! ```
//!
//! No descriptor has to stay open for a node to be found again, so there may be more nodes than
//! descriptors. Every step of a walk is `openat` of one component with `O_PATH | O_NOFOLLOW`, so no
//! name leads out of the source, also if others rename directories or replace them by links meanwhile.
//!
//! # Invariants
//!
//! 1. A descriptor that [`DirNode::path_fd`] returns has the node's identity.
//! 2. `location` is [`Location::Pinned`] once no name is known to lead to the node; `spare` is
//!    another name that led to it, so that a file of several names needs no descriptor when one is
//!    taken away.
//! 3. A call that takes a name of the source away, or moves it, holds `Shared::moves` for reading until
//!    the locations say so. A node that is not found where it was seen last is gone if it is not found with `moves` held
//!    for writing, either.
//! 4. A node that is unlinked stays so.
//!
//! # Locking
//!
//! `moves` is taken before `location`, and that before `spare`; [`DirNode::path_fd`] takes `moves` itself, so a caller that
//! needs both gets its descriptors first.
//!
//! # Memory ordering
//!
//! `unlinked` is `Relaxed`: it is set under `location` and read there, or by calls that come after it, or that
//! may as well have come before. A reader without that lock that needs the descriptor looks at `location` afterwards.

mod location;

use super::Shared;
use super::identity::Identity;
use super::listing::ListingSlot;
use super::orphans::Orphans;
use super::state::FileState;
use super::sync_calls::SyncCall;
use foliocache_sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use foliocache_sync::cell::OnceLock;
use foliocache_sync::durability::Durability;
use foliocache_sync::rank::{LeafMutex, Rank, RankedMutex};
use foliocache_sync::{Arc, Weak, prefetch};
use foliocache_sys::fd::{FileKind, OFlags, Stat};
use foliocache_sys::{Errno, dir, fd};
use foliocache_vfs::{AttrCell, Inode, SlabArc};
use smallvec::SmallVec;
use std::ffi::{OsStr, OsString};
use std::mem::{self, offset_of};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::ptr;

/// Longest target of a symbolic link that is kept, in bytes: part of what an inode is charged.
const LONGEST_TARGET: usize = 256;

/// A name in a directory. Up to 32 bytes take no memory besides the node's, which is charged.
pub(super) type NodeName = SmallVec<[u8; 32]>;

/// A directory, and a name in it.
type ParentAndName = (SlabArc<Inode>, NodeName);

fn is((known, at): &ParentAndName, parent: &Inode, name: &OsStr) -> bool {
    at[..] == *name.as_bytes() && known.ino() == parent.ino()
}

/// Where a node was seen last.
pub(super) enum Location {
    /// The source itself.
    Root,
    /// Under this name.
    Named(ParentAndName),
    /// Under no name that is known; this descriptor keeps it alive.
    Pinned(Arc<OwnedFd>),
    /// Out of reach: the file system is gone, or the node is and no call can reach it any more.
    Detached,
}

/// A node of the source, the private part of an inode of `dirfs`.
#[repr(C)]
pub(super) struct DirNode {
    // The fields that opening and closing a file looks at lie together, up to the beginning of `kind_state`.
    pub(super) shared: Arc<Shared>,
    pub(super) attributes: SlabArc<AttrCell>,
    pub(super) kind: FileKind,
    /// Whether no name leads to the node any more.
    unlinked: AtomicBool,
    kind_state: KindState,
    /// Number of the node, never used twice.
    pub(super) id: u64,
    /// Number of its inode.
    ino: u64,
    pub(super) identity: Identity,
    pub(super) location: RankedMutex<{ Rank::Location as u8 }, Location>,
    /// Where it was seen before that, as far as that name is not known to be gone.
    spare: LeafMutex<Option<Box<ParentAndName>>>,
    /// Its name, and those of the directories above it.
    name: Durability,
    /// Where its number is taken, once it can no longer be found.
    pub(super) orphaned: OnceLock<Weak<Orphans>>,
}

/// The part of a node that its kind has.
#[allow(
    clippy::large_enum_variant,
    reason = "most nodes are files, and all are of one slab"
)]
enum KindState {
    File(FileState),
    Directory(DirectoryState),
    /// The target of a symbolic link, once it was asked for: it never changes. Empty where the source tells no birth times.
    Symlink(OnceLock<OsString>),
    Other,
}

/// A directory's watch: none yet.
pub(super) const NOT_WATCHED: i32 = 0;

/// The part of a node that directories have.
pub(super) struct DirectoryState {
    /// The number of its watch, see [`watch`](super::watch).
    pub(super) watch: AtomicI32,
    /// Its entries, see [`listing`](super::listing).
    pub(super) listing: ListingSlot,
    /// When others gave one of its names to something else, see [`replaced`](super::replaced).
    pub(super) replaced_at: AtomicU64,
}

/// Bytes of a node, about.
pub(super) const NODE_BYTES: u64 = size_of::<DirNode>() as u64;

/// Seven nodes fit into a page of their slab.
#[cfg(target_pointer_width = "64")]
#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<DirNode>() <= 560);

impl DirNode {
    pub(super) fn new(
        shared: &Arc<Shared>,
        ino: u64,
        stat: &Stat,
        attributes: SlabArc<AttrCell>,
        location: Location,
    ) -> DirNode {
        let kind = stat.kind;
        let node = DirNode {
            shared: shared.clone(),
            // Relaxed: they need only differ.
            id: shared.next_node.fetch_add(1, Ordering::Relaxed),
            ino,
            identity: Identity::of(stat),
            kind,
            attributes,
            location: RankedMutex::new(location),
            spare: LeafMutex::new(None),
            kind_state: match kind {
                FileKind::Regular => KindState::File(FileState::new(shared.options.exclusive)),
                FileKind::Directory => KindState::Directory(DirectoryState {
                    watch: AtomicI32::new(NOT_WATCHED),
                    listing: ListingSlot::default(),
                    replaced_at: AtomicU64::new(0),
                }),
                FileKind::Symlink => KindState::Symlink(OnceLock::new()),
                _ => KindState::Other,
            },
            name: Durability::new(),
            unlinked: AtomicBool::new(false),
            orphaned: OnceLock::new(),
        };
        if !shared.forgotten_on(node.identity.dev).is_durable() {
            // This may be one of those whose inodes were evicted.
            node.name_changed();
            if let Some(file) = node.regular() {
                file.attributes.changed();
            }
        }
        node
    }

    /// The node behind an inode of this file system.
    ///
    /// # Errors
    /// `EXDEV` for an inode of another one.
    pub(super) fn of(inode: &Inode) -> Result<&DirNode, Errno> {
        inode.private().ok_or(Errno::EXDEV)
    }

    /// The part that regular files have.
    pub(super) fn regular(&self) -> Option<&FileState> {
        match &self.kind_state {
            KindState::File(file) => Some(file),
            _ => None,
        }
    }

    /// As [`DirNode::regular`], of a node that has an address space or descriptors: only regular files do.
    pub(super) fn file(&self) -> &FileState {
        self.regular()
            .expect("only regular files have an address space")
    }

    /// Asks the processor for what opening a file looks at. Does not look whether this is one: the locked
    /// operations that follow would wait for that line.
    pub(super) fn prefetch_file(&self) {
        const END: usize = offset_of!(DirNode, kind_state) + FileState::OPENED_BYTES;
        #[cfg(not(any(loom, shuttle)))]
        const _: () = assert!(END <= 128);
        let first = ptr::from_ref(self).cast::<u8>();
        prefetch(first);
        prefetch(first.wrapping_add(64));
        prefetch(first.wrapping_add(END));
    }

    /// The part that directories have.
    pub(super) fn directory(&self) -> Option<&DirectoryState> {
        match &self.kind_state {
            KindState::Directory(directory) => Some(directory),
            _ => None,
        }
    }

    /// The target of a symbolic link, if it is kept.
    pub(super) fn cached_link(&self) -> Option<&OsString> {
        match &self.kind_state {
            KindState::Symlink(target) => target.get(),
            _ => None,
        }
    }

    /// A descriptor of the node, good for everything but I/O.
    ///
    /// Context: takes `moves` if the node is not where it was seen last; may block.
    ///
    /// # Errors
    /// `ESTALE` if the node is no longer where it was seen last, `ENOENT` if it was unlinked and let
    /// go of; those of `openat(2)`.
    pub(super) fn path_fd(&self) -> Result<Arc<OwnedFd>, Errno> {
        if let Some(fd) = self.held_fd() {
            return Ok(fd);
        }
        if self.is_unlinked() {
            // Its descriptor is kept from the moment that it is unlinked, which may have just been.
            return self.held_fd().ok_or(Errno::ENOENT);
        }
        match self.walk() {
            Err(Errno::ESTALE) => {}
            done => return done,
        }
        // It, or a directory above it, may be on its way.
        let _moves = self.shared.moves.write();
        self.walk()
    }

    /// A descriptor that is open anyway.
    fn held_fd(&self) -> Option<Arc<OwnedFd>> {
        match &*self.location.lock() {
            Location::Root => return Some(self.shared.root.clone()),
            Location::Pinned(fd) => return Some(fd.clone()),
            Location::Named(_) | Location::Detached => {}
        }
        // Its own first: the others are behind a lock that it shares.
        let own = self.regular().and_then(FileState::any_fd);
        own.or_else(|| self.shared.path_fds.get(self.id))
    }

    /// Walks from the nearest ancestor that has a descriptor.
    fn walk(&self) -> Result<Arc<OwnedFd>, Errno> {
        let Some((mut parent, name)) = self.named() else {
            return self.held_fd().ok_or(Errno::ESTALE);
        };
        let mut names = vec![(None, name)];
        let mut at = loop {
            let node = DirNode::of(&parent)?;
            if let Some(fd) = node.held_fd() {
                break fd;
            }
            let (above, name) = node.named().ok_or(Errno::ESTALE)?;
            let below = mem::replace(&mut parent, above);
            names.push((Some(below), name));
        };
        while let Some((inode, name)) = names.pop() {
            let node = match &inode {
                Some(inode) => DirNode::of(inode)?,
                None => self,
            };
            let open = || dir::openat(at.as_fd(), &name, OFlags::PATH, 0);
            let found = match self.shared.with_room(open) {
                Ok(found) => Arc::new(found),
                Err(Errno::ENOENT | Errno::ENOTDIR) => return Err(Errno::ESTALE),
                Err(error) => return Err(error),
            };
            if Identity::of(&fd::fstat(found.as_fd())?) != node.identity {
                node.note_replaced();
                return Err(Errno::ESTALE);
            }
            self.shared.keep_path(node.id, &found);
            at = found;
        }
        Ok(at)
    }

    /// Runs `by_name` on the directory above and the name in it. `None` if neither is known, or the name leads to another
    /// node now.
    fn by_name<R>(
        &self,
        by_name: impl FnOnce(BorrowedFd<'_>, &OsStr) -> Result<(R, Stat), Errno>,
    ) -> Option<(R, Stat)> {
        let (parent, name) = self.named().filter(|_| !self.is_unlinked())?;
        let dir = DirNode::of(&parent).and_then(DirNode::path_fd).ok()?;
        let found = by_name(dir.as_fd(), &name).ok()?;
        if Identity::of(&found.1) != self.identity {
            self.note_replaced();
            return None;
        }
        Some(found)
    }

    /// The attributes that the source shows; opens no descriptor where the name is enough.
    ///
    /// # Errors
    /// As [`DirNode::path_fd`], and those of `statx(2)`.
    pub(super) fn stat(&self) -> Result<Stat, Errno> {
        let by_name = || self.by_name(|dir, name| Ok(((), dir::fstatat(dir, name)?)));
        match self.held_fd() {
            Some(fd) => fd::fstat(fd.as_fd()),
            None => match by_name() {
                Some(((), stat)) => Ok(stat),
                None => fd::fstat(self.path_fd()?.as_fd()),
            },
        }
    }

    /// A new descriptor of a regular file, with these flags, and what the source said of the file if it was asked.
    ///
    /// # Errors
    /// As [`DirNode::path_fd`], and those of `openat(2)`.
    pub(super) fn open(&self, flags: OFlags) -> Result<(OwnedFd, Option<Stat>), Errno> {
        // By now there may be a FIFO.
        let careful = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let by_name = || {
            self.by_name(|dir, name| {
                let fd = dir::openat(dir, name, careful, 0)?;
                let stat = fd::fstat(fd.as_fd())?;
                Ok((fd, stat))
            })
        };
        match self.held_fd() {
            None if let Some((fd, stat)) = by_name() => Ok((fd, Some(stat))),
            Some(fd) => Ok((fd::reopen(fd.as_fd(), flags)?, None)),
            None => Ok((fd::reopen(self.path_fd()?.as_fd(), flags)?, None)),
        }
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// As [`DirNode::path_fd`], and those of `readlinkat(2)`.
    pub(super) fn target(&self) -> Result<OsString, Errno> {
        if let Some(target) = self.cached_link() {
            return Ok(target.clone());
        }
        let target = dir::readlink_fd(self.path_fd()?.as_fd())?;
        self.keep_target(&target);
        Ok(target)
    }

    /// Keeps what a symbolic link holds. Not of a node that may be another link by now, with the same number.
    fn keep_target(&self, target: &OsString) {
        // A longer one is not paid for.
        if target.len() <= LONGEST_TARGET
            && self.identity.is_for_good()
            && let KindState::Symlink(kept) = &self.kind_state
        {
            kept.get_or_init(|| target.clone());
        }
    }

    /// Parent and name, if the node has them.
    pub(super) fn named(&self) -> Option<(SlabArc<Inode>, OsString)> {
        match &*self.location.lock() {
            Location::Named((parent, name)) => {
                Some((parent.clone(), OsStr::from_bytes(name).to_owned()))
            }
            Location::Root | Location::Pinned(_) | Location::Detached => None,
        }
    }

    /// Lets go of the directory above, or of the descriptor that keeps the node.
    pub(super) fn detach(&self) {
        let mut location = self.location.lock();
        let old = mem::replace(&mut *location, Location::Detached);
        let spare = self.spare.lock().take();
        drop(location);
        drop((old, spare));
    }

    /// Whether no name leads to the node.
    pub(super) fn is_unlinked(&self) -> bool {
        // Relaxed: see the module's header.
        self.unlinked.load(Ordering::Relaxed)
    }

    /// The node got a name, which is not durable yet.
    pub(super) fn name_changed(&self) {
        self.name.changed();
    }

    /// Whether something besides its pages is still on the way to the backing store. Never blocks.
    pub(super) fn is_busy(&self) -> bool {
        self.regular().is_some_and(FileState::unflushed)
    }

    /// The inode is about to be evicted. A name or attributes that are not durable yet are noted for the whole file system, and
    /// the change time for the file, see [`ctimes`](super::ctimes).
    pub(super) fn note_eviction(&self) {
        let attributes = |file: &FileState| file.attributes.is_durable();
        let durable = self.name.is_durable() && self.regular().is_none_or(attributes);
        if !durable && !self.is_unlinked() {
            self.shared.forgotten_on(self.identity.dev).changed();
        }
        let ctimes = &self.shared.ctimes;
        let Some(file) = self.regular() else { return };
        let (seen, noted) = {
            let mut io = file.io.lock();
            (io.coherence.seen(), mem::take(&mut io.noted))
        };
        if noted {
            ctimes.expected();
        }
        if let Some(seen) = seen.filter(|_| !self.is_unlinked()) {
            ctimes.note(&self.identity, seen.ctime, self.attributes.get().ctime);
        }
    }

    /// Makes the node's name durable if it is new, and before it those of the directories above.
    ///
    /// # Errors
    /// Those of `fsync(2)`; the names then still count as new.
    pub(super) fn sync_name(&self) -> Result<(), Errno> {
        // From the node up: what a sync of each name covers, and the directory that the name is in.
        let mut names: Vec<(u32, SlabArc<Inode>)> = Vec::new();
        loop {
            let node = match names.last() {
                Some((_, above)) => DirNode::of(above)?,
                None => self,
            };
            // The generation before the directory: a move that comes between makes the name new again.
            let Some(begun) = node.name.begin() else {
                break;
            };
            let Some((parent, _)) = node.named() else {
                break;
            };
            names.push((begun, parent));
            if foliocache_sync::planted!(directories_above_not_synced) {
                break;
            }
        }
        while let Some((begun, parent)) = names.pop() {
            DirNode::of(&parent)?.sync_directory(self)?;
            let node = match names.last() {
                Some((_, above)) => DirNode::of(above)?,
                None => self,
            };
            node.name.end(begun);
        }
        Ok(())
    }

    /// Makes the names in a directory durable: with all of its file system if it may not be opened for reading, by a descriptor
    /// of `other`.
    ///
    /// # Errors
    /// As [`DirNode::path_fd`], and those of `openat(2)` and `fsync(2)`.
    pub(super) fn sync_directory(&self, other: &DirNode) -> Result<(), Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let open = || {
            let path = self.path_fd()?;
            self.shared.with_room(|| fd::reopen(path.as_fd(), flags))
        };
        let calls = &self.shared.sync_calls;
        match open() {
            Err(Errno::EACCES) => self.sync_file_system(other),
            directory => calls.make(SyncCall::Directory, &directory?, self.identity.dev),
        }
    }

    /// Makes everything durable on the file system of a node that may not be opened, by a descriptor of `other` or of the
    /// source itself.
    ///
    /// # Errors
    /// `EACCES` if neither can be had; those of `syncfs(2)`.
    pub(super) fn sync_file_system(&self, other: &DirNode) -> Result<(), Errno> {
        let (dev, calls) = (self.identity.dev, &self.shared.sync_calls);
        let is_here = |_: &&FileState| other.identity.dev == dev;
        let root = || match dev == calls.dev {
            true => self.shared.reopen_root().map(Arc::new),
            false => Err(Errno::EACCES),
        };
        let of_other = other.regular().filter(is_here).and_then(FileState::any_fd);
        let any = of_other.map_or_else(root, Ok)?;
        calls.make(SyncCall::All, &any, dev)?;
        fd::check_journal(any.as_fd())
    }

    /// A path for messages, relative to the source.
    pub(super) fn display_path(&self) -> String {
        let mut names = Vec::new();
        let mut next = self.named();
        if next.is_none() && !matches!(&*self.location.lock(), Location::Root) {
            return format!(
                "{}/(unlinked, inode {})",
                self.shared.name, self.identity.ino
            );
        }
        while let Some((parent, name)) = next {
            names.push(name);
            next = DirNode::of(&parent).ok().and_then(|node| node.named());
        }
        let mut path = self.shared.name.clone();
        for name in names.iter().rev() {
            path.push('/');
            path.push_str(&name.to_string_lossy());
        }
        path
    }
}

impl Drop for DirNode {
    fn drop(&mut self) {
        if let Some(orphans) = self.orphaned.get().and_then(Weak::upgrade) {
            orphans.remove(self.ino);
        }
        if self.regular().is_some_and(|file| file.io.lock().noted) {
            self.shared.ctimes.expected();
        }
        self.shared.path_fds.remove(self.id);
        if let Some(held) = &self.shared.held {
            held.forget(self.id);
        }
        if let Some((directory, watches)) = self.directory().zip(self.shared.watches.as_ref()) {
            watches.remove(&directory.watch);
        }
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use super::super::{DirFs, DirFsOptions};
    use super::*;
    use foliocache_mm::{Mm, MmConfig};
    use foliocache_vfs::FileSystem;

    /// As `ln -sfn` does twice: the second link has the number of the one before the first.
    #[test]
    fn a_link_without_a_birth_time_may_be_another_by_now() {
        let source = tempfile::tempdir().expect("a directory");
        let mm = Mm::new(MmConfig::new(16 << 20)).expect("a cache");
        let fs = DirFs::open(&mm, source.path(), DirFsOptions::default()).expect("dirfs");
        let (root, name) = (fs.root(), OsStr::new("link"));
        for has_birth in [true, false] {
            std::os::unix::fs::symlink("a", source.path().join("link")).expect("a link");
            let mut stat = dir::fstatat(fs.shared.root.as_fd(), name).expect("its attributes");
            if !has_birth {
                stat.attr.btime = None;
            }
            let has_birth = stat.btime.is_some();
            let (first, _) = fs.adopt(&root, name, &stat).expect("an inode");
            DirNode::of(&first).unwrap().keep_target(&"a".into());
            stat.attr.ctime.sec += 1;
            let (second, _) = fs.adopt(&root, name, &stat).expect("an inode");
            assert!(SlabArc::ptr_eq(&first, &second));
            let kept = DirNode::of(&second).unwrap().cached_link();
            assert_eq!(kept.is_some(), has_birth);
            std::fs::remove_file(source.path().join("link")).expect("it is there");
        }
    }
}
