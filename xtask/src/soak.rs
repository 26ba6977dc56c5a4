//! Runs the soak for as long as one wants: `cargo xtask soak --minutes N`.
//!
//! # Model
//!
//! The soak is a test of the command's package, which the system tier runs for seconds. Here its environment makes
//! it run longer, and its lines are printed as they come.

use std::path::Path;
use std::process::Command;

use crate::runner::cargo;

const USAGE: &str = "soak [--minutes N] [--seed N] [--cpu PERCENT]";

/// Minutes, if nothing else is said.
const MINUTES: u64 = 10;

/// The options.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    minutes: u64,
    seed: Option<u64>,
    /// Percent of one processor.
    cpu: u64,
}

fn parse(arguments: &[String]) -> Result<Request, String> {
    let mut request = Request {
        minutes: MINUTES,
        seed: None,
        cpu: 0,
    };
    let mut rest = arguments.iter().map(String::as_str);
    while let Some(option) = rest.next() {
        let value = rest.next().and_then(|value| value.parse::<u64>().ok());
        let value = value.ok_or_else(|| format!("{option} needs a number: {USAGE}"))?;
        match option {
            "--minutes" if value > 0 => request.minutes = value,
            "--seed" => request.seed = Some(value),
            "--cpu" => request.cpu = value,
            _ => return Err(USAGE.to_owned()),
        }
    }
    Ok(request)
}

/// Whether everything was well.
pub(crate) fn run(arguments: &[String], root: &Path) -> Result<bool, String> {
    let request = parse(arguments)?;
    let mut command = Command::new(cargo());
    command.current_dir(root);
    command.args("test --locked --release -p foliocache-cli --test system_soak".split(' '));
    command.args("-- --include-ignored --nocapture --test-threads=1".split(' '));
    command.env(
        "FOLIOCACHE_SOAK_SECONDS",
        (request.minutes * 60).to_string(),
    );
    command.env("FOLIOCACHE_SOAK_CPU", request.cpu.to_string());
    if let Some(seed) = request.seed {
        command.env("FOLIOCACHE_SOAK_SEED", seed.to_string());
    }
    let status = command
        .status()
        .map_err(|error| format!("cargo: {error}"))?;
    Ok(status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(arguments: &[&str]) -> Result<Request, String> {
        parse(&crate::owned(arguments))
    }

    #[test]
    fn options_of_the_soak_are_parsed() {
        let default = request(&[]).unwrap();
        assert_eq!(
            (default.minutes, default.seed, default.cpu),
            (MINUTES, None, 0)
        );
        let asked = request(&["--minutes", "120", "--seed", "7", "--cpu", "40"]).unwrap();
        assert_eq!((asked.minutes, asked.seed, asked.cpu), (120, Some(7), 40));
        for bad in [
            &["--minutes"][..],
            &["--minutes", "0"],
            &["--hours", "2"],
            &["--seed", "x"],
        ] {
            assert!(request(bad).is_err(), "{bad:?}");
        }
    }
}
