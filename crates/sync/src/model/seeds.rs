//! Executions that follow from a seed.
//!
//! # Model
//!
//! Shuttle's own schedulers go on with the state that earlier executions left them. Here each execution has a seed, and all
//! that is chosen by chance follows from it: how threads are scheduled, and each step. So the seed alone repeats it.
//!
//! | strategy | what it finds |
//! |---|---|
//! | any thread at each step | what needs many switches |
//! | threads that run on for a while | what needs many steps of one thread between two of another |
//! | priorities that change at a few steps (PCT) | what needs few switches at certain places |
//!
//! A thread that yields, or that has run for [`FAIR`] steps in a row, comes after the others in the last strategy:
//! spinning threads do not starve the one that they spin for. After [`LONG`] steps the second strategy takes over:
//! with priorities, two threads that keep undoing each other's work may go on for ever, as a store and a write-back
//! of its page do.
//!
//! The *trace* of an execution is the sequence of the threads that ran and of the model's notes ([`trace`]). Equal
//! executions have equal hashes.

use super::virtual_time::{self, Keeper};
use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};
use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// An execution that has more steps than this does not end.
const STEPS: usize = 2_000_000;
const STACK: usize = 1 << 17;

/// Steps in a row after which a thread gives way to those that can run.
const FAIR: u64 = 5000;

/// Steps after which threads are no longer chosen by priority.
const LONG: u64 = 200_000;

std::thread_local! {
    /// Of the execution that runs.
    static SEED: Cell<u64> = const { Cell::new(0) };
    static TRACE: Cell<u64> = const { Cell::new(0) };
}

/// An execution that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Execution {
    /// The seed that it follows from.
    pub seed: u64,
    /// The hash of its trace.
    pub hash: u64,
    /// Its steps.
    pub steps: u64,
}

/// Scrambles one word (the finaliser of SplitMix64).
fn scramble(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Numbers that follow from a seed.
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        scramble(self.0)
    }

    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

/// Adds to the trace.
struct Fold(u64);

impl Hasher for Fold {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        scramble(self.0)
    }
}

/// Notes something that happened in the trace of the execution, with the time at which it did.
pub fn trace(event: &impl Hash) {
    TRACE.with(|trace| {
        let mut fold = Fold(trace.get());
        event.hash(&mut fold);
        virtual_time::now().hash(&mut fold);
        trace.set(fold.0);
    });
}

/// How the next thread is chosen.
enum Strategy {
    /// Any thread, but the same one as in the last step except in one of this many cases.
    Runs(u64),
    Priorities(Priorities),
}

/// Priorities of threads: the least number runs.
struct Priorities {
    of: Vec<u64>,
    /// Steps after which the thread that runs comes last.
    changes: Vec<u64>,
    /// The next that comes last.
    last: u64,
    row: u64,
}

impl Priorities {
    fn new(draws: &mut Draws) -> Self {
        let changes = draws.below(6);
        let scale = 64 << draws.below(10);
        Self {
            of: Vec::new(),
            changes: (0..changes).map(|_| draws.below(scale)).collect(),
            last: 1 << 63,
            row: 0,
        }
    }

    fn next(
        &mut self,
        step: u64,
        draws: &mut Draws,
        runnable: &[&Task],
        current: Option<TaskId>,
        is_yielding: bool,
    ) -> Option<TaskId> {
        let most = runnable
            .iter()
            .map(|task| usize::from(task.id()))
            .chain(current.map(usize::from));
        for _ in self.of.len()..=most.max()? {
            self.of.push(draws.next() >> 1);
        }
        self.row += 1;
        if let Some(current) = current
            && (is_yielding || self.row > FAIR || self.changes.contains(&step))
        {
            self.of[usize::from(current)] = self.last;
            self.last += 1;
        }
        let next = runnable
            .iter()
            .map(|task| task.id())
            .min_by_key(|&id| self.of[usize::from(id)]);
        if next != current {
            self.row = 0;
        }
        next
    }
}

