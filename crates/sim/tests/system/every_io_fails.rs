//! Each I/O of a disk fails once, under a workload of the library over ext4 and XFS.
//!
//! # Model
//!
//! A *case* is a kind of I/O and a number n: the n-th read, write or flush of the disk fails with `EIO`, once, or
//! a write is torn or short. Each
//! case begins with the same disk and does the same steps. The kernel's file system reacts in one of two ways.
//!
//! - It goes on. Then the disk is healed, every handle gets its error once, everything is written, and the file
//!   system equals the cache.
//! - It shuts down (XFS, and ext4 after an error of its journal). Then failed data stays readable. The cache is
//!   closed, and the file system is mounted again: it has all acknowledged data, and no bytes that were never
//!   written.
//!
//! Reads never return anything but the file's bytes, or an error. Nothing hangs. Descriptors, threads and memory are
//! given back.
//!
//! A run takes a sample of each kind. `FOLIOCACHE_EVERY_IO=1` takes every one; `FOLIOCACHE_EVERY_IO=4` a quarter of them.
//! `FOLIOCACHE_SEED` gives another workload. `FOLIOCACHE_CASE=write:17` is one case.

use std::sync::Arc;

use crate::common::{PATIENCE, first_seed, within};
use crate::failing::{
    FILES, PAGE, Promise, Stage, check_medium, directory, eventually, open, read, small_cache,
    threads, unmount,
};
use foliocache::{Advice, Cache, Directory, File};
use foliocache_sim::disk::{Disk, Format, Mounted};
use foliocache_sim::{Effect, Fill, OpSet, Operation, Rng, Rule, RuleId, When, Workload};
use foliocache_sys::Errno;

/// Steps of a case.
const STEPS: usize = 110;

/// A file in use.
struct Used {
    promise: usize,
    worker: File,
    /// A handle that does nothing meanwhile.
    observer: File,
    workload: Workload,
    /// Errors that the worker's syncs gave.
    errors: u64,
}

/// The steps of a case, printed if it fails.
#[derive(Default)]
struct Log(Vec<String>);

impl Drop for Log {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let last = self.0.len().saturating_sub(400);
            eprintln!("the last steps:\n{}", self.0[last..].join("\n"));
        }
    }
}

/// One case.
struct Case<'a> {
    stage: &'a Stage,
    rule: Option<RuleId>,
    cache: Cache,
    dir: Directory,
    used: Vec<Used>,
    promises: Vec<Promise>,
    rng: Rng,
    made: u64,
    log: &'a mut Log,
    /// Whether the fault struck, known once the disk is well again.
    struck: bool,
}

/// How a case went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// This run had fewer I/Os.
    NotReached,
    /// The kernel's file system went on.
    WentOn,
    /// It shut down.
    ShutDown,
}

