//! The choice between std, loom and shuttle: the only file that names all three.
//!
//! # Model
//!
//! `imp` holds the types that [`crate::lock`] wraps; the public modules re-export the rest unchanged. No type here
//! adds state.

pub use std::sync::{Arc, Weak};

/// The types that the wrappers of this crate are made of.
pub(crate) mod imp {
    #[cfg(loom)]
    pub(crate) use loom::sync::{Condvar, Mutex, RwLock};
    #[cfg(loom)]
    pub use loom::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};
    #[cfg(shuttle)]
    pub(crate) use shuttle::sync::MutexGuard;
    #[cfg(shuttle)]
    pub(crate) use shuttle::sync::{Condvar, Mutex, RwLock};
    #[cfg(shuttle)]
    pub use shuttle::sync::{RwLockReadGuard, RwLockWriteGuard};
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) use std::sync::{Condvar, Mutex, RwLock};
    #[cfg(not(any(loom, shuttle)))]
    pub use std::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};
}

/// Atomic types and fences. `get_mut` is missing under loom; use a `Relaxed` load or store.
pub mod atomic {
    #[cfg(loom)]
    pub use loom::sync::atomic::*;
    #[cfg(shuttle)]
    pub use shuttle::sync::atomic::*;
    #[cfg(not(any(loom, shuttle)))]
    pub use std::sync::atomic::*;
}

/// Hints to the processor; in a model, a point at which another thread runs.
pub mod hint {
    #[cfg(loom)]
    pub use loom::hint::spin_loop;
    #[cfg(shuttle)]
    pub use shuttle::hint::spin_loop;
    #[cfg(not(any(loom, shuttle)))]
    pub use std::hint::spin_loop;
}

/// Threads. `scope` is missing under loom, and so is `JoinHandle::is_finished`.
pub mod thread {
    #[cfg(loom)]
    pub use loom::thread::{
        Builder, JoinHandle, LocalKey, Thread, ThreadId, current, park, spawn, yield_now,
    };
    #[cfg(shuttle)]
    pub use shuttle::thread::{
        Builder, JoinHandle, LocalKey, Scope, ScopedJoinHandle, Thread, ThreadId, current, park,
        scope, spawn, yield_now,
    };
    #[cfg(not(any(loom, shuttle)))]
    pub use std::thread::park_timeout;
    #[cfg(not(any(loom, shuttle)))]
    pub use std::thread::{
        Builder, JoinHandle, LocalKey, Scope, ScopedJoinHandle, Thread, ThreadId, current, park,
        scope, spawn, yield_now,
    };
    pub use std::thread::{available_parallelism, panicking};

    /// Parks. In a model it is woken, and never because the time is up.
    #[cfg(any(loom, shuttle))]
    pub fn park_timeout(_: std::time::Duration) {
        park();
    }
}

#[doc(hidden)]
pub mod __private {
    #[cfg(loom)]
    pub use loom::{lazy_static, thread_local};
    #[cfg(shuttle)]
    pub use shuttle::{lazy_static, thread_local};
    #[cfg(not(any(loom, shuttle)))]
    pub use std::thread_local;
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
