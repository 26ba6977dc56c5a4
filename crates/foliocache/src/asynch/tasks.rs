//! What workers are asked to do: the blocking calls, on buffers of their own.

use foliocache_mm::{ErrSeqCursor, Iocb};
use foliocache_sync::Arc;
use foliocache_sys::Errno;

use crate::asynch::buffers::Buffer;
use crate::asynch::request::Task;
use crate::file::File;

/// Brings the page of byte `iocb.pos` in, with readahead.
pub(crate) struct Fetch {
    pub(crate) file: Arc<File>,
    pub(crate) iocb: Iocb,
    pub(crate) len: u64,
}

impl Task for Fetch {
    /// With what was brought in noted.
    type Value = Iocb;

    fn run(&mut self) -> Result<Iocb, Errno> {
        self.file.open_file().fetch(&mut self.iocb, self.len)?;
        Ok(self.iocb)
    }
}

/// Reads as much as the buffer has room for.
pub(crate) struct Read {
    pub(crate) file: Arc<File>,
    pub(crate) pos: u64,
    pub(crate) buffer: Option<Buffer>,
}

impl Task for Read {
    type Value = Option<Buffer>;

    fn run(&mut self) -> Result<Option<Buffer>, Errno> {
        let mut buffer = self.buffer.take();
        if let Some(buffer) = &mut buffer {
            buffer.bytes.resize(buffer.room(), 0);
            let n = self.file.open_file().read_at(&mut buffer.bytes, self.pos)?;
            buffer.bytes.truncate(n);
        }
        Ok(buffer)
    }
}

/// Writes the buffer: at `pos`, or at the end.
pub(crate) struct Write {
    pub(crate) file: Arc<File>,
    pub(crate) pos: Option<u64>,
    pub(crate) buffer: Buffer,
}

impl Task for Write {
    /// Where the bytes went and how many.
    type Value = (u64, usize);

    fn run(&mut self) -> Result<(u64, usize), Errno> {
        let open = self.file.open_file();
        match self.pos {
            Some(pos) => Ok((pos, open.write_at(&self.buffer.bytes, pos)?)),
            None => open.append(&self.buffer.bytes),
        }
    }
}

/// Makes the file durable.
pub(crate) struct Sync {
    pub(crate) file: Arc<File>,
    pub(crate) datasync: bool,
}

impl Task for Sync {
    /// The result, and what the handle was told with it once somebody takes it.
    type Value = (Result<(), Errno>, ErrSeqCursor);

    const UNATTENDED: bool = true;

    fn run(&mut self) -> Result<Self::Value, Errno> {
        Ok(self.file.open_file().sync_on_behalf(self.datasync))
    }
}

/// Sets the size.
pub(crate) struct SetLen {
    pub(crate) file: Arc<File>,
    pub(crate) len: u64,
}

impl Task for SetLen {
    type Value = ();

    fn run(&mut self) -> Result<(), Errno> {
        self.file.open_file().set_len(self.len)
    }
}
