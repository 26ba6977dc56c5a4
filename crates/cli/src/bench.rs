//! `foliocache bench`: cases in turns with the kernel's, as tables, as JSON or as sections of a document.

use crate::{BAD_INPUT, FAILED, Outcome};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};
use foliocache::MemorySize;
use foliocache_bench::{
    BenchError, Case, Report, Settings, Uses, cases, find, helper, run as run_case,
};
use indicatif::{ProgressBar, ProgressStyle};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// How often the bar moves without progress. Its thread wakes up so seldom that it does not affect
/// the measurement.
const TICK: Duration = Duration::from_millis(250);

/// Arguments of `foliocache bench`.
#[derive(Args)]
pub(crate) struct BenchArguments {
    /// Cases to measure. Without any, all are listed with the time that each takes.
    #[arg(value_name = "CASE", value_parser = case_names())]
    cases: Vec<String>,
    /// Measure all cases, one after another. A case that cannot run here is reported, and the others go on.
    #[arg(long, conflicts_with = "cases")]
    all: bool,
    /// Take fewer, shorter and smaller samples: about a minute a case at most.
    #[arg(long)]
    quick: bool,
    /// Print one JSON object for each case, on a line, instead of a table.
    #[arg(long)]
    json: bool,
    /// Print a section of a Markdown document for each case instead of a table.
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// Put each section into this document, in place of the case's old section or at the end.
    #[arg(long, value_name = "FILE", requires = "markdown")]
    output: Option<PathBuf>,
    /// Number of threads, in the cases that use several.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Directories in the tree that each thread walks.
    #[arg(long, value_name = "N")]
    dirs: Option<usize>,
    /// Files in each of these directories.
    #[arg(long, value_name = "N")]
    files: Option<usize>,
    /// Samples of each figure: an even number, half of them in each order of the contestants.
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
    /// A trace to replay: a text with an access a line, the number of a page, or that of the first page and how many
    /// are read from there on. A # begins a comment, to the end of the line.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

/// Arguments of `foliocache bench-helper`.
#[derive(Args)]
pub(crate) struct HelperArguments {
    /// The part to play.
    role: String,
}

fn case_names() -> PossibleValuesParser {
    let values = cases().iter();
    PossibleValuesParser::new(values.map(|case| PossibleValue::new(case.name).help(case.about)))
}

impl BenchArguments {
    /// Options that only some cases look at: whether each was given, and whether `case` does.
    fn options(&self, case: &Case) -> [(&'static str, bool, bool); 7] {
        let uses = case.uses;
        [
            ("--threads", self.threads.is_some(), uses.has(Uses::THREADS)),
            ("--dirs", self.dirs.is_some(), uses.has(Uses::TREE)),
            ("--files", self.files.is_some(), uses.has(Uses::TREE)),
            ("--seconds", self.seconds.is_some(), uses.has(Uses::SECONDS)),
            ("--memory", self.memory.is_some(), uses.has(Uses::MEMORY)),
            ("--dir", self.dir.is_some(), uses.has(Uses::DIR)),
            ("--trace", self.trace.is_some(), uses.has(Uses::TRACE)),
        ]
    }

    /// The case's settings with the options applied, or why an option makes no sense. With several cases, each
    /// takes the options that apply to it.
    fn settings(&self, case: &Case) -> Result<Settings, String> {
        let uses = case.uses;
        let useless = |(_, given, used): &&(&str, bool, bool)| *given && !used;
        if let Some((option, ..)) = self.options(case).iter().find(useless)
            && !self.all
        {
            return Err(format!("{} has no use for {option}", case.name));
        }
        let mut settings = case.settings(self.quick);
        settings.samples = self.samples.unwrap_or(settings.samples);
        if uses.has(Uses::THREADS) {
            settings.threads = self.threads.unwrap_or(settings.threads);
        }
        if uses.has(Uses::SECONDS) {
            settings.seconds = self.seconds.unwrap_or(settings.seconds);
        }
        if uses.has(Uses::TREE) {
            settings.dirs = self.dirs.or(settings.dirs);
            settings.files = self.files.or(settings.files);
        }
        if let Some(text) = self.memory.as_ref().filter(|_| uses.has(Uses::MEMORY)) {
            let bytes = text.as_str().in_bytes();
            settings.memory = Some(bytes.map_err(|error| format!("--memory: {error}"))?);
        }
        settings.dir = self.dir.clone();
        settings.trace = self.trace.clone().filter(|_| uses.has(Uses::TRACE));
        settings.helper = ["/proc/self/exe", "bench-helper"].map(Into::into).to_vec();
        Ok(settings)
    }

    /// Prints the results of a case.
    fn show(&self, report: &Report) -> io::Result<()> {
        if let Some(path) = &self.output {
            return put_into(path, report);
        }
        let mut out = io::stdout().lock();
        match (self.json, self.markdown) {
            (true, _) => writeln!(out, "{}", report.json()),
            (_, true) => writeln!(out, "{}", report.markdown()),
            _ => write!(out, "{report}"),
        }
    }
}

/// Puts the report's section into a document, which is there or becomes so.
fn put_into(path: &Path, report: &Report) -> io::Result<()> {
    let document = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        document => document?,
    };
    let document = report.put_into(&document).map_err(io::Error::other)?;
    fs::write(path, document)
}

/// Is a process that a benchmark needs beside its own.
pub(crate) fn help(arguments: &HelperArguments) -> Outcome {
    helper(&arguments.role).map_err(|error| (FAILED, error.to_string()))?;
    Ok(ExitCode::SUCCESS)
}

/// The exit status of an error, and its message.
fn failure(error: BenchError) -> (u8, String) {
    let exit = match error {
        BenchError::UnknownCase { .. } | BenchError::Setting(_) | BenchError::Refused(_) => {
            BAD_INPUT
        }
        _ => FAILED,
    };
    (exit, error.to_string())
}

/// Runs the cases and prints their results, or lists all.
pub(crate) fn run(arguments: &BenchArguments) -> Outcome {
    let named = arguments.cases.iter().map(|name| find(name));
    let chosen: Result<Vec<&Case>, _> = match arguments.all {
        true => Ok(cases().iter().collect()),
        false => named.collect(),
    };
    let chosen = chosen.map_err(failure)?;
    if chosen.is_empty() {
        let listed = list(&mut io::stdout().lock());
        listed.map_err(|error| (FAILED, format!("cannot print the cases: {error}")))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut failed = None;
    for case in chosen {
        match run_one(arguments, case) {
            Err((_, why)) if arguments.all => {
                eprintln!("foliocache: {}: {why}", case.name);
                let failed: &mut Vec<&str> = failed.get_or_insert_default();
                failed.push(case.name);
            }
            result => result?,
        }
    }
    match failed {
        Some(names) => Err((FAILED, format!("not measured: {}", names.join(", ")))),
        None => Ok(ExitCode::SUCCESS),
    }
}

fn run_one(arguments: &BenchArguments, case: &Case) -> Result<(), (u8, String)> {
    let settings = arguments.settings(case);
    let settings = settings.map_err(|why| (BAD_INPUT, why))?;
    let bar = ProgressBar::new(0);
    let style = |template: &str| ProgressStyle::with_template(template).ok();
    let name = case.name;
    if let Some(style) = style(&format!("{{spinner}} {name}: getting ready, {{elapsed}}")) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(TICK);
    let mut counting = style(&format!(
        "{name}: {{bar:40}} {{pos}}/{{len}} rounds, {{eta}} left"
    ));
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
    let shown = arguments.show(&report);
    shown.map_err(|error| {
        let to = arguments.output.as_ref();
        let to = to.map_or(String::new(), |path| format!(" to {}", path.display()));
        (FAILED, format!("cannot write the report{to}: {error}"))
    })
}

/// The cases, a line each, with about how long each takes.
fn list(out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "{:<10} {:>7} {:>7}  measures",
        "case", "quick", "whole"
    )?;
    for case in cases() {
        writeln!(
            out,
            "{:<10} {:>7} {:>7}  {}",
            case.name,
            time(case.takes(true)),
            time(case.takes(false)),
            case.about
        )?;
    }
    let all = |quick| cases().iter().map(|case| case.takes(quick)).sum();
    writeln!(
        out,
        "{:<10} {:>7} {:>7}  all of them\n\n\
         Times are estimates for two processors and a disk with nothing else to do.",
        "--all",
        time(all(true)),
        time(all(false)),
    )
}

/// Seconds, in the larger unit from two minutes on.
fn time(seconds: u32) -> String {
    match seconds {
        ..120 => format!("{seconds} s"),
        _ => format!("{} min", seconds.div_ceil(60)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_has_a_line_for_each_case() {
        let mut text = Vec::new();
        list(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        for case in cases() {
            let line = text.lines().find(|line| {
                line.starts_with(&format!("{} ", case.name)) && line.ends_with(case.about)
            });
            assert!(line.is_some(), "{} is not in {text}", case.name);
            assert!(0 < case.takes(true) && case.takes(true) < case.takes(false));
        }
        assert_eq!(
            (time(119), time(121)),
            ("119 s".to_owned(), "3 min".to_owned())
        );
    }
}
