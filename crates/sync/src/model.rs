//! Runs a model under loom or shuttle, and checks that it has explored something.
//!
//! # Model
//!
//! A model whose threads cannot interleave passes without testing anything. So each loom model states the
//! least number of executions that it expects, somewhat below the number it has today, and a shuttle model
//! needs different schedules in half of its executions.
//!
//! Run both sides of a race on new threads. For loom, everything that the first thread does between a spawn and its
//! next switch of threads happens before the spawned thread begins, and is not interleaved.

#[cfg(loom)]
pub use loom_model::{explore, unexplored};
#[cfg(shuttle)]
pub use seeds::{Execution, run_seeds, trace};
#[cfg(shuttle)]
pub use shuttle_model::{sample, sample_runs};
#[cfg(shuttle)]
pub use virtual_time::with_virtual_time;

pub(crate) mod barrier;
#[cfg(shuttle)]
pub(crate) mod guard;
#[cfg(shuttle)]
mod seeds;
#[cfg(shuttle)]
pub(crate) mod virtual_time;

#[cfg(loom)]
mod loom_model {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A thread that spins for ever passes this number of steps; no execution that ends does.
    const STEPS: usize = 50_000;

    /// Runs `model` in each interleaving with at most this many preemptions.
    ///
    /// # Panics
    /// If an execution fails, or if there are fewer than `at_least` of them.
    pub fn explore(preemptions: usize, at_least: u64, model: impl Fn() + Send + Sync + 'static) {
        let count = Arc::new(AtomicU64::new(0));
        let executions = Arc::clone(&count);
        let mut builder = loom::model::Builder::new();
        builder.max_branches = STEPS;
        builder.preemption_bound = Some(preemptions);
        builder.check(move || {
            // Relaxed: a count. Executions run one after another.
            executions.fetch_add(1, Ordering::Relaxed);
            model();
        });
        // Relaxed: a count. Executions run one after another.
        let count = count.load(Ordering::Relaxed);
        println!("{count} executions, at least {at_least} expected");
        assert!(count >= at_least, "a model had {count} executions only");
    }

    /// Runs `f` in one interleaving: a preparation that the model does not explore.
    pub fn unexplored<R>(f: impl FnOnce() -> R) -> R {
        loom::stop_exploring();
        let result = f();
        loom::explore();
        result
    }
}

#[cfg(shuttle)]
mod shuttle_model {
    use shuttle::scheduler::{RandomScheduler, Schedule, Scheduler, Task, TaskId};
    use std::collections::HashSet;
    use std::hash::{DefaultHasher, Hash, Hasher};
    use std::sync::{Arc, Mutex, PoisonError};

    /// A thread that spins for ever passes this number of steps; no execution that ends does.
    const STEPS: usize = 5_000_000;
    const STACK: usize = 1 << 17;

    /// Chooses as another scheduler does, and remembers the schedules.
    struct Recorder {
        scheduler: RandomScheduler,
        /// Steps that a thread is left to run on the average; an execution takes the next of them.
        runs: &'static [u64],
        execution: usize,
        /// Of the execution that runs, if one does.
        schedule: Option<DefaultHasher>,
        schedules: Arc<Mutex<HashSet<u64>>>,
    }

    impl Recorder {
        fn end_execution(&mut self) {
            let Some(schedule) = self.schedule.take() else {
                return;
            };
            let mut schedules = self
                .schedules
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            schedules.insert(schedule.finish());
        }
    }

    impl Scheduler for Recorder {
        fn new_execution(&mut self) -> Option<Schedule> {
            self.end_execution();
            crate::model::virtual_time::reset();
            self.execution += 1;
            self.scheduler.new_execution()
        }

        fn next_task(
            &mut self,
            runnable: &[&Task],
            current: Option<TaskId>,
            is_yielding: bool,
        ) -> Option<TaskId> {
            let run = self.runs[self.execution % self.runs.len()];
            let on = current
                .filter(|_| {
                    run > 1 && !is_yielding && !self.scheduler.next_u64().is_multiple_of(run)
                })
                .filter(|current| runnable.iter().any(|task| task.id() == *current));
            let next = on.or_else(|| self.scheduler.next_task(runnable, current, is_yielding));
            let schedule = self.schedule.get_or_insert_default();
            next.map(usize::from).hash(schedule);
            next
        }

        fn next_u64(&mut self) -> u64 {
            self.scheduler.next_u64()
        }
    }

    /// Runs `model` this many times, multiplied by `FOLIOCACHE_STRESS`, in random schedules.
    ///
    /// # Panics
    /// If an execution fails, or if fewer than half of the schedules differ.
    pub fn sample(executions: usize, model: impl Fn() + Send + Sync + 'static) {
        sample_with(executions, &[1], model);
    }

    /// As [`sample`], with threads that run for longer or shorter stretches: finds bugs that need many steps of one
    /// thread between two of another.
    pub fn sample_runs(executions: usize, model: impl Fn() + Send + Sync + 'static) {
        sample_with(executions, &[1, 8, 32, 128], model);
    }

    fn sample_with(
        executions: usize,
        runs: &'static [u64],
        model: impl Fn() + Send + Sync + 'static,
    ) {
        let scale = std::env::var("FOLIOCACHE_STRESS").map_or(1, |s| s.parse().unwrap_or(1));
        let mut config = shuttle::Config::new();
        config.stack_size = STACK;
        config.max_steps = shuttle::MaxSteps::FailAfter(STEPS);
        let schedules = Arc::default();
        let recorder = Recorder {
            scheduler: RandomScheduler::new(executions * scale),
            runs,
            execution: 0,
            schedule: None,
            schedules: Arc::clone(&schedules),
        };
        let count = shuttle::Runner::new(recorder, config).run(model);
        let different = schedules
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .len();
        println!("{count} executions, {different} different schedules");
        assert!(
            count == executions * scale && different > count / 2,
            "of {count} executions only {different} differed"
        );
    }
}
