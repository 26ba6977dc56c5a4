//! The law of the throttle against simulated writers and stores, in virtual time.
//!
//! # Model
//!
//! The law, the meter and the limits are the real ones. The store takes bytes at its speed, and a
//! flush takes its time on top; the flusher goes in turns over the files, and flushes the file whose
//! turn it is when half the background limit is unstable, as the real one does.

use super::law::{Limits, Pace, SECOND};
use super::limits::{WHOLE, slew, target};
use super::meter::Meter;
use super::throttle::{flush_due, turn};
use crate::types::PAGE_SIZE;

const MIB: u64 = 1 << 20;
const PAGES_OF_MIB: u64 = MIB / PAGE_SIZE as u64;
const MILLISECOND: u64 = SECOND / 1000;

/// The habit of a writer.
#[derive(Clone, Copy)]
struct Habit {
    file: usize,
    /// Pages of one call of write.
    pages: u64,
    /// Nanoseconds that the caller does something else between two calls.
    rest: u64,
}

struct Writer {
    habit: Habit,
    /// When it writes again.
    ready: u64,
    /// Since when it sleeps at the limit.
    stuck: Option<u64>,
    written: u64,
}

#[derive(Clone, Copy, Default)]
struct File {
    clock: u64,
    dirty: u64,
    unstable: u64,
}

/// The work of the store, and when it ends.
enum Doing {
    Nothing,
    /// A piece of a turn, of which `left` pages are to be written still.
    Writing {
        file: usize,
        pages: u64,
        left: u64,
    },
    Flushing {
        file: usize,
    },
}

struct Sim {
    now: u64,
    limits: Limits,
    /// Bytes a second of the store, and nanoseconds of a flush.
    speed: u64,
    flush: u64,
    pace: Pace,
    meter: Meter,
    files: Vec<File>,
    writers: Vec<Writer>,
    doing: Doing,
    done_at: u64,
    next_file: usize,
    pauses: Vec<u64>,
    /// Waits at the limit.
    stuck: u64,
}

/// Pages of the largest write: 4 MiB.
const RUN: u64 = 1024;

/// Memory takes a page in this time.
const COPY: u64 = 1000;

impl Sim {
    /// A file system with a share of `dirty` MiB, of which a quarter is its background limit.
    fn new(dirty: u64, speed: u64, flush: u64, habits: &[Habit]) -> Self {
        let limit = dirty * PAGES_OF_MIB;
        let files = habits.iter().map(|habit| habit.file + 1).max();
        Self {
            now: 0,
            limits: Limits::new(limit / 4, limit / 4, limit),
            speed,
            flush,
            pace: Pace::new(0),
            meter: Meter::new(),
            files: vec![File::default(); files.unwrap_or(0)],
            writers: habits
                .iter()
                .map(|&habit| Writer {
                    habit,
                    ready: 0,
                    stuck: None,
                    written: 0,
                })
                .collect(),
            doing: Doing::Nothing,
            done_at: u64::MAX,
            next_file: 0,
            pauses: Vec::new(),
            stuck: 0,
        }
    }

    fn held(&self) -> u64 {
        let in_flight = match self.doing {
            Doing::Writing { pages, .. } => pages,
            _ => 0,
        };
        let files = self.files.iter().map(|file| file.dirty + file.unstable);
        files.sum::<u64>() + in_flight
    }

    /// Runs for so many milliseconds more.
    fn run(&mut self, milliseconds: u64) {
        let end = self.now + milliseconds * MILLISECOND;
        loop {
            let ready = self.writers.iter().enumerate();
            let (writer, at) = ready
                .filter(|(_, writer)| writer.stuck.is_none())
                .map(|(i, writer)| (i, writer.ready))
                .min_by_key(|&(_, at)| at)
                .unwrap_or((0, u64::MAX));
            if at.min(self.done_at) > end {
                self.now = end;
                return;
            }
            if at < self.done_at {
                self.now = at;
                self.write(writer);
            } else {
                self.now = self.done_at;
                self.store_done();
            }
            if matches!(self.doing, Doing::Nothing) {
                self.start_turn();
            }
        }
    }

    fn write(&mut self, at: usize) {
        let Habit { file, pages, rest } = self.writers[at].habit;
        let pages = pages.min(self.pace.batch(self.meter.rate(self.now)).min(64));
        self.writers[at].written += pages;
        self.files[file].dirty += pages;
        let done = self.now + pages * COPY;
        self.writers[at].ready = done + rest;
        let (held, own) = (
            self.held(),
            self.files[file].dirty + self.files[file].unstable,
        );
        if held <= self.limits.freerun {
            return;
        }
        let bandwidth = self.meter.rate(self.now);
        let clock = &mut self.files[file].clock;
        let pause = self
            .pace
            .charge(clock, done, pages, bandwidth, (self.limits, held, own));
        if pause > 0 {
            self.pauses.push(pause);
        }
        self.writers[at].ready += pause;
        if held >= self.limits.stop(own) {
            self.writers[at].stuck = Some(self.now);
        }
    }

