//! An inode: what a name leads to.
//!
//! # Model
//!
//! ```text
//!  Inode ──mapping──▶ AddressSpace ──ops──▶ the file in the backing store
//!    │
//!    ├──attributes──▶ AttrCell
//!    │
//!    └──ops──▶ InodeOperations: the file system's own part
//! ```
//!
//! An inode is one object for as long as somebody holds it, so two look-ups of one file give the
//! same [`SlabArc`]. Its number is unique among the live inodes of its file system; with the generation
//! it is unique for good.
//!
//! Most files are only ever looked at. An address space is made when a file is opened, or its size
//! set, for the first time, and stays as long as the inode; until then the size is that of the
//! attributes. What a path walk and such a `stat` read of the inode is on its first line.
//!
//! # Invariants
//!
//! 1. Data and size of a file change through its address space alone. So what was read of the
//!    attributes while there was none is of one moment.
//!
//! # Locking
//!
//! *Protects*: `making` the making of the address space, so that a file system makes one at a time.
//! *Order*: rank `Mapping`, before what the file system takes to make one; never held otherwise. *May
//! block*: for I/O and for memory of the bound.
//!
//! # Memory ordering
//!
//! That of [`OnceLock`]: who sees an address space sees it made. Who sees, in the attributes, the
//! time of a write sees the address space that it went through, by the sequence counter.
//!
//! # Safety
//!
//! The link to the inode cache is the inode's own, and nothing else uses it. The file system's own part came in a
//! `SlabArc` of its type.
#![allow(unsafe_code)]

use crate::attr::AttrCell;
use crate::dcache::{AliasSlot, DentryInode};
use crate::icache::{CachedInode, InodeLink};
use crate::locks::FileLocks;
use crate::slab::SlabArc;
use crate::types::{Attr, FallocateMode, FileKind, OpContext, OpenFlags, SeekSparse};
use foliocache_mm::AddressSpace;
use foliocache_sync::cell::OnceLock;
use foliocache_sync::rank::{Rank, RankedMutex, RankedRwLock};
use foliocache_sync::{Arc, prefetch};
use foliocache_sys::Errno;
use std::any::Any;
use std::ffi::OsStr;
use std::fmt;
use std::ptr::{self, NonNull};

/// What a name leads to.
#[repr(C, align(64))]
pub struct Inode {
    ino: u64,
    generation: u64,
    attributes: SlabArc<AttrCell>,
    ops: SlabArc<dyn InodeOperations>,
    /// The pages of a regular file that was opened; empty for everything else.
    mapping: OnceLock<Arc<AddressSpace>>,
    kind: FileKind,
    // From here on nothing is read by a walk or a `stat`.
    /// Of the inode cache of a file system that has one.
    link: InodeLink<Inode>,
    /// The dentry of a directory.
    alias: AliasSlot<Inode>,
    /// Protects the names in a directory, and attributes while they are changed, see [`SuperBlock`](crate::SuperBlock).
    names: RankedRwLock<()>,
    making: RankedMutex<()>,
}

#[cfg(not(any(loom, shuttle)))]
const _: () = {
    use std::mem::offset_of;

    assert!(align_of::<Inode>() == 64);
    assert!(offset_of!(Inode, kind) + size_of::<FileKind>() <= 64);
    assert!(offset_of!(Inode, link) == 64);
};

/// What an inode takes besides what its file system keeps of it, in bytes, with its part of what is lost in its
/// page: what is charged are pages.
pub fn inode_bytes() -> u64 {
    (size_of::<Inode>() + size_of::<AttrCell>() + 128) as u64
}

/// A file system's own part of an inode: what an open file needs beyond the cache.
///
/// Each method may block on I/O and holds no lock of the inode's.
pub trait InodeOperations: Any + Send + Sync {
    /// The attributes as they are now.
    fn getattr(&self, inode: &Inode) -> Result<Attr, Errno>;

