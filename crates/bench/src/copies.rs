//! Calls beside the bare copy of the same bytes, and beside the kernel's: the cost of the path to a cached page.
//!
//! # Model
//!
//! A *pair* of buffers is a caller's, and the place in the cache where a file of ours has its bytes. A
//! call copies between the two, and so does the control, with the same routine and nothing around it.
//! Where buffers happen to lie makes a difference of a tenth, so both use the same two.
//!
//! # Safety
//!
//! The place in the cache belongs to a folio of a memory file, which stays: the file is kept open, and its cache
//! has no other use. The bytes copied there are those that it has.
#![allow(unsafe_code)]

use std::hint::black_box;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};

use foliocache::File;
use foliocache_sys::usercopy;

use crate::case::{BATCH, Match, Worker, ratios, repeat};
use crate::cases::{KERNEL, OURS};
use crate::error::BenchError;
use crate::files::{BLOCK, Ours, kernel_file, whole};
use crate::place::Buffer;

/// The control.
const COPY: &str = "copy";

/// The operation on a worker's pair of buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Read,
    Write,
    /// The copy of a read.
    CopyOut,
    /// The copy of a write.
    CopyIn,
}

/// A worker with a caller's buffer, and bytes of a file in memory.
#[derive(Clone)]
struct Caller {
    file: Arc<File>,
    pos: u64,
    /// Address of the bytes in the cache.
    cached: usize,
    /// One contestant at a time uses it.
    buf: Arc<Mutex<Buffer>>,
    call: Call,
    /// Bytes of a call.
    len: usize,
}

impl Caller {
    /// Callers at different places in one file.
    fn new(files: &Ours, name: &str, n: usize, len: usize) -> Result<Vec<Self>, BenchError> {
        let block = len.next_power_of_two().max(BLOCK);
        let file = files.block_file(name, (n, block))?;
        let caller = |number: usize| {
            let pos = (number * block) as u64;
            let cached = file.cached_at(pos, block);
            let cached = cached.ok_or(BenchError::Setting("a file that is not in one piece"))?;
            Ok(Self {
                file: Arc::clone(&file),
                pos,
                cached: cached.expose_provenance(),
                buf: Arc::new(Mutex::new(Buffer::random(len, 0))),
                call: Call::Read,
                len,
            })
        };
        (0..n).map(caller).collect()
    }

    /// Callers in files of their own.
    fn apart(files: &Ours, name: &str, n: usize, len: usize) -> Result<Vec<Self>, BenchError> {
        let callers = (0..n).map(|nr| Self::new(files, &format!("{name}-{nr}"), 1, len));
        let callers: Result<Vec<_>, _> = callers.collect();
        callers.map(|callers| callers.into_iter().flatten().collect())
    }
}

/// The same callers with another call.
fn workers(callers: &[Caller], call: Call) -> Vec<Box<dyn Worker>> {
    let each = callers.iter().cloned();
    each.map(|caller| Box::new(Caller { call, ..caller }) as _)
        .collect()
}

impl Worker for Caller {
    fn batch(&mut self) -> io::Result<u64> {
        let (file, pos, len) = (&self.file, self.pos, self.len);
        let cached = std::ptr::with_exposed_provenance_mut::<u8>(self.cached);
        let mut buf = self.buf.lock().unwrap_or_else(PoisonError::into_inner);
        let buf = buf.bytes();
        let copied = |done: Result<_, _>| done.map_err(|_| io::Error::from(io::ErrorKind::Other));
        for _ in 0..BATCH {
            match self.call {
                Call::Read => whole(file.read_at(black_box(&mut *buf), pos)?, len)?,
                Call::Write => whole(file.write_at(black_box(&*buf), pos)?, len)?,
                Call::CopyOut => {
                    let to = black_box(&mut *buf).as_mut_ptr();
                    // SAFETY: the cached bytes stay (the module's premise), the buffer is ours.
                    copied(unsafe { usercopy::copy(to, cached, len) })?;
                }
                Call::CopyIn => {
                    let from = black_box(&*buf).as_ptr();
                    // SAFETY: the cached bytes stay (the module's premise), and nothing else reads them meanwhile.
                    copied(unsafe { usercopy::copy(cached, from, len) })?;
                }
            }
        }
        Ok(BATCH)
    }
}

/// A call of `len` bytes beside its copy, by one thread.
pub(crate) fn beside_copy(
    files: &Ours,
    (name, ratio, least): (&str, &str, f64),
    (call, copy): (Call, Call),
    len: usize,
) -> Result<Match, BenchError> {
    let caller = Caller::new(files, ratio, 1, len)?;
    let mut one = Match::default();
    one.operations(name, OURS, workers(&caller, call));
    one.operations(name, COPY, workers(&caller, copy));
    ratios! { one; ratio => 0 / 1, at_least(least); }
    Ok(one)
}

/// Writes of `len` bytes at offset 0, each thread in a file of its own, beside the copy of the same bytes and the kernel's
/// writes; how many threads, and the aims of the two ratios.
pub(crate) fn writes_beside(
    files: &Ours,
    (name, id): (&str, &str),
    len: usize,
    (threads, [beside_copy, beside_kernel]): (usize, [Option<f64>; 2]),
) -> Result<Match, BenchError> {
    let callers = Caller::apart(files, id, threads, len)?;
    let mut kernels = Vec::new();
    for thread in 0..threads {
        let file = kernel_file(&format!("{id}-{thread}"))?;
        let mut buf = Buffer::random(len, 0);
        kernels.push(repeat(move || {
            whole(file.write_at(black_box(buf.bytes()), 0)?, len)
        }));
    }
    let mut one = Match::default();
    one.operations(name, OURS, workers(&callers, Call::Write));
    one.operations(name, COPY, workers(&callers, Call::CopyIn));
    one.operations(name, KERNEL, kernels);
    ratios! { one;
        format!("{id}_vs_copy") => OURS / COPY, at_least(beside_copy);
        format!("{id}_vs_kernel") => OURS / KERNEL, at_least(beside_kernel);
    }
    Ok(one)
}

/// Reads of `len` bytes by two threads that share a handle, each at a different place, over the same by one, beside
/// the copies' gain from a second thread.
pub(crate) fn shared_handle(
    files: &Ours,
    (name, ratio): (&str, &str),
    len: usize,
) -> Result<Match, BenchError> {
    let callers = Caller::new(files, ratio, 2, len)?;
    let mut one = Match::default();
    for threads in [1, 2] {
        let callers = &callers[..threads];
        one.operations(name, OURS, workers(callers, Call::Read));
        one.operations(name, COPY, workers(callers, Call::CopyOut));
    }
    ratios! { one; ratio => 2 / 0, over((3, 1)), at_least(0.9); }
    Ok(one)
}
