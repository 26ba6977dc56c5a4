//! The policy against simulated surroundings.

use super::policy::{CALM, Policy, Usage};
use super::*;
use crate::records::Mm;
use crate::test_store::Sink;
use foliocache_sync::Arc;
use foliocache_sys::Errno;
use foliocache_sys::pressure::{Level, LevelKind, Stalls};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const CONFIGURED: u64 = 256 * MIB;
/// A step and a stride of that.
const STEP: u64 = 4 * MIB;
const STRIDE: u64 = 16 * MIB;
const FLOOR: u64 = 6 * MIB;

impl Pressure {
    /// Panics as often as the test asked for.
    pub(crate) fn inject_panic(&self) {
        use foliocache_sync::atomic::Ordering::Relaxed;
        let less = |left: u32| left.checked_sub(1);
        let left = self.inject_panics.fetch_update(Relaxed, Relaxed, less);
        assert!(left.is_err(), "injected by the test");
    }
}

/// A cgroup that the cache shares with others, and a clock.
struct World {
    now: Duration,
    limit: u64,
    others: u64,
    held: u64,
    stalled: u64,
}

impl World {
    fn new(limit: u64, others: u64) -> Self {
        Self {
            now: Duration::from_secs(1000),
            limit,
            others,
            held: 0,
            stalled: 0,
        }
    }

    fn outside(&self) -> Outside {
        Outside {
            levels: vec![Level {
                kind: LevelKind::Cgroup,
                limit: self.limit,
                used: self.others + self.held,
            }],
            stalls: Some(Stalls {
                total_us: self.stalled,
                own_group: true,
            }),
        }
    }

    /// A look; afterwards the cache holds no more than it may.
    fn look(&mut self, policy: &mut Policy) -> u64 {
        let held = Usage {
            bytes: self.held,
            floor: FLOOR,
        };
        let limit = policy.observe(self.now, &self.outside(), held);
        self.held = self.held.min(limit);
        limit
    }

    /// Looks ten times a second for `time`.
    fn pass(&mut self, policy: &mut Policy, time: Duration) {
        for _ in 0..time.as_millis() / 100 {
            self.now += Duration::from_millis(100);
            self.look(policy);
        }
    }
}

#[test]
fn with_room_to_spare_nothing_happens() {
    let (mut world, mut policy) = (World::new(1024 * MIB, 100 * MIB), Policy::new(CONFIGURED));
    for held in [0, 100 * MIB, CONFIGURED] {
        world.held = held;
        assert_eq!(world.look(&mut policy), CONFIGURED);
    }
    assert_eq!((policy.steps_down, policy.source()), (0, None));
    assert_eq!(policy.pause(), Duration::from_secs(1));
}

#[test]
fn a_bound_beyond_its_cgroup_is_adapted_before_memory_is_taken() {
    let (mut world, mut policy) = (World::new(200 * MIB, 10 * MIB), Policy::new(CONFIGURED));
    let limit = world.look(&mut policy);
    assert_eq!(limit, 180 * MIB, "whole steps of what is left of 190 MiB");
    assert_eq!(policy.source(), Some(PressureSource::Cgroup));
    // It fills itself up to that, and is left alone.
    world.held = limit;
    world.pass(&mut policy, Duration::from_secs(60));
    assert_eq!(policy.effective(), limit);
    assert_eq!((policy.steps_down, policy.steps_up), (19, 0));
}

#[test]
fn a_neighbour_that_grows_takes_steps_and_gives_them_back() {
    let (mut world, mut policy) = (World::new(300 * MIB, 10 * MIB), Policy::new(CONFIGURED));
    world.held = CONFIGURED;
    assert_eq!(world.look(&mut policy), CONFIGURED);
    for others in (20..=200).step_by(10) {
        world.others = others * MIB;
        world.now += Duration::from_millis(100);
        let limit = world.look(&mut policy);
        assert!(limit + world.others <= world.limit - 4 * MIB, "{others}");
        assert!(limit + world.others > world.limit - 12 * MIB - STEP || limit == CONFIGURED);
        assert!(limit == CONFIGURED || limit.is_multiple_of(STEP));
    }
    let low = policy.effective();
    assert_eq!(policy.steps_down, (CONFIGURED - low) / STEP);
    // The neighbour ends. Nothing grows before it was calm for a while, and then not at once.
    world.others = 10 * MIB;
    world.pass(&mut policy, CALM - Duration::from_millis(100));
    assert_eq!(policy.effective(), low);
    world.pass(&mut policy, Duration::from_millis(600));
    assert!((low + STRIDE..=low + 2 * STRIDE).contains(&policy.effective()));
    world.pass(&mut policy, Duration::from_secs(30));
    assert_eq!(policy.effective(), CONFIGURED);
    assert_eq!(policy.steps_up, policy.steps_down);
    assert_eq!(policy.source(), None);
}

