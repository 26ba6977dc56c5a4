//! Nanoseconds of a hit through the library, beside the kernel's on a tmpfs.
//!
//! Ours and the kernel's are timed in turns; the ratio is the median of those of neighbours. An
//! argument says how many operations a sample has (200,000 unless given).

use foliocache::{Cache, File};
use std::error::Error;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::time::Instant;

const PAIRS: usize = 15;

fn nanoseconds(mut op: impl FnMut()) -> f64 {
    let operations = std::env::args().nth(1);
    let operations = operations.map_or(200_000, |n| n.parse().expect("a number"));
    let start = Instant::now();
    for _ in 0..operations {
        op();
    }
    start.elapsed().as_secs_f64() * 1e9 / f64::from(operations)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn compare(name: &str, mut ours: impl FnMut(), mut kernels: impl FnMut()) {
    let (mut here, mut there, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..PAIRS {
        let (a, b) = (nanoseconds(&mut ours), nanoseconds(&mut kernels));
        here.push(a);
        there.push(b);
        ratios.push(b / a);
    }
    let (here, there, ratio) = (median(here), median(there), median(ratios));
    println!("{name:24} {here:8.1} ns {there:8.1} ns {ratio:6.2} x");
}

fn reads_and_writes(file: &File, kernel: &std::fs::File, len: usize) {
    let mut page = vec![1_u8; len];
    let mut other = page.clone();
    let size = if len < 4096 { "64 B" } else { "4 KiB" };
    compare(
        &format!("read {size}"),
        || {
            let n = file.read_at(black_box(&mut page), 0).expect("read");
            assert_eq!(n, len);
        },
        || {
            let n = kernel.read_at(black_box(&mut other), 0).expect("read");
            assert_eq!(n, len);
        },
    );
    compare(
        &format!("write {size}"),
        || {
            let n = file.write_at(black_box(&page), 0).expect("written");
            assert_eq!(n, len);
        },
        || {
            let n = kernel.write_at(black_box(&other), 0).expect("written");
            assert_eq!(n, len);
        },
    );
}

fn main() -> Result<(), Box<dyn Error>> {
    let cache = Cache::builder()
        .memory("64M")
        .fault_handlers(true)
        .build()?;
    let file = cache.memfs()?.create("hot")?;
    let path = format!("/dev/shm/foliocache-hot-path-{}", std::process::id());
    let kernel = std::fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)?;
    std::fs::remove_file(&path)?;
    file.write_all_at(&[1; 4096], 0)?;
    kernel.write_all_at(&[1; 4096], 0)?;
    println!("{:24} {:>11} {:>11}", "", "ours", "kernel's");
    reads_and_writes(&file, &kernel, 4096);
    reads_and_writes(&file, &kernel, 64);
    let (source, mut target) = (vec![1_u8; 4096], vec![0_u8; 4096]);
    let memcpy = nanoseconds(|| black_box(&mut target).copy_from_slice(black_box(&source)));
    println!("{:24} {memcpy:8.1} ns", "memcpy 4 KiB");
    Ok(())
}