impl Case<'_> {
    fn fired(&self) -> bool {
        let fired = |rule| self.stage.disk.faults().fired(rule) > Some(0);
        self.struck || self.rule.is_some_and(fired)
    }

    /// Notes an outcome. There are no errors but for the fault.
    fn note<T>(&mut self, what: String, outcome: foliocache::Result<T>) -> Option<T> {
        match outcome {
            Ok(value) => {
                self.log.0.push(what);
                Some(value)
            }
            Err(error) => {
                assert!(self.fired(), "{what}: {error}, and nothing had failed");
                self.log.0.push(format!("{what}: {error}"));
                None
            }
        }
    }

    fn open(&mut self, promise: usize) {
        let name = self.promises[promise].name().to_owned();
        for _ in 0..3 {
            let opened =
                open(&self.dir, &name).and_then(|file| Ok((file, open(&self.dir, &name)?)));
            let Some((worker, observer)) = self.note(format!("open {name}"), opened) else {
                continue;
            };
            let seed = self.rng.next_u64();
            return self.used.push(Used {
                promise,
                worker,
                observer,
                workload: self.promises[promise].workload(seed),
                errors: 0,
            });
        }
    }

    fn step(&mut self) {
        if self.used.is_empty() {
            return;
        }
        let i = self.rng.below(self.used.len() as u64) as usize;
        match self.rng.below(100) {
            0..62 => {
                let operation = self.used[i].workload.next().expect("endless");
                self.operate(i, &operation);
            }
            62..74 => {
                let len = self.used[i].worker.len();
                for pos in (0..len).step_by(128 << 10) {
                    self.operate(
                        i,
                        &Operation::Read {
                            pos,
                            len: 128 << 10,
                        },
                    );
                }
            }
            74..80 => self.replace(i),
            80..84 => self.move_to_and_fro(i),
            84..87 => {
                let synced = self.dir.sync();
                self.note("sync of the directory".to_owned(), synced);
            }
            87..93 => {
                let advised = self.used[i].worker.advise(Advice::DontNeed, ..);
                self.note(format!("drop {i}"), advised);
            }
            93..97 => self.small_file(),
            _ => self.sync_all_files(),
        }
    }

    fn operate(&mut self, i: usize, operation: &Operation) {
        let Used {
            promise, worker, ..
        } = &self.used[i];
        let (promise, worker) = (*promise, worker);
        let what = format!("{} {operation:?}", self.promises[promise].name());
        match *operation {
            Operation::Write { pos, len, fill } => {
                let outcome = worker.write_at(&fill.bytes(pos, len), pos);
                if let Some(len) = self.note(what, outcome) {
                    self.promises[promise].done(&Operation::Write { pos, len, fill });
                }
            }
            Operation::Append { len, fill } => {
                let outcome = worker.append(&fill.bytes(worker.len(), len));
                if let Some((pos, len)) = self.note(what, outcome) {
                    assert_eq!(pos, self.promises[promise].size(), "an append at the end");
                    self.promises[promise].done(&Operation::Write { pos, len, fill });
                }
            }
            Operation::Read { pos, len } => {
                let outcome = read(worker, pos, len);
                if let Some(found) = self.note(what.clone(), outcome) {
                    let expected = self.promises[promise].expected(pos, &found, len);
                    same(&found, &expected, pos, &what);
                }
            }
            Operation::Truncate { size } => {
                let outcome = worker.set_len(size);
                let done = self.note(what, outcome).is_some();
                self.settle(promise, operation, done);
            }
            Operation::PunchHole { pos, len } => {
                let outcome = worker.punch_hole(pos, len);
                let done = self.note(what, outcome).is_some();
                self.settle(promise, operation, done);
            }
            Operation::Fsync { datasync } => {
                let outcome = match datasync {
                    true => worker.sync_data(),
                    false => worker.sync_all(),
                };
                match self.note(what, outcome) {
                    Some(()) => self.acknowledge(promise, !datasync),
                    None => self.used[i].errors += 1,
                }
            }
        }
    }

    fn settle(&mut self, promise: usize, operation: &Operation, done: bool) {
        match done {
            true => self.promises[promise].done(operation),
            false => self.promises[promise].failed(operation),
        }
    }

    fn acknowledge(&mut self, promise: usize, name_too: bool) {
        self.promises[promise].acknowledge();
        if !name_too {
            return;
        }
        self.promises[promise].acknowledge_name();
        let name = self.promises[promise].name().to_owned();
        for (i, other) in self.promises.iter_mut().enumerate() {
            if i != promise {
                other.names.retain(|old| *old != name);
            }
        }
    }

    /// Writes a new file and puts it in the place of another one.
    fn replace(&mut self, i: usize) {
        let old = self.used[i].promise;
        let (from, to) = (
            format!("new{}", self.made),
            self.promises[old].name().to_owned(),
        );
        self.made += 1;
        let options = self
            .dir
            .open_options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&from);
        let Some(file) = self.note(format!("create {from}"), options) else {
            // The kernel may have made it nevertheless.
            self.promises.push(Promise::new(&from));
            self.promises.last_mut().expect("pushed").gone = true;
            return;
        };
        let promise = self.promises.len();
        self.promises.push(Promise::new(&from));
        let len = self.rng.between(1, 200 << 10) as usize;
        let fill = Fill(self.rng.next_u64());
        let written = file.write_at(&fill.bytes(0, len), 0);
        if let Some(len) = self.note(format!("write {len} to {from}"), written) {
            self.promises[promise].done(&Operation::Write { pos: 0, len, fill });
        }
        let synced = file.sync_all();
        if self.note(format!("sync {from}"), synced).is_some() {
            self.acknowledge(promise, true);
            let renamed = self.dir.rename(&from, &to);
            let done = self
                .note(format!("rename {from} to {to}"), renamed)
                .is_some();
            self.promises[promise].names.push(to.clone());
            if done {
                self.promises[old].gone = true;
                self.used.remove(i);
                drop(file);
                return self.open(promise);
            }
            // Its name is not known until it was looked for.
            self.promises[promise].names.push(from.clone());
        }
        drop(file);
        let removed = self.dir.remove_file(&from);
        self.note(format!("remove {from}"), removed);
        self.promises[promise].gone = true;
    }

    fn move_to_and_fro(&mut self, i: usize) {
        let promise = self.used[i].promise;
        let from = self.promises[promise].name().to_owned();
        let to = match from.strip_prefix("d/") {
            Some(name) => name.to_owned(),
            None => format!("d/{from}"),
        };
        let renamed = self.dir.rename(&from, &to);
        let done = self
            .note(format!("rename {from} to {to}"), renamed)
            .is_some();
        self.promises[promise].names.push(to);
        if !done {
            self.promises[promise].names.push(from);
        }
    }

    /// Such a file is written when it is closed, and durable with others.
    fn small_file(&mut self) {
        let name = format!("small{}", self.made);
        self.made += 1;
        let len = self.rng.between(1, 3 * PAGE) as usize;
        let fill = Fill(self.rng.next_u64());
        let written = self.dir.write(&name, fill.bytes(0, len));
        let mut promise = Promise::new(&name);
        let operation = Operation::Write { pos: 0, len, fill };
        match self.note(format!("write {name}"), written) {
            Some(()) => promise.done(&operation),
            None => {
                promise.failed(&operation);
                promise.gone = true;
            }
        }
        self.promises.push(promise);
    }

    fn sync_all_files(&mut self) {
        let synced = self.cache.sync();
        if self.note("sync of the cache".to_owned(), synced).is_some() {
            for i in 0..self.promises.len() {
                if !self.promises[i].gone {
                    self.acknowledge(i, true);
                }
            }
        }
    }

    /// Reads everything through the handles.
    fn check_cache(&mut self, what: &str) {
        for i in 0..self.used.len() {
            let used = &self.used[i];
            let promise = &self.promises[used.promise];
            let what = format!("{what}: {}", promise.name());
            assert_eq!(used.worker.len(), promise.size(), "{what}: size");
            for pos in (0..promise.size()).step_by(PAGE as usize) {
                let read = || read(&used.observer, pos, PAGE as usize);
                // The kernel reports an earlier failed write of the file's tail to a direct read,
                // once.
                let found = read().or_else(|error| if self.struck { read() } else { Err(error) });
                let found = found.unwrap_or_else(|error| panic!("{what} at {pos}: {error}"));
                let expected = promise.expected(pos, &found, PAGE as usize);
                same(&found, &expected, pos, &what);
            }
        }
    }
}

