//! A seed is some files of one cache, each with a thread that changes it and checks its reads, and threads that
//! sync, move the bound, and make the stores hang. Meanwhile some files are mapped, and devices read and write the
//! pinned memory of some.
//!
//! # Safety
//!
//! A device touches the memory of its pin, as volatile accesses.

use super::{MIB, PAGE, delay, end, fail, hang, join, ms, thread_sleep};
use foliocache_mm::{
    AddressSpace, BackingDevInfo, BdiKind, ErrSeqCursor, FolioPin, FrameKind, Iocb, IovIter,
    MapError, Mm, MmConfig, PinError, PinMode, ReadaheadState, SlabArc, View, Vma, VmaAccess,
};
use foliocache_sim::{
    DurabilityOracle, Effect, Faults, FaultyBackend, Fill, Image, Mix, OpSet, Operation, Rng, Rule,
    SECTOR, When, Workload,
};
use foliocache_sync::model::{trace, with_virtual_time};
use foliocache_sync::time::{Duration, sleep};
use foliocache_sync::{Arc, thread};
use foliocache_sys::Errno;
use foliocache_sys::pressure::{Level, LevelKind, Outside};

/// Attempts, 50 ms apart, after which an operation counts as failing for good.
const ATTEMPTS: usize = 4000;

/// The smallest bound with mapped files, in bytes.
const FOR_MAPPINGS: u64 = 16 * MIB;

/// Whether files of a seed may be mapped and have devices. Even seeds, some of which once found something, keep
/// their old meaning.
fn has_more(seed: u64) -> bool {
    seed % 2 == 1
}

/// The longest mapping, in bytes.
const MAPPED: u64 = 24 * PAGE;

/// A device and the memory of a file that it was given.
struct Transfer {
    pin: FolioPin,
    /// Whether it writes to the memory.
    writes: bool,
}

/// One file, and its expected state.
pub(super) struct Owner {
    seed: u64,
    number: usize,
    backend: Arc<FaultyBackend>,
    mapping: SlabArc<AddressSpace>,
    handle: ReadaheadState,
    cursor: ErrSeqCursor,
    oracle: DurabilityOracle,
    rng: Rng,
    /// Views, and the bytes that they have for good.
    views: Vec<(View, Vec<u8>)>,
    /// A mapping of the file, and a transfer of a device that is under way.
    vma: Option<Vma>,
    transfer: Option<Transfer>,
    is_mapped: bool,
    has_devices: bool,
    /// Chance of both.
    apart: Rng,
    /// Operations of the store fail.
    fails: bool,
}

impl Owner {
    pub(super) fn new(
        bdi: &Arc<BackingDevInfo>,
        faults: &Faults,
        seed: u64,
        number: usize,
        fails: bool,
    ) -> Self {
        let mut rng = Rng::new(seed ^ (number as u64 + 1) << 48);
        let mut image = Image::new();
        if rng.one_in(1, 2) {
            let len = rng.below(8 * PAGE);
            image.write(0, &vec![rng.between(1, 255) as u8; len as usize]);
        }
        let backend = FaultyBackend::from_image(&format!("file {number}"), faults, image.clone());
        if rng.one_in(1, 3) {
            backend.cut_every(rng.between(2, 20), seed);
        }
        let mapping = AddressSpace::new(bdi, backend.clone(), image.size());
        let mut apart = Rng::new(!seed ^ (number as u64 + 1) << 48);
        let mut some = || has_more(seed) && apart.one_in(1, 2);
        let may_be_mapped = bdi.mm().usage().limit_bytes >= FOR_MAPPINGS;
        Self {
            seed,
            number,
            backend,
            handle: ReadaheadState::new(),
            cursor: mapping.sample_wb_err(),
            mapping,
            oracle: DurabilityOracle::new(image),
            rng,
            views: Vec::new(),
            vma: None,
            transfer: None,
            is_mapped: some() && may_be_mapped,
            has_devices: some(),
            apart,
            fails,
        }
    }

    pub(super) fn mapping(&self) -> &SlabArc<AddressSpace> {
        &self.mapping
    }

    fn fail(&self, what: &str) -> ! {
        panic!(
            "seed {}, file {}: {what}\nthe last operations of the store:\n{}",
            self.seed,
            self.number,
            self.backend.faults().trace_text(40)
        );
    }

