//! [`Entry`], the opaque word that the index holds, and [`Mark`], a flag that the index can search
//! for.
//!
//! # Model
//!
//! The two low bits of a slot word say what it is:
//!
//! | low bits | word |
//! |---|---|
//! | `00`, all zero | empty slot |
//! | `00` | pointer entry, as [`Entry::from_ptr`] was given it |
//! | `x1` | value entry, [`Entry::value`]: the value shifted left by one |
//! | `10` | a child node; never seen outside this crate |
//!
//! # Differences from Linux
//!
//! There are no sibling words: every slot of a multi-order entry holds the entry itself (see
//! [`crate`]).

use core::num::NonZeroUsize;
use core::ptr::{self, NonNull};

/// What an index maps to: a pointer or a value, opaque to the index, which never dereferences it.
#[doc(alias = "xa_entry")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Entry(NonZeroUsize);

/// Low bit of a value entry.
const VALUE: usize = 1;

impl Entry {
    /// An entry that carries `ptr`, whose provenance is exposed.
    ///
    /// # Panics
    ///
    /// If `ptr` is not 4-byte aligned: the low two bits belong to the index.
    #[inline]
    #[must_use]
    pub fn from_ptr<T>(ptr: NonNull<T>) -> Self {
        let word = ptr.as_ptr().expose_provenance();
        assert!(word & 3 == 0, "an index entry must be 4-byte aligned");
        Self(NonZeroUsize::new(word).expect("a NonNull pointer has a non-zero address"))
    }

    /// An entry that carries the number `value`.
    ///
    /// # Panics
    ///
    /// If `value` is 2^63 or more: one bit belongs to the index.
    #[doc(alias = "xa_mk_value")]
    #[inline]
    #[must_use]
    pub fn value(value: usize) -> Self {
        assert!(value <= usize::MAX >> 1, "an index value has 63 bits");
        Self(NonZeroUsize::MIN | (value << 1 | VALUE))
    }

    /// Whether this is a value rather than a pointer.
    #[doc(alias = "xa_is_value")]
    #[inline]
    #[must_use]
    pub fn is_value(self) -> bool {
        self.0.get() & VALUE != 0
    }

    /// The number given to [`Entry::value`]; `None` for a pointer.
    #[doc(alias = "xa_to_value")]
    #[inline]
    #[must_use]
    pub fn as_value(self) -> Option<usize> {
        self.is_value().then(|| self.0.get() >> 1)
    }

    /// The pointer given to [`Entry::from_ptr`], with the provenance that was exposed there; `None`
    /// for a value.
    ///
    /// The type is the caller's claim, and so is that the pointee is still there.
    #[inline]
    #[must_use]
    pub fn as_ptr<T>(self) -> Option<NonNull<T>> {
        if self.is_value() {
            return None;
        }
        NonNull::new(ptr::with_exposed_provenance_mut(self.0.get()))
    }

    /// The slot word of this entry.
    #[inline]
    pub(crate) fn word(self) -> usize {
        self.0.get()
    }

    /// The entry of a slot word that is no child node; `None` for an empty slot.
    #[inline]
    pub(crate) fn from_word(word: usize) -> Option<Self> {
        NonZeroUsize::new(word).map(Self)
    }
}

impl core::fmt::Debug for Entry {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.as_value() {
            Some(value) => write!(f, "Entry({value:#x})"),
            None => write!(f, "Entry(ptr {:#x})", self.0.get()),
        }
    }
}

/// How many marks there are.
pub(crate) const NR_MARKS: usize = 3;

/// A flag of an entry that [`crate::XArray::find`] can search for without visiting unmarked
/// entries.
///
/// A mark belongs to a whole entry, whatever its order. The index gives the names no meaning.
#[doc(alias = "xa_mark_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Mark {
    /// Has bytes that the backing store does not have.
    #[doc(alias = "PAGECACHE_TAG_DIRTY")]
    Dirty,
    /// Written, but not yet flushed to the medium, in a generation of an even number.
    UnstableEven,
    /// The same, of an odd one.
    UnstableOdd,
}

impl Mark {
    /// Every mark, in the order of the enumeration.
    pub const ALL: [Self; NR_MARKS] = [Self::Dirty, Self::UnstableEven, Self::UnstableOdd];
}