fn same(found: &[u8], expected: &[u8], pos: u64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what} at {pos}: length");
    if let Some(at) = (0..found.len()).find(|&at| found[at] != expected[at]) {
        let at_file = pos + at as u64;
        panic!(
            "{what}: byte {at_file} (page {}) is {:#04x} and not {:#04x}",
            at_file / PAGE,
            found[at],
            expected[at]
        );
    }
}

/// Whether the kernel's file system still takes and keeps data.
fn is_well(mounted: &Mounted) -> bool {
    let path = mounted.path().join("probe");
    let written = std::fs::File::create(&path).and_then(|file| {
        std::os::unix::fs::FileExt::write_all_at(&file, &[1; 100], 0)?;
        file.sync_all()
    });
    let removed =
        std::fs::remove_file(&path).and_then(|()| std::fs::File::open(mounted.path())?.sync_all());
    written.and(removed).is_ok()
}

/// Everything that can be in use is given back.
fn check_gauges(cache: &Cache) {
    let at_rest = eventually(|| {
        let stats = cache.stats().expect("stats");
        let (files, memory) = (&stats.files, &stats.memory);
        let unsynced =
            files.dirty_pages + files.writeback_pages + files.unstable_pages + files.failed_pages;
        unsynced + memory.reserved_pages + memory.waiters + stats.readahead_leased_pages == 0
    });
    assert!(at_rest, "{:#?}", cache.stats());
    assert_eq!(cache.stats().expect("stats").background_panics, 0);
    assert!(cache.unsynced_files().expect("unsynced").is_empty());
}

