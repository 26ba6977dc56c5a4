//! [`Durability`] over all interleavings: no caller is told that a change is durable before a sync of it has
//! succeeded.

use foliocache_sync::atomic::{AtomicU32, Ordering};
use foliocache_sync::durability::Durability;
use foliocache_sync::model::explore;
use foliocache_sync::{Arc, thread};
use std::sync::atomic::{AtomicUsize, Ordering as StdOrdering};

/// A store that takes changes at once and keeps those that a sync found.
#[derive(Default)]
struct Store {
    durability: Durability,
    /// Changes that were made.
    written: AtomicU32,
    /// Changes that survive a power cut.
    kept: AtomicU32,
    /// Syncs that fail, the first ones.
    failing: AtomicU32,
}

impl Store {
    fn change(&self) {
        self.written.fetch_add(1, Ordering::Relaxed);
        self.durability.changed();
    }

    fn sync(&self) -> Result<(), ()> {
        self.durability.sync(|| {
            let written = self.written.load(Ordering::Relaxed);
            let failing = self.failing.load(Ordering::Relaxed);
            if failing > 0 {
                self.failing.store(failing - 1, Ordering::Relaxed);
                return Err(());
            }
            self.kept.fetch_max(written, Ordering::Relaxed);
            Ok(())
        })
    }

    /// A sync as a caller sees it: success means that the writes before it are kept.
    fn checked_sync(&self) -> bool {
        let before = self.written.load(Ordering::Relaxed);
        let synced = self.sync().is_ok();
        if synced {
            assert!(self.kept.load(Ordering::Relaxed) >= before);
        }
        synced
    }
}

/// Runs a model, which must have at least `least` executions.
fn model(least: usize, f: impl Fn() + Sync + Send + 'static) {
    let executions = std::sync::Arc::new(AtomicUsize::new(0));
    let counter = executions.clone();
    explore(3, 20, move || {
        counter.fetch_add(1, StdOrdering::Relaxed);
        f();
    });
    let executions = executions.load(StdOrdering::Relaxed);
    assert!(executions >= least, "{executions} executions");
}

/// Runs both at once; neither in the first thread, whose steps before its first switch are not interleaved.
fn race<A: Send + 'static, B: Send + 'static>(
    store: &Arc<Store>,
    one: impl FnOnce(&Store) -> A + Send + 'static,
    two: impl FnOnce(&Store) -> B + Send + 'static,
) -> (A, B) {
    let (first, second) = (store.clone(), store.clone());
    let one = thread::spawn(move || one(&first));
    let two = thread::spawn(move || two(&second));
    (one.join().expect("one"), two.join().expect("two"))
}

#[test]
fn two_syncs_of_one_change_are_both_true() {
    model(20, || {
        let store = Arc::new(Store::default());
        store.change();
        let (one, two) = race(&store, Store::checked_sync, Store::checked_sync);
        assert!(one && two && store.durability.is_durable());
    });
}

#[test]
fn a_sync_beside_a_failing_one_is_true_and_a_failed_one_is_repeated() {
    model(20, || {
        let store = Arc::new(Store::default());
        store.failing.store(1, Ordering::Relaxed);
        store.change();
        let (one, two) = race(&store, Store::checked_sync, Store::checked_sync);
        if !one && !two {
            assert!(!store.durability.is_durable());
        }
        assert!(store.checked_sync() || store.checked_sync());
        assert!(store.durability.is_durable());
    });
}

#[test]
fn a_change_beside_a_sync_is_not_lost() {
    model(20, || {
        let store = Arc::new(Store::default());
        store.change();
        let changes_and_syncs = |store: &Store| {
            store.change();
            store.checked_sync()
        };
        race(&store, Store::checked_sync, changes_and_syncs);
        assert!(store.checked_sync());
        assert_eq!(store.kept.load(Ordering::Relaxed), 2);
    });
}
