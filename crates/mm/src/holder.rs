//! The views and pins that keep folios in place, as messages name them.
//!
//! # Model
//!
//! A view or pin is a count in a folio's descriptor. So all of them are found by a look at every descriptor, with the
//! file and the place, and the block of memory that they keep from being given back. Of an orphan the descriptor has the
//! number of its file, whose name is noted when it becomes one. The pinned folios of a file are found in its index, in
//! order.
//!
//! # Invariants
//!
//! 1. At most 256 names of files are kept; others are told by their number.
//!
//! # Memory ordering
//!
//! A file's count of pinned pages is loaded Acquire, and falls with Release in `pin.rs`: a thread that finds none sees the
//! counts of the folios without them.

use foliocache_sync::atomic::Ordering;
use foliocache_sync::rcu;
use std::fmt;
use std::ops::Range;

use crate::folio::{Folio, HoldCounts};
use crate::frames::{BlockNumber, FrameNumber, Frames, MAX_ORDER};
use crate::owner;
use crate::records::{AddressSpace, Mm};
use crate::types::PageIndex;

/// Most of them that a message lists.
const MAX_LISTED: usize = 8;

/// Bytes of a file that views or pins keep in memory, and where they are.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The file, as its file system names it in messages.
    pub file: String,
    /// The bytes of the file, in whole folios; views may have only a part of them.
    pub bytes: Range<u64>,
    /// The general block of 2 MiB that cannot be given back meanwhile, if it lies in one.
    pub block: Option<BlockNumber>,
    /// Views of each folio.
    pub views: u32,
    /// Pins of each folio for a short time.
    pub short_pins: u32,
    /// Pins of each folio for a long time.
    pub long_pins: u32,
    /// Pins among them through which a device may write.
    pub device_writes: u32,
    /// Whether the file has other bytes in this place by now, or none: only the views keep the memory.
    pub detached: bool,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { start, end } = self.bytes;
        write!(f, "{} bytes {start}..{end}: ", self.file)?;
        let counts = [
            (self.views, "views"),
            (self.short_pins, "short-term pins"),
            (self.long_pins, "long-term pins"),
        ];
        let some = counts.iter().filter(|(count, _)| *count > 0);
        let some: Vec<_> = some
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        f.write_str(&some.join(", "))?;
        match (self.short_pins + self.long_pins, self.device_writes) {
            (0, _) => Ok(()),
            (_, 0) => f.write_str(" for a device's reads"),
            _ => f.write_str(" for a device's writes"),
        }
    }
}

impl Holder {
    /// Of a folio of a file that is not named yet.
    fn new(frames: &Frames, bytes: Range<u64>, frame: FrameNumber, counts: HoldCounts) -> Self {
        Self {
            file: String::new(),
            bytes,
            block: (!frames.is_linear(frame)).then_some(BlockNumber(frame.0 >> MAX_ORDER)),
            views: counts.views(),
            short_pins: counts.short_pins(),
            long_pins: counts.long_pins(),
            device_writes: counts.device_writes(),
            detached: counts.is_orphan(),
        }
    }

    /// Takes the bytes that follow in the same file in, if they are held as these are.
    fn take_in(&mut self, next: &Self) -> bool {
        let counts = |one: &Self| (one.views, one.short_pins, one.long_pins, one.device_writes);
        let alike = self.bytes.end == next.bytes.start && counts(self) == counts(next);
        if alike {
            self.bytes.end = next.bytes.end;
            self.block = self.block.filter(|_| self.block == next.block);
        }
        alike
    }
}

impl AddressSpace {
    /// The folios of some pages that are pinned, each with its pages and holds. Takes no lock: a pin that comes or goes
    /// meanwhile may be there or not.
    pub(crate) fn pinned_folios(
        &self,
        pages: Range<u64>,
    ) -> impl Iterator<Item = (Range<u64>, &Folio, HoldCounts)> {
        let mut at = pages.start;
        std::iter::from_fn(move || {
            // Acquire: partner is the Release in `unpin`. A bar's fence comes before it, see `pin/bar.rs`.
            while at < pages.end && self.nr_pinned.load(Ordering::Acquire) > 0 {
                let found = {
                    let rcu = rcu::read_lock();
                    self.index.find(at, pages.end - 1, None, &rcu)?
                };
                at = found.last() + 1;
                let folio = self.mm().folios.of_entry(found.entry);
                let counts = folio.hold_counts();
                // Another file's by now, otherwise.
                if counts.is_pinned() && folio.mapping() == self.key() {
                    return Some((found.index..at, folio, counts));
                }
            }
            None
        })
    }

