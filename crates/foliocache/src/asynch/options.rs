//! How a file is opened by an async caller.

use foliocache_sync::Arc;
use foliocache_vfs::OpenHow;
use std::path::Path;

use super::{AsyncDirectory, AsyncFile};
use crate::directory::Directory;
use crate::error::{Operation, Result};
use crate::workers::Kind;

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
    fn new(directory: &'a AsyncDirectory) -> Self {
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

impl AsyncDirectory {
    /// How a file is to be opened.
    pub fn open_options(&self) -> AsyncOpenOptions<'_> {
        AsyncOpenOptions::new(self)
    }

    /// Opens a file for reading. As [`AsyncOpenOptions::open`].
    ///
    /// # Errors
    /// As [`Directory::open`].
    pub async fn open(&self, path: impl AsRef<Path>) -> Result<AsyncFile> {
        self.open_options().read(true).open(path).await
    }

    /// Opens a file for reading and writing; makes it if it is not there, cuts it to nothing if it is. As
    /// [`AsyncOpenOptions::open`].
    ///
    /// # Errors
    /// As [`Directory::create`].
    pub async fn create(&self, path: impl AsRef<Path>) -> Result<AsyncFile> {
        let mut options = self.open_options();
        options.read(true).write(true).create(true).truncate(true);
        options.open(path).await
    }

    /// Makes a file that must not be there yet, and opens it for reading and writing. As [`AsyncOpenOptions::open`].
    ///
    /// # Errors
    /// As [`Directory::create_new`].
    pub async fn create_new(&self, path: impl AsRef<Path>) -> Result<AsyncFile> {
        let mut options = self.open_options();
        options.read(true).write(true).create_new(true);
        options.open(path).await
    }

    /// Opens a file for writing at its end; makes it if it is not there. As [`AsyncOpenOptions::open`].
    ///
    /// # Errors
    /// As [`Directory::append`].
    pub async fn append(&self, path: impl AsRef<Path>) -> Result<AsyncFile> {
        self.open_options()
            .append(true)
            .create(true)
            .open(path)
            .await
    }

    async fn open_how(&self, path: &Path, how: OpenHow) -> Result<AsyncFile> {
        let reads = how.flags.read && !how.flags.write && !how.flags.append;
        let opens_only = reads && !how.create && !how.exclusive && !how.flags.truncate;
        let cached = opens_only.then(|| self.directory.open_cached(path, how));
        let file = match cached.flatten() {
            Some(opened) => opened?,
            None => {
                let open = move |directory: &Directory, path: &Path| {
                    let mut options = directory.open_options();
                    options.how = how;
                    options.open(path)
                };
                match opens_only {
                    true => {
                        self.on_worker(Kind::Read, Operation::Open, path, open)
                            .await?
                    }
                    false => self.changed(Operation::Open, path, open).await?,
                }
            }
        };
        Ok(AsyncFile::new(file, Arc::clone(&self.offload)))
    }
}
