//! A file that is being written.

use foliocache::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use tantivy::directory::{AntiCallToken, TerminatingWrite};

use crate::directory::Shared;
use crate::error::io_error;

/// Writes a new file, and makes its data durable at the end.
pub(crate) struct Writer {
    file: File,
    pos: u64,
    path: PathBuf,
    shared: Arc<Shared>,
}

impl Writer {
    /// The caller has announced the writer to `shared`.
    pub(crate) fn new(file: File, path: PathBuf, shared: &Arc<Shared>) -> Self {
        Self {
            file,
            pos: 0,
            path,
            shared: Arc::clone(shared),
        }
    }
}

impl io::Write for Writer {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let written = self.file.write_at(buf, self.pos).map_err(io_error)?;
        self.pos += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl TerminatingWrite for Writer {
    fn terminate_ref(&mut self, _: AntiCallToken) -> io::Result<()> {
        self.file.sync_data().map_err(io_error)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.written(&self.path);
    }
}
