//! Buffers for the answers to reads.
//!
//! # Model
//!
//! A stack: the buffer used last is used next, because it is the one that the processor's caches
//! still hold. With a buffer for each thread, each request went through memory that was cold,
//! because the kernel gives requests to waiting threads in turn.
//!
//! # Invariants
//!
//! 1. There are never more buffers than `most`. A worker uses one only for a copy, never while it
//!    waits for a store, so a wait for a buffer is short.
//! 2. The used part begins on a page: the kernel copies from it page by page.
//!
//! # Locking
//!
//! `stack`, a [leaf](foliocache_sync::rank::Rank::Leaf), protects the list of free buffers.

use foliocache_sync::Condvar;
use foliocache_sync::rank::LeafMutex;

/// Most bytes that one request reads or writes; the kernel allows no more.
pub(crate) const MAX_REQUEST: u32 = 1 << 20;

/// Buffers beyond one for each reader, which workers copy into.
pub(crate) const MORE_BUFFERS: usize = 2;

const PAGE: usize = 4096;

/// Memory of a buffer: the largest request, and room to align it to a page.
const BUFFER_BYTES: usize = MAX_REQUEST as usize + PAGE;

/// The buffers of one mount. They are kept until it ends.
pub(crate) struct Buffers {
    stack: LeafMutex<Stack>,
    /// Signalled when a buffer is returned.
    free: Condvar,
    most: usize,
}

#[derive(Default)]
struct Stack {
    free: Vec<Vec<u8>>,
    in_use: usize,
}

impl Buffers {
    /// An empty stack for at most `most` buffers.
    pub(crate) fn new(most: usize) -> Buffers {
        Buffers {
            stack: LeafMutex::new(Stack::default()),
            free: Condvar::new(),
            most,
        }
    }

    /// Runs `run` with a buffer of `size` bytes, at most [`MAX_REQUEST`]; waits until one is free.
    /// It contains bytes of its last use.
    pub(crate) fn with<R>(&self, size: usize, run: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut lease = Lease::new(self);
        let start = lease.buffer.as_ptr().align_offset(PAGE);
        run(&mut lease.buffer[start..start + size])
    }
}

/// A buffer in use. It is returned after a panic too.
struct Lease<'a> {
    buffers: &'a Buffers,
    buffer: Vec<u8>,
}

impl Lease<'_> {
    fn new(buffers: &Buffers) -> Lease<'_> {
        let mut stack = buffers.stack.lock();
        while stack.in_use >= buffers.most {
            stack = buffers.free.wait_ranked(stack);
        }
        stack.in_use += 1;
        let free = stack.free.pop();
        drop(stack);
        // Zeroed memory of this size comes untouched from the kernel: a request takes only the pages
        // that it uses.
        let buffer = free.unwrap_or_else(|| vec![0; BUFFER_BYTES]);
        Lease { buffers, buffer }
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        let mut stack = self.buffers.stack.lock();
        stack.in_use -= 1;
        stack.free.push(std::mem::take(&mut self.buffer));
        drop(stack);
        self.buffers.free.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buffer_used_last_is_used_next() {
        let buffers = Buffers::new(2);
        let address = |buffer: &mut [u8]| buffer.as_ptr().addr();
        let (outer, inner) = buffers.with(1, |outer| {
            (address(outer), buffers.with(MAX_REQUEST as usize, address))
        });
        assert_ne!(outer, inner);
        assert_eq!((outer % PAGE, inner % PAGE), (0, 0));
        assert_eq!(buffers.with(PAGE, address), outer);
        assert_eq!(buffers.with(PAGE, address), outer);
        assert_eq!(buffers.stack.lock().free.len(), 2);
    }
}
