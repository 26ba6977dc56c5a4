//! The turns: contestants one after another, over and over, for a short time each.
//!
//! # Model
//!
//! ```text
//!  round 0 (warm-up)   A B C │ A B C │ …          not counted
//!  round 1             A B C │ A B C │ … laps    one figure each: the median of its turns
//!  round 2             C B A │ C B A │ …         the order turns round each time
//!  ⋮
//! ```
//!
//! A turn takes half a millisecond, less than the scheduler gives at once. What disturbs the machine
//! for longer disturbs all of a round's figures alike and leaves their ratio; turns in which the
//! processor was given to somebody else are few and so do not reach the median. Nor do pauses of a
//! contestant's own that are rarer than every other turn: a case that is about those has to look at
//! them by itself.
//!
//! Each turn begins with a batch that is not counted: the turn before has filled the processor's
//! caches with its own. Several threads of one contestant begin at one moment, agreed on by clock.

use serde::Serialize;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use crate::case::{Case, Contestant, Match, Worker};
use crate::error::BenchError;
use crate::report::Report;
use crate::stats::median;

/// How long a turn takes, or shorter where all of a figure does.
const TURN: Duration = Duration::from_micros(500);

/// How far ahead threads agree to begin.
const RENDEZVOUS: Duration = Duration::from_micros(500);

/// How long and how often a case runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Settings {
    /// Rounds; each gives a figure for each contestant.
    pub samples: usize,
    /// Seconds that each figure takes.
    pub seconds: f64,
    /// Threads of those contestants that have several.
    pub threads: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            samples: 21,
            seconds: 0.2,
            threads: 2,
        }
    }
}

impl Settings {
    /// For a first look: well under half a minute a case.
    pub fn quick() -> Self {
        Self {
            samples: 9,
            seconds: 0.05,
            ..Self::default()
        }
    }

    /// # Errors
    /// No sample, no time or no thread.
    fn check(&self) -> Result<(), BenchError> {
        if self.samples == 0 {
            return Err(BenchError::Setting("at least one sample is needed"));
        }
        if !(self.seconds > 0.0 && self.seconds <= 3600.0) {
            return Err(BenchError::Setting(
                "a sample takes more than 0 seconds and at most 3600",
            ));
        }
        if !(1..=1024).contains(&self.threads) {
            return Err(BenchError::Setting("threads: from 1 to 1024"));
        }
        Ok(())
    }
}

/// How far a run has come.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Rounds that are over, warm-ups included.
    pub done: usize,
    /// Rounds of the whole run.
    pub total: usize,
}

/// Runs a case; `progress` hears of each round.
///
/// # Errors
/// What the case needs could not be made, or an operation failed.
pub fn run(
    case: &dyn Case,
    settings: &Settings,
    mut progress: impl FnMut(Progress),
) -> Result<Report, BenchError> {
    settings.check()?;
    let mut matches = case.plan(settings)?;
    let rounds_each = settings.samples + 1;
    let total = rounds_each * matches.len();
    let mut report = Report::new(case.name(), *settings);
    let mut done = 0;
    for one in &mut matches {
        let figures = run_match(one, settings, || {
            done += 1;
            progress(Progress { done, total });
        })?;
        report.add(one, &figures);
    }
    report.finish();
    Ok(report)
}

/// Operations a second: for each contestant, of each round.
fn run_match(
    one: &mut Match,
    settings: &Settings,
    mut round_over: impl FnMut(),
) -> Result<Vec<Vec<f64>>, BenchError> {
    let contestants = &mut one.contestants;
    let whole = Duration::from_secs_f64(settings.seconds);
    let laps = whole.as_micros().div_ceil(TURN.as_micros()).max(1) as u32;
    let turn = whole / laps;
    let mut figures = vec![Vec::with_capacity(settings.samples); contestants.len()];
    for round in 0..=settings.samples {
        let mut turns = vec![Vec::with_capacity(laps as usize); contestants.len()];
        for _ in 0..laps {
            for place in 0..contestants.len() {
                let who = match round % 2 {
                    0 => contestants.len() - 1 - place,
                    _ => place,
                };
                turns[who].push(contestants[who].turn(turn)?);
            }
        }
        if round > 0 {
            for (figures, turns) in figures.iter_mut().zip(turns) {
                figures.push(median(&turns));
            }
        }
        round_over();
    }
    Ok(figures)
}

impl Contestant {
    /// Works for so long; returns operations a second, of all threads together.
    fn turn(&mut self, time: Duration) -> Result<f64, BenchError> {
        let rate = match &mut self.workers[..] {
            [alone] => alone.batch().and_then(|_| {
                let start = Instant::now();
                work(alone.as_mut(), start, time)
            }),
            many => thread::scope(|scope| {
                let start = Instant::now() + RENDEZVOUS;
                let threads: Vec<_> = many
                    .iter_mut()
                    .map(|worker| {
                        scope.spawn(move || {
                            worker.batch()?;
                            while Instant::now() < start {
                                std::hint::spin_loop();
                            }
                            work(worker.as_mut(), start.max(Instant::now()), time)
                        })
                    })
                    .collect();
                threads
                    .into_iter()
                    .map(|thread| thread.join().expect("a worker does not panic"))
                    .sum()
            }),
        };
        rate.map_err(|source| BenchError::Failed {
            contestant: self.variant,
            source,
        })
    }
}

/// Works from `start` on for so long; returns operations a second.
fn work(worker: &mut dyn Worker, start: Instant, time: Duration) -> io::Result<f64> {
    let mut operations = 0;
    loop {
        operations += worker.batch()?;
        let elapsed = start.elapsed();
        if elapsed >= time {
            return Ok(operations as f64 / elapsed.as_secs_f64());
        }
    }
}
