//! What is to be run: cases, their matches and who takes part.
//!
//! # Model
//!
//! A [`Case`] plans one or more [`Match`]es. The contestants of a match take turns; those of
//! different matches never meet. What a contestant does in a turn is its [`Work`]: operations on
//! something in memory for a moment, by a [`Worker`] for each of its threads; or a whole [`Pass`]
//! over files.

use std::io;

use crate::cost::Cost;
use crate::error::BenchError;
use crate::latency::Latency;
use crate::ratio::Target;
use crate::settings::{Settings, Uses};
use crate::stats::median;

/// Operations between two looks at the clock. The shortest takes some nanoseconds and the clock 25.
pub(crate) const BATCH: u64 = 256;

/// A benchmark.
pub trait Case: Sync {
    /// What it is called on the command line and in reports.
    fn name(&self) -> &'static str;

    /// What it measures, in a line.
    fn about(&self) -> &'static str;

    /// The settings that it runs with if nobody says otherwise; `quick` ones end in about a minute.
    fn settings(&self, quick: bool) -> Settings {
        match quick {
            true => Settings::quick(),
            false => Settings::default(),
        }
    }

    /// About how many seconds it takes, on a machine of two processors that does nothing else.
    fn takes(&self, quick: bool) -> u32;

    /// Which of the settings it looks at.
    fn uses(&self) -> Uses {
        Uses::HOT
    }

    /// Makes the files, touches the memory and says who competes.
    ///
    /// # Errors
    /// What the case needs could not be made.
    fn plan(&self, settings: &Settings) -> Result<Plan, BenchError>;
}

/// What a case is about to run.
#[derive(Default)]
pub struct Plan {
    /// One after another.
    pub matches: Vec<Match>,
    /// Where the files are; None for one page on a tmpfs.
    pub place: Option<String>,
    /// What the reader of the report should know: what was left out and why.
    pub notes: Vec<String>,
}

/// Contestants that take turns, and what is made of their figures.
#[derive(Default)]
pub struct Match {
    /// Who takes part, in the order of the turns.
    pub contestants: Vec<Contestant>,
    /// What is divided by what.
    pub ratios: Vec<RatioPlan>,
    /// The figures are counts, which the same work gives again: no ratio needs a control.
    pub exact: bool,
}

impl Match {
    /// Adds a contestant; returns its place.
    pub(crate) fn add(&mut self, name: &'static str, variant: &'static str, work: Work) -> usize {
        self.contestants.push(Contestant {
            name,
            variant,
            work,
        });
        self.contestants.len() - 1
    }
}

/// One way to do the work.
pub struct Contestant {
    /// What is done, the same for those that are compared.
    pub name: &'static str,
    /// How it is done.
    pub variant: &'static str,
    /// What it does in a turn.
    pub work: Work,
}

/// What a contestant does in a turn.
pub enum Work {
    /// Operations, over and over until the turn is over; one worker for each thread.
    Operations(Vec<Box<dyn Worker>>),
    /// A pass over files, whole.
    Pass {
        /// Threads that do it.
        threads: usize,
        /// Unit of the figure.
        unit: &'static str,
        /// What does it.
        pass: Box<dyn Pass>,
    },
}

impl Work {
    /// A pass by so many threads, whose figure has this unit.
    pub(crate) fn pass(threads: usize, unit: &'static str, pass: impl Pass + 'static) -> Self {
        Self::Pass {
            threads,
            unit,
            pass: Box::new(pass),
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
#[derive(Clone, Copy, Debug)]
pub struct RatioPlan {
    /// Stable: scripts look for it.
    pub name: &'static str,
    /// What is divided.
    pub of: usize,
    /// By what.
    pub to: usize,
    /// A ratio by which this one is divided in turn.
    pub divisor: Option<(usize, usize)>,
    /// A second ratio; the lesser of the two counts.
    pub or: Option<(usize, usize)>,
    /// What of each contestant.
    pub figure: Figure,
    /// Which contestant is its control, if one is needed and it matters: the one whose turn takes less time.
    pub control: Option<usize>,
    /// What it is to reach.
    pub target: Option<Target>,
}

impl RatioPlan {
    /// The same ratio, of these.
    pub(crate) const fn between(self, of: usize, to: usize) -> Self {
        Self { of, to, ..self }
    }

    /// Of one contestant to another.
    pub const fn new(name: &'static str, of: usize, to: usize) -> Self {
        Self {
            name,
            of,
            to,
            divisor: None,
            or: None,
            figure: Figure::Value,
            control: None,
            target: None,
        }
    }

    /// With this contestant as the control.
    pub const fn control_of(self, who: usize) -> Self {
        Self {
            control: Some(who),
            ..self
        }
    }

    /// Of another figure than the row's.
    pub const fn of_figure(self, figure: Figure) -> Self {
        Self { figure, ..self }
    }

    /// With a median not to exceed.
    pub const fn at_most(self, most: f64) -> Self {
        Self {
            target: Some(Target::AtMost(most)),
            ..self
        }
    }

    /// With a median to reach.
    pub const fn at_least(self, least: f64) -> Self {
        Self {
            target: Some(Target::AtLeast(least)),
            ..self
        }
    }

    /// Of their 99th percentiles.
    pub const fn of_p99(self) -> Self {
        self.of_figure(Figure::P99)
    }

    /// The same, with a median not to exceed.
    pub const fn p99_at_most(self, most: f64) -> Self {
        self.of_p99().at_most(most)
    }

    /// The ratio for one round's figures, in the order of the contestants.
    pub(crate) fn of_round(&self, figures: impl Fn(usize) -> f64) -> f64 {
        let divide = |(of, to)| figures(of) / figures(to);
        let divisor = self.divisor.map_or(1.0, divide);
        let ratio = divide((self.of, self.to)) / divisor;
        self.or.map_or(ratio, |or| ratio.min(divide(or)))
    }
}

/// What is divided in a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// The figure of the row.
    Value,
    /// The 99th percentile of the time that an operation takes.
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

/// What one thread of a contestant does.
pub trait Worker: Send {
    /// Does some operations and returns how many; some microseconds' worth, since the clock is
    /// looked at between two calls.
    ///
    /// # Errors
    /// An operation failed.
    fn batch(&mut self) -> io::Result<u64>;
}

/// A pass over files.
pub trait Pass {
    /// Brings everything back to where a pass begins: not measured.
    ///
    /// # Errors
    /// That could not be done.
    fn prepare(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Does the work.
    ///
    /// # Errors
    /// It failed.
    fn run(&mut self) -> io::Result<Outcome>;

    /// What the reader of the report should know, once all passes are over.
    fn note(&self) -> Option<String> {
        None
    }
}

/// What a pass gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The figure.
    pub value: f64,
    /// What it cost, and the bytes that were moved for it.
    pub cost: Option<(Cost, u64)>,
    /// The share of the reads that found their page in the cache, from 0 to 1.
    pub hit_ratio: Option<f64>,
    /// Bytes that the process had read from the device for each byte of its reads.
    pub device: Option<f64>,
    /// How long the reads took.
    pub latency: Option<Latency>,
    /// The figure in each interval of the turn (`Settings::interval`); empty where they were not measured.
    pub series: Vec<f64>,
}

impl Outcome {
    /// A figure without a cost.
    pub(crate) fn plain(value: f64) -> Self {
        Self {
            value,
            cost: None,
            hit_ratio: None,
            device: None,
            latency: None,
            series: Vec::new(),
        }
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
pub fn repeat(operation: impl FnMut() -> io::Result<()> + Send + 'static) -> Box<dyn Worker> {
    Box::new(Repeat(operation))
}
