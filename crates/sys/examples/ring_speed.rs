//! What a registered buffer, a vector and a ring are worth for direct reads: microseconds a read.
//!
//! `cargo run --release --example ring_speed -p foliocache-sys -- DIRECTORY`
//!
//! Each line is the median of interleaved rounds; only the ratios between lines say something.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::Instant;

use foliocache_sys::fd::{self, IoSegment, OFlags};
use foliocache_sys::memory::ReservedRange;
use foliocache_sys::uring::{Io, Op, Ring};

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;
const FILE: usize = 64 * MIB;
const ROUNDS: usize = 15;

/// One way of reading: the segments of each I/O, and whether by a ring.
struct Way<'a> {
    name: &'static str,
    by_ring: bool,
    lists: Vec<Vec<IoSegment<'a>>>,
}

fn main() {
    let dir = std::env::args_os()
        .nth(1)
        .map_or_else(std::env::temp_dir, PathBuf::from);
    let path = dir.join(format!("ring-speed-{}", std::process::id()));
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    let file = fd::open(&path, flags, 0o600).expect("a file in the directory");
    for at in (0..FILE).step_by(MIB) {
        fd::pwrite(file.as_fd(), at as u64, &vec![at as u8; MIB]).expect("space for 64 MiB");
    }
    fd::fsync(file.as_fd()).expect("a sound disk");
    let file = fd::open(&path, OFlags::RDONLY | OFlags::DIRECT, 0).expect("direct I/O");
    std::fs::remove_file(&path).expect("our own file");

    let memory = ReservedRange::reserve(4 * MIB).expect("address space");
    memory.activate(0..4 * MIB, true).expect("memory");
    memory.populate(0..4 * MIB).expect("memory");
    let base = memory.as_ptr();
    // SAFETY: `memory` lives to the end of `main` and is touched by the kernel only.
    let at = |start: usize, len| unsafe {
        IoSegment::new(
            base.wrapping_add(start),
            len,
            Some((start / (2 * MIB)) as u32),
        )
    };
    let mut ring = Ring::new(64).expect("io_uring");
    ring.register_sparse_buffers(2).expect("sparse tables");
    for block in 0..2_u32 {
        let addr = base.wrapping_add(block as usize * 2 * MIB);
        // SAFETY: `ring` is dropped before `memory`.
        unsafe { ring.update_buffer(block, Some((addr, 2 * MIB))) }.expect("locked memory");
    }

    let apart: Vec<_> = (0..32).map(|i| at(2 * i * PAGE, PAGE)).collect();
    let plain = |len| vec![vec![at(0, len).plain()]];
    let ways = [
        Way {
            name: "4 KiB      preadv",
            by_ring: false,
            lists: plain(PAGE),
        },
        Way {
            name: "4 KiB      ring, plain",
            by_ring: true,
            lists: plain(PAGE),
        },
        Way {
            name: "4 KiB      ring, fixed",
            by_ring: true,
            lists: vec![vec![at(0, PAGE)]],
        },
        Way {
            name: "64 KiB     ring, plain",
            by_ring: true,
            lists: plain(16 * PAGE),
        },
        Way {
            name: "64 KiB     ring, fixed",
            by_ring: true,
            lists: vec![vec![at(0, 16 * PAGE)]],
        },
        Way {
            name: "1 MiB      ring, plain",
            by_ring: true,
            lists: plain(MIB),
        },
        Way {
            name: "1 MiB      ring, fixed",
            by_ring: true,
            lists: vec![vec![at(0, MIB)]],
        },
        Way {
            name: "32 x 4 KiB preadv",
            by_ring: false,
            lists: vec![apart.clone()],
        },
        Way {
            name: "32 x 4 KiB ring, one vector",
            by_ring: true,
            lists: vec![apart.clone()],
        },
        Way {
            name: "32 x 4 KiB ring, 32 fixed",
            by_ring: true,
            lists: apart.iter().map(|segment| vec![*segment]).collect(),
        },
    ];
    let mut times = vec![Vec::new(); ways.len()];
    for _ in 0..ROUNDS {
        for (way, times) in ways.iter().zip(&mut times) {
            times.push(round(&mut ring, way, file.as_fd()));
        }
    }
    for (way, times) in ways.iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        println!("{:30} {:9.1} us", way.name, times[ROUNDS / 2]);
    }
}

/// Microseconds for one pass over the lists, averaged over places all over the file.
fn round(ring: &mut Ring, way: &Way<'_>, fd: BorrowedFd<'_>) -> f64 {
    let passes = 50;
    let mut results = Vec::new();
    let start = Instant::now();
    for pass in 0..passes {
        let mut pos = (pass * 29 % 62 * MIB) as u64;
        let mut ios = Vec::new();
        for segments in &way.lists {
            ios.push(Io {
                op: Op::Read,
                fd,
                pos,
                segments,
            });
            pos += segments
                .iter()
                .map(|segment| segment.len() as u64)
                .sum::<u64>();
        }
        if way.by_ring {
            ring.submit_and_wait(&ios, &mut results);
            assert!(results.iter().all(Result::is_ok), "{results:?}");
        } else {
            for io in &ios {
                fd::read_segments(io.fd, io.pos, io.segments).expect("a sound disk");
            }
        }
    }
    start.elapsed().as_secs_f64() * 1e6 / f64::from(passes as u32)
}
