//! The judge: decides whether a file may look like this after a power cut.
//!
//! # Model
//!
//! Everything that a successful fsync acknowledged must be there, unless it was overwritten, cut
//! off or punched since; then old and new are both allowed. Nothing else may appear. The judge
//! keeps, since the last acknowledged fsync,
//!
//! - the sizes that the file has had: it must have one of them now, or one on the way from a size
//!   to a larger one, because growth reaches the medium page by page;
//! - for each sector of 512 bytes its *states*: its contents after each operation that changed it.
//!
//! A sector is right if its bytes are those of **one** state, where any byte may also be zero if
//! some later state has a zero there: truncations and holes reach the medium when they are called,
//! ahead of older data still in the cache, and so may take bytes out of a state that was never
//! written back whole.
//!
//! A state may also be cut off where the file ended before, with zeros behind: a write to a page beside its write-back reaches the
//! medium as far as the write-back goes, which took the size when it began.
//!
//! # Invariants
//!
//! 1. The last state of a sector is its present contents; a sector without states has the bytes of
//!    `content` and may have no others.

use std::collections::BTreeMap;

use crate::{Image, Operation, ReferenceFile, SECTOR};

type Sector = [u8; SECTOR as usize];

/// Judges images against one file's history. For one thread of operations at a time.
#[derive(Clone, Debug)]
pub struct DurabilityOracle {
    content: ReferenceFile,
    /// Sizes since the last acknowledged fsync, oldest first, the present one last; of those that a range was acknowledged
    /// beyond, the end of that range.
    sizes: Vec<u64>,
    /// Where the file has ended since then, whatever was acknowledged of ranges.
    ends: Vec<u64>,
    /// States of the sectors that changed since then, oldest first; invariant 1.
    states: BTreeMap<u64, Vec<Sector>>,
}

/// Why a power cut cannot leave an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// The file has a size that it never had since the last fsync, not even while it grew.
    Size {
        /// The size in the image.
        found: u64,
        /// The sizes since then, oldest first.
        allowed: Vec<u64>,
    },
    /// A sector has contents that it never had since the last fsync.
    Content {
        /// The first byte that no single state explains, in the state that explains most.
        offset: u64,
        /// The byte in the image.
        found: u8,
        /// The byte in each state, oldest first.
        allowed: Vec<u8>,
    },
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Violation::Size { found, allowed } => {
                write!(
                    f,
                    "size {found} after the power cut, the sizes since the last fsync were {allowed:?}"
                )
            }
            Violation::Content {
                offset,
                found,
                allowed,
            } => write!(
                f,
                "byte {offset} (page {}, sector {}) is {found:#04x} after the power cut, its \
                 states since the last fsync were {allowed:#04x?}",
                offset / 4096,
                offset / SECTOR
            ),
        }
    }
}

impl std::error::Error for Violation {}

impl DurabilityOracle {
    /// For a file that holds `image`, durably.
    pub fn new(image: Image) -> Self {
        Self {
            sizes: vec![image.size()],
            ends: vec![image.size()],
            content: ReferenceFile::from_image(image),
            states: BTreeMap::new(),
        }
    }

    /// The file's contents if every recorded operation was done.
    pub fn content(&self) -> &ReferenceFile {
        &self.content
    }

    /// Notes an operation; to be called *before* it is done, since a cut may come amid it. An
    /// fsync promises nothing until [`DurabilityOracle::acknowledge`].
    pub fn record(&mut self, operation: &Operation) {
        let size = self.content.size();
        let (start, end) = match *operation {
            Operation::Write { pos, len, .. } => (pos, pos + len as u64),
            Operation::Append { len, .. } => (size, size + len as u64),
            Operation::Truncate { size: to } => (to.min(size), size),
            Operation::PunchHole { pos, len } => (pos, pos.saturating_add(len).min(size)),
            Operation::Read { .. } | Operation::Fsync { .. } => return,
        };
        let touched = if start < end {
            start / SECTOR..(end - 1) / SECTOR + 1
        } else {
            0..0
        };
        for sector in touched.clone() {
            let before = self.sector(sector);
            self.states.entry(sector).or_insert_with(|| vec![before]);
        }
        self.content.apply(operation);
        for sector in touched {
            let after = self.sector(sector);
            let states = self.states.entry(sector).or_default();
            if states.last() != Some(&after) {
                states.push(after);
            }
        }
        let size = self.content.size();
        for sizes in [&mut self.sizes, &mut self.ends] {
            if sizes.last() != Some(&size) {
                sizes.push(size);
            }
        }
    }

    fn sector(&self, index: u64) -> Sector {
        let mut bytes = [0; SECTOR as usize];
        self.content.image().read(index * SECTOR, &mut bytes);
        bytes
    }

    /// An fsync succeeded: the present contents are promised.
    pub fn acknowledge(&mut self) {
        self.states.clear();
        self.sizes = vec![self.content.size()];
        self.ends = self.sizes.clone();
    }

    /// The present contents of a range are promised, with as much of the size as is needed to reach it: a write
    /// through a handle opened for syncing succeeded.
    pub fn acknowledge_range(&mut self, pos: u64, len: u64) {
        let end = (pos + len).min(self.content.size());
        // Of a sector that the range covers in part the rest may be old.
        let whole = pos.div_ceil(SECTOR)..end / SECTOR;
        self.states.retain(|sector, _| !whole.contains(sector));
        if end == self.content.size() {
            self.sizes = vec![end];
        }
        self.sizes
            .iter_mut()
            .for_each(|size| *size = end.max(*size));
        self.sizes.dedup();
    }

    /// Whether a power cut may leave `image`.
    ///
    /// # Errors
    /// The first violation.
    pub fn check(&self, image: &Image) -> Result<(), Violation> {
        let size = image.size();
        let on_the_way = |step: &[u64]| step[0] < size && size < step[1];
        if !self.sizes.contains(&size) && !self.sizes.windows(2).any(on_the_way) {
            return Err(Violation::Size {
                found: size,
                allowed: self.sizes.clone(),
            });
        }
        for index in 0..size.div_ceil(SECTOR) {
            let start = index * SECTOR;
            let found = image.read_vec(start, SECTOR as usize);
            match self.states.get(&index) {
                None => self.check_sector(start, &found, &[self.sector(index)])?,
                Some(states) => self.check_sector(start, &found, states)?,
            }
        }
        Ok(())
    }

    fn check_sector(&self, start: u64, found: &[u8], states: &[Sector]) -> Result<(), Violation> {
        let ends =
            (self.ends.iter()).filter_map(|size| usize::try_from(size.checked_sub(start)?).ok());
        let inside: Vec<usize> = ends.filter(|end| (1..found.len()).contains(end)).collect();
        // The state that explains the longest beginning, for the message.
        let mut best = 0;
        for (i, state) in states.iter().enumerate() {
            let explained = |at: usize, end: usize| match found[at] {
                0 if at >= end => true,
                byte if byte == state[at] => at < end,
                byte => byte == 0 && states[i + 1..].iter().any(|later| later[at] == 0),
            };
            for end in inside.iter().copied().chain([found.len()]) {
                match (0..found.len()).find(|&at| !explained(at, end)) {
                    None => return Ok(()),
                    Some(at) => best = best.max(at),
                }
            }
        }
        Err(Violation::Content {
            offset: start + best as u64,
            found: found[best],
            allowed: states.iter().map(|state| state[best]).collect(),
        })
    }
}

#[cfg(test)]
mod tests;
