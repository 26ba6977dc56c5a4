//! The turns: contestants one after another, over and over.
//!
//! # Model
//!
//! ```text
//!  round 0 (warm-up)   A B C    │ A B C    │ …         not counted; ratios that may be near 1 get a control
//!  round 1             A B C A' │ A B C A' │ … laps    one figure each: the median of its turns
//!  round 2             A' C B A │ A' C B A │ …         the order turns round each time: A B B A
//!  ⋮                                                   an even number of them
//! ```
//!
//! A *control* (A') is another turn of the same contestant in the same round. A'/A is the ratio of two equals, and
//! stands beside each ratio near 1.
//!
//! A turn of operations takes half a millisecond, less than a time slice of the scheduler. A longer
//! disturbance of the machine affects all of a round's figures alike and cancels in their ratio.
//! Turns in which the processor ran another program are few and do not reach the median. Nor do a
//! contestant's own pauses that are rarer than every other turn: a case about those has to measure
//! them separately. A turn that is a pass over files is as long as the pass, and a round has one of
//! each.
//!
//! Each turn of operations begins with a batch that is not counted: the turn before has filled the
//! processor's caches with its own. Several threads of one contestant begin together, once each has done
//! that batch. Where they are more than the processors, the scheduler gives a turn of half a millisecond to the first
//! of them alone, so each turn takes all of the figure's time.

use foliocache_sys::fd;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::case::{Case, Contestant, Match, Outcome, RatioPlan, Work, Worker};
use crate::error::BenchError;
use crate::ratio::{Target, maybe_near_one};
use crate::report::Report;
use crate::settings::{Settings, Uses};
use crate::stats::median;

/// How long a turn of operations takes, or shorter where all of a figure does.
const TURN: Duration = Duration::from_micros(500);

/// Looks at whether all threads are ready before one lets others run.
const SPINS: u32 = 1000;

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
/// The case's setup or an operation failed.
pub fn run(
    case: &Case,
    settings: &Settings,
    mut progress: impl FnMut(Progress),
) -> Result<Report, BenchError> {
    settings.check()?;
    let mut settings = settings.clone();
    if case.uses.has(Uses::MEMORY) {
        settings.memory = settings.memory.or(case.settings(false).memory);
    }
    let _limit = Limit(fd::open_file_limit());
    let plan = (case.plan)(&settings)?;
    let rounds = |one: &Match| one.rounds(settings.samples) + 1;
    let total: usize = plan.matches.iter().map(rounds).sum();
    let mut report = Report::new(case, settings.clone());
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

/// The process's soft limit of open files before a case, which may set another. It is set again in the end: other
/// cases may come.
struct Limit(u64);

impl Drop for Limit {
    fn drop(&mut self) {
        // This limit was allowed before, so it is not refused.
        let _ = fd::set_open_file_limit(self.0);
    }
}

/// The outcomes of the rounds, for each contestant.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    /// Of its turns, an outcome a round.
    pub(crate) figures: Vec<Vec<Outcome>>,
    /// Of its second turns; empty where it had none.
    pub(crate) controls: Vec<Vec<Outcome>>,
}

fn run_match(
    one: &mut Match,
    settings: &Settings,
    mut round_over: impl FnMut(),
) -> Result<Outcomes, BenchError> {
    let number = one.contestants.len();
    let whole = Duration::from_secs_f64(settings.seconds);
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let is_whole = |work: &Work| matches!(work, Work::Pass { .. }) || work.threads() > processors;
    let laps = match one.contestants.iter().any(|one| is_whole(&one.work)) {
        true => 1,
        false => whole.as_micros().div_ceil(TURN.as_micros()).max(1) as u32,
    };
    let warm = run_round(one, &order(number, &[], 0), whole, laps)?;
    round_over();
    let controls = controls(one, &warm.figures);
    let mut outcomes = Outcomes::of(number);
    for round in 1..=one.rounds(settings.samples) {
        let turns = order(number, &controls, round);
        outcomes.extend(run_round(one, &turns, whole, laps)?);
        round_over();
    }
    Ok(outcomes)
}

impl Outcomes {
    fn of(contestants: usize) -> Self {
        Self {
            figures: vec![Vec::new(); contestants],
            controls: vec![Vec::new(); contestants],
        }
    }

    fn extend(&mut self, round: Self) {
        let all = self.figures.iter_mut().chain(&mut self.controls);
        for (all, more) in all.zip(round.figures.into_iter().chain(round.controls)) {
            all.extend(more);
        }
    }
}

/// A turn of a lap: whose it is, and whether it is the second of its contestant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Turn {
    who: usize,
    control: bool,
}

/// The turns of a lap in a round: in odd rounds forwards, in even ones backwards. A control is away from the first turn
/// of its contestant.
fn order(contestants: usize, controls: &[usize], round: usize) -> Vec<Turn> {
    let turn = |control| move |who| Turn { who, control };
    let (early, late): (Vec<usize>, Vec<usize>) =
        controls.iter().partition(|&&who| who < contestants / 2);
    let before = late.into_iter().map(turn(true));
    let firsts = (0..contestants).map(turn(false));
    let after = early.into_iter().map(turn(true));
    let mut turns: Vec<Turn> = before.chain(firsts).chain(after).collect();
    if round.is_multiple_of(2) {
        turns.reverse();
    }
    turns
}

