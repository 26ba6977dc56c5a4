//! Simulation for foliocache's tests: a faulty backend with live and durable images, a reference
//! model, seeded workloads, and the judge of what a power cut may leave.
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
//!
//! Nothing but tests depends on this crate.
#![deny(unsafe_code)]

mod backend;
mod faults;
mod image;
mod medium;
mod rng;
mod segments;

pub use backend::{Cut, FaultyBackend};
pub use faults::{Counts, Effect, Event, Faults, OpKind, OpSet, Rule, RuleId, When};
pub use image::Image;
pub use medium::{Lost, Medium, SECTOR};
pub use rng::{Rng, scramble};
