//! Seeded sequences of file operations, for reference, crash and long-running tests alike.
//!
//! # Model
//!
//! A [`Workload`] is an endless iterator of [`Operation`]s. Its draws depend on its seed, its
//! [`Mix`] and the file size, which it tracks by applying every operation that it returns, so that
//! most operations hit the file and some straddle its end. Data is not stored: a [`Fill`] says how
//! to make it again.

use crate::{Rng, scramble};

/// Bytes of a page.
const PAGE: u64 = 4096;

/// The bytes of one write: none of them zero, so that they differ from a hole, and different for
/// each fill and position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill(pub u64);

impl Fill {
    /// The byte that this fill has at file offset `pos`.
    pub fn byte(self, pos: u64) -> u8 {
        let word = scramble(self.0 ^ (pos / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        (word >> (pos % 8 * 8)) as u8 | 1
    }

    /// The bytes from `pos` on.
    pub fn bytes(self, pos: u64, len: usize) -> Vec<u8> {
        (pos..pos + len as u64).map(|at| self.byte(at)).collect()
    }
}

/// One operation on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Write `len` bytes of `fill` at `pos`.
    Write {
        /// First byte.
        pos: u64,
        /// Bytes.
        len: usize,
        /// The data.
        fill: Fill,
    },
    /// Write `len` bytes of `fill` at the end of the file at that moment.
    Append {
        /// Bytes.
        len: usize,
        /// The data.
        fill: Fill,
    },
    /// Read `len` bytes at `pos`.
    Read {
        /// First byte.
        pos: u64,
        /// Bytes.
        len: usize,
    },
    /// Set the size.
    Truncate {
        /// The new size in bytes.
        size: u64,
    },
    /// Make `len` bytes at `pos` zeros.
    PunchHole {
        /// First byte.
        pos: u64,
        /// Bytes.
        len: u64,
    },
    /// Make everything durable.
    Fsync {
        /// Whether attributes that no read needs may be left out.
        datasync: bool,
    },
}

/// How often each operation comes (weights), and how large things are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// Weight of writes at a position.
    pub write: u32,
    /// Weight of appends.
    pub append: u32,
    /// Weight of reads.
    pub read: u32,
    /// Weight of truncations, up and down.
    pub truncate: u32,
    /// Weight of holes.
    pub punch: u32,
    /// Weight of fsyncs.
    pub fsync: u32,
    /// The file never becomes larger, in bytes.
    pub max_size: u64,
    /// No read, write or hole is longer, in bytes.
    pub max_len: u64,
}

impl Mix {
    /// Everything, mostly reads and writes.
    pub const fn general(max_size: u64, max_len: u64) -> Self {
        Self {
            write: 40,
            append: 6,
            read: 40,
            truncate: 5,
            punch: 5,
            fsync: 4,
            max_size,
            max_len,
        }
    }

    /// Changes and fsyncs, for crash tests: reads matter little to a medium.
    pub const fn crash(max_size: u64, max_len: u64) -> Self {
        Self {
            write: 50,
            append: 12,
            read: 6,
            truncate: 8,
            punch: 8,
            fsync: 16,
            max_size,
            max_len,
        }
    }
}

/// An endless, repeatable sequence of operations on one file.
#[derive(Clone, Debug)]
pub struct Workload {
    rng: Rng,
    mix: Mix,
    size: u64,
}

impl Workload {
    /// The sequence that follows from `seed`, for a file that is empty at first.
    pub fn new(seed: u64, mix: Mix) -> Self {
        Self::resume(seed, mix, 0)
    }

    /// The same for a file of `size` bytes.
    pub fn resume(seed: u64, mix: Mix, size: u64) -> Self {
        assert!(mix.max_len > 0 && mix.max_size > 0, "a file needs room");
        Self {
            rng: Rng::new(seed),
            mix,
            size,
        }
    }

    /// A length: small, about a page, or anything, each often enough.
    fn len(&mut self) -> u64 {
        let most = self.mix.max_len;
        let len = match self.rng.below(8) {
            0 => self.rng.between(1, 16),
            1 => self.rng.between(PAGE - 2, PAGE + 2),
            2 => PAGE * self.rng.between(1, 4),
            3 | 4 => self.rng.between(1, PAGE),
            _ => self.rng.between(1, most),
        };
        len.min(most)
    }

