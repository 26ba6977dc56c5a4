//! A storage medium with a volatile cache: the contents that reads see, and those that a power cut
//! leaves.
//!
//! # Model
//!
//! ```text
//!  write, truncate, punch ──▶ live (what reads see)
//!                      └────▶ log ── flush ──▶ durable
//!                              └─ power cut ─▶ some of it on top of durable
//! ```
//!
//! The medium may lose much in a cut, since fsync must survive that: each unflushed write lands or
//! not, whole or by sectors of 512 bytes, in any order; its growth of the size lands or not
//! independently. Truncations and holes are metadata: they land in order, and a write lands only if
//! every truncation and hole before it did (a journaling file system gives its new blocks to the
//! file no earlier).
//!
//! # Invariants
//!
//! 1. `live` is `durable` with the whole log applied, except for data that a lost flush removed
//!    from below it (see [`Lost`]).

use crate::{Image, Rng};

/// The unit that a medium writes whole or not at all, in bytes.
pub const SECTOR: u64 = 512;

/// A change that is not durable yet.
#[derive(Clone, Debug)]
enum Change {
    /// Whole sectors, and the end of the written bytes, to which the size grows.
    Write {
        pos: u64,
        data: Box<[u8]>,
        end: u64,
    },
    Truncate {
        size: u64,
    },
    PunchHole {
        pos: u64,
        len: u64,
    },
}

impl Change {
    fn apply(&self, image: &mut Image) {
        match self {
            Change::Write { pos, data, end } => {
                let size = image.size().max(*end);
                let len = (data.len() as u64).min(size.saturating_sub(*pos));
                image.write(*pos, &data[..len as usize]);
                image.truncate(size);
            }
            Change::Truncate { size } => image.truncate(*size),
            Change::PunchHole { pos, len } => image.punch_hole(*pos, *len),
        }
    }

    fn is_data(&self) -> bool {
        matches!(self, Change::Write { .. })
    }
}

/// The effect of a failed flush on the writes that it was to make durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "disk", derive(serde::Serialize, serde::Deserialize))]
pub enum Lost {
    /// Nothing is lost: a later flush makes them durable.
    Nothing,
    /// Written data is forgotten: reads still see it, but no later flush makes it durable. Linux
    /// file systems do this after a failed writeback that marked the pages clean.
    Data,
    /// Written data is forgotten and reads see the old content again, as after the kernel evicted
    /// pages that it had wrongly marked clean. The only copy is then the cache's.
    DataAndLive,
    /// As [`Lost::DataAndLive`], and truncations and holes are undone too.
    Everything,
}

/// A file on a medium with a volatile cache.
#[derive(Clone, Debug, Default)]
pub struct Medium {
    live: Image,
    durable: Image,
    log: Vec<Change>,
}

/// The pieces of a write that land whole or not at all: (offset in the data, length).
fn sectors(pos: u64, len: u64) -> impl Iterator<Item = (usize, usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        (at < len).then(|| {
            let take = (SECTOR - (pos + at) % SECTOR).min(len - at);
            let piece = (at as usize, take as usize);
            at += take;
            piece
        })
    })
}

impl Medium {
    /// A medium that holds `image`, durably.
    pub fn new(image: Image) -> Self {
        Self {
            live: image.clone(),
            durable: image,
            log: Vec::new(),
        }
    }

    /// The contents that reads see.
    pub fn live(&self) -> &Image {
        &self.live
    }

    /// The contents that survive every power cut.
    pub fn durable(&self) -> &Image {
        &self.durable
    }

    /// Changes that no flush has made durable yet.
    pub fn unflushed(&self) -> usize {
        self.log.len()
    }

    /// Puts `data` at `pos`, not yet durably. Sectors that it covers in part keep their other
    /// bytes, as in the layers above a disk.
    pub fn write(&mut self, pos: u64, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let end = pos + data.len() as u64;
        let start = pos / SECTOR * SECTOR;
        let mut whole = vec![0; (end.next_multiple_of(SECTOR) - start) as usize];
        self.live.read(start, &mut whole);
        whole[(pos - start) as usize..(end - start) as usize].copy_from_slice(data);
        self.change(Change::Write {
            pos: start,
            data: whole.into(),
            end,
        });
    }

    /// Puts a seeded choice of the sectors of `data` at `pos`: a write torn by an error. The other
    /// bytes are unchanged.
    pub fn write_torn(&mut self, pos: u64, data: &[u8], rng: &mut Rng) {
        for (offset, len) in sectors(pos, data.len() as u64) {
            if rng.one_in(1, 2) {
                self.write(pos + offset as u64, &data[offset..offset + len]);
            }
        }
    }

    /// Sets the size, not yet durably.
    pub fn truncate(&mut self, size: u64) {
        self.change(Change::Truncate { size });
    }

