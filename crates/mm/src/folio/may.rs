//! The operations that a folio permits: one predicate, evaluated under the folio lock.
//!
//! # Model
//!
//! A folio in its mapping's index may be
//!
//! | operation | what it does | not while |
//! |---|---|---|
//! | `Evict` | drops the only copy in memory | `DIRTY`, `WRITEBACK` or `UNSTABLE`: the medium does not have the data; `UNEVICTABLE`: there is no store; `HELD`: a program wants it in memory; viewed: its frames would not become free; pinned |
//! | `Forget` | drops a copy that differs from the store's, or cannot be read | as `Evict`, but views keep what they have |
//! | `Migrate` | copies the bytes to other frames | `WRITEBACK`: the device reads the frames; viewed: the views have them; pinned |
//! | `Split` | makes two folios of one, the frames stay | `WRITEBACK`: its write ends for the folio as one; viewed or pinned: its holds count for the folio as one |
//! | `Remove` | drops data that the file no longer has | `WRITEBACK`: the device reads the frames; pinned: a device uses them |
//!
//! Views do not forbid `Forget` and `Remove`: the folio leaves the index, and its frames are the views' (an orphan, see
//! [`holds`](super::holds)).
//!
//! The answer holds as long as the folio lock: `DIRTY` and `WRITEBACK` are set under it, `UNSTABLE`
//! before `WRITEBACK` is cleared, `UNEVICTABLE` before the folio is in the index, `HELD` under it; and it is only
//! under it that a folio gets views and pins.

use super::holds::HoldCounts;
use super::{LockedFolio, flag};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Evict,
    Forget,
    Migrate,
    Split,
    Remove,
}

impl Operation {
    const fn forbidden(self) -> u64 {
        match self {
            Self::Evict | Self::Forget => {
                flag::DIRTY | flag::WRITEBACK | flag::UNSTABLE | flag::UNEVICTABLE | flag::HELD
            }
            Self::Migrate | Self::Split | Self::Remove => flag::WRITEBACK,
        }
    }

    const fn forbidden_by(self, holds: HoldCounts) -> bool {
        match self {
            Self::Evict | Self::Migrate | Self::Split => holds.is_held(),
            Self::Forget | Self::Remove => holds.is_pinned(),
        }
    }
}

impl LockedFolio<'_> {
    /// Whether `operation` may be done to the folio, which is in its mapping's index.
    #[inline]
    pub(crate) fn may(&self, operation: Operation) -> bool {
        debug_assert_ne!(self.mapping(), 0, "a free folio");
        let forbidden = match foliocache_sync::planted!(unstable_folio_evicted) {
            true => operation.forbidden() & !flag::UNSTABLE,
            false => operation.forbidden(),
        };
        !self.state.load().has_any(forbidden) && !operation.forbidden_by(self.hold_counts())
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::folio::holds::Hold;
    use crate::folio::{Folio, Identity};
    use crate::frames::FrameNumber;
    use crate::types::PageIndex;
    use foliocache_sync::wait::WaitTable;

    /// The flags that describe a folio's content, one by one.
    const FLAGS: [u64; 13] = [
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
        flag::DROPBEHIND,
        flag::EARLY,
        flag::AGAIN,
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
        let (short, long) = (Hold::pin(false, false), Hold::pin(true, true));
        let all_holds: [&[Hold]; 5] = [
            &[],
            &[Hold::VIEW],
            &[short],
            &[long],
            &[Hold::VIEW, short, long],
        ];
        for (state, holds) in
            (0..1 << FLAGS.len()).flat_map(|state| all_holds.map(|holds| (state, holds)))
        {
            holds.iter().for_each(|&hold| _ = locked.add_hold(hold));
            let set = |at: usize| state >> at & 1 != 0;
            let flags = (0..FLAGS.len()).filter(|&at| set(at)).map(|at| FLAGS[at]);
            locked.state.clear(flag::CONTENT);
            locked.state.set(flags.sum());
            let [
                _,
                dirty,
                writeback,
                unstable,
                _,
                _,
                _,
                unevictable,
                _,
                held,
                _,
                _,
                _,
            ] = std::array::from_fn(set);
            let safe = !dirty && !writeback && !unstable;
            let pinned = holds.contains(&short) || holds.contains(&long);
            let free = holds.is_empty();
            for (operation, expected) in [
                (Operation::Evict, free && safe && !unevictable && !held),
                (Operation::Forget, !pinned && safe && !unevictable && !held),
                (Operation::Migrate, free && !writeback),
                (Operation::Split, free && !writeback),
                (Operation::Remove, !pinned && !writeback),
            ] {
                let may = locked.may(operation);
                assert_eq!(may, expected, "{operation:?}, {state:#b}, {holds:?}");
            }
            holds.iter().for_each(|&hold| _ = locked.drop_hold(hold));
        }
    }
}
