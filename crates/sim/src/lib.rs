//! Simulation for foliocache's tests: a faulty backend with live and durable images, a reference
//! model, seeded workloads, and a judge of the state after a power cut.
//!
//! # Model
//!
//! | module | what it is |
//! |---|---|
//! | `rng` | [`Rng`]: everything here is repeated from one 64-bit seed |
//! | `image` | [`Image`]: the sparse content of a file |
//! | `medium` | [`Medium`]: a live and a durable image, and the log between them |
//! | `faults` | [`Faults`]: what goes wrong, when and where |
//! | `backend` | [`FaultyBackend`]: the above behind `AddressSpaceOperations` |
//! | `stamp` | [`StampBackend`]: pages that say which they are, at four bytes a page |
//! | `workload` | [`Workload`]: seeded operations on a file |
//! | `reference` | [`ReferenceFile`]: what they must answer |
//! | `oracle` | [`DurabilityOracle`]: what a power cut may leave of them |
//! | [`tree`] | the same for several files and their names |
//! | [`two_writers`] | a cache and a program beside it, in turns |
//! | `disk` (feature `disk`) | `disk::Disk`: a block device that records, fails and is cut, under real file systems |
//! | `versions` (feature `versions`) | files that are replaced while they are read: one version, whole? |
//!
//! Nothing but tests depends on this crate.
#![deny(unsafe_code)]

mod backend;
#[cfg(feature = "disk")]
pub mod disk;
mod faults;
mod image;
mod medium;
mod oracle;
mod reference;
mod rng;
mod segments;
mod stamp;
pub mod tree;
pub mod two_writers;
#[cfg(feature = "versions")]
pub mod versions;
mod workload;

pub use backend::{Cut, FaultyBackend};
pub use faults::{Counts, Effect, Event, Faults, OpKind, OpSet, Rule, RuleId, When};
pub use image::Image;
pub use medium::{Lost, Medium, SECTOR};
pub use oracle::{DurabilityOracle, Violation};
pub use reference::{Answer, ReferenceFile};
pub use rng::{Rng, scramble};
pub use stamp::{StampBackend, stamp, stamped, stamped_mixed, words_around};
pub use workload::{Fill, Mix, Operation, Workload};
