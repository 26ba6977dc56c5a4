//! The turns: contestants one after another, over and over.
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
//! A turn of operations takes half a millisecond, less than the scheduler gives at once. What
//! disturbs the machine for longer disturbs all of a round's figures alike and leaves their ratio;
//! turns in which the processor was given to somebody else are few and so do not reach the median.
//! Nor do pauses of a contestant's own that are rarer than every other turn: a case that is about
//! those has to look at them by itself. A turn that is a pass over files is as long as the pass, and
//! a round has one of each.
//!
//! Each turn of operations begins with a batch that is not counted: the turn before has filled the
//! processor's caches with its own. Several threads of one contestant begin at one moment, agreed on
//! by clock.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use crate::case::{Case, Contestant, Match, Outcome, Work, Worker};
use crate::cost::KernelThreads;
use crate::error::BenchError;
use crate::report::Report;
use crate::settings::Settings;
use crate::stats::median;

/// How long a turn of operations takes, or shorter where all of a figure does.
const TURN: Duration = Duration::from_micros(500);

/// How far ahead threads agree to begin.
const RENDEZVOUS: Duration = Duration::from_micros(500);

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
    let mut settings = settings.clone();
    if case.uses().memory {
        settings.memory = settings.memory.or(case.settings(false).memory);
    }
    let plan = case.plan(&settings)?;
    let rounds_each = settings.samples + 1;
    let total = rounds_each * plan.matches.len();
    let mut report = Report::new(case.name(), settings.clone());
    report.host.kernel_files = plan.place.unwrap_or(report.host.kernel_files);
    report.notes = plan.notes;
    let mut done = 0;
    for mut one in plan.matches {
        let outcomes = run_match(&mut one, &settings, || {
            done += 1;
            progress(Progress { done, total });
        })?;
        report.add(&one, &outcomes);
    }
    report.finish();
    Ok(report)
}

/// For each contestant, what each round gave.
fn run_match(
    one: &mut Match,
    settings: &Settings,
    mut round_over: impl FnMut(),
) -> Result<Vec<Vec<Outcome>>, BenchError> {
    let contestants = &mut one.contestants;
    let passes = contestants
        .iter()
        .any(|contestant| matches!(contestant.work, Work::Pass { .. }));
    let whole = Duration::from_secs_f64(settings.seconds);
    let laps = match passes {
        true => 1,
        false => whole.as_micros().div_ceil(TURN.as_micros()).max(1) as u32,
    };
    let turn = whole / laps;
    let mut outcomes = vec![Vec::with_capacity(settings.samples); contestants.len()];
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
            for (outcomes, turns) in outcomes.iter_mut().zip(turns) {
                outcomes.push(of_turns(&turns));
            }
        }
        round_over();
    }
    Ok(outcomes)
}

/// What the turns of one round come to.
fn of_turns(turns: &[Outcome]) -> Outcome {
    match turns {
        [one] => one.clone(),
        many => {
            let values: Vec<f64> = many.iter().map(|turn| turn.value).collect();
            Outcome::plain(median(&values))
        }
    }
}

impl Contestant {
    /// Works for so long, or one pass.
    fn turn(&mut self, time: Duration) -> Result<Outcome, BenchError> {
        let outcome = match &mut self.work {
            Work::Operations(workers) => operations(workers, time).map(Outcome::plain),
            Work::Pass { pass, .. } => pass.prepare().and_then(|()| {
                let kernel = KernelThreads::now();
                let mut outcome = pass.run()?;
                if let Some((cost, _)) = &mut outcome.cost {
                    cost.kernel_threads = kernel.since();
                }
                Ok(outcome)
            }),
        };
        outcome.map_err(|source| BenchError::Failed {
            contestant: self.variant,
            source,
        })
    }
}

/// Operations a second, of all threads together.
fn operations(workers: &mut [Box<dyn Worker>], time: Duration) -> io::Result<f64> {
    match workers {
        [alone] => {
            alone.batch()?;
            work(alone.as_mut(), Instant::now(), time)
        }
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
