//! The bound that is asked before memory is taken.
//!
//! # Model
//!
//! Slabs, and the caches of names, know a memory bound only as a [`MetadataBound`]: the page cache's is [`Mm`](crate::Mm), and that of
//! tests grants everything. A bound that first makes room in other ways (by evicting from these caches, say) wraps one.

/// The account that metadata is charged to.
pub trait MetadataBound: Send + Sync {
    /// Charges this many bytes; false, and nothing charged, if there is no room.
    ///
    /// Context: no lock is held, and no RCU read section is open; may reclaim memory.
    #[must_use]
    fn charge(&self, bytes: u64) -> bool;

    /// As [`charge`](Self::charge), if there is room without making any. Does not sleep.
    #[must_use]
    fn try_charge(&self, bytes: u64) -> bool {
        self.charge(bytes)
    }

    /// As [`charge`](Self::charge), for a caller that may find the bytes elsewhere once others have given up
    /// memory: `elsewhere` looks, and takes them. It is called first, and each time something was given up.
    #[must_use]
    fn charge_or(&self, bytes: u64, elsewhere: &dyn Fn() -> bool) -> bool {
        elsewhere() || self.charge(bytes)
    }

    /// Gives charged bytes back. Does not sleep.
    fn uncharge(&self, bytes: u64);

    /// Whether there is hardly any room left.
    fn is_short(&self) -> bool {
        false
    }
}
