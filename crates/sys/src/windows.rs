//! Addresses of the process whose faults threads of a cache resolve.
//!
//! # Model
//!
//! A touch of such a window waits for a thread that may need a lock which the toucher holds. A holder of such a
//! lock asks [`overlaps`] before it touches its caller's memory. Memory outside the span of all areas is recognised
//! at once.
//!
//! # Locking
//!
//! `AREAS` protects itself; a leaf.
//!
//! # Memory ordering
//!
//! `LOWEST` and `HIGHEST` are `Relaxed`: an address in an area was given to the program after the announcement, on a
//! way that orders the two. Each store leaves every area that is announced in the span.

use crate::lock::{Mutex, lock};
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};

static AREAS: Mutex<Vec<Range<usize>>> = Mutex::new(Vec::new());
/// The lowest address of an area.
static LOWEST: AtomicUsize = AtomicUsize::new(usize::MAX);
/// The end of the highest area.
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

/// The area is announced until it is dropped.
#[derive(Debug)]
#[must_use]
pub struct Announced(Range<usize>);

/// Announces an area, before the program learns an address in it.
pub fn announce(area: Range<usize>) -> Announced {
    let mut areas = lock(&AREAS);
    areas.push(area.clone());
    publish(&areas);
    Announced(area)
}

/// Whether a range touches an area. Two loads; a lock within the span of the areas.
#[inline]
pub fn overlaps(ptr: *const u8, len: usize) -> bool {
    let start = ptr.addr();
    start < HIGHEST.load(Ordering::Relaxed)
        && start.saturating_add(len) > LOWEST.load(Ordering::Relaxed)
        && overlaps_one(start, len)
}

#[cold]
fn overlaps_one(start: usize, len: usize) -> bool {
    let overlaps = |area: &Range<usize>| start < area.end && start.saturating_add(len) > area.start;
    lock(&AREAS).iter().any(overlaps)
}

fn publish(areas: &[Range<usize>]) {
    let lowest = areas.iter().map(|area| area.start).min();
    let highest = areas.iter().map(|area| area.end).max();
    LOWEST.store(lowest.unwrap_or(usize::MAX), Ordering::Relaxed);
    HIGHEST.store(highest.unwrap_or(0), Ordering::Relaxed);
}

impl Drop for Announced {
    fn drop(&mut self) {
        let mut areas = lock(&AREAS);
        if let Some(at) = areas.iter().position(|area| *area == self.0) {
            areas.swap_remove(at);
        }
        publish(&areas);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr::without_provenance;

    #[test]
    fn a_range_overlaps_the_areas_that_are_announced() {
        let check = |start: usize, len| overlaps(without_provenance(start), len);
        assert!(!check(0, usize::MAX));
        let low = announce(0x10_0000..0x20_0000);
        let high = announce(0x40_0000..0x50_0000);
        assert!(check(0x10_0000, 1) && check(0x4f_ffff, 1));
        assert!(check(0, usize::MAX) && check(0x8_0000, 0x8_0001));
        assert!(!check(0x8_0000, 0x8_0000) && !check(0x50_0000, 0x1000));
        assert!(!check(0x30_0000, 1), "between the two");
        drop(low);
        assert!(!check(0x10_0000, 1) && check(0x40_0000, 1));
        drop(high);
        assert!(!check(0, usize::MAX));
    }
}
