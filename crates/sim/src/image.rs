//! The content of one file as a sparse map of pages: naive, and the definition of correctness.
//!
//! # Model
//!
//! A size and the pages that are not all zeros. All other bytes up to the size read as zeros. There
//! is nothing past the size, not even inside the last page, so a grown file shows zeros without
//! being cleared.
//!
//! # Invariants
//!
//! 1. Every byte of a stored page at or past the size is zero, and no page starts at or past it.

use std::collections::BTreeMap;

/// Bytes of a page of the map.
const PAGE: u64 = 4096;

/// The content of one file.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Image {
    /// Pages by index; invariant 1.
    pages: BTreeMap<u64, Box<[u8; PAGE as usize]>>,
    size: u64,
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Image")
            .field("size", &self.size)
            .field("pages", &self.pages.len())
            .finish()
    }
}

/// The pieces of `pos..pos + len` that each lie in one page: (page index, offset in it, length).
fn pieces(pos: u64, len: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = pos.saturating_add(len);
    let mut at = pos;
    std::iter::from_fn(move || {
        (at < end).then(|| {
            let offset = at % PAGE;
            let take = (PAGE - offset).min(end - at);
            let piece = (at / PAGE, offset as usize, take as usize);
            at += take;
            piece
        })
    })
}

impl Image {
    /// An empty file.
    pub fn new() -> Self {
        Self::default()
    }

    /// Size of the file in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Pages that hold memory: at most those that were written and not removed since.
    pub fn resident_pages(&self) -> usize {
        self.pages.len()
    }

    /// Copies the bytes from `pos` on into `buf` as far as the file goes, and says how far.
    pub fn read(&self, pos: u64, buf: &mut [u8]) -> usize {
        let len = (buf.len() as u64).min(self.size.saturating_sub(pos));
        let mut done = 0;
        for (index, offset, take) in pieces(pos, len) {
            let to = &mut buf[done..done + take];
            match self.pages.get(&index) {
                Some(page) => to.copy_from_slice(&page[offset..offset + take]),
                None => to.fill(0),
            }
            done += take;
        }
        done
    }

    /// As [`Image::read`], into a vector of at most `len` bytes.
    pub fn read_vec(&self, pos: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; (len as u64).min(self.size.saturating_sub(pos)) as usize];
        let read = self.read(pos, &mut bytes);
        debug_assert_eq!(read, bytes.len());
        bytes
    }

    /// Puts `data` at `pos`, growing the file as needed.
    pub fn write(&mut self, pos: u64, data: &[u8]) {
        self.write_inside(pos, data);
        if !data.is_empty() {
            self.size = self.size.max(pos + data.len() as u64);
        }
    }

    /// Stores bytes without looking at the size; the caller keeps invariant 1.
    fn write_inside(&mut self, pos: u64, data: &[u8]) {
        let mut done = 0;
        for (index, offset, take) in pieces(pos, data.len() as u64) {
            let page = self
                .pages
                .entry(index)
                .or_insert_with(|| Box::new([0; PAGE as usize]));
            page[offset..offset + take].copy_from_slice(&data[done..done + take]);
            done += take;
        }
    }

    /// Sets the size; a longer file is extended by zeros.
    pub fn truncate(&mut self, size: u64) {
        if size < self.size {
            let _ = self.pages.split_off(&size.div_ceil(PAGE));
            if let Some(page) = self.pages.get_mut(&(size / PAGE)) {
                page[(size % PAGE) as usize..].fill(0);
            }
        }
        self.size = size;
    }

    /// Makes `len` bytes at `pos` zeros; the size stays.
    pub fn punch_hole(&mut self, pos: u64, len: u64) {
        let end = pos.saturating_add(len).min(self.size);
        if pos >= end {
            return;
        }
        let (first, last) = (pos / PAGE, (end - 1) / PAGE);
        let indices: Vec<u64> = self.pages.range(first..=last).map(|(&i, _)| i).collect();
        for index in indices {
            let start = index * PAGE;
            let (from, to) = (pos.max(start) - start, end.min(start + PAGE) - start);
            // Bytes past the size are zero (invariant 1), so a page that is punched up to the size
            // is empty.
            if from == 0 && (to == PAGE || start + to == self.size) {
                self.pages.remove(&index);
            } else if let Some(page) = self.pages.get_mut(&index) {
                page[from as usize..to as usize].fill(0);
            }
        }
    }

    /// The first byte at which the two files differ, sizes included.
    pub fn first_difference(&self, other: &Image) -> Option<u64> {
        let zeros = [0; PAGE as usize];
        let mut indices: Vec<u64> = self
            .pages
            .keys()
            .chain(other.pages.keys())
            .copied()
            .collect();
        indices.sort_unstable();
        indices.dedup();
        let common = self.size.min(other.size);
        for index in indices {
            let page = |image: &Image| image.pages.get(&index).map_or(zeros, |page| **page);
            let (ours, theirs) = (page(self), page(other));
            if let Some(offset) = (0..PAGE as usize).find(|&i| ours[i] != theirs[i]) {
                return Some((index * PAGE + offset as u64).min(common));
            }
        }
        (self.size != other.size).then_some(common)
    }
}

#[cfg(test)]
mod tests {
    use super::Image;
    use crate::Rng;

    /// The image against a plain vector of bytes.
    #[test]
    fn agrees_with_a_vector() {
        for seed in 0..40 {
            let mut rng = Rng::new(seed);
            let mut image = Image::new();
            let mut vector: Vec<u8> = Vec::new();
            for step in 0..300 {
                let pos = rng.below(20_000);
                let len = rng.below(9_000);
                match rng.below(4) {
                    0 => {
                        let data: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
                        image.write(pos, &data);
                        let end = pos as usize + data.len();
                        if !data.is_empty() {
                            vector.resize(vector.len().max(end), 0);
                            vector[pos as usize..end].copy_from_slice(&data);
                        }
                    }
                    1 => {
                        image.truncate(pos);
                        vector.resize(pos as usize, 0);
                    }
                    2 => {
                        image.punch_hole(pos, len);
                        let end = (pos + len).min(vector.len() as u64);
                        if pos < end {
                            vector[pos as usize..end as usize].fill(0);
                        }
                    }
                    _ => {
                        let from = (pos as usize).min(vector.len());
                        let to = ((pos + len) as usize).clamp(from, vector.len());
                        assert_eq!(image.read_vec(pos, len as usize), vector[from..to]);
                    }
                }
                assert_eq!(image.size(), vector.len() as u64, "seed {seed} step {step}");
            }
            assert_eq!(image.read_vec(0, 1 << 20), vector);
        }
    }

    #[test]
    fn holes_hold_no_memory() {
        let mut image = Image::new();
        image.write(1 << 40, b"far away");
        assert_eq!((image.size(), image.resident_pages()), ((1 << 40) + 8, 1));
        image.punch_hole(0, 1 << 41);
        assert_eq!((image.size(), image.resident_pages()), ((1 << 40) + 8, 0));
    }

    #[test]
    fn differences_are_found() {
        let mut a = Image::new();
        let mut b = Image::new();
        assert_eq!(a.first_difference(&b), None);
        a.write(5000, &[0; 10]);
        b.truncate(5010);
        assert_eq!(a.first_difference(&b), None, "zeros written are zeros");
        b.write(5009, &[1]);
        assert_eq!(a.first_difference(&b), Some(5009));
        a.truncate(4000);
        assert_eq!(a.first_difference(&b), Some(4000));
    }
}
