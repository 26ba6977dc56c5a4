//! Entries of a directory.

use foliocache::{AsyncDirectory, DirEntry, Errno, FileKind};
use opendal::raw::oio;
use opendal::{MetadataBuilder, Result};
use std::path::PathBuf;
use std::sync::Arc;
use std::vec;

use crate::error;
use crate::write::HIDDEN;

/// A directory that is listed: itself, then its entries. One that is missing has none.
pub(crate) struct Lister {
    directory: Arc<AsyncDirectory>,
    /// As opendal names it: it ends with a slash.
    name: String,
    path: PathBuf,
    entries: Option<vec::IntoIter<DirEntry>>,
    is_over: bool,
}

impl Lister {
    pub(crate) fn new(directory: Arc<AsyncDirectory>, name: String, path: PathBuf) -> Self {
        Self {
            directory,
            name,
            path,
            entries: None,
            is_over: false,
        }
    }
}

impl oio::List for Lister {
    async fn next(&mut self) -> Result<Option<oio::Entry>> {
        if self.is_over {
            return Ok(None);
        }
        let Some(entries) = &mut self.entries else {
            match self.directory.read_dir(&self.path).await {
                Ok(entries) => self.entries = Some(entries.into_iter()),
                Err(error) if matches!(error.errno(), Errno::ENOENT | Errno::ENOTDIR) => {
                    self.is_over = true;
                    return Ok(None);
                }
                Err(error) => return Err(error::of(error)),
            }
            let itself = MetadataBuilder::dir().build();
            return Ok(Some(oio::Entry::new(&self.name, itself)));
        };
        let root = if self.name == "/" { "" } else { &self.name };
        for entry in entries {
            let name = entry.file_name();
            // opendal has no name for others.
            let Some(name) = name.to_str().filter(|name| !name.ends_with(HIDDEN)) else {
                continue;
            };
            let entry = match entry.file_type().map_err(error::of)? {
                FileKind::Directory => {
                    let metadata = MetadataBuilder::dir().build();
                    oio::Entry::new(&format!("{root}{name}/"), metadata)
                }
                // Asked for by a layer above.
                _ => {
                    let metadata = MetadataBuilder::unknown().build();
                    oio::Entry::new(&format!("{root}{name}"), metadata)
                }
            };
            return Ok(Some(entry));
        }
        self.is_over = true;
        Ok(None)
    }
}