#[test]
fn it_grows_by_what_there_is_room_for_less_half_a_stride() {
    let (mut world, mut policy) = (World::new(300 * MIB, 100 * MIB), Policy::new(CONFIGURED));
    world.held = CONFIGURED;
    assert_eq!(world.look(&mut policy), 188 * MIB);
    // Room of 206 MiB: less than a stride more, and not enough for one.
    world.others = 84 * MIB;
    world.pass(&mut policy, Duration::from_secs(10));
    assert_eq!(policy.effective(), 196 * MIB);
}

#[test]
fn it_does_not_swing() {
    let (mut world, mut policy) = (World::new(300 * MIB, 60 * MIB), Policy::new(CONFIGURED));
    world.held = CONFIGURED;
    world.pass(&mut policy, Duration::from_secs(1));
    let (limit, steps) = (policy.effective(), policy.steps_down);
    assert!(limit < CONFIGURED);
    // A neighbour that comes and goes by less than half a stride.
    for round in 0..600 {
        world.others = 60 * MIB + u64::from(round % 2 == 0) * 2 * MIB;
        world.held = policy.effective();
        world.pass(&mut policy, Duration::from_millis(200));
    }
    assert!(policy.steps_down <= steps + 1, "{policy:?}");
    assert_eq!(policy.steps_up, 0, "{policy:?}");
}

#[test]
fn the_floor_is_kept_whatever_happens() {
    let (mut world, mut policy) = (World::new(100 * MIB, 150 * MIB), Policy::new(CONFIGURED));
    assert_eq!(world.look(&mut policy), FLOOR);
    world.pass(&mut policy, Duration::from_secs(10));
    assert_eq!(policy.effective(), FLOOR);
    // The user may configure less than the floor.
    assert_eq!(policy.configure(5 * MIB, FLOOR), 5 * MIB);
}

#[test]
fn stalls_take_a_stride_of_what_is_held_each_second() {
    let (mut world, mut policy) = (World::new(1 << 40, 0), Policy::new(CONFIGURED));
    world.held = 100 * MIB;
    world.pass(&mut policy, Duration::from_secs(2));
    assert_eq!(policy.effective(), CONFIGURED);
    // A quarter of the time is lost.
    for _ in 0..30 {
        world.stalled += 25_000;
        world.pass(&mut policy, Duration::from_millis(100));
    }
    assert_eq!(policy.source(), Some(PressureSource::Stalls));
    let held = world.held;
    assert!(
        (100 * MIB - 3 * STRIDE..=100 * MIB - 2 * STRIDE).contains(&held),
        "{held}"
    );
    // A hundredth is not.
    for _ in 0..300 {
        world.stalled += 1_000;
        world.pass(&mut policy, Duration::from_millis(100));
    }
    assert_eq!(policy.effective(), CONFIGURED);
}

#[test]
fn stalls_of_the_machine_count_only_while_it_is_short_itself() {
    for (used, counts) in [(500 * MIB, false), (950 * MIB, true)] {
        let mut policy = Policy::new(CONFIGURED);
        for tick in 0..30 {
            let outside = Outside {
                levels: vec![Level {
                    kind: LevelKind::Machine,
                    limit: 1024 * MIB,
                    used,
                }],
                stalls: Some(Stalls {
                    total_us: tick * 50_000,
                    own_group: false,
                }),
            };
            let held = Usage {
                bytes: CONFIGURED,
                floor: FLOOR,
            };
            policy.observe(
                Duration::from_secs(5) + Duration::from_millis(100) * tick as u32,
                &outside,
                held,
            );
        }
        assert_eq!(
            policy.source(),
            counts.then_some(PressureSource::Stalls),
            "{used}"
        );
    }
}

#[test]
fn a_limit_below_what_is_used_shrinks_at_once() {
    let (mut world, mut policy) = (World::new(400 * MIB, 50 * MIB), Policy::new(CONFIGURED));
    world.held = CONFIGURED;
    world.look(&mut policy);
    world.limit = 150 * MIB;
    assert_eq!(world.look(&mut policy), 92 * MIB);
}

#[test]
fn the_user_s_limit_is_taken_at_once_as_far_as_there_is_room() {
    let (mut world, mut policy) = (World::new(300 * MIB, 10 * MIB), Policy::new(64 * MIB));
    assert_eq!(world.look(&mut policy), 64 * MIB);
    assert_eq!(policy.configure(CONFIGURED, FLOOR), CONFIGURED);
    assert_eq!(policy.configure(512 * MIB, FLOOR), 280 * MIB);
    assert_eq!(policy.source(), Some(PressureSource::Cgroup));
    assert_eq!(policy.configure(64 * MIB, FLOOR), 64 * MIB);
    assert_eq!(policy.source(), None);
}

