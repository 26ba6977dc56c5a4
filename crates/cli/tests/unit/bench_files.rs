//! `foliocache bench` on files: each case in tiny form, and that nothing of it stays behind.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A folder on a disk; goes away with the value.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let folder = tmp.join(format!("bench-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    fn names(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.0).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn bench(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_foliocache"));
    command.arg("bench").args(arguments);
    command
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

/// Memory cgroups that processes of this test's program left behind; `id` is in their names.
fn cgroups(id: u32) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.path().is_dir() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if name.starts_with(&format!("foliocache-bench-{id}-")) {
                    found.push(entry.path());
                }
                folders.push(entry.path());
            }
        }
    }
    found
}

/// Whether the machine is said to have no memory cgroups, so that a case may refuse.
fn without_cgroups() -> bool {
    let missing = std::env::var("FOLIOCACHE_MISSING").unwrap_or_default();
    missing.split(',').any(|name| name == "memcg")
}

/// Runs a case in `folder`; None where memory cgroups are missing and it said so.
fn report(case: &str, folder: &Folder, arguments: &[&str]) -> Option<Value> {
    let dir = folder.0.to_str().unwrap();
    // In less, the kernel's buffered writer is killed where others keep the disk busy, and folios are smaller than
    // requests of `pin`.
    let memory = match case {
        "fault" | "stream" | "pin" => "16M",
        _ => "8M",
    };
    let common = ["--quick", "--json", "--memory", memory, "--samples", "2"];
    let mut command = bench(&[&[case], &common[..], arguments].concat());
    if case != "hitratio" {
        command.args(["--dir", dir]);
    }
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = child.spawn().unwrap();
    let id = child.id();
    let output: Output = child.wait_with_output().unwrap();
    assert_eq!(folder.names(), [] as [PathBuf; 0], "files stay behind");
    assert_eq!(cgroups(id), [] as [PathBuf; 0], "cgroups stay behind");
    let said = text(&output.stderr);
    if without_cgroups() && said.contains("memory cgroup") {
        println!("skipped: {said}");
        return None;
    }
    assert!(output.status.success(), "{said}");
    assert_eq!(said, "");
    let json: Value = serde_json::from_str(text(&output.stdout)).expect("JSON");
    assert_eq!(json["case"], case);
    for row in json["rows"].as_array().unwrap() {
        assert!(row["value"].as_f64().unwrap() > 0.0, "{row}");
        assert_eq!(row["samples"].as_array().unwrap().len(), 2);
        // Hits in memory are counted by the second, like those of pread.
        let hit = row["name"].as_str().unwrap().contains(", hit") || case == "hits";
        if hit
            || ["faults", "ns"].iter().any(|unit| row["unit"] == *unit)
            || row["name"] == "hot set"
        {
            assert!(row["cpu_s_per_gb"].is_null() && row["hit_ratio"].is_null());
            continue;
        }
        if case != "hitratio" {
            let cpu = &row["cpu_s_per_gb"];
            assert!(cpu["process"].as_f64().unwrap() > 0.0, "{row}");
            assert!(cpu["kernel_threads"].as_f64().unwrap() >= 0.0, "{row}");
            let own = cpu["reclaim"].as_f64().unwrap() + cpu["background"].as_f64().unwrap();
            assert!(own >= 0.0, "{row}");
        }
        if ["rand", "fault", "pin"].contains(&case) && row["unit"] == "op/s" {
            let us = |of: &str| row["latency_us"][of].as_f64().unwrap();
            let (p50, p99, p99_9) = (us("p50"), us("p99"), us("p99_9"));
            assert!(0.0 < p50 && p50 <= p99 && p99 <= p99_9, "{row}");
        }
        if !["seq", "stream", "pin"].contains(&case) && row["unit"] != "pages/s" {
            let hits = row["hit_ratio"].as_f64().unwrap();
            assert!((0.0..=1.0).contains(&hits), "{row}");
        }
    }
    Some(json)
}

