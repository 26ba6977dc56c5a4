//! Log lines about a store: failures, slow I/O, writers that wait, a store that hangs, and its recovery.
//!
//! # Model
//!
//! A line for each file and cause, and five lines of a kind, in ten seconds (`dirty/told.rs`). The lines left out are counted, and
//! the count stands in the next line of the kind, or in the line that tells of the recovery. Failures and recoveries are for
//! whoever runs the program; slow I/O and waits are on the level below.
//!
//! An I/O that hangs ends in no line of its own. So the background reclaimer looks at each store: one that was asked for something and
//! has answered nothing for [`HUNG_MS`] gets a line, and another when it answers again.
//!
//! # Locking
//!
//! Leaves. Nothing is written to the log with one held.

use foliocache_sync::atomic::Ordering;
use foliocache_sync::time::{Duration, coarse_monotonic_ms};
use foliocache_sys::Errno;

use crate::dirty::shown;
use crate::ops::AddressSpaceOperations;
use crate::records::{AddressSpace, BackingDevInfo};
use crate::show::{Bytes, Time};

/// The target of the lines that tell that something works again.
const RECOVERY: &str = "foliocache::recovery";

/// An I/O that takes longer is slow, in milliseconds.
const SLOW_MS: u64 = 1_000;

/// How long a store may answer nothing, in milliseconds.
const HUNG_MS: u64 = 10_000;

/// A wait of a writer that is told of, in milliseconds.
const LONG_WAIT_MS: u64 = 100;

/// A read, a write or a flush that is under way until this is dropped.
#[must_use]
struct Asked<'a>(&'a BackingDevInfo);

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.0.note_answered();
    }
}

impl BackingDevInfo {
    fn ask(&self) -> Asked<'_> {
        self.note_asked();
        Asked(self)
    }

    /// A read that begins here, and ends with [`BackingDevInfo::note_answered`].
    // Relaxed, here and in what follows: figures for the log.
    pub(crate) fn note_asked(&self) {
        if self.told.asked.fetch_add(1, Ordering::Relaxed) == 0 {
            let now = coarse_monotonic_ms();
            self.told.answered.store(now, Ordering::Relaxed);
        }
    }

    pub(crate) fn note_answered(&self) {
        let now = coarse_monotonic_ms();
        let before = self.told.answered.swap(now, Ordering::Relaxed);
        self.told.asked.fetch_sub(1, Ordering::Relaxed);
        let hung = &self.told.hung;
        if hung.load(Ordering::Relaxed) && hung.swap(false, Ordering::Relaxed) {
            let after = Time(Duration::from_millis(now.saturating_sub(before)));
            tracing::info!(
                target: RECOVERY, store = self.name(),
                "the store answers again after {after}"
            );
        }
    }

    /// Tells of a store that hangs; whether that was new. `now` is in milliseconds.
    pub(crate) fn tell_hung(&self, now: u64) -> bool {
        let waiting = self.told.asked.load(Ordering::Relaxed);
        let silent = now.saturating_sub(self.told.answered.load(Ordering::Relaxed));
        if waiting == 0 || silent < HUNG_MS || self.told.hung.swap(true, Ordering::Relaxed) {
            return false;
        }
        let silent = Time(Duration::from_millis(silent));
        tracing::warn!(
            store = self.name(),
            waiting,
            "the store has answered nothing for {silent}; reads, writes and flushes wait for it"
        );
        true
    }

    /// A write, a flush or a read of a file failed.
    pub(crate) fn tell_failure(
        &self,
        mapping: &AddressSpace,
        what: &'static str,
        bytes: Option<u64>,
        error: Errno,
    ) {
        let about = (mapping.id(), error.raw());
        let Some(left_out) = self.told.failures.admit(about, coarse_monotonic_ms()) else {
            return;
        };
        let (file, left_out) = (mapping.name(), shown(left_out));
        let bytes = bytes.map(|bytes| tracing::field::display(Bytes(bytes)));
        tracing::warn!(file, bytes, %error, left_out, "{what}");
    }

    /// An I/O of a file took `took` milliseconds.
    #[inline]
    pub(crate) fn tell_slow(
        &self,
        mapping: &AddressSpace,
        what: &'static str,
        bytes: u64,
        took: u64,
    ) {
        if took >= SLOW_MS {
            self.tell_slow_io(mapping, what, bytes, took);
        }
    }

    #[cold]
    fn tell_slow_io(&self, mapping: &AddressSpace, what: &str, bytes: u64, took: u64) {
        let Some(left_out) = self
            .told
            .slow
            .admit((mapping.id(), 0), coarse_monotonic_ms())
        else {
            return;
        };
        let took = Time(Duration::from_millis(took));
        let (file, bytes, left_out) = (mapping.name(), Bytes(bytes), shown(left_out));
        tracing::info!(file, %bytes, %took, left_out, "slow I/O: {what}");
    }

    /// A writer waited because too much was dirty, `took` nanoseconds.
    pub(crate) fn tell_wait(&self, took: u64) {
        if took / 1_000_000 < LONG_WAIT_MS {
            return;
        }
        if let Some(left_out) = self.told.waits.admit((0, 0), coarse_monotonic_ms()) {
            let (took, left_out) = (Time(Duration::from_nanos(took)), shown(left_out));
            tracing::info!(
                store = self.name(), waited = %took, left_out,
                "writers wait: they write faster than the store takes it"
            );
        }
    }

    /// Writing to the store begins to fail, or works again.
    pub(crate) fn tell_change(&self, error: Option<Errno>) {
        let (now, written) = (coarse_monotonic_ms(), self.told.written());
        let mut fault = self.told.fault.lock();
        let (since, before) = match (error, *fault) {
            (None, Some(fault)) => fault,
            (Some(_), None) => {
                *fault = Some((now, written));
                return;
            }
            _ => return,
        };
        *fault = None;
        drop(fault);
        let after = Time(Duration::from_millis(now.saturating_sub(since)));
        let written = Bytes(written - before);
        let left_out = shown(self.told.failures.take_left_out());
        tracing::info!(
            target: RECOVERY, store = self.name(), left_out,
            "the store takes writes again after {after}; {written} written"
        );
    }
}