    /// Makes the address space of a regular file that has none yet, and charges it. Called by one
    /// thread at a time, and no more once it has succeeded.
    ///
    /// # Errors
    /// `ENOMEM` or `ENOSPC` if the bound has no room, those of the backing store.
    fn new_mapping(&self, inode: &Inode) -> Result<Arc<AddressSpace>, Errno>;

    /// The attributes, where they are known well enough at `now` (of [`coarse_monotonic_ms`]) that
    /// nobody need be asked. Takes no lock and no reference, so that it may run inside an RCU read
    /// section.
    ///
    /// [`coarse_monotonic_ms`]: foliocache_sys::clock::coarse_monotonic_ms
    ///
    /// Says whether it did, and if so fills `attr` in: several words that are copied from hand to hand take
    /// longer than the whole walk to them.
    fn cached_attr(&self, _inode: &Inode, _now: u64, _attr: &mut Attr) -> bool {
        false
    }

    /// The attributes that were known last, of a file that can no longer be found in the store. Does not block.
    fn last_attr(&self, _inode: &Inode) -> Option<Attr> {
        None
    }

    /// Asks the processor for what opening the file looks at.
    fn prefetch(&self) {}

    /// A write moved the times of a regular file, maybe after its data was written back: what the store has is to be set again.
    fn times_moved(&self) {}

    /// What a symbolic link holds, where that is known without asking. As
    /// [`InodeOperations::cached_attr`].
    fn cached_target(&self) -> Option<&OsStr> {
        None
    }

    /// Clears the set-id bits before a write by somebody other than root, who is in the file's group or not: see
    /// [`written_mode`](crate::written_mode).
    #[doc(alias = "file_remove_privs")]
    fn remove_privileges(&self, inode: &Inode, in_group: bool) -> Result<(), Errno>;

    /// Makes the attributes and the name durable, after the data was; with `datasync` only what
    /// is needed to find the data again.
    fn sync(&self, inode: &Inode, datasync: bool) -> Result<(), Errno>;

    /// As `fallocate(2)` in the backing store; the cache is told by the caller.
    fn allocate(&self, inode: &Inode, mode: FallocateMode, pos: u64, len: u64)
    -> Result<(), Errno>;

    /// As `lseek(2)`; `ENXIO` at or past the end of the file.
    fn seek_sparse(&self, inode: &Inode, what: SeekSparse, pos: u64) -> Result<u64, Errno>;

    /// What was asked of the store when the attributes had so many doubts ([`AttrCell::doubts`]), to open the file, was asked while
    /// somebody would have told of changes: it holds until somebody doubts.
    fn asked_while_watched(&self, _doubts: u32) {}

    /// Has what is not cached stay readable for as long as the file is open, whatever becomes of its name. May block on I/O.
    ///
    /// # Errors
    /// Those of the backing store.
    fn keep_readable(&self) -> Result<(), Errno> {
        Ok(())
    }

    /// Writes what is dirty to the backing store, without making it durable. What fails stays dirty, and is told by the file's
    /// error sequence. May block on I/O.
    fn write_back(&self, _inode: &Inode) {}

    /// Whether the backing store lacks something that was written. Does not block.
    fn has_unwritten(&self, inode: &Inode) -> bool {
        (inode.mapping()).is_some_and(|mapping| mapping.has_unwritten())
    }

    /// As [`InodeOperations::write_back`], and waits for what is being written: the backing store has all that was written before.
    /// May block on I/O.
    ///
    /// # Errors
    /// The backing store's; what it could not take stays dirty.
    fn write_and_wait(&self, _inode: &Inode) -> Result<(), Errno> {
        Ok(())
    }

    /// Looks at the backing store as an open does: whether others changed the file, and that was taken over. While something of ours
    /// waits to be written, ours holds. May block on I/O.
    ///
    /// # Errors
    /// The backing store's; `EBUSY` if a change cannot be taken over.
    fn revalidate(&self, _inode: &Inode) -> Result<bool, Errno> {
        Ok(false)
    }

