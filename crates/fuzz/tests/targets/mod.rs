//! The targets by name, and what they share.

mod file;
mod index;
mod paths;
mod requests;

use std::sync::OnceLock;

/// What inputs are given to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Index,
    File,
    Paths,
    Requests,
}

impl Target {
    pub(crate) const ALL: [Target; 4] =
        [Target::Index, Target::File, Target::Paths, Target::Requests];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Target::Index => "index",
            Target::File => "file",
            Target::Paths => "paths",
            Target::Requests => "requests",
        }
    }

    /// Runs one input; panics at the first thing that is wrong.
    pub(crate) fn run(self, bytes: &[u8]) {
        match self {
            Target::Index => index::run(bytes),
            Target::File => file::run(bytes),
            Target::Paths => paths::run(bytes),
            Target::Requests => requests::run(bytes),
        }
    }
}

/// The target that `FOLIOCACHE_FUZZ` names.
#[cfg(fuzzing)]
pub(crate) fn wanted() -> Target {
    let name = std::env::var("FOLIOCACHE_FUZZ").unwrap_or_default();
    let found = Target::ALL.into_iter().find(|target| target.name() == name);
    found.unwrap_or_else(|| panic!("FOLIOCACHE_FUZZ={name}: there is no such target"))
}

/// With `FOLIOCACHE_FUZZ_CANARY` each target's judge is wrong in one rare case. A fuzzer that does not find the difference
/// within seconds finds nothing else, either.
pub(crate) fn canary() -> bool {
    static SET: OnceLock<bool> = OnceLock::new();
    *SET.get_or_init(|| std::env::var_os("FOLIOCACHE_FUZZ_CANARY").is_some())
}
