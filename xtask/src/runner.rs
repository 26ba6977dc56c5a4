//! Runs steps one after another, neighbours that allow it side by side, and reports each result.
//!
//! # Model
//!
//! A step's output goes to a log under the target directory and is shown when the step fails, or
//! as it comes with `--verbose`. The first failure ends the run. A step that outlives its limit is
//! killed with everything it started.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::programs::side_by_side;
use crate::setup::{Missing, Need};
use crate::tiers::{Action, Step};

/// Lines of a failed step's log that are shown.
const SHOWN: usize = 400;

/// Steps that run at the same time, at most.
const MOST: usize = 2;

/// How a step ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed { tests: u64, ignored: u64 },
    Skipped(String),
    Failed(String),
}

/// The runner's settings besides the steps.
pub(crate) struct Runner<'a> {
    pub(crate) root: &'a Path,
    /// Where logs go.
    pub(crate) logs: &'a Path,
    pub(crate) verbose: bool,
    pub(crate) missing: &'a [Missing],
    /// The value of `FOLIOCACHE_MISSING` for each step.
    pub(crate) missing_names: &'a str,
    /// xtask's own checks.
    pub(crate) tidy: &'a (dyn Fn() -> Result<Vec<String>, String> + Sync),
}

impl Runner<'_> {
    /// Runs the steps up to the first failure and prints a summary; whether all went well.
    pub(crate) fn run(&self, steps: &[Step]) -> bool {
        let begun = Instant::now();
        let done = Mutex::new(Vec::new());
        let numbered = steps.iter().enumerate().collect::<Vec<_>>();
        for group in numbered.chunk_by(|(_, a), (_, b)| a.side_by_side && b.side_by_side) {
            let ended = side_by_side(group, MOST, |_, &(number, step)| {
                let name = format!(
                    "[{}/{}] {}: {}",
                    number + 1,
                    steps.len(),
                    step.tier.name(),
                    step.name
                );
                println!("{name}\n      {step}");
                let at = Instant::now();
                let outcome = self.step(step, number);
                let outcome = outcome.unwrap_or_else(|error| Outcome::Failed(error.to_string()));
                let prefix = if step.side_by_side { &*name } else { "     " };
                println!(
                    "{prefix} {} in {:.1} s",
                    tell(&outcome),
                    at.elapsed().as_secs_f64()
                );
                let failed = matches!(outcome, Outcome::Failed(_));
                let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                done.push((number, step, outcome, at.elapsed()));
                if failed { Err(name) } else { Ok(()) }
            });
            if ended.is_err() {
                break;
            }
        }
        let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        done.sort_by_key(|(number, ..)| *number);
        summary(&done, steps.len(), self.missing, begun.elapsed())
    }

    fn step(&self, step: &Step, number: usize) -> io::Result<Outcome> {
        let lacking: Vec<&Missing> = self
            .missing
            .iter()
            .filter(|m| step.needs.contains(&m.need))
            .collect();
        if !lacking.is_empty() {
            let names: Vec<_> = lacking.iter().map(|m| Need::name(m.need)).collect();
            return Ok(Outcome::Skipped(format!(
                "this machine lacks {}",
                names.join(", ")
            )));
        }
        match &step.action {
            Action::NoTests(pattern) => Ok(Outcome::Failed(format!(
                "found no tests/{pattern}.rs: a tier without tests proves nothing"
            ))),
            Action::Tidy => Ok(match (self.tidy)() {
                Ok(found) if found.is_empty() => Outcome::Passed {
                    tests: 0,
                    ignored: 0,
                },
                Ok(found) => {
                    for violation in &found {
                        println!("{violation}");
                    }
                    Outcome::Failed(format!("{} broken rules", found.len()))
                }
                Err(why) => Outcome::Failed(why),
            }),
            Action::Cargo(arguments) => self.program(step, &cargo(), arguments, None, number),
            Action::Program {
                program,
                arguments,
                finds,
            } => self.program(step, program, arguments, *finds, number),
        }
    }

    fn program(
        &self,
        step: &Step,
        program: &str,
        arguments: &[String],
        finds: Option<&str>,
        number: usize,
    ) -> io::Result<Outcome> {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir(self.root)
            .stdin(Stdio::null());
        command.envs(step.env.iter().map(|(name, value)| (name, value)));
        if self.missing_names.is_empty() {
            command.env_remove("FOLIOCACHE_MISSING");
        } else {
            command.env("FOLIOCACHE_MISSING", self.missing_names);
        }
        fs::create_dir_all(self.logs)?;
        let log = self
            .logs
            .join(format!("{:02}-{}.log", number + 1, step.tier.name()));
        // A canary's output is searched for in the log.
        let verbose = self.verbose && finds.is_none();
        if !verbose {
            let file = File::create(&log)?;
            command.stdout(file.try_clone()?).stderr(file);
        }
        let Some(status) = within(&mut command, step.limit)? else {
            self.show(&log)?;
            let minutes = step.limit.as_secs() / 60;
            return Ok(Outcome::Failed(format!(
                "was still running after {minutes} minutes"
            )));
        };
        if let Some(finds) = finds {
            let said = String::from_utf8_lossy(&fs::read(&log)?).contains(finds);
            return match !status.success() && said {
                true => Ok(Outcome::Passed {
                    tests: 0,
                    ignored: 0,
                }),
                false => {
                    self.show(&log)?;
                    Ok(Outcome::Failed(format!("did not find `{finds}`: {status}")))
                }
            };
        }
        if !status.success() {
            self.show(&log)?;
            return Ok(Outcome::Failed(status.to_string()));
        }
        if self.verbose {
            return Ok(Outcome::Passed {
                tests: 0,
                ignored: 0,
            });
        }
        let (tests, ignored) = count(&String::from_utf8_lossy(&fs::read(&log)?));
        if step.must_test && tests == 0 {
            self.show(&log)?;
            return Ok(Outcome::Failed("not one test ran".to_owned()));
        }
        Ok(Outcome::Passed { tests, ignored })
    }

    /// Prints the end of a log.
    fn show(&self, log: &Path) -> io::Result<()> {
        if self.verbose {
            return Ok(());
        }
        let bytes = fs::read(log)?;
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().collect();
        let from = lines.len().saturating_sub(SHOWN);
        if from > 0 {
            println!("… {from} lines before these are in {}", log.display());
        }
        let mut out = io::stdout().lock();
        for line in &lines[from..] {
            writeln!(out, "{line}")?;
        }
        out.flush()
    }
}

