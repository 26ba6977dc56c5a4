//! Every case in tiny form: it runs, and its report has the shape that scripts rely on.

use foliocache_bench::{BenchError, Settings, cases, find, run};
use serde_json::Value;

fn tiny() -> Settings {
    let mut settings = Settings::default();
    settings.samples = 2;
    settings.seconds = 0.02;
    settings
}

/// Runs a case and checks all that reports have in common; returns the JSON.
fn report(case: &str, settings: &Settings) -> Value {
    let mut rounds = Vec::new();
    let report = run(find(case).unwrap(), settings, |progress| {
        rounds.push((progress.done, progress.total));
    })
    .unwrap();
    let total = rounds.last().expect("there were rounds").1;
    let expected: Vec<_> = (1..=total).map(|done| (done, total)).collect();
    assert_eq!(rounds, expected);

    let table = report.to_string();
    assert!(table.contains("%stddev") && table.contains("%change"));
    let text = report.json();
    assert!(!text.contains('\n'));
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["case"], case);
    for fact in ["kernel", "cpu", "kernel_files"] {
        assert!(json["host"][fact].as_str().unwrap() != "", "{fact}");
    }
    assert!(json["host"]["cpus"].as_u64().unwrap() > 0);
    assert_eq!(json["host"]["load"].as_array().unwrap().len(), 3);

    for row in json["rows"].as_array().unwrap() {
        assert!(row["name"].is_string() && row["variant"].is_string());
        assert!(row["threads"].as_u64().unwrap() > 0);
        let unit = row["unit"].as_str().unwrap();
        assert!(unit == "op/s" || case == "scale" && unit == "µs/block");
        positive(&row["value"]);
        let samples = row["samples"].as_array().unwrap();
        assert_eq!(samples.len(), settings.samples);
        samples.iter().for_each(positive);
    }
    for (name, ratio) in json["ratios"].as_object().unwrap() {
        for figure in ["median", "min", "max"] {
            positive(&ratio[figure]);
        }
        let [min, median, max] =
            ["min", "median", "max"].map(|figure| ratio[figure].as_f64().unwrap());
        assert!(min <= median && median <= max, "{name}");
        // By the warm-up round all that come out near 1 have a control; a busy machine may make that wrong.
        if let Some(control) = ratio["control"].as_object() {
            let [least, most] = ["min", "max"].map(|end| control[end].as_f64().unwrap());
            assert!(least <= most, "{name}");
            // So wide that the ratio is undecided, which is shown wherever it lies.
            let is_wide = least < 0.9 || most > 1.1;
            assert!(is_wide || (0.8..=1.25).contains(&median), "{name}: {ratio}");
        }
        assert!(table.contains(name.as_str()));
    }
    json
}

fn positive(figure: &Value) {
    let figure = figure.as_f64().unwrap();
    assert!(figure.is_finite() && figure > 0.0, "{figure}");
}

fn ratio_names(json: &Value) -> Vec<&str> {
    let ratios = json["ratios"].as_object().unwrap();
    ratios.keys().map(String::as_str).collect()
}

/// Name, variant and threads of each row.
fn rows(json: &Value) -> Vec<(&str, &str, u64)> {
    let rows = json["rows"].as_array().unwrap().iter();
    rows.map(|row| {
        (
            row["name"].as_str().unwrap(),
            row["variant"].as_str().unwrap(),
            row["threads"].as_u64().unwrap(),
        )
    })
    .collect()
}

#[test]
fn pwrite() {
    let json = report("pwrite", &tiny());
    let sizes = [
        ("pwrite 64 B", "pwrite64"),
        ("pwrite 512 B", "pwrite512"),
        ("pwrite 4 KiB", "pwrite"),
        ("pwrite 16 KiB", "pwrite16k"),
        ("pwrite 64 KiB", "pwrite64k"),
        ("pwrite 128 KiB", "pwrite128k"),
    ];
    let mut names = vec![
        "pwrite8k_vs_copy".to_owned(),
        "pwrite_noprefault_vs_prefault".to_owned(),
    ];
    let mut expected = vec![
        ("pwrite 4 KiB", "foliocache, handlers", 1),
        ("pwrite 4 KiB", "foliocache, handlers, prefault", 1),
        ("pwrite 8 KiB", "foliocache", 1),
        ("pwrite 8 KiB", "copy", 1),
    ];
    for (name, id) in sizes {
        for (suffix, threads) in [("", 1), ("_threads", 2)] {
            names.extend(["copy", "kernel"].map(|to| format!("{id}{suffix}_vs_{to}")));
            expected.extend(["foliocache", "copy", "kernel"].map(|by| (name, by, threads)));
        }
    }
    names.sort_unstable();
    assert_eq!(ratio_names(&json), names);
    assert_eq!(rows(&json), expected);
}

