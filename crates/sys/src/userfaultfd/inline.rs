//! Faults that are resolved on the thread that touched the page, by SIGBUS.
//!
//! # Model
//!
//! ```text
//! a touch ─▶ SIGBUS ─▶ the handler of usercopy: what touched it?
//!                        a copy of the cache ─▶ it ends there (folio locks are held); its caller touches the page
//!                        such a touch ──────┐
//!                        the program ───────┴─▶ a resolver, on a stack of its own, all signals blocked
//!                                                 │ true: the touch is tried again
//!                                                 └ false: the touch fails; the program gets the signal
//! ```
//!
//! An area is found in a table of fixed size. The handler takes no lock and allocates nothing; the resolver may do
//! both, on what the thread cannot hold as it touches a window: that is why copies of the cache are not resolved, and
//! why a touch by other code inside a call of the cache ([`crate::inside`]) ends the process.
//!
//! # Limits
//!
//! * A fault on the resolver's own stack kills the process: SIGSEGV and SIGBUS are blocked. So does a touch on a thread
//!   that blocks SIGBUS ([`thread_can_fault`]).
//! * A signal handler that interrupted the allocator must not touch a window, since resolvers allocate.
//! * No signal is delivered to the thread while a resolver runs, which may wait for I/O.
//!
//! # Invariants
//!
//! 1. `Slot::registered` is null, `CLOSING`, or a box that stays until `calls` is seen to be 0 after it was taken out.
//!    Only the thread that resolves a call may take it out before the end of this call, which uses it no more.
//! # Memory ordering
//!
//! `Slot`: a call counts itself, then loads `registered`; a removal replaces `registered`, then waits for a count of 0.
//! All four are SeqCst, so that one of the two sees the other. The Release decrement of a call pairs with the removal's
//! load: what the call did is over. The Release store of null pairs with the Acquire exchange of the next user of the
//! slot. `start` and `end` are hints, Relaxed: whoever got an address of an area got it after they were stored, and
//! the box decides.
//!
//! # Safety
//!
//! Boxes are freed by invariant 1.
#![allow(unsafe_code)]

use super::ResolveFault;
use super::stack::Stack;
use crate::Errno;
use crate::fork::ForkGuard;
use crate::lock::Arc;
use crate::{inside, usercopy};
use core::cell::Cell;
use core::ops::Range;
use core::ptr::{self, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use rustix::thread::{Timespec, nanosleep};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What is to be done for an area.
struct Registered {
    area: Range<usize>,
    resolver: Arc<dyn ResolveFault>,
    /// A child has no windows; what faults there is another memory.
    guard: ForkGuard,
}

struct Slot {
    start: AtomicUsize,
    end: AtomicUsize,
    /// Invariant 1.
    registered: AtomicPtr<Registered>,
    /// Faults that are being resolved, or that just look.
    calls: AtomicUsize,
}

static SLOTS: [Slot; 64] = [const {
    Slot {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        registered: AtomicPtr::new(null_mut()),
        calls: AtomicUsize::new(0),
    }
}; 64];

/// Between two looks of a removal.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000,
};

/// In `Slot::registered`: it is being removed.
const CLOSING: *mut Registered = ptr::without_provenance_mut(1);

thread_local! {
    /// The slot for which this thread resolves a fault, or null.
    static RESOLVING: Cell<*const Slot> = const { Cell::new(ptr::null()) };
}

/// Faults of an area are resolved inline until it is dropped; see [`super::resolve_inline`].
#[derive(Debug)]
pub struct InlineFaults {
    slot: &'static Slot,
}

impl core::fmt::Debug for Slot {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Slot").finish_non_exhaustive()
    }
}

pub(super) fn resolve(
    area: Range<usize>,
    resolver: Box<dyn ResolveFault>,
) -> Result<InlineFaults, Errno> {
    if area.is_empty() {
        return Err(Errno::EINVAL);
    }
    usercopy::install_handlers()?;
    // So that there is one also when no more can be mapped.
    Stack::new()?.give();
    let (start, end) = (area.start, area.end);
    let guard = ForkGuard::new()?;
    let registered = Box::into_raw(Box::new(Registered {
        area,
        resolver: resolver.into(),
        guard,
    }));
    let claim = |slot: &&Slot| {
        let (new, old) = (registered, null_mut());
        let claimed =
            slot.registered
                .compare_exchange(old, new, Ordering::SeqCst, Ordering::Relaxed);
        claimed.is_ok()
    };
    let Some(slot) = SLOTS.iter().find(claim) else {
        // SAFETY: from `into_raw`, and published nowhere.
        drop(unsafe { Box::from_raw(registered) });
        return Err(Errno::ENOSPC);
    };
    slot.end.store(end, Ordering::Relaxed);
    slot.start.store(start, Ordering::Relaxed);
    Ok(InlineFaults { slot })
}

