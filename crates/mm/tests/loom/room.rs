//! Writes beside a nearly full store, over all interleavings: grants and looks never give out more room than there is.

// Outside the model: what any execution of it has seen.
use std::sync::atomic::AtomicBool as Flag;
use std::sync::atomic::Ordering::Relaxed;

use foliocache_mm::model::Room;
use foliocache_sync::model::explore;
use foliocache_sync::{Arc, thread};

#[test]
fn no_more_room_is_given_out_than_there_is() {
    static SEEN: [Flag; 2] = [const { Flag::new(false) }; 2];
    let [granted, refused] = &SEEN;
    explore(2, 100, move || {
        let room = Arc::new(Room::new(4));
        let writers = [1, 2].map(|bytes| {
            let room = Arc::clone(&room);
            thread::spawn(move || room.write(bytes))
        });
        // Of the 4 the first look grants a half of what is left.
        let mut written = u64::from(room.write(1)) + u64::from(room.write(1));
        for (writer, bytes) in writers.into_iter().zip([1, 2]) {
            written += u64::from(writer.join().unwrap()) * bytes;
        }
        let (dirty, of_grants) = room.taken();
        assert_eq!(dirty, written);
        assert!(dirty <= 4, "{dirty}");
        if of_grants > 0 {
            granted.store(true, Relaxed);
        }
        if dirty < 5 {
            refused.store(true, Relaxed);
        }
    });
    assert!(granted.load(Relaxed), "no execution took from a grant");
    assert!(refused.load(Relaxed), "no execution refused a write");
}
