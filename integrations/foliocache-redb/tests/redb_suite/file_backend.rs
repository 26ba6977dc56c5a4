//! redb's `FileBackend` over this crate's backend. It takes the place of `file_backend/optimized.rs` in redb's source, and is no
//! part of any target here.

use crate::folio::FolioBackend;
use crate::{BackendError, DatabaseError, Result, StorageBackend};
use foliocache::{Cache, Errno, FileOptions};
use std::fs::File;
use std::io;
use std::ops::Bound;
use std::os::fd::AsRawFd;
use std::sync::LazyLock;

#[cfg(test)]
use super::range_lock::RangeLock;

/// One cache for all, or one for each backend: then none sees what another one wrote but by its locks.
fn with_cache<T>(open: impl FnOnce(&Cache) -> T) -> T {
    static SHARED: LazyLock<Option<Cache>> = LazyLock::new(|| {
        let each = std::env::var_os("FOLIOCACHE_REDB_CACHE_EACH").is_some();
        (!each).then(|| cache("64M"))
    });
    match &*SHARED {
        Some(cache) => open(cache),
        None => open(&cache("16M")),
    }
}

fn cache(memory: &str) -> Cache {
    Cache::builder().memory(memory).build().unwrap()
}

#[derive(Debug)]
pub struct FileBackend {
    inner: FolioBackend,
}

impl FileBackend {
    pub fn new(file: File) -> Result<Self, DatabaseError> {
        Ok(Self::from_file(file))
    }

    pub(crate) fn from_file(file: File) -> Self {
        let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        let file = with_cache(|cache| match cache.adopt(file) {
            // Another process has it open. It is redb's locks that these tests are about.
            Err(error) if error.errno() == Errno::EBUSY => {
                let mut options = FileOptions::new();
                cache.file(path, options.read(true).write(true).ignore_lock(true))
            }
            adopted => adopted,
        });
        Self {
            inner: FolioBackend::new(file.unwrap()),
        }
    }
}

impl StorageBackend for FileBackend {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.inner.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.inner.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.try_lock_range(start, end)
    }

    fn try_lock_shared_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> Result<bool, BackendError> {
        self.inner.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.query_lock_range(start, end)
    }
}

