//! What may be done to a folio: one predicate, asked under the folio lock.
//!
//! # Model
//!
//! A folio in its mapping's index may be
//!
//! | operation | what it does | not while |
//! |---|---|---|
//! | `Evict` | drops the only copy in memory | `DIRTY`, `WRITEBACK` or `UNSTABLE`: the medium does not have the data; `UNEVICTABLE`: there is no store; `HELD`: a program wants it in memory |
//! | `Migrate` | copies the bytes to other frames | `WRITEBACK`: the device reads the frames |
//! | `Split` | makes two folios of one, the frames stay | `WRITEBACK`: its write ends for the folio as one |
//! | `Remove` | drops data that the file no longer has | `WRITEBACK`: the device reads the frames |
//!
//! The answer holds as long as the folio lock: `DIRTY` and `WRITEBACK` are set under it, `UNSTABLE`
//! before `WRITEBACK` is cleared, `UNEVICTABLE` before the folio is in the index, and `HELD` under it.

use super::{LockedFolio, flag};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Evict,
    Migrate,
    Split,
    Remove,
}

impl Operation {
    const fn forbidden(self) -> u64 {
        match self {
            Self::Evict => {
                flag::DIRTY | flag::WRITEBACK | flag::UNSTABLE | flag::UNEVICTABLE | flag::HELD
            }
            Self::Migrate | Self::Split | Self::Remove => flag::WRITEBACK,
        }
    }
}

impl LockedFolio<'_> {
    /// Whether `operation` may be done to the folio, which is in its mapping's index.
    #[inline]
    pub(crate) fn may(&self, operation: Operation) -> bool {
        debug_assert_ne!(self.mapping(), 0, "a free folio");
        !self.state.load().has_any(operation.forbidden())
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::folio::{Folio, Identity};
    use crate::frames::FrameNumber;
    use crate::types::PageIndex;
    use foliocache_sync::wait::WaitTable;

    /// The flags that describe a folio's content, one by one.
    const FLAGS: [u64; 10] = [
        flag::UPTODATE,
        flag::DIRTY,
        flag::WRITEBACK,
        flag::UNSTABLE,
        flag::ERROR,
        flag::REFERENCED,
        flag::READAHEAD,
        flag::UNEVICTABLE,
        flag::MAPPED,
        flag::HELD,
    ];

    #[test]
    fn every_state_permits_the_operations_of_the_table() {
        assert_eq!(
            FLAGS.iter().sum::<u64>(),
            flag::CONTENT,
            "a flag is missing"
        );
        let (folio, waits) = (Folio::default(), WaitTable::new());
        let locked = folio.lock(&waits);
        let identity = Identity {
            index: PageIndex(8),
            order: 3,
            frame: FrameNumber(8),
        };
        locked.attach(64, identity);
        for state in 0..1 << FLAGS.len() {
            let set = |at: usize| state >> at & 1 != 0;
            let flags = (0..FLAGS.len()).filter(|&at| set(at)).map(|at| FLAGS[at]);
            locked.state.clear(flag::CONTENT);
            locked.state.set(flags.sum());
            let [_, dirty, writeback, unstable, _, _, _, unevictable, _, held] =
                std::array::from_fn(set);
            let safe = !dirty && !writeback && !unstable;
            for (operation, expected) in [
                (Operation::Evict, safe && !unevictable && !held),
                (Operation::Migrate, !writeback),
                (Operation::Split, !writeback),
                (Operation::Remove, !writeback),
            ] {
                assert_eq!(locked.may(operation), expected, "{operation:?}, {state:#b}");
            }
        }
    }
}
