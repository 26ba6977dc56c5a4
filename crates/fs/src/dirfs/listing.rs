//! The entries of directories, kept as long as nobody told of a change of names.
//!
//! # Model
//!
//! ```text
//!  opendir ── the directory has a listing ──▶ its entries, without a call
//!     └────── none ──▶ getdents, and a Recording of what it says ── whole, names as they were ──▶ Listing
//! ```
//!
//! Only directories that are [watched](super::watch), or ours alone, have listings. Who changes names, we or somebody else, ends that of the
//! directory: we when the change is made, others when it is told.
//!
//! # Invariants
//!
//! 1. A recording begins in a directory that is watched, with the generation of its names; it becomes a listing only if
//!    they have the same generation. Whoever changes names does so before he counts the generation up. So no listing misses
//!    a change that was made before the directory was opened, or told before the listing is used.
//! 2. A listing is charged to the bound as long as anybody reads it. All together have a [share](SHARE) of it, and go with
//!    inodes where memory is short.
//!
//! # Locking
//!
//! The lock of a slot and that of the queue are leaves; neither is held over the other, or the drop of a listing.
//!
//! # Memory ordering
//!
//! `bytes` is a statistic: `Relaxed`.

use super::Shared;
use super::node::DirNode;
use foliocache_mm::{MetadataCharge, Mm};
use foliocache_sync::atomic::{AtomicU64, Ordering};
use foliocache_sync::{Arc, Mutex};
use foliocache_sys::dir::DirEntry;
use foliocache_sys::fd::FileKind;
use foliocache_vfs::{Belief, Inode, SlabArc, SlabWeak};
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

/// All listings take one part of so many of the bound at most.
const SHARE: u64 = 32;

/// The first bytes of a recording; it doubles.
const FIRST: usize = 1024;

/// Inode number, offset, kind and length of the name.
const HEADER: usize = 8 + 8 + 1 + 2;

/// The entries of a directory at one moment.
pub(super) struct Listing {
    entries: Box<[u8]>,
    /// When they were asked for, of [`Belief::now`].
    asked: u64,
    charge: MetadataCharge,
    listings: Arc<Listings>,
}

impl Listing {
    /// Hands over the entries from `at` on until one is refused; where that one is.
    pub(super) fn read(&self, at: usize, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> usize {
        let mut at = at;
        while let Some((entry, next)) = self.entry(at) {
            if !sink(entry) {
                break;
            }
            at = next;
        }
        at
    }

    /// Where the entry is that comes after the one with this offset.
    pub(super) fn find(&self, offset: u64) -> Option<usize> {
        let mut at = 0;
        while let Some((entry, next)) = self.entry(at) {
            at = next;
            if entry.next_offset == offset {
                return Some(at);
            }
        }
        None
    }

    fn entry(&self, at: usize) -> Option<(DirEntry<'_>, usize)> {
        let (header, rest) = self.entries.get(at..)?.split_first_chunk::<HEADER>()?;
        let number = |at: usize| {
            let bytes: [u8; 8] = std::array::from_fn(|byte| header[at + byte]);
            u64::from_ne_bytes(bytes)
        };
        let len = usize::from(u16::from_ne_bytes([header[17], header[18]]));
        let entry = DirEntry {
            ino: number(0),
            next_offset: number(8),
            kind: FileKind::from_mode(u32::from(header[16]) << 12),
            name: OsStr::from_bytes(rest.get(..len)?),
        };
        Some((entry, at + HEADER + len))
    }

    fn bytes(&self) -> u64 {
        self.charge.bytes()
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        // Relaxed: see the module's header.
        self.listings
            .bytes
            .fetch_sub(self.bytes(), Ordering::Relaxed);
    }
}

/// Where the listing of a directory is, if it has one.
#[derive(Default)]
pub(super) struct ListingSlot(Mutex<Slot>);

#[derive(Default)]
struct Slot {
    /// Of the names.
    generation: u32,
    /// Used since reclaim came by.
    used: bool,
    /// In the queue.
    queued: bool,
    listing: Option<Arc<Listing>>,
}

impl ListingSlot {
    /// Names in the directory changed, or who may read them.
    pub(super) fn names_changed(&self) {
        let mut slot = self.0.lock();
        slot.generation = slot.generation.wrapping_add(1);
        let old = slot.listing.take();
        drop(slot);
        drop(old);
    }

