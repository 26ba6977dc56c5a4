//! How one read or write goes.

use foliocache_mm::Iocb;

/// How one read or write is to go, besides what its handle was opened for.
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
    /// A read or write as its handle was opened for.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            uncached: false,
            direct: false,
        }
    }

    /// Whether what the call brings into the cache is to leave it when the call is done with it.
    ///
    /// The call goes through the cache and sees what everybody else does; it blocks as any other. Pages that were cached
    /// before stay, and so do those that somebody else reads, writes or maps before they are dropped.
    ///
    /// What a read brings in is dropped when the read comes to its end; what is read ahead of it too, used or not, at the
    /// latest when the handle is closed. It takes memory of the bound until then: as much as readahead does, some MiB.
    ///
    /// What a write brings in is dropped when it is durable. The flusher sees to that, within about a fifth of the
    /// time that data may stay dirty at most; the call itself writes nothing. It waits while more of the file than twice the
    /// background limit is not durable, so it takes no more memory than that.
    ///
    /// [`FileStats::uncached`](crate::FileStats::uncached) says what became of each page.
    #[doc(alias = "RWF_DONTCACHE")]
    #[must_use]
    pub const fn uncached(mut self, uncached: bool) -> Self {
        self.uncached = uncached;
        self
    }

    /// Whether the call goes around the cache, in agreement with it.
    ///
    /// Whole pages go between the store and the caller's memory; parts of pages at the ends go through the cache,
    /// [uncached](IoOptions::uncached). A read takes what is cached from there. A write takes it from
    /// the cache and from mappings first; where that cannot be, because pages are held, pinned or not durable yet, it goes
    /// through the cache, uncached. So do appends, and everything on a file system in memory, which has no store.
    ///
    /// The call blocks for the I/O, one request after another: several threads make a device busy. A write has the file to
    /// itself meanwhile. It is not durable when it returns, as no write is; if the flush of the next sync fails its data is lost, and
    /// the sync says so. Memory that begins at a page is used as it is, other memory is copied through a buffer
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