/// One round of several laps; each figure is the median of their turns.
fn run_round(
    one: &mut Match,
    turns: &[Turn],
    whole: Duration,
    laps: u32,
) -> Result<Outcomes, BenchError> {
    let mut all = Outcomes::of(one.contestants.len());
    for _ in 0..laps {
        for turn in turns {
            let outcome = one.contestants[turn.who].turn(whole / laps)?;
            match turn.control {
                true => all.controls[turn.who].push(outcome),
                false => all.figures[turn.who].push(outcome),
            }
        }
    }
    let median = |of: Vec<Vec<Outcome>>| of.iter().map(|turns| of_turns(turns)).collect();
    Ok(Outcomes {
        figures: median(all.figures),
        controls: median(all.controls),
    })
}

/// Contestants that have a second turn each round, so that every ratio that may come out near 1 has a control: one of
/// its two contestants, that which more ratios have.
fn controls(one: &Match, warm: &[Vec<Outcome>]) -> Vec<usize> {
    let mut found = Vec::new();
    let wanted = |plan: &&RatioPlan| {
        let about = plan.of_round(|who| plan.figure.of(&warm[who][0]));
        let by_target = matches!(plan.target, Some(Target::NotWorse | Target::NotLonger));
        !one.exact && (by_target || maybe_near_one(about))
    };
    let uses = |who| {
        let has = |plan: &&RatioPlan| plan.of == who || plan.to == who;
        one.ratios.iter().filter(has).count()
    };
    for plan in one.ratios.iter().filter(wanted) {
        if !found.contains(&plan.of) && !found.contains(&plan.to) {
            found.push(plan.control.unwrap_or({
                match uses(plan.to) > uses(plan.of) {
                    true => plan.to,
                    false => plan.of,
                }
            }));
        }
    }
    found
}

/// The median of the turns of one round; nothing where there were none.
fn of_turns(turns: &[Outcome]) -> Vec<Outcome> {
    if turns.len() <= 1 {
        return turns.to_vec();
    }
    let values: Vec<f64> = turns.iter().map(|turn| turn.value).collect();
    vec![Outcome::plain(median(&values))]
}

impl Contestant {
    /// Works for `time`, or one pass.
    fn turn(&mut self, time: Duration) -> Result<Outcome, BenchError> {
        let outcome = match &mut self.work {
            Work::Operations(workers) => operations(workers, time).map(Outcome::plain),
            Work::Pass { pass, .. } => pass(),
        };
        outcome.map_err(|source| BenchError::Failed {
            contestant: self.variant,
            source,
        })
    }
}

/// Operations a second of all threads together, from when the first begins until the last ends.
fn operations(workers: &mut [Box<dyn Worker>], time: Duration) -> io::Result<f64> {
    let works = match workers {
        [alone] => {
            alone.batch()?;
            vec![work(alone.as_mut(), time)?]
        }
        many => together(many, time)?,
    };
    let start = works.iter().map(|work| work.start).min();
    let end = works.iter().map(|work| work.end).max();
    let (start, end) = start.zip(end).expect("there is a worker");
    let operations: u64 = works.iter().map(|work| work.operations).sum();
    Ok(operations as f64 / (end - start).as_secs_f64())
}

/// Works on a thread for each worker. They begin together, once each has done its first batch.
fn together(workers: &mut [Box<dyn Worker>], time: Duration) -> io::Result<Vec<Done>> {
    let (all, ready) = (workers.len(), AtomicUsize::new(0));
    thread::scope(|scope| {
        let threads: io::Result<Vec<_>> = workers
            .iter_mut()
            .map(|worker| {
                thread::Builder::new().spawn_scoped(scope, || {
                    let first = {
                        let _ready = Ready(&ready);
                        worker.batch()
                    };
                    let mut looks = 0;
                    // Relaxed: the threads only meet here.
                    while ready.load(Ordering::Relaxed) < all {
                        looks += 1;
                        match looks % SPINS {
                            0 => thread::yield_now(),
                            _ => std::hint::spin_loop(),
                        }
                    }
                    first.and_then(|_| work(worker.as_mut(), time))
                })
            })
            .collect();
        if threads.is_err() {
            // Relaxed: only a count, as in the threads. No thread waits for one that was not made.
            ready.fetch_add(all, Ordering::Relaxed);
        }
        threads?
            .into_iter()
            .map(|thread| thread.join().expect("a worker does not panic"))
            .collect()
    })
}

/// Counts a thread as ready, also after a panic.
struct Ready<'a>(&'a AtomicUsize);

