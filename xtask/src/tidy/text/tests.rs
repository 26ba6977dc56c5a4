//! Each check fails on a bad sample and passes the good one beside it.

use std::path::Path;

use super::*;

/// The rules that a file of this room breaks.
fn rules_at(path: &str, room: &str, text: &str) -> Vec<&'static str> {
    let area = if path.contains("/src/") {
        Area::Src
    } else {
        Area::Outer
    };
    let mut source = Source::new(Path::new(path), room, area, text.to_owned());
    source.root = path.ends_with("lib.rs") || path.contains("/tests/");
    check(&source).into_iter().map(|v| v.rule).collect()
}

fn rules(room: &str, text: &str) -> Vec<&'static str> {
    rules_at(&format!("crates/{room}/src/a.rs"), room, text)
}

#[test]
fn a_module_opens_with_its_header() {
    assert_eq!(
        rules("mm", "use foliocache_sys::Errno;\n"),
        ["module header"]
    );
    assert_eq!(
        rules("mm", "#![allow(unsafe_code)]\n//! Late.\n"),
        ["module header"]
    );
    assert_eq!(rules("mm", "//! A folio.\n"), [""; 0]);
    assert_eq!(
        rules_at(
            "crates/mm/tests/a.rs",
            "mm",
            "#![cfg(loom)]\n//! A model.\n"
        ),
        [""; 0]
    );
    assert_eq!(
        rules_at("crates/mm/tests/a.rs", "mm", "fn a() {}\n"),
        ["module header"]
    );
}

#[test]
fn a_file_has_its_limit() {
    let long = format!("//! A.\n{}", "fn a() {}\n".repeat(MAX_LINES));
    assert_eq!(rules("mm", &long), ["length"]);
    let tests = format!(
        "//! A.\n#[cfg(test)]\nmod t {{\n{}}}\n",
        "fn a() {}\n".repeat(MAX_LINES)
    );
    assert_eq!(rules("mm", &tests), [""; 0]);
}

#[test]
fn only_sync_names_std_sync() {
    for bad in [
        "use std::sync::Arc;",
        "use std::{collections::BTreeMap, thread};",
        "use std::{\n    io,\n    sync::{Arc, Mutex},\n};",
        "fn a() { ::std::thread::yield_now() }",
        "use core::sync::atomic::AtomicU64;",
        "use loom::sync::Arc;",
        "use shuttle as model;",
        "std::thread_local! {}",
    ] {
        assert_eq!(
            rules("mm", &format!("//! A.\n{bad}\n")),
            ["absence"],
            "{bad}"
        );
        assert_eq!(rules("sync", &format!("//! A.\n{bad}\n")), [""; 0], "{bad}");
    }
    for good in [
        "use foliocache_sync::{Arc, thread};",
        "use std::{io::Read, collections::sync_map};",
        "// std::sync is elsewhere",
        "#[cfg(loom)]\nfn a() {}",
        "#[cfg(test)]\nmod t {\n    use std::thread;\n}",
    ] {
        assert_eq!(rules("mm", &format!("//! A.\n{good}\n")), [""; 0], "{good}");
    }
    let lock = "//! A.\nuse std::sync::Mutex;\n";
    assert_eq!(rules_at("crates/sys/src/lock.rs", "sys", lock), [""; 0]);
    assert_eq!(
        rules_at("crates/sys/src/uring/ring.rs", "sys", lock),
        ["absence"]
    );
    assert_eq!(
        rules("sys", "//! A.\nuse core::sync::atomic::AtomicU64;\n"),
        [""; 0]
    );
    assert_eq!(rules_at("crates/mm/tests/a.rs", "mm", lock), [""; 0]);
}

