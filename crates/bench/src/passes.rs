//! Reads of pages by trace, ours and the kernel's alike.

use serde::{Deserialize, Serialize};
use std::io;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use crate::cost::{Cost, Meter};
use crate::files::{PAGE, PageBuf, whole};
use crate::kernel::lock;
use crate::latency::{Latency, Times};
use crate::place::Random;
use crate::ring::DirectRing;
use crate::streams::Stream;
use crate::trace::Zipf;

/// When random reads end: with the first of the two.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Until {
    pub(crate) seconds: f64,
    pub(crate) reads: u64,
}

impl Until {
    pub(crate) fn seconds(seconds: f64) -> Self {
        let reads = u64::MAX;
        Self { seconds, reads }
    }
}

/// Which pages random reads choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Popularity {
    /// All alike.
    Uniform,
    /// By rank, scattered over the file.
    Zipf,
}

/// Random reads: so many threads read parts of pages, of a file of so many pages.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Trace {
    pub(crate) threads: usize,
    pub(crate) pages: u32,
    pub(crate) popularity: Popularity,
    pub(crate) seed: u64,
}

/// Pages to read, for each thread, and how far each has come.
pub(crate) struct RandomReads(Vec<Reader>);

struct Reader {
    pages: Pages,
    /// Pages chosen so far.
    at: usize,
    page: Box<PageBuf>,
    times: Times,
}

/// How a thread chooses its pages.
enum Pages {
    /// Below a number, as they are read: no cache learns that they come again.
    Uniform(Random, usize),
    /// Those of a list, over and over.
    Listed(Vec<u32>),
}

/// Pages in such a list.
const LISTED: usize = 1 << 19;

/// What reading pages gave.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct RandomResult {
    pub(crate) reads: u64,
    pub(crate) cost: Cost,
    pub(crate) latency: Latency,
    /// Pages that came from the disk meanwhile.
    pub(crate) misses: u64,
}

impl RandomReads {
    /// What all threads find popular is the same.
    pub(crate) fn new(trace: &Trace) -> Self {
        let mut random = Random(trace.seed);
        let zipf = match trace.popularity {
            Popularity::Uniform => None,
            Popularity::Zipf => Some(Zipf::new(trace.pages, &mut random)),
        };
        let mut pages = || match &zipf {
            Some(zipf) => Pages::Listed((0..LISTED).map(|_| zipf.page(&mut random)).collect()),
            None => Pages::Uniform(Random(random.next()), trace.pages as usize),
        };
        let reader = |_| Reader {
            pages: pages(),
            at: 0,
            page: PageBuf::new(),
            times: Times::new(),
        };
        Self((0..trace.threads).map(reader).collect())
    }

    /// Goes on reading, `len` bytes of a page each time; `read` is called with the thread's number. `missed` counts
    /// the pages that came from the disk so far.
    pub(crate) fn run(
        &mut self,
        until: Until,
        len: usize,
        read: impl Fn(usize, &mut [u8], u64) -> io::Result<()> + Sync,
        missed: impl Fn() -> io::Result<u64>,
    ) -> io::Result<RandomResult> {
        self.run_threads(until, missed, |who, reader, deadline, most| {
            reader.run(deadline, most, len, |part, pos| read(who, part, pos))
        })
    }

    /// As [`RandomReads::run`], so many reads at once; their time is that of all of them.
    pub(crate) fn run_batches(
        &mut self,
        until: Until,
        len: usize,
        at_once: usize,
        read: impl Fn(&[u64]) -> io::Result<()> + Sync,
        missed: impl Fn() -> io::Result<u64>,
    ) -> io::Result<RandomResult> {
        self.run_threads(until, missed, |_, reader, deadline, most| {
            reader.run_batches(deadline, most, len, at_once, &read)
        })
    }

    /// As [`RandomReads::run`], past all caches: each thread has a ring, with as many reads of whole pages under way.
    pub(crate) fn run_direct(
        &mut self,
        until: Until,
        rings: &[Mutex<DirectRing>],
    ) -> io::Result<RandomResult> {
        let none = || Ok(0);
        let result = self.run_threads(until, none, |who, reader, deadline, most| {
            let mut ring = lock(&rings[who]);
            let mut reads = 0;
            while reads < most && (reads == 0 || Instant::now() < deadline) {
                ring.step(reader.next(PAGE))?;
                reads += 1;
            }
            ring.end()?;
            std::mem::swap(&mut reader.times, &mut ring.times);
            Ok(reads)
        })?;
        Ok(RandomResult {
            misses: result.reads,
            ..result
        })
    }