/// The cargo that runs this program.
pub(crate) fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}

/// Waits for the command; `None` if it had to be killed.
pub(crate) fn within(command: &mut Command, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let mut child = command.spawn()?;
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if begun.elapsed() > limit {
            kill(&descendants(child.id()));
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Processes that `root` started, and those that they started.
fn descendants(root: u32) -> Vec<u32> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|n| n.parse::<u32>().ok())
        else {
            continue;
        };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        if let Some(parent) = parent_of(&stat) {
            parents.push((pid, parent));
        }
    }
    let mut found = vec![root];
    let mut i = 0;
    while let Some(&parent) = found.get(i) {
        found.extend(
            parents
                .iter()
                .filter(|(_, p)| *p == parent)
                .map(|(pid, _)| *pid),
        );
        i += 1;
    }
    found.remove(0);
    found
}

/// The parent in a line of `/proc/PID/stat`, whose second field may hold spaces and brackets.
fn parent_of(stat: &str) -> Option<u32> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

fn kill(pids: &[u32]) {
    if !pids.is_empty() {
        let pids = pids.iter().map(u32::to_string);
        // A process may be gone by now; then there is nothing left to do.
        let _ = Command::new("kill")
            .arg("-KILL")
            .args(pids)
            .stderr(Stdio::null())
            .status();
    }
}

/// Passed and ignored tests, from the lines in which test harnesses sum up.
fn count(log: &str) -> (u64, u64) {
    let (mut passed, mut ignored) = (0, 0);
    for line in log.lines().filter(|line| line.starts_with("test result:")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        for pair in words.windows(2) {
            let number = pair[0].parse::<u64>().unwrap_or(0);
            match pair[1] {
                "passed;" => passed += number,
                "ignored;" => ignored += number,
                _ => {}
            }
        }
    }
    (passed, ignored)
}

fn tell(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Passed {
            tests: 0,
            ignored: 0,
        } => "ok".to_owned(),
        Outcome::Passed { tests, ignored: 0 } => format!("ok, {tests} tests"),
        Outcome::Passed { tests, ignored } => format!("ok, {tests} tests, {ignored} ignored"),
        Outcome::Skipped(why) => format!("SKIPPED: {why}"),
        Outcome::Failed(why) => format!("FAILED: {why}"),
    }
}

/// The outcome of the whole run. The message of a skipped test is easily missed, so everything
/// missing is named here.
fn verdict(outcomes: &[&Outcome], missing: &[Missing]) -> String {
    if outcomes.iter().any(|o| matches!(o, Outcome::Failed(_))) {
        return "FAILED".to_owned();
    }
    let skipped = |outcome: &&&Outcome| matches!(outcome, Outcome::Skipped(_));
    let skipped = outcomes.iter().filter(skipped).count();
    let names: Vec<_> = missing.iter().map(|m| Need::name(m.need)).collect();
    let mut verdict = match names.is_empty() {
        true => "all passed".to_owned(),
        false => format!("passed without: {}", names.join(", ")),
    };
    if skipped > 0 {
        verdict += &format!("; {skipped} steps were SKIPPED");
    }
    verdict
}

