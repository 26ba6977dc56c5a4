//! What passes do, ours or the kernel's alike: whole files by request, and pages by trace.

use serde::{Deserialize, Serialize};
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use crate::cost::{Cost, Meter};
use crate::files::{PAGE, PageBuf, whole};
use crate::place::Random;
use crate::trace::Zipf;

/// Reads or writes the bytes from `start` to `end` in requests of `buffer`'s length.
pub(crate) fn sequential(
    start: u64,
    end: u64,
    buffer: &mut [u8],
    mut transfer: impl FnMut(&mut [u8], u64) -> io::Result<()>,
) -> io::Result<()> {
    for pos in (start..end).step_by(buffer.len()) {
        let len = buffer.len().min((end - pos) as usize);
        transfer(&mut buffer[..len], pos)?;
    }
    Ok(())
}

/// When random reads end.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Until {
    /// After so many seconds.
    Seconds(f64),
    /// After so many reads.
    Reads(u64),
}

/// Pages to read, for each thread, and how far each has come.
pub(crate) struct RandomReads(Vec<Reader>);

struct Reader {
    trace: Vec<u32>,
    at: usize,
    page: Box<PageBuf>,
}

/// Pages in a thread's trace, before it begins again.
const TRACE: usize = 1 << 19;

/// Reads between two looks at the clock.
const LOOK: u64 = 32;

/// What reading pages gave.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct RandomResult {
    pub(crate) reads: u64,
    pub(crate) cost: Cost,
    /// Pages that came from the disk meanwhile.
    pub(crate) misses: u64,
}

impl RandomReads {
    /// By so many threads, over a file of so many pages. What all threads find popular is the same.
    pub(crate) fn new(threads: usize, pages: u32, seed: u64) -> Self {
        let mut random = Random(seed);
        let zipf = Zipf::new(pages, &mut random);
        let reader = |_| Reader {
            trace: (0..TRACE).map(|_| zipf.page(&mut random)).collect(),
            at: 0,
            page: PageBuf::new(),
        };
        Self((0..threads).map(reader).collect())
    }

    /// Goes on reading; `read` is called with the thread's number.
    pub(crate) fn run(
        &mut self,
        until: Until,
        read: impl Fn(usize, &mut [u8], u64) -> io::Result<()> + Sync,
    ) -> io::Result<(u64, Cost)> {
        let meter = Meter::start();
        let threads = self.0.len() as u64;
        let (deadline, most) = match until {
            Until::Seconds(seconds) => {
                (Instant::now() + Duration::from_secs_f64(seconds), u64::MAX)
            }
            Until::Reads(reads) => (
                Instant::now() + Duration::from_secs(600),
                reads.div_ceil(threads),
            ),
        };
        let read = &read;
        let reads = thread::scope(|scope| {
            let readers = self.0.iter_mut().enumerate();
            let threads: Vec<_> = readers
                .map(|(who, reader)| {
                    scope
                        .spawn(move || reader.run(deadline, most, |page, pos| read(who, page, pos)))
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("a reader does not panic"))
                .sum::<io::Result<u64>>()
        })?;
        Ok((reads, meter.stop()))
    }
}

impl Reader {
    fn run(
        &mut self,
        deadline: Instant,
        most: u64,
        read: impl Fn(&mut [u8], u64) -> io::Result<()>,
    ) -> io::Result<u64> {
        let mut reads = 0;
        while reads < most && (!reads.is_multiple_of(LOOK) || Instant::now() < deadline) {
            let page = self.trace[self.at];
            self.at = (self.at + 1) % self.trace.len();
            read(&mut self.page.0, u64::from(page) * PAGE as u64)?;
            reads += 1;
        }
        Ok(reads)
    }
}

/// Checks that a read through the kernel filled its buffer.
pub(crate) fn filled(read: io::Result<usize>, len: usize) -> io::Result<()> {
    whole(read?, len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn requests_cover_the_file() {
        let mut seen = Vec::new();
        let mut buffer = [0; 10];
        sequential(5, 28, &mut buffer, |part, pos| {
            seen.push((pos, part.len()));
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, [(5, 10), (15, 10), (25, 3)]);
    }

    #[test]
    fn traces_go_on_where_they_ended() {
        let seen = Mutex::new(Vec::new());
        let mut reads = RandomReads::new(2, 64, 9);
        let run = |reads: &mut RandomReads| {
            let done = reads.run(Until::Reads(10), |who, page, pos| {
                assert_eq!(page.len(), PAGE);
                seen.lock().unwrap().push((who, pos / PAGE as u64));
                Ok(())
            });
            assert_eq!(done.unwrap().0, 10);
        };
        run(&mut reads);
        run(&mut reads);
        for who in 0..2 {
            let seen = seen.lock().unwrap();
            let pages = seen
                .iter()
                .filter(|(by, _)| *by == who)
                .map(|(_, page)| *page as u32);
            assert!(pages.eq(reads.0[who].trace[..10].iter().copied()));
        }
    }
}
