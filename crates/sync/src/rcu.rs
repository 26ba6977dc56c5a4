//! Read-copy-update: readers that write nothing shared, writers that wait until the readers of old data
//! are gone.
//!
//! # Model
//!
//! There is one domain for the process. A reader announces itself in its thread's *slot*; a writer first
//! unpublishes an object, so that no new reader can find it, then waits for a *grace period*, after which no reader
//! can still be using it.
//!
//! ```text
//! reader (outermost)               grace period g
//!   slot = current | 1               started = g
//!   light barrier                    heavy barrier
//!   … loads pointers …               current = g
//!   slot = 0 (release)               for every slot: wait until it is 0, or its period is g or later
//!                                    completed = g (release)
//! ```
//!
//! A [`GpCookie`] names the first grace period whose heavy barrier begins after the cookie was taken:
//! `started + 1`. [`poll`] answers whether that one is completed, and does a bounded piece of the work if
//! it is not. All cookies taken between two starts name the same grace period, so many pollers share one
//! heavy barrier.
//!
//! # Invariants
//!
//! 1. A slot's low bits count the nested sections of its thread, its high bits hold the period that was current
//!    when the outermost one began. Only the owning thread writes it. Announcing is *one* store, so that a signal
//!    handler may open read sections at any point.
//! 2. At most one grace period is in progress; `completed ≤ current ≤ started ≤ completed + 1`.
//! 3. A slot that was seen at 0 or at period `g` needs no second look in grace period `g`: whatever the
//!    thread announces later loads its pointers after the heavy barrier. The same holds for slots that
//!    are registered later.
//! 4. Slots are never freed; a thread's slot goes to the next new thread when it ends. There are as
//!    many as there ever were threads reading at the same time (128 bytes each).
//!
//! # Locking
//!
//! `PERIOD` (held for one heavy barrier and one look at the slots) before `REGISTRY` (a few
//! instructions). Both are inner to every lock of the project and take none. [`read_lock`] blocks on
//! `REGISTRY` once per thread, on its first use. [`synchronize`] sleeps. A read section may not sleep, and
//! debug builds check it ([`might_sleep`](crate::rank::might_sleep)): one that does holds back all
//! memory that waits for a grace period, and a guard that is forgotten holds it back for ever.
//!
//! # Memory ordering
//!
//! Claim: a reader that `poll` did not wait for sees everything that was stored before the cookie.
//!
//! - `start_poll` has a SeqCst fence F, then loads `started = g − 1`. The starter of `g` stores `started`,
//!   then has the heavy barrier H. F precedes H: had H come first, the load after F would have seen `g`.
//! - The reader stores its slot, then has the light barrier L, then loads pointers. Either L precedes H: then the
//!   writer's look at the slot, which follows H, sees the announcement (or its end, a `Release` store that the look
//!   loads with `Acquire`). Or H precedes L: then F precedes L, the reader sees every store before F, and the
//!   writer need not wait for it.
//! - A slot at period `g` was announced after the reader loaded `current = g`. That store (`Release`) is
//!   after H, and the load is before L, whose reader's side is at least an acquire fence; so H precedes
//!   L. A slot with an older period, announced late, is the second case too, and is waited for
//!   needlessly.
//!
//! With membarrier the light barrier is one for the compiler only, and H is an interrupt on the reader's
//! processor somewhere between two of its instructions, a full fence at that place: the argument is
//! the same with L being wherever the interrupt strikes. In models both are SeqCst fences.
//!
//! # Differences from Linux
//!
//! No callbacks: there is no thread to run them on. Memory that waits for a grace period is kept by its
//! owner with a cookie, and is freed when the owner next needs memory and [`poll`] says yes
//! (`get_state_synchronize_rcu` and `poll_state_synchronize_rcu`, where polling also drives the period).
//! Nothing is needed for fork: a child makes no calls.

