//! The folio lock and the count of holders, over all interleavings. A
//! wake-up that is lost shows itself as a deadlock.
#![allow(unsafe_code, reason = "the cells whose accesses the checker judges")]

use foliocache_mm::model::OnePage;
use foliocache_sync::cell::UnsafeCell;
use foliocache_sync::model::explore;
use foliocache_sync::{Arc, thread};

/// A value that the checker sees accessed.
struct Watched(UnsafeCell<u32>);

// SAFETY: the protocol under test, which is what the model judges.
unsafe impl Send for Watched {}
// SAFETY: as above.
unsafe impl Sync for Watched {}

impl Watched {
    fn new() -> Arc<Self> {
        Arc::new(Self(UnsafeCell::new(0)))
    }

    fn read(&self) -> u32 {
        // SAFETY: the caller's protocol; the checker reports a race.
        self.0.with(|value| unsafe { *value })
    }

    fn add(&self, n: u32) {
        // SAFETY: as above.
        self.0.with_mut(|value| unsafe { *value += n });
    }
}

fn spawn(
    page: &Arc<OnePage>,
    value: &Arc<Watched>,
    run: impl FnOnce(&OnePage, &Watched) + Send + 'static,
) -> thread::JoinHandle<()> {
    let (page, value) = (Arc::clone(page), Arc::clone(value));
    thread::spawn(move || run(&page, &value))
}

#[test]
fn the_lock_excludes_and_wakes_two() {
    explore(3, 20, || {
        let (page, value) = (OnePage::new(0, true, true), Watched::new());
        let lock = |page: &OnePage, value: &Watched| page.with_lock(|| value.add(1));
        let both = [spawn(&page, &value, lock), spawn(&page, &value, lock)];
        for one in both {
            one.join().unwrap();
        }
        assert_eq!(page.with_lock(|| value.read()), 2);
    });
}

#[test]
fn the_lock_excludes_and_wakes_three() {
    explore(2, 200, || {
        let (page, value) = (OnePage::new(0, true, true), Watched::new());
        let lock = |page: &OnePage, value: &Watched| page.with_lock(|| value.add(1));
        let all = [(); 3].map(|()| spawn(&page, &value, lock));
        for one in all {
            one.join().unwrap();
        }
        assert_eq!(page.with_lock(|| value.read()), 3);
    });
}

/// One thread takes the last folio out of a file that another drops: the file's memory is not
/// touched after it is free.
fn drop_beside_eviction(wait: bool) {
    explore(3, 400, move || {
        let (page, file) = (OnePage::new(0, true, true), Watched::new());
        let reclaim = spawn(&page, &file, |page, file| {
            page.evict(|| {
                file.read();
            });
        });
        let owner = spawn(&page, &file, move |page, file| {
            if wait {
                page.empty_and_wait();
            }
            // Freeing is a write to all of it.
            file.add(1);
        });
        reclaim.join().unwrap();
        owner.join().unwrap();
    });
}

#[test]
fn a_file_lives_as_long_as_reclaim_holds_it() {
    drop_beside_eviction(true);
}

#[test]
#[should_panic]
fn canary_a_file_that_does_not_wait_is_freed_under_reclaim() {
    drop_beside_eviction(false);
}
