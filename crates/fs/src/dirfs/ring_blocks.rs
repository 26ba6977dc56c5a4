//! Keeps the rings' tables of registered buffers in step with the cache's blocks.
//!
//! # Safety
//!
//! A block that the frame space reported stays mapped until `removed` has returned, and its bytes
//! are only ever touched through raw copies: the contract of `BlockObserver`.
#![allow(unsafe_code)]

use foliocache_mm::BlockObserver;
use foliocache_sync::Arc;
use foliocache_sys::uring::{Engine, RingPool};

/// Registers the cache's blocks with the rings, the number of a block being its slot.
pub(super) struct RingBlocks {
    pub(super) rings: Arc<RingPool>,
    pub(super) engine: Option<Arc<Engine>>,
}

impl BlockObserver for RingBlocks {
    fn added(&self, block: u32, addr: *mut u8, len: usize) {
        // SAFETY: contract of `BlockObserver`, see the module's header.
        unsafe { self.rings.set_buffer(block, Some((addr, len))) };
        if let Some(engine) = &self.engine {
            // SAFETY: as above.
            unsafe { engine.set_buffer(block, Some((addr, len))) };
        }
    }

    fn removed(&self, block: u32) {
        // SAFETY: emptying a slot asks nothing of the memory.
        unsafe { self.rings.set_buffer(block, None) };
        if let Some(engine) = &self.engine {
            // SAFETY: as above, and no frame of the block is in use, so no I/O over it is pending.
            unsafe { engine.set_buffer(block, None) };
        }
    }
}