#[test]
fn pread() {
    let json = report("pread", &tiny());
    assert_eq!(
        ratio_names(&json),
        [
            "memcpy_scaling",
            "pread16k_vs_copy",
            "pread4k_crowd_vs_threads",
            "pread4k_vs_copy",
            "pread4k_vs_kernel",
            "pread4k_vs_mmap",
            "pread64_crowd_vs_threads",
            "pread64_vs_kernel",
            "pread64_vs_mmap",
            "pread8k_vs_copy",
            "pread_samefolio_scaling",
            "shared_handle_scaling_2t",
        ]
    );
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = processors.max(2) as u64;
    let shared = "pread 4 KiB, one handle";
    let (folio, page) = ("pread 4 KiB, same folio", "copy 4 KiB, same page");
    assert_eq!(
        rows(&json),
        [
            ("pread 4 KiB", "foliocache", 1),
            ("pread 4 KiB", "kernel", 1),
            ("pread 4 KiB", "kernel mmap", 1),
            ("pread 64 B", "foliocache", 1),
            ("pread 64 B", "kernel", 1),
            ("pread 64 B", "kernel mmap", 1),
            ("pread 4 KiB", "foliocache", 1),
            ("pread 4 KiB", "copy", 1),
            ("pread 8 KiB", "foliocache", 1),
            ("pread 8 KiB", "copy", 1),
            ("pread 16 KiB", "foliocache", 1),
            ("pread 16 KiB", "copy", 1),
            (folio, "foliocache", 1),
            (page, "memcpy", 1),
            (folio, "foliocache", 2),
            (page, "memcpy", 2),
            ("pread 4 KiB, crowd", "foliocache", 4 * threads),
            ("pread 4 KiB, crowd", "foliocache", threads),
            ("pread 64 B, crowd", "foliocache", 4 * threads),
            ("pread 64 B, crowd", "foliocache", threads),
            (shared, "foliocache", 1),
            (shared, "copy", 1),
            (shared, "foliocache", 2),
            (shared, "copy", 2),
        ]
    );
}

#[test]
fn one_thread_has_nothing_to_scale() {
    let mut settings = tiny();
    settings.threads = 1;
    let json = report("pwrite", &settings);
    assert!(rows(&json).iter().all(|&(.., threads)| threads == 1));
    let json = report("pread", &settings);
    assert_eq!(
        ratio_names(&json),
        [
            "pread16k_vs_copy",
            "pread4k_vs_copy",
            "pread4k_vs_kernel",
            "pread4k_vs_mmap",
            "pread64_vs_kernel",
            "pread64_vs_mmap",
            "pread8k_vs_copy",
        ]
    );
}

#[test]
fn scale() {
    let mut settings = tiny();
    settings.memory = Some(1 << 30);
    let json = report("scale", &settings);
    assert_eq!(
        ratio_names(&json),
        [
            "scale_bound",
            "scale_bound_metadata",
            "scale_dirty_files",
            "scale_file_systems",
            "scale_shrink",
        ]
    );
    assert_eq!(rows(&json).len(), 2 + 4 * 3);
    assert!(rows(&json).iter().all(|&(.., threads)| threads == 1));
    let mut settings = tiny();
    for memory in [64 << 20, u64::MAX] {
        settings.memory = Some(memory);
        let result = run(find("scale").unwrap(), &settings, |_| ());
        assert!(matches!(result, Err(BenchError::Setting(_))));
    }
}

#[test]
fn a_bad_case_or_setting_is_refused() {
    let unknown = find("warp").err().expect("no such case").to_string();
    assert_eq!(
        unknown,
        "no case is called \"warp\"; there are pwrite, pread, hits, seq, rand, batch, loader, stream, hitratio, stat, walk, coldwalk, scale, create, small, wal, scatter, fault, pin"
    );
    for case in cases() {
        assert_eq!(find(case.name).unwrap().name, case.name);
        assert!(!case.about.is_empty());
    }
    let refused = |change: fn(&mut Settings)| {
        let mut settings = tiny();
        change(&mut settings);
        let result = run(find("pread").unwrap(), &settings, |_| ());
        assert!(matches!(result, Err(BenchError::Setting(_))));
    };
    refused(|settings| settings.samples = 0);
    refused(|settings| settings.samples = 3);
    refused(|settings| settings.seconds = 0.0);
    refused(|settings| settings.seconds = f64::NAN);
    refused(|settings| settings.threads = 0);
}
