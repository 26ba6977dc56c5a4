//! How long single writes take while several threads write steadily, more than the store takes.
//!
//! Each thread overwrites its file, chunk after chunk, and starts again at the end. The output has
//! the bytes per second, the times of the write calls, and the cache's figures about the waits.
//!
//! ```text
//! write_stalls DIRECTORY [SECONDS [THREADS [MEMORY [CHUNK [FILE]]]]]
//! ```
//!
//! Unless given: 60 seconds, 4 threads, 256M of memory, chunks of 64K, files of 512M.

use foliocache::{Cache, MemorySize};
use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or("which directory?")?;
    let mut next = |default: &str| arguments.next().unwrap_or_else(|| default.into());
    let seconds: u64 = next("60").parse()?;
    let threads: usize = next("4").parse()?;
    let cache = Cache::builder().memory(next("256M").as_str()).build()?;
    let chunk = next("64K").as_str().in_bytes()?;
    let size = next("512M").as_str().in_bytes()? / chunk * chunk;

    let directory = cache.directory(directory)?;
    let names: Vec<String> = (0..threads).map(|i| format!("write_stalls.{i}")).collect();
    let files = names.iter().map(|name| directory.create(name));
    let files = files.collect::<Result<Vec<_>, _>>()?;
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let start = Instant::now();
    let mut times: Vec<Duration> = std::thread::scope(|scope| {
        let writers: Vec<_> = files
            .iter()
            .map(|file| {
                scope.spawn(|| {
                    let bytes = vec![0x5a; chunk as usize];
                    let mut times = Vec::new();
                    for turn in 0.. {
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                        let before = Instant::now();
                        file.write_all_at(&bytes, turn * chunk % size)
                            .expect("the store works");
                        times.push(before.elapsed());
                        written.fetch_add(chunk, Ordering::Relaxed);
                    }
                    times
                })
            })
            .collect();
        let mut last = 0;
        for second in 1..=seconds {
            std::thread::sleep(Duration::from_secs(1));
            let now = written.load(Ordering::Relaxed);
            if std::env::var_os("SERIES").is_some() {
                println!("{second:4} s {:8} KiB", (now - last) >> 10);
            }
            last = now;
        }
        stop.store(true, Ordering::Relaxed);
        let times = writers.into_iter().map(|writer| writer.join());
        times
            .flat_map(|times| times.expect("no panic"))
            .collect::<Vec<_>>()
    });
    let took = start.elapsed();
    times.sort_unstable();
    let at = |part: f64| {
        let last = times.len().saturating_sub(1);
        times
            .get((times.len() as f64 * part) as usize)
            .or(times.get(last))
            .copied()
            .unwrap_or_default()
    };
    let bytes = written.load(Ordering::Relaxed);
    println!(
        "{threads} threads, {:.1} MiB/s",
        bytes as f64 / f64::from(1 << 20) / took.as_secs_f64()
    );
    println!(
        "calls   {:8}  p50 {:8.3} ms  p99 {:8.3} ms  p99.9 {:8.3} ms  longest {:8.3} ms",
        times.len(),
        milliseconds(at(0.5)),
        milliseconds(at(0.99)),
        milliseconds(at(0.999)),
        milliseconds(at(1.0)),
    );
    let stats = cache.stats()?;
    let waits = stats.throttle;
    println!(
        "waits   {:8}  p50 {:8.3} ms  p99 {:8.3} ms  p99.9 {:8.3} ms  longest {:8.3} ms",
        waits.waits,
        milliseconds(waits.p50),
        milliseconds(waits.p99),
        milliseconds(waits.p999),
        milliseconds(waits.max),
    );
    println!("direct reclaims {}", stats.direct_reclaims);
    drop(files);
    for name in &names {
        directory.remove_file(name)?;
    }
    cache.close()?;
    Ok(())
}
