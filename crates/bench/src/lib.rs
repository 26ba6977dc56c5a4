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
//! Two runs minutes apart differ by more than the effects to be measured. So contestants take turns within one run,
//! and a ratio is made of neighbours: of the figures of one round. The report has the median of the rounds' ratios,
//! the least and the greatest; and near 1, the ratio of the same contestant with itself.
//!
//! | module | what it is |
//! |---|---|
//! | `case` | [`Case`], and what it plans: matches of contestants, and `ratios!`, a table |
//! | `cases` | the table of cases, and a module for each |
//! | `settings` | [`Settings`]: how long and how often, with how much memory |
//! | `run`, `threads` | [`run`]: the turns; work on several threads |
//! | `cost`, `latency` | time, the processor's part of it, and how long each of many operations took |
//! | `report` | [`Report`]: rows, ratios, JSON |
//! | `table`, `markdown` | the report as text, and as a section of a document |
//! | `ratio` | what was found and what is to be reached |
//! | `host` | where it ran |
//! | `files`, `copies` | a page in memory, ours and the kernel's; calls beside the bare copy of their bytes |
//! | `readers`, `reads` | ways to read at many places, ours and the kernel's; which places, and turns of them |
//! | `cached`, `floor` | reads at random of a file that is cached; the least that such reads take |
//! | `trace`, `policy` | which pages are read; caches that hold no bytes, to compare hit ratios with |
//! | `streams`, `file_bed` | threads that read or write a file from front to back; turns of them |
//! | `logs` | files that are written and made durable over and over |
//! | `ring` | requests through an io_uring, and how many at once are fastest |
//! | `mapped` | accesses of mapped files |
//! | `beds` | a cache over a store that keeps nothing |
//! | `names`, `trees` | trees of names, ours and the kernel's, and walks through them |
//! | `misses`, `references` | inodes that are not in their cache; a path that is looked up beside others' references |
//! | `place`, `zram` | files on a disk, and our cache over them |
//! | `kernel` | a process whose page cache a memory cgroup bounds |
//! | `guard` | a process that takes away what is left behind |
#![deny(unsafe_code)]

mod beds;
mod cached;
mod case;
mod cases;
mod copies;
mod cost;
mod error;
mod file_bed;
mod files;
mod floor;
mod guard;
mod host;
mod kernel;
mod latency;
mod logs;
mod mapped;
mod markdown;
mod misses;
mod names;
mod passes;
mod place;
mod policy;
mod ratio;
mod readers;
mod reads;
mod references;
mod report;
mod ring;
mod run;
mod settings;
mod stats;
mod streams;
mod table;
mod threads;
mod trace;
mod trees;
mod zram;

pub use case::Case;
pub use cases::{cases, find};
pub use error::BenchError;
pub use report::Report;
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
