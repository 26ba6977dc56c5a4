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
//! 3. Each node is in the chain of its number.
//! 4. The memory of both is charged to the bound before it is had; without a charge only where the bound has no
//!    room in spite of a wait, since the kernel is told of an inode all the same.
//!
//! # Locking
//!
//! One lock for each part of the table, in bounded sections. Forgotten nodes are dropped after it, and memory is
//! waited for before it.
//!
//! # Memory ordering
//!
//! `keeps_names` is set before there is a request: `Relaxed`.

use crate::handles::FileHandle;
use crate::linking::NodeId;
use crate::stats::{Counters, add, subtract};
use foliocache_mm::MetadataCharge;
use foliocache_sync::atomic::{AtomicBool, Ordering};
use foliocache_sync::time::Duration;
use foliocache_sync::{Arc, Mutex, MutexGuard};
use foliocache_sys::Errno;
use foliocache_sys::memory::PageVec;
use foliocache_vfs::dcache::DentryRef;
use foliocache_vfs::{Inode, Named, ROOT_INO, SlabArc, SuperBlock};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

const SHARDS: usize = 16;

/// Longest wait of a request for memory.
pub(crate) const PATIENCE: Duration = Duration::from_millis(20);

/// Nodes that the hand passes under one lock.
const STRETCH: usize = 256;

/// Nodes that a part has room for when it has any.
const LEAST_ROOM: usize = 64;

/// An inode that the kernel knows, under its number.
pub(crate) struct Node {
    inode: SlabArc<Inode>,
    /// A directory's; any other's if the kernel can be asked to forget it.
    dentry: Option<DentryRef<Inode>>,
    nlookup: u64,
    /// The next one in its chain.
    next: u32,
    /// Open files.
    handles: u32,
    /// An open handle of a file that lost its name.
    held: Option<Arc<FileHandle>>,
    /// The kernel read pages into its cache through a handle that is closed now.
    mapped: bool,
    /// A request named it since the hand came by.
    referenced: bool,
    /// The kernel was asked to forget it, and has not looked it up since.
    asked: bool,
}

impl Node {
    pub(crate) fn is_directory(&self) -> bool {
        self.inode.is_directory()
    }

    /// The names and the inode of a node that the kernel was asked to forget, if they are all that it holds; else the node.
    pub(crate) fn asked_for(self) -> Result<Named, Node> {
        match self {
            Node {
                asked: true,
                held: None,
                dentry: Some(dentry),
                inode,
                ..
            } => Ok(Named { dentry, inode }),
            node => Err(node),
        }
    }

    /// Lets go of a node that the kernel has forgotten. May block on I/O if it was the last holder of a
    /// file without a name.
    pub(crate) fn put(self, names: &SuperBlock) {
        drop((self.dentry, self.held));
        names.put(self.inode);
    }
}

/// No node.
const END: u32 = u32::MAX;

/// One part of the table.
#[derive(Default)]
struct Shard {
    nodes: PageVec<Node>,
    /// Of the chains of nodes by number, as many as there is room for nodes.
    heads: PageVec<u32>,
    hand: usize,
    memory: Option<MetadataCharge>,
}

/// The memory of a part with room for so many nodes.
fn table_bytes(room: usize) -> u64 {
    (PageVec::<Node>::bytes_for(room) + PageVec::<u32>::bytes_for(room)) as u64
}

impl Shard {
    fn chain(&self, ino: u64) -> usize {
        let hash = ino.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        hash as usize % self.heads.len()
    }

    fn find(&self, ino: u64) -> Option<usize> {
        if self.nodes.is_empty() {
            return None;
        }
        let mut place = self.heads[self.chain(ino)];
        while place != END && self.nodes[place as usize].inode.ino() != ino {
            place = self.nodes[place as usize].next;
        }
        (place != END).then_some(place as usize)
    }

    /// # Errors
    /// `ESTALE` for a number that the kernel was never told of, or has forgotten.
    fn get(&mut self, ino: u64) -> Result<&mut Node, Errno> {
        let place = self.find(ino).ok_or(Errno::ESTALE)?;
        let node = &mut self.nodes[place];
        node.referenced = true;
        Ok(node)
    }

    /// Has the link to `from` in the chain of `ino` lead to `to`.
    fn relink(&mut self, ino: u64, from: u32, to: u32) {
        let chain = self.chain(ino);
        let mut at = self.heads[chain];
        if at == from {
            self.heads[chain] = to;
            return;
        }
        while self.nodes[at as usize].next != from {
            at = self.nodes[at as usize].next;
        }
        self.nodes[at as usize].next = to;
    }

