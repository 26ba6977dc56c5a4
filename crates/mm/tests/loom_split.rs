//! Splitting a large folio over all interleavings, against readers and writers of its halves. Every
//! byte that counts is the file's: of the page that was asked for, and of pages that follow it in
//! the same folio.
#![cfg(loom)]
#![allow(missing_docs)]

// Outside the model: what any execution of it has seen.
use std::sync::atomic::AtomicBool as Flag;
use std::sync::atomic::Ordering::Relaxed;

use foliocache_mm::model::TwoPages;
use foliocache_sync::{Arc, thread};

const FIRST: u64 = 10;
const SECOND: u64 = 11;
const FOREIGN: u64 = 20;

fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(f);
}

fn read_beside_a_split(page: u64, seen: &'static [Flag; 2]) {
    let [whole, half] = seen;
    model(move || {
        let pages = TwoPages::new([FIRST, SECOND]);
        let reader = {
            let pages = Arc::clone(&pages);
            thread::spawn(move || pages.read_from(page))
        };
        pages.split();
        pages.remove_upper_and_reuse_frame(FOREIGN);
        match reader.join().unwrap().as_deref() {
            Some([FIRST, SECOND]) if page == 0 => whole.store(true, Relaxed),
            Some([FIRST]) if page == 0 => half.store(true, Relaxed),
            Some([SECOND]) if page == 1 => whole.store(true, Relaxed),
            None => half.store(true, Relaxed),
            other => panic!("page {page}: {other:?}"),
        }
    });
    assert!(whole.load(Relaxed), "no execution read before the split");
    assert!(half.load(Relaxed), "no execution read after the split");
}

#[test]
fn a_reader_of_the_lower_half_never_reads_past_it() {
    static SEEN: [Flag; 2] = [const { Flag::new(false) }; 2];
    read_beside_a_split(0, &SEEN);
}

#[test]
fn a_reader_of_the_upper_half_reads_it_or_nothing() {
    static SEEN: [Flag; 2] = [const { Flag::new(false) }; 2];
    read_beside_a_split(1, &SEEN);
}

#[test]
fn a_write_beside_a_split_is_not_lost() {
    model(|| {
        let pages = TwoPages::new([FIRST, SECOND]);
        let writer = {
            let pages = Arc::clone(&pages);
            thread::spawn(move || pages.write(1, SECOND + 1))
        };
        pages.split();
        writer.join().unwrap();
        assert_eq!(pages.read_from(1).as_deref(), Some(&[SECOND + 1][..]));
        assert_eq!(pages.read_from(0).as_deref(), Some(&[FIRST][..]));
    });
}
