//! Memory for the nodes of the indexes, charged to the cache's bound.
//!
//! # Model
//!
//! One reserved range of 64 KiB chunks. A chunk is charged before it comes into use and uncharged
//! when the node pool hands it back whole and the kernel has taken its memory.
//!
//! # Safety
//!
//! Chunks of the range are handed out once at a time (the free list's business), which is what a
//! `ChunkSource` promises.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use foliocache_sync::Arc;
use foliocache_sync::rank::LeafMutex;
use foliocache_sys::Errno;
use foliocache_sys::memory::ReservedRange;
use foliocache_xarray::{CHUNK_SIZE, ChunkSource};

use crate::frames::Frames;

#[derive(Debug)]
pub(crate) struct NodeChunks {
    range: ReservedRange,
    frames: Arc<Frames>,
    state: LeafMutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Chunks of the range in use at some time; those after it are untouched.
    next: usize,
    /// Chunks given back: no memory behind them, and not charged.
    free: Vec<usize>,
    /// Chunks that the kernel did not take back: still charged.
    kept: Vec<usize>,
}

impl NodeChunks {
    /// Reserves address space for `max_bytes` of nodes; uses no memory yet.
    pub(crate) fn new(frames: Arc<Frames>, max_bytes: u64) -> Result<Self, Errno> {
        let len = (max_bytes as usize).next_multiple_of(CHUNK_SIZE);
        Ok(Self {
            range: ReservedRange::reserve(len)?,
            frames,
            state: LeafMutex::new(State::default()),
        })
    }

    /// The chunk at `start`, which is active and on no list.
    fn chunk(&self, start: usize) -> Option<NonNull<u8>> {
        NonNull::new(self.range.as_ptr().wrapping_add(start))
    }
}

// SAFETY: a chunk is CHUNK_SIZE bytes, aligned as the range is, readable and writable since `activate`,
// and the lists hand it to nobody else.
unsafe impl ChunkSource for NodeChunks {
    fn grow(&self) -> Option<NonNull<u8>> {
        if let Some(start) = self.state.lock().kept.pop() {
            return self.chunk(start);
        }
        if !self.frames.charge_metadata(CHUNK_SIZE as u64) {
            return None;
        }
        let start = {
            let mut state = self.state.lock();
            match state.free.pop() {
                Some(start) => Some(start),
                None if state.next + CHUNK_SIZE <= self.range.len() => {
                    state.next += CHUNK_SIZE;
                    Some(state.next - CHUNK_SIZE)
                }
                None => None,
            }
        };
        let chunk = start.and_then(|start| {
            self.range.activate(start..start + CHUNK_SIZE, false).ok()?;
            self.chunk(start)
        });
        if chunk.is_none() {
            self.frames.uncharge_metadata(CHUNK_SIZE as u64);
        }
        chunk
    }

    unsafe fn release(&self, chunk: NonNull<u8>) {
        let start = chunk.addr().get() - self.range.as_ptr().addr();
        // SAFETY: nothing refers to the chunk any more (the caller's contract), so losing the bytes
        // harms nobody.
        match unsafe { self.range.give_back(start..start + CHUNK_SIZE) } {
            Ok(()) => {
                self.frames.uncharge_metadata(CHUNK_SIZE as u64);
                self.state.lock().free.push(start);
            }
            Err(error) => {
                self.frames.note_give_back_failure(error);
                self.state.lock().kept.push(start);
            }
        }
    }
}