    /// Adds a node, for which there is room.
    fn insert(&mut self, mut node: Node) {
        let chain = self.chain(node.inode.ino());
        node.next = std::mem::replace(&mut self.heads[chain], self.nodes.len() as u32);
        self.nodes.push(node);
    }

    /// Takes look-ups back: how many, and the node if those were all.
    fn forget(&mut self, ino: u64, nlookup: u64) -> (u64, Option<Node>) {
        let Some(place) = self.find(ino) else {
            return (0, None);
        };
        let node = &mut self.nodes[place];
        let taken =
            (nlookup + u64::from(foliocache_sync::planted!(forgotten_too_early))).min(node.nlookup);
        node.nlookup -= taken;
        if node.nlookup > 0 {
            return (taken, None);
        }
        let next = node.next;
        self.relink(ino, place as u32, next);
        let last = self.nodes.len() - 1;
        if last != place {
            self.relink(self.nodes[last].inode.ino(), last as u32, place as u32);
        }
        let node = self.nodes.swap_remove(place);
        let room = self.heads.len();
        if room > LEAST_ROOM && self.nodes.len() < room / 4 {
            self.set_room(room / 2);
            if let Some(memory) = &mut self.memory {
                memory.reduce_to(table_bytes(room / 2));
            }
        }
        (taken, Some(node))
    }

    /// The room that one more node takes, if it is not there.
    fn wants(&self) -> Option<usize> {
        let room = self.heads.len();
        (self.nodes.len() == room).then_some((2 * room).max(LEAST_ROOM))
    }

    /// Moves the nodes to new tables.
    fn set_room(&mut self, room: usize) {
        self.nodes.set_room(room);
        self.heads = PageVec::default();
        self.heads.set_room(room);
        for _ in 0..room {
            self.heads.push(END);
        }
        for place in 0..self.nodes.len() {
            let chain = self.chain(self.nodes[place].inode.ino());
            self.nodes[place].next = std::mem::replace(&mut self.heads[chain], place as u32);
        }
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
    counters: Arc<Counters>,
}

impl Nodes {
    /// None but the root. `counters` have the sum of all counts.
    pub(crate) fn new(counters: Arc<Counters>) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            keeps_names: AtomicBool::new(false),
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
        let shards = self.shards.iter();
        shards.map(|shard| shard.lock().nodes.len()).sum()
    }

    /// The inode of a number.
    ///
    /// # Errors
    /// `ESTALE` for one that the kernel was never told of, or has forgotten.
    pub(crate) fn inode(&self, names: &SuperBlock, ino: u64) -> Result<SlabArc<Inode>, Errno> {
        if ino == ROOT_INO {
            return names.root().inode().ok_or(Errno::ESTALE);
        }
        Ok(self.shard(ino).lock().get(ino)?.inode.clone())
    }

    /// The inode of a number, with a name of it if that is kept.
    ///
    /// # Errors
    /// As [`Nodes::inode`].
    pub(crate) fn named(
        &self,
        names: &SuperBlock,
        ino: u64,
    ) -> Result<(SlabArc<Inode>, Option<DentryRef<Inode>>), Errno> {
        if ino == ROOT_INO {
            return Ok((self.inode(names, ino)?, None));
        }
        let mut nodes = self.shard(ino).lock();
        let node = nodes.get(ino)?;
        Ok((node.inode.clone(), node.dentry.clone()))
    }

