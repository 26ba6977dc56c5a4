//! Streams: several threads go through a file, each through its part, ours and the kernel's alike.
//!
//! # Model
//!
//! ```text
//!  file    |── part of thread 0 ──|── part of thread 1 ──| …
//!             64 KiB, 64 KiB, …      round and round until the time is over, or once
//!  sampler  reads the threads' counters at the end of each interval ──▶ series
//! ```

use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use foliocache_sys::testing;

use crate::cost::{Cost, Meter};
use crate::files::whole;
use crate::kernel::read_from_disk;
use crate::place::{Buffer, open_direct};

/// The stream of one thread.
pub(crate) trait Stream: Send {
    /// Makes the request at `pos`; returns the bytes that were moved, by this request or earlier ones.
    fn step(&mut self, pos: u64) -> io::Result<u64>;

    /// Waits for requests that are under way; returns their bytes.
    fn end(&mut self) -> io::Result<u64> {
        Ok(0)
    }
}

/// A function of the position, which returns the bytes that it moved.
impl<F: FnMut(u64) -> io::Result<usize> + Send> Stream for F {
    fn step(&mut self, pos: u64) -> io::Result<u64> {
        Ok(self(pos)? as u64)
    }
}

/// Several streams of one thread, each in its part of the file, request by request in turn.
pub(crate) struct InTurn {
    pub(crate) streams: Vec<Box<dyn Stream>>,
    pub(crate) part: u64,
}

impl Stream for InTurn {
    fn step(&mut self, pos: u64) -> io::Result<u64> {
        let each = self.streams.iter_mut().zip(0..);
        each.map(|(stream, number)| stream.step(pos + number * self.part))
            .sum()
    }

    fn end(&mut self) -> io::Result<u64> {
        self.streams.iter_mut().map(|stream| stream.end()).sum()
    }
}

/// How many streams, through how much, for how long.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Shape {
    pub(crate) threads: usize,
    /// Streams of each thread, in turn.
    pub(crate) in_turn: usize,
    /// Bytes of the file: an equal part for each stream, of one request at least.
    pub(crate) len: u64,
    /// Bytes of a request.
    pub(crate) request: usize,
    /// None: once through the file.
    pub(crate) time: Option<Time>,
}

/// How long streams go round, and the interval of their series, in seconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Time {
    pub(crate) seconds: f64,
    pub(crate) interval: f64,
}

/// The result of streams.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Streamed {
    /// Bytes of each stream.
    pub(crate) each: Vec<u64>,
    pub(crate) cost: Cost,
    /// MB/s of all in each interval; none where there is no time.
    pub(crate) series: Vec<f64>,
    /// Pages that the process had read from disks meanwhile.
    pub(crate) from_disk: u64,
}

impl Streamed {
    /// Bytes of all streams.
    pub(crate) fn bytes(&self) -> u64 {
        self.each.iter().sum()
    }
}

impl Shape {
    /// Runs the streams, a thread each, and then `finish`, which is part of the cost.
    pub(crate) fn run(
        &self,
        streams: &mut [Box<dyn Stream>],
        finish: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<Streamed> {
        let done: Vec<AtomicU64> = streams.iter().map(|_| AtomicU64::new(0)).collect();
        let (part, request) = (self.part(), self.request as u64);
        let each = part * self.in_turn as u64;
        let from_disk = read_from_disk()?;
        let meter = Meter::start();
        let start = Instant::now();
        let deadline = self.time.map(|time| start + seconds(time.seconds));
        let series = thread::scope(|scope| {
            let workers = streams.iter_mut().zip(&done).enumerate();
            let threads: Vec<_> = workers
                .map(|(who, (stream, done))| {
                    let first = who as u64 * each;
                    scope.spawn(move || go(&mut **stream, first, (part, request), deadline, done))
                })
                .collect();
            let series = self
                .time
                .map_or_else(Vec::new, |time| time.sample(start, &done));
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().expect("a stream does not panic"))?;
            Ok::<_, io::Error>(series)
        })?;
        finish()?;
        let cost = meter.stop();
        let each = done.into_iter().map(AtomicU64::into_inner).collect();
        Ok(Streamed {
            each,
            cost,
            series,
            from_disk: read_from_disk()? - from_disk,
        })
    }

    /// Bytes of each stream's part.
    pub(crate) fn part(&self) -> u64 {
        let streams = (self.threads * self.in_turn) as u64;
        let request = self.request as u64;
        (self.len / streams / request).max(1) * request
    }
}

impl Time {
    /// MB/s in each interval from `start` on.
    fn sample(&self, start: Instant, done: &[AtomicU64]) -> Vec<f64> {
        let (mut before, mut since) = (0, start);
        let mut interval = |number: u32| {
            let end = start + seconds(self.interval) * number;
            thread::sleep(end.saturating_duration_since(Instant::now()));
            // Relaxed: see `go`.
            let bytes: u64 = done.iter().map(|done| done.load(Ordering::Relaxed)).sum();
            let now = Instant::now();
            let rate = (bytes - before) as f64 / 1e6 / (now - since).as_secs_f64();
            (before, since) = (bytes, now);
            rate
        };
        (1..=(self.seconds / self.interval).round() as u32)
            .map(&mut interval)
            .collect()
    }
}

