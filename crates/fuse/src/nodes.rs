//! The inodes that the kernel knows, by the numbers that it calls them.
//!
//! # Model
//!
//! Each answer that tells the kernel of an inode counts as a look-up; the kernel gives look-ups back with
//! `forget`. Until the last is back the inode is kept here, so that a number which the kernel uses always
//! leads to its inode; a directory with its dentry, in which names are looked up. The number is the
//! inode's own.
//!
//! Where the kernel can be asked to forget ([`prune`](crate::prune)) each node keeps its dentry, so that all of
//! it can be given up at once when it is forgotten. A clock's hand goes round the nodes of each part and chooses
//! those that no request named since it last came by. One that was chosen and is looked up again stays as long
//! as its count says.
//!
//! # Invariants
//!
//! 1. A node's count is that of the look-ups which the kernel has been told of and has not forgotten.
//! 2. The root is not counted: the kernel knows it from the beginning.
//! 3. `places` has the place in `nodes` of each number there, and no other.
//!
//! # Locking
//!
//! One lock for each part of the table, in bounded sections. What is forgotten is dropped after it.
//!
//! # Memory ordering
//!
//! `keeps_names` is set before there is a request, and `next` need only spread: `Relaxed`.

use crate::prune::Pruner;
use crate::stats::{Counters, add, subtract};
use foliocache_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use foliocache_sync::{Arc, Mutex};
use foliocache_sys::Errno;
use foliocache_vfs::dcache::DentryRef;
use foliocache_vfs::{Inode, Named, ROOT_INO, SlabArc, SuperBlock};
use std::collections::HashMap;

const SHARDS: usize = 16;

/// Nodes that the hand passes under one lock.
const STRETCH: usize = 256;

/// What the kernel knows under one number.
pub(crate) struct Node {
    inode: SlabArc<Inode>,
    /// A directory's; any other's if the kernel can be asked to forget it.
    dentry: Option<DentryRef<Inode>>,
    nlookup: u64,
    /// A request named it since the hand came by.
    referenced: bool,
    /// The kernel was asked to forget it, and has not looked it up since.
    asked: bool,
}

impl Node {
    /// Lets go of what the kernel has forgotten. May block on I/O if it was the last holder of a
    /// file without a name.
    pub(crate) fn put(self, names: &SuperBlock) {
        let Node { dentry, inode, .. } = self;
        drop(dentry);
        names.put(inode);
    }
}

/// One part of the table.
#[derive(Default)]
struct Shard {
    places: HashMap<u64, usize>,
    nodes: Vec<Node>,
    hand: usize,
}

impl Shard {
    fn get(&mut self, ino: u64) -> Option<&mut Node> {
        let place = *self.places.get(&ino)?;
        let node = &mut self.nodes[place];
        node.referenced = true;
        Some(node)
    }

    /// Takes look-ups back: how many, and the node if those were all.
    fn forget(&mut self, ino: u64, nlookup: u64) -> (u64, Option<Node>) {
        let Some(&place) = self.places.get(&ino) else {
            return (0, None);
        };
        let node = &mut self.nodes[place];
        let taken = nlookup.min(node.nlookup);
        node.nlookup -= taken;
        if node.nlookup > 0 {
            return (taken, None);
        }
        self.places.remove(&ino);
        let node = self.nodes.swap_remove(place);
        if let Some(moved) = self.nodes.get(place) {
            self.places.insert(moved.inode.ino(), place);
        }
        (taken, Some(node))
    }

    /// Moves the hand on over some nodes, and adds those that it chooses to `chosen`, up to `most` of them; how
    /// many it passed.
    fn choose(&mut self, most: usize, chosen: &mut Vec<u64>) -> usize {
        let stretch = STRETCH.min(self.nodes.len());
        for passed in 0..stretch {
            if chosen.len() >= most {
                return passed;
            }
            if self.hand >= self.nodes.len() {
                self.hand = 0;
            }
            let node = &mut self.nodes[self.hand];
            self.hand += 1;
            if !std::mem::take(&mut node.referenced) {
                node.asked = true;
                chosen.push(node.inode.ino());
            }
        }
        stretch
    }
}

/// The inodes that the kernel knows.
pub(crate) struct Nodes {
    shards: [Mutex<Shard>; SHARDS],
    /// Dentries are kept of all nodes.
    keeps_names: AtomicBool,
    /// Where the next choice begins.
    next: AtomicUsize,
    pruner: Arc<Pruner>,
    counters: Arc<Counters>,
}

