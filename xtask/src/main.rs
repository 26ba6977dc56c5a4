//! The project's own commands: every test tier behind one.
//!
//! `cargo xtask test` runs all tiers up to the first failure; `cargo xtask tidy` runs the checks
//! of this program alone. `cargo xtask help` lists the options.

#![deny(unsafe_code)]

mod least;
mod on;
mod planted;
mod programs;
mod runner;
mod sanitize;
mod setup;
mod simulate;
mod soak;
mod system;
mod tidy;
mod tiers;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use serde_json::Value;

use runner::{Runner, cargo};
use setup::Need;
use tiers::{Tier, Workspace};

const HELP: &str = "\
Usage: cargo xtask COMMAND

Commands:
  test          run the test tiers one after another, up to the first failure
  tidy          run the checks of dependencies, sources and documents alone
  least-versions  check the library with the least versions of its dependencies
  planted       plant bugs one by one and expect that a test finds each
  simulate      run the cache in schedules that follow from seeds
  system        run the tests of the system tier, or those of the modules that are named: system [MODULE…]
  on            run a test program on a file system of its own: on KIND [--as USER] PROGRAM ARGUMENTS
  soak          run everything at once for long: soak [--minutes N] [--seed N] [--cpu PERCENT]
  fuzz          look for failing inputs: fuzz TARGET [--minutes N | --canary | FILE...]
  help          print this

Options of test:
  --tier TIER       only this tier: tidy, unit, model, fuzz, system, sanitize or programs; may be repeated. The last
                    two run only if they are named: address sanitizer and Miri; suites of other programs
  --list            print the steps and the test files found, run nothing
  --allow-missing   skip, loudly, what this machine cannot run
  --verbose         show all output as it comes

Options of planted:
  BUG…              only these bugs
  --tier TIER       only bugs that this tier finds; may be repeated
  --markdown        print the list as a table, plant nothing

Options of simulate:
  --driver DRIVER   mm (files, the default) or vfs (names beside a file)
  --seeds N         so many seeds, 1000 by default
  --from SEED       from this one on; fresh ones by default
  --seed SEED       this one alone
  --jobs N          so many processes, 2 by default
";

/// The options of `test`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    tiers: Vec<Tier>,
    list: bool,
    allow_missing: bool,
    verbose: bool,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.first().map(String::as_str) {
        Some("test") => parse(&arguments[1..]).and_then(|options| test(&options)),
        Some("tidy") if arguments.len() == 1 => tidy_alone(),
        Some("least-versions") if arguments.len() == 1 => metadata(&root())
            .and_then(|metadata| least::run(&metadata, &Workspace::new(&metadata).target)),
        Some("planted") => planted(&arguments[1..]),
        // Cargo calls this program as its wrapper.
        Some(program) if planted::is_compiler(program) => Err(planted::compile(&arguments)),
        Some("simulate") => simulation(&arguments[1..]),
        Some("on") => on::run(&arguments[1..], &std::env::temp_dir()),
        Some("system") => system::run(&arguments[1..], &root()),
        Some("soak") => soak::run(&arguments[1..], &root()),
        Some("fuzz") => metadata(&root()).and_then(|metadata| {
            let target = Workspace::new(&metadata).target;
            sanitize::fuzz(&arguments[1..], &root(), &target)
        }),
        Some("help" | "--help" | "-h") => {
            print!("{HELP}");
            Ok(true)
        }
        _ => Err(format!("what should be done?\n\n{HELP}")),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::from(2)
        }
    }
}

fn parse(arguments: &[String]) -> Result<Options, String> {
    let mut options = Options::default();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--tier" => options.tiers.push(Tier::from_argument(rest.next())?),
            "--list" => options.list = true,
            "--allow-missing" => options.allow_missing = true,
            "--verbose" => options.verbose = true,
            other => return Err(format!("unknown option `{other}`\n\n{HELP}")),
        }
    }
    if options.tiers.is_empty() {
        options.tiers = Tier::ALL.to_vec();
    }
    Ok(options)
}

