//! The foliocache command.
//!
//! Exit status: 0 on success, 1 on failure, 2 for bad input, and for `mount` 3 if programs were cut off and 4 if
//! data was lost. mount(8) calls the command too: see `options`.
#![deny(unsafe_code)]

mod background;
mod bench;
mod check;
mod control;
mod documents;
mod figures;
mod log;
mod mappings;
mod memory;
mod metrics;
mod mount;
mod mounted;
mod notify;
mod options;
mod shutdown;
mod source;
mod status;
mod write_back;

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use std::thread::{self, JoinHandle};

/// Exit status when the work failed.
const FAILED: u8 = 1;
/// Exit status for bad input.
const BAD_INPUT: u8 = 2;
/// Exit status when programs that used the mount were cut off, and all data is written back.
const CUT_OFF: u8 = 3;
/// Exit status when data could not be written back.
const UNWRITTEN: u8 = 4;

/// The page cache as a library, and as a mount.
#[derive(Parser)]
#[command(name = "foliocache", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Mount a directory through a cache of bounded memory.
    Mount(mount::MountArguments),
    /// Show the activity of a mount.
    Status(control::StatusArguments),
    /// Change the memory bound of a mount that goes on.
    Set(control::SetArguments),
    /// Write back stores of programs into mappings; `mount` runs it when it ends.
    #[command(hide = true)]
    WriteBackMapped(mappings::WriteBackArguments),
    /// Measure the cache against the kernel's, in turns.
    Bench(bench::BenchArguments),
    /// Take part in a benchmark as another process; `bench` runs it.
    #[command(hide = true)]
    BenchHelper(bench::HelperArguments),
    /// Print the completions for a shell.
    Completions(documents::CompletionsArguments),
    /// Print the manual page, or write all of them.
    Man(documents::ManArguments),
}

/// The result of a command: its exit status, or that of a failure and the line to show.
type Outcome = Result<ExitCode, (u8, String)>;

/// Starts a thread of this name.
fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, String> {
    let started = thread::Builder::new().name(name.to_owned()).spawn(run);
    started.map_err(|error| format!("cannot start a thread: {error}"))
}

fn main() -> ExitCode {
    let arguments =
        options::parse(std::env::args_os().collect()).unwrap_or_else(|error| error.exit());
    let outcome = match arguments.command {
        Command::Mount(arguments) => mount::run(&arguments),
        Command::Status(arguments) => control::status(&arguments),
        Command::Set(arguments) => control::set(&arguments),
        Command::WriteBackMapped(arguments) => mappings::serve(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::BenchHelper(arguments) => bench::help(&arguments),
        Command::Completions(arguments) => documents::completions(&arguments),
        Command::Man(arguments) => documents::man(&arguments),
    };
    outcome.unwrap_or_else(|(exit, line)| {
        log::say(&line);
        ExitCode::from(exit)
    })
}
