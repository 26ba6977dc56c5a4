//! A mount in a memory cgroup: it is not killed for its own cache, shrinks for its neighbours, and
//! grows back after them.
//!
//! Needs FUSE, memory cgroups and root.

use crate::common::memcg::{MemoryGroup, no_memory_cgroups};
use crate::common::{Folder, Mounted, memory_of, pattern, run, shell, wait_for};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const PIECE: usize = 64 << 10;

/// The fixed base of a mount, measured where nothing limits it.
fn measured_base(folder: &Folder, group: &MemoryGroup, memory: &str) -> u64 {
    let command = folder.mount_command(&["--memory", memory]);
    let mounted = Mounted::start(&mut group.run(&command));
    let base = mounted.fixed_base();
    mounted.end_well();
    base
}

/// Writes a file of `mib` MiB and reads it back in a random order, piece by piece, twice; panics if
/// a byte is wrong.
fn write_and_read(path: &Path, mib: u64, seed: u64) {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .unwrap();
    let pieces = mib * MIB / PIECE as u64;
    let content = pattern(PIECE, seed);
    let mut expected = content.clone();
    // The piece's number is its first eight bytes, and the round is the next.
    let stamp = |bytes: &mut [u8], piece: u64, round: u64| {
        bytes[..8].copy_from_slice(&piece.to_le_bytes());
        bytes[8..16].copy_from_slice(&round.to_le_bytes());
    };
    let place = |n: u64, round: u64| (n * 7919 + round * 13) % pieces;
    let mut found = vec![0; PIECE];
    for round in 0..2 {
        for n in 0..pieces {
            let piece = if round == 0 { n } else { place(n, round) };
            stamp(&mut expected, piece, round);
            file.write_all_at(&expected, piece * PIECE as u64).unwrap();
        }
        for n in 0..pieces {
            let piece = place(n, round + 7);
            file.read_exact_at(&mut found, piece * PIECE as u64)
                .unwrap();
            // The second round overwrites each piece if its order meets each once.
            let last = u64::from_le_bytes(found[8..16].try_into().unwrap());
            assert!(last <= round);
            stamp(&mut expected, piece, last);
            assert!(found == expected, "piece {piece} of {}", path.display());
        }
    }
    file.sync_all().unwrap();
}

#[test]
#[ignore = "system tier"]
fn a_mount_is_not_killed_in_a_cgroup_of_its_bound_and_its_base() {
    if no_memory_cgroups() {
        return;
    }
    const BOUND: u64 = 64;
    let folder = Folder::new("pressure-own");
    let group = MemoryGroup::new("own");
    let base = measured_base(&folder, &group, "64M");
    group.limit(BOUND * MIB + base);
    let command = folder.mount_command(&["--memory", "64M"]);
    let mounted = Mounted::start(&mut group.run(&command));
    let inside = folder.mount_point();
    let files: Vec<_> = (0..3)
        .map(|n| {
            let path = inside.join(format!("large-{n}"));
            thread::spawn(move || write_and_read(&path, 2 * BOUND, n))
        })
        .collect();
    shell(
        &inside,
        "mkdir many; i=0; while [ $i -lt 1500 ]; do echo $i > many/$i; i=$((i+1)); done; \
         cat many/* > /dev/null; ls -lR > /dev/null; rm -r many",
    );
    for file in files {
        file.join().unwrap();
    }
    assert_eq!(group.kills(), 0);
    // It used its memory: the bound did not stay small either.
    let anonymous = memory_of(mounted.pid(), "Anonymous:");
    assert!(anonymous > BOUND * MIB / 2, "{anonymous}");
    mounted.end_well();
    assert_eq!(group.kills(), 0);
    assert_eq!(
        fs::metadata(folder.source().join("large-2")).unwrap().len(),
        2 * BOUND * MIB
    );
}

