//! The trait by which reclaim asks caches of metadata to give some up, and their answer. `reclaim/shrinker.rs` asks.

/// The result of [`Shrinker::shrink`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GivenUp {
    /// Bytes that are the bound's again.
    pub bytes: u64,
    /// Whether more is on its way: readers or other threads have it still, or somebody outside was asked to let go of it.
    pub more: bool,
}

impl GivenUp {
    /// Of two caches.
    pub(crate) fn and(self, other: GivenUp) -> GivenUp {
        GivenUp {
            bytes: self.bytes + other.bytes,
            more: self.more || other.more,
        }
    }
}

/// A cache of metadata.
#[doc(alias = "shrinker")]
pub trait Shrinker: Send + Sync {
    /// Bytes charged for its content. Cheap.
    fn bytes(&self) -> u64;

    /// Gives up about so many unused bytes, the least used first.
    ///
    /// Context: no read section, and no lock that freeing its content needs. May wait for RCU
    /// readers; waits neither for memory nor for I/O.
    fn shrink(&self, bytes: u64) -> GivenUp;

    /// Bytes that are charged and empty: room for its own content. Cheap.
    fn spare(&self) -> u64 {
        0
    }
}
