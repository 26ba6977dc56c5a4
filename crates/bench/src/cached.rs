//! Reads at random of a file that is in memory, ours and the kernel's alike.
//!
//! # Model
//!
//! Each turn goes on with new places: there is no list of them, which would come to be in the processor's caches with all
//! that it leads to. What choosing a place costs, some nanoseconds, is in all figures.

use foliocache::{Advice, File, ReadRequest};
use std::fs;
use std::hint::black_box;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::case::{BATCH, Worker};
use crate::error::BenchError;
use crate::files::{PAGE, PageBuf, whole};
use crate::mapped::{Kernels, copy};
use crate::passes::filled;
use crate::place::Random;
use crate::ring::ReadRing;

/// Requests of a batch, and those of a ring at once.
pub(crate) const MANY: usize = 64;

/// Of the places.
const SEED: u64 = 44;

/// How the cached file came into its cache.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Folios {
    /// It was read from front to back: large ones.
    Large,
    /// Page by page, at random: one each.
    SinglePages,
}

/// Reads a file of `len` bytes into its cache, all of it, and has it in use.
pub(crate) fn read_in(file: File, len: u64, folios: Folios) -> Result<Arc<File>, BenchError> {
    let made = || {
        let mut page = PageBuf::new();
        match folios {
            Folios::Large => file.advise(Advice::WillNeed, ..)?,
            Folios::SinglePages => {
                file.advise(Advice::Random, ..)?;
                let mut pages: Vec<u64> = (0..len / PAGE as u64).collect();
                Random(SEED).shuffle(&mut pages);
                let mut to = vec![0; MANY * PAGE];
                for pages in pages.chunks(MANY) {
                    let positions: Vec<u64> = pages.iter().map(|at| at * PAGE as u64).collect();
                    read_batch(&file, &positions, &mut to, PAGE)?;
                }
            }
        }
        // A folio is in use after its second use.
        for _ in 0..2 {
            for pos in (0..len).step_by(PAGE) {
                file.read_at(&mut page.0[..8], pos)?;
            }
        }
        let stats = file.stats()?;
        match stats.resident_pages * PAGE as u64 == len {
            true => Ok(()),
            false => Err(io::Error::other(format!("not all is cached: {stats:?}"))),
        }
    };
    made().map_err(|error| BenchError::setup("a file that is cached", error))?;
    Ok(Arc::new(file))
}

/// The kernel's file and its mapping, the first `len` bytes in its cache and in the mapping's page tables.
pub(crate) fn kernels(path: &Path, len: u64) -> Result<(fs::File, Kernels), BenchError> {
    let made = || {
        let file = fs::File::open(path)?;
        let mapping = Kernels::open(path, false)?;
        let mut page = PageBuf::new();
        for pos in (0..len).step_by(PAGE) {
            filled(file.read_at(&mut page.0, pos), PAGE)?;
            copy(&mapping, &mut page.0[..8], pos)?;
        }
        Ok::<_, io::Error>((file, mapping))
    };
    made().map_err(|error| BenchError::setup(path.display().to_string(), error))
}

/// How cached bytes are read.
pub(crate) enum How {
    Batches(Arc<File>, usize),
    OneByOne(Arc<File>),
    Views(Arc<File>),
    Pread(fs::File),
    Mapping(Kernels),
    Ring(Box<ReadRing>),
}

/// Reads of places at random.
pub(crate) struct Hits {
    how: How,
    len: usize,
    random: Random,
    /// Places to read at.
    places: usize,
    to: Vec<u8>,
}

impl Hits {
    /// Reads of `len` bytes in the first `within` of the file.
    pub(crate) fn new(how: How, len: usize, within: u64) -> Self {
        Self {
            how,
            len,
            random: Random(SEED),
            places: within as usize / len,
            to: vec![0; MANY * len],
        }
    }
}

impl Worker for Hits {
    fn batch(&mut self) -> io::Result<u64> {
        let len = self.len;
        for _ in 0..BATCH as usize / MANY {
            let positions: [u64; MANY] =
                std::array::from_fn(|_| (self.random.below(self.places) * len) as u64);
            let places = positions.iter().zip(self.to.chunks_mut(len));
            match &mut self.how {
                How::Batches(file, many) => {
                    for positions in positions.chunks(*many) {
                        read_batch(file, positions, &mut self.to, len)?;
                    }
                }
                How::OneByOne(file) => {
                    for (&pos, to) in places {
                        whole(file.read_at(to, pos)?, len)?;
                    }
                }
                How::Views(file) => {
                    for (&pos, to) in places {
                        let view = file.view(pos..pos + len as u64)?;
                        whole(view.len(), len)?;
                        to.copy_from_slice(&view);
                    }
                }
                How::Pread(file) => {
                    for (&pos, to) in places {
                        whole(file.read_at(to, pos)?, len)?;
                    }
                }
                How::Mapping(mapping) => {
                    for (&pos, to) in places {
                        copy(mapping, to, pos)?;
                    }
                }
                How::Ring(ring) => ring.read(&positions, len)?,
            }
            black_box(&mut self.to);
        }
        Ok(BATCH)
    }
}

/// Reads `len` bytes at each position, in one batch.
pub(crate) fn read_batch(
    file: &File,
    positions: &[u64],
    to: &mut [u8],
    len: usize,
) -> io::Result<()> {
    let places = positions.iter().zip(to.chunks_mut(len));
    let mut requests: Vec<ReadRequest<'_>> = places
        .map(|(&pos, to)| file.read_request(to, pos))
        .collect();
    File::read_batch(&mut requests)?;
    for request in &requests {
        whole(request.result()?, len)?;
    }
    Ok(())
}
