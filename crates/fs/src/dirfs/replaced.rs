//! Names that others give to other files, and files that are open meanwhile.
//!
//! # Model
//!
//! ```text
//!  others rename a file over a name ──▶ a look for the old file by its name finds another: ESTALE
//!                                         │
//!                                         └▶ the directory is one of replaced names, for a second
//!  look-up in such a directory ──▶ keeps a descriptor of what it finds: an open that follows finds it, too
//! ```
//!
//! A path is walked again after `ESTALE`, a bounded number of times, and a kernel walks once more. Where names are replaced
//! hundreds of times a second, the file that the second walk finds may be replaced as well before it is opened. So in
//! such a directory a look-up opens the name, and its descriptor is among those that are kept for names
//! ([`path_fds`](super::path_fds)).
//!
//! A file that is open stays the one that was opened. Attributes are those that were known last. Its data is read through its
//! descriptor, or, if it was opened from the cache without one, from its pages: these stay until a descriptor is got.
//!
//! Without a descriptor a file that was removed looks like one that moved. When a report says that others removed its name, the name
//! is looked up. If it does not lead to the file, the file's pages go: at once, or with its last handle.
//!
//! # Locking
//!
//! `opens` is held where reliance on pages begins and ends.
//!
//! # Memory ordering
//!
//! `replaced_at` is a hint: `Relaxed`. A thread that misses a replacement looks a name up without a descriptor.

use super::node::DirNode;
use foliocache_mm::AddressSpace;
use foliocache_sync::atomic::Ordering;
use foliocache_sync::time::coarse_monotonic_ms;
use foliocache_sys::Errno;
use foliocache_vfs::Inode;

/// How long a directory counts as one in which names are replaced, in milliseconds.
const REPLACED_FOR: u64 = 1000;

impl DirNode {
    /// A name could not be made in `dir`, since it is there by now.
    pub(super) fn note_names_of_others(dir: &Inode, error: Errno) {
        if error == Errno::EEXIST {
            Self::note_replaced_in(dir);
        }
    }

    /// Whether names in the directory were replaced by others lately.
    pub(super) fn has_replaced_names(&self) -> bool {
        self.directory().is_some_and(|directory| {
            // Relaxed: see the module's header.
            let at = directory.replaced_at.load(Ordering::Relaxed);
            at != 0 && coarse_monotonic_ms().saturating_sub(at) <= REPLACED_FOR
        })
    }
}

/// Files that are opened from the cache, without a descriptor, see [`AddressSpace::rely_on_pages`].
impl DirNode {
    /// Whether a file without a descriptor, with this many `handles`, can be opened by its pages alone. If so, they stay.
    ///
    /// Context: `opens` held.
    pub(super) fn relies(handles: u32, mapping: &AddressSpace) -> bool {
        let relies = mapping.rely_on_pages();
        if !relies && handles == 0 {
            mapping.end_reliance();
        }
        relies
    }

    /// The last handle of a file that was not found by its name is gone: no news of the file will come again.
    ///
    /// Context: no lock held; may block for I/O.
    pub(super) fn look_whether_removed(&self) {
        if self.give_up_if_removed()
            && let Some(inodes) = self.shared.shortage.inodes()
            && let Some(inode) = inodes.find(&self.identity)
        {
            inodes.orphan(&inode);
        }
    }

    /// Gets a descriptor, so that pages may go.
    ///
    /// Context: `opens` held; may block for I/O.
    ///
    /// # Errors
    /// As [`DirNode::descriptors`]. The pages are the last to go then.
    pub(super) fn end_reliance(&self, mapping: &AddressSpace) -> Result<(), Errno> {
        match self.descriptors(false) {
            Ok(_) => {
                mapping.end_reliance();
                Ok(())
            }
            Err(error) => {
                mapping.lose_reliance();
                Err(error)
            }
        }
    }

    /// See [`AddressSpaceOperations::keep_readable`](foliocache_mm::AddressSpaceOperations::keep_readable).
    pub(super) fn keep_readable_unless_busy(&self) -> bool {
        let file = self.file();
        let Some(opens) = file.opens.try_lock() else {
            return false;
        };
        if let Some(mapping) = file.mapping() {
            match opens.handles {
                0 => mapping.end_reliance(),
                // The pages are the last to go then.
                _ => _ = self.end_reliance(&mapping),
            }
        }
        true
    }

    /// See [`InodeOperations::keep_readable`](foliocache_vfs::InodeOperations::keep_readable).
    pub(super) fn keep_readable_open(&self) -> Result<(), Errno> {
        let file = self.file();
        let _opens = file.opens.lock();
        let Some(mapping) = file.mapping() else {
            return self.descriptors(false).map(drop);
        };
        match self.end_reliance(&mapping) {
            Err(Errno::ESTALE) if mapping.can_map_what_is_cached() => Ok(()),
            done => done,
        }
    }
}
