//! Test programs that cargo builds.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::Value;

use crate::runner::cargo;
use crate::tidy::{array, string};

/// The name here of the program of the tests beside the code.
pub(crate) const LIB: &str = "lib";

/// How cargo is called: arguments up to the choice of programs, and its environment.
pub(crate) type Call = (String, Vec<(String, String)>);

/// One that was built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// The folder of its package, in short.
    pub(crate) room: String,
    /// Cargo's name, or [`LIB`].
    pub(crate) name: String,
    executable: PathBuf,
    folder: PathBuf,
}

impl Program {
    /// Runs it as cargo does, without cargo.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.executable);
        command
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .stdin(Stdio::null());
        command
    }

    /// From one of cargo's messages, if it is about a program.
    fn of(message: &str) -> Option<Program> {
        let message: Value = serde_json::from_str(message).ok()?;
        let executable = message["executable"].as_str()?.into();
        let folder = Path::new(string(&message, "manifest_path")).parent()?;
        let target = &message["target"];
        let kinds = array(target, "kind");
        let name = match kinds.iter().any(|kind| kind == "test") {
            true => string(target, "name"),
            false => LIB,
        };
        Some(Program {
            room: folder.file_name()?.to_str()?.to_owned(),
            name: name.to_owned(),
            executable,
            folder: folder.to_owned(),
        })
    }
}

/// Builds the programs that `chosen` names, by cargo's options.
pub(crate) fn build(root: &Path, call: Call, chosen: &[String]) -> Result<Vec<Program>, String> {
    let (arguments, environment) = call;
    let output = Command::new(cargo())
        .args(arguments.split(' '))
        .args(["--no-run", "--message-format=json"])
        .args(chosen)
        .current_dir(root)
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .envs(environment)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo: {error}"))?;
    let messages = String::from_utf8_lossy(&output.stdout);
    if output.status.success() {
        return Ok(messages.lines().filter_map(Program::of).collect());
    }
    let rendered = messages.lines().filter_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        Some(message["message"]["rendered"].as_str()?.to_owned())
    });
    let rendered: String = rendered.collect();
    Err(format!(
        "cargo {arguments} {}\n{rendered}",
        chosen.join(" ")
    ))
}

/// Processors of this machine.
pub(crate) fn processors() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Runs `each` on all items, `workers` at a time, so that a hanging item does not delay the others. The first number
/// is the worker's.
///
/// # Errors
/// The first error of `each`. Items that have been started are finished.
pub(crate) fn side_by_side<T: Sync>(
    items: &[T],
    workers: usize,
    each: impl Fn(usize, &T) -> Result<(), String> + Sync,
) -> Result<(), String> {
    let (next, failed) = (AtomicUsize::new(0), OnceLock::new());
    thread::scope(|scope| {
        for worker in 0..workers {
            let (next, failed, each) = (&next, &failed, &each);
            scope.spawn(move || {
                // Relaxed: each number is one worker's.
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed))
                    && failed.get().is_none()
                {
                    if let Err(why) = each(worker, item) {
                        let _ = failed.set(why);
                    }
                }
            });
        }
    });
    failed.into_inner().map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_says_where_programs_are() {
        let message = r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/mm/Cargo.toml",
            "target":{"kind":["test"],"name":"pins"},"executable":"/t/pins-1"}"#;
        let program = Program::of(message).unwrap();
        assert_eq!(
            (program.room.as_str(), program.name.as_str()),
            ("mm", "pins")
        );
        assert_eq!(program.folder, Path::new("/w/crates/mm"));
        let library = r#"{"manifest_path":"/w/crates/mm/Cargo.toml","executable":null}"#;
        assert_eq!(Program::of(library), None);
    }

    #[test]
    fn the_first_error_ends_concurrent_runs() {
        let ran = AtomicUsize::new(0);
        let ended = side_by_side(&[1, 2, 3], 1, |_, &item| {
            ran.fetch_add(1, Ordering::Relaxed);
            if item == 2 {
                Err("two".to_owned())
            } else {
                Ok(())
            }
        });
        assert_eq!(ended, Err("two".to_owned()));
        assert_eq!(ran.into_inner(), 2);
    }
}
