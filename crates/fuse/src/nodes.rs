//! The inodes that the kernel knows, by inode number.
//!
//! # Model
//!
//! Each answer that tells the kernel of an inode counts as a look-up; the kernel gives look-ups back with `forget`.
//! Until the last one is back the inode is kept here, so a number that the kernel uses always leads to its inode. A
//! directory is kept with its dentry, in which names are looked up. The number is the inode number.
//!
//! If the kernel can be asked to forget ([`prune`](crate::prune)), each node keeps its dentry, so that both can be
//! freed at once when it is forgotten. A clock hand goes round the nodes of each shard and chooses those that no
//! request named since its last pass. A chosen node that is looked up again stays, like any other node with a
//! count.
//!
//! # Invariants
//!
//! 1. A node's count is the number of look-ups that the kernel was told of and has not forgotten.
//! 2. The root is not counted: the kernel always knows it.
//! 3. Each node is in the chain of its number.
//! 4. The memory of both tables is charged to the bound before it is allocated. It goes uncharged only if the bound
//!    has no room after a wait: the answer to the kernel is sent in any case.
//!
//! # Locking
//!
//! Each shard has a lock of rank [`Namespace`](Rank::Namespace). Cloning a dentry under it may wait for that dentry's
//! lock, and a resized table gives its memory back. Forgotten nodes are dropped after it is released, and memory is
//! waited for before it is taken. `root` is a leaf.
//!
//! # Memory ordering
//!
//! `keeps_names` is set before the first request: `Relaxed`.

use crate::answers::{Answered, Asked, Changes, Print};
use crate::handles::FileHandle;
use crate::linking::NodeId;
use crate::stats::{Counters, add, subtract};
use foliocache_mm::MetadataCharge;
use foliocache_sync::Arc;
use foliocache_sync::atomic::{AtomicBool, Ordering};
use foliocache_sync::rank::{LeafMutex, Rank, RankedMutex, RankedMutexGuard};
use foliocache_sync::time::Duration;
use foliocache_sys::Errno;
use foliocache_sys::memory::PageVec;
use foliocache_vfs::dcache::DentryRef;
use foliocache_vfs::{Inode, Named, ROOT_INO, SlabArc, SuperBlock};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

const SHARDS: usize = 16;

/// Longest wait of a request for memory.
pub(crate) const PATIENCE: Duration = Duration::from_millis(20);

/// Nodes that the hand passes in one critical section.
const STRETCH: usize = 256;

/// Least room of a shard that has any.
const LEAST_ROOM: usize = 64;

/// An inode that the kernel knows, under its number.
pub(crate) struct Node {
    inode: SlabArc<Inode>,
    /// Of a directory; of any inode if the kernel can be asked to forget it.
    dentry: Option<DentryRef<Inode>>,
    nlookup: u64,
    /// The next node in its chain.
    next: u32,
    /// Open files.
    handles: u32,
    /// An open handle, if the file lost its last name.
    held: Option<Arc<FileHandle>>,
    /// The kernel read pages into its cache through a handle that is now closed.
    mapped: bool,
    /// A request named it since the hand last passed.
    referenced: bool,
    /// The kernel was asked to forget it, and has not looked it up since.
    asked: bool,
    answered: Answered,
}

impl Node {
    pub(crate) fn is_directory(&self) -> bool {
        self.inode.is_directory()
    }

    /// Dentry and inode of a node that the kernel was asked to forget, if the node holds nothing
    /// else; otherwise the node.
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

    /// Drops a node that the kernel has forgotten. May block on I/O if it was the last holder of an unlinked file.
    pub(crate) fn put(self, names: &SuperBlock) {
        drop((self.dentry, self.held));
        names.put(self.inode);
    }
}

/// No node.
const END: u32 = u32::MAX;

/// One shard of the table.
#[derive(Default)]
struct Shard {
    nodes: PageVec<Node>,
    /// The chains of nodes by number; as many as there is room for nodes.
    heads: PageVec<u32>,
    hand: usize,
    memory: Option<MetadataCharge>,
}

/// The memory of a shard with this room.
fn table_bytes(room: usize) -> u64 {
    (PageVec::<Node>::bytes_for(room) + PageVec::<u32>::bytes_for(room)) as u64
}

type LockedShard = RankedMutex<{ Rank::Namespace as u8 }, Shard>;

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

    /// Makes the link to `from` in the chain of `ino` point to `to`.
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

    /// Adds a node; there must be room.
    fn insert(&mut self, mut node: Node) {
        let chain = self.chain(node.inode.ino());
        node.next = std::mem::replace(&mut self.heads[chain], self.nodes.len() as u32);
        self.nodes.push(node);
    }

    /// Subtracts look-ups; returns how many, and the node if those were all.
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

    /// The new room that one more node needs, if the shard is full.
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

    /// Moves the hand over some nodes, and adds the chosen ones to `chosen`, up to `most` in all; returns how many
    /// it passed.
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
    shards: [LockedShard; SHARDS],
    /// The last answer about the root, which has no node.
    root: LeafMutex<Answered>,
    changes: Changes,
    /// All nodes keep their dentries.
    keeps_names: AtomicBool,
    counters: Arc<Counters>,
}

