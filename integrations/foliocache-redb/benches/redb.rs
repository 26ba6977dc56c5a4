//! redb on foliocache beside redb's own `FileBackend`, in the same memory: `cargo bench -p foliocache-redb [-- --quick]`.
//!
//! # Model
//!
//! ```text
//!  this process ──round by round──▶ process "file"        in a memory cgroup of its own
//!                                   process "foliocache"  in one of the same size
//!                                     └─ new database: load, single, batches, gets, ranges
//! ```
//!
//! The cgroup bounds all of a process: its heap, redb's own cache, and the pages that the kernel or foliocache keeps of the file. Rounds take turns in
//! which one is first. A ratio is foliocache's rate over the other's: the median of the rounds, with the least and the largest.
//!
//! What the device was told to write is read from `/sys/dev/block`, so it is that of all processes of the machine.

use foliocache::Cache;
use foliocache_redb::FolioBackend;
use redb::{Builder, Database, ReadableDatabase, TableDefinition};
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::str::FromStr;
use std::time::Instant;

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

const TABLE: TableDefinition<&[u8], &[u8]> = TableDefinition::new("table");
const PHASES: [&str; 5] = ["load", "single", "batches", "gets", "ranges"];
const SIDES: [&str; 2] = ["file", "foliocache"];
/// Updates of a batch.
const BATCH: u64 = 1_000;
/// Elements of a range.
const RANGE: usize = 100;
const MIB: u64 = 1 << 20;

/// How much is done.
#[derive(Clone, Copy)]
struct Size {
    /// Of the cgroup, in MiB.
    memory: u64,
    /// Of these, foliocache's bound. The rest is for redb's cache, the heap and the program.
    bound: u64,
    /// Of these, redb's own cache, on both sides.
    redb: u64,
    elements: u64,
    singles: u64,
    batches: u64,
    gets: u64,
    ranges: u64,
    rounds: usize,
}

const FULL: Size = Size {
    memory: 256,
    bound: 208,
    redb: 32,
    elements: 1_000_000,
    singles: 1_000,
    batches: 40,
    gets: 300_000,
    ranges: 20_000,
    rounds: 5,
};
const QUICK: Size = Size {
    memory: 96,
    bound: 76,
    redb: 8,
    elements: 200_000,
    singles: 100,
    batches: 10,
    gets: 100_000,
    ranges: 5_000,
    rounds: 3,
};
/// As a test: without a cgroup.
const TINY: Size = Size {
    memory: 0,
    bound: 16,
    redb: 1,
    elements: 1_000,
    singles: 3,
    batches: 1,
    gets: 100,
    ranges: 10,
    rounds: 1,
};

/// What a phase took.
#[derive(Clone, Copy)]
struct Took {
    /// Operations in a second.
    rate: f64,
    /// Microseconds of an operation; of a batch as a whole.
    p50: f64,
    p99: f64,
    /// MiB that the device wrote.
    written: f64,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    // Cargo says `--bench` if it is not a test.
    let size = match () {
        () if !has("--bench") && !has("--side") => TINY,
        () if has("--tiny") => TINY,
        () if has("--quick") => QUICK,
        () => FULL,
    };
    if let Some(at) = arguments.iter().position(|argument| argument == "--side") {
        return match &arguments[at + 1..] {
            [side, path, group, ..] => measure(side, Path::new(path), group, size),
            _ => Err("--side needs a side, a path and a cgroup".into()),
        };
    }
    compare(size)
}

/// The rounds, and what they come to.
fn compare(size: Size) -> Result<()> {
    let folder = tempfile::tempdir_in(".")?;
    let mut rounds: Vec<[Vec<Took>; 2]> = Vec::new();
    for round in 0..size.rounds {
        let mut sides = [Vec::new(), Vec::new()];
        for turn in 0..2 {
            let side = (round + turn) % 2;
            sides[side] = run(SIDES[side], folder.path(), size)
                .map_err(|error| format!("{}: {error}", SIDES[side]))?;
        }
        rounds.push(sides);
    }
    print!("{}", report(&rounds, size)?);
    Ok(())
}

