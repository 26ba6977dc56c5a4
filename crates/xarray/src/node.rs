//! [`Node`], one level of the index: its memory layout, the words that point to it, and its owners.
//!
//! # Model
//!
//! A node is in one of three places: in a pool list or a [`crate::Preload`] (an [`OwnedNode`]), in
//! the tree of one index, or detached from it and waiting for its grace period (an [`OwnedNode`]
//! again, but one that readers may still be looking at).
//!
//! A pointer to a node is a *word*: in a slot the address with [`NODE`] in its low bits, in the
//! head of an index the address with the shift of the node's level in its low six bits.
//!
//! # Invariants
//!
//! 1. Node memory is type-stable: from the time its chunk is carved until the pool gives the chunk
//!    back it holds an initialised `Node`. Every field is an atomic, but `link`, which only the
//!    owner of an [`OwnedNode`] touches.
//! 2. A node in a tree has at least one slot in use (`present != 0`), and `present` bit i is set
//!    exactly if slot i is not empty.
//! 3. `siblings` bit i is set exactly if slot i continues the entry of slot i-1; then both hold the
//!    same word, which is no child node. Bit 0 is never set. Marks sit on the first slot of an
//!    entry.
//! 4. A mark's bit over a child node is set exactly if the child's word of that mark is not zero.
//! 5. A node that is detached is empty, but for the old head of a tree that shrank: its slot 0
//!    still points to the node that took its place, for readers that are on their way.
//!    [`OwnedNode::reset`] clears it after the grace period.
//!
//! Invariants 2 to 4 hold whenever the xa_lock is free; a lockless reader may see them half-way.
//!
//! # Memory ordering
//!
//! A slot is stored with Release and loaded with Acquire: a reader that sees a word sees the node it
//! points to, and the `siblings` that were stored before it. `siblings` is stored with Release and
//! loaded with Acquire: a reader that sees the layout of a later entry sees, in a slot load after it,
//! that the former entry has left. `present` and the marks are Relaxed: to a lockless reader they are
//! hints that say where to look, and it sees all changes from before it began anyway; writers are
//! ordered by the xa_lock.
//!
//! # Safety
//!
//! [`Node::from_word`] makes references out of slot words, and [`OwnedNode`] out of pool memory.
//! Both rest on invariant 1. All else here is safe code over atomics.
#![allow(unsafe_code)]

use core::array;
use core::ptr::{self, NonNull};

use foliocache_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use foliocache_sync::cell::UnsafeCell;

use crate::entry::{Mark, NR_MARKS};
use crate::level::{SLOTS, shift};

/// Low bits of a slot word that points to a child node.
const NODE: usize = 2;
/// The bits in which [`NODE`] shows.
const TAG: usize = 3;
/// The bits of a head word that hold the shift.
const HEAD_SHIFT: usize = 63;

/// One level of the index.
#[doc(alias = "xa_node")]
#[repr(C, align(64))]
pub(crate) struct Node {
    /// Entries, child nodes, or zero.
    slots: [AtomicUsize; SLOTS],
    /// One bitmap a mark: which slots have it, or have it below them.
    marks: [AtomicU64; NR_MARKS],
    /// Which slots continue the entry of the slot before.
    siblings: AtomicU64,
    /// Which slots are not empty.
    present: AtomicU64,
    /// The next node of the list that owns this one; touched by the owner alone.
    link: UnsafeCell<Option<NonNull<Node>>>,
}

#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<Node>() == 576 && align_of::<Node>() == 64);

// SAFETY: every field is an atomic but `link`, which only the owner of an `OwnedNode` touches
// (invariant 1), and there is one owner at most.
unsafe impl Sync for Node {}

/// `width` ones from bit `offset` on.
#[inline]
pub(crate) fn bits(offset: usize, width: usize) -> u64 {
    (u64::MAX >> (64 - width)) << offset
}

/// The first slot of the entry that has slot `offset`, by the layout `siblings`.
#[inline]
pub(crate) fn canonical(siblings: u64, offset: usize) -> usize {
    let first = !siblings & (u64::MAX >> (63 - offset));
    63 - first.leading_zeros() as usize
}

/// How many slots the entry whose first slot is `first` has, by the layout `siblings`.
#[inline]
pub(crate) fn width(siblings: u64, first: usize) -> usize {
    let next = !siblings >> first >> 1;
    (next.trailing_zeros() as usize + 1).min(SLOTS - first)
}

/// Whether a slot word points to a child node.
#[inline]
pub(crate) fn is_node(word: usize) -> bool {
    word & TAG == NODE
}

impl Node {
    /// An empty node.
    fn new() -> Self {
        Self {
            slots: array::from_fn(|_| AtomicUsize::new(0)),
            marks: array::from_fn(|_| AtomicU64::new(0)),
            siblings: AtomicU64::new(0),
            present: AtomicU64::new(0),
            link: UnsafeCell::new(None),
        }
    }

