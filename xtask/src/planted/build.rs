//! Builds the test programs that planted bugs need, with all bugs in them.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::programs::{self, LIB, Program};
use crate::tiers::{Workspace, units};

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

/// A test in the list's form, `room::program::name`.
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

/// A room, and one of its programs.
type Place = (String, String);

/// Variables.
type Environment = &'static [(&'static str, &'static str)];

/// All of them, with the environment of each.
pub(super) struct Programs(BTreeMap<Place, (Program, Environment)>);

impl Programs {
    /// The program of a test and its environment, and the test's name in it.
    pub(super) fn of<'a>(&self, test: &'a str) -> Result<(&Program, Environment, &'a str), String> {
        let parts = Test::of(test).ok_or(format!("`{test}` is not room::program::test"))?;
        let key = (parts.room.to_owned(), parts.program.to_owned());
        let program = self.0.get(&key);
        let (program, environment) =
            program.ok_or(format!("{test}: cargo built no such program"))?;
        Ok((program, *environment, parts.name))
    }
}

/// Builds the programs of `tests`.
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
    for (kind, names) in wanted {
        let call = match kind.checker() {
            Some(checker) => workspace.models(checker),
            None => units(),
        };
        let environment: Environment = match kind {
            Build::Loom => &[("LOOM_MAX_PREEMPTIONS", "2")],
            Build::Plain | Build::Shuttle => &[],
        };
        for program in programs::build(root, call, &selection(&names))? {
            let place = (program.room.clone(), program.name.clone());
            built.insert(place, (program, environment));
        }
    }
    Ok(Programs(built))
}

/// The packages for cargo to build: all that the tier builds, since a smaller set may give dependencies other
/// features, and rebuild everything.
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
}
