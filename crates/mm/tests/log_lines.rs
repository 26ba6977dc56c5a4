//! What the log says of a store that fails, is slow, or is well again.
#![cfg(not(any(loom, shuttle)))]

mod common;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use common::{pattern, read, storage, write};
use foliocache_mm::{AddressSpace, AddressSpaceOperations, IoSegment, PAGE_SIZE};
use foliocache_sys::Errno;

/// All lines of this process.
static LINES: OnceLock<Arc<Mutex<Vec<u8>>>> = OnceLock::new();

struct Sink;

impl io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LINES
            .get()
            .unwrap()
            .lock()
            .unwrap()
            .extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Lines with `text`, of those that came so far.
fn lines(text: &str) -> Vec<String> {
    let all = LINES.get().unwrap().lock().unwrap().clone();
    let all = String::from_utf8(all).unwrap();
    let with = all.lines().filter(|line| line.contains(text));
    with.map(str::to_owned).collect()
}

fn listen() {
    LINES.get_or_init(|| {
        tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::INFO)
            .with_ansi(false)
            .with_writer(|| Sink)
            .init();
        Arc::default()
    });
}

/// A store that can fail and be slow.
struct Moody {
    name: String,
    failing: Arc<AtomicBool>,
    delay_ms: Arc<AtomicU64>,
}

impl Moody {
    fn work(&self) -> Result<(), Errno> {
        std::thread::sleep(Duration::from_millis(self.delay_ms.load(Ordering::Relaxed)));
        match self.failing.load(Ordering::Relaxed) {
            true => Err(Errno::EIO),
            false => Ok(()),
        }
    }
}

impl AddressSpaceOperations for Moody {
    fn read_folios(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        self.work()?;
        let mut at = pos;
        for segment in segments {
            segment.copy_from(0, &pattern(0, at, segment.len()));
            at += segment.len() as u64;
        }
        Ok((at - pos) as usize)
    }

    fn writepages(&self, _: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        self.work()?;
        Ok(segments.iter().map(IoSegment::len).sum())
    }

    fn flush(&self) -> Result<(), Errno> {
        self.work()
    }

    fn truncate(&self, _: u64) -> Result<(), Errno> {
        Ok(())
    }

    fn punch_hole(&self, _: u64, _: u64) -> Result<(), Errno> {
        Ok(())
    }

    fn describe(&self) -> String {
        self.name.clone()
    }
}

#[test]
fn a_failing_store_is_told_of_once_a_file_and_that_it_is_well_again() {
    listen();
    let (_mm, bdi) = storage(64);
    let failing = Arc::new(AtomicBool::new(true));
    let open = |n: usize| {
        let ops = Moody {
            name: format!("failing-{n:03}"),
            failing: Arc::clone(&failing),
            delay_ms: Arc::default(),
        };
        AddressSpace::new(&bdi, Arc::new(ops), 0)
    };
    let files: Vec<_> = (0..40).map(open).collect();
    for file in &files {
        // Apart from one another: each is a write of its own.
        for page in 0..8 {
            write(file, page * 3 * PAGE_SIZE as u64, &[1; PAGE_SIZE]);
        }
        assert_eq!(file.sync(), Err(Errno::EIO));
    }
    let told = lines("failing-");
    assert!((1..=5).contains(&told.len()), "{told:#?}");
    assert!(
        told[0].contains("WARN") && told[0].contains("writeback failed"),
        "{told:#?}"
    );
    failing.store(false, Ordering::Relaxed);
    for file in &files {
        file.sync().unwrap();
    }
    let begun = Instant::now();
    let recovered = loop {
        let told = lines("takes writes again after ");
        match told.first() {
            Some(line) => break line.clone(),
            None => assert!(begun.elapsed().as_secs() < 20, "{:#?}", lines("")),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(recovered.contains("foliocache::recovery"), "{recovered}");
    assert!(recovered.contains("left_out="), "{recovered}");
    assert!(recovered.contains(" MiB written "), "{recovered}");
}

#[test]
fn slow_reads_writes_and_flushes_are_told_of() {
    listen();
    let (_mm, bdi) = storage(64);
    let delay_ms = Arc::new(AtomicU64::new(0));
    let open = |name: &str| {
        let ops = Moody {
            name: name.to_owned(),
            failing: Arc::default(),
            delay_ms: Arc::clone(&delay_ms),
        };
        AddressSpace::new(&bdi, Arc::new(ops), 64 * PAGE_SIZE as u64)
    };
    let (quick, reads, writes) = (open("quick"), open("slow-read"), open("slow-write"));
    assert_eq!(read(&quick, 0, 10).len(), 10);
    write(&quick, 0, b"bytes");
    quick.sync().unwrap();
    delay_ms.store(1_100, Ordering::Relaxed);
    assert_eq!(read(&reads, 0, 10).len(), 10);
    write(&writes, 0, &[1; PAGE_SIZE]);
    writes.sync().unwrap();
    let (read, write) = (lines("slow-read"), lines("slow-write"));
    assert!(
        read[0].contains("INFO") && read[0].contains("slow I/O: a read"),
        "{read:?}"
    );
    assert!(
        read[0].contains("took=1.1 s") || read[0].contains("took=1.2 s"),
        "{read:?}"
    );
    assert!(write[0].contains("slow I/O: a write"), "{write:?}");
    assert_eq!(
        write.len(),
        1,
        "the flush was slow, too, and is left out: {write:?}"
    );
    assert_eq!(lines("quick"), [""; 0]);
}

#[test]
fn a_read_that_fails_is_told_of() {
    listen();
    let (_mm, bdi) = storage(64);
    let ops = Moody {
        name: "unreadable".to_owned(),
        failing: Arc::new(AtomicBool::new(true)),
        delay_ms: Arc::default(),
    };
    let file = AddressSpace::new(&bdi, Arc::new(ops), PAGE_SIZE as u64);
    for _ in 0..100 {
        let mut bytes = [0; 10];
        let to = &mut foliocache_mm::IovIter::destination(&mut bytes);
        let handle = &foliocache_mm::ReadaheadState::new();
        let read = file.read(handle, &mut foliocache_mm::Iocb::at(0), to);
        assert_eq!(read, Err(Errno::EIO));
    }
    let told = lines("unreadable");
    assert_eq!(told.len(), 1, "{told:#?}");
    assert!(told[0].contains("a read failed"), "{told:#?}");
}
