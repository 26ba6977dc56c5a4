//! Files over a store of the caller's, for tests.

use foliocache_fs::MemFs;
use foliocache_mm::AddressSpaceOperations;
use foliocache_sync::Arc;
use foliocache_vfs::OpenFlags;
use std::path::PathBuf;

use super::Cache;
use crate::error::{Error, Operation, Result};
use crate::file::File;
use crate::mount::VfsMount;
use crate::rights::Rights;
use crate::testing;

impl Cache {
    /// A file of `size` bytes over `store`, alone on its file system, open `handles` times.
    ///
    /// # Errors
    /// No memory left in the bound, or no thread.
    #[doc(hidden)]
    pub fn open_store(
        &self,
        store: Arc<dyn AddressSpaceOperations>,
        size: u64,
        handles: usize,
    ) -> Result<Vec<File>> {
        let path = PathBuf::from(store.describe());
        let inode = testing::file_over(&self.inner.mm, store, size)?;
        let mount = VfsMount::of_memory(MemFs::new(&self.inner.mm)?, path.clone());
        let open = |_| {
            let open = testing::open(&inode, OpenFlags::READ_WRITE);
            let open = open.map_err(Error::of_cache(Operation::Open))?;
            let rights = Rights::default();
            Ok(File::new(open, &mount, rights, path.clone()))
        };
        (0..handles).map(open).collect()
    }
}
