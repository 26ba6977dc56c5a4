//! Moments on the clock of [`Belief`](crate::Belief): an epoch, and milliseconds in it.
//!
//! # Model
//!
//! ```text
//!   bits  63 … 40   39 … 0
//!         epoch     milliseconds        all ones: the end of the epoch
//! ```
//!
//! An epoch ends when news are lost. An answer that is believed until the end of its epoch is *watched*: it is
//! believed until a change is reported.

/// An epoch in the bits above the milliseconds.
pub(crate) const EPOCH: u64 = 1 << 40;
/// The last one, in which nothing is watched: there is none after it.
pub(crate) const LAST_EPOCH: u64 = !(EPOCH - 1);

/// The end of the epoch of `now`.
pub(crate) fn end(now: u64) -> u64 {
    now | (EPOCH - 1)
}

/// Whether an answer that is believed until `until` is watched at `now`.
pub(crate) fn is_watched(until: u64, now: u64) -> bool {
    until == end(now)
}

/// Whether no news were lost between two moments.
pub(crate) fn is_same(earlier: u64, now: u64) -> bool {
    (earlier ^ now) < EPOCH
}
