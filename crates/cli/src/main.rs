//! The foliocache command.
//!
//! Exit status: 0 if all went well, 1 if data was lost or the work failed, 2 for bad input.
#![deny(unsafe_code)]

mod bench;
mod check;
mod mount;
mod shutdown;
mod status;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Exit status when data was lost or the work failed.
const FAILED: u8 = 1;
/// Exit status for bad input.
const BAD_INPUT: u8 = 2;

/// The page cache as a library, and as a mount.
#[derive(Parser)]
#[command(name = "foliocache", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show a directory through a cache of bounded memory.
    Mount(mount::MountArguments),
    /// Write back what programs stored into mappings; `mount` runs it when it ends.
    #[command(hide = true)]
    WriteBackMapped(mount::WriteBackArguments),
    /// Measure the cache beside the kernel's own, in turns.
    Bench(bench::BenchArguments),
    /// Take part in a benchmark as another process; `bench` runs it.
    #[command(hide = true)]
    BenchHelper(bench::HelperArguments),
}

/// What came of a command: its exit status, or that of a failure and the line to show.
type Outcome = Result<ExitCode, (u8, String)>;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match arguments.command {
        Command::Mount(arguments) => mount::run(&arguments),
        Command::WriteBackMapped(arguments) => mount::write_back_mapped(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::BenchHelper(arguments) => bench::help(&arguments),
    };
    outcome.unwrap_or_else(|(exit, line)| {
        status::say(&line);
        ExitCode::from(exit)
    })
}

/// Sends warnings and errors to standard error, and more the more often `-v` was given.
fn start_log(verbose: u8) {
    let level = match verbose {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let filter = tracing_subscriber::EnvFilter::try_from_env("FOLIOCACHE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| status::LogWriter)
        .with_target(false)
        .init();
}