    /// The node that the slot word `word` points to.
    ///
    /// # Safety
    ///
    /// `is_node(word)`, and `word` was loaded from a slot of a node in the tree, or detached from
    /// it, under the xa_lock or inside an RCU read section that lasts for `'a`. Then the node is in
    /// the tree, or its grace period cannot end before `'a` does.
    #[inline]
    pub(crate) unsafe fn from_word<'a>(word: usize) -> &'a Self {
        debug_assert!(is_node(word));
        let node = ptr::with_exposed_provenance::<Self>(word - NODE);
        // SAFETY: invariant 1, and by the caller's contract the node's chunk is not given back
        // during 'a.
        unsafe { &*node }
    }

    /// The head of an index as its node and the shift of its level; `None` for an empty tree.
    ///
    /// # Safety
    ///
    /// As for [`Node::from_word`], but that `word` was loaded from the head of an index, and is no entry.
    #[inline]
    pub(crate) unsafe fn from_head<'a>(word: usize) -> Option<(&'a Self, u32)> {
        if word == 0 {
            return None;
        }
        let node = ptr::with_exposed_provenance::<Self>(word & !HEAD_SHIFT);
        // SAFETY: invariant 1, and by the caller's contract the node's chunk is not given back
        // during 'a.
        Some((unsafe { &*node }, (word & HEAD_SHIFT) as u32))
    }

    /// The slot word that points to this node.
    #[inline]
    pub(crate) fn word(&self) -> usize {
        ptr::from_ref(self).expose_provenance() | NODE
    }

    /// The head word that makes this node the head, at `level`.
    pub(crate) fn head_word(&self, level: usize) -> usize {
        ptr::from_ref(self).expose_provenance() | shift(level) as usize
    }

    /// The slot itself.
    #[inline]
    pub(crate) fn slot(&self, offset: usize) -> &AtomicUsize {
        &self.slots[offset & (SLOTS - 1)]
    }

    /// The word in slot `offset`; Acquire, partner of [`Node::publish`].
    #[inline]
    pub(crate) fn load(&self, offset: usize) -> usize {
        self.slot(offset).load(Ordering::Acquire)
    }

    /// Which slots are not empty. Relaxed: see the module's memory ordering.
    #[inline]
    pub(crate) fn present(&self) -> u64 {
        self.present.load(Ordering::Relaxed)
    }

    /// Which slots continue an entry; Acquire, partner of [`Node::set_siblings`].
    #[inline]
    pub(crate) fn siblings(&self) -> u64 {
        self.siblings.load(Ordering::Acquire)
    }

    /// Which slots have `mark`. Relaxed: see the module's memory ordering.
    #[inline]
    pub(crate) fn marks(&self, mark: Mark) -> u64 {
        self.marks[mark as usize].load(Ordering::Relaxed)
    }

    /// Which slots have `mark`, or with `None` which are not empty.
    #[inline]
    pub(crate) fn candidates(&self, mark: Option<Mark>) -> u64 {
        match mark {
            Some(mark) => self.marks(mark),
            None => self.present(),
        }
    }

    // The methods below need the xa_lock or an owned node: a load and a store make one change, since no
    // other thread changes the node.

    /// Stores `word` in slot `offset`. Release, partner of [`Node::load`].
    #[inline]
    pub(crate) fn publish(&self, offset: usize, word: usize) {
        self.slot(offset).store(word, Ordering::Release);
    }

    /// Puts one entry, or child node, into `width` empty slots from `offset` on: layout first,
    /// slots after, so that a reader that sees a slot sees the layout.
    pub(crate) fn fill(&self, offset: usize, width: usize, word: usize) {
        let all = bits(offset, width);
        debug_assert!(self.present() & all == 0 && word != 0);
        if width > 1 {
            self.set_siblings(self.siblings() | (all & !(1 << offset)));
        }
        self.set_present(self.present() | all);
        for offset in offset..offset + width {
            self.publish(offset, word);
        }
    }

    /// Empties `width` slots from `offset` on: slots first, layout after.
    pub(crate) fn clear(&self, offset: usize, width: usize) {
        let all = bits(offset, width);
        for offset in offset..offset + width {
            self.publish(offset, 0);
        }
        if width > 1 {
            self.set_siblings(self.siblings() & !all);
        }
        self.set_present(self.present() & !all);
    }

    /// Sets the layout. Release, partner of [`Node::siblings`].
    pub(crate) fn set_siblings(&self, siblings: u64) {
        debug_assert!(siblings & 1 == 0);
        self.siblings.store(siblings, Ordering::Release);
    }

    /// Relaxed: see the module's memory ordering.
    fn set_present(&self, present: u64) {
        self.present.store(present, Ordering::Relaxed);
    }

    /// Sets the bitmap of `mark`. Relaxed: see the module's memory ordering.
    #[inline]
    pub(crate) fn set_marks(&self, mark: Mark, marks: u64) {
        self.marks[mark as usize].store(marks, Ordering::Relaxed);
    }
}

