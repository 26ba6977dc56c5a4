//! Mounts of a foliocache cache through FUSE, for programs that cannot be changed.
//!
//! # Model
//!
//! ```text
//!  a program ──system call──▶ kernel ──/dev/fuse──▶ readers, workers ──▶ FileSystem ──▶ the cache
//! ```
//!
//! `operations` turns each request of the kernel into one call of the file system. `service` chooses the thread that serves it, so
//! that requests that wait do not delay others. `conn` and `data` hold the state that requests share. `nodes` maps the kernel's
//! inode numbers, `handles` its open files; `unopened` has the files that it uses without opening them. When memory is short,
//! `prune` asks the kernel to forget inodes, and `kernel_pages` to drop pages that were mapped.
//!
//! # Invariants
//!
//! 1. Every request is answered once. A panic inside an operation is answered with `EIO` and logged, and the mount goes on.
//! 2. The kernel checks permissions (`default_permissions`, with the source's access control lists) and keeps locks.
//! 3. Nothing in this process touches files of the mount: such a call would wait for this process, and could not be killed with it.
//! 4. [`KernelCache`] chooses the file data that the kernel's cache may hold: by default only
//!    mapped files.
#![deny(unsafe_code)]

mod answers;
mod attributes;
mod buffers;
mod conn;
mod connection;
mod convert;
mod data;
mod device;
mod entry;
mod handles;
mod kernel_pages;
mod linking;
mod listed;
mod listing;
mod mount;
mod news;
mod nodes;
mod operations;
mod options;
mod prune;
mod replaced;
mod service;
mod shown;
mod stats;
#[cfg(feature = "testing")]
mod testing;
#[cfg(test)]
mod tests;
mod unopened;

pub use connection::{Connection, MappedStores};
pub use mount::{Mount, MountError, mount};
pub use options::{KernelCache, MountOptions};
pub use shown::Shown;
pub use stats::FuseStats;
#[doc(hidden)]
#[cfg(feature = "testing")]
pub use testing::Served;
