//! The models that shuttle runs, in one program.
#![cfg(shuttle)]

#[path = "../common/mod.rs"]
mod common;

mod dirfs;
mod file_locks;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// No other model runs meanwhile: the directories of a process are in a static, which their executions would share.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
