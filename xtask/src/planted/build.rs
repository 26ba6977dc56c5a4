//! Builds the test programs that planted bugs need, with all bugs in them.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::runner::cargo;
use crate::tidy::{array, string};
use crate::tiers::{UNITS, Workspace, with_bugs};

/// What [`list`](super::list) calls the program of the unit tests beside the code.
const LIB: &str = "lib";

/// Whether a first argument is the compiler: cargo has called this program as its wrapper.
pub(crate) fn is_compiler(argument: &str) -> bool {
    Path::new(argument)
        .file_name()
        .is_some_and(|name| name == "rustc")
}

/// Compiles a package of ours with all bugs in it. Does not return if the compiler could be started.
pub(crate) fn compile(arguments: &[String]) -> String {
    let error = Command::new(&arguments[0])
        .args(&arguments[1..])
        .args(["--cfg", "planted"])
        .exec();
    format!("{}: {error}", arguments[0])
}

/// How programs are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Build {
    /// As the unit tier does.
    Plain,
    Loom,
    Shuttle,
}

impl Build {
    fn of(program: &str) -> Build {
        match program.split('_').next() {
            Some("loom") => Build::Loom,
            Some("shuttle") => Build::Shuttle,
            _ => Build::Plain,
        }
    }

    fn checker(self) -> Option<&'static str> {
        match self {
            Build::Plain => None,
            Build::Loom => Some("loom"),
            Build::Shuttle => Some("shuttle"),
        }
    }
}

/// A test as the list has it, `room::program::name`.
struct Test<'a> {
    room: &'a str,
    program: &'a str,
    name: &'a str,
}

impl<'a> Test<'a> {
    fn of(test: &'a str) -> Option<Test<'a>> {
        let (room, rest) = test.split_once("::")?;
        let (program, name) = rest.split_once("::")?;
        Some(Test {
            room,
            program,
            name,
        })
    }
}

/// A test program that was built.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) executable: PathBuf,
    /// Of its package.
    pub(super) folder: PathBuf,
    pub(super) env: &'static [(&'static str, &'static str)],
}

/// A room, and a program of it.
type Place = (String, String);

/// All of them.
pub(super) struct Programs(BTreeMap<Place, Program>);

impl Programs {
    /// The program of a test, and the test's name in it.
    pub(super) fn of<'a>(&self, test: &'a str) -> Result<(&Program, &'a str), String> {
        let parts = Test::of(test).ok_or(format!("`{test}` is not room::program::test"))?;
        let key = (parts.room.to_owned(), parts.program.to_owned());
        let program = self.0.get(&key);
        let program = program.ok_or(format!("{test}: cargo built no such program"))?;
        Ok((program, parts.name))
    }
}

/// Builds what `tests` are in.
pub(super) fn programs(
    root: &Path,
    workspace: &Workspace,
    tests: &[&str],
) -> Result<Programs, String> {
    let mut wanted: BTreeMap<Build, BTreeSet<&str>> = BTreeMap::new();
    for test in tests.iter().filter_map(|test| Test::of(test)) {
        let build = Build::of(test.program);
        wanted.entry(build).or_default().insert(test.program);
    }
    let mut built = BTreeMap::new();
    for (build, programs) in wanted {
        built.extend(make(root, workspace, build, &selection(&programs))?);
    }
    Ok(Programs(built))
}

/// What cargo is to build, by its names: of all packages that the tier builds, since fewer may give dependencies other features, and
/// have all built again.
fn selection(programs: &BTreeSet<&str>) -> Vec<String> {
    let mut arguments = Vec::new();
    for &name in programs {
        match name {
            LIB => arguments.push("--lib".to_owned()),
            name => arguments.extend(["--test".to_owned(), name.to_owned()]),
        }
    }
    arguments
}

fn make(
    root: &Path,
    workspace: &Workspace,
    build: Build,
    arguments: &[String],
) -> Result<Vec<(Place, Program)>, String> {
    let (all, environment) = match build.checker() {
        Some(checker) => workspace.models(checker),
        None => (UNITS.to_owned(), vec![with_bugs()]),
    };
    let mut command = Command::new(cargo());
    command
        .args(all.split(' '))
        .args(["--no-run", "--message-format=json"])
        .args(arguments)
        .current_dir(root)
        .envs(environment)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    let output = command
        .output()
        .map_err(|error| format!("cargo: {error}"))?;
    let messages = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let rendered = messages.lines().filter_map(|line| {
            let message: Value = serde_json::from_str(line).ok()?;
            Some(message["message"]["rendered"].as_str()?.to_owned())
        });
        let rendered: String = rendered.collect();
        return Err(format!("cargo test {}\n{rendered}", arguments.join(" ")));
    }
    let env: &[_] = match build {
        Build::Loom => &[("LOOM_MAX_PREEMPTIONS", "2")],
        Build::Plain | Build::Shuttle => &[],
    };
    Ok(messages
        .lines()
        .filter_map(|line| program(line, env))
        .collect())
}

/// The program that a message of cargo's tells of.
fn program(
    message: &str,
    env: &'static [(&'static str, &'static str)],
) -> Option<(Place, Program)> {
    let message: Value = serde_json::from_str(message).ok()?;
    let executable = message["executable"].as_str()?.into();
    let folder = Path::new(string(&message, "manifest_path")).parent()?;
    let room = folder.file_name()?.to_str()?.to_owned();
    let target = &message["target"];
    let kinds = array(target, "kind");
    let program = match kinds.iter().any(|kind| kind == "test") {
        true => string(target, "name").to_owned(),
        false => LIB.to_owned(),
    };
    let folder = folder.to_owned();
    let built = Program {
        executable,
        folder,
        env,
    };
    Some(((room, program), built))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compiler_is_told_from_a_command() {
        assert!(is_compiler("/somewhere/bin/rustc") && is_compiler("rustc"));
        assert!(!is_compiler("planted") && !is_compiler("rustc-docs"));
    }

    #[test]
    fn programs_are_built_by_their_names() {
        assert_eq!(Build::of("unit"), Build::Plain);
        assert_eq!(Build::of("loom"), Build::Loom);
        assert_eq!(Build::of("shuttle_simulation"), Build::Shuttle);
        let programs = BTreeSet::from(["unit", "lib", "fork"]);
        assert_eq!(
            selection(&programs).join(" "),
            "--test fork --lib --test unit"
        );
    }

    #[test]
    fn cargo_says_where_programs_are() {
        let message = r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/mm/Cargo.toml",
            "target":{"kind":["test"],"name":"pins"},"executable":"/t/pins-1"}"#;
        let ((room, name), program) = program(message, &[]).unwrap();
        assert_eq!((room.as_str(), name.as_str()), ("mm", "pins"));
        assert_eq!(program.folder, Path::new("/w/crates/mm"));
        let library = r#"{"manifest_path":"/w/crates/mm/Cargo.toml","executable":null}"#;
        assert_eq!(super::program(library, &[]), None);
    }
}