proptest! {
    /// However the others and the clock behave: within floor and configured, and never above what
    /// is allowed right after a look.
    #[test]
    fn always_within_what_is_allowed(
        moves in prop::collection::vec((0_u64..400, 0_u64..5000, any::<bool>()), 1..60),
        limit in 50_u64..600,
    ) {
        let (mut world, mut policy) = (World::new(limit * MIB, 0), Policy::new(CONFIGURED));
        for (others, pause, stall) in moves {
            world.others = others * MIB;
            world.now += Duration::from_millis(pause);
            world.stalled += u64::from(stall) * pause * 500;
            let limit = world.look(&mut policy);
            prop_assert!((FLOOR..=CONFIGURED).contains(&limit));
            let left = world.limit.saturating_sub(world.others + 4 * MIB);
            prop_assert!(limit <= left.max(FLOOR), "{} of {}", limit, left);
            world.held = limit;
        }
        prop_assert!(policy.steps_up <= policy.steps_down + 64);
    }
}

#[test]
fn the_thread_outlives_panics_and_counts_them() {
    let mm = Mm::new(crate::MmConfig::new(16 * MIB)).expect("a cache");
    let pressure = &mm.pressure;
    let left = || {
        pressure
            .inject_panics
            .load(std::sync::atomic::Ordering::Relaxed)
    };
    pressure
        .inject_panics
        .store(2, std::sync::atomic::Ordering::Relaxed);
    let start = std::time::Instant::now();
    // It looks once a second by itself, and at once after a restart.
    while left() > 0 || mm.stats().background_panics < 2 {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{:#?}",
            mm.stats()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    // And it still looks after that.
    pressure
        .inject_panics
        .store(1, std::sync::atomic::Ordering::Relaxed);
    while left() > 0 || mm.stats().background_panics < 3 {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{:#?}",
            mm.stats()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(mm.stats().background_panics, 3);
}

/// Surroundings that have nothing left.
fn nothing_left() -> Outside {
    Outside {
        levels: vec![Level {
            kind: LevelKind::Cgroup,
            limit: 1024 * MIB,
            used: 1024 * MIB,
        }],
        stalls: None,
    }
}

#[test]
fn pressure_leaves_room_to_work_beside_what_cannot_be_reclaimed() {
    use crate::{AddressSpace, BackingDevInfo, BdiKind, Iocb, IovIter, ReadaheadState};
    let bound = 512 * MIB;
    let mut config = crate::MmConfig::new(bound);
    config.external_pressure = false;
    let mm = Mm::new(config).expect("a cache");
    let open = |kind| {
        let bdi = BackingDevInfo::new(&mm, "test", kind).expect("a file system");
        AddressSpace::new(&bdi, Arc::new(Sink::default()), 0)
    };
    let (memory, file) = (open(BdiKind::Memory), open(BdiKind::Storage));
    let bytes: Vec<u8> = (0..MIB as u32)
        .map(|at| (at / 4096 % 251) as u8 + 1)
        .collect();
    // As much as a file system in memory may have.
    let mut filled = 0;
    while memory
        .write(&mut Iocb::at(filled), &mut IovIter::source(&bytes))
        .is_ok()
    {
        filled += MIB;
    }
    assert!(filled > bound / 3, "{filled}");
    file.truncate(4 * bound).expect("a size");
    let read = |pos| {
        let mut buf = vec![0xee; MIB as usize];
        let mut iov = IovIter::destination(&mut buf);
        file.read(&ReadaheadState::new(), &mut Iocb::at(pos), &mut iov)
            .map(|_| buf)
    };
    for pos in (0..2 * bound).step_by(MIB as usize) {
        read(pos).expect("no pressure yet");
    }

    for _ in 0..100 {
        mm.follow(&nothing_left(), mm.held())
            .expect("a limit in range");
    }
    let pressed = mm.stats();
    assert!(pressed.pressure.effective_bytes < bound, "{pressed:#?}");
    assert!(
        pressed.memory.total_bytes() <= pressed.memory.limit_bytes,
        "{pressed:#?}"
    );
    for pos in (0..bound).step_by(MIB as usize) {
        assert!(
            read(pos)
                .expect("a read under pressure")
                .iter()
                .all(|&byte| byte == 0)
        );
    }
    let refused = mm.set_limit(filled).expect_err("nothing could be read");
    assert_eq!(refused.errno(), Errno::EINVAL);
    let mut found = vec![0; MIB as usize];
    for pos in (0..filled).step_by(MIB as usize) {
        let mut iov = IovIter::destination(&mut found);
        memory
            .read(&ReadaheadState::new(), &mut Iocb::at(pos), &mut iov)
            .expect("memory");
        assert!(found == bytes, "at {pos}");
    }
}

/// The floor rises when what cannot be reclaimed grows after the limit shrank.
#[test]
fn the_limit_rises_with_its_floor() {
    let (mut world, mut policy) = (World::new(200 * MIB, 200 * MIB), Policy::new(CONFIGURED));
    assert_eq!(world.look(&mut policy), FLOOR);
    let held = Usage {
        bytes: world.held,
        floor: 64 * MIB,
    };
    assert_eq!(policy.observe(world.now, &world.outside(), held), 64 * MIB);
    let held = Usage {
        floor: 2 * CONFIGURED,
        ..held
    };
    assert_eq!(
        policy.observe(world.now, &world.outside(), held),
        CONFIGURED
    );
}
