//! The state that clones of a handle share: the kernel's open file description.

use foliocache_mm::{AddressSpace, SlabArc};
use foliocache_sync::Mutex;
use foliocache_sync::cell::OnceLock;
use foliocache_sys::Errno;
use foliocache_vfs::{FileLocks, OpenFile};

use crate::parent_only::{Forked, ParentOnly};

/// Locks of a handle; they go when this is dropped.
pub(crate) struct HandleLocks {
    locks: Box<dyn FileLocks>,
    mapping: SlabArc<AddressSpace>,
}

impl Forked for HandleLocks {
    fn check_fork(&self) -> Result<(), Errno> {
        self.mapping.mm().check_fork()
    }
}

/// The state that clones of a handle share.
#[derive(Default)]
pub(crate) struct Description {
    /// Where the traits of `std::io` read and write next, in bytes.
    pub(crate) position: Mutex<u64>,
    locks: OnceLock<ParentOnly<HandleLocks>>,
    /// Held while `locks` are made.
    making: Mutex<()>,
}

impl Description {
    /// The locks, if one was ever taken.
    pub(crate) fn known_locks(&self) -> Option<&dyn FileLocks> {
        self.locks.get().map(|held| &*held.locks)
    }

    /// The locks of a handle that is `open`.
    ///
    /// # Errors
    /// Those of [`InodeOperations::new_locks`](foliocache_vfs::InodeOperations::new_locks).
    pub(crate) fn locks(&self, open: &OpenFile) -> Result<&dyn FileLocks, Errno> {
        if let Some(locks) = self.known_locks() {
            return Ok(locks);
        }
        let _making = self.making.lock();
        if let Some(locks) = self.known_locks() {
            return Ok(locks);
        }
        let locks = open.inode().ops().new_locks(open.inode(), open.flags())?;
        let mapping = open.mapping().clone();
        let held = || ParentOnly::new(HandleLocks { locks, mapping });
        Ok(&*self.locks.get_or_init(held).locks)
    }
}
