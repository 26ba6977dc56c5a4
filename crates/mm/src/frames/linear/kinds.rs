//! Units of 2 MiB of the limit that move between general blocks and linear frames.

use super::super::block::Table;
use super::super::{BLOCK_FRAMES, FrameKind, Frames};

impl Frames {
    /// Moves a unit of the limit to the frames of a kind if the other kind neither uses it nor has waiters for it.
    /// For linear frames the pool of huge pages has to have a page.
    pub(crate) fn shift_unit(&self, to: FrameKind) -> bool {
        let from = match to {
            FrameKind::General => FrameKind::Linear,
            FrameKind::Linear => FrameKind::General,
        };
        if self.available(from) < u64::from(BLOCK_FRAMES)
            || (to == FrameKind::Linear && self.is_pool_short())
        {
            return false;
        }
        let mut table = self.table.lock();
        match to {
            FrameKind::General => {
                if !self.take_linear_unit(&mut table, false) {
                    return false;
                }
                table.capacity += 1;
                self.account(&mut table, 0);
            }
            FrameKind::Linear => return self.block_to_linear(&mut table, false),
        }
        self.publish(&table);
        true
    }

    /// Takes the place of a block that was just given back for linear frames, past those who wait for it.
    pub(crate) fn force_linear_unit(&self) -> bool {
        self.block_to_linear(&mut self.table.lock(), true)
    }

    fn block_to_linear(&self, table: &mut Table, first: bool) -> bool {
        let taken = self.take_block_unit(table, first);
        if taken {
            table.linear += 1;
            self.linear.budget.add(BLOCK_FRAMES);
            self.publish(table);
        }
        taken
    }

    /// Has linear frames give a unit up to the blocks as soon as enough of them were freed, and not before.
    pub(crate) fn owe_unit(&self) {
        {
            let mut table = self.table.lock();
            if table.linear > 0 && table.linear_owed == 0 {
                table.linear_owed = 1;
                self.linear.budget.remove(u64::from(BLOCK_FRAMES));
            }
        }
        self.settle_owed();
    }

    pub(super) fn settle_owed(&self) {
        let mut table = self.table.lock();
        if table.linear_owed > 0 && self.linear.budget.counts().available >= 0 {
            table.linear_owed -= 1;
            table.linear -= 1;
            table.capacity += 1;
            self.account(&mut table, 0);
            self.publish(&table);
        }
    }

    /// Takes a unit that no linear frame uses out of theirs; past those who wait if `first`.
    pub(in super::super) fn take_linear_unit(&self, table: &mut Table, first: bool) -> bool {
        let taken =
            table.linear > table.linear_owed && self.linear.budget.take(BLOCK_FRAMES, first);
        table.linear -= u32::from(taken);
        taken
    }

    /// Takes a unit out of the linear ones without asking, after a shrink of the limit.
    pub(in super::super) fn lower_linear(&self, table: &mut Table) {
        if table.linear == table.linear_owed {
            table.linear_owed -= 1;
        } else {
            self.linear.budget.remove(u64::from(BLOCK_FRAMES));
        }
        table.linear -= 1;
    }
}
