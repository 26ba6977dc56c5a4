//! Where page tables come from: the kernel, or in a model a table in memory.

#[cfg(shuttle)]
pub(crate) mod model;

#[cfg(not(shuttle))]
pub(crate) use foliocache_sys::memory::{SharedMemory, WindowArea};
#[cfg(not(shuttle))]
pub(crate) use foliocache_sys::userfaultfd::Userfaultfd;
#[cfg(shuttle)]
pub(crate) use model::{SharedMemory, Userfaultfd, WindowArea};
