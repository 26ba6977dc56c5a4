//! Scans of a file larger than the cache, while another is in use: the pages in use stay, whatever way the scan takes.

use crate::common::{Disk, PAGE};
use foliocache::{File, MapAccess, PinMode};
use foliocache_sim::Rng;
use std::fs;
use std::sync::atomic::Ordering;

const HOT_PAGES: u64 = 3072;
const COLD_PAGES: u64 = 24_576;

/// Pages of a scan between two looks at the pages in use.
const TURN: u64 = 256;

fn read(file: &File, page: u64, len: usize) {
    let mut buffer = [0; PAGE];
    let read = file.read_at(&mut buffer[..len], page * PAGE as u64);
    assert_eq!(read.unwrap(), len);
    assert_eq!(buffer[len - 1], 7);
}

/// Runs a scan of [`COLD_PAGES`] steps, of a file of as many pages, and looks at the pages of another file in between.
fn scan(step: impl FnOnce(File) -> Box<dyn FnMut(u64)>) {
    let disk = Disk::new(32);
    for (name, pages) in [("hot", HOT_PAGES), ("cold", COLD_PAGES)] {
        fs::write(disk.in_source(name), vec![7; pages as usize * PAGE]).unwrap();
    }
    let hot = disk.dir.open("hot").unwrap();
    for _ in 0..3 {
        (0..HOT_PAGES).for_each(|page| read(&hot, page, PAGE));
    }
    let before = hot.stats().unwrap().missed_pages;
    let mut options = disk.dir.open_options();
    let mut step = step(options.read(true).write(true).open("cold").unwrap());
    let mut rng = Rng::new(1);
    let mut looks = 0;
    for at in 0..COLD_PAGES {
        step(at);
        if at % TURN == 0 {
            for _ in 0..64 {
                read(&hot, rng.below(HOT_PAGES), PAGE);
                looks += 1;
            }
        }
    }
    let missed = hot.stats().unwrap().missed_pages - before;
    assert!(missed <= looks / 20, "{missed} of {looks} looks missed");
}

#[test]
fn a_scan_by_pages_keeps_the_working_set() {
    scan(|file| Box::new(move |at| read(&file, at, PAGE)));
}

#[test]
fn a_scan_of_the_head_of_each_page_keeps_the_working_set() {
    scan(|file| Box::new(move |at| read(&file, at, 64)));
}

#[test]
fn a_scan_backwards_keeps_the_working_set() {
    scan(|file| Box::new(move |at| read(&file, COLD_PAGES - 1 - at, PAGE)));
}

#[test]
fn eight_scans_through_one_handle_keep_the_working_set() {
    let part = COLD_PAGES / 8;
    scan(|file| Box::new(move |at| read(&file, at % 8 * part + at / 8, PAGE)));
}

#[test]
fn a_scan_by_pins_keeps_the_working_set() {
    scan(|file| {
        Box::new(move |at| {
            let bytes = at * PAGE as u64..(at + 1) * PAGE as u64;
            drop(file.pin(bytes, PinMode::READ).unwrap());
        })
    });
}

#[test]
fn a_scan_by_views_keeps_the_working_set() {
    scan(|file| {
        Box::new(move |at| {
            let pos = at * PAGE as u64;
            assert_eq!(file.view(pos..pos + 100).unwrap()[0], 7);
        })
    });
}

#[test]
fn a_scan_beside_random_reads_through_one_handle_keeps_the_working_set() {
    let mut rng = Rng::new(2);
    scan(|file| {
        Box::new(move |at| {
            read(&file, at, PAGE);
            // Rarely: pages that both of them read are indeed used twice.
            if at % 4 == 0 {
                read(&file, rng.below(COLD_PAGES), PAGE);
            }
        })
    });
}

fn scan_by_loads(page: impl Fn(u64) -> u64 + 'static) {
    scan(|file| {
        let mapping = file.map(.., MapAccess::ReadWrite).unwrap();
        Box::new(move |at| {
            let bytes = mapping.as_atomics().unwrap();
            let byte = &bytes[page(at) as usize * PAGE];
            assert_eq!(byte.load(Ordering::Relaxed), 7);
        })
    });
}

#[test]
fn a_scan_by_loads_keeps_the_working_set() {
    scan_by_loads(|at| at);
}

#[test]
fn a_scan_by_loads_backwards_keeps_the_working_set() {
    scan_by_loads(|at| COLD_PAGES - 1 - at);
}
