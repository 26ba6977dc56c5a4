//! The identity of a file of the source.

use foliocache_sys::clock::Timespec;
use foliocache_sys::fd::Stat;

/// The identity of a file, as far as the source can tell. A number that is used again belongs to a file with a later
/// birth time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    pub(super) dev: u64,
    pub(super) ino: u64,
    birth: Option<(i64, u32)>,
    kind: u32,
}

impl Identity {
    pub(super) fn of(stat: &Stat) -> Identity {
        Identity {
            dev: stat.dev.raw(),
            ino: stat.ino,
            birth: stat.btime.map(|Timespec { sec, nsec }| (sec, nsec)),
            kind: stat.kind.mode_bits(),
        }
    }

    /// Whether no other file can have it later. Not so if the source tells no birth time.
    pub(super) fn is_for_good(&self) -> bool {
        self.birth.is_some()
    }

    /// A number that differs for files that had one inode number one after the other.
    pub(super) fn generation(&self) -> u64 {
        self.birth
            .map_or(0, |(sec, nsec)| (sec as u64) << 30 ^ u64::from(nsec))
    }
}
