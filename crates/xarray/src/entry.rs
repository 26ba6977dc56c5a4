//! [`Entry`], the opaque word that the index holds, and [`Mark`], a flag that the index can search
//! for.
//!
//! # Model
//!
//! The low bits of a slot word give its kind:
//!
//! | low bits | word |
//! |---|---|
//! | zero | empty, if all is zero; else an entry: the pointer as [`Entry::from_ptr`] was given it |
//! | `10` | a child node; never seen outside this crate |
//!
//! The head is a special slot:
//!
//! | low bits | word |
//! |---|---|
//! | zero, all of it | empty index |
//! | even: the shift of its level | a node |
//! | odd: twice the order, and one | the only entry, which begins at index 0 |

use core::num::NonZeroUsize;
use core::ptr::NonNull;

use crate::level::{MAX_ORDER, SLOT_BITS};

/// The low bits of a word, which an entry leaves alone.
const TAG: usize = 63;
/// The bit of a head word that says that it is an entry.
const IN_HEAD: usize = 1;
// The order has room between the two, and the shift of no node has the bit.
const _: () = assert!(MAX_ORDER << 1 <= TAG as u32 && SLOT_BITS.is_multiple_of(2));

/// Whether an entry of `order` at index 0 has `index`.
#[inline]
pub(crate) fn first_covers(order: u32, index: u64) -> bool {
    index >> order == 0
}

/// A value of the index: a pointer, which the index never dereferences.
#[doc(alias = "xa_entry")]
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct Entry(NonZeroUsize);

impl Entry {
    /// An entry that carries `ptr`, whose provenance is exposed.
    ///
    /// # Panics
    ///
    /// If `ptr` is not 64-byte aligned: the low six bits belong to the index.
    #[inline]
    #[must_use]
    pub fn from_ptr<T>(ptr: NonNull<T>) -> Self {
        let word = ptr.expose_provenance();
        assert!(
            word.get() & TAG == 0,
            "an index entry must be 64-byte aligned"
        );
        Self(word)
    }

    /// The pointer given to [`Entry::from_ptr`], with the provenance that was exposed there.
    ///
    /// The type is the caller's claim, and so is that the pointee is still there.
    #[inline]
    #[must_use]
    pub fn as_ptr<T>(self) -> NonNull<T> {
        NonNull::with_exposed_provenance(self.0)
    }

    /// The slot word of this entry.
    #[inline]
    pub(crate) fn word(self) -> usize {
        self.0.get()
    }

    /// The head word that says that this entry, of `order`, is the only one.
    #[inline]
    pub(crate) fn head_word(self, order: u32) -> usize {
        self.word() | (order as usize) << 1 | IN_HEAD
    }

    /// The entry and the order of a head word that is no node; `None` for one that is, or is empty.
    #[inline]
    pub(crate) fn from_head(word: usize) -> Option<(Self, u32)> {
        if word & IN_HEAD == 0 {
            return None;
        }
        let order = (word & TAG) >> 1;
        Self::from_word(word & !TAG).map(|entry| (entry, order as u32))
    }

    /// The entry of a word that is no node, of a slot or of the head; `None` for an empty one.
    #[inline]
    pub(crate) fn of_word(word: usize) -> Option<Self> {
        Self::from_word(word & !TAG)
    }

    /// The entry of a slot word that is no child node; `None` for an empty slot.
    #[inline]
    pub(crate) fn from_word(word: usize) -> Option<Self> {
        NonZeroUsize::new(word).map(Self)
    }
}

impl core::fmt::Debug for Entry {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Entry({:#x})", self.0)
    }
}

/// How many marks there are.
pub(crate) const NR_MARKS: usize = 3;

/// A flag of an entry that [`crate::XArray::find`] can search for without visiting unmarked
/// entries.
///
/// A mark belongs to a whole entry, whatever its order. The index gives the names no meaning.
#[doc(alias = "xa_mark_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
