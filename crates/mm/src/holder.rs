//! Who keeps folios where they are: for messages.
//!
//! # Model
//!
//! A view or pin is a count in a folio's descriptor. So all of them are found by a look at every descriptor, with the
//! file and the place, and the block of memory that they keep from being given back. Of an orphan the descriptor has the
//! number of its file, whose name is noted when it becomes one.
//!
//! # Invariants
//!
//! 1. At most [`MAX_NAMES`] names of files are kept; others are told by their number.

use foliocache_sync::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use crate::address_space::AddressSpace;
use crate::folio::{Folio, LockedFolio};
use crate::frames::{BlockNumber, FrameNumber, MAX_ORDER};
use crate::mm::Mm;
use crate::owner;

const MAX_NAMES: usize = 256;

/// Most of them that a message lists.
const MAX_LISTED: usize = 8;

/// Bytes of a file that views or pins keep in memory, and where they are.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The file, as its file system names it in messages.
    pub file: String,
    /// The bytes of the file: those of the whole folio, of which the views may have a part.
    pub bytes: Range<u64>,
    /// The block of 2 MiB that cannot be given back meanwhile, if it is one of the general blocks.
    pub block: Option<BlockNumber>,
    /// Views of the bytes.
    pub views: u32,
    /// Pins for a short time.
    pub short_pins: u32,
    /// Pins for a long time.
    pub long_pins: u32,
    /// The file has other bytes in this place by now, or none: the memory is the views' alone.
    pub detached: bool,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { start, end } = self.bytes;
        write!(
            f,
            "{} bytes {start}..{end}: {} views",
            self.file, self.views
        )?;
        write!(
            f,
            ", {} short pins, {} long pins",
            self.short_pins, self.long_pins
        )
    }
}

/// Names of files that have orphans, or had.
#[derive(Debug, Default)]
pub(crate) struct OrphanNames(Mutex<HashMap<u64, String>>);

impl AddressSpace {
    /// What becomes of a folio that was detached, of frames that are given: it is its views', or its descriptor is free.
    /// Then the frames are returned, if they are general ones.
    pub(crate) fn retire(
        &self,
        locked: LockedFolio<'_>,
        frame: FrameNumber,
        order: u32,
    ) -> Option<(FrameNumber, u32)> {
        let (mm, folio) = (self.mm(), locked.folio());
        if locked.hold_counts().is_viewed() {
            {
                let mut names = mm.orphan_names.0.lock();
                if names.len() < MAX_NAMES && !names.contains_key(&self.id()) {
                    names.insert(self.id(), self.name());
                }
            }
            if !locked.leave_to_views(self.id()).is_left_orphan() {
                return None;
            }
            folio.end_orphan();
        }
        drop(locked);
        mm.folios.free(folio);
        (!mm.frames.is_linear(frame)).then_some((frame, order))
    }
}

impl Mm {
    /// Who holds folios now: some at least of those that there are, up to `most`. Looks at every descriptor.
    pub fn holders(&self, most: usize) -> Vec<Holder> {
        let holders = self.folios.all().filter_map(|folio| self.holder(folio));
        holders.take(most).collect()
    }

    /// Logs who holds folios: `what` says why that matters.
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
            true => self.orphan_names.0.lock().get(&folio.orphan_of()).cloned(),
            false => {
                let locked = folio.try_lock(&self.waits);
                let locked = locked.filter(|locked| locked.mapping() != 0);
                locked.map(|locked| owner::hold(&locked).name())
            }
        };
        let frame = folio.frame();
        Some(Holder {
            file: file.unwrap_or_else(|| "a file".into()),
            bytes: folio.index().pos()..folio.end().pos(),
            block: (!self.frames.is_linear(frame)).then_some(BlockNumber(frame.0 >> MAX_ORDER)),
            views: counts.views(),
            short_pins: counts.short_pins(),
            long_pins: counts.long_pins(),
            detached: counts.is_orphan(),
        })
    }

    /// Whether a block has frames of a folio that views or pins keep there.
    pub(crate) fn is_held_up(&self, block: BlockNumber) -> bool {
        self.frames.owners(block).any(|(frame, owner)| {
            let folio = self.folios.get(owner);
            folio.frame() == frame && folio.hold_counts().is_held()
        })
    }
}
