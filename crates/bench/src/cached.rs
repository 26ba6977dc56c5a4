//! Reads at random of a file that is in memory, ours and the kernel's alike.
//!
//! # Model
//!
//! Each turn uses new places. They are not in a list, which would pull itself and its targets into the processor's
//! caches. All figures include the cost of choosing a place, some nanoseconds.

use foliocache::{Advice, File};
use std::fs;
use std::hint::black_box;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::case::{BATCH, Worker};
use crate::error::{BenchError, set_up};
use crate::files::{PAGE, PageBuf, whole};
use crate::mapped::{Kernels, copy};
use crate::place::Random;
use crate::readers::{Calls, MANY, Mappings, Ours, Reader};

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

/// Reads all `len` bytes of a file into its cache, and uses them.
pub(crate) fn read_in(file: File, len: u64, folios: Folios) -> Result<Arc<File>, BenchError> {
    set_up("a file that is cached", || {
        let (mut page, file) = (PageBuf::new(), Arc::new(file));
        match folios {
            Folios::Large => file.advise(Advice::WillNeed, ..)?,
            Folios::SinglePages => {
                file.advise(Advice::Random, ..)?;
                let mut places: Vec<u64> = (0..len).step_by(PAGE).collect();
                Random(SEED).shuffle(&mut places);
                let (mut reader, mut to) = (Ours::new(&file, MANY), vec![0; MANY * PAGE]);
                for places in places.chunks(MANY) {
                    reader.read(places, &mut to[..places.len() * PAGE])?;
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
            true => Ok(file),
            false => Err(io::Error::other(format!("not all is cached: {stats:?}"))),
        }
    })
}

/// The kernel's file and its mapping, the first `len` bytes in its cache and in the mapping's page tables.
pub(crate) fn kernels(path: &Path, len: u64) -> Result<(Calls, Mappings<Kernels>), BenchError> {
    set_up(path.display().to_string(), || {
        let (file, mapping) = (fs::File::open(path)?, Kernels::open(path, false)?);
        let mut page = PageBuf::new();
        for pos in (0..len).step_by(PAGE) {
            whole(file.read_at(&mut page.0, pos)?, PAGE)?;
            copy(&mapping, &mut page.0[..8], pos)?;
        }
        let each = u64::MAX;
        let files = vec![Arc::new(mapping)];
        Ok((
            Calls {
                files: vec![file],
                each,
            },
            Mappings { files, each },
        ))
    })
}

struct Hits<R> {
    reader: R,
    len: usize,
    random: Random,
    /// Places to read at.
    places: usize,
    to: Vec<u8>,
}

/// Reads of `len` bytes at places at random, in the first `within` of the file.
pub(crate) fn hits(reader: impl Reader + 'static, len: usize, within: u64) -> Vec<Box<dyn Worker>> {
    vec![Box::new(Hits {
        reader,
        len,
        random: Random(SEED),
        places: within as usize / len,
        to: vec![0; MANY * len],
    })]
}

impl<R: Reader> Worker for Hits<R> {
    fn batch(&mut self) -> io::Result<u64> {
        for _ in 0..BATCH as usize / MANY {
            let mut place = || (self.random.below(self.places) * self.len) as u64;
            let positions: [u64; MANY] = std::array::from_fn(|_| place());
            self.reader.read(&positions, &mut self.to)?;
            black_box(&mut self.to);
        }
        Ok(BATCH)
    }
}
