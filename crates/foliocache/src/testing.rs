//! An open file over any backing store, without a file system: for tests whose store is slow, or
//! fails. The tests of the FUSE server compile it too.

use foliocache_mm::{AddressSpace, AddressSpaceOperations, BackingDevInfo, BdiKind, Mm, MmError};
use foliocache_sync::Arc;
use foliocache_sys::Errno;
use foliocache_sys::clock::coarse_realtime;
use foliocache_vfs::{
    Attr, AttrCell, Attributes, Device, FallocateMode, FileKind, Inode, InodeOperations, OpContext,
    OpenFile, OpenFlags, SeekSparse, SlabArc,
};

/// An inode without a file system: it has pages and nothing else.
struct Bare(SlabArc<AddressSpace>);

impl InodeOperations for Bare {
    fn getattr(&self, _: &Inode) -> Result<Attr, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn new_mapping(&self, _: &Inode) -> Result<SlabArc<AddressSpace>, Errno> {
        Ok(self.0.clone())
    }

    fn remove_privileges(&self, _: &Inode, _: bool) -> Result<(), Errno> {
        Ok(())
    }

    fn sync(&self, _: &Inode, _: bool) -> Result<(), Errno> {
        Ok(())
    }

    fn allocate(&self, _: &Inode, _: FallocateMode, _: u64, _: u64) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn seek_sparse(&self, _: &Inode, _: SeekSparse, _: u64) -> Result<u64, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn released(&self, _: &Inode, _: bool) {}
}

/// A file of `size` bytes over `store`, on a file system without names.
///
/// # Errors
/// No thread could be started for its writeback.
pub(crate) fn file_over(
    mm: &Arc<Mm>,
    store: Arc<dyn AddressSpaceOperations>,
    size: u64,
) -> Result<SlabArc<Inode>, MmError> {
    let bdi = BackingDevInfo::new(mm, store.describe(), BdiKind::Storage)?;
    Ok(inode_over(&bdi, 2, store, size))
}

/// An inode of this number with `size` bytes behind `store`.
pub(crate) fn inode_over(
    bdi: &Arc<BackingDevInfo>,
    number: u64,
    store: Arc<dyn AddressSpaceOperations>,
    size: u64,
) -> SlabArc<Inode> {
    let now = coarse_realtime();
    let attributes = SlabArc::new(AttrCell::new(Attributes {
        mode: 0o666,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: Device::default(),
        size,
        blocks: 0,
        blksize: 4096,
        atime: now,
        mtime: now,
        ctime: now,
        btime: None,
    }));
    let mapping = AddressSpace::new(bdi, store, size);
    let (kind, ops) = (FileKind::Regular, SlabArc::new(Bare(mapping)));
    SlabArc::new(Inode::new(number, 0, kind, attributes, ops))
}

/// Opens an inode of [`file_over`].
///
/// # Errors
/// `EINVAL` unless it is a regular file.
pub(crate) fn open(inode: &SlabArc<Inode>, flags: OpenFlags) -> Result<OpenFile, Errno> {
    OpenFile::new(inode.clone(), flags, OpContext::ROOT)
}
