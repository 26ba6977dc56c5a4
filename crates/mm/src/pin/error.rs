//! Why a pin is refused.

use foliocache_sys::Errno;

use crate::holder::Holder;

/// Why bytes of a file cannot be pinned.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// A truncate, a hole punch or a first mapping waits for pins of the range. Try again later.
    #[error("a truncate, hole punch or first mapping of the range waits for its pins to end")]
    Barred,
    /// Pins already hold as much memory, or as many blocks of 2 MiB, as they may.
    #[error(
        "{wanted} bytes more: pins hold {pinned} already, of at most {most} together with what else cannot be \
         reclaimed; held by {}", list(.holders)
    )]
    TooMuch {
        /// Bytes of the folio that is too much.
        wanted: u64,
        /// Bytes of all folios that are pinned.
        pinned: u64,
        /// The most that pins may hold.
        most: u64,
        /// Some of the ranges that they hold.
        holders: Vec<Holder>,
    },
    /// A page of the range has as many short-term pins, or long-term ones, as can be counted.
    #[error("a page of the range has {most} pins of this term, the most that can be counted")]
    TooMany {
        /// The most that can be counted.
        most: u32,
    },
    /// Another error.
    #[error("{0}")]
    Failed(#[from] Errno),
}

/// Ranges as a message has them.
fn list(holders: &[Holder]) -> String {
    let list: Vec<_> = holders.iter().map(Holder::to_string).collect();
    list.join("; ")
}

impl PinError {
    /// The error number, for C.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Barred => Errno::EAGAIN,
            Self::TooMuch { .. } => Errno::ENOBUFS,
            Self::TooMany { .. } => Errno::EOVERFLOW,
            Self::Failed(errno) => *errno,
        }
    }
}
