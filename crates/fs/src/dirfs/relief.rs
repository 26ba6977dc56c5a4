//! Where too few open files are idle to give up their descriptors: some are written back, so that they do.
//!
//! # Locking
//!
//! As [`shortage`](super::shortage) says.
//!
//! # Memory ordering
//!
//! As [`shortage`](super::shortage) says.

use super::Shared;
use super::node::DirNode;
use super::open_files::OpenFile;
use super::shortage::Asked;
use foliocache_mm::AddressSpace;
use foliocache_sync::atomic::Ordering;
use foliocache_sys::fd::{AsFd, OFlags};
use foliocache_sys::{Errno, fd};
use foliocache_vfs::{Inode, SlabArc};
use std::os::fd::AsRawFd;

/// Most files that are written back at once so that they can give way.
const MOST_TOGETHER: usize = 64;

impl Shared {
    /// Where too few files were idle: writes some back, so that they give way. To be called before a file is opened, or a first
    /// byte written.
    ///
    /// Context: no lock held; may block on I/O.
    ///
    /// # Errors
    /// `EMFILE` if none can, and hardly a descriptor is left.
    pub(super) fn relieve(&self) -> Result<(), Errno> {
        let shortage = &self.shortage;
        // Relaxed: see the module's header.
        if !shortage.is_tight.load(Ordering::Relaxed) {
            return Ok(());
        }
        let number = || {
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            let probe = fd::reopen(self.root.as_fd(), flags);
            probe.map_or(shortage.limit, |fd| fd.as_raw_fd() as usize)
        };
        if !shortage.is_short(number()) {
            shortage.tight(false);
            return Ok(());
        }
        let mut asked = Vec::new();
        while asked.len() < MOST_TOGETHER
            && let Some((identity, found)) = shortage.pop()
        {
            asked.extend(found.map(|inode| (identity, inode)));
        }
        let mapping = |inode: &SlabArc<Inode>| inode.mapping().cloned();
        let to_write = |mapping: &SlabArc<AddressSpace>| mapping.is_dirty();
        let dirty: Vec<_> = (asked.iter())
            .filter_map(|(_, inode)| mapping(inode).filter(to_write))
            .collect();
        for mapping in &dirty {
            mapping.fdatawrite();
        }
        if let Some(batches) = &self.batches {
            batches.settle_open(self);
        }
        for mapping in &dirty {
            // The error stays with the file: it remains dirty, and its handles get the error.
            let _ = mapping.sync();
        }
        let mut given = 0;
        for (identity, inode) in asked {
            let Ok(node) = DirNode::of(&inode) else {
                continue;
            };
            node.set_times_that_wait();
            match node.give_up_descriptors() {
                Asked::Gave => given += 1,
                Asked::Busy => shortage.push(identity),
                Asked::Left => {}
            }
        }
        let number = number();
        shortage.tight(shortage.is_short(number));
        // Where others than these files have the descriptors, the last ones are for the callers that come first.
        let many = OpenFile::count() >= shortage.limit / 4;
        match given == 0 && many && number >= shortage.limit / 16 * 15 {
            true => Err(Errno::EMFILE),
            false => Ok(()),
        }
    }
}

impl DirNode {
    /// Gives the file a descriptor before its first byte is written, if it has none: its name might be moved away.
    ///
    /// Context: no lock held; may block on I/O.
    pub(super) fn open_before_write(&self) {
        if self.file().any_fd().is_none() {
            // Without one it is opened when it is written back.
            let _ = self.shared.relieve();
            let _ = self.descriptors(true);
        }
    }

    /// Sets times that wait for the last close.
    fn set_times_that_wait(&self) {
        let fds = self.regular().and_then(|file| file.io.lock().fds.clone());
        if let Some(fds) = fds {
            // A failed one is tried again when the times are made durable.
            let _ = self.restamp(&fds);
        }
    }
}
