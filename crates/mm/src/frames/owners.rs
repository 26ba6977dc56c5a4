//! Which owner has the frames that begin at a frame: the way from a block to the folios in it.
//!
//! # Model
//!
//! The owner of a chunk of frames leaves a number with its first frame ([`Frames::set_owner`]). A
//! thread that empties a block asks for the numbers of its frames in use ([`Frames::owners`],
//! decision 25).
//!
//! # Invariants
//!
//! 1. A number is a hint: that of a frame that is free, or lies inside a chunk, is an earlier owner's.
//!    The caller checks under the owner's lock whether it still has the frame.
//!
//! # Memory ordering
//!
//! A number is stored Release and loaded Acquire, partners of one another: a thread that finds it sees that its owner
//! was made. One that is not seen yet belongs to an owner that has just got its frames; its block is not empty then,
//! and is looked at again.

use super::entries::BlockEntries;
use super::{BLOCK_FRAMES, BlockNumber, FrameNumber, Frames};
use foliocache_sync::atomic::Ordering;

/// A number for each frame.
pub(super) type Owners = BlockEntries<{ BLOCK_FRAMES }>;

impl Frames {
    /// Notes that the chunk which begins with `frame` belongs to `owner`, which is not 0. Linear frames need no note.
    #[inline]
    pub(crate) fn set_owner(&self, frame: FrameNumber, owner: u32) {
        if self.is_linear(frame) {
            return;
        }
        self.owners
            .of_taken(frame.0)
            .store(owner, Ordering::Release);
    }

    /// The owners of the chunks of a block that are in use now, each with the first frame, and others
    /// that were: see invariant 1.
    pub(crate) fn owners(&self, block: BlockNumber) -> impl Iterator<Item = (FrameNumber, u32)> {
        self.block_frames(block).into_iter().filter_map(|frame| {
            let owner = self.owners.of_taken(frame.0).load(Ordering::Acquire);
            (owner != 0).then_some((frame, owner))
        })
    }
}
