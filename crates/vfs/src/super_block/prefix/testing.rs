//! Whether a prefix is remembered, for tests.

use super::{PREFIXES, RcuMode, SLOTS, hash_of, split};
use crate::dcache::Dentry;
use crate::inode::Inode;
use crate::namei::Namei;
use foliocache_sync::rcu;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

impl Namei<'_> {
    /// Whether this thread remembers the directory of `path`: for tests, which could not see it otherwise.
    pub fn remembers(&self, path: &OsStr) -> bool {
        let now = self.names.now();
        let rcu = rcu::read_lock();
        let mode = RcuMode::new(self.names, self.credentials, now, &rcu);
        mode.remembers(self.start, path.as_bytes())
    }
}

impl RcuMode<'_> {
    /// Whether the way to the last name of `path` is remembered and holds.
    fn remembers(&self, start: &Dentry<Inode>, path: &[u8]) -> bool {
        let Some((prefix, _)) = split(path) else {
            return false;
        };
        let hash = hash_of(self, start, prefix);
        PREFIXES.with(|slots| {
            let slots = slots.borrow();
            let slot = slots.as_ref().map(|slots| &slots[hash as usize % SLOTS]);
            let entry = slot.and_then(|slot| slot.entry.as_ref());
            entry.is_some_and(|entry| entry.is(self, start, hash, prefix))
        })
    }
}
