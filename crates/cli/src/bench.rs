//! `foliocache bench`: a case in turns with the kernel's, as a table or as JSON.

use crate::status::say;
use crate::{BAD_INPUT, FAILED};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};
use foliocache_bench::{BenchError, Settings, cases, find, run as run_case};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, Write};
use std::process::ExitCode;

/// Arguments of `foliocache bench`.
#[derive(Args)]
pub(crate) struct BenchArguments {
    /// What to measure.
    #[arg(value_name = "CASE", value_parser = case_names())]
    case: String,
    /// Take fewer and shorter samples: under half a minute.
    #[arg(long)]
    quick: bool,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Threads, where a case compares several with one.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Samples of each figure.
    #[arg(long, value_name = "N")]
    samples: Option<usize>,
    /// Seconds that each sample takes.
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
}

fn case_names() -> PossibleValuesParser {
    let values = cases().iter();
    PossibleValuesParser::new(values.map(|case| PossibleValue::new(case.name()).help(case.about())))
}

impl BenchArguments {
    fn settings(&self) -> Settings {
        let mut settings = match self.quick {
            true => Settings::quick(),
            false => Settings::default(),
        };
        settings.threads = self.threads.unwrap_or(settings.threads);
        settings.samples = self.samples.unwrap_or(settings.samples);
        settings.seconds = self.seconds.unwrap_or(settings.seconds);
        settings
    }
}

/// Runs the case and prints what it found.
pub(crate) fn run(arguments: &BenchArguments) -> ExitCode {
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} rounds, {eta} left") {
        bar.set_style(style);
    }
    let result = find(&arguments.case).and_then(|case| {
        run_case(case, &arguments.settings(), |progress| {
            bar.set_length(progress.total as u64);
            bar.set_position(progress.done as u64);
        })
    });
    bar.finish_and_clear();
    let report = match result {
        Ok(report) => report,
        Err(error) => {
            say(&error.to_string());
            return ExitCode::from(match error {
                BenchError::UnknownCase { .. } | BenchError::Setting(_) => BAD_INPUT,
                _ => FAILED,
            });
        }
    };
    let mut out = io::stdout().lock();
    let printed = match arguments.json {
        true => writeln!(out, "{}", report.json()),
        false => write!(out, "{report}"),
    };
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("cannot print the report: {error}"));
            ExitCode::from(FAILED)
        }
    }
}
