//! Processes replace, append to, rewrite and remake files of a mount, and others do so in the source, while
//! processes read them: a reader sees one version, whole ([`versions`](foliocache_sim::versions)).
//!
//! # Model
//!
//! Nine [modes](modes::MODES) of a mount, each on ext4 and on XFS, in rounds. A round makes all files in the
//! source, mounts it, and runs writers and readers, each in a separate process. Then it kills the mount, or ends it
//! in order, and compares the source with the ledger.
//!
//! The processes are this test program, with their task in [`worker::WORK`]. They end with the round: by a kill if
//! they do not, and on their own if the test is gone.
//!
//! | variable | default |
//! |---|---|
//! | `FOLIOCACHE_STRESS`: seconds, for all modes together | 60 |
//! | `FOLIOCACHE_SEED` | the time, printed |
//! | `FOLIOCACHE_VERSIONS_ONLY`: the name of a mode, which takes all the time | all modes |
//!
//! Needs FUSE and root.

mod modes;
mod round;
mod worker;

use crate::common::no_root_or_fuse;
use foliocache_sim::Rng;
use modes::MODES;
use round::{Counts, Disk, play};
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn setting<T: FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    let value = text.parse();
    Some(value.unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap().as_nanos() as u64 % 1_000_000_007
}

#[test]
#[ignore = "system tier"]
fn readers_see_whole_versions_on_mounts_of_every_mode() {
    if no_root_or_fuse() {
        return;
    }
    let seconds: u64 = setting("FOLIOCACHE_STRESS").unwrap_or(60);
    let seed = setting("FOLIOCACHE_SEED").unwrap_or_else(fresh_seed);
    let only: Option<String> = setting("FOLIOCACHE_VERSIONS_ONLY");
    let modes = MODES.iter().filter(|mode| match &only {
        Some(only) => only == mode.name,
        None => true,
    });
    let modes: Vec<_> = modes.collect();
    assert!(!modes.is_empty(), "no mode {only:?}; there are {MODES:?}");
    println!("FOLIOCACHE_SEED={seed}");
    let disks = Disk::all();
    let time = Duration::from_secs(seconds) / (modes.len() * disks.len()) as u32;
    let mut failures = Vec::new();
    let mut rng = Rng::new(seed);
    for mode in modes {
        for disk in &disks {
            let mut counts = Counts::default();
            let failed = play(mode, disk, time, rng.fork(), &mut counts);
            println!("{} on {}: {counts:?}", mode.name, disk.kind);
            failures.extend(failed);
        }
    }
    assert!(failures.is_empty(), "seed {seed}:\n{}", failures.join("\n"));
}

/// The worker process of a round; does nothing outside a round.
#[test]
#[ignore = "system tier"]
fn worker() {
    worker::run_if_wanted();
}
