//! The least that reads at random of cached files take: an index, a descriptor and the copy.
//!
//! # Model
//!
//! ```text
//!   32 reads at a time:   entry of the index ▶ descriptor ▶ bytes ▶ copy
//! ```
//!
//! Each step is prefetched for all of them before the next, as a batch of ours does. Nothing is checked, counted or kept
//! from changing. The bytes are those of a file of ours, at their place in its cache, so both read the same memory.
//! There is a descriptor, a cache line, for each piece of the file that is contiguous there: 2 MiB, or less if some of
//! it lies apart.
//!
//! # Safety
//!
//! The place in the cache belongs to folios that stay: the reader keeps the file open, and its cache has room for
//! all of it and no other use. Nothing writes to it.
#![allow(unsafe_code)]

use std::io;
use std::ptr;
use std::sync::Arc;

use foliocache::File;
use foliocache_sync::prefetch;

use crate::error::{BenchError, OrSetup};
use crate::files::PAGE;
use crate::readers::Reader;

/// Reads that take each step together.
const GROUP: usize = 32;

/// Bytes of the largest piece.
const LARGEST: usize = 2 << 20;

/// Bytes of a read that are prefetched, and of a cache line.
const PREFETCHED: usize = 256;
const LINE: usize = 64;

#[repr(align(64))]
struct Descriptor {
    /// Address of its bytes in the cache.
    bytes: usize,
}

/// See the module.
pub(crate) struct Floor {
    /// Keeps the bytes where they are.
    _file: Arc<File>,
    /// The number of the descriptor of each piece.
    index: Vec<u32>,
    descriptors: Vec<Descriptor>,
    /// Bytes of a piece, as a power of two.
    order: u32,
}

impl Floor {
    /// Over the first `len` bytes of a file, all of them cached.
    pub(crate) fn of(file: &Arc<File>, len: u64) -> Result<Self, BenchError> {
        let pieces = |piece: usize| -> Option<Vec<Descriptor>> {
            let places = (0..len).step_by(piece);
            let cached = places.map(|pos| file.cached_at(pos, piece));
            let descriptor = |bytes: *const u8| Descriptor {
                bytes: bytes.expose_provenance(),
            };
            cached.map(|bytes| bytes.map(descriptor)).collect()
        };
        let mut piece = LARGEST;
        loop {
            if let Some(descriptors) = pieces(piece) {
                return Ok(Self {
                    _file: Arc::clone(file),
                    index: (0..descriptors.len() as u32).collect(),
                    descriptors,
                    order: piece.ilog2(),
                });
            }
            if piece == PAGE {
                let missing = Err(io::Error::other("a page is not cached"));
                return missing.setting_up("the floor");
            }
            piece /= 2;
        }
    }

    #[inline]
    fn entry(&self, pos: u64) -> &u32 {
        &self.index[(pos >> self.order) as usize]
    }
}

impl Reader for Floor {
    fn read(&mut self, positions: &[u64], to: &mut [u8]) -> io::Result<()> {
        let len = to.len() / positions.len();
        for (positions, to) in positions.chunks(GROUP).zip(to.chunks_mut(GROUP * len)) {
            for &pos in positions {
                prefetch(ptr::from_ref(self.entry(pos)));
            }
            let mut found = [&self.descriptors[0]; GROUP];
            for (&pos, found) in positions.iter().zip(&mut found) {
                *found = &self.descriptors[*self.entry(pos) as usize];
                prefetch(ptr::from_ref(*found));
            }
            let mut bytes = [ptr::null::<u8>(); GROUP];
            for ((&pos, found), bytes) in positions.iter().zip(found).zip(&mut bytes) {
                let within = pos as usize & ((1 << self.order) - 1);
                *bytes = ptr::with_exposed_provenance(found.bytes + within);
                for ahead in (0..len.min(PREFETCHED)).step_by(LINE) {
                    prefetch(bytes.wrapping_add(ahead));
                }
            }
            for (bytes, to) in bytes.into_iter().zip(to.chunks_mut(len)) {
                // SAFETY: they stay (the module's premise), and a read lies in one piece: both have a power of two as
                // length.
                unsafe { ptr::copy_nonoverlapping(bytes, to.as_mut_ptr(), len) };
            }
        }
        Ok(())
    }
}
