//! The inputs in `corpus`, run by an ordinary build; and the fuzzer's findings, each as a named
//! test.

#[path = "../../fs/tests/namespace_beside_tmpfs/steps.rs"]
#[allow(dead_code, reason = "the paths are others here")]
mod steps;
mod targets;
#[path = "../../fs/tests/namespace_beside_tmpfs/world.rs"]
mod world;

use std::path::Path;
use targets::Target;

/// Whether the machine is known to lack a tmpfs.
fn no_tmpfs() -> bool {
    let missing = std::env::var("FOLIOCACHE_MISSING").unwrap_or_default();
    let lacks = missing.split(',').any(|name| name == "tmpfs");
    if lacks {
        eprintln!("SKIPPED: there is no tmpfs");
    }
    lacks
}

fn run(target: Target) {
    assert_eq!(
        Target::ALL.iter().filter(|known| **known == target).count(),
        1
    );
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR"));
    let corpus = corpus.join("corpus").join(target.name());
    let mut inputs = 0;
    for file in std::fs::read_dir(corpus).expect("a corpus") {
        let path = file.expect("an entry").path();
        println!("{}", path.display());
        target.run(&std::fs::read(path).expect("an input"));
        inputs += 1;
    }
    assert!(inputs > 0, "{} has no inputs", target.name());
}

#[test]
fn inputs_of_the_index_pass() {
    run(Target::Index);
}

#[test]
fn inputs_of_files_pass() {
    run(Target::File);
}

#[test]
fn inputs_of_paths_pass() {
    if !no_tmpfs() {
        run(Target::Paths);
    }
}

#[test]
fn inputs_of_requests_pass() {
    run(Target::Requests);
}