/// One side of a round, in a process of its own.
fn run(side: &str, folder: &Path, size: Size) -> Result<Vec<Took>> {
    let path = folder.join(side);
    let group = match size.memory {
        0 => None,
        memory => Some(Cgroup::new(side, memory * MIB)?),
    };
    let mut command = Command::new(std::env::current_exe()?);
    match size.elements {
        n if n == TINY.elements => _ = command.arg("--tiny"),
        n if n == QUICK.elements => _ = command.arg("--quick"),
        _ => {}
    }
    command.args(["--side", side]).arg(&path);
    command.arg(group.as_ref().map_or(Path::new("-"), |group| &group.0));
    let done = command.stderr(process::Stdio::inherit()).output()?;
    fs::remove_file(&path)?;
    if !done.status.success() {
        return Err(format!("its process failed: {}", done.status).into());
    }
    let parse = |line: &str| {
        let numbers: Vec<f64> = line
            .split(' ')
            .map(f64::from_str)
            .collect::<Result<_, _>>()?;
        let [rate, p50, p99, written] = numbers[..] else {
            return Err(format!("no answer: {line}").into());
        };
        Ok(Took {
            rate,
            p50,
            p99,
            written,
        })
    };
    String::from_utf8(done.stdout)?.lines().map(parse).collect()
}

/// A memory cgroup that goes when it is dropped.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new(side: &str, bytes: u64) -> Result<Self> {
        // Version 1, version 2 beside it.
        let mounted = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
        ];
        let found = mounted
            .iter()
            .find(|(parent, _)| Path::new(parent).join("cgroup.procs").exists());
        let (parent, limit) = found.ok_or("there are no memory cgroups")?;
        let path = Path::new(parent).join(format!("foliocache-redb-{}-{side}", process::id()));
        let made =
            fs::create_dir(&path).and_then(|()| fs::write(path.join(limit), bytes.to_string()));
        match made {
            Ok(()) => Ok(Self(path)),
            Err(error) => Err(format!("no memory cgroup {}: {error}", path.display()).into()),
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Its process has ended; the kernel may notice it late.
        for _ in 0..100 {
            match fs::remove_dir(&self.0) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
                _ => return,
            }
        }
        eprintln!("{} stays behind", self.0.display());
    }
}

/// Numbers that follow from a seed (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&self.next().to_le_bytes()[..part.len()]);
        }
        bytes
    }
}

/// The keys have no order, as hashes have none.
fn key(number: u64) -> [u8; 24] {
    Numbers(number ^ 0x5eed).bytes()
}

/// The process of a side: does all phases on a new database, and prints what they took.
fn measure(side: &str, path: &Path, group: &str, size: Size) -> Result<()> {
    if group != "-" {
        fs::write(
            Path::new(group).join("cgroup.procs"),
            process::id().to_string(),
        )?;
    }
    let mut builder = Builder::new();
    builder.set_cache_size((size.redb * MIB) as usize);
    let (db, cache) = match side {
        "file" => (builder.create(path)?, None),
        _ => {
            let cache = Cache::builder().memory(size.bound * MIB).build()?;
            let backend = FolioBackend::create(&cache, path)?;
            (builder.create_with_backend(backend)?, Some(cache))
        }
    };
    let device = fs::metadata(path)?.dev();
    let mut numbers = Numbers(1);

    phase(device, size.elements, &mut |_| load(&db, size.elements))?;
    phase(device, size.singles, &mut |times| {
        for _ in 0..size.singles {
            timed(times, || update(&db, 1, size.elements, &mut numbers))?;
        }
        Ok(())
    })?;
    phase(device, size.batches * BATCH, &mut |times| {
        for _ in 0..size.batches {
            timed(times, || update(&db, BATCH, size.elements, &mut numbers))?;
        }
        Ok(())
    })?;
    // Once before, so that what fits is in memory.
    gets(&db, size.gets, size.elements, 2, &mut Vec::new())?;
    phase(device, size.gets, &mut |times| {
        gets(&db, size.gets, size.elements, 3, times)
    })?;
    phase(device, size.ranges, &mut |times| {
        ranges(&db, size.ranges, size.elements, times)
    })?;
    drop(db);
    if let Some(cache) = cache {
        cache.close()?;
    }
    Ok(())
}

/// Runs a phase of so many operations, and prints what it took.
fn phase(
    device: u64,
    operations: u64,
    act: &mut dyn FnMut(&mut Vec<f64>) -> Result<()>,
) -> Result<()> {
    let mut times = Vec::new();
    let before = written(device);
    let start = Instant::now();
    act(&mut times)?;
    let took = start.elapsed().as_secs_f64();
    let written = written(device).zip(before).map_or(f64::NAN, |(a, b)| a - b);
    times.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let last = times.len().saturating_sub(1);
        let time = times.get((last as f64 * share) as usize);
        time.copied().unwrap_or(f64::NAN)
    };
    let rate = operations as f64 / took;
    println!("{rate} {} {} {written}", at(0.5), at(0.99));
    Ok(())
}

