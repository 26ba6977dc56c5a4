//! Cases, their matches and their contestants.
//!
//! # Model
//!
//! A [`Case`] is a row of the table in `cases`: its name, its sizes, and a function that plans one or more
//! [`Match`]es. The contestants of a match take turns; those of different matches never meet. In a turn a
//! contestant does its [`Work`]: operations on something in memory for a moment, by a [`Worker`] for each of its
//! threads; or a whole pass over files, which measures itself. The [`ratios!`] of a match are a table too.

use std::any::Any;
use std::io;
use std::rc::Rc;
use std::time::Instant;

use crate::cost::Cost;
use crate::error::BenchError;
use crate::latency::Latency;
use crate::ratio::Target;
use crate::settings::{Settings, Size, Uses};
use crate::stats::median;

/// Operations between two looks at the clock. The shortest takes some nanoseconds and the clock 25.
pub(crate) const BATCH: u64 = 256;

/// A benchmark.
pub struct Case {
    /// The name on the command line and in reports.
    pub name: &'static str,
    /// Its measurements, in a line.
    pub about: &'static str,
    /// The settings it looks at.
    pub uses: Uses,
    /// Seconds that it takes: quick, and whole.
    pub(crate) takes: [u32; 2],
    /// Its settings by default: quick, and whole.
    pub(crate) sizes: [Size; 2],
    /// Makes the files, touches the memory and lists the contestants.
    pub(crate) plan: fn(&Settings) -> Result<Plan, BenchError>,
}

impl Case {
    /// The settings by default; `quick` ones end in about a minute.
    pub fn settings(&self, quick: bool) -> Settings {
        Settings::of(self.sizes[usize::from(!quick)])
    }

    /// About how many seconds it takes, on a machine of two processors that does nothing else.
    pub fn takes(&self, quick: bool) -> u32 {
        self.takes[usize::from(!quick)]
    }
}

/// The matches that a case runs.
#[derive(Default)]
pub(crate) struct Plan {
    /// One after another.
    pub(crate) matches: Vec<Match>,
    /// Places of files. They go after all matches: contestants have files open.
    pub(crate) holds: Vec<Rc<dyn Any>>,
    /// Where the files are; None for one page on a tmpfs.
    pub(crate) place: Option<String>,
    /// Facts for the reader of the report: omissions and their causes.
    pub(crate) notes: Vec<String>,
}

impl Plan {
    /// Matches of files in a place, which is described.
    pub(crate) fn at(matches: Vec<Match>, place: impl Any, description: String) -> Self {
        Self {
            matches,
            holds: vec![Rc::new(place)],
            place: Some(description),
            notes: Vec::new(),
        }
    }
}

impl From<Vec<Match>> for Plan {
    fn from(matches: Vec<Match>) -> Self {
        Self {
            matches,
            ..Self::default()
        }
    }
}

/// Contestants that take turns, and the ratios of their figures.
#[derive(Default)]
pub(crate) struct Match {
    /// In the order of the turns.
    pub(crate) contestants: Vec<Contestant>,
    pub(crate) ratios: Vec<RatioPlan>,
    /// The figures are counts, which the same work gives again: no ratio needs a control.
    pub(crate) exact: bool,
    /// Most rounds, an even number, where turns take long; else as many as there are samples.
    pub(crate) most_rounds: Option<usize>,
    /// The beginning of the names of its rows.
    pub(crate) prefix: &'static str,
    /// The end of the names of its ratios.
    pub(crate) suffix: &'static str,
}

impl Match {
    /// Its rounds, of so many samples.
    pub(crate) fn rounds(&self, samples: usize) -> usize {
        self.most_rounds.map_or(samples, |most| most.min(samples))
    }

    /// Adds a contestant; returns its place.
    pub(crate) fn add(&mut self, name: &str, variant: &'static str, work: Work) -> usize {
        self.contestants.push(Contestant {
            name: format!("{}{name}", self.prefix),
            variant,
            work,
        });
        self.contestants.len() - 1
    }

    /// Adds one that does operations, a worker for each thread.
    pub(crate) fn operations(
        &mut self,
        name: &str,
        variant: &'static str,
        workers: Vec<Box<dyn Worker>>,
    ) -> usize {
        self.add(name, variant, Work::Operations(workers))
    }

    /// Adds a ratio.
    pub(crate) fn ratio(&mut self, plan: RatioPlan) {
        let name = plan.name + self.suffix;
        self.ratios.push(RatioPlan { name, ..plan });
    }
}

