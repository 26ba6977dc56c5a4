//! An interpreter of operations on an index beside a `BTreeMap`: shared by the property test, the
//! seeded runs and the fuzz target, so that each of them runs the same operations with the same
//! checks.

#![allow(dead_code, reason = "every test file uses a part of it")]

#[path = "heap.rs"]
pub(crate) mod heap;

use std::collections::BTreeMap;
use std::sync::Arc;

use foliocache_sync::rcu::{self, RcuReadGuard};
use foliocache_xarray::{Entry, Extent, InsertError, Mark, NodePool, XArray, nodes_to_halve};

use heap::{clear, erase, in_use, value};

/// Every entry that overlaps `first..=last` and has the mark, in ascending order.
pub(crate) fn range(
    xa: &XArray,
    first: u64,
    last: u64,
    mark: Option<Mark>,
    rcu: &RcuReadGuard,
) -> impl Iterator<Item = Extent> {
    let mut next = Some(first);
    std::iter::from_fn(move || {
        let found = xa.find(next?, last, mark, rcu)?;
        next = found.last().checked_add(1).filter(|&next| next <= last);
        Some(found)
    })
}

/// The expected contents of the index: first index → order, entry, marks.
type Model = BTreeMap<u64, (u32, Entry, [bool; Mark::ALL.len()])>;

/// Bytes as a source of operations; ends with the bytes.
struct Source<'a>(&'a [u8]);

impl Source<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn word(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes([self.byte()?, self.byte()?]))
    }

    /// Few distinct indices that meet each other often, at the places where a tree changes its
    /// height.
    fn index(&mut self) -> Option<u64> {
        let kind = self.byte()?;
        let low = u64::from(self.word()?);
        Some(match kind % 8 {
            0..=2 => low % 256,
            3 => low % 8192,
            4 => low << 6,
            5 => (1u64 << (kind / 8 * 2))
                .wrapping_add(low % 16)
                .wrapping_sub(8),
            6 => u64::MAX - low % 1024,
            _ => (low % 16) << 60 | (low >> 4),
        })
    }

    fn order(&mut self) -> Option<u32> {
        Some(match self.byte()? % 16 {
            n @ 0..10 => n.into(),
            _ => 0,
        })
    }

    fn mark(&mut self) -> Option<Mark> {
        Some(Mark::ALL[usize::from(self.byte()?) % Mark::ALL.len()])
    }
}

fn covering(model: &Model, index: u64) -> Option<(u64, u32, Entry)> {
    let (&first, &(order, entry, _)) = model.range(..=index).next_back()?;
    (index - first < 1 << order).then_some((first, order, entry))
}

fn extent(model: &Model, index: u64) -> Option<Extent> {
    covering(model, index).map(|(index, order, entry)| Extent {
        entry,
        index,
        order,
    })
}

/// The first entry that overlaps `first..=last` and has the mark.
fn first_in(model: &Model, first: u64, last: u64, mark: Option<Mark>) -> Option<Extent> {
    if first > last {
        return None;
    }
    let from = covering(model, first).map_or(first, |(index, ..)| index);
    model
        .range(from..=last)
        .find(|(_, (_, _, marks))| mark.is_none_or(|mark| marks[mark as usize]))
        .map(|(&index, &(order, entry, _))| Extent {
            entry,
            index,
            order,
        })
}

struct Run {
    xa: XArray,
    pool: Arc<NodePool>,
    model: Model,
    /// Makes entries distinct, so that a foreign one is seen.
    serial: usize,
    /// The model is wrong in one rare case, which whoever drives this must find.
    canary: bool,
}

impl Run {
    fn entry(&mut self) -> Entry {
        self.serial += 1;
        value(self.serial)
    }

