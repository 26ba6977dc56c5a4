//! What is done when somebody tells of a change in a directory: what it may concern is doubted.
//!
//! # Model
//!
//! | told | doubted |
//! |---|---|
//! | a name was made, removed or moved | its dentry, the attributes of what it leads to, those of the directory |
//! | attributes or the content of a name changed | the attributes of what it leads to |
//! | attributes of the directory itself changed | these |
//!
//! Nothing is asked here. Our own changes are told, too, and cost a question each.
//!
//! # Locking
//!
//! None of its own: it comes from [`Belief::now`](crate::Belief::now), whatever the caller holds.

use super::shrink::Caches;
use crate::belief::{Change, Listener, Told};
use crate::dcache::Name;
use std::os::unix::ffi::OsStrExt;

impl Listener for Caches {
    fn changed(&self, Told { dir, name, change }: Told<'_>) {
        // First, see invariant 1 of `belief`.
        match (name, change) {
            (None, _) | (_, Change::Name) => dir.attributes().doubt(),
            _ => dir.attributes().count_doubt(),
        }
        if name.is_none() {
            // Who may go through it may be another.
            drop(self.fs.permissions().begin());
        }
        let dentry = name.and_then(|name| {
            let above = self.dcache.of_directory(dir)?;
            self.dcache.lookup(&above, &Name::new(name.as_bytes()))
        });
        let Some(dentry) = dentry else { return };
        if change == Change::Name {
            dentry.believe(0);
        }
        if let Some(inode) = dentry.inode() {
            inode.attributes().doubt();
            if inode.is_directory() {
                // Threads remember ways that lead through it.
                drop(self.dcache.places().begin());
                drop(self.fs.permissions().begin());
            }
        }
    }
}
