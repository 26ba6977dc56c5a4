//! A store without room refuses a write when it is made: nothing that was accepted is lost.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};
use std::{fmt, thread};

use foliocache_mm::{
    AddressSpace, AddressSpaceOperations, BackingDevInfo, BdiKind, IoSegment, Iocb, IovIter, Mm,
    MmConfig, PAGE_SIZE, PinMode, ReadaheadState, SlabArc,
};
use foliocache_sys::Errno;

const MIB: u64 = 1 << 20;
const PAGE: u64 = PAGE_SIZE as u64;

/// A disk of so many pages; a page of a file takes one when it is first written.
#[derive(Debug, Default)]
struct Disk {
    pages: u64,
    used: AtomicU64,
    /// Pages that one user may have, of which nobody is told.
    quota: Option<u64>,
    allocates: bool,
    allocations: AtomicU64,
    /// The threads that asked it for its room, once for each question.
    asked: Mutex<Vec<thread::ThreadId>>,
}

impl Disk {
    fn take(&self, new: u64) -> Result<(), Errno> {
        let mut refused = Errno::ENOSPC;
        let more = |used: u64| {
            if self.quota.is_some_and(|quota| used + new > quota) {
                refused = Errno::EDQUOT;
                return None;
            }
            Some(used + new).filter(|&used| used <= self.pages)
        };
        let taken = (self.used).fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.map(drop).map_err(|_| refused)
    }
}

/// A file on it.
#[derive(Debug)]
struct Store {
    disk: Arc<Disk>,
    placed: Mutex<BTreeSet<u64>>,
    /// Done when it is read for the first time.
    meanwhile: Mutex<Option<Meanwhile>>,
}

struct Meanwhile(Box<dyn FnOnce(&Disk) + Send>);

impl fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Meanwhile")
    }
}

impl Store {
    fn place(&self, pos: u64, len: u64) -> Result<(), Errno> {
        let mut placed = self.placed.lock().unwrap();
        let pages = pos / PAGE..(pos + len).div_ceil(PAGE);
        let new: Vec<u64> = pages.filter(|page| !placed.contains(page)).collect();
        self.disk.take(new.len() as u64)?;
        placed.extend(new);
        Ok(())
    }
}

impl AddressSpaceOperations for Store {
    fn read_folios(&self, _: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        let meanwhile = self.meanwhile.lock().unwrap().take();
        if let Some(Meanwhile(act)) = meanwhile {
            act(&self.disk);
        }
        for segment in segments {
            segment.copy_from(0, &vec![0; segment.len()]);
        }
        Ok(segments.iter().map(IoSegment::len).sum())
    }

