//! Everything at once over two file systems: the library in all its ways, and mounts of the command beside it.
//!
//! # Model
//!
//! ```text
//!   ext4                            XFS                       memory
//!   ├─ library  ┐                   ├─ library ┐              │
//!   │           └── one cache ──────│──────────┴──────────────┘
//!   └─ served ── mount              └─ served ── mount (another --kernel-cache)
//! ```
//!
//! The soak runs in rounds of a minute. In a round all workers run at the same time, each with a model of its
//! files: contents, trees of names, logs, objects moved into place, changes by others, a large file shared by
//! threads, futures, kept views, moving memory bounds, `status` and `set` of the mounts. Each compares its reads
//! with its model, and the synced data with the source. Then comes a *rest*: everything is written back, the bounds
//! become small, all gauges must be zero, and the resources of the processes are recorded. At the end the cache is
//! closed, the mounts end, and the file systems are unmounted. Memory, threads and descriptors must not have grown
//! from rest to rest, and none may be left.
//!
//! A seed gives the same operations, not the same schedule.
//!
//! | variable | default |
//! |---|---|
//! | `FOLIOCACHE_SOAK_SECONDS` | 20 |
//! | `FOLIOCACHE_SOAK_SEED` | the time |
//! | `FOLIOCACHE_SOAK_CPU`: percent of a processor that all may use | no bound |
//! | `FOLIOCACHE_SOAK_DIR`: where the images are | the directory for temporary files |
//! | `FOLIOCACHE_SOAK_STOP`: a file; once it is there, the round is the last | none |
//! | `FOLIOCACHE_SOAK_PROGRAM`: the command | the one that cargo built |
//!
//! `cargo xtask soak --minutes N` runs it for longer. Needs FUSE and root.

mod contents;
mod disks;
mod futures;
mod gauges;
mod journal;
mod library;
mod mounted;
mod others;
mod place;
mod repository;
mod shared;
mod tree;
mod work;

use disks::Disk;
use foliocache::{AsyncDirectory, Cache, Directory, DirectoryOptions};
use gauges::{Sample, Series, sample};
use library::Library;
use mounted::Mount;
use place::Place;
use serde_json::Value;
use shared::Shared;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Scope};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use work::{Context, Done, Run, Worker, guarded};

/// The bounds between which the library's memory moves during a round.
const BOUNDS: [u64; 4] = [24 << 20, 32 << 20, 48 << 20, 80 << 20];

/// The most descriptors that a directory of the library keeps for names.
const DESCRIPTORS: usize = 24;

/// The bound at rest.
const SMALL: u64 = 16 << 20;

/// The longest for a gauge to become zero.
const PATIENCE: Duration = Duration::from_secs(90);

/// The most seconds of a round.
const ROUND: u64 = 60;

fn setting<T: FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    let value = text.parse();
    Some(value.unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap().as_nanos() as u64 % 1_000_000_007
}

#[test]
#[ignore = "system tier"]
fn everything_at_once_leaves_nothing_behind() {
    let missing = std::env::var("FOLIOCACHE_MISSING").unwrap_or_default();
    let missing: Vec<&str> = missing.split(',').collect();
    if let Some(what) = missing.iter().find(|name| ["fuse", "root"].contains(name)) {
        eprintln!("SKIPPED: there is no {what}");
        return;
    }
    let seconds: u64 = setting("FOLIOCACHE_SOAK_SECONDS").unwrap_or(20);
    let seed = setting("FOLIOCACHE_SOAK_SEED").unwrap_or_else(fresh_seed);
    let run = Run::new(seed, setting("FOLIOCACHE_SOAK_CPU").unwrap_or(0));
    println!(
        "soak of {seconds} s, seed {seed}, processor bound {} %",
        run.cpu
    );
    let maps = !missing.contains(&"userfaultfd");
    let begun = Instant::now();
    let mut series = Vec::new();
    if let Err(why) = soak(&run, Duration::from_secs(seconds), maps, &mut series) {
        run.fail(why);
    }
    for series in &series {
        println!("{series}");
        if let Some(growth) = series.growth() {
            run.fail(growth);
        }
    }
    let (done, bytes) = run.totals();
    println!("{}", list(&done));
    let failures = run.failures();
    println!(
        "verdict: {} after {:.0} min: {} operations of {} kinds, {} MiB, {} refused for want of memory and repeated, seed {seed}",
        if failures.is_empty() {
            "PASSED"
        } else {
            "FAILED"
        },
        begun.elapsed().as_secs_f64() / 60.0,
        done.values().sum::<u64>(),
        done.len(),
        bytes >> 20,
        work::REFUSED.load(Ordering::Relaxed),
    );
    assert!(failures.is_empty(), "seed {seed}: {failures:#?}");
}

