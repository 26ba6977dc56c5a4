//! Absences and forms that a scan of the sources can hold up.
//!
//! # Model
//!
//! Each check takes one [`Source`] and looks at its `live` view, so that comments, strings and test
//! code cannot offend. The rooms named in the tables below are the crates' folders.

use super::Violation;
use super::source::{Area, Source, blank, find_word, is_word, past_closing, split_top};

/// Lines a file may have, tests not counted.
const MAX_LINES: usize = 600;

/// A path that only some rooms may name.
struct Absence {
    /// The first segment and the ones that may not follow it; no segments: it may not be named.
    root: &'static str,
    heads: &'static [&'static str],
    /// Rooms in which the path is fine.
    allowed: &'static [&'static str],
    /// Single files in which it is fine.
    allowed_files: &'static [&'static str],
    why: &'static str,
}

const ABSENCES: &[Absence] = &[
    Absence {
        root: "std",
        heads: &["sync", "thread", "thread_local"],
        allowed: &["sync", "cli", "bench", "sim", "xtask"],
        allowed_files: &["crates/sys/src/lock.rs"],
        why: "only `sync` names the primitives that the model checkers replace; \
              import them from `foliocache_sync`",
    },
    Absence {
        root: "core",
        heads: &["sync"],
        allowed: &["sys", "sync", "cli", "bench", "sim", "xtask"],
        allowed_files: &[],
        why: "atomics come from `foliocache_sync`, or the model checkers do not see them",
    },
    Absence {
        root: "alloc",
        heads: &["sync"],
        allowed: &["sync"],
        allowed_files: &[],
        why: "`Arc` comes from `foliocache_sync`",
    },
    Absence {
        root: "loom",
        heads: &[],
        allowed: &["sync"],
        allowed_files: &[],
        why: "only `sync` names the model checkers",
    },
    Absence {
        root: "shuttle",
        heads: &[],
        allowed: &["sync"],
        allowed_files: &[],
        why: "only `sync` names the model checkers",
    },
    Absence {
        root: "std",
        heads: &["fs", "net"],
        allowed: &["sys", "fuse", "cli", "bench", "sim", "xtask"],
        allowed_files: &[],
        why: "only `sys` makes system calls",
    },
    Absence {
        root: "std",
        heads: &["path"],
        allowed: &[
            "sys",
            "vfs",
            "fs",
            "foliocache",
            "fuse",
            "cli",
            "bench",
            "sim",
            "xtask",
        ],
        allowed_files: &[],
        why: "`mm` and what is below it know no path",
    },
];

/// Rooms of which several instances live in one process, so that a global would join them.
const NO_GLOBALS: &[&str] = &["xarray", "mm", "vfs", "fs", "foliocache"];

/// Files whose global is meant to join them: all directories share the process's limit of open files, and all caches its exit.
const GLOBALS_ALLOWED: &[&str] = &[
    "crates/fs/src/dirfs/directories.rs",
    "crates/fs/src/dirfs/open_files.rs",
    "crates/foliocache/src/exit.rs",
];

/// All checks of one file.
pub(crate) fn check(source: &Source) -> Vec<Violation> {
    let mut found = Vec::new();
    module_header(source, &mut found);
    static_mut(source, &mut found);
    system_test_is_ignored(source, &mut found);
    if source.area == Area::Src {
        crate_root(source, &mut found);
        if !source.test {
            length(source, &mut found);
            absences(source, &mut found);
            globals(source, &mut found);
            assembly(source, &mut found);
            unsafe_header(source, &mut found);
            memory_ordering(source, &mut found);
        }
    }
    found
}

fn module_header(source: &Source, found: &mut Vec<Violation>) {
    let first = source
        .text
        .lines()
        .find(|l| !l.trim().is_empty())
        .unwrap_or("");
    let opens = first.starts_with("//!");
    // A model test is wholly under a cfg, which may come before its header.
    let outer = source.area == Area::Outer && !source.header().is_empty();
    if !opens && !outer {
        let message = "opens without `//!`: say in one sentence what this file is".to_owned();
        found.push(Violation::new(&source.path, 1, "module header", message));
    }
}

