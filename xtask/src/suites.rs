//! The tests of the unit tier, `cargo xtask unit`, and of the system tier, `cargo xtask system [MODULE…]`.
//!
//! # Model
//!
//! Most tests wait, for a mount, a disk or the time, and few need more than one processor. So in the unit tier the
//! programs run side by side, as many as there are processors, those called `unit` first, which take longest. In the system
//! tier the modules of the programs do, those with most tests first, and the tests of a module run one at a time. What a
//! program says is printed when it has ended.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::programs::{self, Program, processors, side_by_side};
use crate::runner::cargo;
use crate::tiers::units;

/// Programs or modules that run at the same time, at most: some of them look at the clock.
const MOST: usize = 2;

/// Tests of one module.
struct Module<'a> {
    program: &'a Program,
    /// Empty for those of the program's root.
    name: String,
    tests: Vec<String>,
}

/// Whether all tests pass, or all those of the modules that are named.
pub(crate) fn run(wanted: &[String], root: &Path) -> Result<bool, String> {
    let chosen = ["--test", "system*"].map(str::to_owned);
    let programs = programs::build(root, units(), &chosen)?;
    let mut modules = Vec::new();
    for program in &programs {
        let tests = listed(program)?;
        modules.extend(tests.into_iter().map(|(name, tests)| Module {
            program,
            name,
            tests,
        }));
    }
    modules.retain(|module| wanted.is_empty() || wanted.contains(&module.name));
    if modules.is_empty() {
        return Err("there are no such tests".to_owned());
    }
    modules.sort_by_key(|module| usize::MAX - module.tests.len());
    Ok(succeed(&modules, |module| {
        let mut command = module.program.command();
        command
            .args(["--exact", "--include-ignored", "--test-threads=1"])
            .args(&module.tests);
        let said = said(command, &format!("{}::{}", module.program, module.name))?;
        let passed = format!("test result: ok. {} passed", module.tests.len());
        match said.contains(&passed) {
            true => Ok(()),
            false => Err(format!("{}::{}: not all ran", module.program, module.name)),
        }
    }))
}

/// Whether all tests of the unit tier pass, those in the documentation included.
pub(crate) fn run_units(root: &Path) -> Result<bool, String> {
    let mut programs = programs::build(root, units(), &[])?;
    programs.sort_by_key(|program| program.name != "unit");
    let passed = succeed(&programs, |program| {
        said(program.command(), &program.to_string()).map(|_| ())
    });
    let (arguments, environment) = units();
    let mut documented = Command::new(cargo());
    documented
        .args(arguments.split(' '))
        .arg("--doc")
        .current_dir(root)
        .envs(environment);
    Ok(passed && said(documented, "documentation").is_ok())
}

/// Whether `each` succeeds for all items, which run side by side.
fn succeed<T: Sync>(items: &[T], each: impl Fn(&T) -> Result<(), String> + Sync) -> bool {
    let ended = side_by_side(items, processors().min(MOST), |_, item| each(item));
    if let Err(why) = &ended {
        println!("{why}");
    }
    ended.is_ok()
}

/// Runs a program of tests and prints what it says.
///
/// # Errors
/// If it fails.
fn said(mut command: Command, place: &str) -> Result<String, String> {
    let begun = Instant::now();
    let output = command
        .stderr(Stdio::piped())
        .output()
        .map_err(|error| format!("{place}: {error}"))?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    println!("{place}, {:.1} s\n{said}", begun.elapsed().as_secs_f64());
    match output.status.success() {
        true => Ok(said),
        false => Err(format!("{place}: {}", output.status)),
    }
}

/// The tests of a program, by module.
fn listed(program: &Program) -> Result<BTreeMap<String, Vec<String>>, String> {
    let mut command = program.command();
    let output = command
        .args(["--list", "--format=terse"])
        .output()
        .map_err(|error| format!("{}: {error}", program.name))?;
    Ok(by_module(&String::from_utf8_lossy(&output.stdout)))
}

fn by_module(list: &str) -> BTreeMap<String, Vec<String>> {
    let mut modules: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for test in list.lines().filter_map(|line| line.strip_suffix(": test")) {
        let module = test.split_once("::").map_or("", |(module, _)| module);
        let tests = modules.entry(module.to_owned()).or_default();
        tests.push(test.to_owned());
    }
    modules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_listed_by_module() {
        let list =
            "soak: test\nlimits::a: test\nmount::deep::b: test\nlimits::c: test\nx: benchmark\n";
        let modules = by_module(list);
        let names: Vec<_> = modules
            .iter()
            .map(|(name, tests)| (name.as_str(), tests.len()))
            .collect();
        assert_eq!(names, [("", 1), ("limits", 2), ("mount", 1)]);
        assert_eq!(modules["limits"], ["limits::a", "limits::c"]);
    }
}
