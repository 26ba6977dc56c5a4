//! The targets by name, and their shared helpers.

mod file;
mod index;
mod paths;
mod requests;

use std::cell::Cell;
use std::panic;
use std::sync::OnceLock;

/// The targets that inputs are fed to.
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
        PLANTED.set(None);
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

thread_local! {
    /// The target whose judge is wrong from here on.
    static PLANTED: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// The judge is wrong from now on: a panic of this thread in the rest of this input says that the canary was found.
pub(crate) fn plant(target: &'static str) {
    static HOOK: OnceLock<()> = OnceLock::new();
    HOOK.get_or_init(|| {
        // The fuzzer's own hook ends the process, so this one goes before it.
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if let Some(target) = PLANTED.get() {
                eprintln!("the canary of {target} was found");
            }
            before(info);
        }));
    });
    PLANTED.set(Some(target));
}
