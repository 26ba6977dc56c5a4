//! The FUSE front door of foliocache: a file system over the cache, for programs that cannot be
//! changed.
//!
//! # Model
//!
//! ```text
//!  a program ──system call──▶ kernel ──/dev/fuse──▶ readers, workers ──▶ FileSystem ──▶ the cache
//! ```
//!
//! `operations` has the requests of the kernel, each as one call of the file system; `service` says
//! which thread serves one, so that those that wait do not hold up the others; `conn` and `data` are
//! what requests have in common. The kernel names inodes by `nodes` and what is open by `handles`, what it uses without
//! opening it is in `unopened`.
//! `prune` has it forget inodes when memory is short, `kernel_pages` pages that were mapped.
//!
//! # Invariants
//!
//! 1. Every request is answered once; a panic inside an operation is an `EIO` and a line in the
//!    log, and the mount lives on.
//! 2. Permissions are checked by the kernel (`default_permissions`, with the source's access control
//!    lists); locks are the kernel's.
//! 3. Nothing in this process touches files of the mount: such a call would wait for this process,
//!    and could not be killed with it.
//! 4. The kernel's cache holds file data as far as [`KernelCache`] says: by default only what is mapped.
#![deny(unsafe_code)]

mod buffers;
mod conn;
mod connection;
mod convert;
mod data;
mod device;
mod handles;
mod kernel_pages;
mod mount;
mod news;
mod nodes;
mod operations;
mod prune;
mod service;
mod stats;
#[cfg(test)]
mod tests;
mod unopened;

pub use connection::{Connection, MappedStores};
pub use mount::{KernelCache, Mount, MountError, MountOptions, mount};
pub use stats::FuseStats;
