//! The array of chains, and the link in a node. See [`super`] for the protocol.
//!
//! # Memory ordering
//!
//! Every pointer to a node is stored with `Release` and loaded with `Acquire`: partners. The header of [`super`]
//! gives the consequences.
//!
//! # Safety
//!
//! Nodes are followed in read sections or under the stripe's lock, by invariant 2 of [`super`].
#![allow(unsafe_code)]

use std::ptr::{self, NonNull};

use foliocache_sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// A node's link in its table: 16 bytes, which look-ups read.
pub struct HashLink<T> {
    /// The next node of the chain, or the marker at its end. Removal does not change it.
    pub(super) next: AtomicPtr<T>,
    /// The hash under which the node was inserted last.
    pub(super) hash: AtomicU64,
}

impl<T> HashLink<T> {
    /// The hash under which the node was inserted last.
    #[inline]
    pub fn hash(&self) -> u64 {
        // Relaxed: a reader that found the node has acquired all stores before its insertion.
        self.hash.load(Ordering::Relaxed)
    }
}

impl<T> Default for HashLink<T> {
    /// A link that is in no table.
    fn default() -> Self {
        Self {
            next: AtomicPtr::new(ptr::null_mut()),
            hash: AtomicU64::new(0),
        }
    }
}

/// A node of an [`RcuHash`](super::RcuHash).
///
/// # Safety
///
/// `link` gives the same link each time, one that is part of the node and used for nothing else. A `Hint` may be all
/// zeros.
pub unsafe trait HashNode: Sized {
    /// A bucket's hint about its newest node, for look-ups, or `()`.
    type Hint: Default + Send + Sync;

    /// The node's link.
    fn link(&self) -> &HashLink<Self>;

    /// Stores in a bucket's hint the address that a look-up reads after this node, for the
    /// prefetch.
    ///
    /// Context: the stripe's lock.
    #[inline(always)]
    fn store_hint(&self, _hint: &Self::Hint) {}

    /// Asks the processor for that line. The node may be gone by now.
    #[inline(always)]
    fn prefetch(_hint: &Self::Hint) {}
}

/// A bucket: a chain and, beside it, where look-ups that find the node that came last go on, mostly the first. So they wait for
/// both at once.
pub(super) struct Head<T: HashNode> {
    /// Null is an empty chain, as a marker is.
    pub(super) first: AtomicPtr<T>,
    hint: T::Hint,
}

/// An array of chains.
pub(super) struct Table<T: HashNode> {
    /// A power of two.
    pub(super) heads: Box<[Head<T>]>,
    /// Tells the markers of this table from those of others.
    pub(super) generation: usize,
    /// The table of twice the size that this one is moving to.
    pub(super) next: AtomicPtr<Table<T>>,
    /// Buckets before this one are moved, or being moved.
    pub(super) claimed: AtomicUsize,
    /// Buckets that are moved.
    pub(super) moved: AtomicUsize,
}

/// How a walk along a chain ended.
pub(super) enum Walk<'g, T> {
    Found(&'g T),
    End,
    /// Invariant 3.
    Strayed,
}

impl<T: HashNode> Table<T> {
    pub(super) fn new(buckets: usize, generation: usize) -> Box<Self> {
        #[cfg(not(any(loom, shuttle)))]
        // SAFETY: an atomic pointer of zeros is null, and a hint may be zeros (the contract of `HashNode`). The
        // system zeroes them on first use, so there is no pause here.
        let heads = unsafe { Box::new_zeroed_slice(buckets).assume_init() };
        #[cfg(any(loom, shuttle))]
        let heads = (0..buckets)
            .map(|_| Head {
                first: AtomicPtr::new(ptr::null_mut()),
                hint: T::Hint::default(),
            })
            .collect();
        Box::new(Self {
            heads,
            generation,
            next: AtomicPtr::new(ptr::null_mut()),
            claimed: AtomicUsize::new(0),
            moved: AtomicUsize::new(0),
        })
    }

    pub(super) fn bytes(buckets: usize) -> u64 {
        (buckets * size_of::<Head<T>>() + size_of::<Self>()) as u64
    }

    #[inline(always)]
    pub(super) fn bucket_of(&self, hash: u64) -> usize {
        hash as usize & (self.heads.len() - 1)
    }

    /// The end of a chain.
    pub(super) fn marker(&self, bucket: usize) -> *mut T {
        ptr::without_provenance_mut(bucket << 24 | (self.generation & 0x7f_ffff) << 1 | 1)
    }
}

#[inline(always)]
pub(super) fn is_end<T>(pointer: *mut T) -> bool {
    pointer.is_null() || pointer.addr() & 1 != 0
}

