//! Sizes of the machine's pages.

/// Bytes of a page, the smallest unit of every range here.
pub const PAGE_SIZE: usize = 4096;
/// Bytes of a huge page: the alignment of a reservation, and the unit worth giving back.
pub const HUGE_PAGE_SIZE: usize = 2 << 20;