/// A node that is in no tree, and the right to touch its link.
#[derive(Debug)]
pub(crate) struct OwnedNode(NonNull<Node>);

// SAFETY: an `OwnedNode` is a pointer to a `Sync` node, with the sole right to its link.
unsafe impl Send for OwnedNode {}

impl OwnedNode {
    /// Makes a node of raw memory.
    ///
    /// # Safety
    ///
    /// `ptr` is aligned for a `Node`, and the memory is the caller's alone, now and until the pool
    /// gives it back.
    pub(crate) unsafe fn carve(ptr: NonNull<Node>) -> Self {
        // SAFETY: the caller's contract.
        unsafe { ptr.write(Node::new()) };
        Self(ptr)
    }

    /// Takes a node over that was just detached from its tree.
    ///
    /// # Safety
    ///
    /// The xa_lock is held, `node` was in the tree, no slot of a node in the tree nor the head
    /// points to it any more, and it is taken over once.
    pub(crate) unsafe fn detached(node: &Node) -> Self {
        Self(NonNull::from(node))
    }

    /// Makes the node empty, after the grace period of its last use.
    pub(crate) fn reset(&self) {
        let node = self.node();
        // Relaxed all: no other thread looks at the node, and a Release store publishes it.
        node.slots[0].store(0, Ordering::Relaxed);
        for marks in &node.marks {
            marks.store(0, Ordering::Relaxed);
        }
        node.siblings.store(0, Ordering::Relaxed);
        node.present.store(0, Ordering::Relaxed);
        #[cfg(not(any(loom, shuttle)))]
        debug_assert!(
            node.slots
                .iter()
                .all(|slot| slot.load(Ordering::Relaxed) == 0),
            "invariant 5 of Node"
        );
    }

    /// The node.
    pub(crate) fn node(&self) -> &Node {
        // SAFETY: invariant 1 of `Node`, and the chunk of an owned node is not given back.
        unsafe { self.0.as_ref() }
    }

    /// Gives the node up to a tree, by the word that [`Node::publish`] will put there.
    pub(crate) fn into_word(self) -> usize {
        self.node().word()
    }

    /// The address of the node.
    pub(crate) fn addr(&self) -> usize {
        self.0.addr().get()
    }

    fn set_link(&self, next: Option<NonNull<Node>>) {
        self.node().link.with_mut(|link| {
            // SAFETY: the owner alone touches the link.
            unsafe { *link = next }
        });
    }

    fn link(&self) -> Option<NonNull<Node>> {
        self.node().link.with(|link| {
            // SAFETY: the owner alone touches the link.
            unsafe { *link }
        })
    }
}

/// A stack of owned nodes, linked through the nodes themselves: it needs no memory.
///
/// Dropping a list that is not empty loses its nodes until the pool is dropped.
#[derive(Debug, Default)]
pub(crate) struct NodeList {
    top: Option<NonNull<Node>>,
    /// The lowest node, if there is one.
    bottom: Option<NonNull<Node>>,
    len: usize,
}

// SAFETY: a list is its owned nodes, which are `Send`.
unsafe impl Send for NodeList {}

impl NodeList {
    /// Nodes in the list.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Puts a node on top.
    pub(crate) fn push(&mut self, node: OwnedNode) {
        node.set_link(self.top);
        self.bottom = self.bottom.or(Some(node.0));
        self.top = Some(node.0);
        self.len += 1;
    }

    /// Takes the node on top.
    pub(crate) fn pop(&mut self) -> Option<OwnedNode> {
        let node = OwnedNode(self.top?);
        self.top = node.link();
        if self.top.is_none() {
            self.bottom = None;
        }
        self.len -= 1;
        Some(node)
    }

    /// Puts all of `other` on top.
    pub(crate) fn append(&mut self, other: &mut Self) {
        let other = core::mem::take(other);
        if let Some(bottom) = other.bottom {
            OwnedNode(bottom).set_link(self.top);
            self.bottom = self.bottom.or(other.bottom);
            self.top = other.top;
            self.len += other.len;
        }
    }

    /// Takes the `n` nodes on top.
    ///
    /// # Panics
    ///
    /// If there are fewer.
    pub(crate) fn take(&mut self, n: usize) -> Self {
        let mut taken = Self::default();
        for _ in 0..n {
            taken.push(self.pop().expect("the caller looked at the length"));
        }
        taken
    }
}
