//! The end of a cache.

use foliocache_sys::Errno;
use std::io;

use super::Cache;
use crate::error::{Error, FailedFile};

impl Cache {
    /// Writes everything back and closes the cache. Remaining handles still work. Blocks for the I/O, for as long
    /// as a source hangs.
    ///
    /// A dropped cache also makes data durable, but not changes of names and attributes, and it has no caller to
    /// report failures to. Each file is tried, even after failures. It reports them to `tracing`, with the target
    /// `foliocache::loss`, or on standard error if there is no subscriber. Data written through remaining handles
    /// is written back when the last of them goes. If that fails it is lost, and reported in the same way.
    ///
    /// # Errors
    /// The files that could not be written back, together with the cache, which is still open.
    pub fn close(self) -> Result<(), CloseError> {
        let done = self.sync();
        done.map_err(|error| CloseError {
            cache: Box::new(self),
            error: Box::new(error),
        })
    }
}

/// A cache that could not be closed without losing data. It stays open: [`CloseError::into_cache`] returns it, to try again or to
/// give data up. Converted to an [`Error`] it names the failed files, and the cache is dropped: that tries once more to write
/// them, and reports failures as a dropped cache does.
///
/// ```no_run
/// # let cache = foliocache::Cache::builder().build()?;
/// if let Err(refused) = cache.close() {
///     for failed in refused.failed_files() {
///         eprintln!("{failed}, bytes {:?}", failed.ranges);
///     }
///     let cache = refused.into_cache(); // as it was: what failed is still there
///     # drop(cache);
/// }
/// # Ok::<(), foliocache::Error>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[error("the cache cannot be closed: {error}")]
pub struct CloseError {
    cache: Box<Cache>,
    #[source]
    error: Box<Error>,
}

impl CloseError {
    /// The cache, still open.
    pub fn into_cache(self) -> Cache {
        *self.cache
    }

    /// The files that could not be written back.
    pub fn failed_files(&self) -> &[FailedFile] {
        self.error.failed_files()
    }

    /// The error number of the first failure.
    pub fn errno(&self) -> Errno {
        self.error.errno()
    }
}

impl From<CloseError> for io::Error {
    fn from(error: CloseError) -> io::Error {
        (*error.error).into()
    }
}

impl From<CloseError> for Error {
    fn from(error: CloseError) -> Error {
        *error.error
    }
}