    /// Locks of a handle of the file, which was opened in this way; none is taken yet. Opens a descriptor; may block on I/O.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the file system has none; those of `open(2)`.
    fn new_locks(&self, _inode: &Inode, _flags: OpenFlags) -> Result<Box<dyn FileLocks>, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Handles that may write, roughly: more than 0 if there is one. Does not wait.
    fn writers(&self) -> u32 {
        0
    }

    /// An open file has one handle more: [`InodeOperations::released`] will be called once more.
    fn duplicated(&self, _inode: &Inode, _writable: bool) {}

    /// An open file was closed.
    fn released(&self, inode: &Inode, writable: bool);

    /// The inode is dead: its last reference is gone, but for those that wait for RCU readers. Gives up what it
    /// takes besides its memory, its pages and descriptors for instance. Called once at most, before the inode is
    /// dropped; an inode whose last reference goes otherwise than by [`Inode::put`] is dropped without it.
    #[doc(alias = "evict_inode")]
    fn evict(&self, _inode: &Inode) {}

    /// The inode is dropped, after [`InodeOperations::evict`] or without it. Gives up what of its pages would be written for
    /// nobody. Reclaim may be the one who drops it: does not wait, and takes no locks but leaves.
    fn dropped(&self, _inode: &Inode) {}
}

impl Inode {
    /// An inode of a file system whose own part is `ops`.
    pub fn new(
        ino: u64,
        generation: u64,
        kind: FileKind,
        attributes: SlabArc<AttrCell>,
        ops: SlabArc<impl InodeOperations>,
    ) -> Inode {
        let ops: NonNull<dyn InodeOperations> = ops.into_raw();
        Inode {
            ino,
            generation,
            attributes,
            // SAFETY: from `into_raw` above, and taken over once.
            ops: unsafe { SlabArc::from_raw(ops) },
            mapping: OnceLock::new(),
            kind,
            link: InodeLink::default(),
            alias: AliasSlot::default(),
            names: RankedRwLock::new(Rank::Names, ()),
            making: RankedMutex::new(Rank::Mapping, ()),
        }
    }

    /// Drops a reference. If it is the last one, what the inode takes besides its memory is given up at once,
    /// though readers may still look at the inode itself.
    ///
    /// A plain drop is right too, but leaves that to the end of a grace period.
    ///
    /// Context: no lock that [`InodeOperations::evict`] takes, and no read section; may block.
    #[doc(alias = "iput")]
    pub fn put(this: SlabArc<Self>) {
        this.put(|inode| inode.ops.evict(inode));
    }

    /// The number, unique among the live inodes of the file system; the root's is 1.
    pub fn ino(&self) -> u64 {
        self.ino
    }

    /// Tells inodes apart that had the same number one after the other.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// What the inode is.
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// The lock of the names in a directory, and of changes of attributes.
    #[doc(alias = "i_rwsem")]
    pub(crate) fn names(&self) -> &RankedRwLock<()> {
        &self.names
    }

    /// The pages of a regular file; `None` if it was never opened, for everything else, too. No page
    /// was ever cached then, and nothing of ours waits to be written.
    #[inline]
    pub fn mapping(&self) -> Option<&Arc<AddressSpace>> {
        self.mapping.get()
    }

    /// The pages of a regular file that is about to be used: its address space is made, and charged
    /// to the bound, if there is none yet.
    ///
    /// Context: no lock of the file system's own, no RCU read section; the first time it may block on
    /// I/O, and reclaims memory.
    ///
    /// # Errors
    /// `EINVAL` for what is no regular file, those of [`InodeOperations::new_mapping`].
    pub fn open_mapping(&self) -> Result<&Arc<AddressSpace>, Errno> {
        match self.mapping.get() {
            Some(mapping) => Ok(mapping),
            None => self.make_mapping(),
        }
    }

    #[cold]
    fn make_mapping(&self) -> Result<&Arc<AddressSpace>, Errno> {
        if self.kind != FileKind::Regular {
            return Err(Errno::EINVAL);
        }
        let _making = self.making.lock();
        if let Some(mapping) = self.mapping.get() {
            return Ok(mapping);
        }
        let made = self.ops.new_mapping(self)?;
        Ok(self.mapping.get_or_init(|| made))
    }

