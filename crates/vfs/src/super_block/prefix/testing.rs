//! Whether a prefix is remembered, for tests.

use super::{PREFIXES, RcuMode, SLOTS, hash_of, split};
use crate::dcache::Dentry;
use crate::inode::Inode;

impl RcuMode<'_> {
    /// Whether the way to the last name of `path` is remembered and holds.
    pub(crate) fn remembers(&self, start: &Dentry<Inode>, path: &[u8]) -> bool {
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