    fn run_threads(
        &mut self,
        until: Until,
        missed: impl Fn() -> io::Result<u64>,
        run: impl Fn(usize, &mut Reader, Instant, u64) -> io::Result<u64> + Sync,
    ) -> io::Result<RandomResult> {
        let before = missed()?;
        let meter = Meter::start();
        let deadline = Instant::now() + Duration::from_secs_f64(until.seconds);
        let most = until.reads.div_ceil(self.0.len() as u64);
        let run = &run;
        let reads = thread::scope(|scope| {
            let readers = self.0.iter_mut().enumerate();
            let threads: Vec<_> = readers
                .map(|(who, reader)| scope.spawn(move || run(who, reader, deadline, most)))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("a reader does not panic"))
                .sum::<io::Result<u64>>()
        })?;
        let cost = meter.stop();
        Ok(RandomResult {
            reads,
            cost,
            latency: Times::drain(self.0.iter_mut().map(|reader| &mut reader.times)),
            misses: missed()? - before,
        })
    }
}

impl Reader {
    fn run(
        &mut self,
        deadline: Instant,
        most: u64,
        len: usize,
        read: impl Fn(&mut [u8], u64) -> io::Result<()>,
    ) -> io::Result<u64> {
        let mut reads = 0;
        let mut now = Instant::now();
        // One at least: threads may start late on a machine that is busy.
        while reads < most && (reads == 0 || now < deadline) {
            let pos = self.next(len);
            read(&mut self.page.0[..len], pos)?;
            reads += 1;
            // One look at the clock a read: the end of one is where the next begins.
            let end = Instant::now();
            self.times.add(end - now);
            now = end;
        }
        Ok(reads)
    }

    fn run_batches(
        &mut self,
        deadline: Instant,
        most: u64,
        len: usize,
        at_once: usize,
        read: impl Fn(&[u64]) -> io::Result<()>,
    ) -> io::Result<u64> {
        let mut reads = 0;
        let mut now = Instant::now();
        let mut positions = vec![0; at_once];
        while reads < most && (reads == 0 || now < deadline) {
            positions.fill_with(|| self.next(len));
            read(&positions)?;
            reads += at_once as u64;
            let end = Instant::now();
            self.times.add(end - now);
            now = end;
        }
        Ok(reads)
    }

    /// Where the next read of `len` bytes is.
    fn next(&mut self, len: usize) -> u64 {
        let page = match &mut self.pages {
            Pages::Uniform(random, pages) => random.below(*pages),
            Pages::Listed(list) => list[self.at % list.len()] as usize,
        };
        // Another place of the page each time.
        let part = self.at.wrapping_mul(SPREAD) >> 32;
        self.at += 1;
        (page * PAGE + part % (PAGE / len) * len) as u64
    }
}

/// An odd number whose multiples are far apart.
const SPREAD: usize = 0x9e37_79b9_7f4a_7c15;

/// Checks that a read through the kernel filled its buffer.
pub(crate) fn filled(read: io::Result<usize>, len: usize) -> io::Result<()> {
    whole(read?, len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_go_on_where_they_ended() {
        let seen = Mutex::new(Vec::new());
        let trace = Trace {
            threads: 2,
            pages: 64,
            popularity: Popularity::Uniform,
            seed: 9,
        };
        let mut reads = RandomReads::new(&trace);
        let until = Until {
            seconds: 600.0,
            reads: 10,
        };
        let run = |reads: &mut RandomReads| {
            let read = |who, part: &mut [u8], pos: u64| {
                assert_eq!((part.len(), pos % 64), (64, 0));
                seen.lock().unwrap().push((who, pos / PAGE as u64));
                Ok(())
            };
            let done = reads.run(until, 64, read, || Ok(0)).unwrap();
            assert_eq!((done.reads, done.misses), (10, 0));
        };
        run(&mut reads);
        run(&mut reads);
        for who in 0..2 {
            let seen = seen.lock().unwrap();
            let pages = seen
                .iter()
                .filter(|(by, _)| *by == who)
                .map(|(_, page)| *page);
            let mut same = RandomReads::new(&trace);
            let expected = (0..10).map(|_| same.0[who].next(64) / PAGE as u64);
            assert!(pages.eq(expected));
        }
    }
}
