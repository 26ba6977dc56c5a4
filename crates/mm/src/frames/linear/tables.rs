//! The page tables with which the direct map has linear frames: one for each unit of 2 MiB, charged to the bound with the
//! nodes of the kernel's page cache of the memfd, one for 64 pages.
//!
//! # Model
//!
//! ```text
//!   charged ──claim, take──▶ charged, with frames ──punch of the last──▶ idle ──drop──▶ neither
//! ```
//!
//! # Safety
//!
//! Invariant 5 of the parent is the premise of dropping page tables.
#![allow(unsafe_code)]

use super::super::tables::TABLE_BYTES;
use super::super::{BLOCK_FRAMES, FrameNumber, Frames, MAX_ORDER};
use super::{LinearRange, State};
use foliocache_sync::atomic::Ordering;
use std::ops::Range;

/// A node of the kernel's xarray, with its part of what the slab wastes.
pub(super) const NODE_BYTES: u64 = 592;

/// Pages of such a node.
const NODE_PAGES: u32 = 64;

/// Units that a search for page tables looks at before it lets the lock go.
const SCAN_UNITS: usize = 1 << 14;

/// The units of a range.
pub(super) struct RangeUnits {
    pub(super) owner: RangeOwner,
    pub(super) units: Box<[Unit]>,
}

/// Whose range it is: the file's id, and the page of the file that has its first frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RangeOwner {
    pub(crate) file: u64,
    pub(crate) first: u64,
}

/// 2 MiB of a range.
#[derive(Clone, Copy, Default)]
pub(super) struct Unit {
    /// Frames in use, leaving, or about to be taken.
    pub(super) frames: u16,
    /// The page table with which the direct map has them is charged.
    charged: bool,
    /// Which nodes of the kernel's page cache of the memfd are charged.
    nodes: u8,
}

impl Unit {
    /// Bytes that it is charged.
    pub(super) fn bytes(self) -> u64 {
        u64::from(self.charged) * TABLE_BYTES + u64::from(self.nodes.count_ones()) * NODE_BYTES
    }

    /// As it is once these nodes are charged, too.
    fn with(self, nodes: u8) -> Self {
        Self {
            charged: true,
            nodes: self.nodes | nodes,
            ..self
        }
    }

    fn is_idle(self) -> bool {
        self.charged && self.frames == 0
    }
}

/// The nodes of a unit that have these of its pages.
fn nodes_of(pages: &Range<u32>) -> u8 {
    let node = |page| page / NODE_PAGES;
    (node(pages.start)..node(pages.end - 1) + 1).fold(0, |nodes, node| nodes | 1 << node)
}

/// The units of a range in which pages lie, which are counted from its beginning: the first frame of each unit, and the
/// nodes of it.
fn needed(range: &LinearRange, pages: &Range<u64>) -> impl Iterator<Item = (u32, u8)> + use<> {
    let (first, pages) = (range.frames.start, pages.start as u32..pages.end as u32);
    let units = pages.start >> MAX_ORDER..pages.end.div_ceil(BLOCK_FRAMES);
    units.map(move |unit| {
        let start = unit << MAX_ORDER;
        let within = |page: u32| page.clamp(start, start + BLOCK_FRAMES) - start;
        let part = within(pages.start)..within(pages.end);
        (first + start, nodes_of(&part))
    })
}

impl State {
    /// The unit that has a frame of a range.
    pub(super) fn unit(&mut self, frame: u32) -> &mut Unit {
        let (first, range) = (self.ranges.range_mut(..=frame).next_back()).expect("of a range");
        &mut range.units[((frame - first) >> MAX_ORDER) as usize]
    }

    /// Counts frames that are absent now, or were counted twice.
    pub(super) fn uncount(&mut self, frames: Range<u32>) {
        let mut at = frames.start;
        while at < frames.end {
            let end = ((at | (BLOCK_FRAMES - 1)) + 1).min(frames.end);
            let unit = self.unit(at);
            debug_assert!(u32::from(unit.frames) >= end - at);
            unit.frames -= (end - at) as u16;
            at = end;
        }
    }

    /// Visits the units with page tables from the hand on, each with its first frame, until `visit` has enough; whether
    /// that was so before the end of the space, or of what may be looked at.
    fn scan(&mut self, mut visit: impl FnMut(u32, &mut Unit, RangeOwner, u32) -> bool) -> bool {
        let (mut looked, hand) = (0, self.hand);
        // The range that has the hand began before it.
        let start = (self.ranges.range(..=hand).next_back()).map_or(hand, |(&first, _)| first);
        for (&first, range) in self.ranges.range_mut(start..) {
            let skip = (hand.saturating_sub(first) >> MAX_ORDER) as usize;
            for (i, unit) in range.units.iter_mut().enumerate().skip(skip) {
                let frame = first + ((i as u32) << MAX_ORDER);
                looked += 1;
                if unit.charged && visit(frame, unit, range.owner, frame - first)
                    || looked == SCAN_UNITS
                {
                    self.hand = frame + BLOCK_FRAMES;
                    return true;
                }
            }
        }
        self.hand = 0;
        false
    }
}

