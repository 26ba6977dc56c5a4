//! An inode: the object behind a name.
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
//! An inode is one object while it has a holder, so two look-ups of one file return the same [`SlabArc`]. Its
//! number is unique among the live inodes of its file system; with the generation it is unique for good.
//!
//! Most files are only ever examined. An address space is made when a file is first opened, or its
//! size first set, and stays as long as the inode; until then the size is that of the attributes. A
//! path walk and such a `stat` read only the inode's first line.
//!
//! # Invariants
//!
//! 1. Data and size of a file change through its address space alone. So attributes that were read
//!    while there was none are a consistent snapshot.
//!
//! # Locking
//!
//! *Protects*: `making` the making of the address space, so that a file system makes one at a time. *Order*: rank
//! `Mapping`, before the file system's locks for making one; never held otherwise. *May block*: for I/O and for
//! memory of the bound.
//!
//! # Memory ordering
//!
//! That of [`OnceLock`]: a thread that sees an address space sees it complete. A thread that sees
//! the time of a write in the attributes sees the address space of that write, through the sequence
//! counter.
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
use crate::types::{Attr, FallocateMode, FileKind, OpContext, OpenFlags, SeekSparse};
use foliocache_mm::AddressSpace;
use foliocache_mm::slab::SlabArc;
use foliocache_sync::cell::OnceLock;
use foliocache_sync::prefetch;
use foliocache_sync::rank::{Rank, RankedMutex, RankedRwLock};
use foliocache_sys::Errno;
use std::any::Any;
use std::ffi::OsStr;
use std::fmt;
use std::ptr::{self, NonNull};

/// The object behind a name.
#[repr(C, align(64))]
pub struct Inode {
    ino: u64,
    generation: u64,
    attributes: SlabArc<AttrCell>,
    ops: SlabArc<dyn InodeOperations>,
    /// The pages of a regular file that was opened; empty for everything else.
    mapping: OnceLock<SlabArc<AddressSpace>>,
    kind: FileKind,
    // From here on nothing is read by a walk or a `stat`.
    /// Of the inode cache of a file system that has one.
    link: InodeLink<Inode>,
    /// The dentry of a directory.
    alias: AliasSlot<Inode>,
    /// Protects the names in a directory, and attributes while they are changed, see [`SuperBlock`](crate::SuperBlock).
    names: RankedRwLock<{ Rank::Names as u8 }, ()>,
    making: RankedMutex<{ Rank::Mapping as u8 }, ()>,
}

#[cfg(not(any(loom, shuttle)))]
const _: () = {
    use std::mem::offset_of;

    assert!(align_of::<Inode>() == 64);
    assert!(offset_of!(Inode, kind) + size_of::<FileKind>() <= 64);
    assert!(offset_of!(Inode, link) == 64);
};

/// The memory of an inode besides its file system's part, in bytes, with its share of the unused rest of its page:
/// charges are by the page.
pub fn inode_bytes() -> u64 {
    (size_of::<Inode>() + size_of::<AttrCell>() + 128) as u64
}

