//! A service of [`opendal`]: a local directory through the cache.
//!
//! ```
//! use foliocache::Cache;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let temporary = tempfile::tempdir()?;
//! # let path = temporary.path();
//! let cache = Cache::builder().memory("64M").build()?;
//! let operator = foliocache_opendal::operator(cache.directory(path)?)?;
//! operator.write("notes/today", "seven").await?; // durable
//! assert_eq!(operator.read("notes/today").await?.to_vec(), b"seven");
//! # Ok(())
//! # }
//! ```
//!
//! # Model
//!
//! It is used as opendal's `fs`: a file for each path, directories made where a write needs them. A read returns views of the cache's pages
//! without a copy. What is not in memory is read without blocking the executor.
//!
//! A write goes to a file of a hidden name beside its path, and is renamed when it is closed. So a reader has the old content or the
//! new one. A write or append that was closed is durable, with its name. A writer that is dropped without `close` or `abort` removes its hidden file,
//! which blocks for the removal. A list leaves hidden files out.
#![deny(unsafe_code)]

mod error;
mod list;
mod read;
mod service;
mod write;

pub use service::{Foliocache, SCHEME, operator};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