use crate::atomic::{AtomicU64, Ordering, fence};
use crate::cell::Cell;
use crate::padded::CachePadded;
use crate::time::{self, Duration};
use crate::{Mutex, MutexGuard, hint, thread};
use std::marker::PhantomData;

#[cfg(any(loom, shuttle))]
use crate::model::barrier;
#[cfg(not(any(loom, shuttle)))]
use foliocache_sys::barrier;

/// Bits 0 to 10 of a slot: how deep the read sections of its thread are nested.
const NEST_MASK: u64 = (1 << 11) - 1;
/// Bit 11: the slot was taken while the thread's locals were being destroyed, and is given back at the end
/// of the section.
const TRANSIENT: u64 = 1 << 11;
/// Bits 12 to 63: the grace period that was current. At one a microsecond they last for 142 years.
const PERIOD_SHIFT: u32 = 12;

/// Invariants 1 and 4.
#[derive(Debug)]
struct Slot(CachePadded<AtomicU64>);

/// A reference to a slot. In a model it owns the slot, which belongs to one execution.
#[cfg(not(any(loom, shuttle)))]
type SlotRef = &'static Slot;
#[cfg(any(loom, shuttle))]
type SlotRef = crate::Arc<Slot>;

impl Slot {
    fn new() -> SlotRef {
        let slot = Slot(CachePadded::new(AtomicU64::new(0)));
        #[cfg(not(any(loom, shuttle)))]
        return Box::leak(Box::new(slot));
        #[cfg(any(loom, shuttle))]
        return crate::Arc::new(slot);
    }

