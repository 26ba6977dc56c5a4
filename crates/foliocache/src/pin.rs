//! Pinned bytes of a file: memory of the cache that devices use.

use foliocache_mm::{FolioPin as Folios, PinError, PinEvent, PinMode, PinnedPart};
use foliocache_sys::Errno;
use foliocache_vfs::{Inode, SlabArc};
use std::fmt;
use std::ops::{Range, RangeBounds};

use crate::error::{Error, Result};
use crate::file::File;
use crate::parent_only::{Forked, ParentOnly};
use crate::range::bytes_of;

/// Bytes of a file whose memory stays in place, and stays the file's, until this is dropped: for I/O directly into and out
/// of the cache, by an io_uring of the program or by a device.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use foliocache::PinMode;
///
/// # let cache = foliocache::Cache::builder().memory("16M").build()?;
/// # let file = cache.memfs()?.create("received")?;
/// file.set_len(8192)?;
/// let pin = file.pin(.., PinMode::WRITE)?;
/// for part in pin.parts() {
///     // Hand `part.addr` and `part.len` to the device, and wait until it is done.
/// # let _ = part;
/// }
/// drop(pin); // not before
/// # Ok(())
/// # }
/// ```
///
/// Memory that a device may write counts as changed from the pin on. [`File::sync_data`] makes the device's earlier
/// writes durable. `docs/pinning.md` in the repository says which pin to use, and the consequences of a wrong
/// choice.
///
/// It may move to another thread, outlives the [`File`], and dropping it does not block. A pin that outlives its
/// [`Cache`](crate::Cache) is a leak, and is logged with file, range and mode.
#[must_use = "the bytes are pinned until it is dropped"]
pub struct FolioPin(ParentOnly<Pinned>);

/// The pins go before the inode.
struct Pinned {
    folios: Folios,
    inode: InodeRef,
}

/// Keeps the inode in memory, so that no second inode of the file is made.
struct InodeRef(Option<SlabArc<Inode>>);

impl Drop for InodeRef {
    fn drop(&mut self) {
        if let Some(inode) = self.0.take() {
            Inode::put(inode);
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let (true, Some(inode)) = (self.folios.mode().device_writes, &self.inode.0) {
            inode.data_changed();
        }
    }
}

impl Forked for Pinned {
    fn check_fork(&self) -> Result<(), Errno> {
        self.folios.mapping().mm().check_fork()
    }
}

impl File {
    /// Pins a range of the file, in bytes, within its size: reads missing pages, and keeps the memory in place, and the file's,
    /// until the result is dropped.
    ///
    /// A pin holds whole folios of up to 2 MiB. A long-term pin splits folios at the ends of its range if it can. All pins together
    /// may hold half of the memory for pages, each folio counted once ([`CacheStats::unreclaimable`](crate::CacheStats)). Blocks for
    /// I/O and memory. If a device may write, it also blocks for its share of the dirty limits, like a write of as many bytes, and for
    /// write-back of the range that is under way.
    ///
    /// [`File::set_len`] to a size before a pin, [`File::punch_hole`] and the first [`File::map`] wait for short-term pins,
    /// for [`CacheBuilder::pin_wait`](crate::CacheBuilder::pin_wait) at most, and fail under long-term pins.
    /// [`File::pin_revocable`] is for holders that can be asked to give a long-term pin up. Beyond the share this call asks them, and
    /// waits as long.
    ///
    /// # Errors
    /// [`Error::Pin`]: `EAGAIN` while one of these calls waits for pins of the range, `ENOBUFS` beyond the share
    /// ([`PinError`](crate::PinError), with the pinned bytes), `EOVERFLOW` for a page with 32,767 pins of this term, `EINVAL` for no bytes or bytes beyond the end of the
    /// file, `EBADF` if the file is not open for reading, or for [`PinMode::WRITE`] not for writing too, or for
    /// appending; `ECHILD` after a fork, those of the backing store.
    #[doc(alias = "pin_user_pages")]
    pub fn pin(&self, range: impl RangeBounds<u64>, mode: PinMode) -> Result<FolioPin> {
        let range = bytes_of(range, self.cached_len());
        let pinned = match self.check_fork() {
            Ok(()) => self.open_file().pin(range.clone(), mode),
            Err(forked) => Err(forked.into()),
        };
        self.pinned_as(range, pinned)
    }

