//! The cache in schedules that follow from a seed: files over a store that fails, delays and loses power, under a bound that
//! moves, with the flusher, the reclaimer and the follower of pressure; and names beside them. In virtual time.
//!
//! `cargo xtask simulate` runs it for longer. Shuttle is sequentially consistent: errors in weak orderings are left
//! to the loom models.
#![cfg(shuttle)]
#![allow(missing_docs)]
#![allow(unsafe_code)]

mod schedules;

use foliocache_sync::model::{Execution, run_seeds};
use schedules::{files, names};
use std::cell::Cell;
use std::ops::Range;
use std::process::Command;
use std::rc::Rc;
use std::time::Instant;

/// The driver of a seed.
#[derive(Clone, Copy, Debug)]
enum Driver {
    /// Files.
    Mm,
    /// Names beside a file.
    Vfs,
}

impl Driver {
    fn name(self) -> &'static str {
        match self {
            Driver::Mm => "mm",
            Driver::Vfs => "vfs",
        }
    }

    fn model(self) -> fn(u64) {
        match self {
            Driver::Mm => files::run,
            Driver::Vfs => names::run,
        }
    }

    /// Runs each seed. A failure prints the command that repeats its seed.
    fn run(self, seeds: Range<u64>, ended: impl FnMut(Execution) + 'static) {
        if let Err(seed) = run_seeds(seeds, ended, self.model()) {
            let name = self.name();
            panic!(
                "seed {seed} of {name} failed. To repeat it:\n    \
                 cargo xtask simulate --driver {name} --seed {seed}"
            );
        }
    }
}

/// Seeds that once found something.
const FOUND_MM: &[u64] = &[
    // The flusher wrote the attributes of a closed file beside a flush that did.
    336,
    // An operation of the store hung after the store was healed, and was never released.
    1062,
    // A store and the write-back of its page undid each other for ever, since threads were chosen by priority.
    743_103_964_013_299,
];
const FOUND_VFS: &[u64] = &[
    // A write beside a write-back made the file longer, which the judge took for lost data.
    546_498_656_001_756,
];

#[test]
fn seeds_that_once_found_something_pass() {
    for (driver, found) in [(Driver::Mm, FOUND_MM), (Driver::Vfs, FOUND_VFS)] {
        for &seed in found {
            driver.run(seed..seed + 1, |_| {});
        }
    }
}

#[test]
fn files_in_a_few_schedules() {
    Driver::Mm.run(0..100, |_| {});
}

#[test]
fn names_in_a_few_schedules() {
    Driver::Vfs.run(0..50, |_| {});
}

/// Seeds whose traces processes compare.
const COMPARED: u64 = 12;

/// Run by [`one_seed_gives_one_trace_in_ten_processes`].
#[test]
#[ignore = "a part of another test"]
fn traces() {
    for driver in [Driver::Mm, Driver::Vfs] {
        driver.run(0..COMPARED, move |Execution { seed, hash, steps }| {
            println!("TRACE {} {seed} {hash:016x} {steps}", driver.name());
        });
    }
}

#[test]
fn one_seed_gives_one_trace_in_ten_processes() {
    let traces = || {
        let this = std::env::current_exe().unwrap();
        let arguments = ["--ignored", "--exact", "--nocapture", "traces"];
        let output = Command::new(this).args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}");
        let lines = text.lines().filter_map(|line| line.split_once("TRACE "));
        lines.map(|(_, trace)| trace.to_owned()).collect::<Vec<_>>()
    };
    let first = traces();
    assert_eq!(first.len(), 2 * COMPARED as usize, "{first:?}");
    for _ in 1..10 {
        assert_eq!(traces(), first);
    }
}

/// A seed alone gives the same as after others in the same process.
#[test]
fn one_seed_gives_one_trace_whatever_ran_before() {
    let hash = |driver: Driver, seeds: Range<u64>| {
        let last = Rc::new(Cell::new(0));
        let ended = Rc::clone(&last);
        driver.run(seeds, move |execution| ended.set(execution.hash));
        last.get()
    };
    for driver in [Driver::Mm, Driver::Vfs] {
        let alone = hash(driver, 29..30);
        assert_eq!(hash(driver, 10..30), alone);
        assert_ne!(hash(driver, 28..29), alone);
    }
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is a number")),
    )
}

/// Run by `cargo xtask simulate`: `FOLIOCACHE_SEEDS` seeds of `FOLIOCACHE_DRIVER`, from
/// `FOLIOCACHE_SEED` on.
#[test]
#[ignore = "run by cargo xtask simulate"]
fn simulate() {
    let driver = match std::env::var("FOLIOCACHE_DRIVER").as_deref() {
        Ok("mm") => Driver::Mm,
        Ok("vfs") => Driver::Vfs,
        other => panic!("FOLIOCACHE_DRIVER is mm or vfs, not {other:?}"),
    };
    let (first, seeds) = (
        number("FOLIOCACHE_SEED").unwrap_or(0),
        number("FOLIOCACHE_SEEDS").unwrap_or(1),
    );
    let begun = Instant::now();
    let steps = Rc::new(Cell::new(0));
    let counted = Rc::clone(&steps);
    driver.run(first..first + seeds, move |execution| {
        counted.set(counted.get() + execution.steps);
        if seeds == 1 {
            println!("{execution:?}");
        }
    });
    println!(
        "DONE {seeds} seeds of {} from {first}: {} steps, {:.1} s",
        driver.name(),
        steps.get(),
        begun.elapsed().as_secs_f64()
    );
}
