//! Running something when the process exits.
//!
//! # Model
//!
//! `exit(3)`, a `main` that returns and [`std::process::exit`] run the registered functions, in the process that
//! registered them and not in its forked children. `_exit(2)`, an abort and a fatal signal do not.
//!
//! Other threads go on meanwhile, and may hold locks. The thread that exits has no values of `thread_local!` any more.
//!
//! # Memory ordering
//!
//! Relaxed: the exit comes after the registration, in the same thread or by the program's own
//! synchronization.
//!
//! # Safety
//!
//! The function that `atexit` gets is a static one, takes nothing and does not unwind.
#![allow(unsafe_code)]

use crate::Errno;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::panic::catch_unwind;
use std::process;

/// Work that is done at the exit.
pub trait AtExit: 'static {
    /// Does it. The exit waits for it. A panic ends it.
    fn run();
}

/// The process that registered something.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// The C library calls [`at_exit`] in forked children too.
static REGISTERED: AtomicBool = AtomicBool::new(false);

/// Has `T` run when this process exits. To be called with one `T` in a program; the second call does nothing.
///
/// # Errors
///
/// `ENOMEM`.
pub fn register<T: AtExit>() -> Result<(), Errno> {
    PROCESS.store(process::id(), Ordering::Relaxed);
    if REGISTERED.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    // SAFETY: see the module's header.
    if unsafe { libc::atexit(at_exit::<T>) } == 0 {
        return Ok(());
    }
    REGISTERED.store(false, Ordering::Relaxed);
    Err(Errno::ENOMEM)
}

extern "C" fn at_exit<T: AtExit>() {
    if process::id() == PROCESS.load(Ordering::Relaxed)
        && let Err(panic) = catch_unwind(T::run)
    {
        // Dropping the payload could panic again.
        core::mem::forget(panic);
    }
}