    fn step(&mut self, source: &mut Source<'_>) -> Option<()> {
        match source.byte()? % 16 {
            0..=4 => self.insert(source),
            5 | 6 => {
                let index = source.index()?;
                let expected = extent(&self.model, index);
                assert_eq!(erase(&self.xa, index), expected);
                if let Some(expected) = expected {
                    self.model.remove(&expected.index);
                }
                Some(())
            }
            7 => self.erase_if(source),
            8 => match source.byte()? % 4 {
                0 => self.replace(source),
                _ => self.split(source),
            },
            9..=11 => self.mark(source),
            12 => self.erase_range(source),
            13 | 14 => self.look(source),
            _ => {
                match source.byte()? % 8 {
                    0 => {
                        clear(&self.xa);
                        self.model.clear();
                    }
                    1 => self.pool.wait_for_limbo(),
                    2 => {
                        self.pool.shrink();
                    }
                    3 => {
                        self.pool.advance();
                    }
                    _ => self.compare(),
                }
                Some(())
            }
        }
    }

    fn insert(&mut self, source: &mut Source<'_>) -> Option<()> {
        let order = source.order()?;
        let index = source.index()? & !((1 << order) - 1);
        let last = index + ((1 << order) - 1);
        let entry = self.entry();
        let in_the_way = first_in(&self.model, index, last, None);
        // With a node too few nothing may change.
        let (result, left) = (0..)
            .find_map(|nodes| {
                let before = in_use(&self.pool);
                let mut preload = self.pool.preload(nodes).expect("the heap has more");
                let result = self.xa.lock().insert(index, order, entry, &mut preload);
                drop(preload);
                let taken = in_use(&self.pool) - before;
                assert!(taken == 0 || result.is_ok());
                (result != Err(InsertError::NeedNodes)).then_some((result, nodes - taken))
            })
            .expect("some number suffices");
        match in_the_way {
            None => {
                assert_eq!(result, Ok(()));
                assert_eq!(left, 0, "it takes no more than it needs");
                self.model.insert(index, (order, entry, Default::default()));
            }
            Some(_) => assert_eq!(result, Err(InsertError::Occupied)),
        }
        Some(())
    }

    /// Erases an entry if it is the expected one.
    fn erase_if(&mut self, source: &mut Source<'_>) -> Option<()> {
        let index = source.index()?;
        let foreign = self.entry();
        let old = extent(&self.model, index);
        assert_eq!(self.xa.lock().erase_if(index, foreign), None);
        if let Some(old) = old {
            assert_eq!(self.xa.lock().erase_if(index, old.entry), Some(old));
            self.model.remove(&old.index);
        }
        Some(())
    }

    fn replace(&mut self, source: &mut Source<'_>) -> Option<()> {
        let index = source.index()?;
        let new = self.entry();
        if let Some(old) = extent(&self.model, index) {
            let before = in_use(&self.pool);
            self.xa.lock().replace(index, new);
            assert_eq!(in_use(&self.pool), before);
            self.model.get_mut(&old.index)?.1 = new;
        }
        Some(())
    }

    fn split(&mut self, source: &mut Source<'_>) -> Option<()> {
        let index = source.index()?;
        let order = source.order()?;
        // Down to that order, or not at all.
        while let Some(old) = extent(&self.model, index).filter(|old| old.order > order) {
            let upper = self.entry();
            let nodes = nodes_to_halve(old.order);
            let mut preload = self.pool.preload(nodes).expect("the heap has more");
            let before = in_use(&self.pool);
            self.xa.lock().halve(index, upper, &mut preload);
            drop(preload);
            // Less, if the head had this entry alone.
            assert!(in_use(&self.pool) <= before, "it takes what it says");
            let (_, _, marks) = self.model.remove(&old.index)?;
            let half = old.order - 1;
            self.model.insert(old.index, (half, old.entry, marks));
            let mut marks = marks;
            if self.canary && half > 2 {
                marks[0] = false;
            }
            self.model
                .insert(old.index + (1 << half), (half, upper, marks));
        }
        Some(())
    }

    fn mark(&mut self, source: &mut Source<'_>) -> Option<()> {
        let mark = source.mark()?;
        let set = source.byte()? % 3 != 0;
        let index = source.index()?;
        let mut xa = self.xa.lock();
        if set {
            xa.set_mark(index, mark);
        } else {
            xa.clear_mark(index, mark);
        }
        let Some((first, ..)) = covering(&self.model, index) else {
            return Some(());
        };
        self.model.get_mut(&first)?.2[mark as usize] = set;
        assert_eq!(xa.find(index, index, Some(mark)).is_some(), set);
        Some(())
    }