/// Names of ratios, without those on zram, which not every machine has. Where it has none, a note
/// says so.
fn ratios(json: &Value) -> Vec<&str> {
    let ratios = json["ratios"].as_object().unwrap();
    let (zram, disk): (Vec<&str>, Vec<&str>) = ratios
        .keys()
        .map(String::as_str)
        .partition(|name| name.contains("_zram"));
    let notes = json["notes"].as_array().unwrap();
    let refused = |note: &Value| note.as_str().unwrap().starts_with("nothing on zram: ");
    assert_eq!(zram.is_empty(), notes.iter().any(refused), "{notes:?}");
    disk
}

#[test]
fn many_small_files() {
    let folder = Folder::new("create");
    let dir = folder.0.to_str().unwrap();
    let tree = ["--dirs", "4", "--files", "50", "--memory", "8M"];
    let mut command = bench(&["create", "--json", "--samples", "2", "--dir", dir]);
    let output = command.args(tree).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(folder.names(), [] as [PathBuf; 0], "files stay behind");
    let json: Value = serde_json::from_str(text(&output.stdout)).expect("JSON");
    assert_eq!(
        ratios_of(&json),
        [
            "create_2t_vs_1t",
            "create_2t_vs_1t_kernel",
            "create_late_vs_early",
            "create_late_vs_early_kernel",
            "create_late_vs_kernel",
            "create_vs_kernel",
        ]
    );
    for row in json["rows"].as_array().unwrap() {
        assert_eq!(row["unit"], "files/s");
        assert!(row["value"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["latency_us"]["p99_9"].as_f64().unwrap() > 0.0, "{row}");
    }
}

#[test]
fn small_files_with_default_settings() {
    let folder = Folder::new("small");
    let dir = folder.0.to_str().unwrap();
    let tree = ["--dirs", "3", "--files", "20", "--memory", "16M"];
    let mut command = bench(&["small", "--json", "--samples", "2", "--dir", dir]);
    let output = command.args(tree).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(folder.names(), [] as [PathBuf; 0], "files stay behind");
    let json: Value = serde_json::from_str(text(&output.stdout)).expect("JSON");
    // A note reports the features that the machine lacks.
    let notes = json["notes"].to_string();
    let missing = [
        ("cold_open_read_vs_kernel", "nothing cold: "),
        (
            "create_device_writes_per_1000",
            "no count of the device's writes",
        ),
    ];
    let mut expected = vec![
        "change_seen_p99_ms",
        "create_100k_last_vs_first",
        "create_100k_last_vs_first_kernel",
        "create_durable_vs_kernel",
        "create_vs_kernel",
        "metadata_changed_vs_kernel",
        "metadata_vs_kernel",
        "open_read64_close_vs_kernel",
        "open_read_close_changed_vs_kernel",
        "open_read_close_vs_kernel",
        "walk_changed_vs_kernel",
        "walk_default_vs_kernel",
    ];
    let there = missing.iter().filter(|(_, note)| !notes.contains(note));
    expected.extend(there.map(|(ratio, _)| ratio));
    expected.sort_unstable();
    let (hard, soft): (Vec<_>, Vec<_>) = ratios_of(&json)
        .into_iter()
        .partition(|name| name.ends_with("_hard"));
    assert_eq!(soft, expected);
    let writes = &json["ratios"]["create_device_writes_per_1000"]["median"];
    assert!(writes.as_f64() != Some(0.0), "nothing is durable without");
    if !notes.contains("the hard limit of open files is") {
        let with_hard = |name: &&str| format!("{name}_hard");
        assert_eq!(hard, expected.iter().map(with_hard).collect::<Vec<_>>());
    }
}

#[test]
fn logs_with_default_settings() {
    let folder = Folder::new("wal");
    let dir = folder.0.to_str().unwrap();
    let small = ["--memory", "16M", "--seconds", "0.05", "--samples", "2"];
    let mut command = bench(&["wal", "--json", "--dir", dir]);
    let output = command.args(small).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(folder.names(), [] as [PathBuf; 0], "files stay behind");
    let json: Value = serde_json::from_str(text(&output.stdout)).expect("JSON");
    let mut expected = Vec::new();
    for what in ["append100", "append16k", "append4k", "group4", "overwrite"] {
        for of in ["p99_vs_kernel", "vs_direct", "vs_kernel"] {
            expected.push(format!("wal_{what}_{of}"));
        }
    }
    assert_eq!(ratios_of(&json), expected);
    for row in json["rows"].as_array().unwrap() {
        assert!(row["value"].as_f64().unwrap() > 0.0, "{row}");
        let us = |of: &str| row["latency_us"][of].as_f64().unwrap();
        assert!(0.0 < us("p50") && us("p50") <= us("p99"), "{row}");
        let threads = 1 + 3 * u64::from(row["name"].as_str().unwrap().contains("one file"));
        assert_eq!(row["threads"], threads);
    }
}

fn ratios_of(json: &Value) -> Vec<&str> {
    let ratios = json["ratios"].as_object().unwrap();
    ratios.keys().map(String::as_str).collect()
}

#[test]
fn sequential_passes() {
    let folder = Folder::new("seq");
    let Some(json) = report("seq", &folder, &[]) else {
        return;
    };
    assert_eq!(
        ratios(&json),
        [
            "seq_read_vs_direct",
            "seq_read_vs_direct_depth1",
            "seq_read_vs_kernel_buffered",
            "seq_write_vs_direct",
            "seq_write_vs_direct_depth1",
            "streams16_threads_vs_one",
            "streams16_vs_one",
        ]
    );
    let place = json["host"]["kernel_files"].as_str().unwrap();
    assert!(place.ends_with(folder.0.to_str().unwrap()), "{place}");
}

#[test]
fn random_reads() {
    let folder = Folder::new("rand");
    let arguments = ["--seconds", "0.05", "--threads", "2"];
    let Some(json) = report("rand", &folder, &arguments) else {
        return;
    };
    assert_eq!(
        ratios(&json),
        [
            "async_vs_blocking_hits",
            "rand_read_vs_direct",
            "rand_read_vs_direct_depth1",
            "rand_read_vs_kernel",
        ]
    );
    // Popular pages are in every cache by then: a quarter of the file holds four fifths of the
    // reads, whatever the policy.
    for row in json["rows"].as_array().unwrap() {
        if row["hit_ratio"].is_null() {
            continue;
        }
        let hits = row["hit_ratio"].as_f64().unwrap();
        match row["variant"].as_str().unwrap() {
            direct if direct.starts_with("O_DIRECT") => assert_eq!(hits, 0.0, "{row}"),
            // Its turn may have been short, if the disk was busy.
            kernel if kernel.starts_with("kernel") => assert!(hits > 0.0, "{row}"),
            _ => assert!(hits > 0.5, "{row}"),
        }
        assert_eq!(row["threads"], 2);
    }
}

#[test]
fn loaders() {
    let folder = Folder::new("loader");
    let dir = folder.0.to_str().unwrap();
    // Large requests of a ring take half of the memory.
    let small = ["--memory", "32M", "--seconds", "0.05", "--samples", "2"];
    let mut command = bench(&["loader", "--json", "--dir", dir]);
    let child = command.args(small).stdout(Stdio::piped());
    let child = child.stderr(Stdio::piped()).spawn().unwrap();
    let id = child.id();
    let output = child.wait_with_output().unwrap();
    assert_eq!(folder.names(), [] as [PathBuf; 0], "files stay behind");
    assert_eq!(cgroups(id), [] as [PathBuf; 0], "cgroups stay behind");
    let said = text(&output.stderr);
    if without_cgroups() && said.contains("memory cgroup") {
        println!("skipped: {said}");
        return;
    }
    assert!(output.status.success(), "{said}");
    let json: Value = serde_json::from_str(text(&output.stdout)).expect("JSON");
    assert_eq!(
        ratios_of(&json),
        [
            "loader_batch_p99_vs_mmap",
            "loader_batch_vs_direct",
            "loader_batch_vs_mmap",
            "loader_batch_vs_pread",
            "loader_epoch_vs_direct",
            "loader_epoch_vs_mmap",
            "loader_epoch_vs_pread",
            "loader_hot_p99_vs_direct",
            "loader_hot_vs_direct",
            "loader_hot_vs_mmap",
            "loader_hot_vs_pread",
            "loader_uniform_p99_vs_direct",
            "loader_uniform_vs_direct",
            "loader_uniform_vs_mmap",
            "loader_uniform_vs_pread",
        ]
    );
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 5 + 5 + 5 + 4);
    for row in rows {
        assert!(row["value"].as_f64().unwrap() > 0.0, "{row}");
        let us = |of: &str| row["latency_us"][of].as_f64().unwrap();
        assert!(0.0 < us("p50") && us("p50") <= us("p99"), "{row}");
        let device = row["device_bytes_per_byte"].as_f64().unwrap();
        let (name, by) = (
            row["name"].as_str().unwrap(),
            row["variant"].as_str().unwrap(),
        );
        match by {
            // Every byte, and those under way at the end of a turn.
            direct if direct.starts_with("O_DIRECT") => {
                assert!((0.99..1.5).contains(&device), "{row}");
            }
            // The memory holds a fifth of the set at most, so most are misses.
            "foliocache" if name.contains("uniform") => assert!(device > 0.5, "{row}"),
            "foliocache" if name.contains("of a tenth") => assert!(device < 0.9, "{row}"),
            _ => assert!(device >= 0.0, "{row}"),
        }
    }
    let refused = bench(&["loader", "--dir", dir, "--memory", "16M"]).output();
    assert!(text(&refused.unwrap().stderr).contains("at least 32 MiB"));
}

