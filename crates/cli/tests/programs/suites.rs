//! Suites of other programs on a mount, beside the same run on the directory: SQLite's tests, git, stress-ng.
//!
//! # Model
//!
//! These run by name alone, `cargo xtask test --tier programs`: they take long, and install packages with apt. A
//! program that cannot be installed is skipped, and the test says so. Each program runs without root privileges, as
//! SQLite's tests demand, in a directory and then on a mount: a failure counts if it does not occur in the
//! directory. The test prints versions and figures.

use crate::common::programs::{USER, by_user, installed};
use crate::common::{Folder, no_root_or_fuse, output, run, shell};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Runs `suite` in the plain directory and on a mount; each gets a folder of the other user.
fn on_both(name: &str, mut suite: impl FnMut(&Path) -> BTreeSet<String>) -> BTreeSet<String> {
    let folder = Folder::public(name);
    shell(folder.top(), &format!("chown {USER}:{USER} plain source"));
    let mounted = folder.mount(&["--memory", "256M", "--allow-other"]);
    let mut failed = Vec::new();
    for place in [folder.plain(), folder.mount_point()] {
        let begun = Instant::now();
        let failures = suite(&place);
        let seconds = begun.elapsed().as_secs();
        println!(
            "{name} in {}: {seconds} s, failures {failures:?}",
            place.display()
        );
        failed.push(failures);
    }
    mounted.end_well();
    failed[1].difference(&failed[0]).cloned().collect()
}

/// SQLite's test program and its tests, built once; `None` where the source cannot be had.
fn sqlite() -> Option<PathBuf> {
    if !installed("tclsh", &["tcl", "tcl-dev", "libtcl8.6", "zlib1g-dev"]) {
        return None;
    }
    let place = std::env::temp_dir().join("foliocache-sqlite");
    fs::create_dir_all(&place).unwrap();
    // A separate list: the machine's own stays unchanged.
    let script = r#"
        test -x built/testfixture && exit 0
        mkdir -p lists/partial archives/partial source
        . /etc/os-release
        keys=/usr/share/keyrings/debian-archive-keyring.gpg
        # Where the machine's packages come from, their sources are, too.
        uri=$(apt-get indextargets --format '$(REPO_URI)' "Release: $VERSION_CODENAME" | head -1)
        echo "deb-src [signed-by=$keys] $uri $VERSION_CODENAME main" > sources.list
        set -- -o Dir::Etc::sourcelist="$PWD/sources.list" -o Dir::Etc::sourceparts=/dev/null \
            -o Dir::State::lists="$PWD/lists" -o Dir::Cache="$PWD" -o APT::Sandbox::User=root
        apt-get "$@" -q update
        cd source
        apt-get "$@" -q --download-only source sqlite3
        tar xf sqlite3_*.orig.tar.xz
        cd sqlite3-*/
        CFLAGS=-O1 ./configure --with-tcl="$(dirname "$(find /usr/lib -name tclConfig.sh | head -1)")" --disable-readline
        make -j2 testfixture
        cd ../..
        rm -rf built
        mv source/sqlite3-*/ built
        chmod -R a+rX .
    "#;
    let mut build = Command::new("sh");
    let built = output(build.args(["-euc", script]).current_dir(&place));
    if !built.status.success() {
        let error = String::from_utf8_lossy(&built.stderr);
        let last = error.lines().last().unwrap_or_default();
        eprintln!("SKIPPED: SQLite's tests cannot be built: {last}");
        return None;
    }
    Some(place.join("built"))
}

#[test]
#[ignore = "programs tier"]
fn no_test_of_sqlite_fails_on_the_mount_alone() {
    if no_root_or_fuse() {
        return;
    }
    let Some(built) = sqlite() else {
        return;
    };
    println!(
        "SQLite {}",
        fs::read_to_string(built.join("VERSION")).unwrap().trim()
    );
    let alone = on_both("sqlite", |place| {
        let mut suite = by_user(place, "timeout");
        suite.arg("7200").arg(built.join("testfixture"));
        let output = output(suite.arg(built.join("test/veryquick.test")));
        let text = String::from_utf8_lossy(&output.stdout);
        let sum = text.lines().find(|line| line.contains(" errors out of "));
        println!("{}", sum.expect("the suite did not come to its end"));
        let failures = text
            .lines()
            .filter_map(|line| line.strip_prefix("!Failures on these tests:"));
        failures
            .flat_map(str::split_whitespace)
            .map(str::to_owned)
            .collect()
    });
    assert!(alone.is_empty(), "on the mount alone: {alone:?}");
}

#[test]
#[ignore = "programs tier"]
fn no_file_system_stressor_fails_on_the_mount_alone() {
    if no_root_or_fuse() || !installed("stress-ng", &["stress-ng"]) {
        return;
    }
    println!("{}", run(Command::new("stress-ng").arg("--version")).trim());
    let alone = on_both("stress-ng", |place| {
        let mut suite = by_user(place, "stress-ng");
        suite.args("--class filesystem --sequential 1 --timeout 4 --temp-path .".split(' '));
        let output = output(&mut suite);
        let text = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        // "stress-ng: fail:  [123] chattr: …"
        let failures = text
            .lines()
            .filter_map(|line| line.split_once("fail:")?.1.split_once(']'));
        failures
            .filter_map(|(_, rest)| rest.trim().split([':', ' ']).next().map(str::to_owned))
            .collect()
    });
    assert!(alone.is_empty(), "on the mount alone: {alone:?}");
}

#[test]
#[ignore = "programs tier"]
fn a_repository_is_cloned_built_packed_and_checked_on_a_mount() {
    if no_root_or_fuse() || !installed("git", &["git"]) {
        return;
    }
    let folder = Folder::new("git");
    let mounted = folder.mount(&["--memory", "256M"]);
    let this = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    println!("{}", run(Command::new("git").arg("--version")).trim());
    let begun = Instant::now();
    let mut clone = Command::new("git");
    clone.args(["clone", "-q", "--no-local"]).arg(this);
    run(clone.arg("clone").current_dir(folder.mount_point()));
    let place = folder.mount_point().join("clone");
    let steps = [
        "git fsck --full --strict",
        "env -u CARGO_TARGET_DIR -u RUSTC_WRAPPER cargo build --quiet --offline --locked -p xtask",
        "test -z \"$(git status --porcelain)\"",
        "git gc -q",
        "git fsck --full --strict",
        "git checkout -q HEAD~20 && git checkout -q -",
        "test -z \"$(git status --porcelain)\"",
        "cp -r . ../copy && diff -r . ../copy",
    ];
    for step in steps {
        shell(&place, step);
        println!("{step}: after {} s", begun.elapsed().as_secs());
    }
    mounted.end_well();
    // The source has all of it.
    shell(
        &folder.source().join("clone"),
        "git fsck --full --strict && test -z \"$(git status --porcelain)\"",
    );
}