impl Drop for InlineFaults {
    fn drop(&mut self) {
        let slot = self.slot;
        slot.start.store(0, Ordering::Relaxed);
        slot.end.store(0, Ordering::Relaxed);
        let registered = slot.registered.swap(CLOSING, Ordering::SeqCst);
        // SAFETY: invariant 1; it was ours to take out.
        let guard = unsafe { &(*registered).guard };
        if guard.is_child() {
            // The calls of the parent's threads never end here. The slot stays closed.
            return;
        }
        let own = usize::from(ptr::eq(RESOLVING.get(), slot));
        while slot.calls.load(Ordering::SeqCst) > own {
            let _ = nanosleep(&PAUSE);
        }
        // SAFETY: invariant 1: no other call sees it, and a call of this thread does not use it again.
        drop(unsafe { Box::from_raw(registered) });
        slot.registered.store(null_mut(), Ordering::Release);
    }
}

/// A call that is counted.
struct Call(&'static Slot);

impl Call {
    /// The resolver of an address, and that it is in use.
    fn begin(address: usize) -> Option<(Call, Arc<dyn ResolveFault>)> {
        SLOTS.iter().find_map(|slot| {
            let hint = slot.start.load(Ordering::Relaxed)..slot.end.load(Ordering::Relaxed);
            if !hint.contains(&address) {
                return None;
            }
            slot.calls.fetch_add(1, Ordering::SeqCst);
            let call = Call(slot);
            let registered = slot.registered.load(Ordering::SeqCst);
            if registered.is_null() || registered == CLOSING {
                return None;
            }
            // SAFETY: invariant 1: it was there after the call was counted.
            let registered = unsafe { &*registered };
            let ours = registered.area.contains(&address) && !registered.guard.is_child();
            ours.then(|| (call, Arc::clone(&registered.resolver)))
        })
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::Release);
    }
}

/// The fault of an access, in the handler of SIGBUS: whether it is resolved. `program` says that the instruction is
/// none of usercopy's.
pub(crate) fn on_fault(address: usize, write: bool, program: bool) -> bool {
    let Some((call, resolver)) = Call::begin(address) else {
        return false;
    };
    if program && inside::is_inside() {
        die(
            "foliocache: a mapping was touched inside a call of the cache, by a signal handler or a callback: \
             with locks held it cannot be resolved\n",
        );
    }
    // SAFETY: the address of this thread's errno is always valid.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let saved = unsafe { *errno };
    // All are blocked already, unless a handler of somebody else's calls ours.
    let mask = set_signal_mask(ALL_SIGNALS);
    let outer = RESOLVING.replace(call.0);
    let mut fault = Fault {
        resolver: Some(resolver),
        address,
        write,
        resolved: false,
    };
    let stack = Stack::take();
    // SAFETY: `run` takes a fault, and unwinds nowhere.
    unsafe { stack.call((&raw mut fault).cast(), run) };
    stack.give();
    let resolved = fault.resolved;
    RESOLVING.set(outer);
    if mask != ALL_SIGNALS {
        set_signal_mask(mask);
    }
    // SAFETY: as above.
    unsafe { *errno = saved };
    resolved
}

struct Fault {
    resolver: Option<Arc<dyn ResolveFault>>,
    address: usize,
    write: bool,
    resolved: bool,
}

/// What runs on the stack of its own.
unsafe extern "C" fn run(fault: *mut u8) {
    // SAFETY: what `on_fault` passes.
    let fault = unsafe { &mut *fault.cast::<Fault>() };
    // It may be the last reference, whose drop needs room, too.
    let Some(resolver) = fault.resolver.take() else {
        return;
    };
    let resolve = || {
        let resolved = resolver.resolve(fault.address, fault.write);
        drop(resolver);
        resolved
    };
    match catch_unwind(AssertUnwindSafe(resolve)) {
        Ok(resolved) => fault.resolved = resolved,
        Err(_) => die("foliocache: a panic while the fault of a mapping was resolved\n"),
    }
}

/// The two others cannot be blocked.
const ALL_SIGNALS: u64 = !(1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1));

/// Blocks these signals, by number from bit 0 on, and no others; what was blocked before. The C library's call leaves
/// its own signals alone.
fn set_signal_mask(mask: u64) -> u64 {
    let mut before = 0u64;
    let (new, old, len) = (&raw const mask, &raw mut before, size_of::<u64>());
    // SAFETY: both point to a set of the kernel's size.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, new, old, len) };
    before
}

/// Ends the process with a message.
#[cold]
fn die(message: &str) -> ! {
    // SAFETY: the bytes are as long as said.
    unsafe { libc::write(libc::STDERR_FILENO, message.as_ptr().cast(), message.len()) };
    std::process::abort()
}