    fn erase_range(&mut self, source: &mut Source<'_>) -> Option<()> {
        let (a, b) = (source.index()?, source.index()?);
        let (first, last) = (a.min(b), a.max(b));
        let mut xa = self.xa.lock();
        while let Some(found) = xa.find(first, last, None) {
            assert_eq!(first_in(&self.model, first, last, None), Some(found));
            assert_eq!(
                xa.erase_if(found.last().min(last), found.entry),
                Some(found)
            );
            self.model.remove(&found.index);
        }
        assert_eq!(first_in(&self.model, first, last, None), None);
        Some(())
    }

    fn look(&mut self, source: &mut Source<'_>) -> Option<()> {
        let (a, b) = (source.index()?, source.index()?);
        let mark = source.mark()?;
        let (first, last) = (a.min(b), a.max(b));
        let rcu = rcu::read_lock();
        for index in [a, b] {
            let expected = extent(&self.model, index);
            assert_eq!(
                self.xa.load(index, &rcu),
                expected.map(|extent| extent.entry)
            );
            if let Some((_, slot)) = self.xa.load_slot(index, &rcu) {
                assert!(slot.holds());
            }
            let leaf = self.xa.approach(index, &rcu);
            let found = leaf.and_then(|leaf| leaf.load_slot());
            assert_eq!(
                found.map(|(entry, _)| entry),
                expected.map(|extent| extent.entry)
            );
        }
        for mark in [None, Some(mark)] {
            let found = self.xa.find(first, last, mark, &rcu);
            let expected = first_in(&self.model, first, last, mark);
            assert_eq!(found, expected);
        }
        let range = range(&self.xa, first, last, Some(mark), &rcu);
        let from = covering(&self.model, first).map_or(first, |(index, ..)| index);
        let expected = self
            .model
            .range(from..=last)
            .filter(|(_, (_, _, marks))| marks[mark as usize]);
        assert!(
            range
                .map(|found| found.index)
                .eq(expected.map(|(&index, _)| index))
        );
        Some(())
    }

    /// The whole index against the model.
    fn compare(&self) {
        let rcu = rcu::read_lock();
        let found: Vec<_> = range(&self.xa, 0, u64::MAX, None, &rcu)
            .map(|found| {
                let (xa, at) = (&self.xa, found.index);
                let marks = Mark::ALL.map(|mark| xa.find(at, at, Some(mark), &rcu).is_some());
                (found.index, (found.order, found.entry, marks))
            })
            .collect();
        assert!(
            found
                .iter()
                .copied()
                .eq(self.model.iter().map(|(&index, &value)| (index, value)))
        );
        for mark in Mark::ALL {
            let any = self
                .model
                .values()
                .any(|(_, _, marks)| marks[mark as usize]);
            let marked = self.xa.find(0, u64::MAX, Some(mark), &rcu);
            assert_eq!(marked.is_some(), any);
            for found in range(&self.xa, 0, u64::MAX, Some(mark), &rcu) {
                assert!(self.model[&found.index].2[mark as usize]);
            }
        }
        assert_eq!(self.xa.nr_entries(), self.model.len() as u64);
        #[cfg(debug_assertions)]
        assert_eq!(self.xa.lock().assert_invariants(), in_use(&self.pool));
    }
}

/// Runs the operations that `bytes` stand for and panics at the first difference.
pub(crate) fn run(bytes: &[u8]) {
    run_with(bytes, false);
}

/// The same, with a `canary` beside a model that is wrong in one rare case.
pub(crate) fn run_with(bytes: &[u8], canary: bool) {
    let pool = heap::pool(usize::MAX);
    let mut run = Run {
        xa: XArray::new(Arc::clone(&pool)),
        pool,
        model: Model::new(),
        serial: 0,
        canary,
    };
    let mut source = Source(bytes);
    let mut steps = 0;
    while run.step(&mut source).is_some() {
        steps += 1;
        if steps % 16 == 0 {
            run.compare();
        }
    }
    run.compare();
    let Run { xa, pool, .. } = run;
    drop(xa);
    pool.wait_for_limbo();
    let stats = pool.stats();
    assert_eq!((stats.limbo, stats.free), (0, stats.nodes));
    pool.shrink();
    assert_eq!(pool.stats().nodes, 0);
}
