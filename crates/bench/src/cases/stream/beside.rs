//! What uncached streams leave to others: a cached writer's rate, and a hot set.

use std::io;
use std::rc::Rc;

use super::{BESIDE, HOT, MEMORY_PER_HOT};
use crate::case::{Match, Outcome, Pass, RatioPlan, Work};
use crate::file_bed::{By, FILE, FileBed};
use crate::streams::{Shape, Time};

/// A scan reads so many times the bound.
const SCAN_PER_MEMORY: u64 = 10;

/// Two writers need longer turns than others, up to this many seconds: each file has tenths of a second in which it
/// gets much more or much less than its share.
const WRITERS_SECONDS: f64 = 2.0;

/// A cached writer, beside another.
pub(super) fn fairness(bed: &Rc<FileBed>, shape: Shape) -> Match {
    let mut fairness = Match::default();
    for (variant, beside_uncached) in [
        ("cached, beside an uncached writer", true),
        ("cached, beside a cached writer", false),
    ] {
        let bed = Rc::clone(bed);
        let writers = Writers {
            beside_uncached,
            shape,
            bed,
        };
        let work = Work::pass(1, "MB/s", writers);
        fairness.add("write 64 KiB", variant, work);
    }
    let ratio = RatioPlan::new("fairness_cached_beside_uncached", 0, 1);
    fairness.ratios = vec![ratio.at_least(0.8)];
    fairness
}

/// What a scan leaves of other files.
pub(super) fn hot_set(bed: &Rc<FileBed>, shape: Shape) -> Match {
    let shape = Shape {
        time: None,
        ..shape
    };
    let mut hot = Match {
        exact: true,
        ..Match::default()
    };
    for (variant, scan) in [("after an uncached scan", true), ("without a scan", false)] {
        let bed = Rc::clone(bed);
        let work = Work::pass(shape.threads, "pages", HotSet { scan, shape, bed });
        hot.add("hot set", variant, work);
    }
    hot.ratios = vec![RatioPlan::new("hot_set_kept", 0, 1).at_least(0.99)];
    hot
}

/// Two writers of ours, each in its file; the figure is that of the first, which is cached.
struct Writers {
    beside_uncached: bool,
    shape: Shape,
    bed: Rc<FileBed>,
}

impl Pass for Writers {
    fn prepare(&mut self) -> io::Result<()> {
        self.bed.chill(FILE)?;
        self.bed.chill(BESIDE)
    }

    fn run(&mut self) -> io::Result<Outcome> {
        let shape = Shape {
            threads: 2,
            len: 2 * self.shape.len,
            time: self.shape.time.map(|time| Time {
                seconds: (4.0 * time.seconds).min(WRITERS_SECONDS).max(time.seconds),
                ..time
            }),
            ..self.shape
        };
        let request = shape.request;
        let ours = |name, uncached, seed, start| {
            (self.bed).ours(name, uncached, true, request, seed, start)
        };
        let mut writers = [
            ours(FILE, false, 0, 0)?,
            ours(BESIDE, self.beside_uncached, 1, shape.part())?,
        ];
        let streamed = shape.run(&mut writers, || Ok(()))?;
        let (cost, bytes) = (streamed.cost, streamed.bytes());
        Ok(Outcome {
            cost: Some((cost, bytes)),
            ..Outcome::plain(streamed.each[0] as f64 / 1e6 / cost.seconds)
        })
    }
}

/// Pages of the hot set that are in the cache, after a scan of the file or without one.
struct HotSet {
    scan: bool,
    /// Once through the file.
    shape: Shape,
    bed: Rc<FileBed>,
}

impl Pass for HotSet {
    fn prepare(&mut self) -> io::Result<()> {
        let bed = &self.bed;
        [FILE, BESIDE, HOT]
            .into_iter()
            .try_for_each(|name| bed.chill(name))?;
        let twice = 2;
        for _ in 0..twice {
            let shape = Shape {
                threads: 1,
                len: bed.memory / MEMORY_PER_HOT,
                ..self.shape
            };
            let mut reader = [bed.ours(HOT, false, false, shape.request, 0, 0)?];
            shape.run(&mut reader, || Ok(()))?;
        }
        Ok(())
    }

    fn run(&mut self) -> io::Result<Outcome> {
        let bed = &self.bed;
        let by = By::Ours { uncached: true };
        let shape = self.shape;
        let mut left = if self.scan {
            SCAN_PER_MEMORY * bed.memory
        } else {
            0
        };
        while left > 0 {
            // The last time through, through a part of the file.
            let len = shape.len.min(left);
            let shape = Shape { len, ..shape };
            shape.run(&mut bed.streams(by, shape, false)?, || Ok(()))?;
            left -= len;
        }
        Ok(Outcome::plain(
            bed.place.ours(HOT)?.stats()?.resident_pages as f64,
        ))
    }
}
