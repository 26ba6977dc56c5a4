//! Nanoseconds of a hit: reads of 64 bytes and 4 KiB, writes of 4 KiB, on a file in memory.

use std::sync::Arc;
use std::time::Instant;

use foliocache_mm::{
    AddressSpace, AddressSpaceOperations, BackingDevInfo, BdiKind, IoSegment, IovIter, Mm,
    MmConfig, ReadaheadState,
};
use foliocache_sys::Errno;

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

/// Times `op` if its name contains the first argument of the command.
fn time(name: &str, mut op: impl FnMut()) {
    if std::env::args()
        .nth(1)
        .is_some_and(|only| !name.contains(&only))
    {
        return;
    }
    // Shorter than a time slice, so that the median is of undisturbed batches.
    const BATCH: u32 = 512;
    let mut batches: Vec<f64> = (0..4000)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..BATCH {
                op();
            }
            start.elapsed().as_secs_f64() * 1e9 / f64::from(BATCH)
        })
        .collect();
    batches.sort_by(f64::total_cmp);
    println!("{name:24} {:7.1} ns", batches[batches.len() / 2]);
}

fn main() {
    let mm = Mm::new(MmConfig::new(64 << 20)).expect("a cache");
    let bdi = BackingDevInfo::new(&mm, "memory", BdiKind::Memory).expect("a file system");
    let file = AddressSpace::new(&bdi, Arc::new(Nothing), 0);
    let ra = ReadaheadState::new();
    let mut page = vec![1_u8; 4096];
    file.write(0, &mut IovIter::source(&page)).expect("written");
    time("write 4 KiB", || {
        file.write(0, &mut IovIter::source(&page)).expect("written");
    });
    time("read 4 KiB", || {
        file.read(&ra, 0, &mut IovIter::destination(&mut page))
            .expect("read");
    });
    let mut some = [0_u8; 64];
    time("read 64 B", || {
        file.read(&ra, 0, &mut IovIter::destination(&mut some))
            .expect("read");
    });
    let source = page.clone();
    time("memcpy 4 KiB", || {
        std::hint::black_box(&mut page).copy_from_slice(std::hint::black_box(&source));
    });
    use std::os::unix::fs::FileExt;
    let path = "/dev/shm/foliocache-hot-path";
    let kernel = std::fs::File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .expect("tmpfs");
    std::fs::remove_file(path).expect("tmpfs");
    time("kernel pwrite 4 KiB", || {
        kernel.write_all_at(&page, 0).expect("written")
    });
    time("kernel pread 4 KiB", || {
        kernel.read_exact_at(&mut page, 0).expect("read")
    });
    time("kernel pread 64 B", || {
        kernel.read_exact_at(&mut some, 0).expect("read")
    });
}
