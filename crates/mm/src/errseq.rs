//! Writeback errors that are reported once to every handle that was open.
//!
//! # Model
//!
//! A sequence of errors per file: the newest error and how many were recorded. A cursor per open
//! handle remembers how many that handle has been told of.
//!
//! # Differences from Linux
//!
//! `errseq_t` counts an error only if somebody looked since the last one; here every failed
//! attempt counts, and a handle opened while failed folios remain starts behind the newest error,
//! so that it is told too.

use foliocache_sync::atomic::{AtomicU64, Ordering};
use foliocache_sys::Errno;

/// The errors of one file. 32 bits of count, 32 bits of error number; 0 if there was none.
#[doc(alias = "errseq_t")]
#[derive(Debug, Default)]
pub(crate) struct ErrSeq(AtomicU64);

/// How far one open handle has been told of its file's writeback errors.
#[derive(Debug)]
pub struct ErrSeqCursor(AtomicU64);

impl Clone for ErrSeqCursor {
    fn clone(&self) -> Self {
        Self(AtomicU64::new(self.0.load(Ordering::Relaxed)))
    }
}

impl ErrSeqCursor {
    /// Takes over what the handle of `copy`, a clone of this cursor, was told of meanwhile.
    pub fn advance_to(&self, copy: &Self) {
        let told = copy.0.load(Ordering::Relaxed);
        self.0.fetch_max(told, Ordering::Relaxed);
    }
}

impl ErrSeq {
    /// Records an error for every handle that is open now.
    pub(crate) fn record(&self, error: Errno) {
        // Relaxed throughout this module: the word carries the whole message, and fsync orders
        // everything else by the locks it takes.
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| {
                Some((word >> 32).wrapping_add(1) << 32 | error.raw() as u64)
            });
    }

    /// A cursor for a new handle; with `unseen` it will still be told of the newest error.
    pub(crate) fn sample(&self, unseen: bool) -> ErrSeqCursor {
        let count = self.0.load(Ordering::Relaxed) >> 32;
        ErrSeqCursor(AtomicU64::new(if unseen {
            count.saturating_sub(1)
        } else {
            count
        }))
    }

    /// Tells the handle of the newest error it has not been told of, once.
    pub(crate) fn check_and_advance(&self, cursor: &ErrSeqCursor) -> Result<(), Errno> {
        let word = self.0.load(Ordering::Relaxed);
        if cursor.0.swap(word >> 32, Ordering::Relaxed) == word >> 32 {
            return Ok(());
        }
        if foliocache_sync::planted!(error_told_to_one_handle) {
            self.0.store(0, Ordering::Relaxed);
        }
        Err(Errno::from_raw(word as u32 as i32))
    }

    /// The newest error, told or not.
    pub(crate) fn newest(&self) -> Option<Errno> {
        match self.0.load(Ordering::Relaxed) as u32 as i32 {
            0 => None,
            raw => Some(Errno::from_raw(raw)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_told_to_a_copied_cursor_is_told_again() {
        let errors = ErrSeq::default();
        let handle = errors.sample(false);
        errors.record(Errno::EIO);
        assert_eq!(errors.check_and_advance(&handle.clone()), Err(Errno::EIO));
        let copy = handle.clone();
        assert_eq!(errors.check_and_advance(&copy), Err(Errno::EIO));
        handle.advance_to(&copy);
        assert_eq!(errors.check_and_advance(&handle), Ok(()));
    }

    #[test]
    fn each_handle_is_told_once() {
        let errors = ErrSeq::default();
        let (early, other) = (errors.sample(false), errors.sample(false));
        errors.record(Errno::EIO);
        let late = errors.sample(false);
        let late_with_failures = errors.sample(true);
        assert_eq!(errors.check_and_advance(&early), Err(Errno::EIO));
        assert_eq!(errors.check_and_advance(&early), Ok(()));
        assert_eq!(errors.check_and_advance(&other), Err(Errno::EIO));
        assert_eq!(errors.check_and_advance(&late), Ok(()));
        assert_eq!(
            errors.check_and_advance(&late_with_failures),
            Err(Errno::EIO)
        );
    }
}
