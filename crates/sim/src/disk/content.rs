//! The bytes of a disk: blocks that images share until one of them changes.
//!
//! # Model
//!
//! A map from block number to a shared block of 4 KiB. A block that is not there is zeros. A clone costs a
//! reference a block, so an image for each of a thousand power cuts is cheap.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Bytes of a block.
const BLOCK: u64 = 4096;

type Block = [u8; BLOCK as usize];

/// The content of a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Content {
    blocks: BTreeMap<u64, Arc<Block>>,
}

/// The pieces of a range that lie in one block each: (block, offset in it, offset in the range, length).
fn pieces(pos: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        (done < len).then(|| {
            let at = pos + done as u64;
            let inside = (at % BLOCK) as usize;
            let take = (BLOCK as usize - inside).min(len - done);
            let piece = (at / BLOCK, inside, done, take);
            done += take;
            piece
        })
    })
}

impl Content {
    /// The content of a sparse file.
    pub(super) fn load(file: &File) -> io::Result<Content> {
        let size = file.metadata()?.len();
        let mut content = Content::default();
        let mut bytes = vec![0; 1 << 20];
        let mut pos = 0;
        while pos < size {
            match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(pos)) {
                Ok(data) => pos = data / BLOCK * BLOCK,
                // No data from here on.
                Err(rustix::io::Errno::NXIO) => break,
                Err(error) => return Err(error.into()),
            }
            let len = (size - pos).min(bytes.len() as u64) as usize;
            file.read_exact_at(&mut bytes[..len], pos)?;
            for (at, block) in bytes[..len].chunks(BLOCK as usize).enumerate() {
                if block.iter().any(|&byte| byte != 0) {
                    content.write(pos + at as u64 * BLOCK, block);
                }
            }
            pos += len as u64;
        }
        Ok(content)
    }

    pub(super) fn read(&self, pos: u64, bytes: &mut [u8]) {
        for (number, inside, at, len) in pieces(pos, bytes.len()) {
            let part = &mut bytes[at..at + len];
            match self.blocks.get(&number) {
                Some(block) => part.copy_from_slice(&block[inside..inside + len]),
                None => part.fill(0),
            }
        }
    }

    pub(super) fn write(&mut self, pos: u64, bytes: &[u8]) {
        for (number, inside, at, len) in pieces(pos, bytes.len()) {
            let block = self
                .blocks
                .entry(number)
                .or_insert_with(|| Arc::new([0; _]));
            Arc::make_mut(block)[inside..inside + len].copy_from_slice(&bytes[at..at + len]);
        }
    }

    pub(super) fn zero(&mut self, pos: u64, len: u64) {
        let end = pos + len;
        let (first, last) = (pos.div_ceil(BLOCK), end / BLOCK);
        if first >= last {
            return self.write(pos, &vec![0; len as usize]);
        }
        self.write(pos, &vec![0; (first * BLOCK - pos) as usize]);
        self.write(last * BLOCK, &vec![0; (end - last * BLOCK) as usize]);
        let gone: Vec<u64> = self.blocks.range(first..last).map(|(&n, _)| n).collect();
        for number in gone {
            self.blocks.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_where_they_were_written() {
        let mut content = Content::default();
        content.write(4000, &[1; 9000]);
        content.zero(5000, 5000);
        let mut bytes = vec![9; 14000];
        content.read(0, &mut bytes);
        let expected = [vec![0; 4000], vec![1; 1000], vec![0; 5000], vec![1; 3000]].concat();
        assert_eq!(bytes[..13000], expected);
        assert_eq!(bytes[13000..], [0; 1000]);
        content.zero(10001, 3);
        content.read(10000, &mut bytes[..5]);
        assert_eq!(bytes[..5], [1, 0, 0, 0, 1]);
    }

    #[test]
    fn a_clone_keeps_its_bytes() {
        let mut content = Content::default();
        content.write(0, &[1; 4096]);
        let old = content.clone();
        content.write(5, &[2]);
        let mut bytes = [0; 10];
        old.read(0, &mut bytes);
        assert_eq!(bytes, [1; 10]);
    }

    #[test]
    fn a_sparse_file_is_loaded() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(10 << 20).expect("sparse");
        file.write_all_at(&[7; 100], (5 << 20) + 17).expect("write");
        let content = Content::load(&file).expect("load");
        let mut expected = Content::default();
        expected.write((5 << 20) + 17, &[7; 100]);
        assert_eq!(content, expected);
    }
}
