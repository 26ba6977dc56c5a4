//! Orders of listings, look-ups and changes.

mod kernel;

use super::*;
use foliocache_sync::Arc;
use foliocache_sync::thread;

const OLD: NodeId = node(5);
const NEW: NodeId = node(6);

const fn node(ino: u64) -> NodeId {
    NodeId { ino, generation: 1 }
}

const V: &str = "v";

fn v() -> Place {
    Place::new(1, V.as_ref())
}

/// A listing that told `v`, and was sent.
fn listed(linking: &Linking, thread: u32, node: NodeId) {
    let telling = linking.begin(1, thread);
    let before = telling.answers(v());
    assert_eq!(telling.tell(v(), node, before), Tell::Believed);
    telling.sent();
}

#[test]
fn a_listing_that_a_look_up_overtook_is_not_believed() {
    let linking = Linking::new();
    let telling = linking.begin(1, 7);
    let before = telling.answers(v());
    assert_eq!(linking.answer(1, V.as_ref(), Some(NEW)), None);
    assert_eq!(telling.tell(v(), OLD, before), Tell::Unbelieved);
    let before = telling.answers(v());
    let told = telling.tell(v(), NEW, before);
    assert_eq!(told, Tell::Believed, "looked up after it");
}

#[test]
fn an_answer_that_was_given_before_overtakes_a_listing_too() {
    let linking = Linking::new();
    assert_eq!(linking.answer(1, V.as_ref(), Some(NEW)), None);
    let telling = linking.begin(1, 7);
    // The name led back to the old file for a moment.
    let before = telling.answers(v());
    assert_eq!(linking.answer(1, V.as_ref(), Some(NEW)), None);
    assert_eq!(telling.tell(v(), OLD, before), Tell::Unbelieved);
}

#[test]
fn an_equal_answer_does_not_overtake_a_listing() {
    let linking = Linking::new();
    assert_eq!(linking.answer(1, V.as_ref(), Some(NEW)), None);
    let telling = linking.begin(1, 7);
    let before = telling.answers(v());
    assert_eq!(linking.answer(1, V.as_ref(), Some(NEW)), None);
    assert_eq!(telling.tell(v(), NEW, before), Tell::Believed);
}

#[test]
fn a_look_up_is_answered_as_a_listing_that_is_on_its_way() {
    let linking = Linking::new();
    listed(&linking, 7, OLD);
    assert_eq!(linking.answer(1, V.as_ref(), Some(OLD)), None);
    assert_eq!(linking.answer(1, V.as_ref(), Some(NEW)), Some(OLD));
    assert_eq!(linking.answer(1, V.as_ref(), None), Some(OLD), "it is gone");
    assert_eq!(linking.answer(2, V.as_ref(), Some(NEW)), None, "elsewhere");
}

#[test]
fn a_listing_tells_the_same_as_another_one_on_its_way() {
    let linking = Linking::new();
    listed(&linking, 7, OLD);
    let telling = linking.begin(1, 8);
    let told = telling.tell(v(), NEW, telling.answers(v()));
    assert_eq!(told, Tell::Instead(OLD));
}

#[test]
fn names_are_entered_when_the_thread_asks_again_or_the_directory_is_locked() {
    let linking = Linking::new();
    listed(&linking, 7, OLD);
    drop(linking.begin(1, 8));
    assert_eq!(linking.answer(1, V.as_ref(), Some(NEW)), Some(OLD));
    drop(linking.begin(3, 7));
    assert_eq!(linking.answer(1, V.as_ref(), Some(NEW)), None);
    listed(&linking, 0, OLD);
    drop(linking.begin(1, 0));
    assert_eq!(
        linking.answer(1, V.as_ref(), Some(NEW)),
        Some(OLD),
        "other threads"
    );
    linking.is_locked(2);
    assert_eq!(linking.answer(1, V.as_ref(), Some(NEW)), Some(OLD));
    linking.is_locked(1);
    assert_eq!(linking.answer(1, V.as_ref(), Some(NEW)), None);
}

#[test]
fn what_was_not_sent_is_not_pending() {
    let linking = Linking::new();
    let telling = linking.begin(1, 7);
    let told = telling.tell(v(), OLD, telling.answers(v()));
    assert_eq!(told, Tell::Believed);
    drop(telling);
    assert_eq!(linking.answer(1, V.as_ref(), Some(NEW)), None);
}

#[test]
fn a_look_up_that_waits_is_answered_when_the_names_are_entered() {
    let linking = Arc::new(Linking::new());
    listed(&linking, 7, OLD);
    let waits = thread::spawn({
        let linking = Arc::clone(&linking);
        move || linking.answer(1, V.as_ref(), Some(NEW))
    });
    while linking.state.lock().stale.is_empty() {
        thread::yield_now();
    }
    linking.is_locked(1);
    // It waits no longer than its patience; a busy machine may let that pass.
    assert!([None, Some(OLD)].contains(&waits.join().unwrap()));
    assert_eq!(linking.answer(1, V.as_ref(), Some(NEW)), None);
}

#[test]
fn more_listings_than_are_kept_are_not_believed() {
    let linking = Linking::new();
    for thread in 0..LISTINGS as u32 {
        linking.begin(2, 100 + thread).sent();
    }
    let telling = linking.begin(1, 7);
    let told = telling.tell(v(), OLD, telling.answers(v()));
    assert_eq!(told, Tell::Unbelieved);
}