/// The kernel's file system goes on and the disk is well: every handle gets its error once, and everything is written.
fn end_well(mut case: Case<'_>) -> Vec<Promise> {
    case.check_cache("before it is written");
    for i in 0..case.used.len() {
        let Used {
            promise,
            worker,
            observer,
            errors,
            ..
        } = &case.used[i];
        let name = case.promises[*promise].name();
        let first = observer.sync_all();
        assert!(
            first.is_ok() || case.fired(),
            "{name}: {first:?}, and nothing had failed"
        );
        assert!(
            first.is_err() || *errors == 0,
            "{name}: {errors} errors were told to one handle, and none to the other"
        );
        observer
            .sync_all()
            .unwrap_or_else(|error| panic!("{name}: told twice: {error}"));
        // A failure since its last sync.
        let _ = worker.sync_all();
        worker
            .sync_all()
            .unwrap_or_else(|error| panic!("{name}: told twice: {error}"));
    }
    let _ = case.cache.sync();
    case.cache.sync().expect("the disk is well");
    for i in 0..case.promises.len() {
        if !case.promises[i].gone {
            case.acknowledge(i, true);
        }
    }
    case.check_cache("after it was written");
    case.used.clear();
    check_gauges(&case.cache);
    let Case {
        cache,
        dir,
        promises,
        ..
    } = case;
    drop(dir);
    cache.close().expect("nothing is left to lose");
    promises
}

/// Bytes of a file, by its number and their position.
type Kept = (usize, u64, Vec<u8>);

/// The kernel's file system takes no more data. Returns the data that only the cache has, which is
/// readable.
fn end_shut_down(mut case: Case<'_>) -> (Vec<Promise>, Vec<Kept>) {
    let mut kept = Vec::new();
    for i in 0..case.used.len() {
        // Everything dirty is tried, and fails.
        let _ = case.used[i].worker.sync_data();
        let Used {
            promise,
            worker,
            observer,
            ..
        } = &case.used[i];
        let (promise, expected) = (*promise, &case.promises[*promise]);
        let name = expected.name();
        assert_eq!(worker.len(), expected.size(), "{name}: size");
        let failed = worker.failed_ranges().expect("ranges");
        for range in failed {
            let len = (range.end.min(worker.len()) - range.start) as usize;
            let found = read(observer, range.start, len);
            let found = found.unwrap_or_else(|error| panic!("{name}: {range:?} is dirty: {error}"));
            let bytes = expected.expected(range.start, &found, len);
            same(&found, &bytes, range.start, name);
            kept.push((promise, range.start, found));
        }
        // The rest is right, or an error.
        for pos in (0..expected.size()).step_by(PAGE as usize) {
            if let Ok(found) = read(observer, pos, PAGE as usize) {
                let bytes = expected.expected(pos, &found, PAGE as usize);
                same(&found, &bytes, pos, name);
            }
        }
    }
    let unsynced = case.cache.unsynced_files().expect("unsynced").len();
    case.used.clear();
    let Case {
        mut cache,
        dir,
        promises,
        ..
    } = case;
    drop(dir);
    let refused = cache.clone().close().err();
    assert!(
        refused.is_some() || unsynced == 0,
        "{unsynced} files, and the cache closes"
    );
    if let Some(refused) = refused {
        cache = refused.into_cache();
        cache.discard_unsynced().expect("given up");
    }
    check_gauges(&cache);
    (promises, kept)
}

