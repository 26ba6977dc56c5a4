//! What all file systems share above the page cache: the caches of what names lead to.
//!
//! # Model
//!
//! | module | what it is |
//! |---|---|
//! | `hash` | [`RcuHash`](hash::RcuHash): an intrusive hash table, looked up under RCU, that grows by itself |
//! | `bound` | [`Bound`]: who is asked for memory |
//!
//! # Locking
//!
//! A part of a hash is changed under a lock of rank
//! [`HashBucket`](foliocache_sync::rank::Rank::HashBucket), which is held for a bounded number of steps.
//! Look-ups that hit take no lock.
#![deny(unsafe_code)]

mod bound;
pub mod hash;

pub use bound::{Bound, Unbounded};