    fn check(&self, image: &Image, when: &str) {
        if let Err(violation) = self.oracle.check(image) {
            self.fail(&format!("power cut {when}: {violation}"));
        }
    }

    fn iocb(&mut self, pos: u64) -> Iocb {
        Iocb {
            uncached: self.rng.one_in(1, 6),
            ..Iocb::at(pos)
        }
    }

    /// Tries until it works; the store fails at times.
    fn insist<R>(&mut self, mut attempt: impl FnMut(&mut Self) -> Result<R, Errno>) -> R {
        for _ in 0..ATTEMPTS {
            match attempt(self) {
                Ok(result) => return result,
                Err(error) => {
                    if !self.fails {
                        self.fail(&format!("{error:?} of a store that does not fail"));
                    }
                    sleep(Duration::from_millis(50));
                }
            }
        }
        self.fail("refused for ever");
    }

    fn read(&mut self, pos: u64, len: usize) {
        let expected = self.oracle.content().read(pos, len);
        if self.rng.one_in(1, 5) {
            let view = self.insist(|this| {
                let mut iocb = this.iocb(pos);
                this.mapping.view(&this.handle, &mut iocb, len)
            });
            if !expected.starts_with(&view) || view.is_empty() != expected.is_empty() {
                self.fail(&format!("a view at {pos} has other bytes"));
            }
            let bytes = view.to_vec();
            self.views.push((view, bytes));
            if self.views.len() > 2 {
                self.drop_view();
            }
            return;
        }
        let mut bytes = vec![0xee; len];
        let n = self.insist(|this| {
            let mut iocb = this.iocb(pos);
            let n = this.mapping.read(
                &this.handle,
                &mut iocb,
                &mut IovIter::destination(&mut bytes),
            )?;
            iocb.failed.map_or(Ok(n), Err)
        });
        if bytes[..n] != expected {
            let at = bytes.iter().zip(&expected).position(|(a, b)| a != b);
            self.fail(&format!(
                "{n} bytes at {pos}, {} expected, different at {at:?}",
                expected.len()
            ));
        }
    }

    fn drop_view(&mut self) {
        let (view, bytes) = self.views.remove(0);
        if *view != *bytes {
            self.fail("the bytes of a view changed");
        }
    }

    fn drop_views(&mut self) {
        while !self.views.is_empty() {
            self.drop_view();
        }
    }

    fn write(&mut self, pos: u64, bytes: &[u8], append: bool) {
        let mut done = 0;
        while done < bytes.len() {
            done += self.insist(|this| {
                let mut iocb = this.iocb(pos + done as u64);
                iocb.append = append && done == 0;
                let n = this
                    .mapping
                    .write(&mut iocb, &mut IovIter::source(&bytes[done..]));
                // Otherwise a repetition would append the bytes twice.
                if n.is_err() && append && done == 0 && this.mapping.size() != pos {
                    this.fail("an append that failed is in the file");
                }
                match n {
                    Ok(0) => Err(Errno::EIO),
                    n => n,
                }
            });
        }
    }

    /// Maps the file or ends its mapping, now and then, and loads and stores some bytes through it.
    fn touch(&mut self) {
        if self.vma.is_none() && self.apart.one_in(1, 2) {
            // The first mapping waits for pins and views.
            self.end_transfer();
            self.drop_views();
            self.vma = self.insist(|this| {
                match (this.mapping).map(0, MAPPED as usize, VmaAccess::ReadWrite) {
                    Ok(vma) => Ok(Some(vma)),
                    // Memory is short outside.
                    Err(MapError::LimitTooSmall { .. }) => Ok(None),
                    Err(MapError::Busy { .. }) => Err(Errno::EBUSY),
                    Err(error) => this.fail(&format!("a mapping: {error}")),
                }
            });
        }
        let end = self.oracle.content().size().min(MAPPED);
        let Some(vma) = self.vma.take().filter(|_| end > 0) else {
            return;
        };
        for _ in 0..self.apart.below(4) {
            let pos = self.apart.below(end);
            if self.apart.one_in(1, 2) {
                // A byte at a time: each may reach the medium without the others.
                let fill = Fill(self.apart.next_u64());
                (self.oracle).record(&Operation::Write { pos, len: 1, fill });
                self.insist(|_| vma.store(pos as usize, fill.byte(pos)));
            }
            let found = self.insist(|_| vma.load(pos as usize));
            if [found] != *self.oracle.content().read(pos, 1) {
                self.fail(&format!("a load finds another byte at {pos}"));
            }
        }
        self.mapping.check_page_tables();
        self.vma = (!self.apart.one_in(1, 6)).then_some(vma);
    }

