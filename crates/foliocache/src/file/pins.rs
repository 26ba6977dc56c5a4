//! Pins of a file that are in the way of an operation.

use foliocache_mm::Holder;
use foliocache_sys::Errno;
use std::ops::Range;

use super::File;
use crate::error::{Error, Operation, Result};

impl File {
    /// The pinned folios of the file, through any handle. Does not block.
    ///
    /// # Errors
    /// `ECHILD` after a fork.
    pub fn pinned(&self) -> Result<Vec<Holder>> {
        self.with(Operation::Stats, |open| Ok(open.mapping().pinned()))
    }

    /// `done`, with the pins that are in the way if an operation on `range` failed for pins.
    pub(super) fn name_pins<T>(
        &self,
        operation: Operation,
        range: Range<u64>,
        done: Result<T>,
    ) -> Result<T> {
        let error = match done {
            Err(error) if error.errno() == Errno::EBUSY => error,
            done => return done,
        };
        let mut pins = self.pinned()?;
        pins.retain(|pin| pin.bytes.start < range.end && range.start < pin.bytes.end);
        match pins.is_empty() {
            true => Err(error),
            false => Err(Error::Pinned {
                operation,
                path: self.path().to_owned(),
                pins,
            }),
        }
    }
}