/// Which I/O fails.
type Fault = Option<(OpSet, Effect, u64)>;

fn run_case(stage: &Stage, fault: Fault, seed: u64) -> (End, [u64; KINDS.len()]) {
    let threads_before = threads();
    let mounted = stage.begin();
    let faults = stage.disk.faults();
    let mut counts = faults.counts();
    let before = counts;
    let rule =
        fault.map(|(kind, effect, n)| faults.add(Rule::new(kind, effect).when(When::Nth(n))));
    let cache = small_cache();
    let opened = (0..3).find_map(|_| directory(&cache, &mounted).ok());
    let mut promises: Vec<_> = (0..FILES).map(Promise::base).collect();
    let mut kept = Vec::new();
    let mut steps = Log::default();
    let mut end = End::NotReached;
    match opened {
        Some(dir) => {
            let (rng, log, used) = (Rng::new(seed), &mut steps, Vec::new());
            let (made, struck) = (0, false);
            let mut case = Case {
                stage,
                rule,
                cache,
                dir,
                used,
                promises,
                rng,
                made,
                log,
                struck,
            };
            (0..FILES).for_each(|i| case.open(i));
            (0..STEPS).for_each(|_| case.step());
            case.struck = case.fired();
            let fired = case.struck;
            counts = faults.counts();
            faults.heal();
            let well = is_well(&mounted);
            assert!(
                well || fired,
                "the file system is broken, and nothing had failed"
            );
            (promises, kept) = match well {
                true => (end_well(case), Vec::new()),
                false => end_shut_down(case),
            };
            if fired {
                end = if well { End::WentOn } else { End::ShutDown };
            }
        }
        None => drop(cache),
    }
    faults.heal();
    unmount(mounted);
    let again = stage.mount_again();
    check_medium(again.path(), &promises, &format!("on the medium ({end:?})"));
    if end == End::ShutDown {
        let cache = small_cache();
        let dir = directory(&cache, &again).expect("the directory");
        for (promise, pos, bytes) in &kept {
            let name = format!("kept{promise}");
            let file = dir
                .open_options()
                .read(true)
                .write(true)
                .create(true)
                .open(&name)
                .expect("create");
            file.write_all_at(bytes, *pos).expect("write");
        }
        drop(dir);
        cache.close().expect("everything is written");
        for (promise, pos, bytes) in &kept {
            let found = std::fs::read(again.path().join(format!("kept{promise}"))).expect("read");
            let pos = *pos as usize;
            same(
                &found[pos..pos + bytes.len()],
                bytes,
                pos as u64,
                "what was kept",
            );
        }
    }
    unmount(again);
    let ended = eventually(|| threads() <= threads_before);
    assert!(ended, "{} threads, {threads_before} before", threads());
    let begun = KINDS.map(|(_, kind, _)| counts.begun_of(kind) - before.begun_of(kind));
    (end, begun)
}

