//! `foliocache bench`: a case in turns with the kernel's, as a table or as JSON.

use crate::{BAD_INPUT, FAILED, Outcome};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};
use foliocache::MemorySize;
use foliocache_bench::{BenchError, Case, Settings, cases, find, helper, run as run_case};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// How often the bar moves though nothing is done yet. A thread of it wakes up so seldom that it
/// does not show in what is measured.
const TICK: Duration = Duration::from_millis(250);

/// Arguments of `foliocache bench`.
#[derive(Args)]
pub(crate) struct BenchArguments {
    /// What to measure.
    #[arg(value_name = "CASE", value_parser = case_names())]
    case: String,
    /// Take fewer, shorter and smaller samples: under half a minute.
    #[arg(long)]
    quick: bool,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Threads of what several threads do.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Directories in the tree that each thread walks.
    #[arg(long, value_name = "N")]
    dirs: Option<usize>,
    /// Files in each of these directories.
    #[arg(long, value_name = "N")]
    files: Option<usize>,
    /// Samples of each figure.
    #[arg(long, value_name = "N")]
    samples: Option<usize>,
    /// Seconds that each sample takes.
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// Memory bound of the cache, and of the kernel's beside it: bytes, or a number with K, M or G.
    /// Files are some times as large.
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// Folder below which files are made for as long as the case runs [default: a temporary one].
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
}

/// Arguments of `foliocache bench-helper`.
#[derive(Args)]
pub(crate) struct HelperArguments {
    /// What to be.
    role: String,
}

fn case_names() -> PossibleValuesParser {
    let values = cases().iter();
    PossibleValuesParser::new(values.map(|case| PossibleValue::new(case.name()).help(case.about())))
}

impl BenchArguments {
    /// The case's settings with what was said; or what makes no sense, in words.
    fn settings(&self, case: &dyn Case) -> Result<Settings, String> {
        let uses = case.uses();
        for (option, given, used) in [
            ("--threads", self.threads.is_some(), uses.threads),
            ("--dirs", self.dirs.is_some(), uses.tree),
            ("--files", self.files.is_some(), uses.tree),
            ("--seconds", self.seconds.is_some(), uses.seconds),
            ("--memory", self.memory.is_some(), uses.memory),
            ("--dir", self.dir.is_some(), uses.dir),
        ] {
            if given && !used {
                return Err(format!("{} has no use for {option}", case.name()));
            }
        }
        let mut settings = case.settings(self.quick);
        settings.threads = self.threads.unwrap_or(settings.threads);
        settings.samples = self.samples.unwrap_or(settings.samples);
        settings.seconds = self.seconds.unwrap_or(settings.seconds);
        settings.dirs = self.dirs.or(settings.dirs);
        settings.files = self.files.or(settings.files);
        if let Some(text) = &self.memory {
            let bytes = text.as_str().in_bytes();
            settings.memory = Some(bytes.map_err(|error| format!("--memory: {error}"))?);
        }
        settings.dir = self.dir.clone();
        settings.helper = ["/proc/self/exe", "bench-helper"].map(Into::into).to_vec();
        Ok(settings)
    }
}

/// Is a process that a benchmark needs beside its own.
pub(crate) fn help(arguments: &HelperArguments) -> Outcome {
    helper(&arguments.role).map_err(|error| (FAILED, error.to_string()))?;
    Ok(ExitCode::SUCCESS)
}

/// The exit status of an error, and what it says.
fn failure(error: BenchError) -> (u8, String) {
    let exit = match error {
        BenchError::UnknownCase { .. } | BenchError::Setting(_) | BenchError::Refused(_) => {
            BAD_INPUT
        }
        _ => FAILED,
    };
    (exit, error.to_string())
}

/// Runs the case and prints what it found.
pub(crate) fn run(arguments: &BenchArguments) -> Outcome {
    let case = find(&arguments.case).map_err(failure)?;
    let settings = arguments.settings(case);
    let settings = settings.map_err(|why| (BAD_INPUT, why))?;
    let bar = ProgressBar::new(0);
    let style = |template| ProgressStyle::with_template(template).ok();
    if let Some(style) = style("{spinner} getting ready, {elapsed}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(TICK);
    let mut counting = style("{bar:40} {pos}/{len} rounds, {eta} left");
    let result = run_case(case, &settings, |progress| {
        if let Some(style) = counting.take() {
            bar.set_style(style);
            bar.reset_eta();
        }
        bar.set_length(progress.total as u64);
        bar.set_position(progress.done as u64);
    });
    bar.finish_and_clear();
    let report = result.map_err(failure)?;
    let mut out = io::stdout().lock();
    let printed = match arguments.json {
        true => writeln!(out, "{}", report.json()),
        false => write!(out, "{report}"),
    };
    printed.map_err(|error| (FAILED, format!("cannot print the report: {error}")))?;
    Ok(ExitCode::SUCCESS)
}
