//! Looks that no change of ours overtakes.

use super::{LONG, with_file};
use crate::coherence::LocalChange;
use crate::dirfs::DirFsOptions;
use std::sync::mpsc;
use std::thread;

#[test]
fn a_look_between_changes_is_the_last_word_until_it_ends() {
    let source = tempfile::tempdir().expect("a directory");
    let (_fs, node) = with_file(source.path(), DirFsOptions::default());
    let file = node.file();
    let under_way = file.begin_change(LocalChange::Data);
    let (began, next) = mpsc::channel();
    let (node, began) = (&node, &began);
    thread::scope(|scope| {
        let look = scope.spawn(move || {
            file.look_between_changes(|look| {
                let next = scope.spawn(move || {
                    let change = file.begin_change(LocalChange::Data);
                    began.send(()).expect("a receiver");
                    node.end_change(change, None);
                });
                let held = file.holds(look);
                // Attributes do not wait, and the look says so.
                let change = file.begin_change(LocalChange::Attributes);
                node.end_change(change, None);
                (held, file.holds(look), next)
            })
        });
        node.end_change(under_way, None);
        let (held, holds_still, next_change) = look.join().expect("no panic");
        assert!(held && !holds_still);
        next.recv_timeout(LONG).expect("it goes on");
        next_change.join().expect("no panic");
    });
}

/// As where the source hangs.
#[test]
fn a_look_that_waits_for_a_long_change_does_not_hold_up_others() {
    let source = tempfile::tempdir().expect("a directory");
    let (_fs, node) = with_file(source.path(), DirFsOptions::default());
    let file = node.file();
    let hangs = file.begin_change(LocalChange::Data);
    thread::scope(|scope| {
        let look = scope.spawn(|| file.look_between_changes(|look| file.holds(look)));
        let other = scope.spawn(|| {
            for _ in 0..3 {
                let change = file.begin_change(LocalChange::Data);
                node.end_change(change, None);
            }
        });
        other.join().expect("it ends beside the one that hangs");
        node.end_change(hangs, None);
        assert!(look.join().expect("no panic"));
    });
}
