//! Buffers that reads are answered from.
//!
//! # Model
//!
//! A stack: the buffer used last is lent out next, because it is the one that the processor's
//! caches still hold. With a buffer a worker, each request went through memory that was cold, as
//! the kernel gives requests to waiting workers in turn.
//!
//! # Invariants
//!
//! 1. There are never more buffers than operations under way, so not more than workers.
//! 2. What is lent begins on a page: the kernel copies from it page by page.
//!
//! # Locking
//!
//! The lock protects the stack alone; nothing is called under it.

use crate::mount::MAX_REQUEST;
use foliocache_sync::Mutex;

const PAGE: usize = 4096;

/// Memory of a buffer: the largest request, and what it takes to begin on a page.
const BUFFER_BYTES: usize = MAX_REQUEST as usize + PAGE;

/// The buffers of one mount. They are kept until it ends.
#[derive(Default)]
pub(crate) struct Buffers {
    free: Mutex<Vec<Vec<u8>>>,
}

impl Buffers {
    /// Lends a buffer of `size` bytes out, at most [`MAX_REQUEST`]. It holds whatever was in it.
    pub(crate) fn with<R>(&self, size: usize, run: impl FnOnce(&mut [u8]) -> R) -> R {
        let lent = self.free.lock().pop();
        // Zeroed memory of this size comes untouched from the kernel: only what a request uses of
        // it is ever taken.
        let mut buffer = lent.unwrap_or_else(|| vec![0; BUFFER_BYTES]);
        let start = buffer.as_ptr().align_offset(PAGE);
        let result = run(&mut buffer[start..start + size]);
        self.free.lock().push(buffer);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buffer_used_last_is_lent_next() {
        let buffers = Buffers::default();
        let address = |buffer: &mut [u8]| buffer.as_ptr().addr();
        let (outer, inner) = buffers.with(1, |outer| {
            (address(outer), buffers.with(MAX_REQUEST as usize, address))
        });
        assert_ne!(outer, inner);
        assert_eq!((outer % PAGE, inner % PAGE), (0, 0));
        assert_eq!(buffers.with(PAGE, address), outer);
        assert_eq!(buffers.with(PAGE, address), outer);
        assert_eq!(buffers.free.lock().len(), 2);
    }
}
