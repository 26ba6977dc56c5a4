//! What is to be run: cases, their matches and who takes part.
//!
//! # Model
//!
//! A [`Case`] plans one or more [`Match`]es. The contestants of a match take turns; those of
//! different matches never meet. A contestant has a [`Worker`] for each of its threads.

use std::io;

use crate::error::BenchError;
use crate::ratio::Target;
use crate::run::Settings;

/// Operations between two looks at the clock. The shortest takes some nanoseconds and the clock 25.
const BATCH: u64 = 256;

/// A benchmark.
pub trait Case: Sync {
    /// What it is called on the command line and in reports.
    fn name(&self) -> &'static str;

    /// What it measures, in a line.
    fn about(&self) -> &'static str;

    /// Makes the files, touches the memory and says who competes.
    ///
    /// # Errors
    /// What the case needs could not be made.
    fn plan(&self, settings: &Settings) -> Result<Vec<Match>, BenchError>;
}

/// Contestants that take turns, and what is made of their figures.
pub struct Match {
    /// Who takes part, in the order of the turns.
    pub contestants: Vec<Contestant>,
    /// What is divided by what.
    pub ratios: Vec<RatioPlan>,
}

/// One way to do the work, by a number of threads.
pub struct Contestant {
    /// What is done, the same for those that are compared.
    pub name: &'static str,
    /// How it is done.
    pub variant: &'static str,
    /// One for each thread.
    pub workers: Vec<Box<dyn Worker>>,
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
    pub control: Option<(usize, usize)>,
    /// What it is to reach.
    pub target: Option<Target>,
}

impl RatioPlan {
    /// The ratio for one round's figures, in the order of the contestants.
    pub(crate) fn of_round(&self, figures: impl Fn(usize) -> f64) -> f64 {
        let control = self
            .control
            .map_or(1.0, |(of, to)| figures(of) / figures(to));
        figures(self.of) / figures(self.to) / control
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
