//! Background reads compared with blocking ones: MB/s and processor time.
//!
//! `cargo run --release --example engine_speed -p foliocache-sys -- FILE [ROUNDS]`
//!
//! Reads the file (or block device) from its beginning, with direct I/O, and copies each window
//! once, as a cache would for its reader. Each line is the median of interleaved rounds; only the
//! ratios between lines say something.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, mpsc};
use std::time::Instant;

use foliocache_sys::fd::{self, IoSegment, OFlags};
use foliocache_sys::memory::ReservedRange;
use foliocache_sys::uring::Engine;

const MIB: usize = 1 << 20;
const BLOCK: usize = 2 * MIB;
const MEMORY: usize = 64 * MIB;
const MOST: u64 = 1 << 30;

/// A way of reading windows of `size` bytes.
struct Way {
    name: &'static str,
    size: usize,
    /// Windows started before they are needed; 0: blocking.
    ahead: usize,
    copies: bool,
}

struct Bench {
    file: Arc<OwnedFd>,
    len: u64,
    memory: &'static ReservedRange,
    engine: Engine,
    out: Vec<u8>,
}

impl Bench {
    /// The segments of the `n`th window of `size` bytes.
    fn window(&self, n: usize, size: usize) -> Vec<IoSegment<'static>> {
        let start = n * size % MEMORY;
        (start..start + size)
            .step_by(BLOCK.min(size))
            .map(|at| {
                let addr = self.memory.as_ptr().wrapping_add(at);
                // SAFETY: the memory is never given back and is touched through segments only.
                unsafe { IoSegment::new(addr, BLOCK.min(size)) }
            })
            .collect()
    }

    fn copy(&mut self, window: &[IoSegment<'static>]) {
        for segment in window {
            for at in (0..segment.len()).step_by(64 << 10) {
                let part = segment.len().min(at + (64 << 10)) - at;
                segment.copy_to(at, &mut self.out[..part]);
            }
        }
    }

    fn run(&mut self, way: &Way) {
        let windows = self.len as usize / way.size;
        if way.ahead == 0 {
            for n in 0..windows {
                let window = self.window(n, way.size);
                let pos = (n * way.size) as u64;
                let read = fd::read_segments(self.file.as_fd(), pos, &window);
                assert_eq!(read, Ok(way.size));
                if way.copies {
                    self.copy(&window);
                }
            }
            return;
        }
        let mut started = std::collections::VecDeque::new();
        let mut next = 0;
        for n in 0..windows {
            while next < windows && next <= n + way.ahead {
                let window = self.window(next, way.size);
                let (tell, told) = mpsc::channel();
                let pos = (next * way.size) as u64;
                if self.engine.is_synchronous() {
                    let read = fd::read_segments(self.file.as_fd(), pos, &window);
                    tell.send(read).expect("we listen");
                } else {
                    let done = Box::new(move |result| {
                        let _ = tell.send(result);
                    });
                    let file = Arc::clone(&self.file);
                    self.engine.submit(file, pos, &window, done);
                    self.engine.wake();
                }
                started.push_back((window, told));
                next += 1;
            }
            let (window, told) = started.pop_front().expect("started");
            assert_eq!(told.recv(), Ok(Ok(way.size)), "window {n}");
            if way.copies {
                self.copy(&window);
            }
        }
    }
}

impl Bench {
    /// Random reads of 4 KiB, `outstanding` at a time (0: blocking); reads a second.
    fn random(&self, outstanding: usize, reads: usize) -> f64 {
        let mut x = 1_u64;
        let mut place = || {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ((x >> 33) % (self.len >> 12)) << 12
        };
        let page = |n: usize| [self.window(0, MIB)[0].sub(n % 256 * 4096, 4096)];
        let began = Instant::now();
        if outstanding == 0 {
            for n in 0..reads {
                let read = fd::read_segments(self.file.as_fd(), place(), &page(n));
                assert_eq!(read, Ok(4096));
            }
        } else {
            let (tell, told) = mpsc::channel();
            for n in 0..reads + outstanding {
                if n >= outstanding {
                    assert_eq!(told.recv(), Ok(Ok(4096)));
                }
                if n < reads {
                    let tell = tell.clone();
                    let done = Box::new(move |result| {
                        let _ = tell.send(result);
                    });
                    let file = Arc::clone(&self.file);
                    self.engine.submit(file, place(), &page(n), done);
                    self.engine.wake();
                }
            }
        }
        reads as f64 / began.elapsed().as_secs_f64()
    }
}

