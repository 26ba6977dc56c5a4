//! The power fails: at every fsync boundary of a random workload, between them, and in the middle
//! of operations, with and without faults. All promised data must be left.
//!
//! # Safety
//!
//! Stores are made inside a mapping and pages that the file has, by the thread that alone changes its size.
#![allow(unsafe_code)]

use crate::common::{Handle, MIB, PAGE, PATIENCE, cache, eventually, first_seed, scaled, storage};
use foliocache_mm::{FaultMode, Mm, MmConfig, Vma, VmaAccess};
use foliocache_sim::{
    DurabilityOracle, Effect, Faults, FaultyBackend, Image, Lost, Mix, OpSet, Operation, Rng, Rule,
    When, Workload,
};
use foliocache_sync::Arc;
use foliocache_sys::Errno;

/// One file from its first operation to its last power cut.
struct Run {
    name: String,
    backend: Arc<FaultyBackend>,
    handle: Handle,
    oracle: DurabilityOracle,
    rng: Rng,
    cuts: u64,
    promises: u64,
}

impl Run {
    fn new(mm: &Arc<Mm>, seed: u64, image: Image, faults: &Faults) -> Self {
        let name = format!("seed {seed}");
        let backend = FaultyBackend::from_image(&name, faults, image.clone());
        let bdi = storage(mm, &name);
        Self {
            handle: Handle::open(&bdi, Arc::clone(&backend) as _, image.size()),
            name,
            backend,
            oracle: DurabilityOracle::new(image),
            rng: Rng::new(seed ^ 0xc07),
            cuts: 0,
            promises: 0,
        }
    }

    fn check(&mut self, image: &Image, when: &str) {
        self.cuts += 1;
        if let Err(violation) = self.oracle.check(image) {
            panic!(
                "{}, power cut {when}: {violation}\nthe last operations of the backend:\n{}",
                self.name,
                self.backend.faults().trace_text(60)
            );
        }
    }

    fn step(&mut self, operation: &Operation) {
        self.oracle.record(operation);
        self.step_recorded(operation);
    }

    fn step_recorded(&mut self, operation: &Operation) {
        let answer = self.handle.apply(operation);
        // Cuts that were captured while it ran saw the promises from before it.
        for cut in self.backend.take_cuts() {
            let when = format!("after operation {} of the backend", cut.seq);
            self.check(&cut.image, &when);
        }
        let now = self.backend.power_cut(self.rng.next_u64());
        self.check(&now, &format!("after {operation:?}"));
        match (operation, answer) {
            (Operation::Fsync { .. }, Ok(_)) => {
                self.oracle.acknowledge();
                self.promises += 1;
                for _ in 0..4 {
                    let now = self.backend.power_cut(self.rng.next_u64());
                    self.check(&now, "after an fsync");
                }
            }
            (Operation::Fsync { .. }, Err(_)) | (_, Ok(_)) => {}
            (_, Err(error)) => panic!("{}: {operation:?}: {error}", self.name),
        }
    }
}

const SIZE: u64 = 192 << 10;

fn workload(seed: u64, size: u64) -> Workload {
    Workload::resume(seed, Mix::crash(SIZE, 24 << 10), size)
}

#[test]
fn without_faults() {
    let mm = cache(64 * MIB);
    let first = first_seed(1);
    let (mut cuts, mut promises) = (0, 0);
    for seed in first..first + scaled(40) {
        let mut run = Run::new(&mm, seed, Image::new(), &Faults::new(seed));
        run.backend.cut_every(1, seed);
        for operation in workload(seed, 0).take(120) {
            run.step(&operation);
        }
        run.step(&Operation::Fsync { datasync: false });
        let live = run
            .backend
            .durable()
            .first_difference(run.oracle.content().image());
        assert_eq!(live, None, "{}", run.name);
        cuts += run.cuts;
        promises += run.promises;
    }
    println!("{cuts} power cuts, {promises} promises kept");
}