    /// The attributes, where nobody need be asked: [`InodeOperations::cached_attr`], whose file system
    /// is not called where there is a store, and nothing on its way there.
    #[inline(always)]
    pub fn cached_attr(&self, now: u64, attr: &mut Attr) -> bool {
        if self.attributes.is_believed(now)
            && let Some(settled) = self.attributes.get_settled()
        {
            *attr = settled.of(self.ino, self.kind);
            return true;
        }
        let mapping = self.mapping.get();
        if let Some(mapping) = mapping {
            mapping.prefetch();
        }
        let simple = |mapping: &Arc<AddressSpace>| {
            self.attributes.has_store() && !mapping.has_pages_to_write()
        };
        if self.attributes.is_believed(now)
            && mapping.is_none_or(simple)
            && let Some(compared) = self.attributes.get_compared()
        {
            *attr = compared.of(self.ino, self.kind);
            if let Some(mapping) = mapping {
                attr.size = mapping.size();
            }
            // Still: the size belongs to the times (invariant 1).
            if mapping.is_some() || self.mapping.get().is_none() {
                return true;
            }
        }
        self.ops.cached_attr(self, now, attr)
    }

    /// Asks the processor for what opening the file looks at, side by side: the references that are taken on the way are
    /// waited for one by one.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch(ptr::from_ref(self).wrapping_byte_sub(64));
        prefetch(&*self.attributes);
        self.ops.prefetch();
        if let Some(mapping) = self.mapping.get() {
            // What counts references comes before.
            prefetch(Arc::as_ptr(mapping).wrapping_byte_sub(64));
            mapping.prefetch();
        }
    }

    /// The attributes in memory.
    pub fn attributes(&self) -> &SlabArc<AttrCell> {
        &self.attributes
    }

    /// The data changed now: moves the times.
    #[inline]
    pub fn data_changed(&self) {
        if self.attributes.data_changed() {
            self.ops.times_moved();
        }
    }

    /// The file system's own part.
    pub fn ops(&self) -> &dyn InodeOperations {
        &*self.ops
    }

    /// The file system's own part, if it is of type `T`.
    pub fn private<T: InodeOperations>(&self) -> Option<&T> {
        (&*self.ops as &dyn Any).downcast_ref()
    }

    /// As [`Inode::private`], to be kept.
    pub fn private_arc<T: InodeOperations>(&self) -> Option<SlabArc<T>> {
        let ops = self.private::<T>()?;
        // SAFETY: `ops` is borrowed from the inode's reference, which came as a `SlabArc<T>`.
        Some(unsafe { SlabArc::from_borrow(ops) })
    }

    /// Whether a write by this caller has privileges to remove first, which may block.
    #[inline]
    pub fn has_privileges_to_remove(&self, ctx: &OpContext) -> bool {
        ctx.uid != 0 && self.attributes.has_set_id()
    }

    /// Clears set-id bits if `ctx` is not root's and there are any: it is taken for one of the file's group.
    #[inline]
    pub fn remove_privileges(&self, ctx: &OpContext) -> Result<(), Errno> {
        if self.has_privileges_to_remove(ctx) && !foliocache_sync::planted!(set_id_bits_kept) {
            self.ops.remove_privileges(self, true)?;
        }
        Ok(())
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        self.ops.dropped(self);
    }
}

impl DentryInode for Inode {
    fn beside(&self) -> *const () {
        ptr::from_ref(&*self.attributes).cast()
    }

    fn is_dir(&self) -> bool {
        self.is_directory()
    }

    fn alias(&self) -> &AliasSlot<Inode> {
        &self.alias
    }

    /// Who is told of a change of a file finds it by the name.
    fn name_gone(&self) {
        if !self.is_directory() {
            self.attributes.unwatched();
        }
    }
}

// SAFETY: the field.
unsafe impl CachedInode for Inode {
    fn link(&self) -> &InodeLink<Inode> {
        &self.link
    }
}

impl fmt::Debug for Inode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inode")
            .field("ino", &self.ino)
            .field("generation", &self.generation)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}