    fn start_turn(&mut self) {
        if self.held() <= self.limits.background {
            return;
        }
        self.meter.begin(self.now);
        for _ in 0..self.files.len() {
            let at = self.next_file;
            self.next_file = (at + 1) % self.files.len();
            let file = &mut self.files[at];
            let pages = file.dirty.min(turn(self.meter.write_speed()));
            if pages + file.unstable > 0 {
                self.start_write(at, pages);
                return;
            }
        }
        unreachable!("something is held");
    }

    fn start_write(&mut self, file: usize, left: u64) {
        let pages = left.min(RUN);
        self.files[file].dirty -= pages;
        self.doing = Doing::Writing {
            file,
            pages,
            left: left - pages,
        };
        self.done_at = self.now + self.time_of(pages);
    }

    fn time_of(&self, pages: u64) -> u64 {
        pages * PAGE_SIZE as u64 * SECOND / self.speed + 1
    }

    fn store_done(&mut self) {
        match self.doing {
            Doing::Writing { file, pages, left } => {
                let took = self.time_of(pages);
                self.meter.wrote(self.now, pages * PAGE_SIZE as u64, took);
                self.files[file].unstable += pages;
                if left > 0 {
                    self.start_write(file, left);
                    return;
                }
                self.doing = Doing::Nothing;
                let unstable = self.files.iter().map(|file| file.unstable).sum();
                if flush_due(self.limits, unstable, self.held()) {
                    self.doing = Doing::Flushing { file };
                    self.done_at = self.now + self.flush;
                    return;
                }
            }
            Doing::Flushing { file } => {
                self.files[file].unstable = 0;
                self.doing = Doing::Nothing;
            }
            Doing::Nothing => unreachable!("nothing was under way"),
        }
        self.done_at = u64::MAX;
        self.meter.end(self.now);
        let held = self.held();
        for at in 0..self.writers.len() {
            let file = self.files[self.writers[at].habit.file];
            if held < self.limits.stop(file.dirty + file.unstable)
                && let Some(since) = self.writers[at].stuck.take()
            {
                self.pauses.push(self.now - since);
                self.stuck += 1;
                self.writers[at].ready = self.now;
            }
        }
    }

    /// Forgets what was seen so far.
    fn settle(&mut self, milliseconds: u64) {
        self.run(milliseconds);
        self.pauses.clear();
        self.stuck = 0;
        for writer in &mut self.writers {
            writer.written = 0;
        }
    }

    /// The wait that 999 of 1000 are below, and the longest, in milliseconds.
    fn tail(&mut self) -> (u64, u64) {
        self.pauses.sort_unstable();
        let longest = self.pauses.last().copied().unwrap_or(0);
        let at = self
            .pauses
            .len()
            .saturating_sub(1 + self.pauses.len() / 1000);
        let tail = self.pauses.get(at).copied().unwrap_or(0);
        (tail / MILLISECOND, longest / MILLISECOND)
    }

    /// Bytes a second that were written in the last `milliseconds`.
    fn throughput(&self, milliseconds: u64) -> u64 {
        let pages: u64 = self.writers.iter().map(|writer| writer.written).sum();
        pages * PAGE_SIZE as u64 * 1000 / milliseconds
    }

    fn report(&mut self, what: &str) {
        let tail = self.tail();
        eprintln!(
            "{what}: p99.9 and longest {tail:?} ms, {} pauses, {} at the limit, {:?} pages, rate {} MiB/s",
            self.pauses.len(),
            self.stuck,
            self.writers.iter().map(|w| w.written).collect::<Vec<_>>(),
            self.meter.rate(self.now) / MIB,
        );
    }
}

/// Writers that stream, each into a file of its own.
fn streams(n: usize) -> Vec<Habit> {
    (0..n)
        .map(|file| Habit {
            file,
            pages: 64,
            rest: 0,
        })
        .collect()
}

#[test]
fn steady_writers_pause_shortly_and_share_evenly() {
    for speed in [50 * MIB, 200 * MIB, 1000 * MIB] {
        for writers in [1, 4, 16] {
            let mut sim = Sim::new(100, speed, 5 * MILLISECOND, &streams(writers));
            sim.settle(5000);
            sim.run(20_000);
            sim.report(&format!("{writers} writers at {} MiB/s", speed / MIB));
            let (tail, longest) = sim.tail();
            assert!(tail <= 50 && longest <= 100, "{tail} and {longest} ms");
            let written = sim.writers.iter().map(|writer| writer.written);
            let (least, most) = (written.clone().min(), written.max());
            let (least, most) = (least.unwrap_or(0), most.unwrap_or(0));
            assert!(most * 4 <= least * 5, "{least} and {most} pages");
            // Of many files each flush is for less.
            let throughput = sim.throughput(20_000);
            assert!(throughput * 2 > speed, "{throughput} of {speed}");
            assert_eq!(sim.stuck, 0, "the limit is not reached");
        }
    }
}