impl Drop for Ready<'_> {
    fn drop(&mut self) {
        // Relaxed: the threads only meet here.
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The operations of a worker.
struct Done {
    operations: u64,
    start: Instant,
    end: Instant,
}

/// Works for `time`.
fn work(worker: &mut dyn Worker, time: Duration) -> io::Result<Done> {
    let (start, mut operations) = (Instant::now(), 0);
    loop {
        operations += worker.batch()?;
        let end = Instant::now();
        if end - start >= time {
            return Ok(Done {
                operations,
                start,
                end,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foliocache_sys::testing::thread_cpu_time;
    use std::sync::{Arc, Mutex};

    const fn first(who: usize) -> Turn {
        Turn {
            who,
            control: false,
        }
    }

    const fn control(who: usize) -> Turn {
        Turn { who, control: true }
    }

    #[test]
    fn a_crowd_does_no_more_operations_than_the_processors_can() {
        // One operation is a millisecond of the processor.
        struct Busy;
        impl Worker for Busy {
            fn batch(&mut self) -> io::Result<u64> {
                let begin = thread_cpu_time();
                while thread_cpu_time() - begin < Duration::from_millis(1) {}
                Ok(1)
            }
        }
        // More than a quota leaves at once, which may be more than it leaves on the average.
        let processors = foliocache_sys::cpu::possible();
        let crowd = 4 * processors;
        let workers = (0..crowd)
            .map(|_| Box::new(Busy) as Box<dyn Worker>)
            .collect();
        let mut one = Match::default();
        one.operations("busy", "busy", workers);
        let outcomes = run_match(&mut one, &settings(2), || {}).expect("it works");
        let most = (1000 * processors) as f64 * 1.05;
        for outcome in &outcomes.figures[0] {
            assert!(
                outcome.value <= most,
                "{} operations a second",
                outcome.value
            );
        }
    }

    #[test]
    fn rounds_go_there_and_back() {
        assert_eq!(order(2, &[], 1), [first(0), first(1)]);
        assert_eq!(order(2, &[], 2), [first(1), first(0)]);
        let there = [control(2), first(0), first(1), first(2), control(0)];
        assert_eq!(order(3, &[0, 2], 3), there);
        let mut back = there;
        back.reverse();
        assert_eq!(order(3, &[0, 2], 4), back);
    }

    /// Contestants with these figures, and the order of their turns in a run.
    fn noted(figures: &[f64]) -> (Match, Arc<Mutex<String>>) {
        let seen = Arc::new(Mutex::new(String::new()));
        let mut one = Match::default();
        for (&figure, name) in figures.iter().zip('A'..) {
            let seen = Arc::clone(&seen);
            let pass = move || {
                seen.lock().unwrap().push(name);
                Ok(Outcome::plain(figure))
            };
            one.add("work", "noted", Work::pass(1, "units", pass));
        }
        (one, seen)
    }

    fn settings(samples: usize) -> Settings {
        Settings {
            samples,
            ..Settings::default()
        }
    }

    #[test]
    fn a_ratio_near_one_has_a_control_in_each_round() {
        let (mut one, seen) = noted(&[1.0, 5.0, 1.1]);
        one.ratios = vec![RatioPlan::new("far", 0, 1), RatioPlan::new("near", 0, 2)];
        let outcomes = run_match(&mut one, &settings(4), || ()).unwrap();
        // The warm-up goes backwards, without a control.
        assert_eq!(
            *seen.lock().unwrap(),
            "CBA ABCA ACBA ABCA ACBA".replace(' ', "")
        );
        assert!(outcomes.figures.iter().all(|figures| figures.len() == 4));
        let controls: Vec<usize> = outcomes.controls.iter().map(Vec::len).collect();
        assert_eq!(controls, [4, 0, 0]);
    }

    #[test]
    fn ratios_far_from_one_and_counts_have_no_control() {
        let (mut one, _) = noted(&[1.0, 5.0]);
        one.ratios = vec![RatioPlan::new("far", 0, 1)];
        let outcomes = run_match(&mut one, &settings(2), || ()).unwrap();
        assert!(outcomes.controls.iter().all(Vec::is_empty));
        let (mut one, seen) = noted(&[1.0, 1.0]);
        one.ratios = vec![RatioPlan::new("counted", 0, 1)];
        one.exact = true;
        run_match(&mut one, &settings(2), || ()).unwrap();
        assert_eq!(*seen.lock().unwrap(), "BAABBA");
    }

    /// The contestant that most ratios have is the control of all of them.
    #[test]
    fn one_control_serves_many_ratios() {
        let (mut one, _) = noted(&[1.0, 1.0, 1.0]);
        one.ratios = vec![RatioPlan::new("a", 1, 0), RatioPlan::new("b", 2, 0)];
        let warm = vec![vec![Outcome::plain(1.0)]; 3];
        assert_eq!(controls(&one, &warm), [0]);
        one.ratios = vec![RatioPlan::new("c", 1, 0)];
        assert_eq!(controls(&one, &warm), [1]);
        one.ratios = vec![RatioPlan::new("c", 1, 0).control_of(0)];
        assert_eq!(controls(&one, &warm), [0]);
    }
}
