//! The handlers of SIGSEGV and SIGBUS: ours first, then the previous one.
//!
//! # Model
//!
//! ```text
//! signal ─▶ SIGBUS for an access, not at a copy, and the resolver can do something about it? ─▶ the access is tried again
//!                │ no, or not resolved
//!                ▼
//!           sent by the kernel for an access, at one of our instructions? ─▶ go on at its fixup
//!                │ no
//!                ▼
//!           the previous action:   a handler ─▶ call it, under the mask that it asked for
//!                                  default, or ignore ─▶ what the kernel would have done
//! ```
//!
//! An access that faults under the default action has to end the process with that signal and a
//! core of the access itself: the handler puts the default action back and returns, and the access
//! faults once more. (Ignoring such a signal is not possible either; the kernel treats it as the
//! default.) A signal that someone *sent* is passed on by sending it again, or dropped if it was
//! ignored.
//!
//! The resolver is a function that the layer of mappings registers ([`install_resolver`]).
//!
//! # Invariants
//!
//! 1. A slot of `PREVIOUS` is set before our handler can run for its signal, and the action it
//!    points to is never freed.
//! 2. The handler is async-signal-safe: it allocates nothing, takes no lock, leaves errno as it was,
//!    and needs a few hundred bytes of stack, since an alternate stack may have 8 KiB of which the
//!    kernel's frame takes up to half. The resolver keeps to this, too, on the stack of the handler.
//! 3. All other signals are blocked while our handler runs (a second frame may not fit on the
//!    alternate stack), but not while a previous handler runs: that has the mask it asked for.
//!
//! # Locking
//!
//! `STATE` is a lock for installing, waited for by yielding; the handler never looks at it.
//!
//! # Memory ordering
//!
//! `STATE`: the Release store of `INSTALLED` pairs with the Acquire loads in `install` and
//! `installed`, so a thread that sees it may take faults; the Acquire exchange to `BUSY` pairs with the
//! Release store of `IDLE` after a failed try. `PREVIOUS`: the Release stores pair with the Acquire
//! load in the handler, which reads the action behind the pointer. `RESOLVER` is set before the first mapping
//! whose faults it resolves; the handler's look at it is one Acquire load.
//!
//! # Safety
//!
//! The kernel calls the handler with valid pointers; so does, by its own contract, a handler that
//! was installed later and chains to ours.
#![allow(unsafe_code)]

use super::arch;
use crate::Errno;
use crate::lock::OnceLock;
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU8, Ordering};
use libc::{sigaction, siginfo_t, sigset_t, ucontext_t};

const IDLE: u8 = 0;
const BUSY: u8 = 1;
const INSTALLED: u8 = 2;

/// Whether the handlers are there; `BUSY` while a thread installs them.
static STATE: AtomicU8 = AtomicU8::new(IDLE);

/// The signals that we handle.
const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// The action before ours, for each of `SIGNALS`. Invariant 1.
static PREVIOUS: [AtomicPtr<sigaction>; 2] =
    [AtomicPtr::new(null_mut()), AtomicPtr::new(null_mut())];

/// Resolves the fault of an access, in the handler of SIGBUS: its address, whether it is a write, and whether the program
/// made it, not a routine of ours. After `true` the access is tried again. Async-signal-safe.
pub(crate) type Resolver = fn(address: usize, write: bool, program: bool) -> bool;

/// The resolver, if there is one. There is one a process.
static RESOLVER: OnceLock<Resolver> = OnceLock::new();

/// Installs the handlers, which ask `resolver` first.
pub(super) fn install_resolver(resolver: Resolver) -> Result<(), Errno> {
    let registered = *RESOLVER.get_or_init(|| resolver);
    debug_assert!(core::ptr::fn_addr_eq(registered, resolver));
    install()
}

pub(super) fn installed() -> bool {
    STATE.load(Ordering::Acquire) == INSTALLED
}

pub(super) fn install() -> Result<(), Errno> {
    loop {
        match STATE.compare_exchange(IDLE, BUSY, Ordering::Acquire, Ordering::Acquire) {
            Ok(_) => break,
            Err(INSTALLED) => return Ok(()),
            Err(_) => rustix::thread::sched_yield(),
        }
    }
    let result = SIGNALS
        .iter()
        .zip(&PREVIOUS)
        .try_for_each(|(&signal, slot)| {
            // A slot that is set belongs to an earlier try that got only so far.
            if slot.load(Ordering::Acquire).is_null() {
                install_one(signal, slot)
            } else {
                Ok(())
            }
        });
    STATE.store(
        if result.is_ok() { INSTALLED } else { IDLE },
        Ordering::Release,
    );
    result
}

fn install_one(signal: c_int, slot: &AtomicPtr<sigaction>) -> Result<(), Errno> {
    let publish = |action| slot.store(Box::into_raw(Box::new(action)), Ordering::Release);
    publish(exchange(signal, None)?);
    let mut ours = default_action();
    ours.sa_sigaction = on_fault as *const () as usize;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: any bytes are a set. The C library's own call leaves out its own signals.
    unsafe { (&raw mut ours.sa_mask).write_bytes(0xff, 1) };
    match exchange(signal, Some(&ours)) {
        // Another thread may have replaced the handler between the two calls: the one that we
        // replaced counts.
        Ok(replaced) => publish(replaced),
        Err(error) => {
            slot.store(null_mut(), Ordering::Release);
            return Err(error);
        }
    }
    Ok(())
}

/// sigaction(2): returns the action that is there, and replaces it where one is given.
fn exchange(signal: c_int, action: Option<&sigaction>) -> Result<sigaction, Errno> {
    let new = action.map_or(core::ptr::null(), |action| action);
    let mut old = default_action();
    // SAFETY: both point to actions or to nothing.
    Errno::result(unsafe { libc::sigaction(signal, new, &mut old) })?;
    Ok(old)
}

