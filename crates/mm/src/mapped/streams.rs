//! Where faults of a window are expected next.
//!
//! # Model
//!
//! A fault that goes on where the last one of a stream ended maps twice as much as that. Stores at random places
//! begin streams that never go on, and dirty one page each.

use foliocache_sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Streams of a window that are told apart.
const STREAMS: usize = 4;

/// Where faults are expected next, and how many pages they will be given.
///
/// # Memory ordering
///
/// Relaxed: guesses.
#[derive(Default)]
pub(crate) struct Streams {
    next: [AtomicU64; STREAMS],
    oldest: AtomicU32,
}

impl Streams {
    /// Pages that a fault at `page` is given, at most 2^`most`: twice as many as the last of its stream, or
    /// 2^`first`.
    pub(crate) fn expect(&self, page: u64, first: u32, most: u32) -> Stream<'_> {
        for slot in &self.next {
            let seen = slot.load(Ordering::Relaxed);
            if seen >> 8 == page && seen != 0 {
                let order = ((seen & 0xff) as u32 + 1).min(most);
                return Stream { slot, order };
            }
        }
        let oldest = self.oldest.fetch_add(1, Ordering::Relaxed) as usize % STREAMS;
        Stream {
            slot: &self.next[oldest],
            order: first.min(most),
        }
    }
}

/// A fault's place in a stream.
pub(crate) struct Stream<'a> {
    slot: &'a AtomicU64,
    pub(crate) order: u32,
}

impl Stream<'_> {
    /// Notes that the pages before `next` are mapped now.
    pub(crate) fn note(&self, next: u64) {
        self.slot
            .store(next << 8 | u64::from(self.order), Ordering::Relaxed);
    }
}
