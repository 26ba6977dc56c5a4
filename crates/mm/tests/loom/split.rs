//! Splitting a large folio over all interleavings, against readers and writers of its halves. Every
//! byte that counts is the file's: of the page that was asked for, and of pages that follow it in
//! the same folio.

// Outside the model: what any execution of it has seen.
use std::sync::atomic::AtomicBool as Flag;
use std::sync::atomic::Ordering::Relaxed;

use foliocache_mm::model::{OUTSIDE, TwoPages};
use foliocache_sync::model::explore;
use foliocache_sync::{Arc, thread};

const FIRST: u64 = 10;
const SECOND: u64 = 11;
const FOREIGN: u64 = 20;

#[test]
fn a_reader_of_the_lower_half_never_reads_past_it() {
    static SEEN: [Flag; 2] = [const { Flag::new(false) }; 2];
    let [whole, half] = &SEEN;
    explore(2, 400, move || {
        let pages = TwoPages::new([FIRST, SECOND], 0);
        let reader = {
            let pages = Arc::clone(&pages);
            thread::spawn(move || pages.read_from(0))
        };
        let splitter = thread::spawn(move || {
            pages.split();
            pages.remove_upper_and_reuse_frame(FOREIGN);
        });
        splitter.join().unwrap();
        match reader.join().unwrap().as_deref() {
            Some([FIRST, SECOND]) => whole.store(true, Relaxed),
            Some([FIRST]) => half.store(true, Relaxed),
            None => {}
            other => panic!("{other:?}"),
        }
    });
    assert!(whole.load(Relaxed), "no execution read before the split");
    assert!(half.load(Relaxed), "no execution read after the split");
}

/// What becomes of the upper half later is what becomes of any folio: `loom_read_hit` has that.
#[test]
fn a_reader_of_the_upper_half_reads_it_or_nothing() {
    static SEEN: Flag = Flag::new(false);
    explore(2, 300, || {
        let pages = TwoPages::new([FIRST, SECOND], 0);
        let reader = {
            let pages = Arc::clone(&pages);
            thread::spawn(move || pages.read_from(1))
        };
        let splitter = thread::spawn(move || pages.split());
        splitter.join().unwrap();
        match reader.join().unwrap().as_deref() {
            Some([SECOND]) => SEEN.store(true, Relaxed),
            None => {}
            other => panic!("{other:?}"),
        }
    });
    assert!(SEEN.load(Relaxed), "no execution had a hit");
}

#[test]
fn a_write_beside_a_split_is_not_lost() {
    explore(2, 50, || {
        let pages = TwoPages::new([FIRST, SECOND], 0);
        let writer = {
            let pages = Arc::clone(&pages);
            thread::spawn(move || pages.write(1, SECOND + 1))
        };
        let splitter = {
            let pages = Arc::clone(&pages);
            thread::spawn(move || pages.split())
        };
        splitter.join().unwrap();
        writer.join().unwrap();
        assert_eq!(pages.read_from(1).as_deref(), Some(&[SECOND + 1][..]));
        assert_eq!(pages.read_from(0).as_deref(), Some(&[FIRST][..]));
    });
}

/// What a reader gets that saw the folio of two pages and meets the frame of its descriptor's next
/// use, which has one page, in the last active frame.
fn read_beside_a_smaller_folio(
    spare: usize,
    read: fn(&TwoPages) -> Option<Vec<u64>>,
) -> Option<Vec<u64>> {
    let pages = TwoPages::new([FIRST, SECOND], spare);
    let reader = {
        let pages = Arc::clone(&pages);
        thread::spawn(move || read(&pages))
    };
    let last = 1 + spare as u32;
    let remover = thread::spawn(move || pages.remove_both_and_reuse_folio(last));
    remover.join().unwrap();
    reader.join().unwrap()
}

/// Frame 1 is not aligned to a folio of two pages, frame 2 is.
const SPARE: [usize; 2] = [0, 1];

#[test]
fn a_reader_touches_no_frame_past_a_smaller_folio() {
    for spare in SPARE {
        explore(2, 1000, move || {
            let bytes = read_beside_a_smaller_folio(spare, |pages| pages.read_from(0));
            match bytes.as_deref() {
                None | Some([FIRST, SECOND]) => {}
                other => panic!("{other:?}"),
            }
        });
    }
}

#[test]
fn canary_without_the_look_after_the_frame_a_reader_passes_a_smaller_folio() {
    static OUT: [Flag; 2] = [const { Flag::new(false) }; 2];
    for spare in SPARE {
        explore(2, 400, move || {
            let bytes = read_beside_a_smaller_folio(spare, TwoPages::read_broken);
            if bytes.as_deref() == Some(&[OUTSIDE]) {
                OUT[spare].store(true, Relaxed);
            }
        });
        assert!(OUT[spare].load(Relaxed), "the model above would miss it");
    }
}
