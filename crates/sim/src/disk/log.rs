//! The log of a disk's operations, and the contents that a power cut may leave.
//!
//! # Model
//!
//! ```text
//!  base │ write  write  zero  FLUSH  write  write │ live
//!         0      1      2     3      4      5       position 6
//! ```
//!
//! A *position* is the number of entries so far. Everything before a flush is on the medium when the
//! flush is done. A cut at a position leaves that, and of the entries between the last flush and the
//! position any part: each whole, or by sectors of 512 bytes, or not at all. They are applied in the order
//! of the log, since a medium never goes back to older data of a place; every order in which it may write different
//! places is a choice of some of them. The superblock of ext4 is written whole, see [`FIRST_BLOCK`].
//!
//! # Invariants
//!
//! 1. `live` is `base` with all entries applied, except those that a flush lost (see [`Lost`]).
//! 2. `flushes` has the positions just behind the flushes of `entries`, in order.

use std::io;
use std::sync::Arc;

use super::content::Content;
use crate::{Lost, Rng, SECTOR};

/// One thing that was done to a disk.
#[derive(Clone, Debug)]
pub(super) enum Entry {
    Write {
        pos: u64,
        data: Arc<[u8]>,
    },
    Zero {
        pos: u64,
        len: u64,
    },
    Flush,
    /// A flush that was reported as done and was not, or a write that was forgotten.
    Nothing,
}

/// The effect of a cut on the entries behind the last flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) enum Unflushed {
    /// Nothing.
    None,
    /// Everything.
    All,
    /// A seeded choice.
    Some(u64),
}

/// Writes that begin below this, in bytes, are not torn: ext4 writes its superblock in place when it recovers, with a checksum over two
/// sectors. Half of it is a file system that no kernel mounts before `e2fsck` took a copy.
const FIRST_BLOCK: u64 = 4096;

/// The log of one disk, with its present content.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// The content at position `first`.
    base: Content,
    first: u64,
    entries: Vec<Entry>,
    flushes: Vec<u64>,
    live: Content,
    /// The durable content at a position behind a flush: where the next image starts from.
    rolled: Option<(u64, Content)>,
}

impl Log {
    pub(super) fn new(base: Content) -> Log {
        Log {
            live: base.clone(),
            base,
            ..Log::default()
        }
    }

    pub(super) fn live(&self) -> &Content {
        &self.live
    }

    pub(super) fn position(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// The positions just behind each flush.
    pub(super) fn flushes(&self) -> &[u64] {
        &self.flushes
    }

    /// The entries from `from` on.
    pub(super) fn since(&self, from: u64) -> &[Entry] {
        let from = from.clamp(self.first, self.position());
        &self.entries[(from - self.first) as usize..]
    }

    pub(super) fn push(&mut self, entry: Entry) {
        apply(&entry, &mut self.live);
        self.entries.push(entry);
        if matches!(self.entries.last(), Some(Entry::Flush)) {
            self.flushes.push(self.position());
        }
    }

    /// Writes a seeded choice of the sectors of `data`.
    pub(super) fn push_torn(&mut self, pos: u64, data: &[u8], seed: u64) {
        let mut rng = Rng::new(seed);
        for (at, sector) in sectors(pos, data) {
            if rng.one_in(1, 2) {
                let data = sector.into();
                self.push(Entry::Write { pos: at, data });
            }
        }
    }

    /// Forgets the writes that the last flush did not make durable.
    pub(super) fn lose(&mut self, lost: Lost) {
        if lost == Lost::Nothing {
            return;
        }
        let durable = self.last_flush(self.position());
        for entry in &mut self.entries[(durable - self.first) as usize..] {
            *entry = Entry::Nothing;
        }
        if lost != Lost::Data {
            self.live = self.durable(durable);
        }
    }

    /// Frees the entries before `position`, which can no longer be used.
    pub(super) fn trim(&mut self, position: u64) {
        let position = self.last_flush(position.min(self.position()));
        self.base = self.durable(position);
        self.entries.drain(..(position - self.first) as usize);
        self.first = position;
        self.flushes.retain(|&flush| flush > position);
        self.rolled = None;
    }

    /// The position behind the last flush at or before `position`.
    fn last_flush(&self, position: u64) -> u64 {
        let at = self.flushes.partition_point(|&flush| flush <= position);
        at.checked_sub(1).map_or(self.first, |at| self.flushes[at])
    }

    /// The content at a position behind a flush.
    fn durable(&mut self, flush: u64) -> Content {
        let (from, mut content) = match self.rolled.take() {
            Some((at, content)) if at <= flush => (at, content),
            _ => (self.first, self.base.clone()),
        };
        for entry in &self.since(from)[..(flush - from) as usize] {
            apply(entry, &mut content);
        }
        self.rolled = Some((flush, content.clone()));
        content
    }

    /// The content after a cut at `position`.
    ///
    /// # Errors
    /// If the log does not have the position, or no longer, see [`Log::trim`].
    pub(super) fn cut(&mut self, position: u64, unflushed: Unflushed) -> io::Result<Content> {
        let (first, last) = (self.first, self.position());
        if !(first..=last).contains(&position) {
            let error = format!("the log has {first} to {last}, not {position}");
            return Err(io::Error::other(error));
        }
        let flush = self.last_flush(position);
        let mut content = self.durable(flush);
        let pending = &self.since(flush)[..(position - flush) as usize];
        match unflushed {
            Unflushed::None => {}
            Unflushed::All => pending.iter().for_each(|entry| apply(entry, &mut content)),
            Unflushed::Some(seed) => choose(pending, seed, &mut content),
        }
        Ok(content)
    }
}

fn apply(entry: &Entry, content: &mut Content) {
    match entry {
        Entry::Write { pos, data } => content.write(*pos, data),
        Entry::Zero { pos, len } => content.zero(*pos, *len),
        Entry::Flush | Entry::Nothing => {}
    }
}

/// The sectors of a write, with their positions.
fn sectors(pos: u64, data: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let sector = SECTOR as usize;
    let pieces = data.chunks(sector).enumerate();
    pieces.map(move |(at, piece)| (pos + (at * sector) as u64, piece))
}

/// Applies some of `pending`: few or many, torn or whole, as the seed chooses.
fn choose(pending: &[Entry], seed: u64, content: &mut Content) {
    let mut rng = Rng::new(seed);
    // Eighths of the entries that land, and of those that are torn.
    let (lands, torn) = match rng.below(6) {
        0 => (8, 2),
        1 => (7, 0),
        2 => (1, 0),
        _ => (rng.between(1, 7), rng.below(9)),
    };
    // In half of the images nothing behind a place in the log has left the disk's cache.
    let reached = match rng.one_in(1, 2) {
        true => pending.len(),
        false => rng.below(pending.len() as u64 + 1) as usize,
    };
    for entry in &pending[..reached] {
        match entry {
            Entry::Write { pos, data } if *pos >= FIRST_BLOCK && rng.one_in(torn, 8) => {
                for (at, sector) in sectors(*pos, data) {
                    if rng.one_in(1, 2) {
                        content.write(at, sector);
                    }
                }
            }
            _ if rng.one_in(lands, 8) => apply(entry, content),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
