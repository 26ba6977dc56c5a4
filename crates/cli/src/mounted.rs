//! A served mount with its cache, and the files that its source does not have yet.

use foliocache::Cache;
use foliocache_fuse::Mount;
use foliocache_sys::Errno;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

/// A mount with all that belongs to it.
pub(crate) struct Mounted {
    pub(crate) cache: Cache,
    /// Shared while the mount serves, exclusive while it is unmounted.
    pub(crate) mount: Arc<RwLock<Mount>>,
}

impl Mounted {
    /// Where it is mounted.
    pub(crate) fn mount_point(&self) -> PathBuf {
        self.shared().mount_point().to_owned()
    }

    /// The mount. Waits while it is unmounted.
    pub(crate) fn shared(&self) -> RwLockReadGuard<'_, Mount> {
        self.mount.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Files with data that is not safely in the source: how many bytes, and the error of their last write.
pub(crate) type NotWritten = BTreeMap<String, (u64, Option<Errno>)>;

/// The files of `cache` with data that is not safely in the source.
pub(crate) fn not_written(cache: &Cache) -> NotWritten {
    let files = cache.unsynced_files().unwrap_or_default();
    let lost = |file: foliocache::UnsyncedFile| (file.file, (file.bytes, file.errno));
    files.into_iter().map(lost).collect()
}
