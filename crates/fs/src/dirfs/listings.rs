//! All [listings](super::listing) of a source: how they are made, and how they go.
//!
//! # Model
//!
//! ```text
//!  opendir ── the directory has a listing ──▶ its entries, without a call
//!     └────── none ──▶ getdents, and a Recording of what it says ── whole, names as they were ──▶ Listing
//! ```
//!
//! Only directories that are [watched](super::watch), or ours alone, have listings. A change of names ends the listing of its
//! directory: a change of our own when it is made, a change by others when it is reported.
//!
//! # Invariants
//!
//! 1. A recording begins in a directory that is watched, with the generation of its names; it becomes a listing only if
//!    they have the same generation. A change of names is made before the generation is counted up. So no listing misses
//!    a change that was made before the directory was opened, or told before the listing is used.
//! 2. All listings together have a [share](SHARE) of the bound, and go with inodes where memory is short.
//!
//! # Locking
//!
//! The lock of the queue is a leaf. It is not held over that of a slot, or the drop of a listing.

use super::Shared;
use super::listing::{self, HEADER, Listing, ListingBytes, ListingSlot};
use super::node::DirNode;
use foliocache_mm::{MetadataCharge, Mm};
use foliocache_sync::Arc;
use foliocache_sync::rank::LeafMutex;
use foliocache_sys::dir::DirEntry;
use foliocache_vfs::{Inode, SlabArc, SlabWeak};
use std::collections::VecDeque;
use std::time::Duration;

/// All listings take one part of so many of the bound at most.
const SHARE: u64 = 32;

/// The first bytes of a recording; it doubles.
const FIRST: usize = 1024;

/// A change of names in a directory of our own, counted when this is dropped, after it.
pub(super) struct NamesChange<'a>(Option<&'a ListingSlot>);

impl NamesChange<'_> {
    pub(super) fn of(dir: &Inode) -> NamesChange<'_> {
        let directory = DirNode::of(dir).ok().and_then(DirNode::directory);
        NamesChange(directory.map(|directory| &directory.listing))
    }
}

impl Drop for NamesChange<'_> {
    fn drop(&mut self) {
        if let Some(listing) = self.0 {
            listing.names_changed();
        }
    }
}

/// Entries as they are read of a directory, to become its listing.
pub(super) struct Recording {
    entries: Vec<u8>,
    charge: Option<MetadataCharge>,
    asked: u64,
    generation: u32,
    /// Offset of what comes next.
    pub(super) reached: u64,
}

impl Recording {
    /// Of a directory that is watched, before it is read.
    pub(super) fn new(asked: u64, generation: u32) -> Recording {
        Recording {
            entries: Vec::new(),
            charge: None,
            asked,
            generation,
            reached: 0,
        }
    }

    /// Adds what was read next. False if there is no room for it: it will be no listing.
    pub(super) fn push(&mut self, shared: &Shared, entry: &DirEntry<'_>) -> bool {
        let Ok(len) = u16::try_from(entry.name.len()) else {
            return false;
        };
        let needed = self.entries.len() + HEADER + entry.name.len();
        if needed > self.entries.capacity() {
            let capacity = needed.max(2 * self.entries.capacity()).max(FIRST);
            if capacity as u64 > shared.listings.most() {
                return false;
            }
            // The old one until what it held was moved.
            let old = self.charge.take();
            let Ok(charge) =
                MetadataCharge::before_names(shared.bdi.mm(), capacity as u64, Duration::ZERO)
            else {
                return false;
            };
            self.charge = Some(charge);
            self.entries.reserve_exact(capacity - self.entries.len());
            drop(old);
        }
        listing::encode(&mut self.entries, entry, len);
        self.reached = entry.next_offset;
        true
    }

    /// All of the directory was read.
    pub(super) fn finish(self, node: &SlabArc<DirNode>) {
        let (Some(directory), Some(charge)) = (node.directory(), self.charge) else {
            return;
        };
        let listings = &node.shared.listings;
        let listing = Listing::new(self.entries, self.asked, charge, &listings.bytes);
        if directory
            .listing
            .install(Arc::new(listing), self.generation)
        {
            listings.enter(SlabArc::downgrade(node));
        }
        listings.shrink(listings.bytes().saturating_sub(listings.most()));
    }
}

/// All listings of a source.
pub(super) struct Listings {
    mm: Arc<Mm>,
    bytes: Arc<ListingBytes>,
    /// Directories that got one, the oldest first. One that lost it since is still in it.
    queue: LeafMutex<Queue>,
}

#[derive(Default)]
struct Queue {
    nodes: VecDeque<SlabWeak<DirNode>>,
    /// Nodes that are gone are looked for at this length.
    clean_at: usize,
}

impl Listings {
    pub(super) fn new(mm: &Arc<Mm>) -> Listings {
        Listings {
            mm: mm.clone(),
            bytes: Arc::default(),
            queue: LeafMutex::default(),
        }
    }

    /// The bytes that they take, charged to the bound.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// Bytes that all of them may take, and so any one of them.
    fn most(&self) -> u64 {
        self.mm.usage().limit_bytes / SHARE
    }

    fn enter(&self, node: SlabWeak<DirNode>) {
        let mut queue = self.queue.lock();
        let mut gone = VecDeque::new();
        if queue.nodes.len() >= queue.clean_at {
            (queue.nodes, gone) = std::mem::take(&mut queue.nodes)
                .into_iter()
                .partition(SlabWeak::is_alive);
            queue.clean_at = 2 * queue.nodes.len() + 64;
        }
        queue.nodes.push_back(node);
        drop(queue);
        drop(gone);
    }

    /// Frees about `bytes` bytes; returns how many it freed.
    ///
    /// Context: that of reclaim.
    pub(super) fn shrink(&self, bytes: u64) -> u64 {
        let mut freed = 0;
        // Each is met twice at most, the second time unused.
        let mut left = 2 * self.queue.lock().nodes.len();
        while freed < bytes && left > 0 {
            left -= 1;
            let Some(weak) = self.queue.lock().nodes.pop_front() else {
                break;
            };
            let Some(node) = weak.upgrade() else { continue };
            match node
                .directory()
                .and_then(|directory| directory.listing.evict())
            {
                Some(evicted) => freed += evicted,
                None => self.queue.lock().nodes.push_back(weak),
            }
        }
        freed
    }
}
