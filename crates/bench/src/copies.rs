//! Calls beside the bare copy of the same bytes: what the way to a cached page costs.
//!
//! # Model
//!
//! A *pair* of buffers is a caller's, and the place in the cache where a file of ours has its bytes. A
//! call copies between the two, and so does the control, with the same routine and nothing around it.
//! Where buffers happen to lie makes a difference of a tenth, so both use the same two.
//!
//! # Safety
//!
//! The place in the cache is that of a folio of a memory file, which stays: the file is kept open, and
//! nothing else uses its cache. What is copied there are the bytes that it has.
#![allow(unsafe_code)]

use std::hint::black_box;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use foliocache::File;
use foliocache_sys::usercopy;

use crate::case::{BATCH, Contestant, Match, RatioPlan, Work, Worker};
use crate::error::BenchError;
use crate::files::{BLOCK, BlockBuf, Ours, whole};

/// What a worker does with its pair of buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Read,
    Write,
    /// The copy of a read.
    CopyOut,
    /// The copy of a write.
    CopyIn,
}

/// A caller's buffer, and bytes of a file in memory.
#[derive(Clone)]
struct Pair {
    file: Arc<File>,
    pos: u64,
    /// Address of the bytes in the cache.
    cached: usize,
    /// One contestant at a time uses it.
    buf: Arc<Mutex<Box<BlockBuf>>>,
}

impl Pair {
    fn new(file: &Arc<File>, pos: u64) -> Result<Self, BenchError> {
        let cached = file.cached_at(pos, BLOCK);
        let cached = cached.ok_or(BenchError::Setting("a file that is not in one piece"))?;
        Ok(Self {
            file: Arc::clone(file),
            pos,
            cached: cached.expose_provenance(),
            buf: Arc::new(Mutex::new(BlockBuf::new())),
        })
    }

    fn worker(&self, call: Call, len: usize) -> Box<dyn Worker> {
        Box::new(Caller {
            pair: self.clone(),
            call,
            len,
        })
    }
}

struct Caller {
    pair: Pair,
    call: Call,
    len: usize,
}

impl Worker for Caller {
    fn batch(&mut self) -> io::Result<u64> {
        let Pair {
            file,
            pos,
            cached,
            buf,
        } = &self.pair;
        let cached = std::ptr::with_exposed_provenance_mut::<u8>(*cached);
        let mut buf = buf.lock().unwrap_or_else(PoisonError::into_inner);
        let buf = &mut buf.0[..self.len];
        for _ in 0..BATCH {
            let len = buf.len();
            match self.call {
                Call::Read => {
                    let read = file.read_at(black_box(&mut *buf), *pos);
                    whole(read.map_err(io::Error::from)?, len)?;
                }
                Call::Write => {
                    let written = file.write_at(black_box(&*buf), *pos);
                    whole(written.map_err(io::Error::from)?, len)?;
                }
                Call::CopyOut => {
                    let to = black_box(&mut *buf).as_mut_ptr();
                    // SAFETY: the cached bytes stay (the module's premise), the buffer is ours.
                    let copied = unsafe { usercopy::copy(to, cached, len) };
                    copied.map_err(|_| io::Error::from(io::ErrorKind::Other))?;
                }
                Call::CopyIn => {
                    let from = black_box(&*buf).as_ptr();
                    // SAFETY: as above, and nobody looks at the bytes meanwhile.
                    let copied = unsafe { usercopy::copy(cached, from, len) };
                    copied.map_err(|_| io::Error::from(io::ErrorKind::Other))?;
                }
            }
        }
        Ok(BATCH)
    }
}

/// A call of `len` bytes beside its copy, by one thread.
pub(crate) fn beside_copy(
    files: &Ours,
    (name, ratio, least): (&'static str, &'static str, f64),
    call: Call,
    len: usize,
) -> Result<Match, BenchError> {
    let pair = Pair::new(&files.block_file(ratio, 1)?, 0)?;
    let contestant = |variant, call| Contestant {
        name,
        variant,
        work: Work::Operations(vec![pair.worker(call, len)]),
    };
    Ok(Match {
        contestants: vec![
            contestant(super::cases::OURS, call),
            contestant("copy", copy_of(call)),
        ],
        ratios: vec![RatioPlan::new(ratio, 0, 1).at_least(least)],
        ..Match::default()
    })
}

fn copy_of(call: Call) -> Call {
    match call {
        Call::Read | Call::CopyOut => Call::CopyOut,
        Call::Write | Call::CopyIn => Call::CopyIn,
    }
}

/// Reads of `len` bytes by two threads that share a handle, each at a place of its own, over the same by
/// one, beside what the copies gain by a second thread.
pub(crate) fn shared_handle(
    files: &Ours,
    (name, ratio): (&'static str, &'static str),
    len: usize,
) -> Result<Match, BenchError> {
    const THREADS: usize = 2;
    let file = files.block_file(ratio, THREADS)?;
    let pairs: Result<Vec<_>, _> = (0..THREADS)
        .map(|thread| Pair::new(&file, (thread * BLOCK) as u64))
        .collect();
    let pairs = pairs?;
    let contestant = |variant, call, threads| Contestant {
        name,
        variant,
        work: Work::Operations(
            pairs[..threads]
                .iter()
                .map(|pair| pair.worker(call, len))
                .collect(),
        ),
    };
    let ours = super::cases::OURS;
    let mut scaling = RatioPlan::new(ratio, 2, 0).at_least(0.9);
    scaling.divisor = Some((3, 1));
    Ok(Match {
        contestants: vec![
            contestant(ours, Call::Read, 1),
            contestant("copy", Call::CopyOut, 1),
            contestant(ours, Call::Read, THREADS),
            contestant("copy", Call::CopyOut, THREADS),
        ],
        ratios: vec![scaling],
        ..Match::default()
    })
}