fn length(source: &Source, found: &mut Vec<Violation>) {
    let lines = source.live_lines();
    if lines > MAX_LINES {
        let message =
            format!("{lines} lines without tests, {MAX_LINES} at most: one concept a file");
        found.push(Violation::new(&source.path, 0, "length", message));
    }
}

fn absences(source: &Source, found: &mut Vec<Violation>) {
    for absence in ABSENCES {
        let file_allowed = absence
            .allowed_files
            .iter()
            .any(|file| source.path == std::path::Path::new(file));
        if file_allowed || absence.allowed.contains(&source.room.as_str()) {
            continue;
        }
        for (at, name) in named(&source.live, absence.root, absence.heads) {
            let message = format!("`{name}`: {}", absence.why);
            found.push(Violation::new(
                &source.path,
                source.line(at),
                "absence",
                message,
            ));
        }
    }
}

/// Where `root::head` is named, be it straight or in a group such as `root::{a, head::b}`.
fn named(code: &str, root: &str, heads: &[&str]) -> Vec<(usize, String)> {
    let mut hits = Vec::new();
    for at in find_word(code, root) {
        // `self::std::…` and `crate::loom::…` are ours.
        if code[..at].ends_with("::") && at > 2 && is_word(code.as_bytes()[at - 3]) {
            continue;
        }
        let Some(rest) = code[at + root.len()..].strip_prefix("::") else {
            // `extern crate loom`, `use loom as l`
            let before = code[..at].trim_end();
            if heads.is_empty() && (before.ends_with("crate") || before.ends_with("use")) {
                hits.push((at, root.to_owned()));
            }
            continue;
        };
        if heads.is_empty() {
            hits.push((at, format!("{root}::")));
            continue;
        }
        let parts = if rest.starts_with('{') {
            split_top(&rest[1..past_closing(rest, 0).saturating_sub(1).max(1)])
        } else {
            vec![rest]
        };
        for part in parts {
            let part = part.trim_start();
            let len = part.bytes().position(|b| !is_word(b)).unwrap_or(part.len());
            if heads.contains(&&part[..len]) {
                hits.push((at, format!("{root}::{}", &part[..len])));
            }
        }
    }
    hits
}

fn static_mut(source: &Source, found: &mut Vec<Violation>) {
    for at in find_word(&source.code, "static") {
        // Not the lifetime of `&'static mut T`.
        let lifetime = source.code[..at].ends_with('\'');
        let rest = source.code[at + "static".len()..].trim_start();
        if !lifetime && rest.starts_with("mut ") {
            let message = "`static mut`: there is no sound use of it here".to_owned();
            found.push(Violation::new(
                &source.path,
                source.line(at),
                "static mut",
                message,
            ));
        }
    }
}

/// Statics whose type is more than numbers, text and arrays of them.
fn globals(source: &Source, found: &mut Vec<Violation>) {
    let allowed = GLOBALS_ALLOWED
        .iter()
        .any(|file| source.path == std::path::Path::new(file));
    if !NO_GLOBALS.contains(&source.room.as_str()) || allowed {
        return;
    }
    let locals: Vec<_> = find_word(&source.live, "thread_local!")
        .into_iter()
        .map(|at| at..past_closing(&source.live, at))
        .collect();
    let code = blank(&source.live, &locals);
    for at in find_word(&code, "static") {
        let item = &code[at..code[at..].find([';', '=']).map_or(code.len(), |i| at + i)];
        let Some((_, ty)) = item.split_once(':') else {
            continue;
        };
        if !code[..at].ends_with('\'') && !is_plain(ty) {
            let message = format!(
                "`{}`: two caches live in one process, so nothing here is global; \
                 make it a `const` or a field",
                item.trim()
            );
            found.push(Violation::new(
                &source.path,
                source.line(at),
                "global",
                message,
            ));
        }
    }
}

fn is_plain(ty: &str) -> bool {
    const PLAIN: [&str; 18] = [
        "u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "i128", "isize",
        "f32", "f64", "bool", "char", "str", "static",
    ];
    ty.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty() && !word.starts_with(|c: char| c.is_ascii_digit()))
        .all(|word| PLAIN.contains(&word))
}

