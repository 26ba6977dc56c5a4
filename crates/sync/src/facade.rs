//! The choice between std, loom and shuttle: the only file that names all three.
//!
//! # Model
//!
//! `imp` holds the types that [`crate::lock`] wraps; the public modules re-export the rest unchanged. No type here
//! adds state.

#[cfg(loom)]
use loom as base;
#[cfg(shuttle)]
use shuttle as base;
#[cfg(not(any(loom, shuttle)))]
use std as base;

pub use std::sync::{Arc, Weak};

/// The types that the wrappers of this crate are made of.
pub(crate) mod imp {
    pub(crate) use super::base::sync::{Condvar, Mutex, RwLock};
    #[cfg_attr(
        shuttle,
        allow(unreachable_pub, reason = "a model has its own `MutexGuard`")
    )]
    pub use super::base::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};
}

/// Atomic types and fences. `get_mut` is missing under loom; use a `Relaxed` load or store.
pub mod atomic {
    pub use super::base::sync::atomic::*;
}

/// Hints to the processor; in a model, a point at which another thread runs.
pub mod hint {
    pub use super::base::hint::spin_loop;
}

/// Threads. `scope` is missing under loom, and so is `JoinHandle::is_finished`.
pub mod thread {
    pub use super::base::thread::{
        Builder, JoinHandle, LocalKey, Thread, ThreadId, current, park, spawn, yield_now,
    };
    #[cfg(not(loom))]
    pub use super::base::thread::{Scope, ScopedJoinHandle, scope};
    #[cfg(not(any(loom, shuttle)))]
    pub use std::thread::park_timeout;
    pub use std::thread::{available_parallelism, panicking};

    /// Parks. In a model it is woken, and never because the time is up.
    #[cfg(any(loom, shuttle))]
    pub fn park_timeout(_: std::time::Duration) {
        park();
    }
}

#[doc(hidden)]
pub mod __private {
    #[cfg(any(loom, shuttle))]
    pub use super::base::lazy_static;
    pub use super::base::thread_local;
}

/// Declares thread locals in the syntax of `std::thread_local!`, `const { … }` initialisers
/// included. Use `with` or `try_with` on them: a model offers nothing else.
#[cfg(not(loom))]
#[macro_export]
macro_rules! thread_local {
    ($($tokens:tt)*) => { $crate::__private::thread_local! { $($tokens)* } };
}

/// As in the other builds; loom's own has no `const { … }`.
#[cfg(loom)]
#[macro_export]
macro_rules! thread_local {
    () => {};
    ($(#[$meta:meta])* $vis:vis static $name:ident: $ty:ty = const $init:block $(; $($rest:tt)*)?) => {
        $crate::__private::thread_local! { $(#[$meta])* $vis static $name: $ty = $init }
        $($crate::thread_local! { $($rest)* })?
    };
    ($(#[$meta:meta])* $vis:vis static $name:ident: $ty:ty = $init:expr $(; $($rest:tt)*)?) => {
        $crate::__private::thread_local! { $(#[$meta])* $vis static $name: $ty = $init }
        $($crate::thread_local! { $($rest)* })?
    };
}

/// Declares statics that a model makes anew for each of its executions:
/// `global! { static NAME: Type = constant expression; }`. Private to their module; use them by
/// reference (`NAME.method()`).
#[cfg(not(any(loom, shuttle)))]
#[macro_export]
macro_rules! global {
    ($($(#[$meta:meta])* static $name:ident: $ty:ty = $init:expr;)*) => {
        $($(#[$meta])* static $name: $ty = $init;)*
    };
}

/// As in the normal build, made anew for each execution.
#[cfg(any(loom, shuttle))]
#[macro_export]
macro_rules! global {
    ($($(#[$meta:meta])* static $name:ident: $ty:ty = $init:expr;)*) => {
        $crate::__private::lazy_static! { $(static ref $name: $ty = $init;)* }
    };
}
