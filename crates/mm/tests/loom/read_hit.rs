//! The read hit over all interleavings: a reader against a remover that gives the frame, the
//! descriptor or both to another file, between any two of the reader's steps. A byte that counts is
//! this file's, or the model fails; with one step of the protocol left out it must.

// Outside the model: what any execution of it has seen.
use std::sync::atomic::AtomicBool as Flag;
use std::sync::atomic::Ordering::Relaxed;

use foliocache_mm::model::{LeaveOut, OnePage};
use foliocache_sync::model::explore;
use foliocache_sync::{Arc, thread};

/// What this file has in the page, and what others have.
const OURS: u64 = 10;
const FOREIGN: u64 = 20;

/// Runs a reader beside `change`; it tells what it has read. Neither in the first thread: what that does
/// between a spawn and the next switch of threads counts for loom as done before, and is not interleaved.
fn read_beside(
    alone: bool,
    read: impl FnOnce(&OnePage) -> Option<u64> + Send + 'static,
    change: fn(&OnePage, u64),
) -> Option<u64> {
    let page = OnePage::new(OURS, true, alone);
    let reader = {
        let page = Arc::clone(&page);
        thread::spawn(move || read(&page))
    };
    let changer = thread::spawn(move || change(&page, FOREIGN));
    changer.join().unwrap();
    reader.join().unwrap()
}

/// The protocol as it is, for a page in a node of the index and for one in its head. It must find the page in some execution
/// and miss it in another, else the model shows nothing.
fn no_foreign_byte(change: fn(&OnePage, u64), seen: &'static [Flag; 2]) {
    let [found, missed] = seen;
    for alone in [false, true] {
        explore(3, 500, move || {
            match read_beside(alone, |page| page.read(), change) {
                Some(byte) => {
                    assert_eq!(byte, OURS, "a foreign byte");
                    found.store(true, Relaxed);
                }
                None => missed.store(true, Relaxed),
            }
        });
        assert!(found.swap(false, Relaxed), "no execution had a hit");
        assert!(missed.swap(false, Relaxed), "no execution had a miss");
    }
}

#[test]
fn a_frame_that_is_recycled_is_not_read() {
    static SEEN: [Flag; 2] = [Flag::new(false), Flag::new(false)];
    no_foreign_byte(OnePage::remove_and_reuse_frame, &SEEN);
}

#[test]
fn a_descriptor_that_is_recycled_is_not_read() {
    static SEEN: [Flag; 2] = [Flag::new(false), Flag::new(false)];
    no_foreign_byte(OnePage::remove_and_reuse_folio, &SEEN);
}

#[test]
fn a_descriptor_recycled_with_its_frame_is_not_read() {
    static SEEN: [Flag; 2] = [Flag::new(false), Flag::new(false)];
    no_foreign_byte(OnePage::remove_and_reuse_both, &SEEN);
}

#[test]
fn a_page_that_comes_back_is_not_read_before_it_is_filled() {
    static SEEN: [Flag; 2] = [const { Flag::new(false) }; 2];
    let refill = |page: &OnePage, foreign| page.remove_and_refill(foreign, OURS);
    no_foreign_byte(refill, &SEEN);
}

#[test]
fn a_folio_that_moves_is_read_in_one_of_its_frames() {
    static SEEN: [Flag; 2] = [const { Flag::new(false) }; 2];
    no_foreign_byte(OnePage::migrate, &SEEN);
}

#[test]
fn a_folio_that_is_uptodate_has_its_bytes() {
    explore(3, 60, || {
        let page = OnePage::new(FOREIGN, false, true);
        let reader = {
            let page = Arc::clone(&page);
            thread::spawn(move || page.read())
        };
        let filler = thread::spawn(move || page.fill(OURS));
        filler.join().unwrap();
        let byte = reader.join().unwrap();
        assert!(byte.is_none() || byte == Some(OURS), "{byte:?}");
    });
}

/// Whether a reader that leaves a step out reads a foreign byte in some execution.
fn canary(leave_out: LeaveOut, change: fn(&OnePage, u64), seen: &'static Flag) {
    explore(3, 20, move || {
        let byte = read_beside(true, move |page| page.read_broken(leave_out), change);
        if byte == Some(FOREIGN) {
            seen.store(true, Relaxed);
        }
    });
}

#[test]
fn canary_without_the_second_look_a_recycled_descriptor_is_read() {
    static SEEN: Flag = Flag::new(false);
    canary(LeaveOut::SecondLook, OnePage::remove_and_reuse_both, &SEEN);
    assert!(SEEN.load(Relaxed), "the models above would miss it");
}

#[test]
fn canary_without_the_fence_a_recycled_frame_is_read() {
    static SEEN: Flag = Flag::new(false);
    canary(LeaveOut::Fence, OnePage::remove_and_reuse_frame, &SEEN);
    assert!(SEEN.load(Relaxed), "the models above would miss it");
}

#[test]
fn canary_without_validation_a_recycled_frame_is_read() {
    static SEEN: Flag = Flag::new(false);
    canary(LeaveOut::Validation, OnePage::remove_and_reuse_frame, &SEEN);
    assert!(SEEN.load(Relaxed), "the models above would miss it");
}