    /// Now and then a device begins a transfer, and the previous one ends: always before an operation that would
    /// wait for it.
    fn transfer(&mut self, next: &Operation) {
        let size = self.oracle.content().size();
        let waits = matches!(
            next,
            Operation::Truncate { .. } | Operation::PunchHole { .. }
        );
        if waits || self.apart.one_in(1, 3) {
            self.end_transfer();
        } else if self.transfer.is_none() && size > 0 && self.apart.one_in(1, 2) {
            let start = self.apart.below(size);
            let end = size.min(start + self.apart.between(1, 2 * PAGE));
            let writes = self.apart.one_in(2, 3);
            let mode = match writes {
                true => PinMode::WRITE,
                false => PinMode::READ,
            };
            let mode = match self.apart.one_in(1, 3) {
                true => mode.long_term(),
                false => mode,
            };
            let pin = self.insist(|this| {
                let pin = this.mapping.pin(&this.handle, start..end, mode);
                pin.map_err(|error| match error {
                    PinError::Failed(errno) => errno,
                    other => this.fail(&format!("a pin of {start}..{end}: {other}")),
                })
            });
            self.transfer = Some(Transfer { pin, writes });
        }
    }

    /// The device reads the file's bytes, and stores others if it writes.
    fn end_transfer(&mut self) {
        let Some(Transfer { pin, writes }) = self.transfer.take() else {
            return;
        };
        let parts: Vec<_> = pin.parts().collect();
        for part in &parts {
            // SAFETY: see the module's header.
            let byte = |at: usize| unsafe { part.addr.wrapping_add(at).read_volatile() };
            let found: Vec<_> = (0..part.len).map(byte).collect();
            if found != self.oracle.content().read(part.pos, part.len) {
                self.fail(&format!("a device finds other bytes at {}", part.pos));
            }
        }
        if writes {
            let fill = Fill(self.apart.next_u64());
            let pos = parts[0].pos;
            let len = parts.iter().map(|part| part.len).sum();
            self.oracle.record(&Operation::Write { pos, len, fill });
            for part in &parts {
                for at in 0..part.len {
                    let pos = part.pos + at as u64;
                    // A device takes its time, and writes whole sectors.
                    if at > 0 && pos.is_multiple_of(SECTOR) {
                        thread::yield_now();
                    }
                    // SAFETY: see the module's header.
                    unsafe { part.addr.wrapping_add(at).write_volatile(fill.byte(pos)) };
                }
            }
        }
        if parts != pin.parts().collect::<Vec<_>>() {
            self.fail("what is pinned moved");
        }
    }

    fn step(&mut self, operation: &Operation) {
        if self.is_mapped {
            self.touch();
        }
        if self.has_devices {
            self.transfer(operation);
        }
        let size = self.oracle.content().size();
        self.oracle.record(operation);
        let mut durable = false;
        match *operation {
            Operation::Write { pos, len, fill } => self.write(pos, &fill.bytes(pos, len), false),
            Operation::Append { len, fill } => self.write(size, &fill.bytes(size, len), true),
            Operation::Read { pos, len } => self.read(pos, len),
            Operation::Truncate { size } => self.insist(|this| this.mapping.truncate(size)),
            Operation::PunchHole { pos, len } => {
                self.insist(|this| this.mapping.punch_hole(pos, len));
            }
            Operation::Fsync { .. } => match self.mapping.fsync(&self.cursor) {
                Ok(()) => durable = true,
                Err(error) if self.fails => trace(&error.raw()),
                Err(error) => self.fail(&format!("fsync: {error:?}")),
            },
        }
        // Those that were captured meanwhile saw the promises of before.
        for cut in self.backend.take_cuts() {
            self.check(&cut.image, &format!("after operation {}", cut.seq));
        }
        if durable {
            self.oracle.acknowledge();
        }
        if durable || self.rng.one_in(1, 4) {
            let seed = self.rng.next_u64();
            self.check(
                &self.backend.power_cut(seed),
                &format!("after {operation:?}"),
            );
        }
        trace(&(self.number, durable, self.oracle.content().size()));
    }