/// Processor time of the process, seconds.
fn processor() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("proc");
    let after = stat.rsplit(')').next().expect("a name");
    let fields: Vec<&str> = after.split_whitespace().collect();
    let ticks: f64 = fields[11..13]
        .iter()
        .map(|ticks| ticks.parse::<f64>().expect("a number"))
        .sum();
    ticks / 100.0
}

fn main() {
    let mut args = std::env::args_os().skip(1);
    let path = args.next().expect("a file");
    let rounds = args.next().map_or(5, |rounds| {
        rounds.to_string_lossy().parse().expect("a number")
    });
    let file = fd::open(path.as_ref(), OFlags::RDONLY | OFlags::DIRECT, 0).expect("direct I/O");
    let len = std::fs::File::open(&path)
        .and_then(|mut file| std::io::Seek::seek(&mut file, std::io::SeekFrom::End(0)))
        .expect("a length")
        .min(MOST);
    let memory = ReservedRange::reserve(MEMORY).expect("address space");
    memory.activate(0..MEMORY, true).expect("memory");
    memory.populate(0..MEMORY).expect("memory");
    let memory: &'static ReservedRange = Box::leak(Box::new(memory));
    let engine = Engine::new().expect("io_uring");
    let mut bench = Bench {
        file: Arc::new(file),
        len,
        memory,
        engine,
        out: vec![0; 64 << 10],
    };
    for _ in 0..16 {
        let window = bench.window(0, MIB);
        let read = || fd::read_segments(bench.file.as_fd(), 0, &window);
        let read = bench.engine.run_blocking(read);
        assert_eq!(read, Ok(MIB));
    }
    let mut ways = Vec::new();
    for size in [MIB, 4 * MIB, 16 * MIB] {
        for (name, ahead, copies) in [
            ("preadv, not copied", 0, false),
            ("preadv", 0, true),
            ("engine, 1 ahead", 1, true),
            ("engine, 2 ahead", 2, true),
        ] {
            ways.push(Way {
                name,
                size,
                ahead,
                copies,
            });
        }
    }
    let mut figures = vec![Vec::new(); ways.len()];
    for _ in 0..rounds {
        for (way, figures) in ways.iter().zip(&mut figures) {
            let (began, used) = (Instant::now(), processor());
            bench.run(way);
            let gb = len as f64 / 1e9;
            figures.push((
                gb * 1000.0 / began.elapsed().as_secs_f64(),
                (processor() - used) / gb,
            ));
        }
    }
    println!("{:<22} {:>6} {:>9} {:>12}", "", "MiB", "MB/s", "CPU s/GB");
    for (way, mut figures) in ways.iter().zip(figures) {
        figures.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (speed, _) = figures[figures.len() / 2];
        figures.sort_by(|a, b| a.1.total_cmp(&b.1));
        let (_, cpu) = figures[figures.len() / 2];
        let size = way.size / MIB;
        println!("{:<22} {size:>6} {speed:>9.0} {cpu:>12.2}", way.name);
    }
    println!("random reads of 4 KiB, outstanding: a second, CPU microseconds each");
    for outstanding in [0, 1, 4, 16, 64, 64] {
        let used = processor();
        let speed = bench.random(outstanding, 20_000);
        let each = (processor() - used) * 1e6 / 20_000.0;
        println!("{outstanding:>4} {speed:>9.0} {each:>6.1}");
    }
    println!("{:?}", bench.engine.stats());
}