/// Prints a line for each step; whether none failed.
fn summary(
    done: &[(usize, &Step, Outcome, Duration)],
    all: usize,
    missing: &[Missing],
    took: Duration,
) -> bool {
    println!("\ntier    step                       time  result");
    for (_, step, outcome, time) in done {
        let (tier, name) = (step.tier.name(), &step.name);
        println!(
            "{tier:<7} {name:<24} {:>6.1}  {}",
            time.as_secs_f64(),
            tell(outcome)
        );
    }
    if done.len() < all {
        println!("{} steps not run", all - done.len());
    }
    let failed = done
        .iter()
        .any(|(.., outcome, _)| matches!(outcome, Outcome::Failed(_)));
    let outcomes: Vec<_> = done.iter().map(|(.., outcome, _)| outcome).collect();
    let verdict = verdict(&outcomes, missing);
    println!("{verdict}, in {:.0} s", took.as_secs_f64());
    !failed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiers::Tier;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn results_are_summed() {
        let log = concat!(
            "test a ... ok\n",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n",
            "test result: ok. 4 passed; 0 failed; 0 ignored; 0 measured; 2 filtered out\n",
        );
        assert_eq!(count(log), (7, 1));
        assert_eq!(count(""), (0, 0));
    }

    #[test]
    fn parents_are_read_past_odd_names() {
        assert_eq!(parent_of("12 (a ) b) S 7 12 12 0"), Some(7));
        assert_eq!(parent_of(""), None);
    }

    #[test]
    fn a_command_past_its_limit_is_killed_with_its_children() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 61.5 & sleep 61.5"]);
        let status = within(&mut command, Duration::from_millis(300)).unwrap();
        assert_eq!(status, None);
        let ours = std::process::id();
        assert!(descendants(ours).iter().all(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            !String::from_utf8_lossy(&line).contains("61.5")
        }));
    }

    /// A step of no command, so that no cargo is started.
    fn step(action: Action, needs: &'static [Need], side_by_side: bool) -> Step {
        Step {
            tier: Tier::System,
            name: "x".to_owned(),
            action,
            env: Vec::new(),
            limit: Duration::from_secs(1),
            needs,
            must_test: false,
            side_by_side,
        }
    }

    fn runner<'a>(
        tidy: &'a (dyn Fn() -> Result<Vec<String>, String> + Sync),
        missing: &'a [Missing],
    ) -> Runner<'a> {
        Runner {
            root: Path::new("."),
            logs: Path::new("."),
            verbose: false,
            missing,
            missing_names: "",
            tidy,
        }
    }

    fn outcome(action: Action, missing: &[Missing], needs: &'static [Need]) -> Outcome {
        let tidy = || Ok(vec!["a.rs: broken".to_owned()]);
        let runner = runner(&tidy, missing);
        runner.step(&step(action, needs, false), 0).unwrap()
    }

    #[test]
    fn steps_that_may_run_side_by_side_do() {
        let both = Barrier::new(2);
        let tidy = || {
            both.wait();
            Ok(Vec::new())
        };
        let steps = [true, true].map(|beside| step(Action::Tidy, &[], beside));
        assert!(runner(&tidy, &[]).run(&steps));
    }

    #[test]
    fn nothing_runs_after_a_failed_step() {
        let calls = AtomicUsize::new(0);
        let tidy = || match calls.fetch_add(1, Ordering::Relaxed) {
            0 => Ok(Vec::new()),
            _ => Err("no".to_owned()),
        };
        let steps = [false, true, true, false].map(|beside| step(Action::Tidy, &[], beside));
        assert!(!runner(&tidy, &[]).run(&steps));
        // Two that run side by side may both have begun.
        assert!((2..=3).contains(&calls.into_inner()));
    }

    #[test]
    fn the_verdict_lists_missing_needs() {
        let passed = Outcome::Passed {
            tests: 1,
            ignored: 0,
        };
        let skipped = Outcome::Skipped("no".to_owned());
        let failed = Outcome::Failed("no".to_owned());
        let missing = [Need::IoUring, Need::Root].map(|need| Missing {
            need,
            why: "no".to_owned(),
        });
        assert_eq!(verdict(&[&passed], &[]), "all passed");
        let without = "passed without: io_uring, root";
        assert_eq!(verdict(&[&passed], &missing), without);
        let steps = format!("{without}; 1 steps were SKIPPED");
        assert_eq!(verdict(&[&passed, &skipped], &missing), steps);
        assert_eq!(verdict(&[&passed, &failed], &missing), "FAILED");
    }

    #[test]
    fn broken_rules_and_empty_tiers_fail() {
        assert!(matches!(
            outcome(Action::Tidy, &[], &[]),
            Outcome::Failed(_)
        ));
        let none = Action::NoTests("system_*".to_owned());
        assert!(matches!(outcome(none, &[], &[]), Outcome::Failed(_)));
    }

    #[test]
    fn a_step_without_its_needs_is_skipped_by_name() {
        let missing = [Missing {
            need: Need::Fuse,
            why: "no".to_owned(),
        }];
        let Outcome::Skipped(why) = outcome(Action::Tidy, &missing, &[Need::Fuse]) else {
            panic!("not skipped");
        };
        assert!(why.contains("fuse"));
        assert!(matches!(
            outcome(Action::Tidy, &missing, &[Need::Make]),
            Outcome::Failed(_)
        ));
    }
}
