//! Nanoseconds per copy, of `usercopy::copy` and of the C library's memcpy.
//!
//! All ways take turns in short rounds, so that a machine that changes its speed changes it for all;
//! the columns are medians over the rounds, and in brackets the ratio to memcpy (below 1: faster).
//!
//! `cargo run --release -p foliocache-sys --example copy_speed [ROUNDS [SIZE]]`
//!
//! # Safety
//!
//! Every copy is between two buffers that are larger than its offset and length together.
#![allow(unsafe_code)]

use foliocache_sys::usercopy;
use std::hint::black_box;
use std::time::Instant;

const SLACK: usize = 4096;

/// Copies, all between the same two places.
type Way = Box<dyn Fn(*mut u8, *const u8, usize, usize)>;

fn repeat(copy: impl Fn(*mut u8, *const u8, usize) + 'static) -> Way {
    Box::new(move |dst, src, len, times| {
        for _ in 0..times {
            copy(black_box(dst), black_box(src), black_box(len));
        }
    })
}

fn ways() -> Vec<(&'static str, Way)> {
    let memcpy = |dst: *mut u8, src: *const u8, len| {
        // SAFETY: see the header.
        unsafe { core::ptr::copy_nonoverlapping(src, dst, len) }
    };
    let copy = |dst, src, len| {
        // SAFETY: see the header.
        unsafe { usercopy::copy(dst, src, len) }.expect("memory of ours");
    };
    vec![("memcpy", repeat(memcpy)), ("copy", repeat(copy))]
}

fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// Nanoseconds of a copy that meets a missing page at once, and of touching a page that is there.
fn faults() {
    if usercopy::install_handlers().is_err() {
        println!("no handlers on this architecture");
        return;
    }
    // Reserved and not active: every access faults.
    let range = foliocache_sys::memory::ReservedRange::reserve(SLACK).expect("address space");
    let mut target = [0u8; 64];
    let times = 20_000;
    let start = Instant::now();
    for _ in 0..times {
        // SAFETY: the destination is ours, and with handlers any source will do.
        let result = unsafe { usercopy::copy(target.as_mut_ptr(), range.as_ptr(), 64) };
        assert!(result.is_err_and(|fault| fault.left == 64));
    }
    println!(
        "a copy that faults: {} ns",
        start.elapsed().as_nanos() / times
    );
    let start = Instant::now();
    for _ in 0..times {
        assert_eq!(
            usercopy::fault_in_readable(black_box(target.as_ptr()), 1),
            0
        );
    }
    println!(
        "fault_in_readable of a page that is there: {} ns",
        start.elapsed().as_nanos() / times
    );
}

fn main() {
    faults();
    let rounds = std::env::args()
        .nth(1)
        .map_or(31, |n| n.parse().expect("a number of rounds"));
    let only: Option<usize> = std::env::args().nth(2).map(|n| n.parse().expect("a size"));
    let sizes = [
        1,
        8,
        24,
        64,
        100,
        128,
        200,
        512,
        1024,
        4096,
        8192,
        16384,
        65536,
        262_144,
        2 << 20,
    ];
    let offsets = [
        (0, 0),
        (0, 16),
        (16, 0),
        (1, 0),
        (13, 7),
        (64, 0),
        (128, 0),
        (256, 0),
        (512, 0),
        (2000, 0),
    ];
    let largest = sizes[sizes.len() - 1] + 2 * SLACK;
    let source = vec![1u8; largest];
    let mut target = vec![0u8; largest];
    let src = source
        .as_ptr()
        .wrapping_add(source.as_ptr().align_offset(SLACK));
    let dst = target.as_mut_ptr();
    let dst = dst.wrapping_add(dst.align_offset(SLACK));
    let ways = ways();
    print!("{:>8} {:>9}", "bytes", "dst,src");
    ways.iter().for_each(|(name, _)| print!(" {name:>18}"));
    println!();
    for len in sizes
        .into_iter()
        .filter(|&len| only.is_none_or(|only| only == len))
    {
        for (to, from) in offsets {
            let times = (400_000 / (len + 100)).max(2);
            let mut samples = vec![Vec::new(); ways.len()];
            for round in 0..rounds + 1 {
                for (way, samples) in ways.iter().zip(&mut samples) {
                    let start = Instant::now();
                    way.1(dst.wrapping_add(to), src.wrapping_add(from), len, times);
                    // The first round warms up.
                    if round > 0 {
                        samples.push(start.elapsed().as_nanos() as f64 / times as f64);
                    }
                }
            }
            let medians: Vec<f64> = samples.iter_mut().map(|samples| median(samples)).collect();
            print!("{len:>8} {:>9}", format!("{to},{from}"));
            medians
                .iter()
                .for_each(|ns| print!(" {ns:>10.1} ({:>5.2})", ns / medians[0]));
            println!();
        }
    }
}
