//! Memory that cannot be reclaimed is one budget: however its classes fill up, reads go on.

use crate::common::{Handle, Healing, MIB, PATIENCE, cache, storage, within};
use foliocache_mm::{BackingDevInfo, BdiKind, Mm};
use foliocache_sim::{Effect, Faults, FaultyBackend, Fill, OpSet, Rule};
use foliocache_sync::Arc;
use foliocache_sys::Errno;

const LIMIT: u64 = 16 * MIB;

const CHUNK: usize = 64 << 10;

/// Pages by which writers may exceed a limit: those that one call dirties, and the minimum of a
/// file system.
const SLACK: u64 = 64;

/// A class of memory that cannot be reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Memory,
    Failed,
    Metadata,
}

use Class::{Failed, Memory, Metadata};

/// A cache with a memory file, a file whose store takes nothing, and a healthy one.
struct World {
    _healing: Healing,
    mm: Arc<Mm>,
    memory: Handle,
    failing: Handle,
    healthy: Handle,
    faults: Faults,
}

impl World {
    fn new(limit: u64, effect: Effect) -> Arc<Self> {
        let mm = cache(limit);
        let (faults, well) = (Faults::new(5), Faults::new(6));
        let open = |bdi: &Arc<BackingDevInfo>, name: &str, faults: &Faults| {
            Handle::open(bdi, FaultyBackend::new(name, faults), 0)
        };
        let bdi = BackingDevInfo::new(&mm, "memory", BdiKind::Memory).expect("a file system");
        let world = Self {
            memory: open(&bdi, "memory", &well),
            failing: open(&storage(&mm, "failing"), "failing", &faults),
            healthy: open(&storage(&mm, "healthy"), "healthy", &well),
            _healing: Healing(faults.clone()),
            faults,
            mm,
        };
        for pos in (0..2 * LIMIT).step_by(CHUNK) {
            world.healthy.write(pos, &Fill(1).bytes(pos, CHUNK));
        }
        world.healthy.fsync().expect("a healthy store");
        world.faults.add(Rule::new(OpSet::CHANGES, effect));
        Arc::new(world)
    }

    /// Takes as much of a class as there is; returns why no more.
    fn fill(&self, class: Class) -> Errno {
        let fill = |file: &Handle| {
            (0..8 * LIMIT)
                .step_by(CHUNK)
                .find_map(|pos| file.try_write(pos, &Fill(2).bytes(pos, CHUNK)).err())
                .expect("it is bounded")
        };
        match class {
            Memory => fill(&self.memory),
            Failed => fill(&self.failing),
            Metadata => loop {
                if let Err(error) = self.mm.charge_metadata(CHUNK as u64) {
                    break error;
                }
            },
        }
    }

    fn check(&self) {
        let (stats, usage) = (self.mm.stats(), self.mm.usage());
        let held = self.memory.mapping.nr_pages() + stats.files.failed_pages;
        assert!(held <= usage.capacity_pages / 4 * 3 + SLACK, "{stats:#?}");
        assert!(usage.total_bytes() <= usage.limit_bytes, "{usage:#?}");
        assert_eq!(
            stats.unreclaimable.memory_pages,
            self.memory.mapping.nr_pages(),
            "{stats:#?}"
        );
        for pos in (0..2 * LIMIT).step_by(CHUNK) {
            let read = self.healthy.try_read(pos, CHUNK).expect("reads go on");
            assert!(read == Fill(1).bytes(pos, CHUNK), "at {pos}");
        }
    }

    /// Runs `body` with a watchdog.
    fn within(self: &Arc<Self>, body: impl FnOnce(&Self) + Send + 'static) {
        let (mm, world) = (Arc::clone(&self.mm), Arc::clone(self));
        within(
            PATIENCE,
            move || format!("{:#?}", mm.stats()),
            move || body(&world),
        );
    }
}

#[test]
fn all_classes_together_leave_memory_for_reads() {
    for order in [
        [Memory, Failed, Metadata],
        [Memory, Metadata, Failed],
        [Failed, Memory, Metadata],
        [Failed, Metadata, Memory],
        [Metadata, Memory, Failed],
        [Metadata, Failed, Memory],
    ] {
        World::new(LIMIT, Effect::Fail(Errno::EIO)).within(move |world| {
            for class in order {
                let refused = match class {
                    Memory => Errno::ENOSPC,
                    Failed => Errno::EIO,
                    Metadata => Errno::ENOMEM,
                };
                assert_eq!(world.fill(class), refused, "{class:?} of {order:?}");
                world.check();
            }
            world.healthy.write(0, &Fill(1).bytes(0, CHUNK));
            world.healthy.fsync().expect("a healthy store");
        });
    }
}

#[test]
fn a_memory_file_system_leaves_room_for_dirty_data_of_a_hung_store() {
    World::new(LIMIT, Effect::Hang).within(|world| {
        let limit = world.mm.usage().capacity_pages * 3 / 10;
        for page in 0..limit {
            let pos = page * 4096;
            world.failing.write(pos, &Fill(3).bytes(pos, 4096));
        }
        assert_eq!(world.fill(Memory), Errno::ENOSPC);
        let (stats, usage) = (world.mm.stats(), world.mm.usage());
        let held =
            world.memory.mapping.nr_pages() + stats.files.dirty_pages + stats.files.writeback_pages;
        assert!(held <= usage.capacity_pages / 4 * 3 + SLACK, "{stats:#?}");
        world.check();
        // Once the data is written, the file system has its half.
        world.faults.heal();
        world.failing.fsync().expect("well again");
        assert_eq!(world.fill(Memory), Errno::ENOSPC);
        let half = world.mm.usage().capacity_pages / 2;
        let pages = world.memory.mapping.nr_pages();
        assert!(pages + 2 * SLACK > half, "{pages} of {half}");
        world.check();
    });
}

#[test]
fn a_bound_under_which_unreclaimable_data_would_pass_its_budget_is_refused() {
    World::new(2 * LIMIT, Effect::Fail(Errno::EIO)).within(|world| {
        assert_eq!(world.fill(Memory), Errno::ENOSPC);
        let held = world.memory.mapping.nr_pages() * 4096;
        let error = world.mm.set_limit(held / 3 * 4).expect_err("too small");
        assert_eq!(error.errno(), Errno::EINVAL);
        world.check();
        world.mm.set_limit(held / 2 * 3).expect("large enough");
        world.check();
    });
}
