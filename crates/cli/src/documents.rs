//! Shell completions and manual pages, made of the command line's own description.

use crate::{Arguments, FAILED, Outcome};
use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `foliocache completions`.
#[derive(Args)]
pub(crate) struct CompletionsArguments {
    /// The shell that is to complete.
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Arguments of `foliocache man`.
#[derive(Args)]
pub(crate) struct ManArguments {
    /// Write the pages of the command and of each of its subcommands into this directory. Without it the page of the command is
    /// printed.
    #[arg(value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
}

/// Prints the completions.
pub(crate) fn completions(arguments: &CompletionsArguments) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(
        arguments.shell,
        &mut visible(&Arguments::command()),
        "foliocache",
        &mut script,
    );
    print(&script)
}

/// The command without its hidden parts, which shells would otherwise complete.
fn visible(command: &Command) -> Command {
    let arguments = command
        .get_arguments()
        .filter(|argument| !argument.is_hide_set());
    let commands = command
        .get_subcommands()
        .filter(|command| !command.is_hide_set());
    let made = Command::new(command.get_name().to_owned())
        .about(command.get_about().cloned().unwrap_or_default())
        .args(arguments.cloned())
        .subcommands(commands.map(visible));
    match command.get_version() {
        Some(version) => made.version(version.to_owned()),
        None => made,
    }
}

/// Prints the page, or writes all of them.
pub(crate) fn man(arguments: &ManArguments) -> Outcome {
    let command = Arguments::command();
    let Some(directory) = &arguments.directory else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command)
            .render(&mut page)
            .map_err(|error| (FAILED, format!("cannot make the page: {error}")))?;
        return print(&page);
    };
    clap_mangen::generate_to(command, directory).map_err(|error| {
        let directory = directory.display();
        (FAILED, format!("cannot write to {directory}: {error}"))
    })?;
    Ok(ExitCode::SUCCESS)
}

fn print(text: &[u8]) -> Outcome {
    let mut out = io::stdout();
    match out.write_all(text).and_then(|()| out.flush()) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        // The reader has closed the pipe.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Err(error) => Err((FAILED, format!("cannot print it: {error}"))),
    }
}
