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
//! | `case` | [`Case`], [`Match`], [`Contestant`], [`Worker`]: what is to be run |
//! | `run` | [`run`]: the turns |
//! | `report` | [`Report`]: rows, ratios, JSON |
//! | `table` | the report as text |
//! | `ratio` | [`Ratio`], [`Target`]: what was found and what is to be reached |
//! | `host` | [`Host`]: where it ran |
//! | `files` | a file in memory, ours and the kernel's |
//! | `cases` | the cases |
#![deny(unsafe_code)]

mod case;
mod cases;
mod error;
mod files;
mod host;
mod ratio;
mod report;
mod run;
mod stats;
mod table;

pub use case::{Case, Contestant, Match, RatioPlan, Worker, repeat};
pub use cases::{cases, find};
pub use error::BenchError;
pub use host::Host;
pub use ratio::{Ratio, Target};
pub use report::{Change, RatioReport, Report, Row};
pub use run::{Progress, Settings, run};
