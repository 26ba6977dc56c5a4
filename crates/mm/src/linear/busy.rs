//! Uses of a file that are in the way of its first mapping: waited for, but not for ever.
//!
//! # Model
//!
//! A mapping needs the locks of the file and of its folios once, to add a range and to move folios into it. Their
//! holders do I/O, which takes long or hangs with the store. Each lock is tried for [`PATIENCE`], and then the mapping
//! fails and says who has it.
//!
//! Locks that are shared may be held by one or another all the time. While a mapping wants one, those who would share
//! it wait, which is bounded by the mapping's patience. It wants `i_rwsem` first, and `invalidate_lock` once it has
//! that: so no thread waits for the second while it has the first shared.
//!
//! Pins are waited for before any lock is taken: see `pin.rs`.
//!
//! # Memory ordering
//!
//! Relaxed: a turn more or less.

use foliocache_sync::atomic::{AtomicBool, Ordering};
use foliocache_sync::rank::{RankedMutexGuard, RankedWriteGuard};
use foliocache_sync::time::Duration;

use crate::dirty::WritebackState;
use crate::file_locks::wait_for;
use crate::folio::LockedFolio;
use crate::mapped::MapError;
use crate::records::{AddressSpace, LinearFile};
use crate::types::PageIndex;

/// How long a mapping waits for each lock.
const PATIENCE: Duration = Duration::from_secs(5);

/// Says that a lock is wanted.
struct Wanted<'a>(&'a AtomicBool);

impl<'a> Wanted<'a> {
    fn of(wanted: &'a AtomicBool) -> Self {
        wanted.store(true, Ordering::Relaxed);
        Self(wanted)
    }
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

fn wait_for_lock<G>(
    attempt: impl FnMut() -> Option<G>,
    holder: impl FnOnce() -> String,
) -> Result<G, MapError> {
    wait_for(PATIENCE, attempt).ok_or_else(|| MapError::Busy { holder: holder() })
}

impl AddressSpace {
    /// Takes `i_rwsem` and `invalidate_lock`, so that no folio is added. Context: `LinearFile::making` held.
    pub(super) fn lock_to_add_range(
        &self,
        linear: &LinearFile,
    ) -> Result<(RankedWriteGuard<'_, ()>, RankedWriteGuard<'_, ()>), MapError> {
        let exclusive = {
            let _wanted = Wanted::of(&linear.wants.i_rwsem);
            wait_for_lock(
                || self.i_rwsem.try_write(),
                || "a write, truncate or hole punch".into(),
            )?
        };
        let _wanted = Wanted::of(&linear.wants.invalidate_lock);
        let holder = || "a read from the store".into();
        let invalidate = wait_for_lock(|| self.invalidate_lock.try_write(), holder)?;
        Ok((exclusive, invalidate))
    }

    /// Takes `wb_lock`: no write is in flight.
    pub(super) fn lock_to_move(&self) -> Result<RankedMutexGuard<'_, WritebackState>, MapError> {
        let _awaited = self.awaited();
        let holder = || "writeback of the file".into();
        wait_for_lock(|| self.wb_lock.try_lock(), holder)
    }

    /// The folio that holds a page, locked, if there is one.
    pub(super) fn lock_folio_to_move(
        &self,
        page: PageIndex,
    ) -> Result<Option<LockedFolio<'_>>, MapError> {
        let attempt = || match self.try_lock_folio(page) {
            Some(locked) => Some(Some(locked)),
            None => self.folio_at(page).is_none().then_some(None),
        };
        wait_for_lock(attempt, || {
            format!("I/O or a lent slice at byte {}", page.pos())
        })
    }
}
