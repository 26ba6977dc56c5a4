//! The order is checked, and a panic names both places; an attempt that does not wait is not
//! checked.

use super::*;
#[cfg(debug_assertions)]
use crate::seqcount::SeqCount;
#[cfg(debug_assertions)]
use std::panic::{AssertUnwindSafe, catch_unwind};

#[cfg(debug_assertions)]
fn panic_message(f: impl FnOnce()) -> Option<String> {
    let payload = catch_unwind(AssertUnwindSafe(f)).err()?;
    Some(
        payload
            .downcast_ref::<String>()
            .cloned()
            .unwrap_or_else(|| {
                payload
                    .downcast_ref::<&str>()
                    .map(|text| (*text).to_owned())
                    .unwrap_or_default()
            }),
    )
}

#[test]
fn the_order_of_the_list_is_allowed() {
    let outer = RankedMutex::<{ Rank::IRwsem as u8 }, _>::new(());
    let inner = RankedRwLock::<{ Rank::XaLock as u8 }, _>::new(1);
    let _outer = outer.lock();
    let _bit = acquire(Rank::FolioLock, How::Ordered);
    let mut inner = inner.write();
    *inner += 1;
    let _leaf = acquire(Rank::Leaf, How::Ordered);
}

#[cfg(debug_assertions)]
#[test]
fn an_inversion_names_both_ranks_and_both_places() {
    let outer = RankedMutex::<{ Rank::XaLock as u8 }, _>::new(());
    let inner = RankedMutex::<{ Rank::LruLock as u8 }, _>::new(());
    let held_at = line!() + 1;
    let _inner = inner.lock();
    let message = panic_message(|| drop(outer.lock())).expect("it panics");
    assert!(message.contains("taking XaLock at"), "{message}");
    assert!(
        message.contains("while holding LruLock, taken at"),
        "{message}"
    );
    assert_eq!(message.matches(file!()).count(), 2, "{message}");
    assert!(
        message.contains(&format!("{}:{held_at}:", file!())),
        "{message}"
    );
}

#[cfg(debug_assertions)]
#[test]
fn no_lock_is_taken_while_a_sequence_counter_is_odd() {
    let lock = RankedMutex::<{ Rank::Dentry as u8 }, _>::new(());
    let stripe = RankedMutex::<{ Rank::HashBucket as u8 }, _>::new(());
    let (name, moves) = (SeqCount::new(), SeqCount::new());
    let mut guard = lock.lock();
    let section = name.write(&mut guard);
    assert!(panic_message(|| drop(stripe.lock())).is_some());
    assert!(panic_message(|| _ = name.read_begin()).is_some());
    drop(section);
    let _section = moves.write_ranked(&mut guard, Rank::DentryRename);
    drop(stripe.lock());
}

#[cfg(debug_assertions)]
#[test]
fn the_same_rank_twice_needs_an_order() {
    let first = acquire(Rank::FolioLock, How::Ordered);
    assert!(panic_message(|| drop(acquire(Rank::FolioLock, How::Ordered))).is_some());
    let second = acquire(Rank::FolioLock, How::Nested);
    // Release in any order.
    drop(first);
    drop(second);
    drop(acquire(Rank::FolioLock, How::Ordered));
    let _leaf = acquire(Rank::Leaf, How::Ordered);
    assert!(panic_message(|| drop(acquire(Rank::FolioLock, How::Nested))).is_some());
}

#[cfg(debug_assertions)]
#[test]
fn an_attempt_may_be_out_of_order_and_counts_afterwards() {
    let lru = RankedMutex::<{ Rank::LruLock as u8 }, _>::new(());
    let folio = RankedMutex::<{ Rank::FolioLock as u8 }, _>::new(());
    let held = lru.lock();
    let tried = folio.try_lock().expect("it is free");
    drop(held);
    assert!(panic_message(|| drop(acquire(Rank::InvalidateLock, How::Ordered))).is_some());
    drop(tried);
    drop(acquire(Rank::InvalidateLock, How::Ordered));
}

#[cfg(debug_assertions)]
#[test]
fn an_inversion_leaves_the_list_as_it_was() {
    let held = acquire(Rank::Leaf, How::Ordered);
    assert!(panic_message(|| might_lock(Rank::Frames)).is_some());
    assert!(panic_message(|| drop(acquire(Rank::Frames, How::Ordered))).is_some());
    drop(held);
    might_lock(Rank::Namespace);
}

#[test]
fn a_disowned_lock_is_off_the_list() {
    acquire(Rank::Leaf, How::Ordered).disown();
    drop(acquire(Rank::Namespace, How::Ordered));
}

#[cfg(debug_assertions)]
#[test]
fn sleeping_locks_are_refused_in_a_read_section() {
    let sleeping = RankedMutex::<{ Rank::InvalidateLock as u8 }, _>::new(());
    let short = RankedMutex::<{ Rank::XaLock as u8 }, _>::new(());
    let read = crate::rcu::read_lock();
    drop(short.lock());
    assert!(panic_message(|| drop(sleeping.lock())).is_some());
    drop(sleeping.try_lock().expect("an attempt does not sleep"));
    drop(read);
    drop(sleeping.lock());
}

#[test]
fn a_condvar_keeps_the_rank() {
    let lock = RankedMutex::<{ Rank::Budget as u8 }, _>::new(false);
    let state = std::sync::Arc::new((lock, Condvar::new()));
    let other = std::sync::Arc::clone(&state);
    let waker = std::thread::spawn(move || {
        *other.0.lock() = true;
        other.1.notify_all();
    });
    let mut guard = state.0.lock();
    while !*guard {
        guard = state.1.wait_ranked(guard);
    }
    #[cfg(debug_assertions)]
    assert!(panic_message(|| drop(acquire(Rank::Frames, How::Ordered))).is_some());
    drop(guard);
    drop(acquire(Rank::Frames, How::Ordered));
    waker.join().expect("the waker does not panic");
}

#[cfg(not(debug_assertions))]
#[test]
fn release_builds_keep_no_list() {
    assert_eq!(size_of::<RankToken>(), 0);
}

#[test]
fn a_thread_that_holds_a_lock_is_inside_a_call() {
    use foliocache_sys::inside::is_inside;
    let lock = RankedRwLock::<{ Rank::Leaf as u8 }, _>::new(());
    assert!(!is_inside());
    let shared = lock.read();
    assert!(is_inside());
    drop(shared);
    assert!(!is_inside());
    let token = acquire(Rank::FolioLock, How::Try);
    assert!(is_inside());
    token.disown();
    assert!(!is_inside());
}

#[test]
fn a_rank_in_the_type_takes_no_memory_and_is_checked() {
    type Outer = RankedMutex<{ Rank::IRwsem as u8 }, u32>;
    assert_eq!(size_of::<Outer>(), size_of::<Mutex<u32>>());
    let (outer, leaf) = (Outer::default(), LeafMutex::new(1));
    {
        let _outer = outer.lock();
        assert_eq!(*leaf.lock(), 1);
    }
    let other = LeafMutex::new(2);
    let held = leaf.lock();
    assert_eq!(*other.lock_nested() + *held, 3);
    assert!(other.try_lock().is_some());
    #[cfg(debug_assertions)]
    {
        let message = panic_message(|| drop(outer.lock())).expect("it panics");
        assert!(message.contains("taking IRwsem at"), "{message}");
        assert!(message.contains("while holding Leaf"), "{message}");
    }
}