/// A pointer as the holder of the stripe's lock reads it.
#[inline(always)]
fn own<T>(place: &AtomicPtr<T>) -> *mut T {
    // Relaxed: stored under the lock, with which also the node came that it points to.
    let pointer = place.load(Ordering::Relaxed);
    // For loom a load takes the place of a reader's earlier one: it would not try the holder's next store
    // before the reader's load. So an exchange that changes nothing follows.
    #[cfg(loom)]
    let _ = place.compare_exchange(
        ptr::null_mut(),
        ptr::null_mut(),
        Ordering::Relaxed,
        Ordering::Relaxed,
    );
    pointer
}

impl<T: HashNode> Table<T> {
    /// Looks along the chain of a hash.
    ///
    /// # Safety
    ///
    /// `'g` ends with the caller's read section, or earlier.
    #[inline(always)]
    pub(super) unsafe fn search<'g>(
        &'g self,
        hash: u64,
        matches: &mut impl FnMut(&'g T) -> bool,
    ) -> Walk<'g, T> {
        let bucket = self.bucket_of(hash);
        // Acquire pairs with the Release stores of nodes and markers, here and below.
        let head = &self.heads[bucket];
        let mut at = head.first.load(Ordering::Acquire);
        T::prefetch(&head.hint);
        while !is_end(at) {
            // SAFETY: invariant 2; the caller is in a read section.
            let node = unsafe { &*at };
            if node.link().hash() == hash && matches(node) {
                return Walk::Found(node);
            }
            // Acquire pairs with the Release that published the node.
            at = node.link().next.load(Ordering::Acquire);
        }
        if at.is_null() || at == self.marker(bucket) {
            Walk::End
        } else {
            Walk::Strayed
        }
    }

    /// Calls `visit` with the nodes of a chain, and of those that it strays to.
    ///
    /// # Safety
    ///
    /// As for [`search`](Self::search).
    pub(super) unsafe fn each<'g>(&'g self, bucket: usize, visit: &mut impl FnMut(&'g T)) {
        // Acquire: as in `search`.
        let mut at = self.heads[bucket].first.load(Ordering::Acquire);
        while !is_end(at) {
            // SAFETY: invariant 2; the caller is in a read section.
            let node = unsafe { &*at };
            // Acquire: as in `search`. Before the visit, which may remove the node.
            at = node.link().next.load(Ordering::Acquire);
            visit(node);
        }
    }

    /// Puts a node before the chain of its hash.
    ///
    /// Context: the stripe's lock.
    pub(super) fn push(&self, node: NonNull<T>, link: &HashLink<T>) {
        let bucket = self.bucket_of(link.hash());
        let head = &self.heads[bucket];
        let mut first = own(&head.first);
        if first.is_null() {
            first = self.marker(bucket);
        }
        // Release pairs with the Acquire of a reader that still stands on the node at its old place: it follows
        // this to a node that another thread inserted.
        link.next.store(first, Ordering::Release);
        // Release pairs with the Acquire in `search`: the node's content.
        head.first.store(node.as_ptr(), Ordering::Release);
        // SAFETY: valid, because it contains `link`.
        unsafe { node.as_ref() }.store_hint(&head.hint);
    }

    /// Takes a node out of a chain; returns whether it was there.
    ///
    /// Context: the stripe's lock.
    pub(super) fn unlink(&self, bucket: usize, node: &T) -> bool {
        let mut place = &self.heads[bucket].first;
        loop {
            let at = own(place);
            if is_end(at) {
                return false;
            }
            if ptr::eq(at, node) {
                let next = own(&node.link().next);
                // Release pairs with the Acquire in `search`: passes on the node behind `next`.
                place.store(next, Ordering::Release);
                return true;
            }
            // SAFETY: it is in the chain, which stands still under the lock, and nodes of the table are
            // valid (invariant 2).
            place = &unsafe { &*at }.link().next;
        }
    }

    /// Takes the last node out of a chain and puts it into `next`; false if there is none.
    ///
    /// Context: the stripe's lock.
    pub(super) fn move_tail(&self, bucket: usize, next: &Table<T>) -> bool {
        let mut place = &self.heads[bucket].first;
        let Some(mut tail) = NonNull::new(own(place)) else {
            return false;
        };
        if is_end(tail.as_ptr()) {
            return false;
        }
        loop {
            // SAFETY: as in `unlink`.
            let link = unsafe { tail.as_ref() }.link();
            let after = own(&link.next);
            match NonNull::new(after) {
                Some(node) if !is_end(after) => {
                    place = &link.next;
                    tail = node;
                }
                _ => {
                    next.push(tail, link);
                    // Release pairs with the Acquire in `search`: a reader that misses the node sees `next`, and
                    // the node in it.
                    place.store(self.marker(bucket), Ordering::Release);
                    return true;
                }
            }
        }
    }
}
