//! A node of `memfs`: its data, its entries if it is a directory, and its charge.

use super::Shared;
use foliocache_mm::{AddressSpace, AddressSpaceOperations, IoSegment, MappingCharge, PAGE_SIZE};
use foliocache_sync::Arc;
use foliocache_sync::atomic::{AtomicU64, Ordering};
use foliocache_sync::cell::OnceLock;
use foliocache_sync::rank::{Rank, RankedMutex};
use foliocache_sync::time::{Duration, coarse_realtime};
use foliocache_sys::Errno;
use foliocache_vfs::{
    Attr, Device, FallocateMode, Inode, InodeOperations, SeekSparse, SlabArc, SlabWeak,
    written_mode,
};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};

/// Memory charged for a directory entry besides its name.
const ENTRY_BYTES: u64 = 160;

/// Size that a directory shows for each of its names.
const SHOWN_ENTRY_BYTES: i64 = 32;

/// How long a name waits for memory that others give up, beyond a round of the reclaimer.
const PATIENCE: Duration = Duration::from_millis(1);

/// The lock of a directory's entries.
pub(super) type EntriesLock = RankedMutex<{ Rank::Namespace as u8 }, Entries>;

/// The lock of a node's extended attributes, whose memory is charged under it.
pub(super) type XattrsLock = RankedMutex<{ Rank::Namespace as u8 }, BTreeMap<OsString, Vec<u8>>>;

pub(super) enum Data {
    File,
    /// Apart: most nodes are files.
    Directory(Box<EntriesLock>),
    Symlink(OsString),
    Special(Device),
}

pub(super) struct Entries {
    pub(super) by_name: HashMap<OsString, u64>,
    pub(super) by_cookie: BTreeMap<u64, (OsString, SlabArc<Inode>)>,
    pub(super) next_cookie: u64,
    /// `None` of the root.
    pub(super) parent: Option<SlabWeak<Inode>>,
    /// The directory itself was removed: nothing may be made in it.
    pub(super) dead: bool,
}

/// The private part of an inode of `memfs`.
pub(super) struct MemNode {
    pub(super) shared: Arc<Shared>,
    pub(super) data: Data,
    pub(super) xattrs: XattrsLock,
    pub(super) mapping_charge: OnceLock<MappingCharge>,
    /// Bytes charged to the bound for names and extended attributes.
    pub(super) charged: AtomicU64,
}

/// The backend of a memory file's address space: nothing.
pub(super) struct Nothing;

impl AddressSpaceOperations for Nothing {
    fn read_folios(&self, _pos: u64, _segments: &[IoSegment]) -> Result<usize, Errno> {
        Ok(0)
    }

    fn writepages(&self, _pos: u64, _segments: &[IoSegment]) -> Result<usize, Errno> {
        // A memory device has no writeback; taking the data would be losing it.
        Err(Errno::EIO)
    }

    fn flush(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn truncate(&self, _size: u64) -> Result<(), Errno> {
        Ok(())
    }

    fn punch_hole(&self, _pos: u64, _len: u64) -> Result<(), Errno> {
        Ok(())
    }

    fn describe(&self) -> String {
        "memfs".to_owned()
    }
}

impl Entries {
    /// The directory that it is in.
    pub(super) fn above(&self) -> Option<SlabArc<Inode>> {
        self.parent.as_ref().and_then(SlabWeak::upgrade)
    }

    pub(super) fn get(&self, name: &OsStr) -> Option<SlabArc<Inode>> {
        let cookie = self.by_name.get(name)?;
        self.by_cookie.get(cookie).map(|(_, inode)| inode.clone())
    }

    /// Enters `inode` under `name`, and replaces the present one.
    pub(super) fn insert(&mut self, name: &OsStr, inode: SlabArc<Inode>) {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        if let Some(old) = self.by_name.insert(name.to_owned(), cookie) {
            self.by_cookie.remove(&old);
        }
        self.by_cookie.insert(cookie, (name.to_owned(), inode));
    }

    pub(super) fn remove(&mut self, name: &OsStr) -> Option<SlabArc<Inode>> {
        let cookie = self.by_name.remove(name)?;
        self.by_cookie.remove(&cookie).map(|(_, inode)| inode)
    }
}

impl MemNode {
    pub(super) fn of(inode: &Inode) -> Result<&MemNode, Errno> {
        inode.private::<MemNode>().ok_or(Errno::EXDEV)
    }

    /// The attributes now. Takes no lock.
    #[inline]
    fn attr(&self, inode: &Inode) -> Attr {
        let mut attr = inode.attributes().get().of(inode.ino(), inode.kind());
        if let Some(mapping) = inode.mapping() {
            attr.size = mapping.size();
            attr.blocks = mapping.nr_pages() * (PAGE_SIZE as u64 / 512);
        }
        attr
    }

