//! `memfs`: a file system whose only store is the cache.
//!
//! # Model
//!
//! Files are address spaces of a memory device: their folios are neither written back nor evicted,
//! and past the share of the bound that may be taken so a write gets `ENOSPC`. A file that was never
//! opened has no address space, and no size. Names, links, attributes and extended attributes live in
//! the nodes and are charged to the bound as metadata, as are address spaces.
//!
//! # Invariants
//!
//! 1. A node lives as long as it has a name, a handle, a child, or another holder of its inode. With the last of these its
//!    pages and its charge go too.
//! 2. An entry's cookie is never used twice in its directory, so a reader goes on where it was
//!    whatever is made or unlinked meanwhile. Cookies 1 and 2 are `.` and `..`.
//!
//! # Locking
//!
//! The caller locks the names of a directory that changes, see [`FileSystem`](foliocache_vfs::FileSystem). It does
//! not lock those of a directory that goes: `dead` is set and looked at under `entries`. That is innermost,
//! two of them are never held at once, and nothing blocks under it.
//!
//! # Memory ordering
//!
//! Counters are `Relaxed`: numbers need only differ.

mod namespace;
mod node;

use self::node::{Data, MemNode, Nothing, entries, new_directory};
use foliocache_mm::{BackingDevInfo, BdiKind, Mm, MmError, PAGE_SIZE};
use foliocache_sync::Arc;
use foliocache_sync::atomic::{AtomicU64, Ordering};
use foliocache_sync::cell::OnceLock;
use foliocache_sync::time::coarse_realtime;
use foliocache_sys::Errno;
use foliocache_vfs::{
    AttrCell, Attributes, Device, FileKind, Generation, Inode, PERMISSION_BITS, ROOT_INO,
    SharedSlab, SlabArc,
};
use std::collections::BTreeMap;

struct Shared {
    mm: Arc<Mm>,
    bdi: Arc<BackingDevInfo>,
    /// Behind every file's address space.
    nothing: Arc<Nothing>,
    next_ino: AtomicU64,
    permissions: Arc<Generation>,
    attributes: SharedSlab<AttrCell>,
    nodes: SharedSlab<MemNode>,
    inodes: SharedSlab<Inode>,
}

/// A file system in the memory of a cache.
pub struct MemFs {
    shared: Arc<Shared>,
    root: SlabArc<Inode>,
}

impl Shared {
    fn new_inode(
        self: &Arc<Self>,
        kind: FileKind,
        mode: u32,
        uid: u32,
        gid: u32,
        data: Data,
    ) -> Result<SlabArc<Inode>, Errno> {
        // Relaxed: see the module's header.
        let ino = self.next_ino.fetch_add(1, Ordering::Relaxed);
        let now = coarse_realtime();
        let attributes = Attributes {
            mode: mode & PERMISSION_BITS,
            nlink: if kind == FileKind::Directory { 2 } else { 1 },
            uid,
            gid,
            rdev: match data {
                Data::Special(device) => device,
                _ => Device::default(),
            },
            size: match &data {
                Data::Symlink(target) => target.len() as u64,
                _ => 0,
            },
            blocks: 0,
            blksize: PAGE_SIZE as u32,
            atime: now,
            mtime: now,
            ctime: now,
            btime: Some(now),
        };
        let attributes = match kind {
            FileKind::Directory => AttrCell::of_directory(attributes, self.permissions.clone()),
            _ => AttrCell::new(attributes),
        };
        let no_room = Errno::ENOSPC;
        let attributes = self.attributes.try_alloc(|| attributes.without_store());
        let attributes = attributes.ok_or(no_room)?;
        let node = || MemNode {
            shared: self.clone(),
            data,
            xattrs: node::XattrsLock::new(BTreeMap::new()),
            mapping_charge: OnceLock::new(),
            charged: AtomicU64::new(0),
        };
        let node = self.nodes.try_alloc(node).ok_or(no_room)?;
        let make = || Inode::new(ino, 0, kind, attributes, node);
        self.inodes.try_alloc(make).ok_or(no_room)
    }
}

impl MemFs {
    /// An empty file system in the memory of `mm`. Its root belongs to user and group 0.
    ///
    /// # Errors
    /// The bound has no room for a root.
    pub fn new(mm: &Arc<Mm>) -> Result<MemFs, MmError> {
        let bdi = BackingDevInfo::new(mm, "memfs", BdiKind::Memory)?;
        let shared = Arc::new(Shared {
            mm: mm.clone(),
            bdi,
            nothing: Arc::new(Nothing),
            next_ino: AtomicU64::new(ROOT_INO),
            permissions: Arc::default(),
            attributes: SharedSlab::new(mm.clone()),
            nodes: SharedSlab::new(mm.clone()),
            inodes: SharedSlab::new(mm.clone()),
        });
        let data = new_directory(None);
        let root = shared.new_inode(FileKind::Directory, 0o755, 0, 0, data)?;
        Ok(MemFs { shared, root })
    }

    /// The file system's part of the cache.
    pub fn bdi(&self) -> &Arc<BackingDevInfo> {
        &self.shared.bdi
    }
}

impl Drop for MemFs {
    fn drop(&mut self) {
        // One level at a time, not in a recursion as deep as the tree.
        let mut waiting = vec![self.root.clone()];
        while let Some(inode) = waiting.pop() {
            if let Ok(entries) = entries(&inode) {
                let mut entries = entries.lock();
                entries.by_name.clear();
                let below = std::mem::take(&mut entries.by_cookie);
                waiting.extend(below.into_values().map(|(_, inode)| inode));
            }
        }
        self.shared.bdi.stop();
    }
}
