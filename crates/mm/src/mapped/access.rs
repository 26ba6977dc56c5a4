//! The access of a mapping.

pub use foliocache_sys::memory::WindowAccess as VmaAccess;

/// The access of a mapping whose pages are held in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockedAccess {
    /// Reads; a store is SIGSEGV.
    Read,
    /// Reads and stores at the speed of memory, through huge pages. Stores are not tracked: each sync of the file writes
    /// all of the mapping, from a copy, and the end of the mapping makes all of it dirty. Nothing is written before that.
    Untracked,
}
