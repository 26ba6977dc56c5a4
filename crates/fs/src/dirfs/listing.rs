//! The entries of a directory, kept until a change of names is reported. For all directories see [`listings`](super::listings).
//!
//! # Invariants
//!
//! 1. An install has the generation that the names had when the directory was opened. It fails if they have another by now.
//! 2. A listing is charged to the bound until its last reader is done.
//!
//! # Locking
//!
//! The lock of a slot is a leaf; it is not held over the drop of a listing.
//!
//! # Memory ordering
//!
//! [`ListingBytes`] is a statistic: `Relaxed`.

use foliocache_mm::MetadataCharge;
use foliocache_sync::Arc;
use foliocache_sync::atomic::{AtomicU64, Ordering};
use foliocache_sync::rank::LeafMutex;
use foliocache_sys::dir::DirEntry;
use foliocache_sys::fd::FileKind;
use foliocache_vfs::Belief;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Inode number, offset, kind and length of the name.
pub(super) const HEADER: usize = 8 + 8 + 1 + 2;

/// The entries of a directory at one moment.
pub(super) struct Listing {
    entries: Box<[u8]>,
    /// When they were asked for, of [`Belief::now`].
    asked: u64,
    charge: MetadataCharge,
    all: Arc<ListingBytes>,
}

/// Appends an entry, whose name has `len` bytes, as [`Listing`] holds it.
pub(super) fn encode(entries: &mut Vec<u8>, entry: &DirEntry<'_>, len: u16) {
    entries.extend(entry.ino.to_ne_bytes());
    entries.extend(entry.next_offset.to_ne_bytes());
    entries.push((entry.kind.mode_bits() >> 12) as u8);
    entries.extend(len.to_ne_bytes());
    entries.extend(entry.name.as_bytes());
}

/// The bytes of all listings of a source.
#[derive(Default)]
pub(super) struct ListingBytes(AtomicU64);

impl ListingBytes {
    /// Bytes that are charged to the bound.
    pub(super) fn get(&self) -> u64 {
        // Relaxed: see the module's header.
        self.0.load(Ordering::Relaxed)
    }
}

impl Listing {
    /// Of entries that were asked for at `asked`, counted in `all`.
    pub(super) fn new(
        entries: Vec<u8>,
        asked: u64,
        mut charge: MetadataCharge,
        all: &Arc<ListingBytes>,
    ) -> Listing {
        let entries = entries.into_boxed_slice();
        charge.reduce_to((entries.len() + size_of::<Listing>()) as u64);
        // Relaxed: see the module's header.
        all.0.fetch_add(charge.bytes(), Ordering::Relaxed);
        Listing {
            entries,
            asked,
            charge,
            all: all.clone(),
        }
    }

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
        self.all.0.fetch_sub(self.bytes(), Ordering::Relaxed);
    }
}

/// Where the listing of a directory is, if it has one.
#[derive(Default)]
pub(super) struct ListingSlot(LeafMutex<Slot>);

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
    /// Names in the directory changed, or the right to read them.
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
    pub(super) fn install(&self, listing: Arc<Listing>, generation: u32) -> bool {
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
    pub(super) fn evict(&self) -> Option<u64> {
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
