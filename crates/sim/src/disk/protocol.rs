//! The protocol between a test and the process that serves its disks: a request is one line of
//! JSON, and so is a reply.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use foliocache_sys::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::log::Unflushed;
use crate::{Rule, RuleId};

/// The number of a disk among those of one process.
pub(super) type DiskId = u32;

/// The number of an image among those of one process.
pub(super) type ImageId = u64;

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Serves a disk of `size` bytes as the file `disk` in `folder`; answers with its number.
    Create {
        folder: PathBuf,
        size: u64,
        seed: u64,
        base: Base,
    },
    /// Ends a disk.
    End(DiskId),
    /// Replaces the content; the log begins anew.
    Load(DiskId, Base),
    /// Makes an image and answers with its number.
    Cut(DiskId, u64, Unflushed),
    /// Frees an image.
    Free(ImageId),
    /// Answers with bytes of an image.
    ReadImage(ImageId, u64, usize),
    Position(DiskId),
    Flushes(DiskId),
    Since(DiskId, u64),
    Trim(DiskId, u64),
    AddRule(DiskId, Rule),
    RemoveRule(DiskId, RuleId),
    Fired(DiskId, RuleId),
    Heal(DiskId),
    Release(DiskId, Option<i32>),
    Counts(DiskId),
    Trace(DiskId, usize),
}

/// The first content of a disk.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Base {
    Zeros,
    /// A sparse file.
    File(PathBuf),
    Image(ImageId),
}

/// One side of the conversation.
#[derive(Debug)]
pub(super) struct Wire {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
}

impl Wire {
    pub(super) fn new(stream: UnixStream) -> io::Result<Wire> {
        Ok(Wire {
            writer: stream.try_clone()?,
            reader: BufReader::new(stream),
        })
    }

    pub(super) fn send(&mut self, message: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.writer.write_all(&line)
    }

    /// The next message; `None` at the end of the conversation.
    pub(super) fn receive<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        Ok(Some(serde_json::from_str(&line)?))
    }
}

/// An [`Errno`] as its number.
pub(crate) mod errno {
    use super::{Deserialize, Errno};

    pub(crate) fn serialize<S: serde::Serializer>(errno: &Errno, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_i32(errno.raw())
    }

    pub(crate) fn deserialize<'de, D: serde::Deserializer<'de>>(
        from: D,
    ) -> Result<Errno, D::Error> {
        i32::deserialize(from).map(Errno::from_raw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Effect, Lost, OpSet, When};

    #[test]
    fn requests_arrive_as_they_were_sent() {
        let (here, there) = UnixStream::pair().expect("a pair");
        let (mut here, mut there) = (
            Wire::new(here).expect("wire"),
            Wire::new(there).expect("wire"),
        );
        let effect = Effect::Lose(Errno::ENOSPC, Lost::Data);
        let rule = Rule::new(OpSet::FLUSH | OpSet::WRITE, effect).when(When::Nth(3));
        here.send(&Request::AddRule(7, rule)).expect("send");
        let found: Request = there.receive().expect("receive").expect("a request");
        let shown = format!("{found:?}");
        assert!(
            shown.contains("Lose(ENOSPC, Data)") && shown.contains("Nth(3)"),
            "{shown}"
        );
        drop(here);
        assert!(there.receive::<Request>().expect("the end").is_none());
    }
}