/// The workspace's root: the folder above this package's.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// `cargo metadata` for the platform that we build for, under no special flags.
fn metadata(root: &Path) -> Result<Value, String> {
    let output = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(root);
        command
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_ENCODED_RUSTFLAGS");
        let out = command.output().map_err(|e| format!("{program}: {e}"))?;
        if !out.status.success() {
            let stderr = String::from_utf8_lossy(&out.stderr);
            return Err(format!(
                "{program} {}: {}",
                arguments.join(" "),
                stderr.trim()
            ));
        }
        String::from_utf8(out.stdout).map_err(|e| format!("{program}: {e}"))
    };
    let version = output("rustc", &["-vV"])?;
    let host = version
        .lines()
        .find_map(|l| l.strip_prefix("host: "))
        .ok_or("rustc has no host")?;
    let arguments = [
        "metadata",
        "--format-version=1",
        "--locked",
        "--filter-platform",
        host,
    ];
    let json = output(&cargo(), &arguments)?;
    serde_json::from_str(&json).map_err(|e| format!("cargo metadata: {e}"))
}

fn tidy_alone() -> Result<bool, String> {
    let root = root();
    let found = tidy::check(&root, &metadata(&root)?)?;
    for violation in &found {
        println!("{violation}");
    }
    println!("{} broken rules", found.len());
    Ok(found.is_empty())
}

fn planted(arguments: &[String]) -> Result<bool, String> {
    let root = root();
    planted::run(arguments, &root, &Workspace::new(&metadata(&root)?))
}

fn simulation(arguments: &[String]) -> Result<bool, String> {
    let root = root();
    simulate::run(arguments, &root, &Workspace::new(&metadata(&root)?))
}

fn test(options: &Options) -> Result<bool, String> {
    let root = root();
    let metadata = metadata(&root)?;
    let workspace = Workspace::new(&metadata);
    let steps: Vec<_> = options
        .tiers
        .iter()
        .flat_map(|&tier| workspace.steps(tier))
        .collect();
    if options.list {
        for step in &steps {
            println!("{:<7} {:<24} {step}", step.tier.name(), step.name);
        }
        for kind in ["loom", "shuttle", "system", "stress"] {
            println!("{kind}: {}", workspace.tests(kind).join(" "));
        }
        return Ok(true);
    }

    let mut needs: Vec<Need> = Vec::new();
    for need in options.tiers.iter().flat_map(|tier| tier.needs()) {
        if !needs.contains(need) {
            needs.push(*need);
        }
    }
    let scratch = workspace.target.join("xtask");
    let missing = setup::missing(&needs, &scratch);
    for m in &missing {
        println!(
            "MISSING {}: {}; cannot run: {}",
            m.need.name(),
            m.why,
            m.need.affects()
        );
    }
    let stops = missing.iter().any(|m| !m.need.is_optional());
    if stops && !options.allow_missing {
        return Err("this machine cannot run all tests; --allow-missing runs the others".into());
    }
    let tidy = || {
        let found = tidy::check(&root, &metadata)?;
        Ok(found.iter().map(ToString::to_string).collect())
    };
    let runner = Runner {
        root: &root,
        logs: &scratch,
        verbose: options.verbose,
        missing: &missing,
        missing_names: &setup::names(&missing),
        tidy: &tidy,
    };
    Ok(runner.run(&steps))
}

/// Arguments, as a program has them.
#[cfg(test)]
fn owned(arguments: &[&str]) -> Vec<String> {
    arguments.iter().map(|&a| a.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &[&str]) -> Result<Options, String> {
        parse(&owned(arguments))
    }

    #[test]
    fn options_are_parsed() {
        assert_eq!(parsed(&[]).unwrap().tiers, Tier::ALL);
        let options = parsed(&["--tier", "unit", "--tier", "model", "--allow-missing"]).unwrap();
        assert_eq!(options.tiers, [Tier::Unit, Tier::Model]);
        assert!(options.allow_missing && !options.list && !options.verbose);
        for bad in [&["--tier"][..], &["--tier", "all"], &["--teir"]] {
            assert!(parsed(bad).is_err(), "{bad:?}");
        }
    }
}
