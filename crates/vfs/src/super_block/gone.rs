//! Gives up the names and files that others [removed](super::removed) from the store.

use super::caches::Caches;
use super::removed::{IS_MODEL, Waiting};
use crate::dcache::DentryRef;
use crate::icache::CachedInode;
use crate::inode::Inode;
use foliocache_mm::slab::SlabArc;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

impl Caches {
    /// Gives up the files of the line that are gone.
    ///
    /// Context: [`FileSystem::give_up_removed`](crate::FileSystem::give_up_removed).
    pub(super) fn give_up_removed(&self) {
        let line = self.removed.take_line();
        let mut gone = Vec::new();
        for waiting in line {
            let (dentry, inode) = match waiting {
                Waiting::Named(dentry) => {
                    let inode = dentry.inode();
                    (Some(dentry), inode)
                }
                Waiting::Nameless(inode) => (None, inode.upgrade()),
            };
            let Some(inode) = inode.filter(|inode| self.fs.give_up_removed(inode)) else {
                continue;
            };
            if let Some(dentry) = dentry {
                if inode.is_directory() && dentry.is_hashed() {
                    self.tell_of_directory(&dentry);
                }
                self.invalidate(&dentry);
            }
            gone.push(inode);
        }
        if !gone.is_empty() {
            // Dead dentries have their inodes until then.
            self.dcache.wait_for_limbo();
            self.fs.evict_inodes(gone);
        }
    }

    /// Takes a dentry away whose name leads elsewhere in the store, and all below it: their files may be gone.
    ///
    /// Context: as for [`DentryCache::prune`](crate::dcache::DentryCache::prune).
    pub(super) fn invalidate(&self, dentry: &DentryRef<Inode>) {
        let expect = |dir: &Inode, name: &[u8], inode| self.expect(dir, name, &inode);
        self.dcache.invalidate(dentry, &expect);
    }

    /// A name that led to `inode` leads elsewhere, or soon will: if its loss is reported, the inode may be gone
    /// too. Call it before the dentry goes.
    pub(super) fn expect(&self, dir: &Inode, name: &[u8], inode: &SlabArc<Inode>) {
        let by_us = CachedInode::link(&**inode).is_gone();
        if by_us || !self.removed.is_used() || foliocache_sync::planted!(found_gone_not_expected) {
            return;
        }
        if let Some(now) = self.fs.belief().told_since() {
            let inode = SlabArc::downgrade(inode);
            self.removed.expect(dir, name, inode, now);
        }
    }

    /// News came before a name was entered, perhaps that it was lost: a file with pages may be gone.
    pub(super) fn doubt_found(&self, dentry: &DentryRef<Inode>) {
        let has_pages = |inode: &SlabArc<Inode>| inode.mapping().is_some() || IS_MODEL;
        if dentry.inode().as_ref().is_some_and(has_pages) {
            self.removed.add(dentry.clone());
        }
    }

    /// As [`Caches::expect`], for dentries that were displaced by an answer about `name` in `dir`; the directory
    /// had `doubts` before the question.
    pub(super) fn expect_displaced(
        &self,
        dir: &Inode,
        name: &[u8],
        doubts: u32,
        displaced: &[DentryRef<Inode>],
    ) {
        for dentry in displaced {
            let Some(inode) = dentry.inode() else {
                continue;
            };
            if inode.is_directory() {
                // Its children would keep it.
                self.invalidate(dentry);
            }
            let expect = || self.expect(dir, name, &inode);
            let in_time = dir.attributes().unless_doubted(doubts, expect);
            if !in_time && self.fs.belief().told_since().is_some() {
                let inode = SlabArc::downgrade(&inode);
                self.removed.push([Waiting::Nameless(inode)]);
            }
        }
    }

    fn tell_of_directory(&self, gone: &DentryRef<Inode>) {
        let Some(dir) = gone.parent().and_then(|parent| parent.inode()) else {
            return;
        };
        let name = gone.name();
        let name = OsStr::from_bytes(&name);
        self.observers
            .each(|observer| observer.directory_is_gone(&dir, name));
    }
}
