//! One call on a file: where it stands and how it is to go.

use foliocache_sys::Errno;

use crate::iov::IovIter;

/// A read or write of a file, from its first step to its last.
///
/// It belongs to no thread and borrows nothing, so a caller can keep it over a wait and go on with it.
#[doc(alias = "kiocb")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Iocb {
    /// The next byte. It moves with each byte that is done, also before an error.
    #[doc(alias = "ki_pos")]
    pub pos: u64,
    /// The bytes before this one were brought in for this very read: copying them is their first use.
    pub fetched: u64,
    /// Ends with `EAGAIN` where it would have to wait: for I/O, a lock, memory of the bound or the dirty
    /// limits. An append ends so before its first byte, or not at all.
    #[doc(alias = "IOCB_NOWAIT")]
    pub nowait: bool,
    /// Writes at the end of the file, wherever that is once the writer has the file to itself.
    #[doc(alias = "IOCB_APPEND")]
    pub append: bool,
    /// Pages that the call brings into the cache leave it when the call is done with them, unless others use them
    /// meanwhile; see `uncached.rs`.
    #[doc(alias = "RWF_DONTCACHE")]
    pub uncached: bool,
    /// Goes around the cache, in agreement with it, where it can; see `filemap/direct.rs`.
    #[doc(alias = "IOCB_DIRECT")]
    pub direct: bool,
    /// Why the call did less than it was asked for, though it did some of it.
    pub failed: Option<Errno>,
}

impl Iocb {
    /// A call at byte `pos` that may wait.
    #[must_use]
    pub const fn at(pos: u64) -> Self {
        Self {
            pos,
            fetched: 0,
            nowait: false,
            append: false,
            uncached: false,
            direct: false,
            failed: None,
        }
    }

    /// Whether it uses the cache like most calls.
    pub(crate) const fn is_cached(&self) -> bool {
        !self.uncached && !self.direct
    }

    pub(crate) fn advance(&mut self, iter: &mut IovIter<'_>, n: usize) {
        iter.advance(n);
        self.pos += n as u64;
    }

    /// How a call ends that did `done` bytes: an error counts only if that is none, or if the rest
    /// would have to wait. Else it is noted.
    pub(crate) fn end(&mut self, done: usize, result: Result<(), Errno>) -> Result<usize, Errno> {
        match result {
            Err(Errno::EAGAIN) if self.nowait => Err(Errno::EAGAIN),
            Err(errno) if done == 0 => Err(errno),
            Err(errno) => {
                self.failed = Some(errno);
                Ok(done)
            }
            Ok(()) => Ok(done),
        }
    }
}
