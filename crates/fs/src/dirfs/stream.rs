//! Reading a directory of the source.

use super::node::DirNode;
use foliocache_mm::MetadataCharge;
use foliocache_sync::Mutex;
use foliocache_sys::Errno;
use foliocache_sys::dir::DirReader;
use foliocache_sys::fd::BorrowedFd;
use foliocache_vfs::{DirEntry, Inode, OpenDirectory, SlabArc};
use std::os::unix::ffi::OsStrExt;

/// A directory of the source that is being read.
pub(super) struct DirStream {
    reader: Mutex<DirReader>,
    inode: SlabArc<Inode>,
    _charge: MetadataCharge,
}

impl DirStream {
    pub(super) fn open(inode: &SlabArc<Inode>, fd: BorrowedFd<'_>) -> Result<DirStream, Errno> {
        let mm = DirNode::of(inode)?.shared.bdi.mm();
        let bytes = size_of::<DirStream>() + DirReader::BUFFER;
        Ok(DirStream {
            _charge: MetadataCharge::before_names(mm, bytes as u64, MetadataCharge::PATIENCE)?,
            reader: Mutex::new(DirReader::open(fd)?),
            inode: inode.clone(),
        })
    }
}

impl OpenDirectory for DirStream {
    fn read(&self, offset: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<(), Errno> {
        let node = DirNode::of(&self.inode)?;
        let parent = node
            .named()
            .map_or(self.inode.ino(), |(parent, _)| parent.ino());
        let mut reader = self.reader.lock();
        reader.seek(offset)?;
        loop {
            let entry = match reader.next() {
                Ok(Some(entry)) => entry,
                // A directory that was removed has no entries.
                Ok(None) | Err(Errno::ENOENT) => return Ok(()),
                Err(error) => return Err(error),
            };
            let ino = match entry.name.as_bytes() {
                b"." => self.inode.ino(),
                b".." => parent,
                _ => entry.ino,
            };
            if !sink(DirEntry { ino, ..entry }) {
                return Ok(());
            }
        }
    }

    fn fsync(&self) -> Result<(), Errno> {
        let node = DirNode::of(&self.inode)?;
        node.sync_directory()?;
        node.sync_name()
    }
}
