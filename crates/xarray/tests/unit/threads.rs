//! Readers and writers on real threads, in a pool so small that nodes are reused all the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use crate::common::heap::{self, clear, erase, in_use, value, value_of};
use crate::common::range;
use foliocache_sync::rcu;
use foliocache_xarray::{
    Entry, InsertError, Mark, NodePool, Preload, PreloadError, XArray, nodes_to_halve,
};

/// The indices in play: three levels, most of them never touched.
const SPAN: u64 = 1 << 14;

/// How much more than in an ordinary run.
fn stress() -> u64 {
    std::env::var("FOLIOCACHE_STRESS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(1)
}

struct Random(u64);

impl Random {
    /// xorshift64*
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    /// Clustered, so that nodes fill and empty; the last cluster reaches up to the entry that never
    /// moves.
    fn index(&mut self) -> u64 {
        (self.next() % 16 * (SPAN / 16) + self.next() % 200) % SPAN
    }
}

/// An entry that says which indices it covers.
fn entry(index: u64, order: u32, generation: u64) -> Entry {
    value((index | u64::from(order) << 20 | (generation & 0xffff_ffff) << 24) as usize)
}

/// Panics unless `entry` says that it covers `index`.
fn check(entry: Entry, index: u64) -> (u64, u32) {
    let value = value_of(entry) as u64;
    let (first, order) = (value & 0xf_ffff, (value >> 20 & 0xf) as u32);
    assert!(
        index >= first && index - first < 1 << order,
        "index {index} shows the entry of {first}, order {order}"
    );
    (first, order)
}

/// Takes `n` nodes, waiting for readers where it must; `None` if other writers have them all.
fn preload(pool: &NodePool, n: usize) -> Option<Preload<'_>> {
    for _ in 0..100 {
        match pool.preload(n) {
            Ok(preload) => return Some(preload),
            Err(PreloadError::WouldBlock) => pool.wait_for_limbo(),
            Err(PreloadError::NoMemory) => return None,
        }
    }
    None
}

fn write(xa: &XArray, random: &mut Random, operations: u64) {
    let pool = xa.pool();
    for generation in 0..operations {
        let index = random.index();
        match random.next() % 8 {
            0..4 => {
                let order = [0, 0, 0, 1, 3, 5, 6, 7][(random.next() % 8) as usize];
                let index = index & !((1 << order) - 1);
                for nodes in 0.. {
                    let Some(mut preload) = preload(pool, nodes) else {
                        break;
                    };
                    let entry = entry(index, order, generation);
                    let result = xa.lock().insert(index, order, entry, &mut preload);
                    if result != Err(InsertError::NeedNodes) {
                        break;
                    }
                }
            }
            4 | 5 => {
                if let Some(extent) = erase(xa, index) {
                    let (first, order) = check(extent.entry, index);
                    // It may be a part of the entry after halving.
                    assert!(first == extent.index && order >= extent.order);
                }
            }
            6 => {
                let mut preload = preload(pool, 2);
                let mut xa = xa.lock();
                if let Some(old) = xa.find(index, index, None)
                    && let Some(preload) = preload.as_mut()
                    && old.index < SPAN
                    && old.order > 0
                {
                    let half = old.order - 1;
                    let upper = old.index + (1 << half);
                    assert!(nodes_to_halve(old.order) <= 2);
                    xa.halve(index, entry(upper, half, generation), preload);
                }
            }
            7 if generation % 4 == 0 => {
                // Empties a leaf or two, which detaches them.
                let mut xa = xa.lock();
                while let Some(extent) = xa.find(index, index + 100, None) {
                    if extent.index >= SPAN {
                        break;
                    }
                    assert_eq!(xa.erase_if(extent.index, extent.entry), Some(extent));
                }
            }
            _ => {
                let mut xa = xa.lock();
                xa.set_mark(index, Mark::Dirty);
                xa.clear_mark(random.index(), Mark::Dirty);
            }
        }
    }
}

fn read(xa: &XArray, random: &mut Random) -> u64 {
    let rcu = rcu::read_lock();
    let mut seen = 0;
    for _ in 0..16 {
        let index = random.index();
        if let Some((entry, slot)) = xa.load_slot(index, &rcu) {
            check(entry, index);
            // The expected entry is there, or another one is.
            if !slot.holds()
                && let Some(now) = xa.load(index, &rcu)
            {
                check(now, index);
            }
            seen += 1;
        }
    }
    let start = random.index();
    for index in start..start + 100 {
        if let Some(entry) = xa.load(index, &rcu) {
            check(entry, index);
            seen += 1;
        }
    }
    let mut last = None;
    for found in range(xa, start, start + 300, Some(Mark::Dirty), &rcu) {
        check(found.entry, found.index);
        assert!(last < Some(found.last()), "a search goes forward");
        last = Some(found.last());
        seen += 1;
    }
    for found in range(xa, start, start + 300, None, &rcu) {
        check(found.entry, found.index);
        seen += 1;
    }
    // These two never move.
    for index in [SPAN, SPAN + 64] {
        assert_eq!(xa.load(index, &rcu), Some(entry(index, 6, 0)));
        let found = xa
            .find(index, u64::MAX, Some(Mark::UnstableEven), &rcu)
            .expect("marked all along");
        assert_eq!((found.index, found.order), (index, 6));
    }
    seen
}

#[test]
fn readers_never_see_a_foreign_entry() {
    let pool = heap::pool(1);
    let xa = Arc::new(XArray::new(Arc::clone(&pool)));
    for index in [SPAN, SPAN + 64] {
        let mut preload = pool.preload(4).unwrap();
        xa.lock()
            .insert(index, 6, entry(index, 6, 0), &mut preload)
            .unwrap();
        xa.lock().set_mark(index, Mark::UnstableEven);
    }
    let done = Arc::new(AtomicBool::new(false));
    let seen = Arc::new(AtomicU64::new(0));
    let readers: Vec<_> = (0..2u64)
        .map(|seed| {
            let (xa, done, seen) = (Arc::clone(&xa), Arc::clone(&done), Arc::clone(&seen));
            thread::spawn(move || {
                let mut random = Random(seed + 17);
                while !done.load(Ordering::Relaxed) {
                    seen.fetch_add(read(&xa, &mut random), Ordering::Relaxed);
                }
            })
        })
        .collect();
    let operations = if cfg!(miri) { 60 } else { 200_000 * stress() };
    let writers: Vec<_> = (0..2u64)
        .map(|seed| {
            let xa = Arc::clone(&xa);
            thread::spawn(move || write(&xa, &mut Random(seed + 1), operations))
        })
        .collect();
    for writer in writers {
        writer.join().unwrap();
    }
    done.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.join().unwrap();
    }
    assert!(seen.load(Ordering::Relaxed) > 0);
    #[cfg(debug_assertions)]
    assert_eq!(xa.lock().assert_invariants(), in_use(&pool));
    clear(&xa);
    assert_eq!(xa.nr_entries(), 0);
    pool.wait_for_limbo();
    let stats = pool.stats();
    assert_eq!((stats.limbo, stats.free), (0, stats.nodes));
    pool.shrink();
    assert_eq!(pool.stats().nodes, 0);
}