fn list(done: &BTreeMap<&'static str, u64>) -> String {
    let parts: Vec<_> = done.iter().map(|(kind, n)| format!("{kind} {n}")).collect();
    parts.join(", ")
}

/// One file system with its workers.
struct Part {
    disk: Disk,
    library: Library,
    futures: AsyncDirectory,
    shared: Shared,
    mount: Mount,
}

/// Makes everything, runs the rounds, takes everything away.
fn soak(run: &Run, time: Duration, maps: bool, series: &mut Vec<Series>) -> Done {
    let this = std::process::id();
    let before = sample(this)?;
    let begun = Instant::now();
    let parent = std::env::var_os("FOLIOCACHE_SOAK_DIR").map(PathBuf::from);
    let parent = parent.unwrap_or_else(std::env::temp_dir);
    let cache = Cache::builder().memory(BOUNDS[2]).build();
    let cache = cache.context(|| "cache".to_owned())?;
    let mut parts = Vec::new();
    for (i, disk) in disks::make(&parent)?.into_iter().enumerate() {
        parts.push(part(&cache, disk, i, maps)?);
    }
    let memory = cache.memfs().context(|| "memfs".to_owned())?;
    let memory = over(memory, None, maps);

    series.push(Series::new("library".to_owned()));
    for part in &parts {
        series.push(Series::new(format!("mount of {}", part.disk.kind)));
    }
    let pids: Vec<u32> = [this]
        .into_iter()
        .chain(parts.iter().map(|part| part.mount.pid()))
        .collect();
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| run.govern(&pids, &ended));
        let done = rounds(run, &cache, &parts, &memory, begun + time, series);
        ended.store(true, Ordering::Relaxed);
        done
    })?;
    drop(memory);
    finish(cache, parts)?;
    // Threads that end are gone a moment later.
    wait_for("the library to leave nothing behind", || {
        let after = sample(this)?;
        let left = after.threads > before.threads || after.descriptors > before.descriptors;
        Ok((!left)
            .then_some(())
            .ok_or_else(|| format!("{before} before, {after} after")))
    })
}

fn over(directory: Directory, source: Option<PathBuf>, maps: bool) -> Library {
    Library {
        directory,
        source,
        maps,
        largest: contents::LARGEST,
    }
}

fn part(cache: &Cache, disk: Disk, number: usize, maps: bool) -> Done<Part> {
    let [ours, served] = ["library", "served"].map(|name| disk.top.join(name));
    let point = disk.top.with_file_name("mount");
    for folder in [&ours, &served, &point] {
        std::fs::create_dir(folder).context(|| format!("make {}", folder.display()))?;
    }
    // Few, so that a descriptor more at each rest is soon one too many.
    let options = || DirectoryOptions::new().path_descriptors(DESCRIPTORS);
    let open = || {
        let directory = cache.directory_with(&ours, options());
        directory.context(|| ours.display().to_string())
    };
    let futures = open()?
        .into_async()
        .context(|| "async directory".to_owned())?;
    let kernel_cache = ["mapped", "all", "none"][number % 3];
    Ok(Part {
        library: over(open()?, Some(ours.clone()), maps),
        shared: Shared::new(number as u32 + 1, open()?, maps)?,
        mount: Mount::new(&served, &point, "48M", kernel_cache)?,
        futures,
        disk,
    })
}

