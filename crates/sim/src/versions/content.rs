//! Content that names its file, version and length in each block.
//!
//! # Model
//!
//! A version is made of blocks of 512 bytes, the last one cut. A block begins with a head: file, version, block
//! number, total length. The rest is one repeated word that follows from those. So mixed versions, zeros, a short
//! file and bytes of another file can be distinguished. A log is a sequence of short versions, its *records*.

use std::fmt::Write;
use std::ops::{Range, RangeInclusive};

use crate::scramble;

/// Bytes of a block.
pub const BLOCK: usize = 512;

/// Bytes of a head.
const HEAD: usize = 32;

/// Begins each block.
const MAGIC: u64 = 0xf011_0cac_4e5e_ed00;

/// How long the versions of a file are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// 64 bytes to 300 KB.
    Any,
    /// A record: 64 to 1,600 bytes.
    Record,
}

/// A file whose versions are made and judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// Its number.
    pub file: u64,
    /// The length of its versions.
    pub size: Size,
}

impl Content {
    /// The length of a version in bytes.
    pub fn len(self, version: u64) -> usize {
        let draw = scramble(version ^ self.file << 48) as usize;
        let within = |bytes: usize| 64 + (draw >> 8) % bytes;
        match (self.size, draw % 8) {
            (Size::Record, _) => within(1_536),
            (Size::Any, 0) => within(4_000),
            (Size::Any, 1..=5) => within(100_000),
            (Size::Any, _) => within(300_000),
        }
    }

    /// The bytes of a version.
    pub fn bytes(self, version: u64) -> Vec<u8> {
        let len = self.len(version);
        let mut bytes = Vec::with_capacity(len + BLOCK);
        for number in 0..len.div_ceil(BLOCK) as u64 {
            let head = [MAGIC ^ self.file, version, number, len as u64];
            let word = head.iter().fold(0, |word, part| scramble(word ^ part));
            bytes.extend(head.iter().flat_map(|part| part.to_le_bytes()));
            bytes.extend(word.to_le_bytes().repeat((BLOCK - HEAD) / 8));
        }
        bytes.truncate(len);
        bytes
    }

