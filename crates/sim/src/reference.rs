//! The reference: POSIX file semantics, implemented as simply as possible.

use foliocache_sys::Errno;

use crate::{Image, Operation};

/// A file as it ought to behave. Nothing here is clever; the cache is held against it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReferenceFile {
    image: Image,
}

/// The result of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A read: the bytes.
    Bytes(Vec<u8>),
    /// A write: how many bytes.
    Written(usize),
    /// Anything else that worked.
    Done,
}

impl ReferenceFile {
    /// An empty file.
    pub fn new() -> Self {
        Self::default()
    }

    /// A file that holds `image`.
    pub fn from_image(image: Image) -> Self {
        Self { image }
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.image.size()
    }

    /// The content.
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Reads at most `len` bytes at `pos`; fewer only at the end.
    pub fn read(&self, pos: u64, len: usize) -> Vec<u8> {
        self.image.read_vec(pos, len)
    }

    /// Writes all of `data` at `pos`. A write of no bytes changes nothing, the size neither.
    pub fn write(&mut self, pos: u64, data: &[u8]) -> usize {
        self.image.write(pos, data);
        data.len()
    }

    /// Writes at the end; returns the position.
    pub fn append(&mut self, data: &[u8]) -> u64 {
        let pos = self.size();
        self.image.write(pos, data);
        pos
    }

    /// Sets the size.
    pub fn truncate(&mut self, size: u64) {
        self.image.truncate(size);
    }

    /// Makes bytes zeros; the size stays.
    ///
    /// # Errors
    /// EINVAL for no bytes at all, as fallocate(2) answers.
    pub fn punch_hole(&mut self, pos: u64, len: u64) -> Result<(), Errno> {
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        self.image.punch_hole(pos, len);
        Ok(())
    }

    /// Does one operation of a workload.
    pub fn apply(&mut self, operation: &Operation) -> Answer {
        match *operation {
            Operation::Write { pos, len, fill } => {
                Answer::Written(self.write(pos, &fill.bytes(pos, len)))
            }
            Operation::Append { len, fill } => {
                let data = fill.bytes(self.size(), len);
                self.append(&data);
                Answer::Written(len)
            }
            Operation::Read { pos, len } => Answer::Bytes(self.read(pos, len)),
            Operation::Truncate { size } => {
                self.truncate(size);
                Answer::Done
            }
            Operation::PunchHole { pos, len } => {
                self.image.punch_hole(pos, len);
                Answer::Done
            }
            Operation::Fsync { .. } => Answer::Done,
        }
    }
}

#[cfg(test)]
mod tests {
    use foliocache_sys::Errno;

    use super::{Answer, ReferenceFile};
    use crate::{Fill, Operation};

    #[test]
    fn the_answers_of_posix() {
        let mut file = ReferenceFile::new();
        assert_eq!(file.write(10, &[]), 0);
        assert_eq!(file.size(), 0, "a write of nothing does not grow the file");
        assert_eq!(file.write(3, b"abc"), 3);
        assert_eq!(file.read(0, 100), b"\0\0\0abc");
        assert_eq!(file.read(6, 1), b"");
        assert_eq!(file.read(100, 1), b"");
        assert_eq!(file.append(b"d"), 6);
        file.truncate(4);
        file.truncate(6);
        assert_eq!(file.read(0, 100), b"\0\0\0a\0\0");
        assert_eq!(file.punch_hole(3, 0), Err(Errno::EINVAL));
        assert_eq!(file.punch_hole(3, 1 << 60), Ok(()));
        assert_eq!(file.read(0, 100), [0; 6]);
        let fill = Fill(1);
        let append = Operation::Append { len: 2, fill };
        assert_eq!(file.apply(&append), Answer::Written(2));
        let read = Operation::Read { pos: 5, len: 9 };
        let expected = vec![0, fill.byte(6), fill.byte(7)];
        assert_eq!(file.apply(&read), Answer::Bytes(expected));
    }
}
