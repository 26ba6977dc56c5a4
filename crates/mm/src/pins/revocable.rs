//! The pins that their holders give up on request, and the events that are due to them.
//!
//! # Model
//!
//! ```text
//!   add ─▶ complete ─▶ asked ──Revoke──▶ told ──the operations ended──▶ MayPin ─▶ complete
//!                        └── the operations ended: nothing was said ──▶ complete
//! ```
//!
//! A pin may be dropped at any point. Its entry goes when no operation asks it and nothing is due to it.
//!
//! Events are not queued. An entry with something due is; its state says what, when its turn comes. So a holder that is
//! slow gets no stale request, and `Revoke` and `MayPin` alternate.
//!
//! # Invariants
//!
//! 1. An entry that an operation asks stays until the operation has ended, so its number means no other pin.
//! 2. An entry is in the queue at most once.
//! 3. A callback is called and dropped without a lock, by the revoker or by the thread that drops the pin. So what
//!    takes an entry out gives its callback to the caller.
//!
//! # Locking
//!
//! All of it lies under `Pins::revocable`, a leaf.

use foliocache_sync::Arc;
use foliocache_sync::thread::{self, ThreadId};
use foliocache_sync::time::{Duration, Instant};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::Range;

use crate::mapped::overlap;

/// Why the holder of a pin is asked to give it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RevokeReason {
    /// The file is truncated before the end of the pinned bytes.
    Truncate,
    /// A hole is punched into the pinned bytes.
    PunchHole,
    /// The file is mapped for the first time, and its folios have to move.
    FirstMapping,
    /// Pins hold more than a smaller bound leaves them.
    SmallerBound,
    /// A pin without a callback needs the share of the memory that pins may hold.
    Budget,
}

/// An event of a revocable pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PinEvent {
    /// An operation needs the pages: stop the device's use of them, unregister them, and drop the pin. The request stands
    /// until [`PinEvent::MayPin`], whatever other operations ask meanwhile.
    #[doc(alias = "invalidate")]
    #[doc(alias = "move_notify")]
    Revoke {
        /// Why.
        reason: RevokeReason,
        /// How long the operation waits from now on. After it the operation fails.
        within: Duration,
    },
    /// The operation that asked has ended, with success or without. If the pin was dropped the bytes may be pinned again, as
    /// far as the file still has them and pins may hold as much (`ENOBUFS`); if not, it goes on as before.
    MayPin,
}

/// The callback of a holder.
pub(crate) struct Callback(Box<dyn Fn(PinEvent) + Send + Sync>);

impl Callback {
    pub(crate) fn new(call: impl Fn(PinEvent) + Send + Sync + 'static) -> Self {
        Self(Box::new(call))
    }

    /// Context: no lock held; it is the program's code.
    pub(crate) fn call(&self, event: PinEvent) {
        (self.0)(event);
    }
}

impl fmt::Debug for Callback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Callback")
    }
}

/// An operation's request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) reason: RevokeReason,
    pub(crate) start: Instant,
    /// How long the operation waits from the start on.
    pub(crate) patience: Duration,
}

impl Request {
    /// How long it still waits.
    pub(crate) fn left(&self) -> Duration {
        self.patience.saturating_sub(self.start.elapsed())
    }
}

/// A revocable pin.
#[derive(Debug)]
struct Entry {
    callback: Arc<Callback>,
    file: u64,
    pages: Range<u64>,
    /// Whether its pages count in the share of pins.
    counts: bool,
    /// The thread that is making it, until all of it is pinned.
    maker: Option<ThreadId>,
    /// The pin was dropped.
    dropped: bool,
    /// Its callback panicked.
    failed: bool,
    /// Operations that ask it.
    asked: u32,
    /// Of the first of them.
    request: Option<Request>,
    /// `Revoke` was said, `MayPin` was not.
    told: bool,
    /// Invariant 2.
    queued: bool,
}

impl Entry {
    /// Whether its holder can be asked, now or soon.
    fn is_revocable(&self) -> bool {
        !self.dropped && !self.failed
    }
}

/// A turn of the revoker.
pub(crate) struct Turn {
    pub(crate) id: u32,
    pub(crate) callback: Arc<Callback>,
    /// `None`: the callback is only dropped.
    pub(crate) event: Option<PinEvent>,
}

/// The revocable pins of a cache.
#[derive(Debug, Default)]
pub(crate) struct Revocables {
    /// By their number, so about by age.
    pins: BTreeMap<u32, Entry>,
    last: u32,
    /// Those with something due.
    due: VecDeque<u32>,
    /// Operations that ask pins wherever they are, while there are to be no new ones.
    anywhere: u32,
}