    /// Makes bytes zeros, not yet durably.
    pub fn punch_hole(&mut self, pos: u64, len: u64) {
        self.change(Change::PunchHole { pos, len });
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.live);
        self.log.push(change);
    }

    /// Makes the first `changes` unflushed changes durable.
    pub fn flush(&mut self, changes: usize) {
        for change in self.log.drain(..changes) {
            change.apply(&mut self.durable);
        }
    }

    /// Fails to make the first `changes` unflushed changes durable.
    pub fn lose(&mut self, changes: usize, lost: Lost) {
        if lost == Lost::Nothing {
            return;
        }
        let mut at = 0;
        self.log.retain(|change| {
            at += 1;
            at > changes || (lost != Lost::Everything && !change.is_data())
        });
        if lost != Lost::Data {
            self.live = self.durable.clone();
            for change in &self.log {
                change.apply(&mut self.live);
            }
        }
    }

    /// A file that a power cut at this moment might leave; `seed` chooses which.
    pub fn power_cut(&self, seed: u64) -> Image {
        let mut rng = Rng::new(seed);
        let (data, torn, growth) = match rng.below(8) {
            0 => return self.durable.clone(),
            1 => (8, 0, 8),
            2 => (0, 0, 8),
            3 => (8, 0, 0),
            _ => (rng.between(1, 7), rng.below(9), rng.between(0, 8)),
        };
        let reached = if rng.one_in(1, 2) {
            self.log.len()
        } else {
            rng.between(0, self.log.len() as u64) as usize
        };
        // Beyond the first truncation or hole that did not make it, no write does.
        let stop = (reached..self.log.len())
            .find(|&i| !self.log[i].is_data())
            .unwrap_or(self.log.len());
        // Sectors land where they belong even if the size does not reach that far yet: a later
        // change may let it, and shows them then.
        let mut image = self.durable.clone();
        let mut size = image.size();
        for change in &self.log[..stop] {
            match change {
                Change::Truncate { size: to } => {
                    image.truncate(*to);
                    size = *to;
                }
                Change::PunchHole { .. } => change.apply(&mut image),
                Change::Write {
                    pos,
                    data: bytes,
                    end,
                } => {
                    if rng.one_in(growth, 8) {
                        size = size.max(*end);
                    }
                    let by_sector = rng.one_in(torn, 8);
                    let whole = rng.one_in(data, 8);
                    for (offset, len) in sectors(*pos, bytes.len() as u64) {
                        let lands = if by_sector {
                            rng.one_in(data, 8)
                        } else {
                            whole
                        };
                        if lands {
                            image.write(pos + offset as u64, &bytes[offset..offset + len]);
                        }
                    }
                }
            }
        }
        image.truncate(size);
        image
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{Lost, Medium};
    use crate::Image;

    fn bytes(image: &Image) -> Vec<u8> {
        image.read_vec(0, 1 << 20)
    }

    #[test]
    fn only_flushed_changes_survive_for_certain() {
        let mut medium = Medium::default();
        medium.write(0, &[1; 1024]);
        medium.flush(medium.unflushed());
        medium.write(0, &[2; 1024]);
        let outcomes: BTreeSet<Vec<u8>> = (0..400)
            .map(|seed| bytes(&medium.power_cut(seed)))
            .collect();
        let half = |a: u8, b: u8| [[a; 512], [b; 512]].concat();
        assert_eq!(
            outcomes,
            BTreeSet::from([half(1, 1), half(1, 2), half(2, 1), half(2, 2)]),
            "sectors land on their own, in any order, and nothing else happens"
        );
        medium.flush(1);
        assert!((0..50).all(|seed| bytes(&medium.power_cut(seed)) == vec![2; 1024]));
    }

    #[test]
    fn one_seed_cuts_one_way() {
        let mut medium = Medium::default();
        for i in 0..50 {
            medium.write(i * 700, &[i as u8 + 1; 2000]);
        }
        for seed in 0..20 {
            assert_eq!(medium.power_cut(seed), medium.power_cut(seed));
        }
        let different = (0..20).map(|seed| bytes(&medium.power_cut(seed)));
        assert!(different.collect::<BTreeSet<_>>().len() > 5);
    }

    #[test]
    fn growth_may_land_without_its_data() {
        let mut medium = Medium::default();
        medium.write(0, &[1; 512]);
        let outcomes: BTreeSet<Vec<u8>> = (0..400)
            .map(|seed| bytes(&medium.power_cut(seed)))
            .collect();
        assert_eq!(
            outcomes,
            BTreeSet::from([vec![], vec![0; 512], vec![1; 512]])
        );
    }

    #[test]
    fn metadata_lands_in_order_and_before_later_data() {
        let mut medium = Medium::new({
            let mut image = Image::new();
            image.write(0, &[1; 1024]);
            image
        });
        medium.truncate(512);
        medium.truncate(1024);
        medium.write(0, &[2; 1024]);
        for seed in 0..400 {
            let image = bytes(&medium.power_cut(seed));
            if image.contains(&2) {
                assert!(!image.contains(&1) || image[..512] == [1; 512]);
                assert!(image[512..] == [0; 512] || image[512..] == [2; 512]);
            }
            if image.len() == 512 {
                assert!(image == [1; 512], "the second truncation came with it");
            }
        }
    }

    #[test]
    fn lost_flushes() {
        let make = || {
            let mut medium = Medium::default();
            medium.write(0, &[1; 512]);
            medium.flush(1);
            medium.write(0, &[2; 512]);
            medium.truncate(100);
            medium
        };
        for (lost, live, later) in [
            (Lost::Nothing, vec![2; 100], vec![2; 100]),
            (Lost::Data, vec![2; 100], vec![1; 100]),
            (Lost::DataAndLive, vec![1; 100], vec![1; 100]),
            (Lost::Everything, vec![1; 512], vec![1; 512]),
        ] {
            let mut medium = make();
            medium.lose(medium.unflushed(), lost);
            assert_eq!(bytes(medium.live()), live, "{lost:?}");
            medium.flush(medium.unflushed());
            assert_eq!(bytes(medium.durable()), later, "{lost:?}");
        }
    }
}
