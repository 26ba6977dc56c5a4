//! Reads at a position.

use bytes::Bytes;
use foliocache::{AsyncDirectory, AsyncFile};
use opendal::raw::oio;
use opendal::{Buffer, Error, ErrorKind, Result};
use std::path::PathBuf;
use std::sync::Arc;

use crate::error;

/// A file that is opened at its first read.
pub(crate) struct Reader {
    pub(crate) directory: Arc<AsyncDirectory>,
    pub(crate) path: PathBuf,
}

impl oio::PositionRead for Reader {
    type Handle = AsyncFile;

    async fn open(&self) -> Result<AsyncFile> {
        let file = self.directory.open(&self.path).await.map_err(error::of)?;
        let metadata = file.metadata().await.map_err(error::of)?;
        match metadata.is_dir() {
            true => Err(Error::new(ErrorKind::IsADirectory, "it is a directory")),
            false => Ok(file),
        }
    }

    /// A view for each folio, none of them a copy while views have their share of the memory.
    async fn read_at(file: &AsyncFile, offset: u64, size: usize) -> Result<Buffer> {
        let (mut pieces, mut at) = (Vec::new(), offset);
        let end = offset.saturating_add(size as u64);
        while at < end {
            let view = file.view(at..end).await.map_err(error::of)?;
            if view.is_empty() {
                break;
            }
            at += view.len() as u64;
            pieces.push(Bytes::from_owner(view));
        }
        Ok(Buffer::from(pieces))
    }
}
