//! Asking the holders of revocable pins to give them up (decision 95).
//!
//! # Model
//!
//! ```text
//!   an operation                       the revoker                      the holder
//!   ask, wait without a lock ────────▶ calls its callback: Revoke ────▶ quiesces its device, unpins
//!   sees that the pins are gone ◀─────────────────────────────────────────┘
//!   does its work, ends ─────────────▶ calls its callback: MayPin ────▶ pins again
//! ```
//!
//! # Invariants
//!
//! 1. The revoker holds no lock while it calls a holder, and nobody waits for it without a limit.
//! 2. A revocable pin is registered before it is counted in a folio, and removed after it was counted off. So while the
//!    registry is locked, a folio with more long pins than registered ones has one without a callback.
//!
//! # Locking
//!
//! The registry is a leaf. An operation that waits for holders holds nothing that they may wait for.

use foliocache_sync::Arc;
use foliocache_sync::atomic::Ordering;
use foliocache_sync::time::{Duration, Instant};
use foliocache_sys::Errno;
use std::ops::Range;

use crate::file_locks::wait_for;
use crate::holder::Holder;
use crate::pins::{Request, RevokeReason};
use crate::records::{AddressSpace, Mm};

const NAME: &str = "foliocache-revoke";

/// An operation that asks holders of pins. At its drop they are told that they may pin again.
pub(crate) struct Revoking<'a> {
    mm: &'a Mm,
    request: Request,
    asked: Vec<u32>,
    /// It asks pins wherever they are, and there are no new ones until its end.
    anywhere: bool,
    /// Pins that were dropped for it, so far.
    dropped: usize,
}

impl<'a> Revoking<'a> {
    /// Of an operation that needs some pages of a file, to which there are no new pins until its end.
    pub(crate) fn in_range(mm: &'a Mm, reason: RevokeReason) -> Self {
        let patience = Duration::from_nanos(mm.pins.wait.load(Ordering::Relaxed));
        Self {
            mm,
            request: Request {
                reason,
                start: Instant::now(),
                patience,
            },
            asked: Vec::new(),
            anywhere: false,
            dropped: 0,
        }
    }

    /// Of an operation that needs memory.
    fn anywhere(mm: &'a Mm, reason: RevokeReason) -> Self {
        mm.pins.revocable.lock().bar();
        let mut revoking = Self::in_range(mm, reason);
        revoking.anywhere = true;
        revoking
    }

    /// Asks the holders of pages that were not asked yet. Does not block.
    pub(crate) fn ask_among(&mut self, file: u64, pages: &Range<u64>) {
        let mut pins = self.mm.pins.revocable.lock();
        let more = pins.among(file, pages, &self.asked);
        if more.is_empty() {
            return;
        }
        more.iter().for_each(|&id| pins.ask(id, self.request));
        drop(pins);
        self.asked.extend(more);
        self.mm.pins.revoker.wake();
    }

    /// Has the oldest pins given up that make up `wanted`; whether one was. See [`Mm::revoke_pins`].
    fn make_room(&mut self, wanted: u64, weigh: impl Fn(u64, bool) -> u64) -> bool {
        let left = self.request.left();
        if left.is_zero() {
            return false;
        }
        let pins = &self.mm.pins;
        {
            let mut pins = pins.revocable.lock();
            let (more, _) = pins.oldest(wanted, &self.asked, weigh);
            more.iter().for_each(|&id| pins.ask(id, self.request));
            self.asked.extend(more);
        }
        pins.revoker.wake();
        let progress = || pins.revocable.lock().progress(&self.asked);
        wait_for(left, || (progress().1 == 0).then_some(()));
        let before = std::mem::replace(&mut self.dropped, progress().0);
        self.dropped > before
    }
}

impl Drop for Revoking<'_> {
    fn drop(&mut self) {
        let pins = &self.mm.pins;
        pins.revocable.lock().end(&self.asked, self.anywhere);
        if !self.asked.is_empty() {
            pins.revoker.wake();
        }
    }
}

/// How many of the pins of a file, whose first and last pages are given in order, have some of `pages`.
fn covering((starts, ends): &(Vec<u64>, Vec<u64>), pages: &Range<u64>) -> usize {
    let begun = starts.partition_point(|start| *start < pages.end);
    begun - ends.partition_point(|end| *end <= pages.start)
}

impl AddressSpace {
    /// The first part of some pages with a long pin that nobody can be asked to give up.
    pub(crate) fn kept_pinned(&self, pages: Range<u64>) -> Option<Holder> {
        let pins = &self.mm().pins;
        // A callback that waits for others keeps them from being called.
        let nobody = pins.revoker.is_current();
        let revocable = match nobody {
            true => Default::default(),
            false => pins.revocable.lock().ends(self.id()),
        };
        let kept = |of: &Range<u64>| {
            // Pins may have come and gone in between (invariant 2).
            let pins = pins.revocable.lock();
            let revocable = covering(&pins.ends(self.id()), of);
            let mut now = self.pinned_folios(of.clone());
            now.any(|(.., counts)| counts.long_pins() as usize > revocable)
        };
        if !revocable.0.is_empty() && foliocache_sync::planted!(kept_pins_waited_for) {
            return None;
        }
        self.pinned_folios(pages)
            .filter(|(of, _, counts)| counts.long_pins() as usize > covering(&revocable, of))
            .filter(|(of, ..)| nobody || kept(of))
            .find_map(|(of, ..)| self.pinned_in(of, 1).pop())
    }
}

impl Mm {
    /// Starts the thread that calls holders, once.
    ///
    /// # Errors
    /// The kernel refuses a thread.
    pub(crate) fn start_revoker(self: &Arc<Self>) -> Result<(), Errno> {
        let round = |mm: &Self, _| {
            mm.tell_holders();
            None
        };
        (self.pins.revoker).start(NAME, None, self.panics(), self, round)
    }

    /// Tells holders what is due to them.
    ///
    /// Context: the revoker's, no lock held (invariant 1).
    fn tell_holders(&self) {
        loop {
            let turn = self.pins.revocable.lock().next_turn();
            let Some(turn) = turn else { return };
            let call = || {
                if let Some(event) = turn.event {
                    turn.callback.call(event);
                }
            };
            if self.panics().catch(NAME, call).is_none() {
                self.pins.revocable.lock().fail(turn.id);
            }
            // It may be the last, and what it owns is the program's.
            self.panics().catch(NAME, || drop(turn.callback));
        }
    }

    /// Has the oldest revocable pins given up that make up `wanted`; whether one was, so that the caller may look again.
    /// False where all that are left would not do. `weigh` says how much of it a pin of so many pages is, and whether it
    /// counts in the share of pins. `revoking` is the caller's request, from its first call on.
    ///
    /// Context: blocks, for `pin_wait` in all calls of one request; nothing held that a holder may wait for.
    pub(crate) fn revoke_pins<'a>(
        &'a self,
        revoking: &mut Option<Revoking<'a>>,
        reason: RevokeReason,
        wanted: u64,
        weigh: impl Fn(u64, bool) -> u64,
    ) -> bool {
        if self.pins.revoker.is_current() {
            return false;
        }
        let asked = revoking.as_ref().map_or(&[][..], |since| &since.asked);
        let (_, all) = self.pins.revocable.lock().oldest(0, asked, &weigh);
        if all == 0 || all < wanted {
            return false;
        }
        let revoking = revoking.get_or_insert_with(|| Revoking::anywhere(self, reason));
        revoking.make_room(wanted, weigh)
    }
}
