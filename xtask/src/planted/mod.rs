//! Planted bugs: the tests are tested.
//!
//! # Model
//!
//! ```text
//!   build    test programs with `--cfg planted`: all bugs are in them, none is planted
//!   without  each test of the list runs once with no bug, and has to pass
//!   with     for each bug: FOLIOCACHE_PLANTED=bug, and its tests until one fails
//! ```
//!
//! A bug is found if a test fails, dies by a signal, or hangs: runs for much longer than without it. The machine may be busy
//! with other things. So a test that hangs runs once more, with twice the time, and so does one that fails with no bug.
//!
//! Only our own packages are built with the flag, by [`compile`] as cargo's `RUSTC_WORKSPACE_WRAPPER`. Cargo keeps
//! a wrapper's output apart from the rest, so it does not get into other programs. The unit, model and system tiers
//! build with the wrapper too, and leave nothing to build.

mod bug;
mod build;
mod list;
mod list_above;
mod list_fs;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::programs::{processors, side_by_side};
use crate::runner::within;
use crate::tiers::{Tier, Workspace};
use build::Programs;

pub(crate) use bug::{Bug, last, table};
pub(crate) use build::{compile, is_compiler};
pub(crate) use list::BUGS;

/// How long a test may take beyond a multiple of its time without a bug.
const PATIENCE: Duration = Duration::from_secs(8);

/// Tests that run at the same time, at most: some of them look at the clock. With a bug there are as many on any
/// machine: those that take long hang, and need no processor.
const MOST_WORKERS: usize = 4;

/// The longest that a test may take without a bug.
const LONGEST: Duration = Duration::from_secs(120);

/// The options of the command.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    names: Vec<String>,
    tiers: Vec<Tier>,
    markdown: bool,
}

fn parse(arguments: &[String]) -> Result<Options, String> {
    let mut options = Options::default();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--tier" => options.tiers.push(Tier::from_argument(rest.next())?),
            "--markdown" => options.markdown = true,
            name if BUGS.iter().any(|bug| bug.name == name) => options.names.push(name.to_owned()),
            other => return Err(format!("there is no planted bug `{other}`")),
        }
    }
    Ok(options)
}

/// Checks that each requested bug is found.
pub(crate) fn run(
    arguments: &[String],
    root: &Path,
    workspace: &Workspace,
) -> Result<bool, String> {
    let options = parse(arguments)?;
    if options.markdown {
        print!("{}", table());
        return Ok(true);
    }
    let asked = |bug: &&Bug| {
        (options.names.is_empty() || options.names.iter().any(|name| name == bug.name))
            && (options.tiers.is_empty() || options.tiers.contains(&bug.tier))
    };
    let missing = std::env::var("FOLIOCACHE_MISSING").unwrap_or_default();
    let lacks = |bug: &Bug| {
        let needs = bug.needs.iter().map(|need| need.name());
        needs
            .filter(|need| missing.split(',').any(|missing| missing == *need))
            .collect::<Vec<_>>()
    };
    let (skipped, mut bugs): (Vec<&Bug>, Vec<&Bug>) = BUGS
        .iter()
        .filter(asked)
        .partition(|bug| !lacks(bug).is_empty());
    let begun = Instant::now();
    let tests: Vec<&str> = bugs.iter().flat_map(|bug| bug.tests).copied().collect();
    let programs = build::programs(root, workspace, &tests)?;
    println!("built in {:.0} s", begun.elapsed().as_secs_f64());

    let logs = workspace.target.join("xtask");
    fs::create_dir_all(&logs).map_err(|error| error.to_string())?;
    let runner = Runner { programs, logs };
    let usual = runner.without_bugs(&tests)?;
    println!(
        "\n{:<34} {:<11} {:<7} {:>7}  found by",
        "bug", "crate", "tier", "seconds"
    );
    let lost = AtomicUsize::new(0);
    // Those that may hang for longest come first.
    bugs.sort_by_key(|bug| Reverse(bug.tests.iter().map(|&test| usual[test]).max()));
    side_by_side(&bugs, MOST_WORKERS, |worker, bug| {
        let at = Instant::now();
        let found = runner.find(worker, bug, &usual)?;
        let seconds = at.elapsed().as_secs_f64();
        let by = found.unwrap_or_else(|| {
            // Relaxed: a count.
            lost.fetch_add(1, Ordering::Relaxed);
            let none = bug.tests.is_empty();
            (if none { "NO TEST YET" } else { "NOT FOUND" }).to_owned()
        });
        let (name, room, tier) = (bug.name, bug.room, bug.tier.name());
        println!("{name:<34} {room:<11} {tier:<7} {seconds:>7.1}  {by}");
        Ok(())
    })?;
    let lost = lost.into_inner();
    for bug in &skipped {
        println!(
            "{:<34} SKIPPED: this machine lacks {}",
            bug.name,
            lacks(bug).join(", ")
        );
    }
    println!(
        "{} bugs planted, {} found, {} skipped, in {:.0} s",
        bugs.len(),
        bugs.len() - lost,
        skipped.len(),
        begun.elapsed().as_secs_f64()
    );
    Ok(lost == 0 && !bugs.is_empty())
}

/// How a run of one test ended.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    Passed,
    Failed(String),
    Hung,
}

impl Ended {
    /// How it failed, if it did.
    fn failure(self) -> Option<String> {
        match self {
            Ended::Passed => None,
            Ended::Failed(how) => Some(how),
            Ended::Hung => Some("hung".to_owned()),
        }
    }
}

