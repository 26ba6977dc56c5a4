//! Samples of made-up surroundings, and of the real ones.

use super::*;
use std::time::Instant;

const MIB: u64 = 1 << 20;

/// A folder that looks like `/proc`, beside one that looks like a cgroup tree.
struct Surroundings(tempfile::TempDir);

impl Surroundings {
    fn new(groups: &str, kind: &str, options: &str) -> Self {
        let made = Self(tempfile::tempdir().unwrap());
        made.write("proc/self/cgroup", groups);
        let tree = made.0.path().join("tree");
        let mounts = format!(
            "30 29 0:26 / {} rw - {kind} cgroup {options}\n",
            tree.display()
        );
        made.write("proc/self/mountinfo", &mounts);
        made.write(
            "proc/meminfo",
            "MemTotal:       1024 kB\nMemFree: 1 kB\nMemAvailable:    768 kB\n",
        );
        made
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.0.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn monitor(&self) -> Monitor {
        Monitor::at(&self.0.path().join("proc")).unwrap()
    }
}

fn cgroups(outside: &Outside) -> Vec<(u64, u64)> {
    let levels = outside.levels.iter();
    levels
        .filter(|level| level.kind == LevelKind::Cgroup)
        .map(|level| (level.limit / MIB, level.used / MIB))
        .collect()
}

#[test]
fn version_2_counts_every_limit_on_the_way_up_and_no_clean_page_cache() {
    let made = Surroundings::new("0::/a/b\n", "cgroup2", "rw");
    let mib = |n: u64| (n * MIB).to_string();
    made.write("tree/a/b/memory.max", "max\n");
    made.write("tree/a/b/memory.high", &mib(80));
    made.write("tree/a/b/memory.current", &mib(60));
    made.write(
        "tree/a/b/memory.stat",
        &format!(
            "anon 1\ninactive_file {}\nactive_file {}\nslab_reclaimable {}\nfile_dirty {}\n",
            mib(10),
            mib(5),
            mib(2),
            mib(3)
        ),
    );
    made.write("tree/a/memory.max", &mib(100));
    made.write("tree/a/memory.current", &mib(90));
    made.write("tree/memory.max", "max\n");
    made.write(
        "tree/a/b/memory.pressure",
        "some avg10=1.00 avg60=0.00 avg300=0.00 total=4711\nfull avg10=0.00 total=3\n",
    );
    let outside = made.monitor().sample();
    assert_eq!(cgroups(&outside), [(80, 46), (100, 90)]);
    let stalls = Stalls {
        total_us: 4711,
        own_group: true,
    };
    assert_eq!(outside.stalls, Some(stalls));
    let machine = Level {
        kind: LevelKind::Machine,
        limit: MIB,
        used: MIB / 4,
    };
    assert!(outside.levels.contains(&machine), "{outside:?}");
}

#[test]
fn version_1_knows_the_limit_of_groups_out_of_sight() {
    let made = Surroundings::new("4:memory:/\n", "cgroup", "rw,memory");
    made.write("tree/memory.limit_in_bytes", "9223372036854771712\n");
    made.write("tree/memory.usage_in_bytes", &(30 * MIB).to_string());
    let stat = |limit: u64| {
        format!(
            "dirty 1\nhierarchical_memory_limit {limit}\ntotal_inactive_file {}\n\
             total_active_file 0\ntotal_dirty {}\n",
            20 * MIB,
            5 * MIB
        )
    };
    made.write("tree/memory.stat", &stat(9223372036854771712));
    let mut monitor = made.monitor();
    assert_eq!(cgroups(&monitor.sample()), []);
    made.write("tree/memory.stat", &stat(50 * MIB));
    assert_eq!(cgroups(&monitor.sample()), [(50, 15)]);
}

#[test]
fn a_process_that_is_moved_is_found_again() {
    let made = Surroundings::new("0::/a\n", "cgroup2", "rw");
    for (group, limit) in [("a", 10), ("b", 20)] {
        made.write(
            &format!("tree/{group}/memory.max"),
            &(limit * MIB).to_string(),
        );
        made.write(&format!("tree/{group}/memory.current"), "0\n");
    }
    let mut monitor = made.monitor();
    assert_eq!(cgroups(&monitor.sample()), [(10, 0)]);
    made.write("proc/self/cgroup", "0::/b\n");
    assert_eq!(cgroups(&monitor.sample()), [(20, 0)]);
}

#[test]
fn nothing_to_read_is_no_error() {
    let empty = tempfile::tempdir().unwrap();
    let mut monitor = Monitor::at(empty.path()).unwrap();
    assert_eq!(monitor.sample(), Outside::default());
}

#[test]
fn a_waker_ends_the_sleep() {
    let mut monitor = Monitor::new().unwrap();
    let waker = monitor.waker();
    let outside = monitor.sample();
    assert!(
        outside
            .levels
            .iter()
            .any(|level| level.kind == LevelKind::Machine)
    );
    let start = Instant::now();
    waker.set();
    monitor.rest(Duration::from_secs(3600));
    assert!(start.elapsed() < Duration::from_secs(600));
    // It was taken: the next sleep takes its time.
    monitor.rest(Duration::from_millis(1));
}