#[test]
fn uncached_writers_of_a_file_pause_shortly_and_are_not_stopped() {
    let habit = Habit {
        file: 0,
        pages: 16,
        rest: 0,
    };
    for speed in [50 * MIB, 200 * MIB, 1000 * MIB] {
        let mut sim = Sim::new(100, speed, 5 * MILLISECOND, &[habit; 4]);
        sim.limits = sim.limits.of_uncached_file();
        sim.settle(5000);
        sim.run(20_000);
        sim.report(&format!("uncached at {} MiB/s", speed / MIB));
        let (tail, longest) = sim.tail();
        assert!(tail <= 50 && longest <= 100, "{tail} and {longest} ms");
        let throughput = sim.throughput(20_000);
        assert!(throughput * 2 > speed, "{throughput} of {speed}");
        assert_eq!(sim.stuck, 0, "the limit is not reached");
    }
}

#[test]
fn writers_whose_data_is_dirtied_again_pause_shortly() {
    for speed in [50 * MIB, 200 * MIB, 1000 * MIB] {
        for writers in [1, 4, 16] {
            let mut sim = Sim::new(100, speed, 5 * MILLISECOND, &streams(writers));
            let limit = sim.limits.limit;
            sim.limits = Limits::new(limit * 10 / 75, limit / 16 * 13, limit);
            sim.settle(5000);
            sim.run(20_000);
            sim.report(&format!("{writers} again at {} MiB/s", speed / MIB));
            let (tail, longest) = sim.tail();
            assert!(tail <= 50 && longest <= 100, "{tail} and {longest} ms");
            let throughput = sim.throughput(20_000);
            assert!(throughput * 2 > speed, "{throughput} of {speed}");
        }
    }
}

#[test]
fn the_first_seconds_are_as_smooth_as_the_rest() {
    for speed in [20 * MIB, 1000 * MIB] {
        let mut sim = Sim::new(100, speed, 5 * MILLISECOND, &streams(16));
        sim.run(5000);
        sim.report(&format!("from the start at {} MiB/s", speed / MIB));
        let (tail, longest) = sim.tail();
        // An unknown store may be guessed too fast.
        assert!(tail <= 100 && longest <= 500, "{tail} and {longest} ms");
    }
}

#[test]
fn a_store_that_becomes_ten_times_slower_or_faster_is_followed() {
    for (before, after) in [(500 * MIB, 50 * MIB), (50 * MIB, 500 * MIB)] {
        let mut sim = Sim::new(100, before, 5 * MILLISECOND, &streams(4));
        sim.settle(5000);
        sim.speed = after;
        sim.run(5000);
        sim.report(&format!("while {} became {}", before / MIB, after / MIB));
        let (tail, longest) = sim.tail();
        assert!(tail <= 150 && longest <= 300, "{tail} and {longest} ms");
        sim.settle(0);
        sim.run(10_000);
        sim.report(&format!("after {} became {}", before / MIB, after / MIB));
        let rate = sim.meter.rate(sim.now);
        assert!(
            rate > after * 6 / 10 && rate < after * 11 / 10,
            "{rate} of {after}"
        );
        let throughput = sim.throughput(10_000);
        assert!(throughput * 10 > after * 6, "{throughput} of {after}");
        assert!(sim.tail().1 <= 100, "{:?} ms", sim.tail());
    }
}

#[test]
fn long_flushes_are_waited_for_in_small_pieces() {
    for writers in [1, 4, 16] {
        let mut sim = Sim::new(100, 500 * MIB, 200 * MILLISECOND, &streams(writers));
        sim.settle(5000);
        sim.run(20_000);
        sim.report(&format!("{writers} writers, flushes of 200 ms"));
        let (tail, longest) = sim.tail();
        assert!(tail <= 100 && longest <= 100, "{tail} and {longest} ms");
    }
}

