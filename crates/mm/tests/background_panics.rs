//! Background threads outlive a panic in what they call.
#![cfg(not(any(loom, shuttle)))]

mod common;

use common::{Store, file, pattern, read, storage, write};
use foliocache_mm::{GivenUp, Shrinker};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// A cache of metadata that holds all of the bound and panics when the reclaimer calls it, a few times.
#[derive(Default)]
struct Panicking {
    calls: AtomicU64,
}

const PANICS: u64 = 3;

impl Shrinker for Panicking {
    fn bytes(&self) -> u64 {
        1 << 30
    }

    fn shrink(&self, _: u64) -> GivenUp {
        if std::thread::current().name() != Some("foliocache-reclaim") {
            return GivenUp::default();
        }
        let before = self.calls.fetch_add(1, Ordering::Relaxed);
        assert!(before >= PANICS, "injected by the test");
        GivenUp::default()
    }
}

#[test]
fn the_reclaimer_outlives_panics_and_counts_them() {
    let (mm, bdi) = storage(8);
    let cache = Arc::new(Panicking::default());
    let weak: Weak<dyn Shrinker> = Arc::downgrade(&cache) as Weak<dyn Shrinker>;
    mm.add_shrinker(weak);
    let bytes = pattern(1, 0, 32 << 20);
    let store = Store::with(&bytes);
    let file = file(&bdi, &store);
    let start = Instant::now();
    // Reads of more than the bound keep waking the reclaimer.
    while cache.calls.load(Ordering::Relaxed) < PANICS + 3 {
        assert!(read(&file, 0, bytes.len()) == bytes);
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{:#?}",
            mm.stats()
        );
    }
    assert_eq!(mm.stats().background_panics, PANICS);
    write(&file, 0, &bytes);
    file.sync().expect("sync");
}