    /// The first `most` pinned ranges among some pages.
    pub(crate) fn pinned_in(&self, pages: Range<u64>, most: usize) -> Vec<Holder> {
        let frames = &self.mm().frames;
        let mut ranges: Vec<Holder> = Vec::new();
        for (pages, folio, counts) in self.pinned_folios(pages) {
            let bytes = PageIndex(pages.start).pos()..PageIndex(pages.end).pos();
            let next = Holder::new(frames, bytes, folio.frame(), counts);
            if ranges.last_mut().is_some_and(|last| last.take_in(&next)) {
                continue;
            }
            if ranges.len() == most {
                break;
            }
            ranges.push(Holder {
                file: self.name(),
                ..next
            });
        }
        ranges
    }

    /// The pages of folios that count as pinned, and would as held if mappings held all of `pages`.
    pub(crate) fn pinned_pages(&self, pages: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let (first, end) = (pages.start, pages.end);
        self.pinned_folios(pages.clone())
            .filter(move |(of, _, counts)| {
                first <= of.start && of.end <= end && !counts.counts_as_held()
            })
            .map(|(of, ..)| of)
    }

    /// The pinned parts of the file, in whole folios. Neighbours that are held alike are one part. Takes no lock and does
    /// not block.
    pub fn pinned(&self) -> Vec<Holder> {
        match self.mm().check_fork() {
            Ok(()) => self.pinned_in(0..u64::MAX, usize::MAX),
            Err(_) => Vec::new(),
        }
    }
}

impl Mm {
    /// Holders of folios, at most `most`. Looks at every descriptor, and may miss some.
    pub fn holders(&self, most: usize) -> Vec<Holder> {
        let holders = self.folios.all().filter_map(|folio| self.holder(folio));
        holders.take(most).collect()
    }

    /// Logs holders of folios; `what` says why that matters.
    #[cold]
    pub(crate) fn log_holders(&self, what: &str) {
        for holder in self.holders(MAX_LISTED) {
            tracing::warn!(%holder, block = ?holder.block, "{what}");
        }
    }

    fn holder(&self, folio: &Folio) -> Option<Holder> {
        let counts = folio.hold_counts();
        if !counts.is_held() {
            return None;
        }
        let file = match counts.is_orphan() {
            true => self.orphan_names.lock().get(&folio.orphan_of()).cloned(),
            false => {
                let locked = folio.try_lock(&self.waits);
                let locked = locked.filter(|locked| locked.mapping() != 0);
                locked.map(|locked| owner::hold(&locked).name())
            }
        };
        let bytes = folio.range();
        Some(Holder {
            file: file.unwrap_or_else(|| "a file".into()),
            ..Holder::new(&self.frames, bytes, folio.frame(), counts)
        })
    }

    /// The first `most` pinned ranges of all files. Looks at every file: not for a hot path.
    pub fn pinned(&self, most: usize) -> Vec<Holder> {
        let mut ranges = Vec::new();
        for mapping in self.mappings() {
            ranges.extend(mapping.pinned_in(0..u64::MAX, most - ranges.len()));
            if ranges.len() == most {
                break;
            }
        }
        ranges
    }

    /// Logs pins that still exist when the cache is dropped: a leak.
    pub fn warn_of_pins(&self) {
        for pinned in self.pinned(usize::MAX) {
            tracing::warn!(%pinned, "the cache is dropped and something is pinned still");
        }
    }

    /// Whether a block has frames of a folio that views or pins keep there.
    pub(crate) fn is_held_up(&self, block: BlockNumber) -> bool {
        self.frames.owners(block).any(|(frame, owner)| {
            let folio = self.folios.get(owner);
            folio.frame() == frame && folio.hold_counts().is_held()
        })
    }
}
