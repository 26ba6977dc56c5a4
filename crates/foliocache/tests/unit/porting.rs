//! A program that moves here from `std::fs`, as the guide shows it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The text of an example.
fn text(name: &str) -> String {
    let path = format!("{}/examples/{name}.rs", env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Lines that are in one text and not in the other: the longer of the two lists.
fn differing_lines(a: &str, b: &str) -> usize {
    let mut count = HashMap::new();
    a.lines()
        .for_each(|line| *count.entry(line).or_insert(0) += 1);
    b.lines()
        .for_each(|line| *count.entry(line).or_insert(0) -= 1);
    let of = |sign: i32| {
        count
            .values()
            .map(|n| (n * sign).max(0) as usize)
            .sum::<usize>()
    };
    of(1).max(of(-1))
}

/// Cargo puts examples beside the tests, and builds them for every run of all tests of this crate.
fn example(name: &str) -> PathBuf {
    let test = env::current_exe().unwrap();
    let folder = test.ancestors().nth(2).unwrap().join("examples");
    let program = folder.join(name);
    assert!(
        program.exists(),
        "cargo build -p foliocache --example {name} makes it"
    );
    program
}

/// A program's output about a folder, and the summary that it writes there.
fn run(name: &str, folder: &Path) -> (String, String) {
    let output = Command::new(example(name)).arg(folder).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {said}");
    assert_eq!(said, "", "{name}");
    let summary = folder.join("summary");
    let text = fs::read_to_string(&summary).unwrap();
    fs::remove_file(summary).unwrap();
    (String::from_utf8(output.stdout).unwrap(), text)
}

#[test]
fn port_of_a_program_changes_five_lines() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("a.log", "info start\nwarn slow\ninfo end\n");
    write("b.log", &"error disk\n".repeat(20_000));
    write("cut.log", "info start\n\ninfo e");
    write("empty.log", "");
    write("notes", "info nothing\n");
    fs::create_dir(folder.path().join("old.log")).unwrap();
    let (before, after) = (
        run("port_before", folder.path()),
        run("port_after", folder.path()),
    );
    assert_eq!(before, after);
    assert_eq!(before.0, "4 logs, 4 levels\n");
    assert!(before.1.contains("220000"), "{}", before.1);
    let (before, after) = (text("port_before"), text("port_after"));
    assert!((45..=55).contains(&before.lines().count()));
    assert_eq!(differing_lines(&before, &after), 5);
}
