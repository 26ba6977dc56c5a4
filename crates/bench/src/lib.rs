//! The benchmark cases of foliocache, each against the kernel within one run.
//!
//! # Model
//!
//! ```text
//!  Case ──plan──▶ Match: contestants (ours, the kernel's, a control), ratios between them
//!                   │ run: rounds of short turns, A B A B …
//!                   ▼
//!                 Report: rows and ratios ──▶ a table, or one JSON object
//! ```
//!
//! Two runs minutes apart differ by more than what is to be measured, so whatever is compared
//! takes turns within one run, and a ratio is made of neighbours: of the figures of one round. What
//! is reported of a ratio is the median of the rounds, the least and the greatest.
//!
//! | module | what it is |
//! |---|---|
//! | `case` | [`Case`], [`Match`], [`Contestant`], [`Work`]: what is to be run |
//! | `settings` | [`Settings`]: how long and how often, with how much memory |
//! | `run` | [`run`]: the turns |
//! | `cost` | [`Cost`]: time, and the processor's part of it |
//! | `report` | [`Report`]: rows, ratios, JSON |
//! | `table` | the report as text |
//! | `ratio` | [`Ratio`], [`Target`]: what was found and what is to be reached |
//! | `host` | [`Host`]: where it ran |
//! | `latency` | [`Latency`]: how long each of many reads took |
//! | `mapped` | accesses of mapped files |
//! | `ring` | reads of the kernel's through an io_uring |
//! | `copies` | calls beside the bare copy of their bytes |
//! | `files` | a file in memory, ours and the kernel's |
//! | `beds` | a cache over a store that keeps nothing |
//! | `names` | trees of names, ours and the kernel's |
//! | `misses` | inodes that are not in their cache |
//! | `twin` | a dentry cache whose layout can be chosen |
//! | `place`, `zram` | files on a disk, and our cache over them |
//! | `kernel` | a process whose page cache a memory cgroup bounds |
//! | `guard` | a process that takes away what is left behind |
//! | `streams` | several threads that read or write a file from front to back |
//! | `passes`, `trace` | what passes do, and which pages they read |
//! | `policy` | caches that hold no bytes, to compare hit ratios with |
//! | `cases` | the cases |
#![deny(unsafe_code)]

mod beds;
mod case;
mod cases;
mod copies;
mod cost;
mod error;
mod files;
mod guard;
mod host;
mod kernel;
mod latency;
mod mapped;
mod misses;
mod names;
mod passes;
mod place;
mod policy;
mod ratio;
mod references;
mod report;
mod ring;
mod run;
mod settings;
mod stats;
mod streams;
mod table;
mod trace;
mod zram;

pub use case::{
    Case, Contestant, Figure, Match, Outcome, Pass, Plan, RatioPlan, Work, Worker, repeat,
};
pub use cases::{cases, find};
pub use cost::Cost;
pub use error::BenchError;
pub use host::Host;
pub use latency::Latency;
pub use ratio::{Ratio, Target};
pub use report::{Change, CpuPerGb, RatioReport, Report, Row};
pub use run::{Progress, run};
pub use settings::{Settings, Uses};

/// Lives the life of a helper process; `role` is the argument that it was started with. Blocks until
/// the process that started it has ended.
///
/// # Errors
/// No helper has that role; something stays behind that it was to take away.
pub fn helper(role: &str) -> std::io::Result<()> {
    match role {
        guard::ROLE => guard::main(),
        kernel::ROLE => kernel::main(),
        other => Err(std::io::Error::other(format!(
            "no helper is called {other:?}"
        ))),
    }
}
