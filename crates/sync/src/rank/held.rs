//! The list of locks that a thread holds, in debug builds.
//!
//! # Invariants
//!
//! An entry is added by the [`RankToken`](super::RankToken) that removes it again, on the same thread.
//! The list is a thread local, so nothing here is shared. A thread that is past the destruction of its
//! thread locals is not checked.

use super::{How, Rank};
use crate::cell::RefCell;
use std::panic::Location;

#[derive(Clone, Copy)]
struct HeldLock {
    id: u64,
    rank: Rank,
    site: &'static Location<'static>,
}

struct List {
    next_id: u64,
    held: Vec<HeldLock>,
}

crate::thread_local! {
    static LIST: RefCell<List> = const { RefCell::new(List { next_id: 0, held: Vec::new() }) };
}

fn inversion(list: &List, rank: Rank, how: How) -> Option<HeldLock> {
    let clashes = |held: &&HeldLock| match how {
        How::Ordered => held.rank >= rank,
        How::Nested => held.rank > rank,
        How::Try => false,
    };
    list.held
        .iter()
        .filter(clashes)
        .max_by_key(|held| held.rank)
        .copied()
}

/// Panics when this thread may not wait for a lock of `rank` now.
#[track_caller]
pub(super) fn check(rank: Rank, how: How) {
    let clash = LIST
        .try_with(|list| inversion(&list.borrow(), rank, how))
        .ok()
        .flatten();
    if let Some(held) = clash {
        report(rank, held, Location::caller());
    }
}

/// Checks, and adds an entry; returns its number.
#[track_caller]
pub(super) fn push(rank: Rank, how: How) -> u64 {
    check(rank, how);
    let site = Location::caller();
    LIST.try_with(|list| {
        let mut list = list.borrow_mut();
        let id = list.next_id;
        list.next_id += 1;
        list.held.push(HeldLock { id, rank, site });
        id
    })
    .unwrap_or(u64::MAX)
}

/// Takes the entry of that number off.
pub(super) fn remove(id: u64) {
    // A destroyed list holds nothing.
    let _ = LIST.try_with(|list| {
        let mut list = list.borrow_mut();
        if let Some(at) = list.held.iter().rposition(|held| held.id == id) {
            list.held.remove(at);
        }
    });
}

#[cold]
fn report(rank: Rank, held: HeldLock, site: &Location<'_>) {
    // Unwinding takes locks as it can; a second panic would hide the first.
    if crate::thread::panicking() {
        return;
    }
    let HeldLock {
        rank: held_rank,
        site: held_site,
        ..
    } = held;
    panic!(
        "lock rank inversion: taking {rank:?} at {site} while holding {held_rank:?}, \
         taken at {held_site}"
    );
}