/// Assembly and imported functions are how code calls past the standard library.
fn assembly(source: &Source, found: &mut Vec<Violation>) {
    if source.room == "sys" {
        return;
    }
    let mut report = |at, what: &str| {
        let message = format!("{what}: only `sys` speaks to the machine");
        found.push(Violation::new(
            &source.path,
            source.line(at),
            "absence",
            message,
        ));
    };
    for name in ["asm!", "global_asm!", "naked_asm!"] {
        for at in find_word(&source.live, name) {
            report(at, name);
        }
    }
    for at in find_word(&source.live, "extern") {
        let rest = source.live[at + "extern".len()..].trim_start();
        let after_abi = match rest.strip_prefix('"') {
            Some(abi) => abi
                .split_once('"')
                .map_or("", |(_, after)| after.trim_start()),
            None => rest,
        };
        if after_abi.starts_with('{') {
            report(at, "a block of foreign functions");
        }
    }
}

/// A crate's root denies unsafe; a file that needs it says so for itself.
fn crate_root(source: &Source, found: &mut Vec<Violation>) {
    let attribute = |level: &str| source.code.contains(&format!("#![{level}(unsafe_code)]"));
    if source.root && !attribute("deny") && !attribute("forbid") {
        let message = "a crate's root has `#![deny(unsafe_code)]`".to_owned();
        found.push(Violation::new(&source.path, 1, "unsafe", message));
    }
    for (at, _) in source.live.match_indices("#[allow(unsafe_code)]") {
        let message = "`#[allow(unsafe_code)]` on an item: the whole file opts in, at its top, \
                       under a `# Safety` header";
        found.push(Violation::new(
            &source.path,
            source.line(at),
            "unsafe",
            message.to_owned(),
        ));
    }
}

fn unsafe_header(source: &Source, found: &mut Vec<Violation>) {
    if let Some(&at) = find_word(&source.live, "unsafe").first()
        && !source.has_section("Safety")
    {
        let message = "unsafe code in a file whose header has no `# Safety` section".to_owned();
        found.push(Violation::new(
            &source.path,
            source.line(at),
            "unsafe",
            message,
        ));
    }
}

fn memory_ordering(source: &Source, found: &mut Vec<Violation>) {
    if source.has_section("Memory ordering") {
        return;
    }
    let imported = source.live.contains("Ordering::{") || source.live.contains("Ordering::*");
    let first = ["Acquire", "Release", "AcqRel", "SeqCst"]
        .into_iter()
        .flat_map(|name| find_word(&source.live, name))
        .filter(|&at| imported || source.live[..at].ends_with("Ordering::"))
        .min();
    if let Some(at) = first {
        let message = "a non-Relaxed ordering in a file whose header has no `# Memory ordering` \
                       section: name what pairs with what";
        found.push(Violation::new(
            &source.path,
            source.line(at),
            "ordering",
            message.to_owned(),
        ));
    }
}

/// Tests of `tests/system/` and `tests/system_*.rs` need a machine: they are ignored by a plain
/// `cargo test`, and the system tier asks for the ignored ones.
fn system_test_is_ignored(source: &Source, found: &mut Vec<Violation>) {
    let mut parts = source.path.iter().filter_map(|part| part.to_str());
    let program = parts.by_ref().find(|&part| part == "tests");
    let program = program.and(parts.next()).unwrap_or("");
    let is_system = program == "system" || program.starts_with("system_");
    if source.area != Area::Outer || !is_system {
        return;
    }
    for (at, _) in source.code.match_indices("#[test]") {
        let until = source.code[at..]
            .find("fn ")
            .map_or(source.code.len(), |i| at + i);
        let from = source.code[..at].rfind(['}', ';', '{']).unwrap_or(0);
        if !source.code[from..until].contains("#[ignore") {
            let message = "a system test carries `#[ignore = \"system tier\"]`".to_owned();
            found.push(Violation::new(
                &source.path,
                source.line(at),
                "system test",
                message,
            ));
        }
    }
}

#[cfg(test)]
mod tests;