    /// Pins a range of the file as [`File::pin`] does, for long, with a holder that gives the pin up on request: for buffers that
    /// are registered with a ring, memory of a GPU driver, RDMA regions.
    ///
    /// [`File::set_len`] to a size before the pin, [`File::punch_hole`], the first [`File::map`],
    /// [`Cache::set_memory`](crate::Cache::set_memory) where pins hold more than the new bound leaves them, and a [`File::pin`] beyond
    /// the share of all pins do not fail at once then. They call `callback` with [`PinEvent::Revoke`], and wait for
    /// [`CacheBuilder::pin_wait`](crate::CacheBuilder::pin_wait) at most. The holder stops the device, unregisters the memory
    /// and drops the pin, in the callback or on any thread. [`PinEvent::MayPin`] comes when the operation has ended. Until then a new
    /// pin of the range is `EAGAIN`. If any folio in the way has a long-term pin without a callback, nobody is asked and the operation fails at
    /// once, as under pins of [`File::pin`].
    ///
    /// One thread of the cache, started by its first revocable pin, makes all calls, one after another and without a lock. The callback may
    /// use the cache: drop the pin, read, sync. It should return soon, because others wait for their turn; an operation that it starts asks no holder.
    /// After a panic, which is logged, the pin counts as one without a callback.
    /// Dropping the pin does not wait for a callback that runs, and afterwards only [`PinEvent::MayPin`] may still come. A
    /// callback that owns the place where the pin is kept keeps the pin alive: let it hold a
    /// [`Weak`](std::sync::Weak), a channel or an eventfd.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use foliocache::{PinEvent, PinMode};
    /// use std::sync::mpsc;
    ///
    /// # let cache = foliocache::Cache::builder().memory("16M").build()?;
    /// # let file = cache.memfs()?.create("arena")?;
    /// file.set_len(8192)?;
    /// let (events, next) = mpsc::channel();
    /// let tell = move |event| _ = events.send(event);
    /// let pin = file.pin_revocable(.., PinMode::WRITE, tell)?;
    /// // Register `pin.parts()` and use them. Another thread:
    /// let other = std::thread::spawn({
    ///     let file = file.try_clone()?;
    ///     move || file.set_len(4096)
    /// });
    /// if let PinEvent::Revoke { .. } = next.recv()? {
    ///     // Wait until the device is done, and unregister the parts.
    ///     drop(pin);
    /// }
    /// other.join().unwrap()?;
    /// assert_eq!(next.recv()?, PinEvent::MayPin);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// It counts in the bound as a pin of [`File::pin`]. Its callback is a few hundred bytes beside the bound, as are all handles. Blocks as [`File::pin`] does.
    ///
    /// # Errors
    /// As [`File::pin`]; `EAGAIN` also while a smaller bound or a pin beyond the share waits for revocable pins, and `EAGAIN`
    /// or `ENOMEM` if the kernel refuses the thread.
    #[doc(alias = "mmu_notifier")]
    #[doc(alias = "move_notify")]
    pub fn pin_revocable(
        &self,
        range: impl RangeBounds<u64>,
        mode: PinMode,
        callback: impl Fn(PinEvent) + Send + Sync + 'static,
    ) -> Result<FolioPin> {
        let range = bytes_of(range, self.cached_len());
        let pinned = match self.check_fork() {
            Ok(()) => (self.open_file()).pin_revocable(range.clone(), mode, callback),
            Err(forked) => Err(forked.into()),
        };
        self.pinned_as(range, pinned)
    }

    fn pinned_as(&self, range: Range<u64>, pinned: Result<Folios, PinError>) -> Result<FolioPin> {
        match pinned {
            Ok(folios) => Ok(FolioPin(ParentOnly::new(Pinned {
                folios,
                inode: InodeRef(Some(self.open_file().inode().clone())),
            }))),
            Err(cause) => Err(Error::Pin {
                path: self.path().to_owned(),
                range,
                cause,
            }),
        }
    }
}

impl FolioPin {
    /// The bytes of the file that are pinned.
    pub fn range(&self) -> Range<u64> {
        self.0.folios.range()
    }

    /// The file, as its file system names it in messages and in a [`Holder`](crate::Holder).
    ///
    /// # Errors
    /// `ECHILD` after a fork.
    pub fn file(&self) -> Result<String, Errno> {
        self.0.check_fork()?;
        Ok(self.0.folios.mapping().name())
    }

    /// Its mode.
    pub fn mode(&self) -> PinMode {
        self.0.folios.mode()
    }

    /// The addresses of the bytes, in order: a piece for each folio. They stay valid until the pin is dropped.
    ///
    /// The cache, other I/O through it and devices read and write the memory meanwhile, so make no reference to it. In a
    /// forked child there are no pieces.
    pub fn parts(&self) -> impl Iterator<Item = PinnedPart> + '_ {
        self.0.folios.parts()
    }
}

#[cfg(feature = "bench")]
#[doc(hidden)]
impl FolioPin {
    pub fn isolate(&self) {
        self.0.folios.isolate();
    }

    pub fn put_back(&self) {
        self.0.folios.put_back();
    }
}

impl fmt::Debug for FolioPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FolioPin")
            .field("range", &self.range())
            .field("mode", &self.mode())
            .finish_non_exhaustive()
    }
}