impl Revocables {
    /// Adds a pin that is about to be made; its number, never zero. `None` while an operation asks pins wherever they are.
    pub(crate) fn add(
        &mut self,
        file: u64,
        pages: Range<u64>,
        counts: bool,
        callback: Callback,
    ) -> Result<u32, Callback> {
        if self.anywhere > 0 {
            return Err(callback);
        }
        loop {
            self.last = self.last.wrapping_add(1);
            if self.last != 0 && !self.pins.contains_key(&self.last) {
                break;
            }
        }
        let entry = Entry {
            callback: Arc::new(callback),
            file,
            pages,
            counts,
            maker: Some(thread::current().id()),
            dropped: false,
            failed: false,
            asked: 0,
            request: None,
            told: false,
            queued: false,
        };
        self.pins.insert(self.last, entry);
        Ok(self.last)
    }

    /// All of the pin is pinned: it may be asked.
    pub(crate) fn complete(&mut self, id: u32) {
        if let Some(entry) = self.pins.get_mut(&id) {
            entry.maker = None;
        }
    }

    /// Whether this thread is making a revocable pin.
    pub(crate) fn is_making(&self) -> bool {
        let this = Some(thread::current().id());
        self.pins.values().any(|entry| entry.maker == this)
    }

    /// The pin is counted off; its callback, if nothing is due to it.
    #[must_use = "it is dropped without the lock"]
    pub(crate) fn remove(&mut self, id: u32) -> Option<Arc<Callback>> {
        let entry = self.pins.get_mut(&id)?;
        entry.dropped = true;
        if entry.asked > 0 || entry.told || entry.queued {
            return None;
        }
        self.pins.remove(&id).map(|entry| entry.callback)
    }

    /// The callback panicked: nothing more is said to the holder.
    pub(crate) fn fail(&mut self, id: u32) {
        if let Some(entry) = self.pins.get_mut(&id) {
            entry.failed = true;
            entry.told = false;
            self.queue(id);
        }
    }

    /// First and last pages, each list in order, of the revocable pins of a file.
    pub(crate) fn ends(&self, file: u64) -> (Vec<u64>, Vec<u64>) {
        let of_file = self.pins.values().filter(|entry| entry.file == file);
        let pages = of_file
            .filter(|entry| entry.is_revocable())
            .map(|entry| &entry.pages);
        let (mut starts, mut ends): (Vec<_>, Vec<_>) =
            pages.map(|pages| (pages.start, pages.end)).unzip();
        starts.sort_unstable();
        ends.sort_unstable();
        (starts, ends)
    }

    /// The pins, not in `asked`, that are of `file` and have some of `pages`.
    pub(crate) fn among(&self, file: u64, pages: &Range<u64>, asked: &[u32]) -> Vec<u32> {
        let found = self.pins.iter().filter(|(id, entry)| {
            entry.file == file
                && overlap(&entry.pages, pages)
                && entry.maker.is_none()
                && entry.is_revocable()
                && !asked.contains(id)
        });
        found.map(|(&id, _)| id).collect()
    }

    /// The oldest pins, not in `asked`, that make up `wanted` together, as far as there are any; and what all of them make
    /// up. `weigh` says what a pin of so many pages counts, and whether it counts in the share of pins.
    pub(crate) fn oldest(
        &self,
        wanted: u64,
        asked: &[u32],
        weigh: impl Fn(u64, bool) -> u64,
    ) -> (Vec<u32>, u64) {
        let (mut found, mut sum) = (Vec::new(), 0);
        for (&id, entry) in &self.pins {
            let pages = entry.pages.end - entry.pages.start;
            let weight = weigh(pages, entry.counts);
            if weight > 0 && entry.maker.is_none() && entry.is_revocable() && !asked.contains(&id) {
                if sum < wanted {
                    found.push(id);
                }
                sum += weight;
            }
        }
        (found, sum)
    }

    /// Asks a pin for an operation.
    pub(crate) fn ask(&mut self, id: u32, request: Request) {
        if let Some(entry) = self.pins.get_mut(&id) {
            entry.asked += 1;
            entry.request.get_or_insert(request);
            self.queue(id);
        }
    }

    /// An operation asks pins wherever they are, until [`Revocables::end`].
    pub(crate) fn bar(&mut self) {
        self.anywhere += 1;
    }

    /// How many of these pins were dropped, and how many are still to be. Context: an operation asks them.
    pub(crate) fn progress(&self, asked: &[u32]) -> (usize, usize) {
        let entries = asked.iter().filter_map(|id| self.pins.get(id));
        let dropped = entries.clone().filter(|entry| entry.dropped).count();
        let left = entries.filter(|entry| entry.is_revocable()).count();
        (dropped, left)
    }

    /// An operation that asked these pins has ended, and `anywhere` says that it barred new ones.
    pub(crate) fn end(&mut self, asked: &[u32], anywhere: bool) {
        self.anywhere -= u32::from(anywhere);
        for &id in asked {
            let Some(entry) = self.pins.get_mut(&id) else {
                continue;
            };
            entry.asked -= 1;
            if entry.asked == 0 {
                entry.request = None;
                self.queue(id);
            }
        }
    }