impl Nodes {
    /// Only the root. `counters` have the sum of all counts.
    pub(crate) fn new(counters: Arc<Counters>) -> Self {
        Self {
            shards: std::array::from_fn(|_| LockedShard::default()),
            root: LeafMutex::default(),
            changes: Changes::default(),
            keeps_names: AtomicBool::new(false),
            counters,
        }
    }

    /// The kernel can be asked to forget. Call it before there are nodes.
    pub(crate) fn keep_names(&self) {
        // Relaxed: see the module's header.
        self.keeps_names.store(true, Ordering::Relaxed);
    }

    fn shard(&self, ino: u64) -> &LockedShard {
        &self.shards[ino as usize % SHARDS]
    }

    /// The number of nodes at some moment.
    pub(crate) fn len(&self) -> usize {
        let shards = self.shards.iter();
        shards.map(|shard| shard.lock().nodes.len()).sum()
    }

    /// The inode with a number.
    ///
    /// # Errors
    /// `ESTALE` for one that the kernel was never told of, or has forgotten.
    pub(crate) fn inode(&self, names: &SuperBlock, ino: u64) -> Result<SlabArc<Inode>, Errno> {
        if ino == ROOT_INO {
            return names.root().inode().ok_or(Errno::ESTALE);
        }
        Ok(self.shard(ino).lock().get(ino)?.inode.clone())
    }

    /// The inode with a number, with one of its names if that is kept.
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

    /// Keeps an unlinked file open until the kernel forgets it, preferably by a handle for writing. Drops the
    /// handle if the kernel does not know the inode.
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

    /// The handle that keeps an unlinked file open.
    pub(crate) fn held(&self, ino: u64) -> Option<Arc<FileHandle>> {
        let nodes = self.shard(ino).lock();
        nodes.nodes[nodes.find(ino)?].held.clone()
    }

    /// The dentry of a directory.
    ///
    /// # Errors
    /// As [`Nodes::inode`]; `ENOTDIR` unless it is a directory.
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

    /// The shard of a number, with room for one more node.
    fn with_room(&self, names: &SuperBlock, ino: u64) -> RankedMutexGuard<'_, Shard> {
        loop {
            let shard = self.shard(ino).lock();
            let Some(room) = shard.wants() else {
                return shard;
            };
            drop(shard);
            // In addition to the old tables, which exist until the new ones are filled.
            let memory = MetadataCharge::before_names(names.mm(), table_bytes(room), PATIENCE).ok();
            let mut shard = self.shard(ino).lock();
            if shard.wants() == Some(room) {
                shard.set_room(room);
                shard.memory = memory;
            }
        }
    }

    /// The kernel has opened another handle of this inode.
    pub(crate) fn opened(&self, ino: u64) {
        if let Ok(node) = self.shard(ino).lock().get(ino) {
            node.handles += 1;
        }
    }

    /// A handle was closed; `mapped` if the kernel read pages into its cache through it. Returns whether the inode
    /// has such pages and this was its last handle, so that the file is no longer mapped.
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
                    answered: Answered::default(),
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

    /// A thread asks for attributes, which are about to be looked up.
    pub(crate) fn asked(&self, thread: u32) -> Asked {
        Asked {
            began: self.changes.now(),
            thread,
            is_first: true,
        }
    }

    /// Changes what is noted of the last answer about an inode, if the kernel knows that.
    fn note_answer<R>(&self, ino: u64, note: impl FnOnce(&mut Answered) -> R) -> Option<R> {
        if ino == ROOT_INO {
            return Some(note(&mut self.root.lock()));
        }
        let mut nodes = self.shard(ino).lock();
        let place = nodes.find(ino)?;
        Some(note(&mut nodes.nodes[place].answered))
    }

    /// See [`Answered::next`].
    pub(crate) fn answered(
        &self,
        ino: u64,
        print: Print,
        believed: bool,
        asked: Asked,
    ) -> Option<bool> {
        let next = |answered: &mut Answered| answered.next(&self.changes, print, believed, asked);
        let noted = self.note_answer(ino, next);
        noted.unwrap_or(Some(believed))
    }

    /// See [`Answered::unbelieved`].
    pub(crate) fn answered_unbelieved(&self, ino: u64, print: Print) {
        self.note_answer(ino, |answered| answered.unbelieved(&self.changes, print));
    }

    /// Subtracts look-ups; an unknown number is no error. Returns the node if those were all.
    ///
    /// Context: does not wait.
    #[must_use]
    pub(crate) fn forget(&self, ino: u64, nlookup: u64) -> Option<Node> {
        let (taken, gone) = self.shard(ino).lock().forget(ino, nlookup);
        subtract(&self.counters.lookups, taken);
        gone
    }

    /// Chooses up to `most` nodes that the kernel should forget, least used first. Returns their numbers, and how
    /// many nodes were examined.
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