#[test]
fn sixteen_threads_of_one_file_do_not_crowd_out_another_file() {
    let mut habits = vec![
        Habit {
            file: 0,
            pages: 64,
            rest: 0,
        };
        16
    ];
    habits.push(Habit {
        file: 1,
        pages: 64,
        rest: 0,
    });
    for speed in [20 * MIB, 200 * MIB] {
        let mut sim = Sim::new(100, speed, 5 * MILLISECOND, &habits);
        sim.settle(5000);
        sim.run(20_000);
        sim.report(&format!("16 and 1 threads at {} MiB/s", speed / MIB));
        let crowd: u64 = sim.writers[..16].iter().map(|writer| writer.written).sum();
        let alone = sim.writers[16].written;
        // By threads it were 16 to 1.
        assert!(
            crowd <= alone * 2 && alone <= crowd * 3,
            "{crowd} and {alone} pages"
        );
        assert!(sim.tail().1 <= 100, "{:?} ms", sim.tail());
    }
}

#[test]
fn a_file_below_its_share_hardly_waits_beside_streams() {
    let mut habits = streams(4);
    habits.push(Habit {
        file: 4,
        pages: 1,
        rest: 5 * MILLISECOND,
    });
    let mut sim = Sim::new(100, 100 * MIB, 20 * MILLISECOND, &habits);
    sim.settle(5000);
    sim.run(20_000);
    sim.report("four streams and a page each 5 ms");
    // 200 pages a second, if it never waits.
    let written = sim.writers[4].written;
    assert!(written >= 3600, "{written} of 4000 pages");
}

#[test]
fn writers_that_do_something_else_between_writes_get_the_store_nevertheless() {
    let habits: Vec<Habit> = streams(2)
        .into_iter()
        .map(|habit| Habit {
            rest: 2 * MILLISECOND,
            ..habit
        })
        .collect();
    // Without waits they would write 240 MiB/s.
    let mut sim = Sim::new(100, 200 * MIB, 5 * MILLISECOND, &habits);
    sim.settle(5000);
    sim.run(20_000);
    sim.report("two writers of 120 MiB/s at most");
    let throughput = sim.throughput(20_000);
    assert!(throughput > 150 * MIB, "{throughput}");
    assert!(sim.tail().1 <= 50, "{:?} ms", sim.tail());
}

#[test]
fn the_dirty_limit_is_shared_by_speed_with_something_for_everybody() {
    let percent = |rate, all, n| target(rate, all, n) * 100 / WHOLE;
    assert_eq!(percent(100, 100, 1), 100);
    assert_eq!(percent(100, 200, 2), 50);
    // Fast, and dead: an eighth is left to who may come back.
    assert_eq!(percent(1000, 1000, 2), 87);
    assert_eq!(percent(0, 1000, 2), 12);
    for n in 1..=8 {
        let shares = (0..n).map(|i| target(i * 100, n * (n - 1) * 50, n));
        assert!(shares.sum::<u64>() <= WHOLE, "{n} have more than there is");
    }
}

#[test]
fn a_share_grows_at_once_and_falls_as_fast_as_the_store_drains_it() {
    let whole = 100 * MIB;
    assert_eq!(slew(1000, WHOLE, 0, 0, whole), WHOLE);
    // Half of 20 MiB/s is a tenth of it a second.
    let falling = slew(WHOLE, 0, SECOND / 2, 20 * MIB, whole);
    let quarter = slew(WHOLE, 0, SECOND / 2, 0, whole);
    assert_eq!(falling, quarter, "a quarter a second is the least");
    let fast = slew(WHOLE, 0, SECOND / 2, 100 * MIB, whole);
    assert_eq!(fast, WHOLE - WHOLE / 4);
    assert_eq!(
        slew(WHOLE, WHOLE / 2, SECOND * 10, 100 * MIB, whole),
        WHOLE / 2
    );
}

#[test]
fn the_meter_counts_flushes_and_leaves_idle_time_out() {
    let mut meter = Meter::new();
    let mut now = 0;
    for _ in 0..100 {
        meter.begin(now);
        now += 20 * MILLISECOND;
        meter.wrote(now, 10 * MIB, 20 * MILLISECOND);
        now += 80 * MILLISECOND;
        meter.end(now);
        now += SECOND;
    }
    // 10 MiB in a tenth of a second; the writes alone took a fifth of that.
    let rate = meter.rate(now) / MIB;
    assert!((95..=105).contains(&rate), "{rate} MiB/s");
    let speed = meter.write_speed() / MIB;
    assert!((450..=550).contains(&speed), "{speed} MiB/s");
}

#[test]
fn the_meter_tells_that_a_store_hangs() {
    let mut meter = Meter::new();
    meter.begin(0);
    meter.wrote(SECOND, 500 * MIB, SECOND);
    let before = meter.rate(SECOND);
    let after = meter.rate(20 * SECOND);
    assert!(after * 10 < before, "{before} and {after}");
    // Writes without pressure say nothing about the store.
    meter.end(SECOND);
    meter.wrote(2 * SECOND, 4096, SECOND);
    assert_eq!(meter.rate(30 * SECOND), before);
}