impl AddressSpace {
    /// Calls the store, of which [`BackingDevInfo::tell_hung`] knows meanwhile. All that may wait for the medium is called so, but for
    /// reads in the background ([`BackingDevInfo::note_asked`]).
    pub(crate) fn ask_store<R>(&self, call: impl FnOnce(&dyn AddressSpaceOperations) -> R) -> R {
        let _asked = self.bdi().ask();
        call(&*self.ops)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::records::BdiKind;
    use crate::records::{Mm, MmConfig};
    use crate::test_store::Sink;
    use foliocache_sync::Arc;

    #[test]
    fn a_store_that_answers_nothing_is_told_of_once_until_it_answers() {
        let mm = Mm::new(MmConfig::new(16 << 20)).unwrap();
        let bdi = BackingDevInfo::new(&mm, "hung", BdiKind::Storage).unwrap();
        let later = || coarse_monotonic_ms() + HUNG_MS;
        assert!(!bdi.tell_hung(later()), "nothing was asked for");
        for _ in 0..2 {
            let (read, write) = (bdi.ask(), bdi.ask());
            assert!(!bdi.tell_hung(coarse_monotonic_ms()), "it was just asked");
            assert!(bdi.tell_hung(later()));
            assert!(!bdi.tell_hung(later()), "it was told");
            drop(write);
            assert!(bdi.tell_hung(later()), "it hangs again");
            drop(read);
            assert!(!bdi.tell_hung(later()), "nothing is asked for");
        }
    }

    #[test]
    fn any_call_of_a_store_may_be_the_one_that_is_not_answered() {
        let mm = Mm::new(MmConfig::new(16 << 20)).unwrap();
        let bdi = BackingDevInfo::new(&mm, "hung", BdiKind::Storage).unwrap();
        let file = AddressSpace::new(&bdi, Arc::new(Sink::default()), 0);
        let told = file.ask_store(|_| bdi.tell_hung(coarse_monotonic_ms() + HUNG_MS));
        assert!(told, "it was being called");
    }
}