/// One thread: its part, request by request.
fn go(
    stream: &mut dyn Stream,
    first: u64,
    (part, request): (u64, u64),
    deadline: Option<Instant>,
    done: &AtomicU64,
) -> io::Result<()> {
    // Relaxed: the sampler reads the number and nothing by it; the last comes by the thread's join.
    let count = |bytes| done.fetch_add(bytes, Ordering::Relaxed);
    let mut at = 0;
    loop {
        count(stream.step(first + at)?);
        at = (at + request) % part;
        let over = match deadline {
            None => at == 0,
            Some(deadline) => Instant::now() >= deadline,
        };
        if over {
            count(stream.end()?);
            return Ok(());
        }
    }
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// An access through the kernel's cache.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Access {
    pub(crate) write: bool,
    /// With `RWF_DONTCACHE`.
    pub(crate) dont_cache: bool,
}

/// A stream of the kernel's, one request after another.
pub(crate) struct ThroughKernel {
    file: fs::File,
    access: Access,
    buffer: Buffer,
}

impl ThroughKernel {
    /// Past the cache, `request` bytes at a time.
    pub(crate) fn direct(path: &Path, write: bool, request: usize, seed: u64) -> io::Result<Self> {
        let dont_cache = false;
        Ok(Self {
            file: open_direct(path)?.into(),
            access: Access { write, dont_cache },
            buffer: Buffer::random(request, seed),
        })
    }

    /// Through it.
    pub(crate) fn open(path: &Path, access: Access, request: usize, seed: u64) -> io::Result<Self> {
        let mut options = fs::File::options();
        let file = options.read(true).write(access.write).open(path)?;
        Ok(Self {
            file,
            access,
            buffer: Buffer::random(request, seed),
        })
    }
}

impl Stream for ThroughKernel {
    fn step(&mut self, pos: u64) -> io::Result<u64> {
        let (file, buffer) = (&self.file, self.buffer.bytes());
        let request = buffer.len();
        let Access { write, dont_cache } = self.access;
        let moved = match (write, dont_cache) {
            (false, false) => file.read_at(buffer, pos)?,
            (false, true) => testing::pread_dontcache(file.as_fd(), pos, buffer)?,
            (true, false) => file.write_at(buffer, pos)?,
            (true, true) => testing::pwrite_dontcache(file.as_fd(), pos, buffer)?,
        };
        whole(moved, request)?;
        Ok(request as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    const REQUEST: usize = 512;

    fn noted(seen: &Arc<Mutex<Vec<u64>>>) -> Box<dyn Stream> {
        let seen = Arc::clone(seen);
        Box::new(move |pos| {
            seen.lock().unwrap().push(pos / REQUEST as u64);
            thread::sleep(Duration::from_millis(1));
            Ok(REQUEST)
        })
    }

    #[test]
    fn each_thread_goes_through_its_part() {
        let seen: [Arc<Mutex<Vec<u64>>>; 2] = Default::default();
        let mut shape = Shape {
            threads: 2,
            in_turn: 1,
            len: 6 * REQUEST as u64 + 5,
            request: REQUEST,
            time: None,
        };
        let mut streams: Vec<_> = seen.iter().map(noted).collect();
        let once = shape.run(&mut streams, || Ok(())).unwrap();
        assert_eq!(once.each, [3 * REQUEST as u64; 2]);
        assert!(once.series.is_empty());
        assert_eq!(*seen[0].lock().unwrap(), [0, 1, 2]);
        assert_eq!(*seen[1].lock().unwrap(), [3, 4, 5]);

        shape.time = Some(Time {
            seconds: 0.08,
            interval: 0.02,
        });
        let round = shape.run(&mut streams, || Ok(())).unwrap();
        assert!(seen[1].lock().unwrap().starts_with(&[3, 4, 5, 3, 4, 5, 3]));
        assert_eq!(round.series.len(), 4);
        assert!(round.bytes() > 0 && round.cost.seconds >= 0.08);
    }

    #[test]
    fn streams_of_one_thread_take_turns() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let shape = Shape {
            threads: 2,
            in_turn: 2,
            len: 8 * REQUEST as u64,
            request: REQUEST,
            time: None,
        };
        let one = || InTurn {
            streams: vec![noted(&seen), noted(&seen)],
            part: shape.part(),
        };
        let mut first: [Box<dyn Stream>; 1] = [Box::new(one())];
        let only = shape.run(&mut first, || Ok(())).unwrap();
        assert_eq!(*seen.lock().unwrap(), [0, 2, 1, 3]);
        assert_eq!(only.bytes(), 4 * REQUEST as u64);
        seen.lock().unwrap().clear();
        let mut both: [Box<dyn Stream>; 2] = [Box::new(one()), Box::new(one())];
        shape.run(&mut both, || Ok(())).unwrap();
        let mut seen = seen.lock().unwrap().clone();
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}
