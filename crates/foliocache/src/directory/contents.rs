//! Whole files in one call, as `std::fs` has them.

use foliocache_sys::Errno;
use foliocache_vfs::SlabArc;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::Directory;
use crate::error::{Error, Operation, Result};
use crate::file::File;

/// Bytes that a copy has in its own memory.
const COPY_BUFFER: usize = 128 << 10;

/// Bytes of a whole file that are read at once: zeros that are still in the processor's cache when they are written over.
const READ_STEP: usize = 1 << 20;

impl Directory {
    /// All bytes of a file. They are copied out of the cache, into memory that is not part of the bound.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cache = foliocache::Cache::builder().memory("16M").build()?;
    /// # let dir = cache.memfs()?;
    /// dir.write("greeting", "hello")?;
    /// assert_eq!(dir.read("greeting")?, b"hello");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`OpenOptions::open`](crate::OpenOptions::open) and [`File::read_at`]; `ENOMEM` if there
    /// is no memory for all bytes.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let file = self.open(path)?;
        // One byte more: the read that finds the end needs room too.
        let size = usize::try_from(file.cached_len())
            .ok()
            .and_then(|len| len.checked_add(1));
        let size = size.ok_or_else(|| file.path_error(Operation::Read, Errno::EFBIG))?;
        let no_room = |_| file.path_error(Operation::Read, Errno::ENOMEM);
        let (mut bytes, mut done) = (Vec::new(), 0);
        bytes.try_reserve_exact(size).map_err(no_room)?;
        loop {
            if done == bytes.len() {
                if done == bytes.capacity() {
                    // It has grown since.
                    bytes.try_reserve(COPY_BUFFER).map_err(no_room)?;
                }
                bytes.resize(bytes.capacity().min(done + READ_STEP), 0);
            }
            match file.read_at(&mut bytes[done..], done as u64)? {
                0 => break,
                n => done += n,
            }
        }
        bytes.truncate(done);
        Ok(bytes)
    }

    /// As [`Directory::read`], as text.
    ///
    /// # Errors
    /// As [`Directory::read`], and [`Error::NotUtf8`].
    pub fn read_to_string(&self, path: impl AsRef<Path>) -> Result<String> {
        let path = path.as_ref();
        String::from_utf8(self.read(path)?).map_err(|_| Error::NotUtf8 {
            path: self.join(path),
        })
    }

    /// Creates a file with these bytes, or replaces the contents of an existing one. They are then in the cache,
    /// and not durable before [`File::sync_all`] or [`Cache::sync`](crate::Cache::sync).
    ///
    /// # Errors
    /// As [`OpenOptions::open`](crate::OpenOptions::open) and [`File::write_at`]; the file then may hold part of the bytes.
    pub fn write(&self, path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> Result<()> {
        let mut options = self.open_options();
        let file = options.write(true).create(true).truncate(true).open(path)?;
        file.write_all_at(contents.as_ref(), 0)
    }

    /// Copies the bytes and the permission bits of the file `from` to the file `to`, which is created or
    /// overwritten. Returns the number of bytes. They go through the cache, and are not durable then.
    ///
    /// # Errors
    /// As [`Directory::read`] and [`Directory::write`]; `EINVAL` if both are the same file, which then is as it was.
    pub fn copy(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<u64> {
        let source = self.open(from)?;
        let permissions = source.metadata()?.permissions();
        let mut options = self.open_options();
        options.write(true).create(true).mode(permissions.mode());
        let target = options.open(to)?;
        if SlabArc::ptr_eq(source.open_file().inode(), target.open_file().inode()) {
            return Err(target.path_error(Operation::Copy, Errno::EINVAL));
        }
        target.set_len(0)?;
        let bytes = copy_bytes(&source, &target)?;
        // The umask took bits off a file that was made, and one that was there has its own.
        target.set_permissions(permissions)?;
        Ok(bytes)
    }
}

fn copy_bytes(source: &File, target: &File) -> Result<u64> {
    let (mut buffer, mut done) = (vec![0; COPY_BUFFER], 0);
    loop {
        match source.read_at(&mut buffer, done)? {
            0 => return Ok(done),
            n => {
                target.write_all_at(&buffer[..n], done)?;
                done += n as u64;
            }
        }
    }
}
