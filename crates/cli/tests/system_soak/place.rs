//! A directory as a worker sees it: through the library, or through a mount.

use crate::work::Done;
use foliocache_sim::Rng;
use std::path::PathBuf;

/// The kind of file at a name; links are not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Directory,
    File(u64),
    Link,
}

/// A file system as the workers use it. Paths are relative.
pub(crate) trait Place: Sync {
    /// Opens a file for reading and writing, and makes it if it is not there.
    fn open(&self, path: &str) -> Done<Box<dyn Handle + '_>>;
    fn read(&self, path: &str) -> Done<Vec<u8>>;
    fn write(&self, path: &str, bytes: &[u8]) -> Done;
    fn copy(&self, from: &str, to: &str) -> Done;
    fn create_dir(&self, path: &str) -> Done;
    fn rename(&self, from: &str, to: &str) -> Done;
    fn exchange(&self, a: &str, b: &str) -> Done;
    fn hard_link(&self, existing: &str, new: &str) -> Done;
    fn symlink(&self, target: &str, link: &str) -> Done;
    fn read_link(&self, path: &str) -> Done<String>;
    fn remove_file(&self, path: &str) -> Done;
    fn remove_dir(&self, path: &str) -> Done;
    fn remove_dir_all(&self, path: &str) -> Done;
    /// The names in a directory, sorted.
    fn list(&self, path: &str) -> Done<Vec<String>>;
    fn kind(&self, path: &str) -> Done<Kind>;
    /// Makes the names of a directory durable.
    fn sync_dir(&self, path: &str) -> Done;
    /// Where a path is beside the cache; `None` where there is nothing beside it.
    fn source(&self, path: &str) -> Option<PathBuf>;
    /// Its name in the figures.
    fn is_mount(&self) -> bool;
}

/// An open file, read and written in whatever ways there are: `rng` draws one.
pub(crate) trait Handle {
    /// Reads up to `len` bytes, fewer only at the end of the file. Returns the method used, too.
    fn read(&mut self, pos: u64, len: usize, rng: &mut Rng) -> Done<(Vec<u8>, &'static str)>;
    /// Writes everything; returns the way.
    fn write(&mut self, pos: u64, bytes: &[u8], rng: &mut Rng) -> Done<&'static str>;
    fn append(&mut self, bytes: &[u8], rng: &mut Rng) -> Done;
    fn set_len(&mut self, len: u64) -> Done;
    fn punch(&mut self, pos: u64, len: u64) -> Done;
    fn sync(&mut self, datasync: bool, rng: &mut Rng) -> Done<&'static str>;
    fn len(&mut self) -> Done<u64>;
    /// Something that must change no byte: advice, other handles, allocations within the file.
    fn disturb(&mut self, rng: &mut Rng) -> Done<&'static str>;
}