/// The machine comes back after each cut, with whatever was left, and goes on.
#[test]
fn over_several_lives() {
    let first = first_seed(1000);
    for seed in first..first + scaled(12) {
        let mut image = Image::new();
        for life in 0..6 {
            let mm = cache(16 * MIB);
            let seed = seed * 100 + life;
            let size = image.size();
            let mut run = Run::new(&mm, seed, image, &Faults::new(seed));
            let operations = run.rng.between(1, 60) as usize;
            for operation in workload(seed, size).take(operations) {
                run.step(&operation);
            }
            image = run.backend.power_cut(seed);
            run.check(&image, "at the end of a life");
        }
    }
}

/// Writes fail, tear and stop short, flushes fail and lose data: an fsync that returns success must
/// have made its data durable.
#[test]
fn with_faults() {
    let mm = cache(64 * MIB);
    let first = first_seed(2000);
    let (mut failed, mut promises) = (0, 0);
    for seed in first..first + scaled(40) {
        let faults = Faults::new(seed);
        let some = |part| When::Chance { part, whole: 100 };
        faults.add(Rule::new(OpSet::WRITE, Effect::Fail(Errno::EIO)).when(some(6)));
        faults.add(Rule::new(OpSet::WRITE, Effect::Torn(Errno::ENOSPC)).when(some(6)));
        faults.add(Rule::new(OpSet::WRITE, Effect::Short).when(some(10)));
        faults.add(Rule::new(OpSet::WRITE_INODE, Effect::Fail(Errno::EIO)).when(some(3)));
        let lost = [Lost::Nothing, Lost::Data, Lost::DataAndLive][(seed % 3) as usize];
        faults.add(Rule::new(OpSet::FLUSH, Effect::Lose(Errno::EIO, lost)).when(some(25)));
        let mut run = Run::new(&mm, seed, Image::new(), &faults);
        run.backend.cut_every(3, seed);
        for operation in workload(seed, 0).take(120) {
            run.step(&operation);
        }
        failed += faults.counts().failed_of(OpSet::ALL);
        promises += run.promises;
        // Healed: nothing was given up meanwhile. The first fsyncs may still report old errors.
        faults.heal();
        let settled = (0..10).any(|_| run.handle.fsync().is_ok());
        assert!(settled, "{}: fsync never works again", run.name);
        let durable = run.backend.durable();
        let difference = durable.first_difference(run.oracle.content().image());
        assert_eq!(difference, None, "{}\n{}", run.name, faults.trace_text(60));
    }
    assert!(
        failed > 0 && promises > 0,
        "{failed} failures, {promises} promises"
    );
    println!("{failed} operations failed, {promises} promises kept");
}

/// Writes all of `bytes`, however often the file system refuses because too much has failed.
fn insist(file: &Handle, pos: u64, bytes: &[u8]) {
    let mut done = 0;
    let written = eventually(PATIENCE, || {
        match file.try_write(pos + done as u64, &bytes[done..]) {
            Ok(n) => done += n,
            // Failed data is retried only after a while; do not wait for it here.
            Err(_) => drop(file.fsync()),
        }
        done == bytes.len()
    });
    assert!(written, "refused for ever: {:?}", file.mapping.stats());
}

/// Data that is not on the medium yet is not evicted, even when memory is short.
#[test]
fn under_a_small_bound() {
    let mm = cache(foliocache_mm::MIN_LIMIT.max(4 * MIB));
    let first = first_seed(3000);
    for seed in first..first + scaled(4) {
        let faults = Faults::new(seed);
        let chance = When::Chance { part: 1, whole: 6 };
        let lose = Effect::Lose(Errno::EIO, Lost::DataAndLive);
        faults.add(Rule::new(OpSet::FLUSH, lose).when(chance));
        let mut run = Run::new(&mm, seed, Image::new(), &faults);
        let mix = Mix {
            fsync: 2,
            ..Mix::crash(12 * MIB, 512 << 10)
        };
        for operation in Workload::new(seed, mix).take(100) {
            run.oracle.record(&operation);
            match operation {
                Operation::Write { pos, len, fill } => {
                    insist(&run.handle, pos, &fill.bytes(pos, len))
                }
                Operation::Append { len, fill } => {
                    let pos = run.handle.mapping.size();
                    insist(&run.handle, pos, &fill.bytes(pos, len));
                }
                Operation::Fsync { .. } => {
                    if run.handle.fsync().is_ok() {
                        run.oracle.acknowledge();
                        let now = run.backend.power_cut(run.rng.next_u64());
                        run.check(&now, "after an fsync");
                    }
                }
                Operation::Read { pos, len } => {
                    let expected = run.oracle.content().read(pos, len);
                    assert!(
                        run.handle.read(pos, len) == expected,
                        "{}: {operation:?}",
                        run.name
                    );
                }
                Operation::Truncate { .. } | Operation::PunchHole { .. } => {
                    run.handle.apply(&operation).expect("no fault on metadata");
                }
            }
        }
        let now = run.backend.power_cut(run.rng.next_u64());
        run.check(&now, "at the end");
        let (file, content) = (run.handle, run.oracle.content());
        let size = content.size() as usize;
        assert!(
            file.read(0, size + 1) == content.read(0, size),
            "{}",
            run.name
        );
    }
}

