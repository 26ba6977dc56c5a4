//! [`Name`]: one component of a path, hashed once.
//!
//! # Model
//!
//! A name is read eight bytes at a time, by the hash and by the comparison alike: its full words, then what
//! is left in a last word that is filled up with zeros. A dentry keeps its name in the same form, so that
//! comparing is a few loads.
//!
//! The hash folds 128-bit products. It begins with the address at which the process was loaded, and the
//! address of the directory is mixed in when the name is looked up ([`Name::hash_in`]).
//!
//! # Invariants
//!
//! 1. `tail` holds the last `len % 8` bytes, the first of them lowest; zero if there are none.
//!
//! # Differences from Linux
//!
//! The hash of a name does not depend on its directory until it is looked up, so a name is hashed once
//! even where it is looked up in several.

use foliocache_mm::MetadataBound;
use foliocache_sync::Arc;
use std::fmt;

/// Odd numbers without a pattern, for the hash.
const MIX: [u64; 2] = [0x9fb2_1c65_1e98_df25, 0xd6e8_feb8_6659_fd93];

/// Its value does not matter, only its address.
static ANCHOR: u8 = 0;

/// A component of a path with its hash. Borrowed: lives as long as the path.
#[derive(Clone, Copy)]
#[doc(alias = "qstr")]
pub struct Name<'a> {
    bytes: &'a [u8],
    /// Invariant 1.
    tail: u64,
    hash: u64,
}

#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Spreads a hash over all bits.
#[inline(always)]
pub(crate) fn mix(hash: u64) -> u64 {
    fold(hash, MIX[0])
}

#[inline(always)]
fn word(chunk: &[u8]) -> u64 {
    // The chunks are of eight bytes, so the default is never used.
    chunk.try_into().map(u64::from_le_bytes).unwrap_or_default()
}

/// The last word of a text, of fewer than eight bytes.
#[inline(always)]
pub(crate) fn tail_word(rest: &[u8]) -> u64 {
    let len = rest.len();
    if let (Some(first), Some(last)) = (rest.first_chunk::<4>(), rest.last_chunk::<4>()) {
        // They overlap, in bytes that are the same.
        let high = u64::from(u32::from_le_bytes(*last)) << (8 * (len - 4));
        u64::from(u32::from_le_bytes(*first)) | high
    } else if len > 0 {
        let at = |i: usize| u64::from(rest[i]) << (8 * i);
        at(0) | at(len / 2) | at(len - 1)
    } else {
        0
    }
}

/// Calls `each` with the words of a text in turn, as long as it returns true. The last word, of fewer bytes, comes from
/// `tail`. Returns whether `each` always returned true.
#[inline(always)]
pub(crate) fn all_words(
    text: &[u8],
    tail: impl FnOnce(&[u8]) -> u64,
    mut each: impl FnMut(usize, u64) -> bool,
) -> bool {
    let (words, rest) = text.as_chunks::<8>();
    for (i, chunk) in words.iter().enumerate() {
        if !each(i, word(chunk)) {
            return false;
        }
    }
    rest.is_empty() || each(words.len(), tail(rest))
}

/// The beginning of a hash: an address that differs from process to process, so that names that collide in
/// all processes are hard to come by. Costs no load.
#[inline(always)]
fn seed() -> u64 {
    match cfg!(any(loom, shuttle)) {
        true => 0,
        false => (&raw const ANCHOR).addr() as u64,
    }
}

/// Which byte of a word, the lowest first, is the first slash; 8 if there is none.
#[inline(always)]
fn first_slash(word: u64) -> usize {
    const ONES: u64 = u64::MAX / 255;
    // A byte is zero where a slash was. The lowest bit that this finds is the first one's; those above may
    // be wrong.
    let zeros = word ^ (ONES * b'/' as u64);
    let found = zeros.wrapping_sub(ONES) & !zeros & (ONES << 7);
    found.trailing_zeros() as usize / 8
}

/// Where the last slash of a path is.
#[inline(always)]
pub(crate) fn last_slash(path: &[u8]) -> Option<usize> {
    let mut rest = path;
    while let Some((before, chunk)) = rest.split_last_chunk::<8>() {
        // The last byte lowest.
        let from_end = first_slash(u64::from_be_bytes(*chunk));
        if from_end < 8 {
            return Some(rest.len() - 1 - from_end);
        }
        rest = before;
    }
    rest.iter().rposition(|&byte| byte == b'/')
}

