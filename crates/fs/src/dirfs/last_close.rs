//! The last close of a file: its data goes to a batch, to the source, or the file gets in line.
//!
//! # Model
//!
//! ```text
//!  last close ── small and new ──▶ the open batch
//!     ├────────── written to ────▶ to the source, now or a moment later
//!     └────────── unflushed ─────▶ the line of idle files
//!                                     │ too many in it
//!                                     └▶ several are made durable with one `syncfs`, or two with an `fdatasync` each
//! ```
//!
//! # Locking
//!
//! As [`idle`](super::idle) says.

use super::idle::Closing;
use super::node::DirNode;
use super::{NodeOps, Shared, WritebackAtClose};
use foliocache_mm::{AddressSpace, AddressSpaceOperations};
use foliocache_vfs::SlabArc;
use std::mem;

/// Most files that are written back because one got in line.
const MOST_TOGETHER: usize = 256;
/// Fewest of them for which the whole file system is flushed, which may wait for data of others.
const FEWEST_TOGETHER: usize = 8;
/// Most files that one close flushes one by one.
const MOST_ALONE: usize = 2;

impl Shared {
    /// Writes back files of which too many wait with open descriptors, several of them at once where one operation of
    /// the source makes them all durable.
    ///
    /// Context: no lock held; may block on I/O.
    pub(super) fn limit_idle(&self) {
        let kept = &self.idle.kept;
        if !kept.too_many() {
            return;
        }
        let most = (kept.most() / 4).min(MOST_TOGETHER);
        if let Some(batches) = &self.batches
            && most >= FEWEST_TOGETHER
        {
            let _round = self.idle.round.lock();
            // Another thread may have made room meanwhile.
            if !kept.too_many() {
                return;
            }
            let files = self.take_idle(most);
            if files.len() >= FEWEST_TOGETHER {
                // All reads are on their way before one of them is waited for.
                let with_mapping = || {
                    files
                        .iter()
                        .filter_map(|file| Some((file, file.mapping()?)))
                };
                for (file, mapping) in with_mapping() {
                    file.node.read_tail(&mapping);
                }
                for (_, mapping) in with_mapping() {
                    mapping.fdatawrite();
                }
                batches.settle_open(self);
                files.into_iter().for_each(Taken::sync);
                return;
            }
        }
        let files = self.take_idle(MOST_ALONE);
        files.into_iter().for_each(Taken::sync);
    }

    /// Takes up to `most` files out of the line.
    fn take_idle(&self, most: usize) -> Vec<Taken<'_>> {
        let mut files = Vec::new();
        while files.len() < most
            && let Some(weak) = self.idle.pop()
        {
            match weak.upgrade() {
                Some(node) => files.push(Taken { shared: self, node }),
                None => self.idle.kept.release(1),
            }
        }
        files
    }
}

/// A file that was taken out of the line. When this is dropped, after a panic too, its descriptors are closed or it
/// gets in line again.
struct Taken<'a> {
    shared: &'a Shared,
    node: SlabArc<DirNode>,
}

impl Taken<'_> {
    fn mapping(&self) -> Option<SlabArc<AddressSpace>> {
        self.node.file().mapping()
    }

    /// Makes it durable.
    fn sync(self) {
        if let Some(mapping) = self.mapping() {
            // The error stays with the file: its folios remain dirty, and its handles get the error.
            let _ = mapping.sync();
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let opens = self.node.file().opens.lock();
        self.shared.close_or_requeue(&self.node, opens);
    }
}

impl NodeOps {
    /// The `last` handle of the file was closed, or the last of those that may have `written`.
    ///
    /// Context: no lock held; may block on I/O.
    pub(super) fn closed(&self, last: bool, written: bool) {
        // Also after a panic.
        let closing = last.then(|| Closing(self));
        if last {
            self.sync_held();
        }
        if !self.is_unlinked() {
            if last && self.write_in_batch() {
                // The batch closes it.
                mem::forget(closing);
                return;
            }
            if written {
                match self.shared.options.writeback_at_close {
                    WritebackAtClose::Begin => self.begin_write_out(),
                    WritebackAtClose::Wait => self.write_out(),
                    WritebackAtClose::Delayed => {}
                }
            }
            if last {
                self.file().close_if_batched();
            }
        }
        if !self.is_unlinked() && self.file().any_fd().is_none() {
            // Nothing is left to close.
            mem::forget(closing);
        }
    }

    /// Has what is dirty written to the source a moment later, with the time of its last write. If all is written, sets that time.
    fn begin_write_out(&self) {
        let Some(mapping) = self.file().mapping() else {
            return;
        };
        mapping.begin_writeback();
        if mapping.stats().dirty_pages == 0 {
            // Tried again before a flush.
            let _ = self.write_inode();
        }
    }

    /// Writes what is dirty to the source, with the time of its last write, and does not flush it. Data that cannot be written stays dirty.
    ///
    /// Context: no lock held; blocks on I/O.
    pub(super) fn write_out(&self) {
        if let Some(mapping) = self.file().mapping().filter(|mapping| mapping.is_dirty()) {
            mapping.fdatawrite();
            // Tried again before a flush.
            let _ = self.write_inode();
        }
    }

    /// The last handle of the file is gone: what is not durable is made so, where files are held.
    ///
    /// Context: no lock held; may block on I/O.
    pub(super) fn sync_held(&self) {
        if self.shared.held.is_some()
            && !self.is_unlinked()
            && let Some(mapping) = self.file().mapping()
            && (mapping.is_dirty() || self.file().unflushed())
        {
            // The error stays with the file, which stays held.
            let _ = mapping.sync();
        }
    }
}