    /// The numbers that the kernel knows.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        let mut numbers = vec![ROOT_INO];
        for shard in &self.shards {
            let shard = shard.lock();
            numbers.extend(shard.nodes.iter().map(|node| node.inode.ino()));
        }
        numbers
    }

    /// Whether the kernel knows a number.
    pub(crate) fn knows(&self, ino: u64) -> bool {
        ino == ROOT_INO || self.shard(ino).lock().find(ino).is_some()
    }

    /// Whether the kernel has the inode open.
    pub(crate) fn is_open(&self, ino: u64) -> bool {
        let nodes = self.shard(ino).lock();
        let place = nodes.find(ino);
        place.is_some_and(|place| nodes.nodes[place].handles > 0)
    }

    /// Keeps a file open that has no name, until the kernel forgets it; a handle that serves for writing rather than one that
    /// does not. Closes it if the kernel does not know it.
    pub(crate) fn hold(&self, handle: Arc<FileHandle>) {
        let ino = handle.file.inode().ino();
        let mut nodes = self.shard(ino).lock();
        let left = match nodes.find(ino) {
            Some(place) => {
                let held = &mut nodes.nodes[place].held;
                let writes = |handle: &Arc<FileHandle>| handle.file.flags().write;
                match held
                    .as_ref()
                    .is_some_and(|held| writes(held) && !writes(&handle))
                {
                    true => Some(handle),
                    false => held.replace(handle),
                }
            }
            None => Some(handle),
        };
        drop(nodes);
        drop(left);
    }

    /// A file that is kept open.
    pub(crate) fn held(&self, ino: u64) -> Option<Arc<FileHandle>> {
        let nodes = self.shard(ino).lock();
        nodes.nodes[nodes.find(ino)?].held.clone()
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
        let node = nodes.get(ino)?;
        if !node.inode.is_directory() {
            return Err(Errno::ENOTDIR);
        }
        node.dentry.clone().ok_or(Errno::ENOTDIR)
    }

    /// The part of a number, with room for one more.
    fn with_room(&self, names: &SuperBlock, ino: u64) -> MutexGuard<'_, Shard> {
        loop {
            let shard = self.shard(ino).lock();
            let Some(room) = shard.wants() else {
                return shard;
            };
            drop(shard);
            // Besides the old tables, which are there until these are filled.
            let memory = MetadataCharge::before_names(names.mm(), table_bytes(room), PATIENCE).ok();
            let mut shard = self.shard(ino).lock();
            if shard.wants() == Some(room) {
                shard.set_room(room);
                shard.memory = memory;
            }
        }
    }

    /// The kernel has opened one more handle of this inode.
    pub(crate) fn opened(&self, ino: u64) {
        if let Ok(node) = self.shard(ino).lock().get(ino) {
            node.handles += 1;
        }
    }

    /// A handle was closed, through which the kernel read pages into its cache if `mapped`. Whether it was the
    /// inode's last one, so that nobody maps what was read in this way.
    pub(crate) fn closed(&self, ino: u64, mapped: bool) -> bool {
        let mut nodes = self.shard(ino).lock();
        let Ok(node) = nodes.get(ino) else {
            return mapped;
        };
        node.handles = node.handles.saturating_sub(1);
        node.mapped |= mapped;
        node.handles == 0 && std::mem::take(&mut node.mapped)
    }

    /// Counts a look-up. May wait for memory of the bound.
    pub(crate) fn remember(&self, names: &SuperBlock, Named { dentry, inode }: &Named) {
        let ino = inode.ino();
        if ino == ROOT_INO {
            return;
        }
        add(&self.counters.lookups, 1);
        let mut shard = self.with_room(names, ino);
        let replaced = match shard.get(ino) {
            Err(_) => {
                // Relaxed: see the module's header.
                let keep = inode.is_directory() || self.keeps_names.load(Ordering::Relaxed);
                shard.insert(Node {
                    inode: inode.clone(),
                    dentry: keep.then(|| dentry.clone()),
                    nlookup: 1,
                    next: END,
                    handles: 0,
                    held: None,
                    mapped: false,
                    referenced: false,
                    asked: false,
                });
                None
            }
            Ok(known) => {
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

    /// Counts a look-up of an inode that the kernel knows, unless it knows it under another name alone.
    pub(crate) fn remember_again(&self, id: NodeId, name: &OsStr) -> Option<SlabArc<Inode>> {
        let mut shard = self.shard(id.ino).lock();
        let node = shard.get(id.ino).ok()?;
        let is_name = |dentry: &DentryRef<Inode>| *dentry.name() == *name.as_bytes();
        if NodeId::of(&node.inode) != id || !node.dentry.as_ref().is_none_or(is_name) {
            return None;
        }
        node.nlookup += 1;
        node.asked = false;
        add(&self.counters.lookups, 1);
        Some(node.inode.clone())
    }

    /// Takes look-ups back; an unknown number is no error. The node if those were all.
    ///
    /// Context: does not wait.
    #[must_use]
    pub(crate) fn forget(&self, ino: u64, nlookup: u64) -> Option<Node> {
        let (taken, gone) = self.shard(ino).lock().forget(ino, nlookup);
        subtract(&self.counters.lookups, taken);
        gone
    }

    /// Chooses up to `most` nodes that the kernel should be asked to forget, least used first; their numbers, and
    /// how many nodes were looked at for them.
    pub(crate) fn choose(&self, most: usize) -> (Vec<u64>, usize) {
        let each = most.div_ceil(SHARDS);
        let mut chosen = Vec::with_capacity(most);
        let mut seen = 0;
        for shard in &self.shards {
            let upto = most.min(chosen.len() + each);
            seen += shard.lock().choose(upto, &mut chosen);
        }
        (chosen, seen)
    }
}