    /// The word, as its own thread reads it.
    #[inline(always)]
    fn own(&self) -> u64 {
        // Relaxed: only this thread writes it (invariant 1).
        self.0.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn announce(&self, flags: u64) {
        // Relaxed: an old value is waited for needlessly; a new one is ordered by the light barrier
        // (third point of the module's "Memory ordering").
        let current = CURRENT.load(Ordering::Relaxed);
        // Relaxed: the light barrier orders it before the pointers.
        self.0
            .store(current << PERIOD_SHIFT | flags | 1, Ordering::Relaxed);
        barrier::light();
    }

    #[inline(always)]
    fn end(&self) {
        // Release pairs with the Acquire load in `quiescent`: the section's loads are over.
        self.0.store(0, Ordering::Release);
    }

    #[inline(never)]
    fn nest(&self, word: u64) {
        assert!(
            word & NEST_MASK < NEST_MASK,
            "RCU read sections nested too deeply"
        );
        // Relaxed: the period is as it was, and only this thread reads the count.
        self.0.store(word + 1, Ordering::Relaxed);
    }

    /// Ends a section that is nested, or whose slot is given back.
    #[inline(never)]
    fn unnest(&self, word: u64) {
        if word & NEST_MASK > 1 {
            // Relaxed: as in `nest`.
            self.0.store(word - 1, Ordering::Relaxed);
            return;
        }
        self.end();
        // A model may have destroyed the local already; its slots end with the execution.
        if let Ok(Some(slot)) = SLOT.try_with(Cell::take) {
            REGISTRY.lock().free.push(slot);
        }
    }

    /// Whether grace period `period` need not wait for this slot.
    fn quiescent(&self, period: u64) -> bool {
        // Acquire pairs with the Release store in `end`.
        let word = self.0.load(Ordering::Acquire);
        word & NEST_MASK == 0
            || word >> PERIOD_SHIFT >= period - u64::from(crate::planted!(grace_period_too_short))
    }
}

#[derive(Default)]
struct Registry {
    /// All slots, in order of creation; grows only.
    slots: Vec<SlotRef>,
    /// Those whose thread has ended.
    free: Vec<SlotRef>,
}

/// The grace period in progress.
struct Period {
    number: u64,
    /// Slots before this index need no second look (invariant 3).
    looked_at: usize,
}

crate::global! {
    static STARTED: AtomicU64 = AtomicU64::new(0);
    static CURRENT: AtomicU64 = AtomicU64::new(0);
    static COMPLETED: AtomicU64 = AtomicU64::new(0);
    static PERIOD: Mutex<Option<Period>> = Mutex::new(None);
    static REGISTRY: Mutex<Registry> = Mutex::new(Registry { slots: Vec::new(), free: Vec::new() });
}

/// Gives the thread's slot back when the thread ends.
struct Registration;

impl Drop for Registration {
    fn drop(&mut self) {
        let _ = SLOT.try_with(|cell| {
            if let Some(slot) = cell.take() {
                if slot.own() == 0 {
                    REGISTRY.lock().free.push(slot);
                } else {
                    // A guard lives on in another thread local, or was forgotten.
                    cell.set(Some(slot));
                }
            }
        });
    }
}

crate::thread_local! {
    /// Without a destructor, so that reading it is one load.
    static SLOT: Cell<Option<SlotRef>> = const { Cell::new(None) };
    static REGISTRATION: Registration = const { Registration };
}

#[inline(always)]
fn peek(cell: &Cell<Option<SlotRef>>) -> Option<SlotRef> {
    #[cfg(not(any(loom, shuttle)))]
    return cell.get();
    #[cfg(any(loom, shuttle))]
    {
        let slot = cell.take();
        cell.set(slot.clone());
        slot
    }
}

/// Proof of being in a read section; ends it when dropped.
///
/// Belongs to its thread. Sections nest; only the outermost one counts.
#[derive(Debug)]
#[must_use = "the read section ends when the guard is dropped"]
pub struct RcuReadGuard {
    /// The slot of the thread that made it, and drops it.
    slot: SlotRef,
    _thread: PhantomData<*mut ()>,
}

/// Opens a read section: objects found in a structure under RCU stay valid until the guard is dropped. Costs a
/// handful of instructions and no fence (see the example `rcu_cost`), and writes no shared cache line. Never sleep
/// inside.
///
/// A thread's first call takes a lock, and 128 bytes outside the memory bound; so a signal handler may open
/// sections only on a thread that has opened one before.
#[doc(alias = "rcu_read_lock")]
#[inline]
pub fn read_lock() -> RcuReadGuard {
    let slot = SLOT.with(|cell| match peek(cell) {
        Some(slot) => {
            let word = slot.own();
            if word == 0 {
                slot.announce(0);
            } else {
                slot.nest(word);
            }
            slot
        }
        None => first_read_lock(cell),
    });
    RcuReadGuard {
        slot,
        _thread: PhantomData,
    }
}

#[cold]
#[inline(never)]
fn first_read_lock(cell: &Cell<Option<SlotRef>>) -> SlotRef {
    barrier::register();
    let slot = {
        let mut registry = REGISTRY.lock();
        registry.free.pop().unwrap_or_else(|| {
            let slot = Slot::new();
            registry.slots.push(SlotRef::clone(&slot));
            slot
        })
    };
    // Fails once the thread's locals are being destroyed: the slot would never be returned.
    let lasting = REGISTRATION.try_with(|_| ()).is_ok();
    slot.announce(if lasting { 0 } else { TRANSIENT });
    cell.set(Some(SlotRef::clone(&slot)));
    slot
}

impl Drop for RcuReadGuard {
    #[inline]
    fn drop(&mut self) {
        let word = self.slot.own();
        if word & (NEST_MASK | TRANSIENT) == 1 {
            self.slot.end();
        } else {
            self.slot.unnest(word);
        }
    }
}

/// Whether this thread is inside a read section.
#[doc(alias = "rcu_read_lock_held")]
#[inline]
pub fn in_read_section() -> bool {
    SLOT.try_with(|cell| peek(cell).is_some_and(|slot| slot.own() != 0))
        .unwrap_or(false)
}

/// Names a grace period that begins after the cookie was taken. Cookies are ordered: when a later one is
/// done, so is an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpCookie(u64);

/// A cookie for everything that this thread has unpublished so far. Costs a full fence; does not
/// block.
///
/// Take one for a whole batch: each cookie that is taken after a grace period has begun may need one more
/// heavy barrier.
#[doc(alias = "start_poll_synchronize_rcu")]
pub fn start_poll() -> GpCookie {
    // F in the module's "Memory ordering"; pairs with the heavy barrier in `advance`.
    fence(Ordering::SeqCst);
    // Relaxed: ordered by the fence above.
    GpCookie(STARTED.load(Ordering::Relaxed) + 1)
}

/// Whether the grace period of this cookie has ended: no reader is left of the objects that were unpublished before
/// the cookie was taken, and the caller may reuse them.
///
/// Does not wait for readers. If the answer is no it may begin or advance a grace period first: some
/// microseconds for a heavy barrier, and one look at each slot. When another thread is at it, the
/// answer is `false` at once. May be called inside a read section (whose own grace period then does not
/// end).
#[doc(alias = "poll_state_synchronize_rcu")]
pub fn poll(cookie: GpCookie) -> bool {
    // Acquire pairs with the Release store in `advance`.
    if COMPLETED.load(Ordering::Acquire) >= cookie.0 {
        return true;
    }
    let Some(mut period) = PERIOD.try_lock() else {
        return false;
    };
    // The period in progress may be the one before the cookie's.
    while COMPLETED.load(Ordering::Acquire) < cookie.0 {
        if !advance(&mut period) {
            return false;
        }
    }
    true
}

/// Begins a grace period if none is in progress, and looks at the slots once. Whether it has ended.
fn advance(period: &mut MutexGuard<'_, Option<Period>>) -> bool {
    let in_progress = period.get_or_insert_with(|| {
        // Relaxed: only the holder of `PERIOD` writes it.
        let number = STARTED.load(Ordering::Relaxed) + 1;
        // Relaxed: ordered before the look at the slots by the heavy barrier (H).
        STARTED.store(number, Ordering::Relaxed);
        barrier::heavy();
        // Release pairs with the light barrier after the load in `announce`.
        CURRENT.store(number, Ordering::Release);
        Period {
            number,
            looked_at: 0,
        }
    });
    let number = in_progress.number;
    let registry = REGISTRY.lock();
    let rest = &registry.slots[in_progress.looked_at..];
    let quiescent = rest
        .iter()
        .take_while(|slot| slot.quiescent(number))
        .count();
    in_progress.looked_at += quiescent;
    let ended = in_progress.looked_at == registry.slots.len();
    drop(registry);
    if ended {
        // Release pairs with the Acquire load in `poll`: the readers' loads, acquired in
        // `quiescent`, are over for whoever sees this.
        COMPLETED.store(number, Ordering::Release);
        **period = None;
    }
    ended
}

/// Polls between which `synchronize` spins, then yields, before it sleeps.
const SPINS: u32 = if cfg!(any(loom, shuttle)) { 0 } else { 100 };
const YIELDS: u32 = 20;

/// Waits for every reader that may have seen an object unpublished before this call.
///
/// Sleeps: for as long as the longest read section in progress, and some microseconds at least.
///
/// # Panics
///
/// Inside a read section, which it would wait for.
#[doc(alias = "synchronize_rcu")]
#[track_caller]
pub fn synchronize() {
    assert!(
        !in_read_section(),
        "waiting for a grace period inside an RCU read section"
    );
    let cookie = start_poll();
    let mut tries = 0;
    while !poll(cookie) {
        if tries < SPINS {
            hint::spin_loop();
        } else if tries < SPINS + YIELDS || cfg!(any(loom, shuttle)) {
            thread::yield_now();
        } else {
            let exponent = ((tries - SPINS - YIELDS) / 4).min(5);
            time::sleep(Duration::from_micros(50 << exponent));
        }
        tries += 1;
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
#[path = "rcu/tests.rs"]
mod tests;