impl<'a> Name<'a> {
    /// Hashes a component: some nanoseconds for eight bytes each.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        let mut hash = seed();
        let (words, rest) = bytes.as_chunks::<8>();
        for chunk in words {
            hash = fold(hash ^ word(chunk), MIX[0]);
        }
        Self::end(bytes, tail_word(rest), hash)
    }

    /// The part before the first slash of a path, hashed: one pass over its bytes. May be empty.
    #[inline(always)]
    pub fn first_of(path: &'a [u8]) -> Self {
        let mut hash = seed();
        let (words, rest) = path.as_chunks::<8>();
        for (i, chunk) in words.iter().enumerate() {
            let word = word(chunk);
            let slash = first_slash(word);
            if slash < 8 {
                let tail = word & !(u64::MAX << (8 * slash));
                return Self::end(&path[..i * 8 + slash], tail, hash);
            }
            hash = fold(hash ^ word, MIX[0]);
        }
        let word = tail_word(rest);
        let len = first_slash(word).min(rest.len());
        let tail = word & !(u64::MAX << (8 * len));
        Self::end(&path[..words.len() * 8 + len], tail, hash)
    }

    #[inline(always)]
    fn end(bytes: &'a [u8], tail: u64, hash: u64) -> Self {
        Self {
            bytes,
            tail,
            hash: fold(hash ^ tail, MIX[1] ^ bytes.len() as u64),
        }
    }

    /// The bytes.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The hash of this name in the directory at this address.
    #[inline(always)]
    pub(crate) fn hash_in(&self, parent: usize) -> u64 {
        // A model has to take the same way each time, wherever its dentries lie.
        let parent = if cfg!(loom) { 0 } else { parent as u64 };
        mix(self.hash ^ parent)
    }

    /// Calls `each` with the words of the name in turn, the last filled up with zeros, as long as it returns true. Returns
    /// whether it always did.
    #[inline(always)]
    pub(super) fn all_words(&self, each: impl FnMut(usize, u64) -> bool) -> bool {
        all_words(self.bytes, |_| self.tail, each)
    }
}

impl PartialEq for Name<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && self.bytes == other.bytes
    }
}

impl Eq for Name<'_> {}

impl fmt::Debug for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(self.bytes))
    }
}

/// A name beyond the inline ones.
pub(super) struct LongName {
    pub(super) bytes: Box<[u8]>,
    /// The charge, and the bound that has it.
    pub(super) charged: u64,
    pub(super) bound: Arc<dyn MetadataBound>,
}

impl Drop for LongName {
    fn drop(&mut self) {
        self.bound.uncharge(self.charged);
    }
}

/// A name made ready to be put into a dentry.
pub(super) struct NewName<'a> {
    pub(super) name: Name<'a>,
    /// For a name that is not inline.
    pub(super) long: Option<Box<LongName>>,
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn words_hold_every_byte() {
        let text: Vec<u8> = (1..=40).collect();
        for len in 0..=text.len() {
            let mut bytes = Vec::new();
            assert!(Name::new(&text[..len]).all_words(|i, word| {
                assert_eq!(i * 8, bytes.len());
                bytes.extend(word.to_le_bytes());
                true
            }));
            assert_eq!(bytes.len(), len.next_multiple_of(8));
            assert_eq!(bytes[..len], text[..len]);
            assert!(bytes[len..].iter().all(|&byte| byte == 0));
        }
        assert!(!Name::new(b"abcdefghi").all_words(|i, _| i == 0));
    }

    #[test]
    fn the_first_component_ends_before_the_first_slash() {
        let text: Vec<u8> = (1..=40).filter(|&byte| byte != b'/').collect();
        for len in 0..=24 {
            let name = &text[..len];
            assert_eq!(Name::first_of(name), Name::new(name), "{len}");
            for more in 0..=17 {
                let path = [name, b"/", &text[..more]].concat();
                let first = Name::first_of(&path);
                assert_eq!((first, first.tail), (Name::new(name), Name::new(name).tail));
                let twice = [name, b"//", &text[..more], b"/"].concat();
                assert_eq!(Name::first_of(&twice), Name::new(name));
            }
        }
        // A byte next to a slash in value, and above it in place.
        assert_eq!(Name::first_of(b"a/0.\x2e\x30/").bytes(), b"a");
    }

    #[test]
    fn the_last_slash_is_the_last() {
        // A byte next to a slash in value might be taken for one.
        for fill in [b'a', b'.', b'0', 0xff, 0] {
            for len in 0..40 {
                let mut path = vec![fill; len];
                assert_eq!(last_slash(&path), None);
                for at in 0..len {
                    path[at] = b'/';
                    assert_eq!(last_slash(&path), Some(at), "{fill} {len}");
                    path[at / 2] = b'/';
                    assert_eq!(last_slash(&path), Some(at), "{fill} {len}");
                    path[at / 2] = fill;
                    path[at] = fill;
                }
            }
        }
    }

    #[test]
    fn similar_names_have_different_hashes() {
        let mut seen = HashSet::new();
        let mut low = HashSet::new();
        for i in 0..100_000 {
            let name = format!("file{i:06}");
            let hash = Name::new(name.as_bytes()).hash_in(0x7000_0000_1000);
            assert!(seen.insert(hash), "{name}");
            low.insert(hash & 0xffff);
        }
        assert!(low.len() > 50_000, "low bits repeat: {}", low.len());
        // Zeros that fill up the last word are not part of the name.
        assert_ne!(Name::new(b"a"), Name::new(b"a\0"));
        assert_ne!(Name::new(b"a").hash, Name::new(b"a\0").hash);
        assert_eq!(Name::new(b"same"), Name::new(b"same"));
    }
}
