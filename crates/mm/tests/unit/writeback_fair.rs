//! Writers to slow stores: nobody waits long at a time, and nobody waits for what is not his.
//!
//! The stores keep nothing; they take their time. Margins are wide, for machines that are slow and
//! busy: what is compared are factors that differ by far where the promise is broken.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use foliocache_mm::{
    AddressSpace, AddressSpaceOperations, BackingDevInfo, BdiKind, IoSegment, Iocb, IovIter, Mm,
    MmConfig, SlabArc,
};
use foliocache_sys::Errno;

const MIB: u64 = 1 << 20;
const CHUNK: usize = 64 << 10;
/// Where a writer begins again.
const FILE: u64 = 512 * MIB;

/// A device that takes `speed` bytes a second, one write at a time, whatever file it is of.
#[derive(Debug)]
struct Device {
    speed: u64,
    flush: Duration,
    busy: Mutex<()>,
    taken: AtomicU64,
}

impl Device {
    fn new(speed: u64) -> Arc<Self> {
        Arc::new(Self {
            speed,
            flush: Duration::from_millis(2),
            busy: Mutex::new(()),
            taken: AtomicU64::new(0),
        })
    }
}

/// A file of a device.
#[derive(Debug)]
struct Store(Arc<Device>);

impl AddressSpaceOperations for Store {
    fn read_folios(&self, _: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        for segment in segments {
            segment.copy_from(0, &vec![0; segment.len()]);
        }
        Ok(segments.iter().map(IoSegment::len).sum())
    }

    fn writepages(&self, _: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        let bytes: usize = segments.iter().map(IoSegment::len).sum();
        let _busy = self.0.busy.lock().unwrap();
        std::thread::sleep(Duration::from_secs_f64(bytes as f64 / self.0.speed as f64));
        self.0.taken.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(bytes)
    }

    fn flush(&self) -> Result<(), Errno> {
        std::thread::sleep(self.0.flush);
        Ok(())
    }

    fn truncate(&self, _: u64) -> Result<(), Errno> {
        Ok(())
    }

    fn punch_hole(&self, _: u64, _: u64) -> Result<(), Errno> {
        Ok(())
    }

    fn describe(&self) -> String {
        format!("a store of {} MiB/s", self.0.speed / MIB)
    }
}

fn cache(mib: u64) -> Arc<Mm> {
    Mm::new(MmConfig::new(mib * MIB)).unwrap()
}

fn storage(mm: &Arc<Mm>, name: &str) -> Arc<BackingDevInfo> {
    BackingDevInfo::new(mm, name, BdiKind::Storage).unwrap()
}

fn file(bdi: &Arc<BackingDevInfo>, device: &Arc<Device>) -> SlabArc<AddressSpace> {
    AddressSpace::new(bdi, Arc::new(Store(Arc::clone(device))), FILE)
}

/// What a writer did.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    bytes: u64,
    calls: u64,
    /// In calls of write.
    waiting: Duration,
    longest: Duration,
}

/// Writes chunks of `chunk` bytes one after the other, with a rest in between, until told to stop.
/// What comes before `count` is not counted.
fn write_until(
    stop: &AtomicBool,
    count: &AtomicBool,
    file: &SlabArc<AddressSpace>,
    chunk: usize,
    rest: Duration,
) -> Done {
    let bytes = vec![0x5a; chunk];
    let mut done = Done::default();
    for turn in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let counts = count.load(Ordering::Relaxed);
        let start = Instant::now();
        let pos = turn * chunk as u64 % FILE;
        let written = file
            .write(&mut Iocb::at(pos), &mut IovIter::source(&bytes))
            .unwrap();
        let took = start.elapsed();
        if counts {
            done.bytes += written as u64;
            done.calls += 1;
            done.waiting += took;
            done.longest = done.longest.max(took);
        }
        std::thread::sleep(rest);
    }
    done
}

/// Lets writers of `(file, chunk, rest)` run side by side; what they did in `time`, after as much
/// again to settle.
fn side_by_side(
    time: Duration,
    writers: &[(&SlabArc<AddressSpace>, usize, Duration)],
) -> Vec<Done> {
    let (stop, count) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (stop, count) = (&stop, &count);
        let threads: Vec<_> = writers
            .iter()
            .map(|&(file, chunk, rest)| {
                scope.spawn(move || write_until(stop, count, file, chunk, rest))
            })
            .collect();
        std::thread::sleep(time);
        count.store(true, Ordering::Relaxed);
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        let threads = threads.into_iter().map(|thread| thread.join().unwrap());
        threads.collect()
    })
}

#[test]
fn a_slow_file_system_does_not_slow_a_fast_one_down() {
    let mm = cache(32);
    let devices = [200, 4].map(|mib| Device::new(mib * MIB));
    let [fast, slow] = devices.each_ref().map(|device| {
        let bdi = storage(&mm, "one of two");
        file(&bdi, device)
    });
    let rest = Duration::ZERO;
    let done = side_by_side(
        Duration::from_secs(3),
        &[(&fast, CHUNK, rest), (&slow, CHUNK, rest)],
    );
    // The devices differ by 50; if the slow one held the room of both they would be alike.
    assert!(done[0].bytes > 5 * done[1].bytes, "{done:?}");
    assert!(done[1].bytes > 0, "{done:?}");
}

