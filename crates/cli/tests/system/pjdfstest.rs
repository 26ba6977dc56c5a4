//! pjdfstest on a mount and on the directory behind it: POSIX semantics and permissions.
//!
//! Needs FUSE, root, and pjdfstest 0.2.2.

use crate::common::{Folder, no_root_or_fuse, output};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The fewest cases that must run. The skipped ones need other kinds of file systems, or a remount.
const CASES: usize = 398;
const NOT_SKIPPED: usize = 384;

/// All that a directory of Linux offers. Time stamps come from a clock that moves on every 10 ms at
/// the least.
const CONFIG: &str = r#"
    [features]
    posix_fallocate = {}
    utime_now = {}
    utimensat = {}
    rename_ctime = {}
    file_flags = []
    [settings]
    naptime = 0.02
    allow_remount = false
    [dummy_auth]
    entries = [["nobody", "nogroup"], ["games", "games"]]
"#;

/// pjdfstest: `FOLIOCACHE_PJDFSTEST`, or `pjdfstest` of the path.
fn pjdfstest() -> PathBuf {
    let named = std::env::var_os("FOLIOCACHE_PJDFSTEST").map(PathBuf::from);
    let program = named.unwrap_or_else(|| "pjdfstest".into());
    let works = Command::new(&program).arg("--version").output();
    assert!(
        works.is_ok_and(|output| output.status.success()),
        "{} does not run: `cargo install pjdfstest --version 0.2.2` and set FOLIOCACHE_PJDFSTEST \
         to it",
        program.display()
    );
    program
}

/// The results of the cases by name: `ok`, `FAILED` or `skipped`.
fn cases(config: &Path, place: &Path, other_place: &Path) -> BTreeMap<String, String> {
    let mut command = Command::new(pjdfstest());
    command.arg("-c").arg(config).arg("-p").arg(place);
    command.arg("-s").arg(other_place).env("NO_COLOR", "1");
    let done = output(&mut command);
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let case = |line: &str| {
        let (name, result) = line.split_once(' ')?;
        let known = ["ok", "FAILED", "skipped"].contains(&result.trim());
        (known && name.contains("::")).then(|| (name.to_owned(), result.trim().to_owned()))
    };
    let cases: BTreeMap<_, _> = text.lines().filter_map(case).collect();
    let skipped = with(&cases, "skipped").len();
    assert!(
        cases.len() >= CASES && cases.len() - skipped >= NOT_SKIPPED,
        "{} cases, {skipped} of them skipped, on {}: {text}{}",
        cases.len(),
        place.display(),
        String::from_utf8_lossy(&done.stderr)
    );
    println!(
        "{}: {} ok, {} failed, {skipped} skipped",
        place.display(),
        with(&cases, "ok").len(),
        with(&cases, "FAILED").len()
    );
    cases
}

fn with<'a>(cases: &'a BTreeMap<String, String>, result: &str) -> Vec<&'a String> {
    let mut names = Vec::new();
    for (name, found) in cases {
        if found == result {
            names.push(name);
        }
    }
    names
}

#[test]
#[ignore = "system tier"]
fn no_case_of_pjdfstest_fails_on_the_mount_alone() {
    if no_root_or_fuse() {
        return;
    }
    let folder = Folder::public("pjdfstest");
    let config = folder.top().join("config.toml");
    fs::write(&config, CONFIG).unwrap();
    let mounted = folder.mount(&["--allow-other"]);
    let inside = cases(&config, &folder.mount_point(), &folder.plain());
    let behind = cases(&config, &folder.source(), &folder.mount_point());
    let (alone, both): (Vec<_>, Vec<_>) = with(&inside, "FAILED")
        .into_iter()
        .partition(|&name| behind.get(name).is_none_or(|result| result != "FAILED"));
    println!("failed on the mount and on the directory: {both:?}");
    assert!(alone.is_empty(), "failed on the mount alone: {alone:?}");
    mounted.end_well();
}
