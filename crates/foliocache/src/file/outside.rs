//! Changes of other programs seen through this handle, and changes of this handle shown to them.

use crate::error::{Operation, Result};

use super::File;
use foliocache_sys::Errno;

impl File {
    /// The size in bytes, as current as [`File::metadata`]. Costs no system call if the directory is watched and no
    /// change was reported, or if the source was asked within
    /// [`revalidate_after`](crate::DirectoryOptions::revalidate_after); otherwise blocks for a `statx(2)`. If the
    /// source does not answer, and in a forked child, returns the last known size.
    #[doc(alias = "size")]
    pub fn len(&self) -> u64 {
        self.current_len().unwrap_or_else(|_| self.cached_len())
    }

    /// Whether the file holds no byte. As [`File::len`].
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn current_len(&self) -> Result<u64, Errno> {
        let names = self.mount.super_block()?;
        let known = names.known_attr(self.open.inode());
        let attr = known.map_or_else(|| names.fs().getattr_open(self.open.inode()), Ok);
        Ok(attr?.size)
    }

    /// The last known size. Neither blocks nor fails.
    #[inline]
    pub(crate) fn cached_len(&self) -> u64 {
        self.open.size()
    }

    /// Reads into `buf` from byte `pos` on until it is full or the file ends; returns the number of bytes. A
    /// smaller number than `buf` holds means the end of the file. The rest of `buf` is unchanged. Blocks, and takes
    /// memory of the bound, as [`File::read_at`].
    ///
    /// # Errors
    /// Those of [`File::read_at`], whatever was read before; `buf` then may be filled in part. The end of the file is none.
    pub fn read_full_at(&self, buf: &mut [u8], pos: u64) -> Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match self.read_at(&mut buf[done..], pos.saturating_add(done as u64))? {
                0 => break,
                n => done += n,
            }
        }
        Ok(done)
    }

    /// Looks at the source, as opening the file again does: whether others changed it since it was looked at last. If so, the cached pages
    /// are dropped, and from now on all handles see the new content. `false` also if an open or another such call was the first to see it.
    ///
    /// While data of this cache waits to be written to the file, the cache's version counts, and the answer is
    /// `false`: call [`File::write_out`] before, or use [a lock](File#locks). If written data is not durable yet
    /// and others wrote since, it is made durable before their version is taken over. An open file that was
    /// replaced stays the opened one: `false`. The same holds with
    /// [`DirectoryOptions::exclusive`](crate::DirectoryOptions::exclusive), and in a file system in memory.
    ///
    /// Blocks for a `statx(2)` of the source, also if [`DirectoryOptions::watch`](crate::DirectoryOptions::watch) is on. Takes no memory of
    /// the bound.
    ///
    /// # Errors
    /// `EBUSY` if the change cannot be taken over (a part of the file that is gone is pinned), `ECHILD` after a fork, those of the source.
    #[doc(alias = "close-to-open")]
    pub fn revalidate(&self) -> Result<bool> {
        self.with(Operation::Metadata, |open| {
            open.inode().ops().revalidate(open.inode())
        })
    }

    /// Writes all that is dirty in the file to the source, with its size, and waits for that: programs beside the cache see it, and a kill
    /// of this process does not lose it. It is not durable: a crash of the machine may lose it until [`File::sync_data`].
    ///
    /// Blocks for the writes, not for a flush of the medium. Takes no memory of the bound. Of a file system in memory it does nothing.
    ///
    /// # Errors
    /// Those of writing to the source. Data that failed stays dirty and is retried; later syncs
    /// report it too. `ECHILD` after a fork.
    #[doc(alias = "sync_file_range")]
    pub fn write_out(&self) -> Result<()> {
        self.with(Operation::Write, |open| {
            open.inode().ops().write_and_wait(open.inode())
        })
    }
}