    fn writepages(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        let bytes: usize = segments.iter().map(IoSegment::len).sum();
        // What fits is there, as on a real disk.
        let mut done = 0;
        while done < bytes {
            let piece = PAGE_SIZE.min(bytes - done);
            match self.place(pos + done as u64, piece as u64) {
                Ok(()) => done += piece,
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    fn flush(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn truncate(&self, _: u64) -> Result<(), Errno> {
        Ok(())
    }

    fn punch_hole(&self, _: u64, _: u64) -> Result<(), Errno> {
        Ok(())
    }

    fn free_space(&self) -> Option<u64> {
        (self.disk.asked.lock().unwrap()).push(thread::current().id());
        let used = self.disk.used.load(Ordering::Relaxed);
        Some((self.disk.pages - used) * PAGE)
    }

    fn allocate_space(&self, pos: u64, len: u64) -> Result<(), Errno> {
        self.disk.allocations.fetch_add(1, Ordering::Relaxed);
        match self.disk.allocates {
            true => self.place(pos, len),
            false => Err(Errno::EOPNOTSUPP),
        }
    }

    fn describe(&self) -> String {
        "a file on a small disk".into()
    }
}

struct Bed {
    bdi: Arc<BackingDevInfo>,
    disk: Arc<Disk>,
}

impl Bed {
    /// A cache in which all that the disk takes could be dirty at once, and long.
    fn new(disk: Disk) -> Bed {
        let mut config = MmConfig::new(256 * MIB);
        config.external_pressure = false;
        config.dirty_expire = Duration::from_secs(3600);
        let mm = Mm::new(config).unwrap();
        let bdi = BackingDevInfo::new(&mm, "small disk", BdiKind::Storage).unwrap();
        let disk = Arc::new(disk);
        Bed { bdi, disk }
    }

    /// The disk tells what is free, and allocates.
    fn of_mib(mib: u64) -> Bed {
        Bed::new(Disk {
            pages: mib * MIB / PAGE,
            allocates: true,
            ..Disk::default()
        })
    }

    fn file(&self) -> SlabArc<AddressSpace> {
        self.file_of(0, |_| ())
    }

    fn file_of(
        &self,
        size: u64,
        meanwhile: impl FnOnce(&Disk) + Send + 'static,
    ) -> SlabArc<AddressSpace> {
        let store = Store {
            disk: Arc::clone(&self.disk),
            placed: Mutex::default(),
            meanwhile: Mutex::new(Some(Meanwhile(Box::new(meanwhile)))),
        };
        AddressSpace::new(&self.bdi, Arc::new(store), size)
    }

    /// All that was accepted gets its place, and is given up for good only then.
    fn end(self, files: &[SlabArc<AddressSpace>]) {
        assert!(self.bdi.sync().is_empty());
        assert!(files.iter().all(|file| !file.is_dirty()));
    }
}

fn write(file: &SlabArc<AddressSpace>, pos: u64, len: u64) -> Result<usize, Errno> {
    let bytes = vec![7; len as usize];
    file.write(&mut Iocb::at(pos), &mut IovIter::source(&bytes))
}

fn fill(file: &SlabArc<AddressSpace>, chunk: u64) -> (u64, Errno) {
    let mut at = 0;
    loop {
        match write(file, at, chunk) {
            Ok(n) => at += n as u64,
            Err(errno) => return (at, errno),
        }
    }
}

#[test]
fn a_write_that_the_store_has_no_room_for_is_refused() {
    for allocates in [true, false] {
        for (mib, chunk) in [(8, 64 << 10), (100, MIB), (100, 16 * MIB)] {
            let bed = Bed::new(Disk {
                pages: mib * MIB / PAGE,
                allocates,
                ..Disk::default()
            });
            let file = bed.file();
            let (accepted, errno) = match allocates {
                true => fill(&file, chunk),
                // The store has not the last word, so a write that may fit goes on.
                false => {
                    let fits = mib * MIB / 2;
                    (0..fits / chunk).for_each(|n| assert!(write(&file, n * chunk, chunk).is_ok()));
                    (fits, Errno::ENOSPC)
                }
            };
            assert_eq!(errno, Errno::ENOSPC);
            assert!(accepted >= mib * MIB / 2, "{accepted} of {mib} MiB");
            bed.end(&[file]);
        }
    }
}

/// How often this thread asks the disk for its room, and whether another one did.
fn asked(disk: &Disk, act: impl FnOnce()) -> (usize, bool) {
    disk.asked.lock().unwrap().clear();
    act();
    let asked = disk.asked.lock().unwrap();
    let mine = asked.iter().filter(|&&by| by == thread::current().id());
    let mine = mine.count();
    (mine, asked.len() > mine)
}

/// With little room, with so much that it becomes little meanwhile, and with plenty.
#[test]
fn a_pin_asks_no_store_for_room() {
    const PINS: u64 = 600;
    for (mib, first) in [(20, true), (66, false), (66, true), (1000, true)] {
        let bed = Bed::of_mib(mib);
        let file = bed.file_of(8 * MIB, |_| ());
        if first {
            write(&file, 0, PAGE).unwrap();
        }
        let handle = ReadaheadState::new();
        let mut looked = false;
        let (mine, by_others) = asked(&bed.disk, || {
            for n in 0..PINS {
                let page = n * PAGE..(n + 1) * PAGE;
                drop(file.pin(&handle, page, PinMode::WRITE).expect("a pin"));
            }
            // The flusher asks, where it is due.
            let start = Instant::now();
            while mib == 66 && !looked && start.elapsed() < Duration::from_secs(10) {
                thread::sleep(Duration::from_millis(1));
                looked = !bed.disk.asked.lock().unwrap().is_empty();
            }
        });
        assert_eq!(mine, 0, "{mib} MiB");
        assert_eq!(looked, mib == 66 && by_others, "{mib} MiB");
        assert!(mib != 66 || looked);
        bed.end(&[file]);
    }
}

#[test]
fn writes_beside_a_nearly_full_store_share_one_answer() {
    const WRITES: u64 = 500;
    let bed = Bed::of_mib(20);
    let file = bed.file();
    write(&file, 0, MIB).unwrap();
    let (mine, _) = asked(&bed.disk, || {
        for n in 0..WRITES {
            assert_eq!(write(&file, MIB + n * PAGE, PAGE), Ok(PAGE_SIZE));
        }
    });
    // One for each time that an answer counts.
    assert!((1..WRITES as usize / 10).contains(&mine), "{mine}");
    bed.end(&[file]);
}

/// What pins dirty has no place in the store either, and was not asked for.
#[test]
fn what_pins_dirty_is_not_granted_to_writes() {
    const PIECE: u64 = 3 * MIB;
    // A grant ends soon, so a busy machine may not get as far.
    for _ in 0..10 {
        let bed = Bed::of_mib(21);
        let (pinned, other) = (bed.file_of(14 * MIB, |_| ()), bed.file());
        let handle = ReadaheadState::new();
        let pin = |mode| drop(pinned.pin(&handle, 0..14 * MIB, mode).expect("a pin"));
        // Its pages are brought in, and a write asks.
        pin(PinMode::READ);
        write(&other, 0, PAGE).unwrap();
        write(&other, PAGE, PAGE).unwrap();
        pin(PinMode::WRITE);
        let (accepted, refused) = fill(&other, PIECE);
        assert_eq!(refused, Errno::ENOSPC);
        assert!(accepted >= PIECE, "{accepted}");
        bed.end(&[pinned, other]);
    }
}

/// Small writes take most of their room from grants, large ones ask: none gets what another one has.
#[test]
fn grants_and_questions_share_the_room() {
    for round in 0..4 {
        let bed = Bed::of_mib(24);
        let files: Vec<_> = (0..4).map(|_| bed.file()).collect();
        let accepted: u64 = thread::scope(|scope| {
            let sizes = [PAGE, 3 * PAGE, 64 << 10, MIB + round * PAGE];
            let writers = (files.iter().zip(sizes))
                .map(|(file, chunk)| scope.spawn(move || fill(file, chunk)));
            let writers: Vec<_> = writers.collect();
            let done = writers.into_iter().map(|writer| writer.join().unwrap());
            done.inspect(|done| assert_eq!(done.1, Errno::ENOSPC))
                .map(|done| done.0)
                .sum()
        });
        assert!(accepted > 18 * MIB, "{accepted}");
        bed.end(&files);
    }
}

#[test]
fn writers_of_many_files_share_the_room() {
    let bed = Bed::of_mib(100);
    let files: Vec<_> = (0..4).map(|_| bed.file()).collect();
    let accepted: u64 = thread::scope(|scope| {
        let writers = files
            .iter()
            .map(|file| scope.spawn(|| fill(file, 256 << 10)));
        let writers: Vec<_> = writers.collect();
        let done = writers.into_iter().map(|writer| writer.join().unwrap());
        done.inspect(|done| assert_eq!(done.1, Errno::ENOSPC))
            .map(|done| done.0)
            .sum()
    });
    assert!(accepted > 90 * MIB, "{accepted}");
    bed.end(&files);
}

/// It began while there was plenty, so it did not ask. What it needs is left to it.
#[test]
fn a_write_that_is_held_up_keeps_its_room() {
    let bed = Bed::of_mib(100);
    let (began, has_begun) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel();
    let slow = bed.file_of(100, move |_| {
        began.send(()).unwrap();
        may_go_on.recv().unwrap();
    });
    let fast = bed.file();
    let accepted = thread::scope(|scope| {
        let write = scope.spawn(|| write(&slow, 100, 2 * MIB));
        has_begun.recv().unwrap();
        let fill = scope.spawn(|| fill(&fast, 256 << 10));
        // Long enough to fill the disk, and not as long as one waits for the other.
        thread::sleep(Duration::from_millis(400));
        go_on.send(()).unwrap();
        assert_eq!(write.join().unwrap(), Ok(2 * MIB as usize));
        fill.join().unwrap().0
    });
    assert!(accepted > 90 * MIB, "{accepted}");
    bed.end(&[slow, fast]);
}

/// Each page has its place already.
#[test]
fn a_full_store_takes_overwrites() {
    let bed = Bed::of_mib(8);
    let file = bed.file();
    let (size, _) = fill(&file, 64 << 10);
    bed.bdi.sync();
    for page in 0..size / PAGE {
        assert_eq!(write(&file, page * PAGE, PAGE), Ok(PAGE_SIZE));
    }
    assert_eq!(write(&file, size + MIB, PAGE), Err(Errno::ENOSPC));
    bed.end(&[file]);
}

/// What was overwritten is dirty and has its place: it takes no room from others once it is written.
#[test]
fn dirty_overwrites_are_written_before_a_write_is_refused() {
    let bed = Bed::of_mib(8);
    let file = bed.file();
    write(&file, 0, 4 * MIB).unwrap();
    bed.bdi.sync();
    write(&file, 0, 4 * MIB).unwrap();
    let before = bed.disk.allocations.load(Ordering::Relaxed);
    let other = bed.file();
    write(&other, 0, 3 * MIB).unwrap();
    let after = bed.disk.allocations.load(Ordering::Relaxed);
    assert_eq!(before, after, "the store was not asked");
    bed.end(&[file, other]);
}

/// Who is told that an append failed makes it again. So one that is in the file has succeeded, and the flush tells that there
/// is no room.
#[test]
fn an_append_during_which_others_take_the_room_is_in_the_file_once() {
    for append in [true, false] {
        let bed = Bed::of_mib(200);
        // Others fill the disk, and a write to this file finds that out.
        let other = bed.file();
        let file = bed.file_of(100, move |disk| {
            disk.used.store(disk.pages, Ordering::Relaxed);
            let write = thread::spawn(move || write(&other, 0, 8 * MIB));
            assert_eq!(write.join().unwrap(), Err(Errno::ENOSPC));
        });
        let mut iocb = Iocb::at(100);
        iocb.append = append;
        let record = [7; 2 * PAGE_SIZE];
        let written = file.write(&mut iocb, &mut IovIter::source(&record));
        match append {
            true => assert_eq!(written, Ok(record.len())),
            false => assert_eq!(written, Err(Errno::ENOSPC)),
        }
        assert_eq!(file.size(), 100 + record.len() as u64);
        assert_eq!(file.sync(), Err(Errno::ENOSPC));
        let mut iocb = Iocb::at(0);
        iocb.append = true;
        let refused = file.write(&mut iocb, &mut IovIter::source(&record));
        assert_eq!(refused, Err(Errno::ENOSPC));
        assert_eq!(file.size(), 100 + record.len() as u64);
        bed.disk.used.store(0, Ordering::Relaxed);
        assert_eq!(file.sync(), Ok(()));
        bed.end(&[file]);
    }
}

/// Nobody tells of a quota before it refuses: the data that it refused stays dirty, and the next write is refused.
#[test]
fn after_a_quota_has_refused_data_writes_are_refused() {
    let bed = Bed::new(Disk {
        pages: 1000 * MIB / PAGE,
        quota: Some(4 * MIB / PAGE),
        allocates: true,
        ..Disk::default()
    });
    let file = bed.file();
    write(&file, 0, 6 * MIB).unwrap();
    assert_eq!(file.sync(), Err(Errno::EDQUOT));
    assert_eq!(write(&file, 6 * MIB, PAGE), Err(Errno::EDQUOT));
    assert_eq!(write(&bed.file(), 0, PAGE), Err(Errno::EDQUOT));
    file.truncate(2 * MIB).unwrap();
    file.sync().unwrap();
    write(&file, 2 * MIB, MIB).unwrap();
    bed.end(&[file]);
}
