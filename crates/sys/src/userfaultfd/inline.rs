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
//! An area is found in a table of fixed size. The handler takes no lock and allocates nothing. The resolver may do
//! both, but only locks that the thread cannot hold when it touches a window: that is why copies of the cache are
//! not resolved, and why a touch by other code inside a call of the cache ([`crate::inside`]) ends the process.
//!
//! # Limits
//!
//! * A fault on the resolver's own stack kills the process: SIGSEGV and SIGBUS are blocked. So does a touch on a thread
//!   that blocks SIGBUS.
//! * A signal handler that interrupted the allocator must not touch a window, since resolvers allocate.
//! * No signal is delivered to the thread while a resolver runs, which may wait for I/O.
//!
//! # Memory ordering
//!
//! `start` and `end` of an area are hints, Relaxed: a thread gets an address in the area only after they were stored, and
//! the registered area decides. For the rest see `slot.rs`.
//!
//! # Safety
//!
//! A registered resolver is freed by the rules of `slot.rs`.
#![allow(unsafe_code)]

use super::ResolveFault;
use super::slot::{Slot, Use};
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

type Resolver = Arc<dyn ResolveFault>;

/// An area, and the resolver of its faults.
struct Registered {
    area: Range<usize>,
    resolver: Resolver,
    /// A child has no windows; its faults concern other memory.
    guard: ForkGuard,
}

/// A place for an area.
struct Place {
    start: AtomicUsize,
    end: AtomicUsize,
    slot: Slot<Registered>,
}

static PLACES: [Place; 64] = [const {
    Place {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        slot: Slot {
            value: AtomicPtr::new(null_mut()),
            uses: AtomicUsize::new(0),
        },
    }
}; 64];

/// Between two looks of a removal.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000,
};

thread_local! {
    /// The place for which this thread resolves a fault, or null.
    static RESOLVING: Cell<*const Place> = const { Cell::new(ptr::null()) };
}

/// Faults of an area are resolved inline until it is dropped; see [`super::resolve_inline`].
#[derive(Debug)]
pub struct InlineFaults {
    place: &'static Place,
}

impl core::fmt::Debug for Place {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Place").finish_non_exhaustive()
    }
}

pub(super) fn resolve(
    area: Range<usize>,
    resolver: Box<dyn ResolveFault>,
) -> Result<InlineFaults, Errno> {
    if area.is_empty() {
        return Err(Errno::EINVAL);
    }
    usercopy::install_resolver(on_fault)?;
    // One stack is kept from now on, for faults at which no more can be mapped.
    Stack::new()?.give();
    let (start, end) = (area.start, area.end);
    let guard = ForkGuard::new()?;
    let mut registered = Box::new(Registered {
        area,
        resolver: resolver.into(),
        guard,
    });
    for place in &PLACES {
        match place.slot.publish(registered) {
            Ok(()) => {
                place.end.store(end, Ordering::Relaxed);
                place.start.store(start, Ordering::Relaxed);
                return Ok(InlineFaults { place });
            }
            Err(back) => registered = back,
        }
    }
    Err(Errno::ENOSPC)
}

impl Drop for InlineFaults {
    fn drop(&mut self) {
        let Place { start, end, slot } = self.place;
        start.store(0, Ordering::Relaxed);
        end.store(0, Ordering::Relaxed);
        let registered = slot.close();
        // SAFETY: closed just now, and freed below.
        let guard = unsafe { &(*registered).guard };
        if guard.is_child() {
            // The calls of the parent's threads never end here. The slot stays closed.
            return;
        }
        let own = usize::from(ptr::eq(RESOLVING.get(), self.place));
        while slot.is_used(own) {
            let _ = nanosleep(&PAUSE);
        }
        // SAFETY: closed, and no longer used.
        unsafe { slot.free(registered) };
    }
}

/// The place of an address and its resolver, which is in use until the count is dropped.
fn begin(address: usize) -> Option<(&'static Place, Use<'static, Registered>, Resolver)> {
    PLACES.iter().find_map(|place| {
        let hint = place.start.load(Ordering::Relaxed)..place.end.load(Ordering::Relaxed);
        if !hint.contains(&address) {
            return None;
        }
        let (counted, resolver) = place.slot.begin(|registered| {
            let ours = registered.area.contains(&address) && !registered.guard.is_child();
            ours.then(|| Arc::clone(&registered.resolver))
        })?;
        Some((place, counted, resolver))
    })
}

/// The fault of an access, in the handler of SIGBUS: whether it is resolved. `program` says that the instruction is
/// none of usercopy's.
fn on_fault(address: usize, write: bool, program: bool) -> bool {
    let Some((place, _counted, resolver)) = begin(address) else {
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
    // SAFETY: the address of this thread's errno, valid and not shared.
    let saved = unsafe { *errno };
    // All are blocked already, unless a foreign handler calls ours.
    let mask = set_signal_mask(ALL_SIGNALS);
    let outer = RESOLVING.replace(place);
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
    // SAFETY: the address of this thread's errno, valid and not shared.
    unsafe { *errno = saved };
    resolved
}

struct Fault {
    resolver: Option<Resolver>,
    address: usize,
    write: bool,
    resolved: bool,
}

/// Runs on the separate stack.
unsafe extern "C" fn run(fault: *mut u8) {
    // SAFETY: `on_fault` passes a valid `Fault`.
    let fault = unsafe { &mut *fault.cast::<Fault>() };
    // It may be the last reference, whose drop needs stack space too.
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

/// Blocks these signals, numbered from bit 0, and no others; returns the previous mask. The C library's call would
/// leave its internal signals alone.
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