/// A contestant in a ratio: its place, or its variant where a match has each once.
pub(crate) trait Who {
    /// None where it does not take part.
    fn among(self, contestants: &[Contestant]) -> Option<usize>;
}

impl Who for usize {
    fn among(self, _: &[Contestant]) -> Option<usize> {
        Some(self)
    }
}

impl Who for &str {
    fn among(self, contestants: &[Contestant]) -> Option<usize> {
        contestants.iter().position(|one| one.variant == self)
    }
}

/// Adds a table of ratios to a match, a line each: `NAME => WHO / WHO, methods of RatioPlan;`. A ratio is left out where
/// one of the two does not take part.
macro_rules! ratios {
    ($one:expr; $($name:expr => $of:tt / $to:tt $(, $method:ident $arguments:tt)*;)*) => {{
        let one: &mut $crate::case::Match = &mut $one;
        $({
            let [of, to] = [
                $crate::case::Who::among($of, &one.contestants),
                $crate::case::Who::among($to, &one.contestants),
            ];
            if let Some((of, to)) = of.zip(to) {
                let plan = $crate::case::RatioPlan::new($name, of, to);
                one.ratio(plan $(.$method $arguments)*);
            }
        })*
    }};
}
pub(crate) use ratios;

/// One way to do the work.
pub(crate) struct Contestant {
    /// The work, the same for contestants that are compared.
    pub(crate) name: String,
    /// The way to do it.
    pub(crate) variant: &'static str,
    /// Its work in a turn.
    pub(crate) work: Work,
}

type Pass = dyn FnMut() -> io::Result<Outcome>;

/// The work of a contestant in a turn.
pub(crate) enum Work {
    /// Operations, over and over until the turn is over; one worker for each thread.
    Operations(Vec<Box<dyn Worker>>),
    /// A pass over files, whole. It brings everything back to where a pass begins, and then measures.
    Pass {
        threads: usize,
        unit: &'static str,
        pass: Box<Pass>,
    },
}

impl Work {
    /// A pass by several threads, whose figure has this unit.
    pub(crate) fn pass(
        threads: usize,
        unit: &'static str,
        pass: impl FnMut() -> io::Result<Outcome> + 'static,
    ) -> Self {
        let pass = Box::new(pass);
        Self::Pass {
            threads,
            unit,
            pass,
        }
    }

    pub(crate) fn threads(&self) -> usize {
        match self {
            Self::Operations(workers) => workers.len(),
            Self::Pass { threads, .. } => *threads,
        }
    }

    pub(crate) fn unit(&self) -> &'static str {
        match self {
            Self::Operations(_) => "op/s",
            Self::Pass { unit, .. } => unit,
        }
    }
}

/// A ratio of figures of one round; its operands are places in [`Match::contestants`].
#[derive(Clone, Debug)]
pub(crate) struct RatioPlan {
    /// Stable: scripts look for it.
    pub(crate) name: String,
    /// The dividend.
    pub(crate) of: usize,
    /// The divisor.
    pub(crate) to: usize,
    /// A ratio by which this one is divided in turn.
    pub(crate) divisor: Option<(usize, usize)>,
    /// A second ratio; the lesser of the two counts.
    pub(crate) or: Option<(usize, usize)>,
    /// The figure of each contestant.
    pub(crate) figure: Figure,
    /// Which contestant is its control, if one is needed and it matters: the one whose turn takes less time.
    pub(crate) control: Option<usize>,
    /// Its target.
    pub(crate) target: Option<Target>,
}

impl RatioPlan {
    /// Of one contestant to another.
    pub(crate) fn new(name: impl Into<String>, of: usize, to: usize) -> Self {
        Self {
            name: name.into(),
            of,
            to,
            divisor: None,
            or: None,
            figure: Figure::Value,
            control: None,
            target: None,
        }
    }

    /// Divided by a second ratio.
    pub(crate) fn over(mut self, divisor: impl Into<Option<(usize, usize)>>) -> Self {
        self.divisor = divisor.into();
        self
    }

    /// Or a second ratio, whichever is less.
    pub(crate) fn or(mut self, of: usize, to: usize) -> Self {
        self.or = Some((of, to));
        self
    }

    /// With this contestant as the control.
    pub(crate) fn control_of(mut self, who: usize) -> Self {
        self.control = Some(who);
        self
    }

    /// Of another figure than the row's.
    pub(crate) fn of_figure(mut self, figure: Figure) -> Self {
        self.figure = figure;
        self
    }

    /// Of the medians of the time that an operation takes.
    pub(crate) fn of_p50(self) -> Self {
        self.of_figure(Figure::P50)
    }