    fn queue(&mut self, id: u32) {
        if let Some(entry) = self.pins.get_mut(&id)
            && !std::mem::replace(&mut entry.queued, true)
        {
            self.due.push_back(id);
        }
    }

    /// The next turn of the revoker.
    pub(crate) fn next_turn(&mut self) -> Option<Turn> {
        while let Some(id) = self.due.pop_front() {
            let Some(entry) = self.pins.get_mut(&id) else {
                continue;
            };
            entry.queued = false;
            let event = match entry.request {
                Some(request) if !entry.told && entry.is_revocable() => {
                    entry.told = true;
                    Some(PinEvent::Revoke {
                        reason: request.reason,
                        within: request.left(),
                    })
                }
                None if entry.told && !foliocache_sync::planted!(revoked_for_ever) => {
                    entry.told = false;
                    Some(PinEvent::MayPin)
                }
                _ => None,
            };
            let callback = Arc::clone(&entry.callback);
            if entry.dropped && entry.asked == 0 {
                self.pins.remove(&id);
            } else if event.is_none() {
                continue;
            }
            return Some(Turn {
                id,
                callback,
                event,
            });
        }
        None
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn add(pins: &mut Revocables, pages: Range<u64>) -> u32 {
        let id = pins.add(1, pages, true, Callback::new(|_| ()));
        let id = id.expect("nobody asks");
        pins.complete(id);
        id
    }

    fn request() -> Request {
        Request {
            reason: RevokeReason::Truncate,
            start: Instant::now(),
            patience: Duration::from_secs(60),
        }
    }

    /// The numbers of those that are told something, and what.
    fn told(pins: &mut Revocables) -> Vec<(u32, Option<PinEvent>)> {
        std::iter::from_fn(|| pins.next_turn())
            .map(|turn| (turn.id, turn.event))
            .collect()
    }

    #[test]
    fn numbers_begin_anew_and_pass_over_pins_that_exist() {
        let mut pins = Revocables {
            last: u32::MAX - 1,
            ..Revocables::default()
        };
        let ids = [0; 3].map(|_| add(&mut pins, 0..1));
        assert_eq!(ids, [u32::MAX, 1, 2]);
        assert!(pins.remove(1).is_some());
        pins.last = u32::MAX - 1;
        assert_eq!([0; 2].map(|_| add(&mut pins, 0..1)), [1, 3]);
    }

    #[test]
    fn two_operations_ask_a_pin_once_and_the_last_of_them_ends_it() {
        let mut pins = Revocables::default();
        let id = add(&mut pins, 4..8);
        pins.ask(id, request());
        pins.ask(id, request());
        let turns = told(&mut pins);
        assert!(matches!(turns[..], [(of, Some(PinEvent::Revoke { .. }))] if of == id));
        pins.end(&[id], false);
        assert_eq!(told(&mut pins), []);
        assert!(pins.remove(id).is_none(), "it is to be told");
        assert_eq!(pins.progress(&[id]), (1, 0));
        pins.end(&[id], false);
        assert_eq!(told(&mut pins), [(id, Some(PinEvent::MayPin))]);
        assert!(pins.pins.is_empty());
    }

    #[test]
    fn a_pin_that_was_dropped_before_its_turn_is_told_nothing() {
        let mut pins = Revocables::default();
        let [dropped, over] = [0, 1].map(|at| add(&mut pins, at..at + 1));
        for id in [dropped, over] {
            pins.ask(id, request());
        }
        assert!(
            pins.remove(dropped).is_none(),
            "its operation has its number"
        );
        pins.end(&[over], false);
        assert_eq!(told(&mut pins), []);
        pins.end(&[dropped], false);
        assert_eq!(told(&mut pins), [(dropped, None)], "its callback goes");
        assert!(pins.remove(over).is_some());
    }

    #[test]
    fn the_oldest_pins_that_are_enough_are_chosen() {
        let mut pins = Revocables::default();
        let ids = [0..2, 2..6, 6..7, 7..9].map(|pages| add(&mut pins, pages));
        let pages = |pages, counts| if counts { pages } else { 0 };
        assert_eq!(pins.oldest(3, &[], pages), (ids[..2].to_vec(), 9));
        assert_eq!(pins.oldest(3, &ids[..2], pages), (ids[2..].to_vec(), 3));
        pins.fail(ids[1]);
        assert_eq!(pins.oldest(3, &[], pages).0, [ids[0], ids[2]]);
        assert_eq!(pins.ends(1), (vec![0, 6, 7], vec![2, 7, 9]));
        pins.bar();
        assert!(pins.add(1, 0..1, true, Callback::new(|_| ())).is_err());
        pins.end(&[], true);
        add(&mut pins, 0..1);
    }
}