#[test]
fn streams_second_by_second() {
    let folder = Folder::new("stream");
    let Some(json) = report("stream", &folder, &["--seconds", "0.08", "--threads", "2"]) else {
        return;
    };
    let mut expected = vec![
        "fairness_cached_beside_uncached",
        "hot_set_kept",
        "stream_cpu_threads_vs_kernel_buffered",
        "stream_cpu_vs_kernel_buffered",
        "stream_flatness",
        "stream_flatness_vs_kernel_buffered",
        "stream_longer_vs_kernel_buffered",
        "stream_uncached_vs_cached",
        "stream_uncached_vs_cached_once",
        "stream_uncached_vs_direct",
        "stream_uncached_vs_direct_depth1",
        "stream_uncached_vs_kernel_buffered",
        "stream_uncached_vs_kernel_dontcache",
        "stream_view_vs_direct_depth1",
        "write_kernel_dontcache_vs_kernel_buffered",
        "write_uncached_vs_buffered",
        "write_uncached_vs_kernel_buffered",
    ];
    let notes = json["notes"].as_array().unwrap();
    let unknown = |note: &Value| {
        note.as_str()
            .unwrap()
            .starts_with("no RWF_DONTCACHE on the disk")
    };
    if notes.iter().any(unknown) {
        expected.retain(|name| !name.contains("dontcache"));
    }
    assert_eq!(ratios(&json), expected);
    for row in json["rows"].as_array().unwrap() {
        // Of each of two turns; none of passes that go once through a file.
        let expected = match row["name"].as_str().unwrap().trim_start_matches("zram, ") {
            "read 64 KiB" => 4,
            "read 64 KiB, longer" => 14,
            _ => 0,
        };
        let intervals = row["series"].as_array().map_or(0, Vec::len);
        assert_eq!(intervals, 2 * expected, "{row}");
        if row["name"] == "hot set" {
            assert!(row["value"].as_f64().unwrap() > 0.9 * 1024.0, "{row}");
        }
    }
}