    /// Does some operations, at its own pace.
    pub(super) fn work(&mut self, operations: usize) {
        let mix = Mix {
            read: 30,
            ..Mix::crash(
                self.rng.between(4, 20) * PAGE,
                self.rng.between(1, 6) * PAGE,
            )
        };
        let size = self.oracle.content().size();
        let workload = Workload::resume(self.rng.next_u64(), mix, size);
        let pause = self.rng.below(40);
        for operation in workload.take(operations) {
            self.step(&operation);
            if pause > 0 && self.rng.one_in(1, 3) {
                thread_sleep(&mut self.rng, pause);
            }
        }
        self.end_transfer();
    }

    /// The store is well again: everything becomes durable.
    pub(super) fn end(mut self) {
        self.fails = false;
        self.drop_views();
        // The first ones may still report old errors.
        let works = (0..40).any(|_| {
            sleep(Duration::from_millis(100));
            self.mapping.fsync(&self.cursor).is_ok()
        });
        if !works {
            self.fail("fsync never works again");
        }
        let content = self.oracle.content().image();
        if let Some(at) = self.backend.durable().first_difference(content) {
            self.fail(&format!("not durable in the end: {at:?}"));
        }
        let size = content.size();
        self.read(0, size as usize + 10);
        self.drop_views();
        let broken = self.backend.broken_contract();
        if !broken.is_empty() {
            self.fail(&broken.join("\n"));
        }
    }
}

/// Syncs, writes, and reads whatever file, moves the bound, and evicts.
fn disturb(
    mm: &Mm,
    files: &[SlabArc<AddressSpace>],
    limits: Option<(u64, u64)>,
    evicts: bool,
    rng: &mut Rng,
) {
    let handle = ReadaheadState::new();
    for _ in 0..rng.between(3, 8) {
        thread_sleep(rng, 60);
        let file = &files[rng.below(files.len() as u64) as usize];
        match rng.below(8) {
            0 | 1 => {
                let cursor = file.sample_wb_err();
                let synced = file.fsync(&cursor);
                trace(&synced.is_ok());
            }
            2 => file.fdatawrite(),
            3 => file.begin_writeback(),
            4 if evicts => _ = mm.shrink(rng.between(1, 32) as usize),
            4 => drop(mm.stats()),
            5 | 6 => {
                let mut bytes = vec![0; rng.between(1, 3 * PAGE) as usize];
                let mut iocb = Iocb::at(rng.below(8) * PAGE);
                let read = file.read(&handle, &mut iocb, &mut IovIter::destination(&mut bytes));
                trace(&read.map_err(Errno::raw));
            }
            _ => {
                if let Some((low, high)) = limits {
                    let limit = rng.between(low / MIB, high / MIB) * MIB;
                    let _ = mm.set_limit(limit);
                }
            }
        }
    }
    if let Some((_, high)) = limits {
        mm.set_limit(high).expect("a limit that was");
    }
}

/// Writes dirty data during flushes, and produces both: such a write is of a later generation than the flush.
fn write_beside_flushes(files: &[SlabArc<AddressSpace>], rng: &mut Rng) {
    for _ in 0..rng.between(4, 12) {
        thread_sleep(rng, 20);
        let file = &files[rng.below(files.len() as u64) as usize];
        if rng.one_in(1, 3) {
            let cursor = file.sample_wb_err();
            trace(&file.fsync(&cursor).is_ok());
        } else {
            file.fdatawrite();
        }
    }
}

/// Looks outside as the follower does, where it is now and then narrow.
fn follow(mm: &Mm, high: u64, rng: &mut Rng) {
    let narrow = rng.between(1, 6);
    for look in 0.. {
        // In the end there is room again.
        let is_over = look > narrow;
        if is_over && mm.usage().limit_bytes == high {
            return;
        }
        assert!(look < 200, "the limit does not come back: {:?}", mm.usage());
        let room = if look == 0 || is_over {
            64
        } else {
            rng.below(32)
        };
        let level = Level {
            kind: LevelKind::Machine,
            limit: 1 << 30,
            used: (1 << 30) - (16 + room) * MIB,
        };
        let outside = Outside {
            levels: vec![level],
            stalls: None,
        };
        let pause = mm.follow_model(&outside).unwrap_or(Duration::from_secs(1));
        trace(&mm.usage().limit_bytes);
        sleep(pause);
    }
}