#[test]
fn writers_to_one_slow_store_share_it() {
    let mm = cache(32);
    let bdi = storage(&mm, "slow");
    let device = Device::new(16 * MIB);
    let (one, other) = (file(&bdi, &device), file(&bdi, &device));
    let time = Duration::from_secs(3);
    // One writes in larger pieces, which must not bring it more.
    let done = side_by_side(
        time,
        &[
            (&one, CHUNK, Duration::ZERO),
            (&other, 4 * CHUNK, Duration::ZERO),
        ],
    );
    let (least, most) = (
        done[0].bytes.min(done[1].bytes),
        done[0].bytes.max(done[1].bytes),
    );
    assert!(most <= 2 * least + MIB, "{done:?}");
    // Neither stood for long, and what they waited is told.
    for writer in &done {
        assert!(writer.longest < time * 2 / 3, "{done:?}");
    }
    let stats = mm.stats().throttle;
    assert!(stats.waits > 100, "{stats:?}");
    assert!(!stats.p50.is_zero() && stats.p999 >= stats.p99, "{stats:?}");
    assert!(stats.max >= stats.p999, "{stats:?}");
    assert!(stats.p999 < time * 2 / 3, "{stats:?}");
}

#[test]
fn a_small_writer_beside_a_stream_hardly_waits() {
    let mm = cache(32);
    let bdi = storage(&mm, "slow");
    let device = Device::new(16 * MIB);
    let (stream, little) = (file(&bdi, &device), file(&bdi, &device));
    let time = Duration::from_secs(3);
    // 400 KiB a second at most: a twentieth of its share.
    let done = side_by_side(
        time,
        &[
            (&stream, CHUNK, Duration::ZERO),
            (&little, 4096, Duration::from_millis(10)),
        ],
    );
    assert!(done[0].waiting > time / 2, "the stream waits: {done:?}");
    assert!(done[1].waiting < time / 4, "{done:?}");
    assert!(done[1].longest < time * 2 / 3, "{done:?}");
}

#[test]
fn an_fsync_beside_a_stream_of_another_file_does_not_wait_for_the_stream() {
    // So much is dirty of the stream that writing all of it takes seconds.
    let mm = cache(128);
    let bdi = storage(&mm, "slow");
    let device = Device::new(16 * MIB);
    let (stream, small) = (file(&bdi, &device), file(&bdi, &device));
    let (stop, count) = (AtomicBool::new(false), AtomicBool::new(true));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_until(&stop, &count, &stream, CHUNK, Duration::ZERO));
        std::thread::sleep(Duration::from_secs(1));
        let mut longest = Duration::ZERO;
        for turn in 0..10_u64 {
            let start = Instant::now();
            let bytes = [turn as u8; 100];
            small
                .write(&mut Iocb::at(turn * 100), &mut IovIter::source(&bytes))
                .unwrap();
            small.sync().unwrap();
            longest = longest.max(start.elapsed());
        }
        let start = Instant::now();
        stream.sync().unwrap();
        let of_stream = start.elapsed();
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        assert!(longest < of_stream / 2, "{longest:?}, {of_stream:?}");
    });
}

#[test]
fn a_small_file_is_written_when_it_is_old_beside_one_that_never_ends() {
    let mut config = MmConfig::new(32 * MIB);
    config.dirty_expire = Duration::from_millis(500);
    let mm = Mm::new(config).unwrap();
    let bdi = storage(&mm, "slow");
    let device = Device::new(16 * MIB);
    let (stream, small) = (file(&bdi, &device), file(&bdi, &device));
    let (stop, count) = (AtomicBool::new(false), AtomicBool::new(true));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_until(&stop, &count, &stream, CHUNK, Duration::ZERO));
        std::thread::sleep(Duration::from_secs(1));
        small
            .write(&mut Iocb::at(0), &mut IovIter::source(b"little"))
            .unwrap();
        let start = Instant::now();
        while small.is_dirty() && start.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let durable = !small.is_dirty();
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        assert!(durable, "it is dirty still after ten seconds");
    });
}

#[test]
fn an_fsync_is_not_overtaken_by_the_flusher_for_ever() {
    let mm = cache(32);
    let bdi = storage(&mm, "slow");
    let device = Device::new(16 * MIB);
    let stream = file(&bdi, &device);
    let (stop, count) = (AtomicBool::new(false), AtomicBool::new(true));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_until(&stop, &count, &stream, CHUNK, Duration::ZERO));
        std::thread::sleep(Duration::from_secs(1));
        let start = Instant::now();
        for _ in 0..3 {
            stream.sync().unwrap();
        }
        let took = start.elapsed();
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        // Each writes what is dirty, 12 MiB at most, while the writer makes more.
        assert!(took < Duration::from_secs(12), "{took:?}");
    });
}
