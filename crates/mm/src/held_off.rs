//! Holding writers off while others' changes of the store are taken over.
//!
//! # Model
//!
//! ```text
//!  hold_off_writers ──▶ writes under way end ──▶ what is dirty is written and made durable ──▶ the file is clean ──▶ they go on
//!        └─ a page that is dirty is written to without waiting, until it is written back
//! ```
//!
//! A file that threads write to without a pause is never clean, so that the pages which others made old could not be dropped.
//!
//! Stores through mappings do not wait, nor do devices that write to pins.
//!
//! # Locking
//!
//! A writer waits before it takes `i_rwsem`, and holds no lock then.
//!
//! # Memory ordering
//!
//! `Relaxed`: `i_rwsem` orders it for writes that take that, and the lock of a folio for write hits. A page of a write hit that
//! began before is found dirty afterwards.

use foliocache_sync::atomic::Ordering;
use foliocache_sync::time::{Duration, sleep};

use crate::records::AddressSpace;

/// Between two looks of a writer that waits.
const POLL: Duration = Duration::from_micros(200);

/// Writers of a file wait as long as it lives.
#[derive(Debug)]
pub struct WritersHeldOff<'a>(&'a AddressSpace);

impl Drop for WritersHeldOff<'_> {
    fn drop(&mut self) {
        // Relaxed: see the module's header.
        self.0.held_off.fetch_sub(1, Ordering::Relaxed);
    }
}

impl AddressSpace {
    /// Has writers of the file wait, and waits for those that have begun. Their pages are still dirty then.
    ///
    /// Context: blocks for `i_rwsem`.
    pub fn hold_off_writers(&self) -> WritersHeldOff<'_> {
        // Relaxed: see the module's header.
        self.held_off.fetch_add(1, Ordering::Relaxed);
        let held_off = WritersHeldOff(self);
        drop(self.i_rwsem.write());
        held_off
    }

    /// Takes `i_rwsem` for a write as `lock` does, when writers need not wait.
    pub(crate) fn lock_unless_held_off<G>(&self, lock: impl Fn() -> G) -> G {
        loop {
            while self.holds_off_writers() {
                sleep(POLL);
            }
            let locked = lock();
            // A thread that holds writers off meanwhile waits for this lock, or had it before.
            if !self.holds_off_writers() {
                return locked;
            }
        }
    }

    /// Whether writers are to wait.
    #[inline]
    pub(crate) fn holds_off_writers(&self) -> bool {
        // Relaxed: see the module's header.
        let wanted = self.held_off.load(Ordering::Relaxed) > 0;
        wanted && !foliocache_sync::planted!(writers_not_held_off)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::iocb::Iocb;
    use crate::iov::IovIter;
    use crate::records::{BackingDevInfo, BdiKind};
    use crate::records::{Mm, MmConfig};
    use crate::test_store::Sink;
    use foliocache_sync::{Arc, thread};
    use foliocache_sys::Errno;

    #[test]
    fn a_file_whose_writers_are_held_off_stays_clean() {
        let mut config = MmConfig::new(64 << 20);
        config.dirty_expire = Duration::from_secs(3600);
        let mm = Mm::new(config).unwrap();
        let bdi = BackingDevInfo::new(&mm, "test", BdiKind::Storage).unwrap();
        for shared in [false, true] {
            let store = Sink {
                shared,
                ..Sink::default()
            };
            let file = AddressSpace::new(&bdi, Arc::new(store), 0);
            let write = |pos, nowait| {
                let mut at = Iocb::at(pos);
                at.nowait = nowait;
                file.write(&mut at, &mut IovIter::source(&[1; 4096]))
            };
            assert_eq!((write(0, false), write(4096, false)), (Ok(4096), Ok(4096)));
            let held_off = file.hold_off_writers();
            assert_eq!(file.overwrite(0, b"dirty"), 5, "nothing waits for it");
            file.sync().unwrap();
            // One is clean, one is new, and the size is that of before.
            assert_eq!(file.overwrite(0, b"clean"), 0);
            for pos in [0, 8192] {
                assert_eq!(write(pos, true), Err(Errno::EAGAIN));
            }
            thread::scope(|scope| {
                let waiting = [0, 4096, 8192].map(|pos| scope.spawn(move || write(pos, false)));
                assert!(!file.is_dirty() && file.size() == 8192);
                drop(held_off);
                for writer in waiting {
                    assert_eq!(writer.join().unwrap(), Ok(4096));
                }
            });
            assert!(file.is_dirty() && file.size() == 12288);
            file.sync().unwrap();
        }
    }
}
