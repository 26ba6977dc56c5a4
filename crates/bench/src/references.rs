//! Dentries beside references that other threads take: the cache's own, and a model of two layouts.
//!
//! # Model
//!
//! [`Path`] is the names of one path in a dentry cache, over inodes that know no more than whether they are
//! directories; a stat of it is the walk under RCU, name by name, up to a look at the last inode.
//!
//! [`Chain`] makes the memory accesses of such a walk, with the reference count on the line that look-ups read or
//! two lines behind it, as in a dentry. It shows the value of the distance: the rest is the same.

use foliocache_sync::lockref::LockRef;
use foliocache_sync::rcu;
use foliocache_sync::seqcount::SeqCount;
use foliocache_vfs::SlabArc;
use foliocache_vfs::Unbounded;
use foliocache_vfs::dcache::{AliasSlot, Dentry, DentryCache, DentryInode, DentryRef, Name};
use std::hint::black_box;
use std::io;
use std::sync::Arc;

use crate::error::{BenchError, OrSetup};

/// Buckets of the table: more than names.
const BUCKETS: usize = 64;

/// A path that one thread looks up while others take references of its last name.
pub(crate) trait Referenced: Send + Sync + 'static {
    /// Finds the last name and looks at its inode.
    fn stat(&self) -> io::Result<()>;

    /// Takes a reference of the last name, and drops it.
    fn take_and_drop(&self);
}

/// An inode that has no more than its kind.
struct TinyInode {
    directory: bool,
    alias: AliasSlot<TinyInode>,
}

impl DentryInode for TinyInode {
    fn is_dir(&self) -> bool {
        self.directory
    }

    fn alias(&self) -> &AliasSlot<Self> {
        &self.alias
    }
}

fn inode(directory: bool) -> SlabArc<TinyInode> {
    let alias = AliasSlot::default();
    SlabArc::new(TinyInode { directory, alias })
}

/// A path of names, cached.
pub(crate) struct Path {
    names: Vec<&'static str>,
    root: DentryRef<TinyInode>,
    last: DentryRef<TinyInode>,
    cache: DentryCache<TinyInode>,
}

impl Path {
    /// With the names of a relative path.
    pub(crate) fn new(path: &'static str) -> Result<Arc<Self>, BenchError> {
        let names: Vec<_> = path.split('/').collect();
        let cache = DentryCache::new(BUCKETS, Arc::new(Unbounded));
        let root = cache.make_root(inode(true));
        let mut last = root.clone();
        for (nr, name) in names.iter().enumerate() {
            let inode = inode(nr + 1 < names.len());
            let added = cache.add(&last, &Name::new(name.as_bytes()), Some(inode));
            let added = added.map_err(|error| io::Error::other(format!("{error:?}")));
            (last, _) = added.setting_up("a path")?;
        }
        Ok(Arc::new(Self {
            names,
            root,
            last,
            cache,
        }))
    }

    #[inline]
    fn try_stat(&self) -> Option<()> {
        let rcu = rcu::read_lock();
        let mut at: (&Dentry<_>, u32) = (&self.root, self.root.read_begin());
        for name in black_box(&self.names) {
            let (dir, dir_seq) = at;
            at = self
                .cache
                .lookup_rcu(dir, &Name::new(name.as_bytes()), &rcu)?;
            if dir.read_retry(dir_seq) {
                return None;
            }
        }
        let (dentry, seq) = at;
        black_box(dentry.inode_rcu(&rcu)?.directory);
        (!dentry.read_retry(seq)).then_some(())
    }
}

impl Referenced for Path {
    #[inline]
    fn stat(&self) -> io::Result<()> {
        self.try_stat().ok_or_else(changed)
    }

    #[inline]
    fn take_and_drop(&self) {
        drop(black_box(self.last.clone()));
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        self.cache.close();
    }
}

/// Three lines, as a dentry has.
#[repr(C, align(64))]
struct Link {
    hash: u64,
    seq: SeqCount,
    among: LockRef,
    /// The rest of the name and of the first two lines.
    _name: [u64; 13],
    apart: LockRef,
}

const _: () = assert!(std::mem::offset_of!(Link, among) < 64);
const _: () = assert!(std::mem::offset_of!(Link, apart) == 128);

/// As many links as a path has names. `APART` says which of its counts is used.
pub(crate) struct Chain<const APART: bool> {
    hashes: Vec<u64>,
    links: Vec<Link>,
}

impl<const APART: bool> Chain<APART> {
    /// For the names of a path.
    pub(crate) fn new(path: &str) -> Arc<Self> {
        let hashes: Vec<_> = (0..path.split('/').count() as u64).collect();
        let link = |&hash: &u64| Link {
            hash,
            seq: SeqCount::new(),
            among: LockRef::new(1),
            _name: [0; 13],
            apart: LockRef::new(1),
        };
        let links = hashes.iter().map(link).collect();
        Arc::new(Self { hashes, links })
    }
}

impl<const APART: bool> Referenced for Chain<APART> {
    #[inline]
    fn stat(&self) -> io::Result<()> {
        for (hash, link) in black_box(&self.hashes).iter().zip(&self.links) {
            let seq = link.seq.read_begin();
            if link.hash != *hash || link.seq.read_retry(seq) {
                return Err(changed());
            }
        }
        Ok(())
    }

    #[inline]
    fn take_and_drop(&self) {
        let link = &self.links[self.links.len() - 1];
        let count = if APART { &link.apart } else { &link.among };
        count.get();
        black_box(count.put_or_lock());
    }
}

#[cold]
fn changed() -> io::Error {
    io::Error::other("an unchanging name changed")
}