fn timed<T>(times: &mut Vec<f64>, act: impl FnOnce() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    let done = act();
    times.push(start.elapsed().as_secs_f64() * 1e6);
    done
}

/// MiB written to the device with this number, by anybody.
fn written(device: u64) -> Option<f64> {
    let (major, minor) = (
        (device >> 8) & 0xfff | (device >> 32) & !0xfff,
        device & 0xff | (device >> 12) & !0xff,
    );
    let stat = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?;
    let sectors: f64 = stat.split_whitespace().nth(6)?.parse().ok()?;
    Some(sectors * 512.0 / MIB as f64)
}

fn load(db: &Database, elements: u64) -> Result<()> {
    let mut numbers = Numbers(0);
    let transaction = db.begin_write()?;
    let mut table = transaction.open_table(TABLE)?;
    for number in 0..elements {
        table.insert(&key(number)[..], &numbers.bytes::<150>()[..])?;
    }
    drop(table);
    Ok(transaction.commit()?)
}

/// A durable transaction.
fn update(db: &Database, count: u64, elements: u64, numbers: &mut Numbers) -> Result<()> {
    let transaction = db.begin_write()?;
    let mut table = transaction.open_table(TABLE)?;
    for _ in 0..count {
        let key = key(numbers.next() % elements);
        table.insert(&key[..], &numbers.bytes::<150>()[..])?;
    }
    drop(table);
    Ok(transaction.commit()?)
}

fn gets(db: &Database, gets: u64, elements: u64, seed: u64, times: &mut Vec<f64>) -> Result<()> {
    let table = db.begin_read()?.open_table(TABLE)?;
    let mut numbers = Numbers(seed);
    for _ in 0..gets {
        let key = key(numbers.next() % elements);
        timed(times, || {
            let value = table.get(&key[..])?.ok_or("an element is missing")?;
            Ok(std::hint::black_box(value.value()[0]))
        })?;
    }
    Ok(())
}

fn ranges(db: &Database, ranges: u64, elements: u64, times: &mut Vec<f64>) -> Result<()> {
    let table = db.begin_read()?.open_table(TABLE)?;
    let mut numbers = Numbers(4);
    for _ in 0..ranges {
        let key = key(numbers.next() % elements);
        timed(times, || {
            for element in table.range(&key[..]..)?.take(RANGE) {
                std::hint::black_box(element?.1.value()[0]);
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut numbers: Vec<_> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

fn report(rounds: &[[Vec<Took>; 2]], size: Size) -> Result<String> {
    let mut text = String::new();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    writeln!(
        text,
        "{} elements, {} MiB for each process ({} for redb's cache, {} for foliocache's), medians of {} rounds; load {}",
        size.elements,
        size.memory,
        size.redb,
        size.bound,
        rounds.len(),
        load.trim()
    )?;
    writeln!(text, "\n| | | ops/s | p50 µs | p99 µs | device, MiB |")?;
    writeln!(text, "|---|---|---|---|---|---|")?;
    for (phase, name) in PHASES.iter().enumerate() {
        for (side, title) in SIDES.iter().enumerate() {
            let of = |part: fn(&Took) -> f64| {
                median(rounds.iter().map(|round| part(&round[side][phase])))
            };
            let time = |time: f64| match time.is_nan() {
                true => "–".to_owned(),
                false => format!("{time:.1}"),
            };
            writeln!(
                text,
                "| {name} | {title} | {:.0} | {} | {} | {} |",
                of(|took| took.rate),
                time(of(|took| took.p50)),
                time(of(|took| took.p99)),
                time(of(|took| took.written)),
            )?;
        }
    }
    writeln!(text, "\n| ratio | median | least to largest |")?;
    writeln!(text, "|---|---|---|")?;
    for (phase, name) in PHASES.iter().enumerate() {
        let ratios = || {
            let ratio = |round: &[Vec<Took>; 2]| round[1][phase].rate / round[0][phase].rate;
            rounds.iter().map(ratio)
        };
        let least = ratios().fold(f64::INFINITY, f64::min);
        let largest = ratios().fold(0.0, f64::max);
        writeln!(
            text,
            "| `redb_{name}_vs_file` | {:.2} | {least:.2} to {largest:.2} |",
            median(ratios())
        )?;
    }
    Ok(text)
}
