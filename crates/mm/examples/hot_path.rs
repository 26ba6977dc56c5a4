//! Nanoseconds of a hit: reads of 64 bytes and 4 KiB, writes of 4 KiB, on a file in memory. Beside them the bare
//! copy, by the same routine, also with the two atomic operations of a folio's lock around it. Batches of all take
//! turns.
#![allow(unsafe_code)]

use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use foliocache_mm::{
    AddressSpace, AddressSpaceOperations, BackingDevInfo, BdiKind, IoSegment, Iocb, IovIter, Mm,
    MmConfig, ReadaheadState,
};
use foliocache_sys::{Errno, usercopy};

struct Nothing;

impl AddressSpaceOperations for Nothing {
    fn read_folios(&self, _pos: u64, _segments: &[IoSegment]) -> Result<usize, Errno> {
        Ok(0)
    }
    fn writepages(&self, _pos: u64, _segments: &[IoSegment]) -> Result<usize, Errno> {
        Err(Errno::EIO)
    }
    fn flush(&self) -> Result<(), Errno> {
        Ok(())
    }
    fn truncate(&self, _size: u64) -> Result<(), Errno> {
        Ok(())
    }
    fn punch_hole(&self, _pos: u64, _len: u64) -> Result<(), Errno> {
        Ok(())
    }
    fn describe(&self) -> String {
        "a file in memory".into()
    }
}

/// Operations that are timed together, shorter than a time slice: the median is of undisturbed batches.
const BATCH: u32 = 512;
const ROUNDS: usize = 4000;

#[repr(align(4096))]
struct Page([u8; 4096]);

impl Page {
    fn new() -> Box<Page> {
        Box::new(Page([1; 4096]))
    }
}

type Row = (&'static str, Box<dyn FnMut()>);

fn row(name: &'static str, mut op: impl FnMut() + 'static) -> Row {
    (name, Box::new(move || (0..BATCH).for_each(|_| op())))
}

fn copy(to: &mut Page, from: &Page) {
    let (to, from) = (black_box(to).0.as_mut_ptr(), black_box(from).0.as_ptr());
    // SAFETY: two pages of our own.
    unsafe { usercopy::copy(to, from, 4096) }.expect("copied");
}

/// Takes the names of rows to run, or parts of them; all without any.
fn main() {
    let mm = Mm::new(MmConfig::new(64 << 20)).expect("a cache");
    let bdi = BackingDevInfo::new(&mm, "memory", BdiKind::Memory).expect("a file system");
    let file = AddressSpace::new(&bdi, Arc::new(Nothing), 0);
    let kernel = kernel_file();
    let read = |len: usize| {
        let (file, handle, mut page) = (file.clone(), ReadaheadState::new(), Page::new());
        move || {
            let mut to = IovIter::destination(&mut page.0[..len]);
            file.read(&handle, &mut Iocb::at(0), &mut to).expect("read");
        }
    };
    let kernel_read = |len: usize| {
        let (kernel, mut page) = (Arc::clone(&kernel), Page::new());
        move || kernel.read_exact_at(&mut page.0[..len], 0).expect("read")
    };
    let (write, kernel_write) = (file.clone(), Arc::clone(&kernel));
    let [source, kernel_source, from, locked_from] = [(); 4].map(|()| Page::new());
    let [mut to, mut locked_to] = [(); 2].map(|()| Page::new());
    let lock = AtomicU64::new(0);
    let mut rows = vec![
        row("write 4 KiB", move || {
            let mut source = IovIter::source(&source.0);
            write.write(&mut Iocb::at(0), &mut source).expect("written");
        }),
        row("read 4 KiB", read(4096)),
        row("read 64 B", read(64)),
        row("copy 4 KiB", move || copy(&mut to, &from)),
        row("lock, copy, unlock 4 KiB", move || {
            let locked = lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
            assert_eq!(locked, Ok(0), "nobody else has it");
            copy(&mut locked_to, &locked_from);
            lock.fetch_sub(1, Ordering::Release);
        }),
        row("kernel pwrite 4 KiB", move || {
            kernel_write
                .write_all_at(&kernel_source.0, 0)
                .expect("written");
        }),
        row("kernel pread 4 KiB", kernel_read(4096)),
        row("kernel pread 64 B", kernel_read(64)),
    ];
    let only: Vec<_> = std::env::args().skip(1).collect();
    rows.retain(|(name, _)| only.is_empty() || only.iter().any(|part| name.contains(part)));
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); rows.len()];
    for _ in 0..ROUNDS {
        for ((_, batch), times) in rows.iter_mut().zip(&mut times) {
            let start = Instant::now();
            batch();
            times.push(start.elapsed().as_secs_f64() * 1e9 / f64::from(BATCH));
        }
    }
    for ((name, _), times) in rows.iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        println!("{name:24} {:7.1} ns", times[times.len() / 2]);
    }
}

fn kernel_file() -> Arc<std::fs::File> {
    let path = "/dev/shm/foliocache-hot-path";
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
        .expect("tmpfs");
    std::fs::remove_file(path).expect("tmpfs");
    file.write_all_at(&[1; 4096], 0).expect("written");
    Arc::new(file)
}