#[test]
fn hits_in_working_sets() {
    let folder = Folder::new("hits");
    let Some(json) = report("hits", &folder, &["--seconds", "0.02"]) else {
        return;
    };
    // Sets of up to the 8 MiB that were given.
    let mut expected = Vec::new();
    for len in ["hit4k", "hit64"] {
        for of in ["pages_vs_pread", "vs_mmap", "vs_pread"] {
            for set in ["16k", "256k", "4m"] {
                expected.push(format!("{len}_{of}_{set}"));
            }
        }
    }
    assert_eq!(ratios_of(&json), expected);
    assert_eq!(json["rows"].as_array().unwrap().len(), 2 * 3 * 4);
}

/// Whether the kernel's caches can be dropped.
fn can_drop_caches() -> bool {
    let file = fs::OpenOptions::new()
        .write(true)
        .open("/proc/sys/vm/drop_caches");
    file.is_ok()
}

#[test]
fn a_walk_of_names_that_are_not_cached() {
    let folder = Folder::new("coldwalk");
    let dir = folder.0.to_str().unwrap();
    let case = ["coldwalk", "--json", "--samples", "2", "--memory", "96M"];
    let tree = ["--dirs", "20", "--files", "100", "--dir", dir];
    let output = bench(&[&case[..], &tree].concat()).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(folder.names(), [] as [PathBuf; 0], "files stay behind");
    if !output.status.success() {
        assert!(
            !can_drop_caches() || said.contains("no memory cgroup"),
            "{said}"
        );
        return;
    }
    let json: Value = serde_json::from_str(text(&output.stdout)).expect("JSON");
    assert_eq!(
        ratios_of(&json),
        [
            "coldwalk_alone_vs_kernel",
            "coldwalk_cached_vs_kernel",
            "coldwalk_cpu_vs_kernel",
            "coldwalk_vs_kernel",
            "coldwalk_vs_kernel_threads"
        ]
    );
    for row in json["rows"].as_array().unwrap() {
        assert_eq!(row["unit"], "names/s");
        assert!(row["value"].as_f64().unwrap() > 0.0, "{row}");
        assert!(
            row["cpu_s_per_gb"]["process"].as_f64().unwrap() > 0.0,
            "{row}"
        );
        // A sample of 63 names, and others work on the machine.
        assert!(row["hit_ratio"].as_f64().unwrap() < 0.1, "{row}");
    }
    let many = [
        "--dirs", "10", "--files", "10000", "--memory", "96M", "--dir", dir,
    ];
    let output = bench(&[&["coldwalk"], &many[..]].concat())
        .output()
        .unwrap();
    let said = text(&output.stderr);
    assert!(said.contains("whose inodes do not fit"), "{said}");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn batches_of_reads() {
    let folder = Folder::new("batch");
    let Some(json) = report("batch", &folder, &["--seconds", "0.02"]) else {
        return;
    };
    let sizes = ["", "_8", "_1k", "_4k"];
    let mut expected: Vec<String> = Vec::new();
    for size in sizes.into_iter().chain(["_pages"]) {
        for ratio in [
            "batch64_hit_vs_single",
            "batch64_hit_vs_mmap",
            "batch64_hit_vs_floor",
        ] {
            expected.push(format!("{ratio}{size}"));
        }
        expected.push(format!("batch8_hit_vs_single{size}"));
    }
    for size in sizes {
        for ratio in ["batch64_cold_vs_io_uring", "batch64_cold_vs_single"] {
            expected.push(format!("{ratio}{size}"));
        }
    }
    expected.push("view_hit_vs_mmap_4k".to_owned());
    expected.sort_unstable();
    let found: Vec<&String> = json["ratios"].as_object().unwrap().keys().collect();
    assert!(found.into_iter().eq(&expected));
    assert_eq!(json["rows"].as_array().unwrap().len(), 5 * 7 + 1 + 4 * 6);
}

#[test]
fn pins() {
    let folder = Folder::new("pin");
    let Some(json) = report("pin", &folder, &["--seconds", "0.05"]) else {
        return;
    };
    assert_eq!(
        ratios(&json),
        [
            "pin_counted_128k_vs_none",
            "pin_counted_threads_vs_none",
            "pin_counted_vs_none",
            "pin_isolated_vs_none",
            "pin_kept_vs_none",
            "pin_over_64_vs_none",
            "pin_p50_counted_vs_none",
            "pin_p99_counted_vs_none",
            "pin_vs_reference",
            "pin_write_vs_reference",
        ]
    );
    let rows = json["rows"].as_array().unwrap();
    let alone: Vec<_> = rows.iter().filter(|row| row["name"] == "pin_ns").collect();
    let variants = ["for reads", "a plain reference", "for writes"];
    assert!(alone.iter().map(|row| &row["variant"]).eq(variants));
    assert!(alone.iter().all(|row| row["unit"] == "ns"));
}

#[test]
fn page_faults() {
    let folder = Folder::new("fault");
    let arguments = ["--seconds", "0.05", "--threads", "2"];
    let Some(json) = report("fault", &folder, &arguments) else {
        return;
    };
    let (on_ext4, others): (Vec<_>, Vec<_>) =
        (ratios(&json).into_iter()).partition(|name| name.contains("ext4"));
    let notes = json["notes"].as_array().unwrap();
    // The kernel's pool of huge pages is empty on most machines.
    let no_huge = |note: &Value| {
        note.as_str()
            .unwrap()
            .starts_with("nothing of ours in huge pages: ")
    };
    let with_huge = on_ext4.contains(&"fault_huge_vs_ext4");
    assert!(
        on_ext4.is_empty() || with_huge != notes.iter().any(no_huge),
        "{notes:?}"
    );
    let not_ext4 = |note: &Value| note.as_str().unwrap().starts_with("nothing on ext4: ");
    assert_eq!(on_ext4.is_empty(), notes.iter().any(not_ext4), "{notes:?}");
    assert_eq!(
        others,
        [
            "fault_batched_vs_single",
            "fault_batched_vs_single_16k",
            "fault_down_vs_kernel_16k",
            "fault_down_vs_kernel_2m",
            "fault_down_vs_kernel_4k",
            "fault_down_vs_up_16k",
            "fault_down_vs_up_2m",
            "fault_down_vs_up_4k",
            "fault_down_vs_up_kernel",
            "fault_load_threads_one_file_kernel",
            "fault_load_threads_one_file_ours",
            "fault_load_threads_two_files_kernel",
            "fault_load_threads_two_files_ours",
            "fault_store_threads_one_file_kernel",
            "fault_store_threads_one_file_ours",
            "fault_store_threads_two_files_kernel",
            "fault_store_threads_two_files_ours",
            "fault_strided_vs_kernel_16k",
            "fault_strided_vs_kernel_2m",
            "fault_strided_vs_kernel_4k",
            "fault_thread_vs_inline_2m",
            "fault_thread_vs_inline_64k",
            "fault_vs_kernel_2m",
            "fault_vs_kernel_64k",
            "faults_reduced",
            "faults_reduced_16k",
            "faults_reduced_2m",
            "faults_reduced_written_16k",
            "load_faults_down_vs_up_16k",
            "load_faults_down_vs_up_2m",
            "load_faults_down_vs_up_4k",
            "map_random_kernel_advice",
            "map_random_p99_vs_madv_random",
            "map_random_thread_vs_inline",
            "map_random_vs_kernel_mmap",
            "map_random_vs_madv_random",
            "map_zipf_kernel_advice",
            "map_zipf_p99_vs_madv_random",
            "map_zipf_thread_vs_inline",
            "map_zipf_vs_kernel_mmap",
            "map_zipf_vs_madv_random",
            "read_fault_thread_vs_inline_64k",
            "read_fault_vs_kernel_64k",
            "resident_vs_tmpfs_huge",
        ]
    );
    let rows = json["rows"].as_array().unwrap().iter();
    let faults: Vec<_> = rows
        .filter(|row| row["unit"] == "faults")
        .map(|row| (row["variant"].as_str().unwrap(), row["value"].as_f64()))
        .collect();
    // A fault for each of 4,096 pages, and a few of the program's own.
    let faults_of = |name: &str| {
        let mut found = faults.iter().filter(|(variant, _)| *variant == name);
        found
            .next()
            .unwrap_or_else(|| panic!("{faults:?}"))
            .1
            .unwrap()
    };
    assert!((4096.0..4196.0).contains(&faults_of("kernel, tmpfs")));
    for mode in ["inline", "thread"] {
        let ours = |around| faults_of(&format!("foliocache {mode}, {around}"));
        assert_eq!(ours("4 KiB"), 4096.0);
        // The first are smaller: a page, two, four, eight.
        let least = 4096.0 / 16.0 + 4.0;
        assert!((least..least + 8.0).contains(&ours("64 KiB")), "{faults:?}");
    }
    let few = ["written", "huge=always", "2 MiB", "untracked"];
    let few =
        |variant: &str| !variant.contains("thread") && few.iter().any(|end| variant.ends_with(end));
    let few = faults.iter().filter(|(variant, _)| few(variant));
    // How many pages the kernel maps at once is not ours: eight on a busy machine, single ones where memory is short.
    few.for_each(|(variant, value)| {
        let most = if variant.starts_with("kernel") {
            4196.0
        } else {
            100.0
        };
        assert!(value.unwrap() < most, "{variant}: {value:?}");
    });
}

#[test]
fn hit_ratios() {
    let folder = Folder::new("hitratio");
    let json = report("hitratio", &folder, &[]).expect("it needs no cgroup");
    let mut expected = Vec::new();
    for other in ["lru", "quick_cache"] {
        for trace in ["build", "database", "loop", "mix", "web"] {
            expected.push(format!("hit_ratio_vs_{other}_{trace}"));
        }
    }
    assert_eq!(ratios_of(&json), expected);
    // Counts need no control.
    let mut ratios = json["ratios"].as_object().unwrap().values();
    assert!(ratios.all(|ratio| ratio["control"].is_null()));
    // By its nature: with LRU, a loop over more than fits has no hits.
    let lru = json["rows"].as_array().unwrap().iter();
    let lru = lru.filter(|row| row["variant"] == "LRU" && row["name"] == "loop");
    assert!(lru.map(|row| &row["hit_ratio"]).eq([&Value::from(0.0)]));
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(120), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// However a case ends, its files, disks and cgroups go.
#[test]
fn a_case_that_is_killed_leaves_nothing_behind() {
    let folder = Folder::new("killed");
    let dir = folder.0.to_str().unwrap();
    let arguments = [
        "seq",
        "--memory",
        "8M",
        "--samples",
        "1000000",
        "--dir",
        dir,
    ];
    let mut command = bench(&arguments);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child: Child = command.spawn().unwrap();
    let mut ended = false;
    wait_for("files are made", || {
        ended = child.try_wait().unwrap().is_some();
        ended || !folder.names().is_empty()
    });
    assert!(!ended || without_cgroups(), "the case ended by itself");
    child.kill().unwrap();
    let id = child.id();
    child.wait().unwrap();
    wait_for("everything is taken away", || {
        folder.names().is_empty() && cgroups(id).is_empty()
    });
}

/// The kernel's processes have been started when the case finds that a file of its is gone.
#[test]
fn a_case_that_fails_while_it_is_set_up_leaves_nothing_behind() {
    let folder = Folder::new("fails");
    let dir = folder.0.to_str().unwrap();
    let mut command = bench(&["batch", "--quick", "--memory", "8M", "--dir", dir]);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let id = child.id();
    wait_for("two files are made", || {
        let made = folder.names().pop().map(fs::read_dir);
        made.is_some_and(|files| files.is_ok_and(|files| files.count() >= 2))
    });
    let made = folder.names().pop().unwrap();
    fs::remove_file(made.join("cached")).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = text(&output.stderr);
    let expected = match without_cgroups() {
        true => "no memory cgroup",
        false => "cannot set up cached: ",
    };
    assert!(said.contains(expected), "{said}");
    assert_eq!(said.matches('\n').count(), 1, "{said}");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(folder.names(), [] as [PathBuf; 0]);
    assert_eq!(cgroups(id), [] as [PathBuf; 0]);
}

#[test]
fn bad_input_with_files_is_refused() {
    let folder = Folder::new("bad-input");
    let dir = folder.0.to_str().unwrap();
    let missing = folder.0.join("missing");
    let missing = missing.to_str().unwrap();
    for (arguments, complaint) in [
        (
            &["pread", "--memory", "8M"][..],
            "pread has no use for --memory\n",
        ),
        (&["pwrite", "--dir", dir], "pwrite has no use for --dir\n"),
        (&["seq", "--seconds", "1"], "seq has no use for --seconds\n"),
        (
            &["hitratio", "--threads", "2"],
            "hitratio has no use for --threads\n",
        ),
        (&["seq", "--memory", "much"], "--memory: "),
        (&["seq", "--memory", "1M"], "memory: at least 8 MiB\n"),
        (&["rand", "--memory", "1000T"], "memory: more than half"),
        (
            &["rand", "--dir", "/dev/shm"],
            "/dev/shm is memory and not a disk",
        ),
        (&["seq", "--dir", missing], "missing: "),
    ] {
        let output = bench(arguments).output().unwrap();
        let said = text(&output.stderr);
        assert!(said.contains(complaint), "{arguments:?}: {said}");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert_eq!(said.matches('\n').count(), 1, "{said}");
        assert_eq!(text(&output.stdout), "");
    }
    assert_eq!(folder.names(), [] as [PathBuf; 0]);
}
