//! A dentry cache whose layout can be chosen: with the reference count away from what look-ups read, or
//! among it.
//!
//! # Model
//!
//! The file systems' dentries are [`Split`]. Here the same cache is filled with the names of one path, over an
//! inode that knows no more than whether it is a directory, once [`Split`] and once [`Packed`]; a stat of it is
//! the walk under RCU, name by name, up to a look at the last inode.

use foliocache_sync::rcu;
use foliocache_vfs::Unbounded;
use foliocache_vfs::dcache::{
    AliasSlot, Dentry, DentryCache, DentryInode, DentryRef, Layout, Name,
};
#[cfg(doc)]
use foliocache_vfs::dcache::{Packed, Split};
use std::hint::black_box;
use std::io;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::error::BenchError;

/// Buckets of the table: more than names.
const BUCKETS: usize = 64;

/// An inode that has no more than its kind.
pub(crate) struct TinyInode<L: Layout> {
    directory: bool,
    alias: AliasSlot<TinyInode<L>>,
    layout: PhantomData<L>,
}

impl<L: Layout> DentryInode for TinyInode<L> {
    type Layout = L;

    fn is_dir(&self) -> bool {
        self.directory
    }

    fn alias(&self) -> &AliasSlot<Self> {
        &self.alias
    }
}

fn inode<L: Layout>(directory: bool) -> Arc<TinyInode<L>> {
    Arc::new(TinyInode {
        directory,
        alias: AliasSlot::new(),
        layout: PhantomData,
    })
}

/// A path of names, cached.
pub(crate) struct Twin<L: Layout> {
    names: Vec<&'static str>,
    root: DentryRef<TinyInode<L>>,
    last: DentryRef<TinyInode<L>>,
    cache: DentryCache<TinyInode<L>>,
}

impl<L: Layout> Twin<L> {
    /// With the names of a relative path.
    pub(crate) fn new(path: &'static str) -> Result<Arc<Self>, BenchError> {
        let names: Vec<_> = path.split('/').collect();
        let cache = DentryCache::new(BUCKETS, Arc::new(Unbounded));
        let root = cache.make_root(inode(true));
        let mut last = root.clone();
        for (nr, name) in names.iter().enumerate() {
            let inode = inode(nr + 1 < names.len());
            let added = cache.add(&last, &Name::from(*name), Some(inode));
            last = added.map_err(|error| {
                BenchError::setup("a twin", io::Error::other(format!("{error:?}")))
            })?;
        }
        Ok(Arc::new(Self {
            names,
            root,
            last,
            cache,
        }))
    }

    /// Finds the last name and looks at its inode.
    #[inline]
    pub(crate) fn stat(&self) -> io::Result<()> {
        self.try_stat().ok_or_else(changed)
    }

    #[inline]
    fn try_stat(&self) -> Option<()> {
        let rcu = rcu::read_lock();
        let mut at: (&Dentry<_>, u32) = (&self.root, self.root.read_begin());
        for name in black_box(&self.names) {
            let (dir, dir_seq) = at;
            at = self.cache.lookup_rcu(dir, &Name::from(*name), &rcu)?;
            if dir.read_retry(dir_seq) {
                return None;
            }
        }
        let (dentry, seq) = at;
        black_box(dentry.inode_rcu(&rcu)?.directory);
        (!dentry.read_retry(seq)).then_some(())
    }

    /// Takes a reference of the last name, and drops it.
    #[inline]
    pub(crate) fn take_and_drop(&self) {
        drop(black_box(self.last.clone()));
    }
}

impl<L: Layout> Drop for Twin<L> {
    fn drop(&mut self) {
        self.cache.close();
    }
}

#[cold]
fn changed() -> io::Error {
    io::Error::other("a name changed that nobody changes")
}