    pub(super) fn charge(&self, bytes: u64) -> Result<(), Errno> {
        self.shared
            .mm
            .charge_used_metadata(bytes, PATIENCE)
            .map_err(|_| Errno::ENOSPC)?;
        // Relaxed: a sum, read when the node has no other users.
        self.charged.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn uncharge(&self, bytes: u64) {
        // Relaxed: as in `charge`.
        self.charged.fetch_sub(bytes, Ordering::Relaxed);
        self.shared.mm.uncharge_metadata(bytes);
    }
}

impl Drop for MemNode {
    fn drop(&mut self) {
        // Relaxed: the node has no other users.
        self.shared
            .mm
            .uncharge_metadata(self.charged.load(Ordering::Relaxed));
    }
}

/// The entries of a directory.
pub(super) fn entries(inode: &Inode) -> Result<&EntriesLock, Errno> {
    match &MemNode::of(inode)?.data {
        Data::Directory(entries) => Ok(entries),
        _ => Err(Errno::ENOTDIR),
    }
}

/// Whether there was a link, to which others are added.
pub(super) fn add_links(inode: &Inode, n: i64) -> bool {
    inode.attributes().update(|attributes| {
        let linked = attributes.nlink > 0;
        if linked {
            attributes.nlink = (i64::from(attributes.nlink) + n) as u32;
            attributes.ctime = coarse_realtime();
        }
        linked
    })
}

/// The inode changed now, and none of its data.
pub(super) fn changed(inode: &Inode) {
    let now = coarse_realtime();
    inode
        .attributes()
        .update(|attributes| attributes.ctime = now);
}

/// A directory has `n` names more.
pub(super) fn entries_changed(dir: &Inode, n: i64) {
    let now = coarse_realtime();
    dir.attributes().update(|attributes| {
        attributes.size = attributes.size.wrapping_add_signed(n * SHOWN_ENTRY_BYTES);
        (attributes.mtime, attributes.ctime) = (now, now);
    });
}

/// A directory without names.
pub(super) fn new_directory(parent: Option<SlabWeak<Inode>>) -> Data {
    let entries = Entries {
        by_name: HashMap::new(),
        by_cookie: BTreeMap::new(),
        next_cookie: 3,
        parent,
        dead: false,
    };
    Data::Directory(Box::new(EntriesLock::new(entries)))
}

pub(super) fn entry_bytes(name: &OsStr) -> u64 {
    ENTRY_BYTES + 2 * name.len() as u64
}

impl InodeOperations for MemNode {
    fn getattr(&self, inode: &Inode) -> Result<Attr, Errno> {
        Ok(self.attr(inode))
    }

    fn new_mapping(&self, _inode: &Inode) -> Result<SlabArc<AddressSpace>, Errno> {
        let Shared { bdi, nothing, .. } = &*self.shared;
        let charge = bdi.charge_mapping().map_err(|_| Errno::ENOSPC)?;
        let charge = self.mapping_charge.get_or_init(|| charge);
        Ok(charge.make(nothing.clone(), 0))
    }

    fn cached_attr(&self, inode: &Inode, _now: u64, attr: &mut Attr) -> bool {
        *attr = self.attr(inode);
        true
    }

    fn cached_target(&self) -> Option<&OsStr> {
        match &self.data {
            Data::Symlink(target) => Some(target),
            _ => None,
        }
    }

    fn remove_privileges(&self, inode: &Inode, in_group: bool) -> Result<(), Errno> {
        inode
            .attributes()
            .update(|attributes| attributes.mode = written_mode(attributes.mode, in_group));
        Ok(())
    }

    fn sync(&self, _inode: &Inode, _datasync: bool) -> Result<(), Errno> {
        Ok(())
    }

    fn allocate(
        &self,
        _inode: &Inode,
        mode: FallocateMode,
        _pos: u64,
        _len: u64,
    ) -> Result<(), Errno> {
        match mode {
            // Memory cannot be promised ahead of its use.
            FallocateMode::Allocate | FallocateMode::AllocateKeepSize => Err(Errno::EOPNOTSUPP),
            _ => Ok(()),
        }
    }

    fn seek_sparse(&self, inode: &Inode, what: SeekSparse, pos: u64) -> Result<u64, Errno> {
        // A file system may take the whole file for data.
        let size = inode.mapping().map_or(0, |mapping| mapping.size());
        match what {
            _ if pos >= size => Err(Errno::ENXIO),
            SeekSparse::Data => Ok(pos),
            SeekSparse::Hole => Ok(size),
        }
    }

    fn released(&self, _inode: &Inode, _writable: bool) {}

    fn evict(&self, inode: &Inode) {
        if let Some(mapping) = inode.mapping() {
            mapping.discard_dirty();
        }
    }
}