    /// The listing, where it holds at `now`, and else the generation for a recording.
    pub(super) fn get(&self, now: u64) -> Result<Arc<Listing>, u32> {
        let mut slot = self.0.lock();
        let holds = |listing: &&Arc<Listing>| Belief::is_same_epoch(listing.asked, now);
        let found = slot.listing.as_ref().filter(holds).cloned();
        slot.used |= found.is_some();
        found.ok_or(slot.generation)
    }

    /// Whether the directory has to get into the queue.
    fn install(&self, listing: Arc<Listing>, generation: u32) -> bool {
        let mut slot = self.0.lock();
        let same = slot.generation == generation;
        let old = match same {
            true => slot.listing.replace(listing),
            false => Some(listing),
        };
        let enters = same && !slot.queued;
        slot.queued |= same;
        drop(slot);
        drop(old);
        enters
    }

    /// Takes the listing away unless it was used since the last call; its bytes, or `None` if it stays.
    fn evict(&self) -> Option<u64> {
        let mut slot = self.0.lock();
        if std::mem::take(&mut slot.used) && slot.listing.is_some() {
            return None;
        }
        slot.queued = false;
        let old = slot.listing.take();
        drop(slot);
        Some(old.map_or(0, |old| old.bytes()))
    }
}

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

/// What is read of a directory, to become its listing.
pub(super) struct Recording {
    entries: Vec<u8>,
    charge: Option<MetadataCharge>,
    asked: u64,
    generation: u32,
    /// Offset of what comes next.
    reached: u64,
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

    /// Whether what is read from this offset on comes next.
    pub(super) fn goes_on_at(&self, offset: u64) -> bool {
        self.reached == offset
    }

    /// Adds what was read next. False if there is no room for it: it will be no listing.
    pub(super) fn push(&mut self, shared: &Shared, entry: &DirEntry<'_>) -> bool {
        let name = entry.name.as_bytes();
        let Ok(len) = u16::try_from(name.len()) else {
            return false;
        };
        let needed = self.entries.len() + HEADER + name.len();
        if needed > self.entries.capacity() {
            let capacity = needed.max(2 * self.entries.capacity()).max(FIRST);
            if !shared.listings.has_room(capacity as u64) {
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
        self.entries.extend(entry.ino.to_ne_bytes());
        self.entries.extend(entry.next_offset.to_ne_bytes());
        self.entries.push((entry.kind.mode_bits() >> 12) as u8);
        self.entries.extend(len.to_ne_bytes());
        self.entries.extend(name);
        self.reached = entry.next_offset;
        true
    }

    /// All of the directory was read.
    pub(super) fn finish(self, node: &SlabArc<DirNode>) {
        let (Some(directory), Some(mut charge)) = (node.directory(), self.charge) else {
            return;
        };
        let entries = self.entries.into_boxed_slice();
        let bytes = (entries.len() + size_of::<Listing>()) as u64;
        charge.reduce_to(bytes);
        let listings = &node.shared.listings;
        // Relaxed: see the module's header.
        listings.bytes.fetch_add(charge.bytes(), Ordering::Relaxed);
        let listing = Arc::new(Listing {
            entries,
            asked: self.asked,
            charge,
            listings: listings.clone(),
        });
        if directory.listing.install(listing, self.generation) {
            listings.enter(SlabArc::downgrade(node));
        }
        listings.limit();
    }
}

/// All listings of a source.
pub(super) struct Listings {
    mm: Arc<Mm>,
    bytes: AtomicU64,
    /// Directories that got one, the oldest first. One that lost it since is still in it.
    queue: Mutex<Queue>,
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
            bytes: AtomicU64::new(0),
            queue: Mutex::default(),
        }
    }

    /// What they take, charged to the bound.
    pub(super) fn bytes(&self) -> u64 {
        // Relaxed: see the module's header.
        self.bytes.load(Ordering::Relaxed)
    }

    fn most(&self) -> u64 {
        self.mm.usage().limit_bytes / SHARE
    }

    /// Whether one may have so many bytes.
    fn has_room(&self, bytes: u64) -> bool {
        bytes <= self.most()
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

    fn limit(&self) {
        let most = self.most();
        self.shrink(self.bytes().saturating_sub(most));
    }

    /// Frees about so many bytes; how many.
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