/// Rounds until `end`, at least three.
fn rounds(
    run: &Run,
    cache: &Cache,
    parts: &[Part],
    memory: &Library,
    end: Instant,
    series: &mut [Series],
) -> Done {
    let length = Duration::from_secs(ROUND).min(end.saturating_duration_since(Instant::now()) / 3);
    let begun = Instant::now();
    let mut before = run.totals();
    let stop = std::env::var_os("FOLIOCACHE_SOAK_STOP").map(PathBuf::from);
    for round in 0.. {
        let round_begun = Instant::now();
        run.begin_round();
        thread::scope(|scope| {
            start(scope, run, round, cache, parts, memory);
            // A failure ends the round at once.
            while round_begun.elapsed() < length && !run.has_failed() {
                thread::sleep(Duration::from_millis(100));
            }
            run.end_round();
        });
        if run.has_failed() {
            return Err(format!("round {round} failed"));
        }
        let worked = round_begun.elapsed();
        let samples = rest(cache, parts)?;
        let after = run.totals();
        report(begun.elapsed(), worked, &before, &after, series, &samples);
        before = after;
        for (series, sample) in series.iter_mut().zip(samples) {
            series.push(sample);
        }
        let stopped = stop.as_ref().is_some_and(|stop| stop.exists());
        if stopped || round >= 2 && Instant::now() + length / 2 > end {
            return Ok(());
        }
    }
    Ok(())
}