/// How a hanging test ends with twice the time; a delay by a busy machine is no hang.
fn patiently(
    limit: Duration,
    test: impl Fn(Duration) -> Result<Ended, String>,
) -> Result<Ended, String> {
    match test(limit)? {
        Ended::Hung => test(2 * limit),
        ended => Ok(ended),
    }
}

struct Runner {
    programs: Programs,
    /// Where each worker has the output of its last run.
    logs: PathBuf,
}

impl Runner {
    /// How long each test takes without a bug.
    fn without_bugs(&self, tests: &[&str]) -> Result<BTreeMap<String, Duration>, String> {
        let different: BTreeSet<&str> = tests.iter().copied().collect();
        let different: Vec<&str> = different.into_iter().collect();
        let (usual, begun) = (Mutex::new(BTreeMap::new()), Instant::now());
        let workers = processors().min(MOST_WORKERS);
        side_by_side(&different, workers, |worker, test| {
            let mut begun = Instant::now();
            if self.test(worker, test, None, LONGEST)? != Ended::Passed {
                begun = Instant::now();
                if let Some(how) = self.test(worker, test, None, 2 * LONGEST)?.failure() {
                    let output = fs::read_to_string(self.log(worker)).unwrap_or_default();
                    let why = format!("{test} {how} without a bug, so it proves nothing\n{output}");
                    return Err(why);
                }
            }
            let mut usual = usual.lock().unwrap_or_else(PoisonError::into_inner);
            usual.insert((*test).to_owned(), begun.elapsed());
            Ok(())
        })?;
        let (nr, seconds) = (different.len(), begun.elapsed().as_secs_f64());
        println!("{nr} tests pass without a bug, in {seconds:.0} s");
        Ok(usual.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    fn log(&self, worker: usize) -> PathBuf {
        self.logs.join(format!("planted-{worker}.log"))
    }

    /// The test that finds the bug, and how.
    fn find(
        &self,
        worker: usize,
        bug: &Bug,
        usual: &BTreeMap<String, Duration>,
    ) -> Result<Option<String>, String> {
        for &test in bug.tests {
            let limit = PATIENCE + 4 * usual.get(test).copied().unwrap_or_default();
            let ended = patiently(limit, |limit| {
                self.test(worker, test, Some(bug.name), limit)
            })?;
            if let Some(how) = ended.failure() {
                return Ok(Some(format!("{test} ({how})")));
            }
        }
        Ok(None)
    }

    fn test(
        &self,
        worker: usize,
        test: &str,
        bug: Option<&str>,
        limit: Duration,
    ) -> Result<Ended, String> {
        let failed = |error: std::io::Error| format!("{test}: {error}");
        let (program, environment, name) = self.programs.of(test)?;
        let path = self.log(worker);
        let log = File::create(&path).map_err(failed)?;
        let mut command = program.command();
        command
            .args(["--exact", name, "--include-ignored", "--test-threads=1"])
            .env("RUST_BACKTRACE", "0")
            .envs(environment.iter().copied())
            .stdout(log.try_clone().map_err(failed)?)
            .stderr(log);
        match bug {
            Some(bug) => command.env("FOLIOCACHE_PLANTED", bug),
            None => command.env_remove("FOLIOCACHE_PLANTED"),
        };
        let Some(status) = within(&mut command, limit).map_err(failed)? else {
            return Ok(Ended::Hung);
        };
        let output = fs::read(&path).map_err(failed)?;
        let ran = String::from_utf8_lossy(&output).contains("test result: ok. 1 passed");
        match (status.success(), status.signal()) {
            (true, _) if ran => Ok(Ended::Passed),
            (true, _) => Err(format!("{test}: there is no such test in its program")),
            (_, Some(signal)) => Ok(Ended::Failed(format!("died by signal {signal}"))),
            _ => Ok(Ended::Failed("failed".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn parsed(arguments: &[&str]) -> Result<Options, String> {
        parse(&crate::owned(arguments))
    }

    #[test]
    fn a_test_that_hangs_runs_once_more_with_twice_the_time() {
        let run = |ends: [Ended; 2]| {
            let (limits, ends) = (RefCell::new(Vec::new()), RefCell::new(ends.into_iter()));
            let ended = patiently(Duration::from_secs(10), |limit| {
                limits.borrow_mut().push(limit.as_secs());
                ends.borrow_mut().next().ok_or_else(String::new)
            });
            (ended.unwrap().failure(), limits.into_inner())
        };
        let failed = || Ended::Failed("failed".to_owned());
        let hung = || Some("hung".to_owned());
        assert_eq!(run([Ended::Passed, failed()]), (None, vec![10]));
        assert_eq!(run([failed(), Ended::Passed]).1, [10]);
        assert_eq!(run([Ended::Hung, Ended::Passed]), (None, vec![10, 20]));
        assert_eq!(run([Ended::Hung, Ended::Hung]), (hung(), vec![10, 20]));
    }

    #[test]
    fn bugs_are_chosen_by_name_and_tier() {
        let options = parsed(&["--tier", "model", BUGS[0].name]).unwrap();
        assert_eq!(options.tiers, [Tier::Model]);
        assert_eq!(options.names, [BUGS[0].name]);
        assert!(parsed(&["no_such_bug"]).is_err() && parsed(&["--tier"]).is_err());
    }
}
