//! An open that relies on cached pages, beside reclaim, over all interleavings.

// Outside the model: what any execution of it has seen.
use std::sync::atomic::AtomicBool as Flag;
use std::sync::atomic::Ordering::Relaxed;

use foliocache_mm::model::Relied;
use foliocache_sync::model::explore;
use foliocache_sync::{Arc, thread};

#[test]
fn a_page_that_is_relied_on_is_not_taken_out() {
    static SEEN: [Flag; 2] = [const { Flag::new(false) }; 2];
    let [relied, refused] = &SEEN;
    explore(2, 5, move || {
        let file = Arc::new(Relied::default());
        let reclaim = {
            let file = Arc::clone(&file);
            thread::spawn(move || file.evict())
        };
        let relies = file.rely();
        reclaim.join().unwrap();
        assert!(!(relies && file.is_gone()));
        match relies {
            true => relied.store(true, Relaxed),
            false => refused.store(true, Relaxed),
        }
    });
    assert!(relied.load(Relaxed), "no execution relied on the page");
    assert!(refused.load(Relaxed), "no execution found it going");
}
