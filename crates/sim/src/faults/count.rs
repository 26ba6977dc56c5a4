//! The counts and records of a backend's operations.

use foliocache_sys::Errno;

use super::rule::{OpKind, OpSet};

/// Counters of everything that reached a plan's backends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "disk", derive(serde::Serialize, serde::Deserialize))]
pub struct Counts {
    /// Operations begun, by kind.
    pub begun: [u64; OpKind::COUNT],
    /// Operations that returned an error, by kind.
    pub failed: [u64; OpKind::COUNT],
    /// Bytes read and written by the operations that worked.
    pub bytes: [u64; OpKind::COUNT],
    /// Operations that did less than they were asked to.
    pub short: u64,
    /// Operations that hang now.
    pub hung: u64,
}

impl Counts {
    /// Operations begun, of all kinds.
    pub fn operations(&self) -> u64 {
        self.begun.iter().sum()
    }

    /// Operations begun, of the kinds in `on`.
    pub fn begun_of(&self, on: OpSet) -> u64 {
        OpKind::ALL
            .into_iter()
            .filter(|&kind| on.contains(kind))
            .map(|kind| self.begun[kind as usize])
            .sum()
    }

    /// Operations that failed, of the kinds in `on`.
    pub fn failed_of(&self, on: OpSet) -> u64 {
        OpKind::ALL
            .into_iter()
            .filter(|&kind| on.contains(kind))
            .map(|kind| self.failed[kind as usize])
            .sum()
    }

    pub(super) fn note(&mut self, event: &Event) {
        let kind = event.kind as usize;
        match event.outcome {
            Ok(bytes) => {
                self.bytes[kind] += bytes;
                self.short += u64::from(bytes < event.len);
            }
            Err(_) => self.failed[kind] += 1,
        }
    }
}

/// One operation that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    /// Its place in the order in which operations began, from 1.
    pub seq: u64,
    /// Its kind.
    pub kind: OpKind,
    /// Where in the file, in bytes; the new size of a truncation.
    pub pos: u64,
    /// The requested length in bytes.
    pub len: u64,
    /// How many bytes were done, or the error.
    pub outcome: Result<u64, Errno>,
}

impl std::fmt::Display for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "#{} {:?}", self.seq, self.kind)?;
        if self.kind.has_range() {
            write!(f, " {:#x}+{:#x}", self.pos, self.len)?;
        }
        match self.outcome {
            Ok(bytes) if bytes == self.len => Ok(()),
            Ok(bytes) => write!(f, " short: {bytes:#x}"),
            Err(errno) => write!(f, " {}", errno.name()),
        }
    }
}
