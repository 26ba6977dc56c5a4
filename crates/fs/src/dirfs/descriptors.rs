//! The descriptors of a regular file.
//!
//! # Model
//!
//! One is buffered. One for direct I/O is opened when it is first asked for, unless the source refuses it or the process has
//! hardly any descriptor left ([`shortage`](super::shortage)).

use super::Shared;
use super::open_files::OpenFile;
use super::stats::Fallback;
use foliocache_mm::PAGE_SIZE;
use foliocache_sync::Arc;
use foliocache_sync::atomic::{AtomicBool, Ordering};
use foliocache_sync::cell::OnceLock;
use foliocache_sys::fd::{AsFd, OFlags, OwnedFd};
use foliocache_sys::{Errno, fd};

/// A descriptor for direct I/O.
pub(super) struct Direct {
    pub(super) fd: Arc<OwnedFd>,
    /// Positions and lengths are multiples of this, a page at least.
    pub(super) block: usize,
}

/// The mode of opening a file.
pub(super) fn access(writable: bool) -> OFlags {
    match writable {
        true => OFlags::RDWR,
        false => OFlags::RDONLY,
    }
}

/// The descriptors of a file.
pub(super) struct Descriptors {
    pub(super) buffered: Arc<OwnedFd>,
    pub(super) writable: bool,
    /// Writes go to the end of the file alone, see [`append_only`](super::append_only).
    pub(super) appends: bool,
    direct: OnceLock<Option<Direct>>,
    /// Direct I/O was refused after it had been allowed. Relaxed everywhere: a thread that misses it is
    /// refused once more.
    direct_refused: AtomicBool,
    _counted: OpenFile,
}

impl Descriptors {
    pub(super) fn new(buffered: OwnedFd, writable: bool) -> Descriptors {
        Descriptors {
            buffered: Arc::new(buffered),
            writable,
            appends: false,
            direct: OnceLock::new(),
            direct_refused: AtomicBool::new(false),
            _counted: OpenFile::new(),
        }
    }

    /// Whether another thread uses one of them now.
    pub(super) fn is_in_use(&self) -> bool {
        let direct = self.direct.get().and_then(Option::as_ref);
        Arc::strong_count(&self.buffered) > 1
            || direct.is_some_and(|direct| Arc::strong_count(&direct.fd) > 1)
    }

    /// Whether there is a descriptor for direct I/O by now. Does not block.
    pub(super) fn has_direct(&self) -> bool {
        // Relaxed: see the field.
        let refused = self.direct_refused.load(Ordering::Relaxed);
        !refused && matches!(self.direct.get(), Some(Some(_)))
    }

    /// The descriptor for direct I/O, unless it is refused.
    pub(super) fn direct(&self, shared: &Shared) -> Option<&Direct> {
        // Relaxed: see the field.
        if self.appends || self.direct_refused.load(Ordering::Relaxed) {
            return None;
        }
        if let Some(known) = self.direct.get() {
            return known.as_ref();
        }
        if shared.shortage.spares(self) {
            return None;
        }
        let opened = match shared.with_room(|| self.open_direct(shared)) {
            Ok(direct) => Some(direct),
            // Next time there may be one to be had.
            Err(Errno::EMFILE | Errno::ENFILE) => return None,
            Err(reason) => {
                shared.counters.fell_back(Fallback::DirectIo, reason);
                None
            }
        };
        self.direct.get_or_init(|| opened).as_ref()
    }

    fn open_direct(&self, shared: &Shared) -> Result<Direct, Errno> {
        if !shared.options.direct {
            return Err(Errno::EOPNOTSUPP);
        }
        let flags = access(self.writable) | OFlags::DIRECT;
        let fd = fd::reopen(self.buffered.as_fd(), flags)?;
        let mut block = PAGE_SIZE;
        if let Some(align) = fd::direct_io_alignment(fd.as_fd()) {
            if align.mem as usize > PAGE_SIZE || !align.offset.is_power_of_two() {
                return Err(Errno::EINVAL);
            }
            block = block.max(align.offset as usize);
        }
        Ok(Direct {
            fd: Arc::new(fd),
            block,
        })
    }

    /// Direct I/O was refused although the descriptor could be opened.
    pub(super) fn give_up_direct(&self, shared: &Shared, reason: Errno) {
        // Relaxed: see the field.
        if !self.direct_refused.swap(true, Ordering::Relaxed) {
            shared.counters.fell_back(Fallback::DirectIo, reason);
        }
    }
}
