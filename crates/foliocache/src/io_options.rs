//! Options of one read or write.

use foliocache_mm::Iocb;

/// Options of one read or write, in addition to those of its handle.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use foliocache::IoOptions;
///
/// # let cache = foliocache::Cache::builder().memory("16M").build()?;
/// # let dir = cache.memfs()?;
/// # let file = dir.create("log")?;
/// // A backup reads everything once, and leaves the cache to others.
/// let once = IoOptions::new().uncached(true);
/// let mut block = [0; 65536];
/// let read = file.read_at_with(&mut block, 0, once)?;
/// # assert_eq!(read, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoOptions {
    uncached: bool,
    direct: bool,
}

impl IoOptions {
    /// The options of the handle alone.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            uncached: false,
            direct: false,
        }
    }

    /// Whether pages that the call brings into the cache leave it again.
    ///
    /// The call goes through the cache and sees all changes; it blocks like any other. Pages that were cached before stay.
    /// So do pages that another call reads, writes or maps before they are dropped.
    ///
    /// Pages of a read are dropped when the read reaches their end. Its readahead is dropped too, used or not, at the latest when
    /// the handle is closed. Until then it takes memory of the bound: as much as readahead does, some MiB.
    ///
    /// Pages of a write are dropped when they are durable. The flusher writes them, within about a fifth of the time that data may
    /// stay dirty; the call itself writes nothing to the store. It waits while more of the file than twice the background limit is
    /// not durable, and takes no more memory than that.
    ///
    /// [`FileStats::uncached`](crate::FileStats::uncached) counts the outcome for each page.
    #[doc(alias = "RWF_DONTCACHE")]
    #[must_use]
    pub const fn uncached(mut self, uncached: bool) -> Self {
        self.uncached = uncached;
        self
    }

    /// Whether the call goes around the cache, coherently with it.
    ///
    /// Whole pages go directly between the store and the caller's memory. Parts of pages at the ends go through the cache,
    /// [uncached](IoOptions::uncached). A read takes cached pages from the cache. A write removes its pages from the cache and from
    /// mappings first. If it cannot, because pages are held, pinned or not durable yet, it goes through the cache, uncached.
    /// So do appends, and all calls on a file system in memory, which has no store.
    ///
    /// The call blocks for the I/O, one request after another; use several threads to keep a device busy. A write has the file to
    /// itself meanwhile. Like any write it is not durable when it returns. If the flush of the next sync fails, its data is lost, and
    /// the sync reports it. Memory that is aligned to a page is used directly; other memory is copied through a buffer
    /// of 1 MiB, which is not part of the bound.
    #[doc(alias = "O_DIRECT")]
    #[must_use]
    pub const fn direct(mut self, direct: bool) -> Self {
        self.direct = direct;
        self
    }

    #[inline]
    pub(crate) const fn iocb(self, pos: u64) -> Iocb {
        let mut iocb = Iocb::at(pos);
        iocb.uncached = self.uncached;
        iocb.direct = self.direct;
        iocb
    }
}
