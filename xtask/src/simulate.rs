//! The simulation, for as many seeds as are wanted.
//!
//! # Model
//!
//! The seeds are shared among processes, each of which runs the test `simulate` of `foliocache-sim`, built with
//! `--cfg shuttle`. One that fails prints the command that repeats its seed, and the rest is stopped. One that passes
//! says how many seeds it ran; without that line it counts as failed.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::programs;
use crate::tiers::Workspace;

/// The test file that holds the simulation.
const TEST: &str = "shuttle_simulation";

/// The options of `simulate`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Options {
    driver: String,
    /// The first seed; fresh ones without.
    from: Option<u64>,
    seeds: u64,
    jobs: u64,
}

fn parse(arguments: &[String]) -> Result<Options, String> {
    let mut options = Options {
        driver: "mm".to_owned(),
        from: None,
        seeds: 1000,
        jobs: 2,
    };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let value = rest.next().ok_or(format!("{argument} needs a value"))?;
        let number = || -> Result<u64, String> {
            value
                .parse()
                .map_err(|_| format!("{argument} needs a number, not `{value}`"))
        };
        match argument.as_str() {
            "--driver" if ["mm", "vfs"].contains(&value.as_str()) => {
                options.driver.clone_from(value);
            }
            "--driver" => return Err(format!("there is no driver `{value}`: mm, or vfs")),
            "--from" => options.from = Some(number()?),
            "--seeds" => options.seeds = number()?,
            "--jobs" => options.jobs = number()?.max(1),
            "--seed" => (options.from, options.seeds) = (Some(number()?), 1),
            other => return Err(format!("unknown option `{other}`")),
        }
    }
    options.jobs = options.jobs.min(options.seeds.max(1));
    Ok(options)
}

/// A first seed that was most likely never run.
fn fresh() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    // Far from those of other runs, and short enough to be typed.
    now.map_or(0, |now| now.as_millis() as u64 % 1_000_000_000 * 1_000_000)
}

/// The parts of `seeds` from `from` on that `jobs` processes run: the first seed and how many.
fn parts(from: u64, seeds: u64, jobs: u64) -> Vec<(u64, u64)> {
    let end = |job: u64| seeds * job / jobs;
    (0..jobs)
        .map(|job| (from + end(job), end(job + 1) - end(job)))
        .collect()
}

/// `cargo xtask simulate`: whether all seeds passed.
pub(crate) fn run(
    arguments: &[String],
    root: &Path,
    workspace: &Workspace,
) -> Result<bool, String> {
    let options = parse(arguments)?;
    // With the shuttle models of the model tier.
    let chosen = ["--test", TEST].map(str::to_owned);
    let mut built = programs::build(root, workspace.models("shuttle"), &chosen)?;
    let program = built.pop().ok_or("cargo built no simulation")?;
    let from = options.from.unwrap_or_else(fresh);
    let (driver, seeds) = (&options.driver, options.seeds);
    println!("seeds {from}..{} of {driver}", from + seeds);
    let begun = Instant::now();
    let mut children = Vec::new();
    for (first, count) in parts(from, seeds, options.jobs) {
        let mut command = program.command();
        command.args(["--ignored", "--exact", "--nocapture", "simulate"]);
        command.env("FOLIOCACHE_DRIVER", driver);
        command.env("FOLIOCACHE_SEED", first.to_string());
        command.env("FOLIOCACHE_SEEDS", count.to_string());
        // The documents state its limits.
        command.env("SHUTTLE_SILENCE_WARNINGS", "1");
        command.stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|e| format!("{TEST}: {e}"))?;
        let output = child.stdout.take().ok_or("a simulation has no output")?;
        let says = thread::spawn(move || is_done(output, count, |line| println!("{line}")));
        children.push(Part { child, says });
    }
    let passed = wait(children)?;
    let took = begun.elapsed().as_secs_f64();
    if passed {
        let rate = seeds as f64 / took * 60.0;
        println!("{seeds} seeds of {driver} passed in {took:.1} s, {rate:.0} a minute");
    }
    Ok(passed)
}

/// A process that runs some of the seeds.
struct Part {
    child: Child,
    /// Shows its output; whether it said that all of its seeds were run.
    says: JoinHandle<bool>,
}

/// Shows each line of `output`; whether one of them says that `count` seeds were run.
fn is_done(output: impl Read, count: u64, mut show: impl FnMut(&str)) -> bool {
    let done = format!("DONE {count} seeds of ");
    let mut found = false;
    for line in BufReader::new(output).split(b'\n') {
        let Ok(line) = line else { break };
        let line = String::from_utf8_lossy(&line);
        found |= line.contains(&done);
        show(&line);
    }
    found
}

/// Waits for all; ends the others once one has failed.
fn wait(mut parts: Vec<Part>) -> Result<bool, String> {
    while !parts.is_empty() {
        let mut running = Vec::new();
        let mut failed = false;
        for mut part in parts {
            match part.child.try_wait().map_err(|e| e.to_string())? {
                None => running.push(part),
                Some(status) => {
                    let done = part.says.join().unwrap_or(false);
                    if status.success() && !done {
                        eprintln!("a simulation ended well, but did not say that it ran its seeds");
                    }
                    failed |= !status.success() || !done;
                }
            }
        }
        if failed {
            for mut part in running {
                let _ = part.child.kill();
                let _ = part.child.wait();
                let _ = part.says.join();
            }
            return Ok(false);
        }
        parts = running;
        thread::sleep(Duration::from_millis(50));
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Options, String> {
        let arguments: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        parse(&arguments)
    }

    #[test]
    fn options_of_a_simulation_are_parsed() {
        let options = parsed("--driver vfs --seeds 10 --from 7 --jobs 3").unwrap();
        assert_eq!(
            (options.from, options.seeds, options.jobs),
            (Some(7), 10, 3)
        );
        assert_eq!(options.driver, "vfs");
        let one = parsed("--seed 5").unwrap();
        assert_eq!((one.from, one.seeds, one.jobs), (Some(5), 1, 1));
        for bad in ["--driver fs", "--seeds", "--seeds x", "--sed 3"] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_part_has_to_say_that_it_ran_its_seeds() {
        let mut shown = Vec::new();
        let output =
            "running 1 test\ntest simulate ... DONE 12 seeds of mm from 3: 5 steps, 0.1 s\nok\n";
        assert!(is_done(output.as_bytes(), 12, |line| shown.push(line.to_owned())));
        assert_eq!(shown.join("\n"), output.trim_end());
        assert!(!is_done(output.as_bytes(), 2, |_| {}));
        let none = "running 0 tests\ntest result: ok. 0 passed\n";
        assert!(!is_done(none.as_bytes(), 12, |_| {}));
    }

    #[test]
    fn each_seed_is_run_once() {
        assert_eq!(parts(10, 7, 2), [(10, 3), (13, 4)]);
        assert_eq!(parts(0, 1, 1), [(0, 1)]);
        let all: u64 = parts(5, 100, 3).iter().map(|(_, count)| count).sum();
        assert_eq!(all, 100);
    }
}
