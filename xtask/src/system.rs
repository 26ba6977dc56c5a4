//! The tests of the system tier: `cargo xtask system [MODULE…]`.
//!
//! # Model
//!
//! Most of them wait, for a mount, a disk or the time, and few need more than one processor. So the modules of the
//! programs run side by side, as many as there are processors, those with most tests first. The tests of a module
//! run one at a time. A module's output is printed when it has ended.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use crate::programs::{self, Program, processors, side_by_side};
use crate::tiers::units;

/// Modules that run at the same time, at most: some of them look at the clock.
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
    let passed = side_by_side(&modules, processors().min(MOST), |_, module| {
        let begun = Instant::now();
        let mut command = module.program.command();
        let output = command
            .args(["--exact", "--include-ignored", "--test-threads=1"])
            .args(&module.tests)
            .stderr(Stdio::piped())
            .output();
        let place = format!(
            "{}::{}::{}",
            module.program.room, module.program.name, module.name
        );
        let output = output.map_err(|error| format!("{place}: {error}"))?;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        let seconds = begun.elapsed().as_secs_f64();
        println!("{place}, {seconds:.1} s\n{said}");
        let passed = format!("test result: ok. {} passed", module.tests.len());
        if output.status.success() && said.contains(&passed) {
            Ok(())
        } else {
            Err(format!("{place}: {}", output.status))
        }
    });
    if let Err(why) = &passed {
        println!("{why}");
    }
    Ok(passed.is_ok())
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