/// A file system's part of an inode: operations of an open file beyond the cache.
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
    fn new_mapping(&self, inode: &Inode) -> Result<SlabArc<AddressSpace>, Errno>;

    /// The attributes, if they are valid at `now` (of [`coarse_monotonic_ms`]) without asking the
    /// store. Takes no lock and no reference, so it may run inside an RCU read section.
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

    /// Prefetches the memory that opening the file reads.
    fn prefetch(&self) {}

    /// A write changed the times of a regular file, perhaps after its data was written back: the
    /// store's times must be set again.
    fn times_moved(&self) {}

    /// The target of a symbolic link, if it is known without asking. As
    /// [`InodeOperations::cached_attr`].
    fn cached_target(&self) -> Option<&OsStr> {
        None
    }

    /// Clears the set-id bits before an unprivileged write, by a member of the file's group or not: see
    /// [`written_mode`](crate::written_mode).
    #[doc(alias = "file_remove_privs")]
    fn remove_privileges(&self, inode: &Inode, in_group: bool) -> Result<(), Errno>;

    /// Makes the attributes and the name durable, after the data; with `datasync` only those that
    /// are needed to find the data again.
    fn sync(&self, inode: &Inode, datasync: bool) -> Result<(), Errno>;

    /// As `fallocate(2)` in the backing store; the caller updates the cache.
    fn allocate(&self, inode: &Inode, mode: FallocateMode, pos: u64, len: u64)
    -> Result<(), Errno>;

    /// As `lseek(2)`; `ENXIO` at or past the end of the file.
    fn seek_sparse(&self, inode: &Inode, what: SeekSparse, pos: u64) -> Result<u64, Errno>;

    /// The store was asked about the attributes, in order to open the file, when they had this many doubts
    /// ([`AttrCell::doubts`]) and changes were reported: the answer holds until it is doubted.
    fn asked_while_watched(&self, _doubts: u32) {}

    /// Keeps uncached data readable for as long as the file is open, even if its name goes. May
    /// block on I/O.
    ///
    /// # Errors
    /// Those of the backing store.
    fn keep_readable(&self) -> Result<(), Errno> {
        Ok(())
    }

    /// Writes dirty data to the backing store, without making it durable. Data that fails stays dirty, and the
    /// file's error sequence reports it. May block on I/O.
    fn write_back(&self, _inode: &Inode) {}

    /// Whether the backing store lacks something that was written. Does not block.
    fn has_unwritten(&self, inode: &Inode) -> bool {
        (inode.mapping()).is_some_and(|mapping| mapping.has_unwritten())
    }

    /// As [`InodeOperations::write_back`], and waits for writeback under way: the backing store has all earlier
    /// writes. May block on I/O.
    ///
    /// # Errors
    /// The backing store's; data that it did not take stays dirty.
    fn write_and_wait(&self, _inode: &Inode) -> Result<(), Errno> {
        Ok(())
    }

    /// Checks the backing store as an open does; returns whether others changed the file and the change was taken
    /// over. While data of ours waits to be written, ours wins. May block on I/O.
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

    /// The inode is dead: its last reference is gone, except those that wait for RCU readers. Frees its resources
    /// besides its memory, such as pages and descriptors. Called at most once, before the inode is dropped; an
    /// inode whose last reference goes otherwise than by [`Inode::put`] is dropped without it.
    #[doc(alias = "evict_inode")]
    fn evict(&self, _inode: &Inode) {}

    /// The inode is dropped, after [`InodeOperations::evict`] or without it. Discards dirty pages that could never
    /// be read again. Reclaim may be the one that drops it: does not wait, and takes only leaf locks.
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
            names: RankedRwLock::new(()),
            making: RankedMutex::new(()),
        }
    }

    /// Drops a reference. The last one frees the inode's resources besides its memory at once, although readers may
    /// still look at the inode itself.
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

    /// Distinguishes inodes that had the same number one after the other.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The kind of file.
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// The lock of the names in a directory, and of changes of attributes.
    #[doc(alias = "i_rwsem")]
    pub(crate) fn names(&self) -> &RankedRwLock<{ Rank::Names as u8 }, ()> {
        &self.names
    }

    /// The pages of a regular file; `None` if it was never opened, and for all other kinds. Then no
    /// page was ever cached, and no data of ours waits to be written.
    #[inline]
    pub fn mapping(&self) -> Option<&SlabArc<AddressSpace>> {
        self.mapping.get()
    }

    /// The pages of a regular file that is about to be used: its address space is made, and charged
    /// to the bound, if there is none yet.
    ///
    /// Context: no lock of the file system's own, no RCU read section; the first time it may block on
    /// I/O, and reclaims memory.
    ///
    /// # Errors
    /// `EINVAL` unless it is a regular file, those of [`InodeOperations::new_mapping`].
    pub fn open_mapping(&self) -> Result<&SlabArc<AddressSpace>, Errno> {
        match self.mapping.get() {
            Some(mapping) => Ok(mapping),
            None => self.make_mapping(),
        }
    }

    #[cold]
    fn make_mapping(&self) -> Result<&SlabArc<AddressSpace>, Errno> {
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

    /// The attributes, if they are valid without asking: [`InodeOperations::cached_attr`]. The file system is not
    /// called if there is a store and nothing is under way to it.
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
        let simple = |mapping: &SlabArc<AddressSpace>| {
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

    /// Prefetches the memory that opening the file reads, in parallel: the references on the way are waited for one
    /// by one.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch(ptr::from_ref(self).wrapping_byte_sub(64));
        prefetch(&*self.attributes);
        self.ops.prefetch();
        if let Some(mapping) = self.mapping.get() {
            // The reference counts lie before the object.
            prefetch(ptr::from_ref(&**mapping).wrapping_byte_sub(64));
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

    /// A report about a file finds it by the name.
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
