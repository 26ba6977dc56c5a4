//! The effect of uncached streams on others: a cached writer's rate, and a hot set.

use crate::cases::prelude::*;
use crate::file_bed::{By, FILE, FileBed};
use crate::streams::{Shape, Time};

/// The file of the writer beside the measured one.
const BESIDE: &str = "data-beside";
/// The hot set.
const HOT: &str = "hot";

/// The bound as a multiple of the hot set.
pub(super) const MEMORY_PER_HOT: u64 = 2;

/// The length of a scan as a multiple of the bound.
const SCAN_PER_MEMORY: u64 = 10;

/// Two writers need longer turns than others, up to this many seconds: each file has tenths of a second in which it
/// gets much more or much less than its share.
const WRITERS_SECONDS: f64 = 2.0;

pub(super) fn plan(bed: &Rc<FileBed>, shape: Shape, memory: u64) -> Result<[Match; 2], BenchError> {
    bed.place.make(BESIDE, shape.len)?;
    bed.place.make(HOT, memory / MEMORY_PER_HOT)?;
    let (mut fairness, mut hot) = (Match::default(), Match::default());
    for (variant, beside_uncached) in [
        ("cached, beside an uncached writer", true),
        ("cached, beside a cached writer", false),
    ] {
        let bed = Rc::clone(bed);
        let run = move || writers(&bed, beside_uncached, shape);
        fairness.add("write 64 KiB", variant, Work::pass(1, "MB/s", run));
    }
    ratios! { fairness; "fairness_cached_beside_uncached" => 0 / 1, at_least(0.8); }

    hot.exact = true;
    let once = Shape {
        time: None,
        ..shape
    };
    for (variant, scan) in [("after an uncached scan", true), ("without a scan", false)] {
        let bed = Rc::clone(bed);
        let scan = if scan { SCAN_PER_MEMORY * memory } else { 0 };
        let run = move || {
            read_hot_set(&bed, once, memory)?;
            hot_pages_after(scan, &bed, once)
        };
        hot.add("hot set", variant, Work::pass(shape.threads, "pages", run));
    }
    ratios! { hot; "hot_set_kept" => 0 / 1, at_least(0.99); }
    Ok([fairness, hot])
}

/// Two writers of ours, each in its file; the figure is that of the first, which is cached.
fn writers(bed: &FileBed, beside_uncached: bool, shape: Shape) -> io::Result<Outcome> {
    bed.chill(FILE)?;
    bed.chill(BESIDE)?;
    let shape = Shape {
        threads: 2,
        len: 2 * shape.len,
        time: shape.time.map(|time| Time {
            seconds: (4.0 * time.seconds).min(WRITERS_SECONDS).max(time.seconds),
            ..time
        }),
        ..shape
    };
    let mut writers = [
        bed.ours(FILE, false, true, shape.request, 0)?,
        bed.ours(BESIDE, beside_uncached, true, shape.request, shape.part())?,
    ];
    let streamed = shape.run(&mut writers, || Ok(()))?;
    let (cost, bytes) = (streamed.cost, streamed.bytes());
    Ok(Outcome::of_bytes(streamed.each[0], cost).cost(cost, bytes))
}

/// Reads the hot set twice, and nothing else is in the cache.
fn read_hot_set(bed: &FileBed, shape: Shape, memory: u64) -> io::Result<()> {
    [FILE, BESIDE, HOT]
        .into_iter()
        .try_for_each(|name| bed.chill(name))?;
    let shape = Shape {
        threads: 1,
        len: memory / MEMORY_PER_HOT,
        ..shape
    };
    for _ in 0..2 {
        let mut reader = [bed.ours(HOT, false, false, shape.request, 0)?];
        shape.run(&mut reader, || Ok(()))?;
    }
    Ok(())
}

/// Pages of the hot set that are in the cache, after a scan of `scan` bytes of the file.
fn hot_pages_after(mut scan: u64, bed: &FileBed, shape: Shape) -> io::Result<Outcome> {
    let by = By::Ours { uncached: true };
    while scan > 0 {
        // The last time through, through a part of the file.
        let len = shape.len.min(scan);
        let shape = Shape { len, ..shape };
        shape.run(&mut bed.streams(by, shape, false)?, || Ok(()))?;
        scan -= len;
    }
    let stats = bed.place.ours(HOT)?.stats()?;
    Ok(Outcome::plain(stats.resident_pages as f64))
}