    /// The version in the head of the block, and the number of the block.
    fn head(self, block: &[u8]) -> Option<(u64, u64)> {
        let mut words = block.get(..HEAD)?.chunks_exact(8).map(|word| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(word);
            u64::from_le_bytes(bytes)
        });
        let is_ours = words.next()? == MAGIC ^ self.file;
        let (version, number, len) = (words.next()?, words.next()?, words.next()?);
        (is_ours && len == self.len(version) as u64).then_some((version, number))
    }

    /// The version that the first block of a file is of.
    pub fn version(self, block: &[u8]) -> Option<u64> {
        let (version, number) = self.head(block)?;
        (number == 0).then_some(version)
    }

    /// The version that `found` is, whole.
    ///
    /// # Errors
    /// A description of the bytes, if they are something else.
    pub fn whole(self, found: &[u8]) -> Result<u64, String> {
        match self.head(found) {
            Some((version, 0)) if found == self.bytes(version) => Ok(version),
            _ => Err(self.describe(found)),
        }
    }

    /// The version that `found` is the beginning of: so an inode that has one version is seen while it is written. None, if
    /// `found` is empty.
    ///
    /// # Errors
    /// A description of the bytes, if they are something else.
    pub fn beginning(
        self,
        found: &[u8],
        versions: RangeInclusive<u64>,
    ) -> Result<Option<u64>, String> {
        if found.is_empty() {
            return Ok(None);
        }
        let mut versions = versions.rev();
        let version = versions.find(|&version| self.bytes(version).starts_with(found));
        version.map(Some).ok_or_else(|| self.describe(found))
    }

    /// Whether each byte of `found` is at its place in one of `versions`: so a file is seen that is written over meanwhile. A
    /// mixture may change anywhere: the file may have ended there, or a read, or a copy may have met the other one. Bytes may be
    /// zero too, if `zeros`.
    ///
    /// # Errors
    /// A description of `found`, if it contains anything else.
    pub fn mixture(
        self,
        found: &[u8],
        versions: RangeInclusive<u64>,
        zeros: bool,
    ) -> Result<(), String> {
        let mut unknown: Vec<usize> = (0..found.len()).collect();
        unknown.retain(|&at| !zeros || found[at] != 0);
        for version in versions.rev() {
            if unknown.is_empty() {
                break;
            }
            let bytes = self.bytes(version);
            unknown.retain(|&at| bytes.get(at) != Some(&found[at]));
        }
        match unknown.first() {
            None => Ok(()),
            Some(at) => Err(format!(
                "{} from {at}: {}",
                unknown.len(),
                self.describe(found)
            )),
        }
    }

    /// The records at the beginning of `found`, and how many bytes they take.
    pub fn records(self, found: &[u8]) -> (Range<u64>, usize) {
        let first = self.head(found).map_or(0, |(version, _)| version);
        let (mut next, mut at) = (first, 0);
        while self.head(&found[at..]) == Some((next, 0)) {
            let record = self.bytes(next);
            if !found[at..].starts_with(&record) {
                break;
            }
            (next, at) = (next + 1, at + record.len());
        }
        (first..next, at)
    }

    /// A description of `found`, run by run.
    pub fn describe(self, found: &[u8]) -> String {
        let kind = |block: &[u8]| match self.head(block) {
            Some((version, number)) => {
                let start = number as usize * BLOCK;
                let wanted = self.bytes(version);
                match wanted.get(start..start + block.len()) == Some(block) {
                    true => format!("version {version} of {} bytes", wanted.len()),
                    false => format!("version {version}, torn"),
                }
            }
            None if block.iter().all(|&byte| byte == 0) => "zeros".to_owned(),
            None => "other bytes".to_owned(),
        };
        let mut text = format!("{} bytes", found.len());
        let mut last = String::new();
        for (number, block) in found.chunks(BLOCK).enumerate() {
            let kind = kind(block);
            if kind != last {
                let _ = write!(text, "; from {}: {kind}", number * BLOCK);
                last = kind;
            }
            if text.len() > 400 {
                text.push_str("; ...");
                break;
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::{BLOCK, Content, Size};

    const FILE: Content = Content {
        file: 3,
        size: Size::Any,
    };

    /// Two versions of some blocks, the second one longer.
    fn versions() -> (u64, u64) {
        let long = |version: &u64| FILE.len(*version) > 8 * BLOCK;
        let a = (1..).find(long).expect("a version");
        let longer = |version: &u64| FILE.len(*version) > FILE.len(a) + BLOCK;
        (a, (a + 1..).find(longer).expect("a version"))
    }

    #[test]
    fn a_whole_version_is_told_from_anything_else() {
        let (a, b) = versions();
        let (bytes, other) = (FILE.bytes(a), FILE.bytes(b));
        assert_eq!(FILE.whole(&bytes), Ok(a));
        let another = Content { file: 4, ..FILE };
        assert!(another.whole(&bytes).is_err(), "another file");
        for (found, told) in [
            (vec![], "0 bytes"),
            (vec![0; bytes.len()], "from 0: zeros"),
            (bytes[..BLOCK].to_vec(), "512 bytes; from 0: version "),
            (
                [&bytes[..BLOCK], &other[BLOCK..]].concat(),
                "; from 512: version ",
            ),
            ([&bytes[..], &[0; 9]].concat(), "torn"),
            (
                [&bytes[..BLOCK], &vec![0; bytes.len() - BLOCK]].concat(),
                "; from 512: zeros",
            ),
            ([&bytes[..BLOCK], &bytes[2 * BLOCK..]].concat(), "; "),
        ] {
            let error = FILE.whole(&found).expect_err(told);
            assert!(error.contains(told), "{told}: {error}");
        }
    }

    #[test]
    fn a_beginning_is_of_one_version() {
        let (a, b) = versions();
        let (bytes, other) = (FILE.bytes(a), FILE.bytes(b));
        assert_eq!(FILE.beginning(&[], a..=b), Ok(None));
        assert_eq!(FILE.beginning(&bytes, a..=b), Ok(Some(a)));
        assert_eq!(FILE.beginning(&bytes[..BLOCK + 7], a..=b), Ok(Some(a)));
        assert_eq!(FILE.beginning(&other, a..=b), Ok(Some(b)));
        assert!(FILE.beginning(&other, a..=b - 1).is_err(), "not begun");
        assert!(FILE.beginning(&bytes[BLOCK..], a..=b).is_err());
        let mixed = [&bytes[..BLOCK], &other[BLOCK..]].concat();
        assert!(FILE.beginning(&mixed, a..=b).is_err());
    }

    #[test]
    fn a_mixture_is_told_from_zeros_and_other_places() {
        let (a, b) = versions();
        let (bytes, other) = (FILE.bytes(a), FILE.bytes(b));
        let mixture = |found: &[u8]| FILE.mixture(found, a..=b, false);
        for cut in [0, 7, BLOCK, BLOCK + 9, bytes.len()] {
            assert_eq!(mixture(&bytes[..cut]), Ok(()));
            // The old file ended, or a read of it, and the next read found the new one.
            assert_eq!(mixture(&[&bytes[..cut], &other[cut..]].concat()), Ok(()));
        }
        assert!(FILE.mixture(&other, a..=b - 1, true).is_err(), "not begun");
        assert!(mixture(&bytes[BLOCK..]).is_err());
        assert!(mixture(&[&bytes[..], &[0; 64]].concat()).is_err());
        let hole = [&bytes[..BLOCK], &[0; BLOCK][..], &bytes[2 * BLOCK..]].concat();
        assert!(mixture(&hole).is_err());
        assert_eq!(FILE.mixture(&hole, a..=b, true), Ok(()));
    }

    #[test]
    fn records_are_counted_up_to_the_first_that_is_not_whole() {
        let log = Content {
            file: 1,
            size: Size::Record,
        };
        let mut bytes: Vec<u8> = (5..9).flat_map(|record| log.bytes(record)).collect();
        assert_eq!(log.records(&bytes), (5..9, bytes.len()));
        let whole = bytes.len();
        bytes.extend(&log.bytes(9)[..40]);
        assert_eq!(log.records(&bytes), (5..9, whole));
        bytes.truncate(whole);
        bytes.extend(log.bytes(10));
        assert_eq!(log.records(&bytes), (5..9, whole), "one is left out");
        assert_eq!(log.records(&[]), (0..0, 0));
    }
}
