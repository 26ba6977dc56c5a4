//! News of a change in a directory: all that it may concern is doubted.
//!
//! # Model
//!
//! | told | doubted |
//! |---|---|
//! | a name was made, removed or moved | its dentry, the attributes of its inode, those of the directory |
//! | a name was removed, or a file moved to it | also whether the old inode is [gone](super::removed) |
//! | attributes or the content of a name changed | the attributes of its inode |
//! | attributes of the directory itself changed | these |
//!
//! Nothing is asked here. Our own changes are reported too, and cost a question each.
//!
//! A mount passes the answers of the file system to its kernel, which believes them for long. As an [`Observer`],
//! the mount is told of changes by others and of those that this process makes by other ways.
//!
//! # Locking
//!
//! It comes from [`Belief::now`](crate::Belief::now), whatever locks the caller holds.

use super::SuperBlock;
use super::caches::Caches;
use super::observers::Observer;
use crate::belief::{Change, Listener, Told};
use crate::dcache::Name;
use crate::epoch;
use crate::inode::Inode;
use foliocache_mm::slab::SlabArc;
use foliocache_sync::Weak;
use foliocache_sys::fd::BorrowedFd;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

impl SuperBlock {
    /// Adds an observer, which is told of changes for as long as it lives.
    pub fn add_observer(&self, observer: Weak<dyn Observer>) {
        self.caches.observers.add(observer);
    }

    /// Whether changes of names in a directory, of its attributes, and of those of its files are reported to the
    /// observers from now on.
    pub fn is_watched(&self, dir: &SlabArc<Inode>) -> bool {
        self.belief.watch(dir)
    }

    /// Whether the store reports changes in directories that can be watched, and
    /// [`SuperBlock::news_fd`] exists.
    pub fn has_news(&self) -> bool {
        self.belief.news_fd().is_some()
    }

    /// Can be read from (poll(2)) while there are news to read.
    pub fn news_fd(&self) -> Option<BorrowedFd<'_>> {
        self.belief.news_fd()
    }

    /// Reads the news, unless that was done a moment ago.
    pub fn read_news(&self) {
        self.belief.now();
    }

    /// How long an unwatched answer may be believed, for an existing or a missing name.
    pub fn validity(&self, present: bool) -> Duration {
        match self.belief.until(0, present) {
            u64::MAX => Duration::MAX,
            ms => Duration::from_millis(ms),
        }
    }

    /// Whether a name is unchanged since it was asked for, because a change would have been
    /// reported.
    pub fn is_believed_as_watched(&self, named: &super::Named) -> bool {
        named.dentry.is_hashed() && epoch::is_watched(named.dentry.believed_until(), self.now())
    }

    /// This process opens `inode` for writing, by another way than an observer.
    pub fn tell_of_writer(&self, inode: &Inode) {
        self.caches
            .observers
            .each(|observer| observer.is_changed(inode));
    }

    /// A name was changed through this.
    pub(super) fn tell_of_name(&self, dir: &SlabArc<Inode>, name: &OsStr) {
        let told = Told {
            dir,
            name: Some(name),
            change: Change::Name,
        };
        let observers = &self.caches.observers;
        observers.each(|observer| observer.changed(told, None, true));
    }
}

impl Caches {
    /// Doubts all that a change may concern. Returns the inode of its name.
    fn doubt(&self, Told { dir, name, change }: Told<'_>) -> Option<SlabArc<Inode>> {
        // First, see invariant 1 of `belief`.
        match (name, change) {
            (None, _) => dir.attributes().doubt(),
            _ if change.is_of_name() => dir.attributes().doubt(),
            _ => dir.attributes().count_doubt(),
        }
        if name.is_none() {
            // Others may be permitted to go through it now.
            drop(self.fs.permissions().begin());
        }
        let dentry = name.and_then(|name| {
            let above = self.dcache.of_directory(dir)?;
            self.dcache.lookup(&above, &Name::new(name.as_bytes()))
        });
        if let Some(name) = name.filter(|_| change == Change::NameLost) {
            // An answer to a question since the first doubt may have displaced the dentry, and not expect its file yet.
            dir.attributes().count_doubt();
            self.removed.lost(dir, name);
        }
        let dentry = dentry?;
        let stale = foliocache_sync::planted!(missing_name_believed) && dentry.is_negative();
        if change.is_of_name() && !stale {
            dentry.believe(0);
        }
        let inode = dentry.inode()?;
        inode.attributes().doubt();
        if inode.is_directory() {
            // Threads remember ways that lead through it.
            drop(self.dcache.places().begin());
            drop(self.fs.permissions().begin());
        }
        if change == Change::NameLost {
            self.removed.add(dentry);
        }
        Some(inode)
    }
}

impl Listener for Caches {
    fn changed(&self, told: Told<'_>) {
        let inode = self.doubt(told);
        self.observers
            .each(|observer| observer.changed(told, inode.as_ref(), false));
    }

    fn was_told(&self, began: u64, complete: bool) {
        self.removed.was_told(began, complete);
        self.observers
            .each(|observer| observer.was_told(began, complete));
    }
}