#[test]
#[ignore = "system tier"]
fn a_bound_larger_than_its_cgroup_is_not_reached_for() {
    if no_memory_cgroups() {
        return;
    }
    const ALLOWED: u64 = 96;
    let folder = Folder::new("pressure-large");
    let group = MemoryGroup::new("large");
    group.limit(ALLOWED * MIB);
    let command = folder.mount_command(&["--memory", "512M"]);
    let mounted = Mounted::start(&mut group.run(&command));
    let warned = |line: &String| line.contains("surroundings have no room");
    assert!(mounted.lines().iter().any(warned), "{:?}", mounted.lines());
    write_and_read(&folder.mount_point().join("file"), 3 * ALLOWED, 1);
    assert_eq!(group.kills(), 0);
    mounted.end_well();
}

/// Reads the whole of a file.
fn read_through(path: &Path, mib: u64) {
    let file = File::open(path).unwrap();
    let mut buffer = vec![0; MIB as usize];
    for at in 0..mib {
        file.read_exact_at(&mut buffer, at * MIB).unwrap();
    }
}

/// A file system in memory, unmounted with the value: before the folder that it is in goes.
struct InMemory(PathBuf);

impl InMemory {
    fn mount(at: PathBuf) -> InMemory {
        fs::create_dir(&at).unwrap();
        run(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&at));
        InMemory(at)
    }
}

impl Drop for InMemory {
    fn drop(&mut self) {
        // Lazily: a neighbour may still write to it after a failure.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
#[ignore = "system tier"]
fn the_cache_shrinks_for_a_neighbour_in_the_cgroup_and_grows_back() {
    if no_memory_cgroups() {
        return;
    }
    const BOUND: u64 = 96;
    const EATEN: u64 = 56;
    let folder = Folder::new("pressure-neighbour");
    let content = pattern(MIB as usize, 5);
    let file = File::create(folder.source().join("file")).unwrap();
    for at in 0..2 * BOUND {
        file.write_all_at(&content, at * MIB).unwrap();
    }
    file.sync_all().unwrap();
    let group = MemoryGroup::new("neighbour");
    let base = measured_base(&folder, &group, "96M");
    let allowed = BOUND * MIB + base + 12 * MIB;
    group.limit(allowed);
    let command = folder.mount_command(&["--memory", "96M"]);
    let mounted = Mounted::start(&mut group.run(&command));
    let inside = folder.mount_point().join("file");
    read_through(&inside, 2 * BOUND);
    let full = memory_of(mounted.pid(), "Anonymous:");
    assert!(full > BOUND * MIB * 3 / 4, "{full}");

    // A file in memory is charged to its writer, and stays when the writer ends.
    let eaten = InMemory::mount(folder.top().join("eaten"));
    let mut eat = Command::new("sh");
    eat.args(["-euc", "i=0; while [ $i -lt $1 ]; do dd if=/dev/zero bs=1M count=1 status=none >> \"$0\"; sleep 0.05; i=$((i+1)); done"]);
    eat.arg(eaten.0.join("file")).arg(EATEN.to_string());
    let mut neighbour = group.run(&eat).spawn().unwrap();
    // The mount is busy meanwhile.
    let start = Instant::now();
    while neighbour.try_wait().unwrap().is_none() {
        read_through(&inside, 2 * BOUND);
        assert!(start.elapsed() < Duration::from_secs(120));
    }
    let ended = neighbour.wait().unwrap();
    let small = memory_of(mounted.pid(), "Anonymous:");
    let charged = group.usage();
    let kills = group.kills();
    // The neighbour's memory is freed before anything is asserted.
    drop(eaten);
    assert!(ended.success(), "{ended:?}");
    assert_eq!(kills, 0);
    assert!(charged <= allowed);
    assert!(small + EATEN * MIB <= allowed, "{small} of {allowed}");
    wait_for("the cache to grow back", || {
        read_through(&inside, 2 * BOUND);
        memory_of(mounted.pid(), "Anonymous:") >= full - full / 8
    });
    assert_eq!(group.kills(), 0);
    mounted.end_well();
}
