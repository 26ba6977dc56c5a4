//! `foliocache bench` as a program: its output and its exit status.

use serde_json::Value;
use std::process::{Command, Output};

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_foliocache"))
        .arg("bench")
        .args(arguments)
        .output()
        .expect("the program starts")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

const TINY: [&str; 4] = ["--samples", "2", "--seconds", "0.01"];

#[test]
fn json_is_one_object_on_one_line() {
    for (case, ratio) in [
        ("pwrite", "pwrite_vs_kernel"),
        ("pread", "pread_samefolio_scaling"),
        ("stat", "stat_scaling_2t"),
    ] {
        let output = bench(&[&[case, "--quick", "--json"], &TINY[..]].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(text(&output.stderr), "");
        let printed = text(&output.stdout);
        assert_eq!(printed.matches('\n').count(), 1);
        let json: Value = serde_json::from_str(printed).expect("JSON");
        assert_eq!(json["case"], case);
        assert_eq!(json["rows"][0]["samples"].as_array().unwrap().len(), 2);
        assert!(json["ratios"][ratio]["median"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn a_walk_of_small_trees() {
    let sizes = ["--dirs", "3", "--files", "20", "--threads", "3"];
    let output = bench(&[&["walk", "--json", "--samples", "2"], &sizes[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json: Value = serde_json::from_str(text(&output.stdout)).expect("JSON");
    let ratios = json["ratios"].as_object().unwrap();
    assert_eq!(
        ratios.keys().collect::<Vec<_>>(),
        [
            "locks_per_miss_locked",
            "locks_per_miss_rcu",
            "walk_cached_dirfs_vs_kernel",
            "walk_cached_vs_kernel",
            "walk_rcu_vs_locked",
            "walk_rcu_vs_one_lock",
        ]
    );
    assert_eq!(ratios["locks_per_miss_rcu"]["max"], 1.0);
    assert_eq!(ratios["locks_per_miss_locked"]["median"], 2.0);
    for row in json["rows"].as_array().unwrap() {
        assert!(row["value"].as_f64().unwrap() > 0.0, "{row}");
        assert_eq!(row["threads"], 3);
    }
}

#[test]
fn a_table_without_json() {
    let output = bench(&[&["pread", "--threads", "1"], &TINY[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    assert!(printed.contains("%stddev") && printed.contains("pread64_vs_kernel"));
    assert!(!printed.contains("pread_samefolio_scaling"));
}

#[test]
fn bad_input_is_refused() {
    for (arguments, complaint) in [
        (&["warp"][..], "pwrite, pread"),
        (
            &["pread", "--threads", "0"],
            "foliocache: threads: from 1 to 1024\n",
        ),
        (
            &["pread", "--samples", "0"],
            "foliocache: samples: an even number from 2 on, half of them in each order\n",
        ),
        (
            &["pread", "--samples", "3"],
            "foliocache: samples: an even number from 2 on, half of them in each order\n",
        ),
        (
            &["pread", "--trace", "x"],
            "foliocache: pread has no use for --trace\n",
        ),
        (&["pread", "--all"], "cannot be used with"),
        (&["pread", "--json", "--markdown"], "cannot be used with"),
        (&["pread", "--output", "x"], "--markdown"),
        (
            &["pread", "--seconds", "nan"],
            "foliocache: a sample takes more than 0 seconds",
        ),
        (&["pread", "--seconds", "soon"], "invalid value"),
        (
            &["pread", "--dirs", "2"],
            "foliocache: pread has no use for --dirs\n",
        ),
        (
            &["walk", "--files", "0"],
            "foliocache: dirs, files: from 1 to 100000\n",
        ),
        (
            &["walk", "--dirs", "100000", "--files", "100000"],
            "more than half of this machine's memory",
        ),
    ] {
        let output = bench(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let said = text(&output.stderr);
        assert!(said.contains(complaint), "{arguments:?}: {said}");
        assert_eq!(text(&output.stdout), "");
    }
}

#[test]
fn without_a_case_all_are_listed() {
    let output = bench(&[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    for case in ["pwrite", "hits", "coldwalk", "hitratio", "pin"] {
        let mut lines = printed.lines();
        assert!(lines.any(|line| line.starts_with(case)), "{printed}");
    }
    assert!(printed.contains("--all"));
}

/// Two cases, put into a document that has text and an old section of one.
#[test]
fn sections_go_into_a_document() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("performance.md");
    let old =
        "# Performance\n\n<!-- bench pread -->\nold\n<!-- end of bench pread -->\n\nThe end.\n";
    std::fs::write(&path, old).unwrap();
    let output = path.to_str().unwrap();
    let cases = [
        "pread",
        "pwrite",
        "--quick",
        "--markdown",
        "--output",
        output,
    ];
    let done = bench(&[&cases[..], &TINY[..]].concat());
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert_eq!(text(&done.stdout), "");
    let document = std::fs::read_to_string(&path).unwrap();
    assert!(document.starts_with("# Performance\n\n<!-- bench pread -->\n### `bench pread`: "));
    assert!(document.contains("\n\nThe end.\n\n<!-- bench pwrite -->\n"));
    assert!(!document.contains("old\n"));
    for part in [
        "| `pread64_vs_mmap` | ",
        "| `pwrite_vs_kernel` | ",
        "; load ",
    ] {
        assert!(document.contains(part), "{part}: {document}");
    }
}

#[test]
fn a_document_that_is_broken_stays_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("performance.md");
    std::fs::write(&path, "<!-- bench pwrite -->\n").unwrap();
    let output = path.to_str().unwrap();
    let done = bench(
        &[
            &["pwrite", "--markdown", "--threads", "1", "--output", output],
            &TINY[..],
        ]
        .concat(),
    );
    assert_eq!(done.status.code(), Some(1));
    let said = text(&done.stderr);
    assert!(said.contains("cannot write the report to "), "{said}");
    assert_eq!(
        std::fs::read_to_string(&path).unwrap(),
        "<!-- bench pwrite -->\n"
    );
}

#[test]
fn markdown_on_stdout_names_the_machine_and_no_folder() {
    let done = bench(&[&["pwrite", "--markdown", "--threads", "1"], &TINY[..]].concat());
    assert!(done.status.success(), "{}", text(&done.stderr));
    let printed = text(&done.stdout);
    assert!(printed.starts_with("<!-- bench pwrite -->\n"), "{printed}");
    assert!(
        printed.contains(" CPUs, ") && printed.contains("; tmpfs; "),
        "{printed}"
    );
    assert!(!printed.contains("/dev/shm"), "{printed}");
}

#[test]
fn a_trace_that_is_given() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let lines: String = (0..2000).map(|at| format!("{} 2\n", at % 50)).collect();
    std::fs::write(&path, format!("# pages\n{lines}")).unwrap();
    let trace = ["--trace", path.to_str().unwrap()];
    let arguments = ["hitratio", "--json", "--samples", "2", "--memory", "8M"];
    let done = bench(&[&arguments[..], &trace].concat());
    assert!(done.status.success(), "{}", text(&done.stderr));
    let json: Value = serde_json::from_str(text(&done.stdout)).expect("JSON");
    let ratios = json["ratios"].as_object().unwrap();
    assert_eq!(
        ratios.keys().collect::<Vec<_>>(),
        ["hit_ratio_vs_lru_given", "hit_ratio_vs_quick_cache_given"]
    );
    // It fits into the cache, and the warm-up reads all of it.
    for row in json["rows"].as_array().unwrap() {
        assert_eq!(
            (row["name"].as_str(), row["hit_ratio"].as_f64()),
            (Some("given trace"), Some(1.0))
        );
    }
    let notes = json["notes"].to_string();
    assert!(notes.contains("4000 accesses of 51 pages"), "{notes}");
    assert!(notes.contains("give less --memory"), "{notes}");

    std::fs::write(&path, "1\nnothing\n").unwrap();
    let done = bench(&[&arguments[..], &trace].concat());
    assert_eq!(done.status.code(), Some(2));
    let said = text(&done.stderr);
    assert!(
        said.contains("trace: line 2: \"nothing\": invalid digit"),
        "{said}"
    );
}
