//! Files that are replaced, appended to, rewritten and made anew while others read them: does a reader see one version, whole?
//!
//! # Model
//!
//! ```text
//!   writers ──── change files, and note it ───┐            ┌── others: the same, right in the source
//!                                             ▼            ▼
//!                                           Ledger: begun, complete, synced
//!                                             ▲            ▲
//!   readers ──── look, and compare with it ───┘            └── after a kill: the source itself
//! ```
//!
//! | file | its writer | a look must find |
//! |---|---|---|
//! | [`Kind::Replaced`] | writes `.t`, with attributes, and renames, exchanges or links it into place | one version, whole, with its mode, its attributes and its capability, also through a handle that stays open; in the source too |
//! | [`Kind::Log`] | appends records; now and then begins a new log in its place | records one after the other; the end of the last may be missing |
//! | [`Kind::Rewritten`] | truncates and writes again | one version, whole, without a concurrent write; else blocks of versions at their places |
//! | [`Kind::Remade`] | unlinks and makes anew | the same; or nothing, while it is made |
//! | [`Kind::TheirReplaced`], [`Kind::TheirLog`] | others, in the source | the same, but perhaps an older version; never an older one than before |
//!
//! A reader may see a version that was begun before the read ended and is not older than the last one that was
//! complete before it began. Nothing here waits for a time. [`content`] makes and judges bytes, [`ledger`] has the
//! numbers, [`place`] is a directory, [`writers`] and [`readers`] work.

pub mod content;
pub mod ledger;
pub mod place;
pub mod readers;
#[cfg(test)]
mod tests;
pub mod writers;

use content::{Content, Size};
use ledger::Ledger;

/// How a file is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Replaced as a whole.
    Replaced,
    /// Appended to.
    Log,
    /// Truncated and written again.
    Rewritten,
    /// Unlinked and made anew.
    Remade,
    /// Replaced as a whole by others.
    TheirReplaced,
    /// Appended to by others.
    TheirLog,
}

/// A file of the stress: its number is its place in [`FILES`].
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    /// Its name.
    pub name: &'static str,
    /// How it is changed.
    pub kind: Kind,
}

const fn subject(name: &'static str, kind: Kind) -> Subject {
    Subject { name, kind }
}

/// All files. Half of the work is on the first [`HOT`] ones, so that readers meet writers.
pub const FILES: &[Subject] = &[
    subject("replaced-0", Kind::Replaced),
    subject("remade-0", Kind::Remade),
    subject("replaced-1", Kind::Replaced),
    subject("replaced-2", Kind::Replaced),
    subject("replaced-3", Kind::Replaced),
    subject("log-0", Kind::Log),
    subject("log-1", Kind::Log),
    subject("rewritten-0", Kind::Rewritten),
    subject("rewritten-1", Kind::Rewritten),
    subject("remade-1", Kind::Remade),
    subject("their-replaced-0", Kind::TheirReplaced),
    subject("their-replaced-1", Kind::TheirReplaced),
    subject("their-log", Kind::TheirLog),
];

/// Files that each have a separate writer.
pub const HOT: u64 = 2;

/// The attribute with the version.
const VERSION: &str = "user.version";

/// The attribute that a write removes.
const CAPABILITY: &str = "security.capability";

/// `cap_net_raw=p`, as the kernel keeps it (`VFS_CAP_REVISION_2`).
const NET_RAW: [u8; 20] = [
    0, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];

impl Kind {
    /// Whether others change it, in the source.
    pub fn is_theirs(self) -> bool {
        matches!(self, Kind::TheirReplaced | Kind::TheirLog)
    }

    /// Whether a version never changes once it has its name.
    fn is_replaced(self) -> bool {
        matches!(self, Kind::Replaced | Kind::TheirReplaced)
    }

    /// Whether it consists of records.
    fn is_log(self) -> bool {
        matches!(self, Kind::Log | Kind::TheirLog)
    }
}

/// The numbers of the files that we change: those of one of [`HOT`] writers, the hot one first.
pub fn ours(writer: u64) -> Vec<u64> {
    let files = 0..FILES.len() as u64;
    files
        .filter(|&file| !FILES[file as usize].kind.is_theirs() && file % HOT == writer)
        .collect()
}

/// The numbers of the files that others change.
pub fn theirs() -> Vec<u64> {
    let files = 0..FILES.len() as u64;
    files
        .filter(|&file| FILES[file as usize].kind.is_theirs())
        .collect()
}

/// The content of a file.
fn content(file: u64) -> Content {
    let size = match FILES[file as usize].kind.is_log() {
        true => Size::Record,
        false => Size::Any,
    };
    Content { file, size }
}

/// The mode of a version.
fn mode(version: u64) -> u32 {
    [0o644, 0o600, 0o4755, 0o640, 0o755][version as usize % 5]
}

/// Whether a version is a program with a capability.
fn has_capability(version: u64) -> bool {
    version.is_multiple_of(3)
}

/// Works until the ledger tells all workers to stop, or `goes_on` does. Returns the failures before that: four at
/// most, or `FOLIOCACHE_FAILURES`.
///
/// # Panics
/// If that is no number.
pub fn until_the_end(
    ledger: &Ledger,
    goes_on: impl Fn() -> bool,
    mut step: impl FnMut() -> Result<(), String>,
) -> Vec<String> {
    let enough = std::env::var("FOLIOCACHE_FAILURES");
    let enough = enough.map_or(4, |n| n.parse().expect("a number"));
    let mut failures = Vec::new();
    while failures.len() < enough && goes_on() && !ledger.is_ending() {
        // A failure after the end began may be caused by it.
        let failure = step().err().filter(|_| !ledger.is_ending());
        failures.extend(failure);
    }
    failures
}