/// A handle whose writes within the file are stores through a mapping, mostly.
struct Mapped {
    vma: Vma,
    rng: Rng,
}

impl Mapped {
    /// Does an operation by stores, if that can be: one that makes the file no longer.
    fn store(&mut self, handle: &Handle, operation: &Operation) -> bool {
        let Operation::Write { pos, len, fill } = *operation else {
            return false;
        };
        let end = pos + len as u64;
        if end > handle.mapping.size() || self.rng.one_in(1, 4) {
            return false;
        }
        let start = self.vma.address().wrapping_add(pos as usize);
        for (at, byte) in fill.bytes(pos, len).into_iter().enumerate() {
            // SAFETY: inside the mapping, and inside the file, whose size does not change.
            unsafe { start.wrapping_add(at).write_volatile(byte) };
        }
        true
    }

    /// Stores beyond the end of the file, in its last page: no operation of the file.
    fn store_beyond(&mut self, handle: &Handle) {
        let size = handle.mapping.size() as usize;
        let room = size.next_multiple_of(PAGE) - size;
        if room > 0 {
            let at = size + self.rng.below(room as u64) as usize;
            // SAFETY: inside the mapping, in a page of the file.
            unsafe { self.vma.address().wrapping_add(at).write_volatile(0xbb) };
        }
    }
}

fn mapped_stores_in(mode: FaultMode, first: u64) {
    let mut config = MmConfig::new(64 * MIB);
    config.fault_mode = mode;
    let mm = Mm::new(config).expect("a cache");
    let (mut stores, mut promises) = (0, 0);
    for seed in first..first + scaled(30) {
        let mut run = Run::new(&mm, seed, Image::new(), &Faults::new(seed));
        run.backend.cut_every(1, seed);
        let map = run
            .handle
            .mapping
            .map(0, SIZE as usize, VmaAccess::ReadWrite);
        let mut mapped = Mapped {
            vma: map.expect("a mapping"),
            rng: Rng::new(seed),
        };
        for operation in workload(seed, 0).take(120) {
            if mapped.rng.one_in(1, 3) {
                mapped.store_beyond(&run.handle);
            }
            // A store can be written back before the next one.
            run.oracle.record(&operation);
            if mapped.store(&run.handle, &operation) {
                stores += 1;
                let now = run.backend.power_cut(run.rng.next_u64());
                run.check(&now, &format!("after stores, {operation:?}"));
            } else {
                run.step_recorded(&operation);
            }
        }
        run.step(&Operation::Fsync { datasync: false });
        let content = run.oracle.content();
        let live = run.backend.durable().first_difference(content.image());
        assert_eq!(live, None, "{}", run.name);
        let size = content.size() as usize;
        let shown = (0..size).map(|at| {
            // SAFETY: inside the mapping and the file.
            unsafe { mapped.vma.address().wrapping_add(at).read_volatile() }
        });
        assert!(shown.eq(content.read(0, size)), "{}", run.name);
        promises += run.promises;
    }
    assert!(stores > 100 && promises > 100, "{stores}, {promises}");
    println!("{mode:?}: {stores} writes by stores, {promises} promises kept");
}

#[test]
fn mapped_stores_survive_power_cuts() {
    mapped_stores_in(FaultMode::Thread, first_seed(4000));
    mapped_stores_in(FaultMode::Inline, first_seed(5000));
}