/// Runs one execution for each seed.
struct Seeds<E> {
    seeds: Range<u64>,
    draws: Draws,
    /// The numbers that the model draws.
    data: Draws,
    strategy: Strategy,
    steps: u64,
    runs: bool,
    ended: E,
}

impl<E: FnMut(Execution)> Seeds<E> {
    fn end_execution(&mut self) {
        if std::mem::take(&mut self.runs) {
            (self.ended)(Execution {
                seed: SEED.get(),
                hash: Fold(TRACE.get()).finish(),
                steps: self.steps,
            });
        }
    }
}

impl<E: FnMut(Execution)> Scheduler for Seeds<E> {
    fn new_execution(&mut self) -> Option<Schedule> {
        self.end_execution();
        virtual_time::reset();
        let seed = self.seeds.next()?;
        SEED.set(seed);
        TRACE.set(0);
        self.draws = Draws(scramble(seed ^ 0x5eed));
        self.data = Draws(self.draws.next());
        self.strategy = match self.draws.below(6) {
            0 => Strategy::Runs(1),
            1 => Strategy::Runs(4),
            2 => Strategy::Runs(32),
            3 => Strategy::Runs(256),
            _ => Strategy::Priorities(Priorities::new(&mut self.draws)),
        };
        self.steps = 0;
        self.runs = true;
        Some(Schedule::new(seed))
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        is_yielding: bool,
    ) -> Option<TaskId> {
        self.steps += 1;
        if self.steps > LONG && matches!(self.strategy, Strategy::Priorities(_)) {
            self.strategy = Strategy::Runs(32);
        }
        let mut others = Vec::new();
        let runnable = match virtual_time::keeper() {
            Keeper::Busy(keeper) => return Some(keeper),
            Keeper::Idle(keeper) => {
                // Without the parked threads, which shuttle may wake for nothing: time would never pass.
                let can_run = |task: &&&Task| task.runnable() && task.id() != keeper;
                others.extend(runnable.iter().filter(can_run).copied());
                if others.is_empty() {
                    return Some(keeper);
                }
                &others
            }
            Keeper::Unknown => runnable,
        };
        let next = match &mut self.strategy {
            Strategy::Runs(mean) => {
                let goes_on = *mean > 1 && !is_yielding && self.draws.below(*mean) > 0;
                let on = current
                    .filter(|&current| goes_on && runnable.iter().any(|task| task.id() == current));
                let any =
                    |draws: &mut Draws| runnable[draws.below(runnable.len() as u64) as usize].id();
                Some(on.unwrap_or_else(|| any(&mut self.draws)))
            }
            Strategy::Priorities(priorities) => {
                priorities.next(self.steps, &mut self.draws, runnable, current, is_yielding)
            }
        };
        if let Some(next) = next {
            let mut fold = Fold(TRACE.get());
            fold.write_usize(usize::from(next));
            TRACE.set(fold.0);
        }
        next
    }

    fn next_u64(&mut self) -> u64 {
        self.data.next()
    }
}

/// Runs `model` once for each seed, and calls `ended` with each execution that has not failed.
///
/// # Errors
/// The seed of the first execution that failed, whose panic was reported.
pub fn run_seeds(
    seeds: Range<u64>,
    ended: impl FnMut(Execution) + 'static,
    model: impl Fn(u64) + Send + Sync + 'static,
) -> Result<(), u64> {
    let mut config = shuttle::Config::new();
    config.stack_size = STACK;
    config.max_steps = shuttle::MaxSteps::FailAfter(STEPS);
    config.failure_persistence = shuttle::FailurePersistence::None;
    let scheduler = Seeds {
        seeds,
        draws: Draws(0),
        data: Draws(0),
        strategy: Strategy::Runs(1),
        steps: 0,
        runs: false,
        ended,
    };
    let run = AssertUnwindSafe(|| {
        shuttle::Runner::new(scheduler, config).run(move || model(SEED.get()));
    });
    match catch_unwind(run) {
        Ok(()) => Ok(()),
        Err(_) => {
            virtual_time::reset();
            Err(SEED.get())
        }
    }
}