impl Nodes {
    /// None but the root; `counters` are told of all counts together, and `pruner` of what came back of that
    /// which was chosen.
    pub(crate) fn new(pruner: Arc<Pruner>, counters: Arc<Counters>) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            keeps_names: AtomicBool::new(false),
            next: AtomicUsize::new(0),
            pruner,
            counters,
        }
    }

    /// The kernel can be asked to forget. To be called before there are any nodes.
    pub(crate) fn keep_names(&self) {
        // Relaxed: see the module's header.
        self.keeps_names.store(true, Ordering::Relaxed);
    }

    fn shard(&self, ino: u64) -> &Mutex<Shard> {
        &self.shards[ino as usize % SHARDS]
    }

    /// How many there are, at some moment.
    pub(crate) fn len(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| shard.lock().nodes.len())
            .sum()
    }

    /// The inode of a number.
    ///
    /// # Errors
    /// `ESTALE` for one that the kernel was never told of, or has forgotten.
    pub(crate) fn inode(&self, names: &SuperBlock, ino: u64) -> Result<SlabArc<Inode>, Errno> {
        if ino == ROOT_INO {
            return names.root().inode().ok_or(Errno::ESTALE);
        }
        let mut nodes = self.shard(ino).lock();
        let node = nodes.get(ino).ok_or(Errno::ESTALE)?;
        Ok(node.inode.clone())
    }

    /// The dentry of a directory.
    ///
    /// # Errors
    /// As [`Nodes::inode`]; `ENOTDIR` for what is no directory.
    pub(crate) fn dentry(&self, names: &SuperBlock, ino: u64) -> Result<DentryRef<Inode>, Errno> {
        if ino == ROOT_INO {
            return Ok(names.root().clone());
        }
        let mut nodes = self.shard(ino).lock();
        let node = nodes.get(ino).ok_or(Errno::ESTALE)?;
        if !node.inode.is_directory() {
            return Err(Errno::ENOTDIR);
        }
        node.dentry.clone().ok_or(Errno::ENOTDIR)
    }

    /// Counts a look-up.
    pub(crate) fn remember(&self, Named { dentry, inode }: &Named) {
        let ino = inode.ino();
        if ino == ROOT_INO {
            return;
        }
        add(&self.counters.lookups, 1);
        let mut shard = self.shard(ino).lock();
        let replaced = match shard.get(ino) {
            None => {
                // Relaxed: see the module's header.
                let keep = inode.is_directory() || self.keeps_names.load(Ordering::Relaxed);
                let place = shard.nodes.len();
                shard.places.insert(ino, place);
                shard.nodes.push(Node {
                    inode: inode.clone(),
                    dentry: keep.then(|| dentry.clone()),
                    nlookup: 1,
                    referenced: false,
                    asked: false,
                });
                None
            }
            Some(known) => {
                known.nlookup += 1;
                known.asked = false;
                // It may have been found anew, under another dentry than before.
                match &mut known.dentry {
                    Some(old) if !std::ptr::eq(&**old, &**dentry) => {
                        Some(std::mem::replace(old, dentry.clone()))
                    }
                    _ => None,
                }
            }
        };
        drop(shard);
        drop(replaced);
    }

    /// Takes look-ups back; an unknown number is no error. The node if those were all, unless the
    /// pruner gets it.
    ///
    /// Context: does not wait.
    #[must_use]
    pub(crate) fn forget(&self, ino: u64, nlookup: u64) -> Option<Node> {
        let (taken, gone) = self.shard(ino).lock().forget(ino, nlookup);
        subtract(&self.counters.lookups, taken);
        match gone? {
            Node {
                asked: true,
                dentry: Some(dentry),
                inode,
                ..
            } => {
                self.pruner.took_back(Named { dentry, inode });
                None
            }
            gone => Some(gone),
        }
    }

    /// Chooses up to `most` nodes that the kernel should be asked to forget, least used first; their numbers, and
    /// how many nodes were looked at for them.
    pub(crate) fn choose(&self, most: usize) -> (Vec<u64>, usize) {
        let each = most.div_ceil(SHARDS);
        let mut chosen = Vec::with_capacity(most);
        let mut seen = 0;
        for _ in 0..SHARDS {
            // Relaxed: see the module's header.
            let at = self.next.fetch_add(1, Ordering::Relaxed) % SHARDS;
            let upto = most.min(chosen.len() + each);
            seen += self.shards[at].lock().choose(upto, &mut chosen);
        }
        (chosen, seen)
    }
}