impl Frames {
    /// Has `pay` charge the page tables with which the direct map will have these pages of a range; false if it
    /// refuses. They may be given back at once: see [`Frames::claim_linear`]. Huge pages need none.
    pub(crate) fn charge_tables(
        &self,
        range: &LinearRange,
        pages: Range<u64>,
        pay: impl Fn(u64) -> bool,
    ) -> bool {
        if self.is_huge() {
            return true;
        }
        let missing = {
            let mut state = self.linear.state.lock();
            let missing = |(frame, nodes)| {
                let unit = *state.unit(frame);
                unit.with(nodes).bytes() - unit.bytes()
            };
            needed(range, &pages).map(missing).sum()
        };
        if missing == 0 {
            return true;
        }
        if !pay(missing) {
            return false;
        }
        let mut paid = missing;
        {
            let mut state = self.linear.state.lock();
            for (frame, nodes) in needed(range, &pages) {
                while state.dropping.iter().any(|run| run.contains(&frame)) {
                    state = self.linear.punched.wait_ranked(state);
                }
                let unit = state.unit(frame);
                let price = unit.with(nodes).bytes() - unit.bytes();
                if price <= paid {
                    *unit = unit.with(nodes);
                    paid -= price;
                }
            }
        }
        self.note_tables((missing - paid).cast_signed());
        // Another thread paid at the same time.
        self.uncharge_metadata(paid);
        true
    }

    /// Has the page table stay charged that the 2^`order` frames from `frame` on need, until they are taken and freed;
    /// false if it is not.
    pub(crate) fn claim_linear(&self, frame: FrameNumber, order: u32) -> bool {
        let mut state = self.linear.state.lock();
        let unit = state.unit(frame.0);
        let page = frame.0 % BLOCK_FRAMES;
        let needed = unit.with(nodes_of(&(page..page + (1 << order))));
        let charged = needed.bytes() == unit.bytes() || self.is_huge();
        unit.frames += u16::from(charged) << order;
        charged
    }

    /// Gives up what [`Frames::claim_linear`] gave: the frames are not taken.
    pub(crate) fn unclaim_linear(&self, frame: FrameNumber, order: u32) {
        let frames = frame.0..frame.0 + (1 << order);
        self.linear.state.lock().uncount(frames);
    }

    /// Counts bytes of page tables that are charged from now on, or no more.
    pub(crate) fn note_tables(&self, more: i64) {
        self.linear
            .table_bytes
            .fetch_add(more.cast_unsigned(), Ordering::Relaxed);
    }

    /// Bytes that page tables are charged with, those of windows included.
    pub(crate) fn table_bytes(&self) -> u64 {
        self.linear.table_bytes.load(Ordering::Relaxed)
    }

    /// Gives back page tables of the direct map that have no frames, about as many as `wanted`; how many.
    ///
    /// Context: makes system calls.
    pub(crate) fn drop_idle_tables(&self, wanted: u64) -> u64 {
        let linear = &self.linear;
        let _alone = linear.punching.lock();
        let mut gone = 0;
        let mut turns = 0;
        while gone < wanted && turns < 2 {
            let (mut runs, mut charged): (Vec<Range<u32>>, _) = (Vec::new(), 0);
            let memory = {
                let mut state = linear.state.lock();
                let Some(memory) = state.memory.clone() else {
                    return 0;
                };
                let mut left = wanted - gone;
                let more = state.scan(|frame, unit, _, _| {
                    if unit.is_idle() {
                        charged += unit.bytes();
                        *unit = Unit::default();
                        match runs.last_mut().filter(|run| run.end == frame) {
                            Some(run) => run.end += BLOCK_FRAMES,
                            None => runs.push(frame..frame + BLOCK_FRAMES),
                        }
                        left -= 1;
                    }
                    left == 0
                });
                turns += u32::from(!more);
                // For a moment there is no access to their addresses.
                state.dropping.clone_from(&runs);
                memory
            };
            for run in runs {
                let tables = u64::from((run.end - run.start) >> MAX_ORDER);
                // SAFETY: invariant 5.
                let dropped = unsafe { memory.drop_page_tables(&self.range, linear.bytes(&run)) };
                linear.state.lock().dropping.retain(|other| *other != run);
                linear.punched.notify_all();
                gone += tables;
                if let Err(error) = dropped {
                    self.note_give_back_failure(error);
                }
            }
            self.uncharge_tables(charged);
        }
        gone
    }

    /// Gives back what page tables were charged that are gone.
    pub(crate) fn uncharge_tables(&self, bytes: u64) {
        self.note_tables(-bytes.cast_signed());
        self.uncharge_metadata(bytes);
    }

    /// The pages of some units that have page tables and fewer frames than others, as many as `wanted` or fewer.
    pub(crate) fn sparse_units(&self, wanted: usize) -> Vec<(RangeOwner, Range<u64>)> {
        let mut found = Vec::new();
        let mut state = self.linear.state.lock();
        let mut turns = 0;
        while found.len() < 4 * wanted && turns < 2 {
            let more = state.scan(|_, unit, owner, page| {
                if unit.frames > 0 {
                    let first = owner.first + u64::from(page);
                    found.push((unit.frames, owner, first..first + u64::from(BLOCK_FRAMES)));
                }
                found.len() >= 4 * wanted
            });
            turns += u32::from(!more);
        }
        drop(state);
        // The second turn may have found some again.
        found.sort_by_key(|(frames, owner, pages)| (*frames, owner.file, pages.start));
        found.dedup();
        found.truncate(wanted);
        found
            .into_iter()
            .map(|(_, owner, pages)| (owner, pages))
            .collect()
    }
}
