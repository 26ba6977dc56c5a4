//! [`GivenUp`]: the answer of a cache of metadata that is asked for memory.

/// What a cache of metadata gave up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GivenUp {
    /// Bytes that are the bound's again.
    pub bytes: u64,
    /// Whether more is on its way: readers or other threads have it still, or somebody outside was asked to let go of it.
    pub more: bool,
}

impl GivenUp {
    /// Of two caches.
    pub(super) fn and(self, other: GivenUp) -> GivenUp {
        GivenUp {
            bytes: self.bytes + other.bytes,
            more: self.more || other.more,
        }
    }
}
