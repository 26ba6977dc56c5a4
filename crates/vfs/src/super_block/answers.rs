//! Concurrent questions about names, and their answers.
//!
//! # Model
//!
//! Two threads ask for one name while others give it to another file. Both answers were true when they were given,
//! and nothing says which one is later. If the earlier one were entered last, and believed until the change is
//! reported, a reader would see the new file first and then the old one. So an answer that was overtaken by another
//! one of the same name is requested again, and an answer entered at the same time as another one is not believed.
//!
//! Names are compared by their hash; equal hashes cost one unnecessary question.
//!
//! # Memory ordering
//!
//! Acquire in [`Answers::begin`] pairs with Release in [`Question::enter`]: a question that begins after an answer
//! was counted is not overtaken by it. An answer is counted before its dentry is put in place, and
//! [`Question::is_last`] looks after that. The lock of the directory's dentry orders the two: of two answers, the
//! one put in place last sees that the other was counted.

use crate::dcache::Name;
use crate::inode::Inode;
use foliocache_sync::atomic::{AtomicU32, Ordering};
use std::array;

/// Counts of answers. A model has few names.
const COUNTS: usize = if cfg!(any(loom, shuttle)) { 4 } else { 256 };

/// Most times that a name is asked for before an overtaken answer is taken.
pub(super) const TRIES: usize = 3;

/// See the module.
pub(super) struct Answers([AtomicU32; COUNTS]);

/// A question that is under way.
pub(super) struct Question<'a> {
    entered: &'a AtomicU32,
    before: u32,
    alone: bool,
}

impl Default for Answers {
    fn default() -> Self {
        Self(array::from_fn(|_| AtomicU32::new(0)))
    }
}

impl Answers {
    /// Call it before asking for a name in a directory.
    pub(super) fn begin(&self, dir: &Inode, name: &Name<'_>) -> Question<'_> {
        let entered = &self.0[name.hash_in(dir.ino() as usize) as usize % COUNTS];
        // Acquire: see the module's header.
        let before = entered.load(Ordering::Acquire);
        Question {
            entered,
            before,
            alone: false,
        }
    }
}

impl Question<'_> {
    /// Whether another answer was entered since the question began.
    pub(super) fn is_overtaken(&self) -> bool {
        // Relaxed: a hint, `is_last` has the last word.
        self.entered.load(Ordering::Relaxed) != self.before && !Self::is_planted()
    }

    /// The answer is about to be put in place.
    pub(super) fn enter(&mut self) {
        // AcqRel: Release as the module's header says; Acquire for the answers before this one.
        self.alone = self.entered.fetch_add(1, Ordering::AcqRel) == self.before;
    }

    /// It was put in place. Returns whether no other one was entered since the question began.
    pub(super) fn is_last(&self) -> bool {
        // Relaxed: after the lock that the module's header names.
        let entered = self.entered.load(Ordering::Relaxed);
        self.alone && entered == self.before.wrapping_add(1) || Self::is_planted()
    }

    fn is_planted() -> bool {
        foliocache_sync::planted!(answers_overtake_each_other)
    }
}