    /// A position below `bound` (zero if there is none): any byte, a page, or close to either edge.
    fn pos(&mut self, bound: u64) -> u64 {
        if bound == 0 {
            return 0;
        }
        match self.rng.below(6) {
            0 | 1 => self.rng.below(bound) / PAGE * PAGE,
            2 => (self.rng.below(bound) / PAGE * PAGE + self.rng.below(4)).min(bound - 1),
            3 => bound - 1 - self.rng.below(bound.min(PAGE)),
            _ => self.rng.below(bound),
        }
    }

    fn write(&mut self) -> Operation {
        // Mostly inside, sometimes leaving a gap behind the end.
        let bound = if self.rng.one_in(1, 8) {
            self.mix.max_size
        } else {
            (self.size + 1).min(self.mix.max_size)
        };
        let pos = self.pos(bound);
        let len = self.len().min(self.mix.max_size - pos).max(1) as usize;
        let fill = Fill(self.rng.next_u64());
        self.size = self.size.max(pos + len as u64);
        Operation::Write { pos, len, fill }
    }

    fn append(&mut self) -> Operation {
        let room = self.mix.max_size.saturating_sub(self.size);
        if room == 0 {
            return self.truncate();
        }
        let len = self.len().min(room);
        self.size += len;
        Operation::Append {
            len: len as usize,
            fill: Fill(self.rng.next_u64()),
        }
    }

    fn truncate(&mut self) -> Operation {
        let size = match self.rng.below(4) {
            0 => self.pos(self.mix.max_size + 1),
            1 => (self.size + self.len()).min(self.mix.max_size),
            2 => self.size.saturating_sub(self.len()),
            _ => self.pos(self.size + 1),
        };
        self.size = size;
        Operation::Truncate { size }
    }
}

impl Iterator for Workload {
    type Item = Operation;

    fn next(&mut self) -> Option<Operation> {
        let mix = self.mix;
        let weights = [
            mix.write,
            mix.append,
            mix.read,
            mix.truncate,
            mix.punch,
            mix.fsync,
        ];
        let mut at = self.rng.below(weights.iter().map(|&w| u64::from(w)).sum());
        let mut which = 0;
        while at >= u64::from(weights[which]) {
            at -= u64::from(weights[which]);
            which += 1;
        }
        Some(match which {
            0 => self.write(),
            1 => self.append(),
            2 => {
                let bound = self.size + self.rng.below(2) * PAGE;
                let pos = self.pos(bound);
                let len = self.len() as usize;
                Operation::Read { pos, len }
            }
            3 => self.truncate(),
            4 => {
                let bound = self.size + self.rng.below(2) * PAGE;
                let pos = self.pos(bound);
                let len = self.len();
                Operation::PunchHole { pos, len }
            }
            _ => Operation::Fsync {
                datasync: self.rng.one_in(1, 2),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Fill, Mix, Operation, Workload};

    #[test]
    fn one_seed_gives_one_workload() {
        let mix = Mix::general(1 << 20, 1 << 16);
        let run = |seed| Workload::new(seed, mix).take(500).collect::<Vec<_>>();
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn limits_are_kept_and_every_operation_comes() {
        let mix = Mix::general(100_000, 20_000);
        let mut kinds = std::collections::HashSet::new();
        for seed in 0..20 {
            let mut size = 0_u64;
            for operation in Workload::new(seed, mix).take(1000) {
                kinds.insert(std::mem::discriminant(&operation));
                match operation {
                    Operation::Write { pos, len, .. } => {
                        assert!(len > 0 && len <= 20_000);
                        size = size.max(pos + len as u64);
                    }
                    Operation::Append { len, .. } => size += len as u64,
                    Operation::Truncate { size: to } => size = to,
                    Operation::Read { len, .. } => assert!(len > 0 && len <= 20_000),
                    Operation::PunchHole { len, .. } => assert!(len > 0 && len <= 20_000),
                    Operation::Fsync { .. } => {}
                }
                assert!(size <= 100_000);
            }
        }
        assert_eq!(kinds.len(), 6);
    }

    #[test]
    fn fills_are_not_zero_and_follow_their_position() {
        let all = Fill(5).bytes(0, 10_000);
        assert!(all.iter().all(|&byte| byte != 0));
        assert_eq!(Fill(5).bytes(4001, 100), all[4001..4101]);
        assert_ne!(Fill(6).bytes(0, 64), all[..64]);
    }
}
