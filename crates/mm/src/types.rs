//! Units: pages and the index of a page in a file.

/// Bytes of a page, the smallest folio.
pub const PAGE_SIZE: usize = 1 << PAGE_SHIFT;

/// Binary logarithm of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 12;

/// Largest size of a file, in bytes: what a signed 64-bit offset of the kernel's can say.
pub const MAX_FILE_SIZE: u64 = i64::MAX as u64;

/// The end of `len` bytes at `pos`, if a file may be that large.
pub(crate) fn end_of(pos: u64, len: u64) -> Option<u64> {
    pos.checked_add(len).filter(|&end| end <= MAX_FILE_SIZE)
}

/// The index of a page in its file: byte offset divided by [`PAGE_SIZE`].
#[doc(alias = "pgoff_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PageIndex(pub u64);

impl PageIndex {
    /// The page that holds byte `pos`.
    #[inline]
    pub const fn of(pos: u64) -> Self {
        Self(pos >> PAGE_SHIFT)
    }

    /// The page's first byte in the file.
    #[inline]
    pub const fn pos(self) -> u64 {
        self.0 << PAGE_SHIFT
    }

    /// The index `n` pages further on.
    #[inline]
    #[must_use]
    pub const fn add(self, n: u64) -> Self {
        Self(self.0 + n)
    }
}

/// The offset of byte `pos` within its page.
#[inline]
pub const fn offset_in_page(pos: u64) -> usize {
    (pos & (PAGE_SIZE as u64 - 1)) as usize
}

/// Pages needed for `bytes`, the last one counted whole.
#[inline]
pub const fn pages_for(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE_SIZE as u64)
}