/// Starts all workers of a round.
fn start<'a>(
    scope: &'a Scope<'a, '_>,
    run: &'a Run,
    round: u64,
    cache: &'a Cache,
    parts: &'a [Part],
    memory: &'a Library,
) {
    let begin = move |name: String, work: Box<dyn FnOnce(&mut Worker<'a>) -> Done + Send + 'a>| {
        let worker = run.worker(name, round);
        scope.spawn(move || guarded(worker, work));
    };
    type Work = fn(&mut Worker<'_>, &dyn Place, &str) -> Done;
    let of_places: [(&str, Work); 6] = [
        ("contents", contents::work),
        ("more-contents", contents::work),
        ("tree", tree::work),
        ("journal", journal::work),
        ("repository", repository::work),
        ("others", others::work),
    ];
    let mut places: Vec<(String, &'a dyn Place)> = vec![("memory".to_owned(), memory)];
    for part in parts {
        places.push((format!("library on {}", part.disk.kind), &part.library));
        places.push((format!("mount of {}", part.disk.kind), &part.mount));
    }
    for (name, place) in places {
        for (kind, work) in of_places {
            let folder = format!("{kind}-{round}");
            let of = move |worker: &mut Worker<'a>| work(worker, place, &folder);
            begin(format!("{kind} of {name}"), Box::new(of));
        }
    }
    for part in parts {
        let (kind, shared) = (&part.disk.kind, &part.shared);
        for i in 0..2 {
            let of = |worker: &mut Worker<'a>| shared::work(worker, shared);
            begin(format!("shared file {i} on {kind}"), Box::new(of));
        }
        let of = |worker: &mut Worker<'a>| shared::views(worker, shared);
        begin(format!("views on {kind}"), Box::new(of));
        let folder = format!("futures-{round}");
        let of = move |worker: &mut Worker<'a>| futures::work(worker, &part.futures, &folder);
        begin(format!("futures on {kind}"), Box::new(of));
        let of = |worker: &mut Worker<'a>| ask(worker, &part.mount);
        begin(format!("status of {kind}"), Box::new(of));
    }
    let of = |worker: &mut Worker<'a>| shared::limits(worker, cache, &BOUNDS);
    begin("limits".to_owned(), Box::new(of));
}

fn number(status: &Value, name: &str) -> Done<u64> {
    let value = status[name].as_f64().map(|value| value as u64);
    value.ok_or_else(|| format!("status has no {name}: {status}"))
}

/// Asks a mount for its status and moves its bound.
fn ask(worker: &mut Worker<'_>, mount: &Mount) -> Done {
    while worker.goes_on() {
        for _ in 0..15 {
            if !worker.goes_on() {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(100));
        }
        let status = mount.status()?;
        worker.did("status of a mount", 0);
        if status["state"] != "serving" || number(&status, "panics")? > 0 {
            return Err(format!("{status}"));
        }
        if number(&status, "failed_bytes")? > 0 {
            return Err(format!("data that was not written: {status}"));
        }
        let bound = BOUNDS[worker.rng.below(BOUNDS.len() as u64) as usize];
        mount.set_memory(bound)?;
        worker.did("set memory of a mount", 0);
    }
    Ok(())
}

/// Waits until `check` succeeds; its error says what is missing.
fn wait_for(what: &str, mut check: impl FnMut() -> Done<Result<(), String>>) -> Done {
    let begun = Instant::now();
    loop {
        match check()? {
            Ok(()) => return Ok(()),
            Err(why) if begun.elapsed() > PATIENCE => {
                return Err(format!("waited {PATIENCE:?} for {what}: {why}"));
            }
            Err(_) => thread::sleep(Duration::from_millis(50)),
        }
    }
}

fn zero(gauges: &[(&str, u64)]) -> Result<(), String> {
    let left: Vec<_> = gauges.iter().filter(|(_, value)| *value > 0).collect();
    match left.is_empty() {
        true => Ok(()),
        false => Err(format!("not zero: {left:?}")),
    }
}

/// Gauges that must be zero at rest.
fn library_gauges(cache: &Cache) -> Done<Result<(), String>> {
    let about = || "statistics".to_owned();
    let stats = cache.stats().context(about)?;
    let files = &stats.files;
    Ok(zero(&[
        ("dirty_pages", files.dirty_pages),
        ("writeback_pages", files.writeback_pages),
        ("unstable_pages", files.unstable_pages),
        ("failed_pages", files.failed_pages),
        ("pinned_pages", files.pinned_pages),
        ("uncached pages pending", files.uncached.pending_pages()),
        ("reserved_pages", stats.memory.reserved_pages),
        ("waiters", stats.memory.waiters),
        ("readahead_leased_pages", stats.readahead_leased_pages),
        ("background_panics", stats.background_panics),
        ("memory_faults", stats.memory_faults),
        ("unreclaimable pages", stats.unreclaimable.total_pages()),
        (
            "bytes beyond the bound",
            stats
                .memory
                .total_bytes()
                .saturating_sub(stats.memory.limit_bytes),
        ),
        ("holders", cache.holders(1).context(about)?.len() as u64),
        (
            "unsynced files",
            cache.unsynced_files().context(about)?.len() as u64,
        ),
    ]))
}

fn mount_gauges(mount: &Mount) -> Done<Result<(), String>> {
    let status = mount.status()?;
    let names = [
        "dirty_bytes",
        "writeback_bytes",
        "unstable_bytes",
        "failed_bytes",
        "memory_waiters",
        "memory_unreclaimable_bytes",
        "failed_files_count",
        "memory_faults",
        "panics",
    ];
    let mut gauges = Vec::new();
    for name in names {
        gauges.push((name, number(&status, name)?));
    }
    let (used, bound) = (
        number(&status, "memory_bytes")?,
        number(&status, "memory_limit_bytes")?,
    );
    gauges.push(("bytes beyond the bound", used.saturating_sub(bound)));
    // The kernel opens files itself where it keeps all data, and does not say when they are closed.
    if status["kernel_cache"] != "all" {
        gauges.push(("open_files", number(&status, "open_files")?));
    }
    Ok(zero(&gauges))
}

/// Writes everything back, expects gauges at zero, and returns the resources of each process.
fn rest(cache: &Cache, parts: &[Part]) -> Done<Vec<Sample>> {
    cache.sync().context(|| "sync of the cache".to_owned())?;
    cache
        .set_memory(SMALL)
        .context(|| "set_memory".to_owned())?;
    for part in parts {
        part.shared.drop_cached()?;
        part.mount.sync()?;
        part.mount.set_memory(SMALL)?;
    }
    wait_for("the library to come to rest", || library_gauges(cache))?;
    for part in parts {
        let what = format!("the mount of {} to come to rest", part.disk.kind);
        wait_for(&what, || mount_gauges(&part.mount))?;
    }
    // The mounts' kernel forgets unused names and inodes, and so do the mounts: including files
    // that were removed from outside.
    let drop_caches = std::fs::write("/proc/sys/vm/drop_caches", "2");
    drop_caches.context(|| "drop_caches".to_owned())?;
    thread::sleep(Duration::from_millis(200));
    let mut samples = vec![sample(std::process::id())?];
    for part in parts {
        samples.push(sample(part.mount.pid())?);
        part.mount.set_memory(BOUNDS[2])?;
    }
    cache
        .set_memory(BOUNDS[2])
        .context(|| "set_memory".to_owned())?;
    Ok(samples)
}

type Totals = (BTreeMap<&'static str, u64>, u64);

/// The line of a round.
fn report(
    elapsed: Duration,
    worked: Duration,
    before: &Totals,
    after: &Totals,
    series: &[Series],
    samples: &[Sample],
) {
    let sum = |totals: &Totals| totals.0.values().sum::<u64>();
    let (operations, bytes) = (sum(after) - sum(before), after.1 - before.1);
    let mut done = after.0.clone();
    for (kind, n) in &before.0 {
        *done.get_mut(kind).expect("kinds stay") -= n;
    }
    let processes: Vec<_> = series
        .iter()
        .zip(samples)
        .map(|(series, sample)| format!("{} {sample}", series.name))
        .collect();
    println!(
        "[{:.1} min] {operations} operations, {:.1} MiB/s; {}; {}",
        elapsed.as_secs_f64() / 60.0,
        bytes as f64 / worked.as_secs_f64() / f64::from(1 << 20),
        processes.join("; "),
        list(&done)
    );
}

/// Removes all files, lets everything go, and expects that nothing is left.
fn finish(cache: Cache, parts: Vec<Part>) -> Done {
    for part in &parts {
        part.shared.check_all()?;
        part.shared.remove()?;
        for place in [&part.library as &dyn Place, &part.mount] {
            let names = place.list(".")?;
            if !names.is_empty() {
                return Err(format!("names are left on {}: {names:?}", part.disk.kind));
            }
        }
    }
    wait_for("the cache to be empty", || {
        let stats = cache.stats().context(|| "statistics".to_owned())?;
        Ok(zero(&[
            ("resident_pages", stats.files.resident_pages),
            ("folios", stats.files.folios),
            ("in_use_pages", stats.memory.in_use_pages),
            // A likely holder.
            ("dirty_pages", stats.files.dirty_pages),
            ("writeback_pages", stats.files.writeback_pages),
            ("unstable_pages", stats.files.unstable_pages),
            ("pinned_pages", stats.files.pinned_pages),
        ]))
    })?;
    wait_for("the library to come to rest", || library_gauges(&cache))?;
    cache.close().context(|| "close of the cache".to_owned())?;
    for part in parts {
        let Part {
            mut disk,
            library,
            futures,
            shared,
            mount,
        } = part;
        drop((library, futures, shared));
        mount.end()?;
        disk.unmount()?;
        // Whole to the last block.
        check_image(&disk)?;
    }
    Ok(())
}

fn check_image(disk: &Disk) -> Done {
    let Some(image) = disk.image() else {
        return Ok(());
    };
    let mut command = match disk.kind.as_str() {
        "ext4" => Command::new("fsck.ext4"),
        _ => Command::new("xfs_repair"),
    };
    command
        .arg(if disk.kind == "ext4" { "-fn" } else { "-n" })
        .arg(image);
    let output = command
        .output()
        .context(|| format!("check of {}", disk.kind))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "{} is damaged: {}",
            disk.kind,
            String::from_utf8_lossy(&output.stdout)
        )),
    }
}
