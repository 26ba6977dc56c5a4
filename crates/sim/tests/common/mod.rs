//! Shared by the tests of this folder: a cache with files over simulated backends, watchdogs, and
//! the scale of long runs.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "a module of each test, which uses a part of it"
)]

use std::sync::mpsc;
use std::time::Duration;

use foliocache_mm::{
    AddressSpace, AddressSpaceOperations, BackingDevInfo, BdiKind, ErrSeqCursor, Iocb, IovIter, Mm,
    MmConfig, ReadaheadState, Request, SlabArc, read_batch,
};
use foliocache_sim::{Answer, Faults, Operation};
use foliocache_sync::Arc;
use foliocache_sys::Errno;

/// Bytes of a page.
pub const PAGE: usize = foliocache_mm::PAGE_SIZE;
/// Bytes of a MiB.
pub const MIB: u64 = 1 << 20;
/// Longer than anything here takes on a slow and busy machine, unless it hangs.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// `n`, scaled by FOLIOCACHE_STRESS (a factor; 1 if it is not set), at least 1.
pub fn scaled(n: u64) -> u64 {
    let factor: f64 = std::env::var("FOLIOCACHE_STRESS").ok().map_or(1.0, |text| {
        text.parse().expect("FOLIOCACHE_STRESS is a factor")
    });
    ((n as f64 * factor) as u64).max(1)
}

/// The first seed of a run: FOLIOCACHE_SEED, or `default`.
pub fn first_seed(default: u64) -> u64 {
    std::env::var("FOLIOCACHE_SEED")
        .ok()
        .map_or(default, |text| {
            text.parse().expect("FOLIOCACHE_SEED is a number")
        })
}

/// A cache bounded by `limit` bytes.
pub fn cache(limit: u64) -> Arc<Mm> {
    Mm::new(MmConfig::new(limit)).expect("a cache")
}

/// A file system with a separate flusher.
pub fn storage(mm: &Arc<Mm>, name: &str) -> Arc<BackingDevInfo> {
    BackingDevInfo::new(mm, name, BdiKind::Storage).expect("a file system")
}

/// An open handle of a file.
pub struct Handle {
    pub mapping: SlabArc<AddressSpace>,
    pub ra: ReadaheadState,
    pub wb_err: ErrSeqCursor,
}

impl Handle {
    /// Opens the file behind `ops`, which has `size` bytes.
    pub fn open(
        bdi: &Arc<BackingDevInfo>,
        ops: Arc<dyn AddressSpaceOperations>,
        size: u64,
    ) -> Self {
        Self::of(&AddressSpace::new(bdi, ops, size))
    }

    /// Another handle of the same file.
    pub fn of(mapping: &SlabArc<AddressSpace>) -> Self {
        Self {
            mapping: mapping.clone(),
            ra: ReadaheadState::new(),
            wb_err: mapping.sample_wb_err(),
        }
    }

    pub fn try_read(&self, pos: u64, len: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0xa5; len];
        let read = self.read_into(pos, &mut bytes)?;
        bytes.truncate(read);
        Ok(bytes)
    }

    pub fn read_into(&self, pos: u64, bytes: &mut [u8]) -> Result<usize, Errno> {
        self.mapping.read(
            &self.ra,
            &mut Iocb::at(pos),
            &mut IovIter::destination(bytes),
        )
    }

    /// As [`Handle::try_read`], in parts of one batch, the last first.
    pub fn read_in_parts(&self, pos: u64, len: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0xa5; len];
        let part = (len / 40).max(100);
        let mut requests: Vec<_> = bytes
            .chunks_mut(part)
            .enumerate()
            .map(|(i, to)| (Iocb::at(pos + (i * part) as u64), to))
            .map(|(iocb, to)| Request::new(&self.mapping, &self.ra, iocb, to))
            .rev()
            .collect();
        read_batch(&mut requests);
        let read: Result<Vec<usize>, Errno> = requests.iter().map(Request::result).collect();
        drop(requests);
        bytes.truncate(read?.iter().sum());
        Ok(bytes)
    }

    pub fn read(&self, pos: u64, len: usize) -> Vec<u8> {
        self.try_read(pos, len).expect("read")
    }

    pub fn try_write(&self, pos: u64, bytes: &[u8]) -> Result<usize, Errno> {
        self.mapping
            .write(&mut Iocb::at(pos), &mut IovIter::source(bytes))
    }

    /// Writes all of `bytes`.
    pub fn write(&self, pos: u64, bytes: &[u8]) {
        assert_eq!(self.try_write(pos, bytes).expect("write"), bytes.len());
    }

    pub fn fsync(&self) -> Result<(), Errno> {
        self.mapping.fsync(&self.wb_err)
    }

    /// Does one operation of a workload.
    pub fn apply(&self, operation: &Operation) -> Result<Answer, Errno> {
        Ok(match *operation {
            Operation::Write { pos, len, fill } => {
                Answer::Written(self.try_write(pos, &fill.bytes(pos, len))?)
            }
            Operation::Append { len, fill } => {
                let bytes = fill.bytes(self.mapping.size(), len);
                let mut iocb = Iocb {
                    append: true,
                    ..Iocb::at(0)
                };
                let written = self
                    .mapping
                    .write(&mut iocb, &mut IovIter::source(&bytes))?;
                Answer::Written(written)
            }
            Operation::Read { pos, len } => Answer::Bytes(self.try_read(pos, len)?),
            Operation::Truncate { size } => {
                self.mapping.truncate(size)?;
                Answer::Done
            }
            Operation::PunchHole { pos, len } => {
                self.mapping.punch_hole(pos, len)?;
                Answer::Done
            }
            Operation::Fsync { .. } => {
                self.fsync()?;
                Answer::Done
            }
        })
    }
}

/// Heals a backend when it is dropped, so that a failing test does not wait for ever for its
/// hanging operations.
pub struct Healing(pub Faults);

impl Drop for Healing {
    fn drop(&mut self) {
        self.0.heal();
    }
}

/// Runs `body` on a new thread and fails if it does not return: a deadlock fails its test instead
/// of hanging the run. The message includes `state`.
pub fn within<T: Send + 'static>(
    patience: Duration,
    state: impl Fn() -> String,
    body: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (done, result) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let value = body();
        let _ = done.send(());
        value
    });
    match result.recv_timeout(patience) {
        Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        },
        Err(mpsc::RecvTimeoutError::Timeout) => {
            panic!("not done after {patience:?}\n{}", state())
        }
    }
}

/// Waits until `done`; false if that takes longer than `patience`.
pub fn eventually(patience: Duration, mut done: impl FnMut() -> bool) -> bool {
    let until = std::time::Instant::now() + patience;
    while !done() {
        if std::time::Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}