#[test]
fn only_sys_makes_system_calls() {
    assert_eq!(rules("fs", "//! A.\nuse std::fs::File;\n"), ["absence"]);
    assert_eq!(rules("mm", "//! A.\nuse std::path::Path;\n"), ["absence"]);
    assert_eq!(rules("fs", "//! A.\nuse std::path::Path;\n"), [""; 0]);
    let foreign = "//! A.\n//!\n//! # Safety\nunsafe extern \"C\" { fn getpid() -> i32; }\n";
    assert_eq!(rules("mm", foreign), ["absence"]);
    assert_eq!(rules("sys", foreign), [""; 0]);
    let assembly = "//! A.\n//!\n//! # Safety\nfn a() { unsafe { asm!(\"syscall\") } }\n";
    assert_eq!(rules("mm", assembly), ["absence"]);
}

#[test]
fn there_is_no_static_mut() {
    assert_eq!(
        rules("sys", "//! A.\nstatic mut N: u32 = 0;\n"),
        ["static mut"]
    );
    assert_eq!(
        rules("sys", "//! A.\nfn a(b: &'static mut u8) {}\n"),
        [""; 0]
    );
}

#[test]
fn mm_has_no_global() {
    let global = "//! A.\nstatic POOL: AtomicU64 = AtomicU64::new(0);\n";
    assert_eq!(rules("mm", global), ["global"]);
    assert_eq!(rules("sys", global), [""; 0]);
    let plain = "//! A.\nstatic NAMES: [&'static str; 2] = [\"a\", \"b\"];\n";
    assert_eq!(rules("mm", plain), [""; 0]);
    let local =
        "//! A.\nthread_local! {\n    static DEPTH: Cell<u32> = const { Cell::new(0) };\n}\n";
    assert_eq!(rules("mm", local), [""; 0]);
}

#[test]
fn unsafe_files_say_why_they_are_sound() {
    let code = "#![allow(unsafe_code)]\nfn a() { unsafe { b() } }\n";
    assert_eq!(rules("mm", &format!("//! A.\n{code}")), ["unsafe"]);
    assert_eq!(
        rules(
            "mm",
            &format!("//! A.\n//!\n//! # Safety\n//! Because.\n{code}")
        ),
        [""; 0]
    );
    assert_eq!(
        rules_at("crates/mm/src/lib.rs", "mm", "//! A.\n"),
        ["unsafe"]
    );
    let root = "//! A.\n#![deny(unsafe_code)]\n";
    assert_eq!(rules_at("crates/mm/src/lib.rs", "mm", root), [""; 0]);
    let item = "//! A.\n#[allow(unsafe_code)]\nmod raw;\n";
    assert_eq!(rules("mm", item), ["unsafe"]);
}

#[test]
fn orderings_are_explained_in_the_header() {
    for bad in [
        "fn a(b: &AtomicU64) { b.load(Ordering::Acquire); }",
        "use foliocache_sync::atomic::Ordering::{Acquire, Relaxed};",
        "use foliocache_sync::atomic::Ordering::*;\nfn a() { fence(SeqCst) }",
    ] {
        assert_eq!(
            rules("mm", &format!("//! A.\n{bad}\n")),
            ["ordering"],
            "{bad}"
        );
        let header = "//! A.\n//!\n//! # Memory ordering\n//! Pairs.\n";
        assert_eq!(rules("mm", &format!("{header}{bad}\n")), [""; 0], "{bad}");
    }
    for good in [
        "fn a(b: &AtomicU64) { b.load(Ordering::Relaxed); }",
        "enum E { Release }",
    ] {
        assert_eq!(rules("mm", &format!("//! A.\n{good}\n")), [""; 0], "{good}");
    }
}

#[test]
fn system_tests_are_ignored_by_default() {
    let path = "crates/cli/tests/system/mount.rs";
    for path in [path, "crates/cli/tests/system_soak/main.rs"] {
        assert_eq!(
            rules_at(path, "cli", "//! A.\n#[test]\nfn a() {}\n"),
            ["system test"]
        );
    }
    for good in [
        "#[test]\n#[ignore = \"system tier\"]",
        "#[ignore = \"system tier\"]\n#[test]",
    ] {
        let text = format!("//! A.\nfn first() {{}}\n{good}\nfn a() {{}}\n");
        assert_eq!(rules_at(path, "cli", &text), [""; 0], "{good}");
    }
}