/// The default action, for where it comes after a handler that wanted only one signal.
static DEFAULT: sigaction = default_action();

const fn default_action() -> sigaction {
    // SAFETY: all fields are integers or may be null; zero is the default action without flags.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// Our handler.
extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's contract: a valid siginfo, which does not change during the handler.
    let details = unsafe { &*info };
    let code = details.si_code;
    if from_an_access(signal, code) {
        // SAFETY: a signal for an access has an address, or zero.
        let address = unsafe { details.si_addr() }.addr();
        let address = is_exact(signal, code).then_some(address);
        // SAFETY: the kernel's contract: the context of the thread, ours to change until we return.
        let context = unsafe { &mut *context.cast::<ucontext_t>() };
        if let Some(address) = address.filter(|_| signal == libc::SIGBUS)
            && let Some((write, program)) = arch::may_be_resolved(context)
            && let Some(resolve) = RESOLVER.get()
            && resolve(address, write, program)
        {
            return;
        }
        if arch::resolve(context, address) {
            return;
        }
    }
    // SAFETY: these are the arguments of a running signal handler, this one.
    unsafe { chain(signal, code, info, context) };
}

/// Whether the kernel raised the signal for an access of this thread, here and now. Otherwise it
/// was sent with `kill` and the like (codes up to zero), or reports broken memory that has not been
/// accessed yet.
fn from_an_access(signal: c_int, code: c_int) -> bool {
    code > 0 && !(signal == libc::SIGBUS && code == libc::BUS_MCEERR_AO)
}

/// Whether the address in the signal is the first byte that could not be accessed. It is for page faults; for
/// broken memory the kernel gives only the page, and for non-canonical addresses nothing.
fn is_exact(signal: c_int, code: c_int) -> bool {
    // Not in the C library's bindings, the same on all architectures.
    const SEGV_MAPERR: c_int = 1;
    const SEGV_ACCERR: c_int = 2;
    match signal {
        libc::SIGSEGV => code == SEGV_MAPERR || code == SEGV_ACCERR,
        _ => code == libc::BUS_ADRERR,
    }
}

/// # Safety
///
/// The arguments are those of a signal handler that is running.
#[cold]
unsafe fn chain(signal: c_int, code: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the address of this thread's errno is always valid.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the address of this thread's errno, valid and not shared.
    let saved = unsafe { *errno };
    let slot = &PREVIOUS[usize::from(signal == libc::SIGBUS)];
    let previous = slot.load(Ordering::Acquire);
    // SAFETY: invariant 1: set, and never freed.
    let previous = unsafe { *previous };
    match previous.sa_sigaction {
        libc::SIG_IGN if !from_an_access(signal, code) => {}
        libc::SIG_DFL | libc::SIG_IGN => die(signal, code),
        handler => {
            if previous.sa_flags & libc::SA_RESETHAND != 0 {
                // One shot: the next one meets the default action.
                slot.store((&raw const DEFAULT).cast_mut(), Ordering::Release);
            }
            // SAFETY: the arguments are those of our own caller, the handler is the previous one.
            unsafe { call(handler, &previous, signal, info, context) };
        }
    }
    // SAFETY: the address of this thread's errno, valid and not shared.
    unsafe { *errno = saved };
}

/// Ends the process as the default action would.
fn die(signal: c_int, code: c_int) {
    // SIGSEGV and SIGBUS can always be set to the default.
    let _ = exchange(signal, Some(&default_action()));
    if !from_an_access(signal, code) {
        // No instruction will fault again: send it on. It arrives when our handler has returned.
        // SAFETY: async-signal-safe, and every number here is a signal's.
        unsafe { libc::raise(signal) };
    }
}

/// Calls a previous handler under the mask that the kernel would have given it: that of the
/// interrupted code, its own `sa_mask`, and the signal itself unless it said SA_NODEFER.
///
/// # Safety
///
/// The arguments are those of a signal handler that is running, and `handler` is that of `previous`.
unsafe fn call(
    handler: usize,
    previous: &sigaction,
    signal: c_int,
    info: *mut siginfo_t,
    context: *mut c_void,
) {
    // The kernel's set has 64 bits; the C library's type is larger, the rest of it not filled in.
    const WORD: usize = size_of::<u64>();
    let word = |set: *const sigset_t| {
        // SAFETY: a set has at least one word.
        unsafe { set.cast::<u64>().read_unaligned() }
    };
    // SAFETY: the kernel's contract.
    let interrupted = unsafe { &raw const (*context.cast::<ucontext_t>()).uc_sigmask };
    let mut wanted = word(interrupted) | word(&previous.sa_mask);
    if previous.sa_flags & libc::SA_NODEFER == 0 {
        wanted |= 1 << (signal - 1);
    }
    let mut before = 0u64;
    let set_mask = |new: *const u64, old: *mut u64| {
        // SAFETY: both point to a set of the kernel's size, or to nothing.
        unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, new, old, WORD) };
    };
    set_mask(&wanted, &mut before);
    if previous.sa_flags & libc::SA_SIGINFO != 0 {
        type Full = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
        // SAFETY: with SA_SIGINFO the kernel would call the address in the same way.
        let handler = unsafe { core::mem::transmute::<usize, Full>(handler) };
        handler(signal, info, context);
    } else {
        // SAFETY: without SA_SIGINFO the kernel would call the address in the same way.
        let handler = unsafe { core::mem::transmute::<usize, extern "C" fn(c_int)>(handler) };
        handler(signal);
    }
    set_mask(&before, null_mut());
}
