//! How a file is opened by an async caller.

use foliocache_vfs::OpenHow;
use std::path::Path;

use super::{AsyncDirectory, AsyncFile};
use crate::error::Result;

/// How a file is to be opened; from [`AsyncDirectory::open_options`]. The settings are those of
/// [`OpenOptions`](crate::OpenOptions).
///
/// ```
/// # async fn open(dir: &foliocache::AsyncDirectory) -> foliocache::Result<()> {
/// let log = dir.open_options().read(true).append(true).create(true).open("log").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "options open nothing before `open`"]
pub struct AsyncOpenOptions<'a> {
    directory: &'a AsyncDirectory,
    how: OpenHow,
}

macro_rules! settings {
    ($($name:ident: $($field:ident).+,)*) => {
        $(
            #[doc = concat!("As [`OpenOptions::", stringify!($name), "`](crate::OpenOptions::", stringify!($name), ").")]
            pub fn $name(&mut self, $name: bool) -> &mut Self {
                self.how.$($field).+ = $name;
                self
            }
        )*
    };
}

impl<'a> AsyncOpenOptions<'a> {
    pub(super) fn new(directory: &'a AsyncDirectory) -> Self {
        let how = directory.blocking().open_options().how;
        Self { directory, how }
    }

    settings! {
        read: flags.read,
        write: flags.write,
        append: flags.append,
        truncate: flags.truncate,
        create: create,
        create_new: exclusive,
        uncached: flags.uncached,
        direct: flags.direct,
    }

    /// As [`OpenOptions::mode`](crate::OpenOptions::mode).
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.how.mode = mode;
        self
    }

    /// Opens the file at `path`, relative to the directory.
    ///
    /// Ready at the first poll for a file that is opened for reading alone, is in the cache as a whole, was opened before,
    /// and of which nobody told of a change since. Otherwise a worker opens it.
    ///
    /// If the future is dropped before a worker has begun, nothing is done. Otherwise the file is opened, made or cut, and
    /// closed again.
    ///
    /// # Errors
    /// As [`OpenOptions::open`](crate::OpenOptions::open).
    pub async fn open(&self, path: impl AsRef<Path>) -> Result<AsyncFile> {
        self.directory.open_how(path.as_ref(), self.how).await
    }
}
