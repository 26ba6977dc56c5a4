//! `foliocache bench` as a program: what it prints and how it ends.

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

const TINY: [&str; 4] = ["--samples", "1", "--seconds", "0.01"];

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
        assert_eq!(json["rows"][0]["samples"].as_array().unwrap().len(), 1);
        assert!(json["ratios"][ratio]["median"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn a_walk_of_small_trees() {
    let sizes = ["--dirs", "3", "--files", "20", "--threads", "3"];
    let output = bench(&[&["walk", "--json", "--samples", "1"], &sizes[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json: Value = serde_json::from_str(text(&output.stdout)).expect("JSON");
    let ratios = json["ratios"].as_object().unwrap();
    assert_eq!(
        ratios.keys().collect::<Vec<_>>(),
        [
            "locks_per_miss_locked",
            "locks_per_miss_rcu",
            "walk_aa",
            "walk_cached_aa",
            "walk_cached_dirfs_vs_kernel",
            "walk_cached_vs_kernel",
            "walk_rcu_vs_locked",
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
            "foliocache: at least one sample is needed\n",
        ),
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