/// The faults, by name.
const KINDS: [(&str, OpSet, Effect); 5] = [
    ("read", OpSet::READ, Effect::Fail(Errno::EIO)),
    ("write", OpSet::WRITE, Effect::Fail(Errno::EIO)),
    ("flush", OpSet::FLUSH, Effect::Fail(Errno::EIO)),
    ("torn", OpSet::WRITE, Effect::Torn(Errno::EIO)),
    ("short", OpSet::WRITE, Effect::Short),
];

/// How many I/Os of a kind a sample takes.
const SAMPLE: u64 = 12;

/// The cases of a run: all, every k-th, a sample, or one.
fn chosen(name: &str, total: u64, rng: &mut Rng) -> Vec<u64> {
    if let Ok(case) = std::env::var("FOLIOCACHE_CASE") {
        let n = case
            .strip_prefix(name)
            .and_then(|rest| rest.strip_prefix(':'));
        let n = n.map(|n| n.parse().expect("KIND:NUMBER"));
        return n.into_iter().collect();
    }
    let step = match std::env::var("FOLIOCACHE_EVERY_IO") {
        Ok(step) => step.parse().expect("FOLIOCACHE_EVERY_IO is a number"),
        Err(_) => total.div_ceil(SAMPLE).max(1),
    };
    // One of each group, so that all of the workload is struck.
    let groups = (1..=total).step_by(step as usize);
    groups
        .map(|first| first + rng.below(step.min(total - first + 1)))
        .collect()
}

fn every_io_fails_once(format: Format) {
    if Disk::skip() {
        return;
    }
    let seed = first_seed(1);
    let stage = Arc::new(Stage::new(format));
    let state = |what: String| {
        let stage = Arc::clone(&stage);
        move || format!("{what}\n{}", stage.disk.faults().trace_text(30))
    };
    let run = |fault: Fault, what: &str| {
        let stage = Arc::clone(&stage);
        let what = format!("{what}, FOLIOCACHE_SEED={seed}");
        let case = std::panic::AssertUnwindSafe(|| {
            let inner = Arc::clone(&stage);
            within(PATIENCE, state(what.clone()), move || {
                run_case(&inner, fault, seed)
            })
        });
        std::panic::catch_unwind(case).unwrap_or_else(|panic| {
            eprintln!("{what} failed; {}", stage.disk.faults().trace_text(30));
            std::panic::resume_unwind(panic)
        })
    };
    // Without a fault: counts the I/Os.
    let (end, totals) = run(None, "without a fault");
    assert_eq!(end, End::NotReached);
    let mut rng = Rng::new(seed);
    let mut ends = Vec::new();
    for ((name, kind, effect), total) in KINDS.into_iter().zip(totals) {
        assert!(total > 0, "no {name}");
        for n in chosen(name, total, &mut rng) {
            let started = std::time::Instant::now();
            let (end, _) = run(
                Some((kind, effect, n)),
                &format!("FOLIOCACHE_CASE={name}:{n}"),
            );
            if std::env::var_os("FOLIOCACHE_VERBOSE").is_some() {
                println!("{format:?} {name}:{n}: {end:?} in {:?}", started.elapsed());
            }
            ends.push(end);
        }
        let count = |end| ends.iter().filter(|&&other| other == end).count();
        println!(
            "{format:?}: {name}: {total} of them; up to now {} cases: the file system went on in {}, shut down in {}, \
             was not struck in {}",
            ends.len(),
            count(End::WentOn),
            count(End::ShutDown),
            count(End::NotReached),
        );
    }
    let struck = ends.iter().filter(|&&end| end != End::NotReached).count();
    assert!(struck * 2 >= ends.len(), "{struck} of {}", ends.len());
}

#[test]
#[ignore = "system tier"]
fn each_io_of_an_ext4_fails_once_and_nothing_is_lost() {
    every_io_fails_once(Format::Ext4);
}

#[test]
#[ignore = "system tier"]
fn each_io_of_an_xfs_fails_once_and_nothing_is_lost() {
    every_io_fails_once(Format::Xfs);
}