    /// Of their 99th percentiles.
    pub(crate) fn of_p99(self) -> Self {
        self.of_figure(Figure::P99)
    }

    /// With a target.
    pub(crate) fn aim(mut self, target: Target) -> Self {
        self.target = Some(target);
        self
    }

    /// With a median not to exceed, if there is one.
    pub(crate) fn at_most(mut self, most: impl Into<Option<f64>>) -> Self {
        self.target = most.into().map(Target::AtMost);
        self
    }

    /// With a median to reach, if there is one.
    pub(crate) fn at_least(mut self, least: impl Into<Option<f64>>) -> Self {
        self.target = least.into().map(Target::AtLeast);
        self
    }

    /// The ratio for one round's figures, in the order of the contestants.
    pub(crate) fn of_round(&self, figures: impl Fn(usize) -> f64) -> f64 {
        let divide = |(of, to)| figures(of) / figures(to);
        let divisor = self.divisor.map_or(1.0, divide);
        let ratio = divide((self.of, self.to)) / divisor;
        self.or.map_or(ratio, |or| ratio.min(divide(or)))
    }
}

/// The figure that a ratio divides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Figure {
    /// The figure of the row.
    Value,
    /// The median of the time that an operation takes.
    P50,
    /// The 99th percentile of it.
    P99,
    /// Processor seconds of the process for each byte.
    Cpu,
    /// The slowest interval of a turn over the median of its intervals.
    Flatness,
}

impl Figure {
    /// NaN where it was not measured.
    pub(crate) fn of(self, outcome: &Outcome) -> f64 {
        match self {
            Self::Value => outcome.value,
            Self::P50 => outcome.latency.map_or(f64::NAN, |latency| latency.p50),
            Self::P99 => outcome.latency.map_or(f64::NAN, |latency| latency.p99),
            Self::Cpu => {
                (outcome.cost).map_or(f64::NAN, |(cost, bytes)| cost.process / bytes as f64)
            }
            Self::Flatness if outcome.series.is_empty() => f64::NAN,
            Self::Flatness => {
                let slowest = outcome.series.iter().copied().fold(f64::INFINITY, f64::min);
                slowest / median(&outcome.series)
            }
        }
    }
}

/// The work of one thread of a contestant.
pub(crate) trait Worker: Send {
    /// Does some operations and returns how many; some microseconds' worth, since the clock is looked at between two
    /// calls.
    fn batch(&mut self) -> io::Result<u64>;
}

/// The result of a pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    /// The figure.
    pub(crate) value: f64,
    /// The cost, and the bytes that were moved for it.
    pub(crate) cost: Option<(Cost, u64)>,
    /// The share of the reads that found their page in the cache, from 0 to 1.
    pub(crate) hit_ratio: Option<f64>,
    /// Bytes that the process had read from the device for each byte of its reads.
    pub(crate) device: Option<f64>,
    /// How long the reads took.
    pub(crate) latency: Option<Latency>,
    /// The figure in each interval of the turn (`Settings::interval`); empty where they were not measured.
    pub(crate) series: Vec<f64>,
}

impl Outcome {
    /// A figure without a cost.
    pub(crate) fn plain(value: f64) -> Self {
        Self {
            value,
            ..Self::default()
        }
    }

    /// So much work in the time since `start`.
    pub(crate) fn per_second(work: usize, start: Instant) -> Self {
        Self::plain(work as f64 / start.elapsed().as_secs_f64())
    }

    /// Bytes that were moved at this cost: in MB/s.
    pub(crate) fn of_bytes(bytes: u64, cost: Cost) -> Self {
        Self::plain(bytes as f64 / 1e6 / cost.seconds).cost(cost, bytes)
    }

    pub(crate) fn cost(mut self, cost: Cost, bytes: u64) -> Self {
        self.cost = Some((cost, bytes));
        self
    }

    pub(crate) fn latency(mut self, latency: Latency) -> Self {
        self.latency = Some(latency);
        self
    }
}

struct Repeat<F>(F);

impl<F: FnMut() -> io::Result<()> + Send> Worker for Repeat<F> {
    fn batch(&mut self) -> io::Result<u64> {
        for _ in 0..BATCH {
            (self.0)()?;
        }
        Ok(BATCH)
    }
}

/// A worker that does one operation over and over.
pub(crate) fn repeat(
    operation: impl FnMut() -> io::Result<()> + Send + 'static,
) -> Box<dyn Worker> {
    Box::new(Repeat(operation))
}
