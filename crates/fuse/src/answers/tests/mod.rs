//! Answers that overlap, and the thread that tells of stale attributes.

mod kernel;

use super::*;
use foliocache_sync::Arc;
use foliocache_sync::atomic::{AtomicU32, Ordering};
use foliocache_sync::thread;

const OLD: Print = Print(5);
const NEW: Print = Print(6);

/// The last answer about an inode, with a count of its own.
#[derive(Default)]
struct Last(Answered, Changes);

impl Last {
    /// Was not believed.
    fn unbelieved(print: Print) -> Last {
        let mut last = Last::default();
        last.0.unbelieved(&last.1, print);
        last
    }

    fn next_asked(&mut self, print: Print, believed: bool, asked: Asked) -> Option<bool> {
        self.0.next(&self.1, print, believed, asked)
    }

    /// A request of a thread that begins now.
    fn asked(&self, thread: u32) -> Asked {
        Asked {
            began: self.1.now(),
            thread,
            is_first: true,
        }
    }

    /// Each time to another thread.
    fn next(&mut self, print: Print, believed: bool) -> Option<bool> {
        self.next_asked(print, believed, self.asked(0))
    }
}

#[test]
fn an_answer_that_differs_from_one_that_is_not_believed_is_believed() {
    let mut last = Last::unbelieved(OLD);
    assert_eq!(last.next(NEW, true), Some(true));
}

#[test]
fn an_answer_that_differs_from_a_believed_one_contradicts_it_until_the_kernel_is_told() {
    let mut last = Last::unbelieved(OLD);
    assert_eq!(last.next(OLD, true), Some(true));
    assert_eq!(last.next(OLD, false), Some(false));
    assert_eq!(last.next(NEW, true), None);
    assert_eq!(last.next(NEW, false), None, "not told");
    last.0.unbelieved(&last.1, NEW);
    assert_eq!(last.next(NEW, true), Some(true));
}

#[test]
fn a_thread_has_entered_what_it_alone_was_told_in_an_earlier_reply() {
    let mut last = Last::default();
    let mut next = |print, thread, is_first| {
        let asked = Asked {
            is_first,
            ..last.asked(thread)
        };
        last.next_asked(print, true, asked)
    };
    assert_eq!(next(OLD, 7, true), Some(true));
    assert_eq!(next(NEW, 7, false), None, "the same reply");
    assert_eq!(next(NEW, 7, true), Some(true));
    assert_eq!(
        next(NEW, 8, true),
        None,
        "8 may have asked before 7 entered OLD"
    );
}

#[test]
fn an_answer_to_several_threads_is_entered_after_a_second_only() {
    let mut last = Last::default();
    let mut next = |print, thread| last.next_asked(print, true, last.asked(thread));
    assert_eq!(next(OLD, 7), Some(true));
    assert_eq!(next(OLD, 8), Some(true));
    assert_eq!(next(NEW, 7), None);
    assert_eq!(next(NEW, 8), None);
}

#[test]
fn an_answer_that_was_looked_up_before_a_different_one_is_not_believed() {
    let mut last = Last::unbelieved(OLD);
    let early = last.asked(7);
    assert_eq!(last.next(NEW, false), Some(false));
    assert_eq!(last.next_asked(OLD, true, early), Some(false));
    assert_eq!(last.next_asked(OLD, true, early), Some(false), "again");
    assert_eq!(last.next(OLD, true), Some(true), "looked up now");
}

#[test]
fn an_old_answer_is_no_longer_under_way() {
    let mut last = Last::unbelieved(OLD);
    assert_eq!(last.next(OLD, true), Some(true));
    last.0.at = last.0.at.wrapping_sub(TTL.as_millis() as u32);
    assert_eq!(last.next(NEW, true), Some(true));
}

/// Runs `stale` with a kernel that knows the inode from the `known`th time on.
fn told(known: u32) -> (bool, u32) {
    let stale = Arc::new(Stale::default());
    let times = Arc::new(AtomicU32::new(0));
    let thread = thread::spawn({
        let (stale, times) = (Arc::clone(&stale), Arc::clone(&times));
        move || {
            stale.run(|ino| {
                assert_eq!(ino, 5);
                // Relaxed: read after the thread was joined.
                match times.fetch_add(1, Ordering::Relaxed) + 1 < known {
                    true => Err(io::ErrorKind::NotFound.into()),
                    false => Ok(()),
                }
            });
        }
    });
    let told = stale.tell(5);
    assert!(stale.state.lock().inodes.is_empty());
    stale.stop();
    thread.join().unwrap();
    (told, times.load(Ordering::Relaxed))
}

#[test]
fn the_kernel_is_told_of_an_inode_until_it_knows_it() {
    // A busy machine may let the patience pass.
    assert!([(true, 1), (false, 1), (false, 0)].contains(&told(1)));
    let (known, times) = told(3);
    assert!(!known || times >= 3);
}

#[test]
fn an_answer_waits_no_longer_than_its_patience_for_an_unknown_inode() {
    assert!(!told(u32::MAX).0);
}

#[test]
fn an_answer_waits_for_a_message_that_began_after_it() {
    let stale = Stale::default();
    let mut state = stale.state.lock();
    state.inodes.insert(5, 1);
    state.withdraw(5, 0);
    assert!(state.inodes.contains_key(&5));
    state.withdraw(5, 1);
    assert!(state.inodes.is_empty());
}

#[test]
fn prints_differ_by_what_a_change_changes() {
    let attr = |size, perm| FileAttr {
        size,
        perm,
        ..crate::entry::Entry::absent(Duration::ZERO).attr
    };
    assert_eq!(Print::of(&attr(1, 2)), Print::of(&attr(1, 2)));
    assert_ne!(Print::of(&attr(1, 2)), Print::of(&attr(2, 2)));
    assert_ne!(Print::of(&attr(1, 2)), Print::of(&attr(1, 3)));
    let read = FileAttr {
        atime: std::time::SystemTime::now(),
        ..attr(1, 2)
    };
    assert_eq!(Print::of(&attr(1, 2)), Print::of(&read));
}
