//! The inodes that the kernel knows, by the numbers that it calls them.
//!
//! # Model
//!
//! Each answer that tells the kernel of an inode counts as a look-up; the kernel gives look-ups back with
//! `forget`. Until the last is back the inode is kept here, so that a number which the kernel uses always
//! leads to its inode; a directory with its dentry, in which names are looked up. The number is the
//! inode's own.
//!
//! # Invariants
//!
//! 1. A node's count is that of the look-ups which the kernel has been told of and has not forgotten.
//! 2. The root is not counted: the kernel knows it from the beginning.
//!
//! # Locking
//!
//! One lock for each part of the table, in bounded sections. What is forgotten is dropped after it.

use crate::stats::{Counters, add, subtract};
use foliocache_sync::{Arc, Mutex};
use foliocache_sys::Errno;
use foliocache_vfs::dcache::DentryRef;
use foliocache_vfs::{Inode, Named, ROOT_INO, SuperBlock};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

const SHARDS: usize = 16;

/// What the kernel knows under one number.
struct Node {
    inode: Arc<Inode>,
    /// A directory's.
    dentry: Option<DentryRef<Inode>>,
    nlookup: u64,
}

/// The inodes that the kernel knows.
pub(crate) struct Nodes {
    shards: [Mutex<HashMap<u64, Node>>; SHARDS],
    counters: Arc<Counters>,
}

impl Nodes {
    /// None but the root; `counters` are told of all counts together.
    pub(crate) fn new(counters: Arc<Counters>) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            counters,
        }
    }

    fn shard(&self, ino: u64) -> &Mutex<HashMap<u64, Node>> {
        &self.shards[ino as usize % SHARDS]
    }

    /// The inode of a number.
    ///
    /// # Errors
    /// `ESTALE` for one that the kernel was never told of, or has forgotten.
    pub(crate) fn inode(&self, names: &SuperBlock, ino: u64) -> Result<Arc<Inode>, Errno> {
        if ino == ROOT_INO {
            return names.root().inode().ok_or(Errno::ESTALE);
        }
        let nodes = self.shard(ino).lock();
        let node = nodes.get(&ino).ok_or(Errno::ESTALE)?;
        Ok(Arc::clone(&node.inode))
    }

    /// The dentry of a directory.
    ///
    /// # Errors
    /// As [`Nodes::inode`]; `ENOTDIR` for what is no directory.
    pub(crate) fn dentry(&self, names: &SuperBlock, ino: u64) -> Result<DentryRef<Inode>, Errno> {
        if ino == ROOT_INO {
            return Ok(names.root().clone());
        }
        let nodes = self.shard(ino).lock();
        let node = nodes.get(&ino).ok_or(Errno::ESTALE)?;
        node.dentry.clone().ok_or(Errno::ENOTDIR)
    }

    /// Counts a look-up.
    pub(crate) fn remember(&self, Named { dentry, inode }: &Named) {
        if inode.ino() == ROOT_INO {
            return;
        }
        add(&self.counters.lookups, 1);
        let replaced = match self.shard(inode.ino()).lock().entry(inode.ino()) {
            Entry::Vacant(vacant) => {
                vacant.insert(Node {
                    inode: Arc::clone(inode),
                    dentry: inode.is_directory().then(|| dentry.clone()),
                    nlookup: 1,
                });
                None
            }
            Entry::Occupied(mut known) => {
                let known = known.get_mut();
                known.nlookup += 1;
                // A directory may have been found anew, under another dentry than before.
                match &mut known.dentry {
                    Some(old) if !std::ptr::eq(&**old, &**dentry) => {
                        Some(std::mem::replace(old, dentry.clone()))
                    }
                    _ => None,
                }
            }
        };
        drop(replaced);
    }

    /// Takes look-ups back; an unknown number is no error.
    pub(crate) fn forget(&self, names: &SuperBlock, ino: u64, nlookup: u64) {
        let gone = match self.shard(ino).lock().entry(ino) {
            Entry::Vacant(_) => return,
            Entry::Occupied(mut known) => {
                let taken = nlookup.min(known.get().nlookup);
                subtract(&self.counters.lookups, taken);
                known.get_mut().nlookup -= taken;
                (known.get().nlookup == 0).then(|| known.remove())
            }
        };
        if gone.is_some() {
            drop(gone);
            names.reap();
        }
    }
}
