//! A directory's contents, read through the kernel.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

/// A file or a directory that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A file and its bytes.
    File(Vec<u8>),
    /// A directory.
    Dir(BTreeMap<String, Found>),
}

impl Found {
    /// Reads everything at and below `path`.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn read(path: &Path) -> io::Result<Found> {
        if !fs::symlink_metadata(path)?.is_dir() {
            return Ok(Found::File(fs::read(path)?));
        }
        let mut entries = BTreeMap::new();
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            entries.insert(name, Found::read(&entry.path())?);
        }
        Ok(Found::Dir(entries))
    }
}