/// Runs a seed.
pub(crate) fn run(seed: u64) {
    with_virtual_time(|| simulate(seed));
}

fn simulate(seed: u64) {
    let mut rng = Rng::new(seed);
    let low = if has_more(seed) {
        FOR_MAPPINGS
    } else {
        8 * MIB
    };
    let high = low + rng.below(3) * 4 * MIB;
    let mut config = MmConfig::new(low);
    config.dirty_background_percent = rng.between(1, 3) as u32;
    config.dirty_percent = config.dirty_background_percent + rng.between(1, 4) as u32;
    config.dirty_expire = ms(&mut rng, 3000);
    let mm = Mm::new(config).expect("a cache");
    let bdis: Vec<_> = (0..rng.between(1, 2))
        .map(|i| BackingDevInfo::new(&mm, format!("store {i}"), BdiKind::Storage).expect("a store"))
        .collect();
    // Most frames are out of the game, at the lowest bound.
    let mut left = rng.between(48, 96);
    if has_more(seed) {
        // Frames of mapped files come in blocks.
        left += 512;
    }
    let away = mm.usage().available_pages - left;
    let away_from = Arc::clone(&mm);
    let away = away_from
        .frames()
        .try_reserve(FrameKind::General, away as u32)
        .expect("frames");
    mm.set_limit(high).expect("a higher limit");

    let (fails, hangs) = (rng.one_in(1, 2), rng.one_in(1, 3));
    let faults: Vec<_> = bdis.iter().map(|_| Faults::new(rng.next_u64())).collect();
    // Drawn separately: the other seeds keep their old meaning.
    let mut apart = Rng::new(!seed);
    let beside = apart.one_in(1, 3);
    for faults in &faults {
        if beside {
            let slow = Rule::new(OpSet::FLUSH, Effect::Delay(ms(&mut apart, 60)));
            faults.add(slow.when(When::Chance { part: 1, whole: 2 }));
        }
        if rng.one_in(3, 4) {
            delay(faults, &mut rng);
        }
        if fails {
            fail(faults, &mut rng);
        }
    }
    let files = rng.between(1, 3) as usize;
    let mut owners: Vec<_> = (0..files)
        .map(|i| {
            Owner::new(
                &bdis[i % bdis.len()],
                &faults[i % bdis.len()],
                seed,
                i,
                fails || hangs,
            )
        })
        .collect();
    let mappings: Vec<_> = owners.iter().map(|o| o.mapping().clone()).collect();

    let mut threads = Vec::new();
    let operations = rng.between(4, 12) as usize;
    let (sender, receiver) = std::sync::mpsc::channel();
    for mut owner in owners.drain(..) {
        let sender = sender.clone();
        threads.push(thread::spawn(move || {
            owner.work(operations);
            sender.send(owner).expect("the main thread waits");
        }));
    }
    let limits = (high > low && rng.one_in(1, 2)).then_some((low, high));
    let (its, files, mut fork) = (Arc::clone(&mm), mappings.clone(), rng.fork());
    threads.push(thread::spawn(move || {
        disturb(&its, &files, limits, has_more(seed), &mut fork);
    }));
    if beside {
        for _ in 0..2 {
            let (files, mut fork) = (mappings.clone(), apart.fork());
            threads.push(thread::spawn(move || {
                write_beside_flushes(&files, &mut fork);
            }));
        }
    }
    if limits.is_none() && high > low && rng.one_in(1, 2) {
        let (its, mut fork) = (Arc::clone(&mm), rng.fork());
        threads.push(thread::spawn(move || follow(&its, high, &mut fork)));
    }
    if hangs {
        let of = faults[rng.below(faults.len() as u64) as usize].clone();
        let mut fork = rng.fork();
        threads.push(thread::spawn(move || hang(&of, &mut fork, true)));
    }
    drop(mappings);
    join(threads);
    faults.iter().for_each(Faults::heal);
    drop(sender);
    drop(away);
    drop(away_from);
    for owner in receiver {
        owner.end();
    }
    end(mm, bdis);
}
