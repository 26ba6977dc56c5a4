//! Documents that must agree with the tree.
//!
//! # Model
//!
//! - Every promise of `docs/semantics.md` names its tests. A promise is a list item; it ends in
//!   ``— test: `name` `` or ``— tests: `a`, `b` ``, a name being that of a function under `#[test]`,
//!   or of one that a macro makes a test of, with as many path segments before it as the reader
//!   needs. No two tests have one name. Sections whose heading starts with
//!   "Not promised" or "How to read" hold no promises.
//! - Every rank of `sync::rank::Rank` stands in `docs/locking.md`.
//! - Links between the documents lead somewhere.
//! - Each document with Rust code is compiled: `crates/guide/src/lib.rs` includes it.
//! - CHANGELOG.md has an "Unreleased" section, and both licences are there.
//! - No file names the machine that it was written on, and `Cargo.lock` names one registry.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::modules::normal;
use super::source::{Source, find_word, is_word, line_of, past_closing, split_top};
use super::{Tree, Violation};

/// Files that a checkout cannot do without, and a line that each must have.
const REQUIRED: &[(&str, &str)] = &[
    ("LICENSE-MIT", "MIT License"),
    ("LICENSE-APACHE", "Apache License"),
    ("CHANGELOG.md", "## [Unreleased]"),
    (".ci/run", "#!/usr/bin/env bash"),
    ("README.md", "# foliocache"),
    ("ARCHITECTURE.md", "# Architecture"),
    ("docs/semantics.md", "# Semantics"),
    ("docs/locking.md", "# Locking"),
];

/// Folders of a machine that no file may name, in two halves so that this file does not.
const MACHINE: &[(&str, &str)] = &[
    ("/wo", "rk/"),
    ("/ro", "ot/"),
    ("/tmp", "/t/"),
    ("/tmp/br", "ief"),
];

/// The crate that compiles the documents of the library.
const GUIDE: &str = "crates/guide/src/lib.rs";

/// The one registry that the lock file may name.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// All checks of the documents in `tree`.
pub(crate) fn check(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (name, needle) in REQUIRED {
        let path = Path::new(name);
        match tree.read(path) {
            None => found.push(missing(path)),
            Some(text) if !text.lines().any(|l| l.trim_start().starts_with(needle)) => {
                let message = format!("has no line that starts with `{needle}`");
                found.push(Violation::new(path, 0, "documents", message));
            }
            Some(_) => {}
        }
    }
    let semantics = Path::new("docs/semantics.md");
    if let Some(text) = tree.read(semantics) {
        let tests = Tests::of(&tree.sources);
        found.extend(promises(semantics, &text, &tests));
        found.extend(tests.duplicates());
    }
    let locking = Path::new("docs/locking.md");
    let rank = tree
        .sources
        .iter()
        .find(|s| s.path == Path::new("crates/sync/src/rank.rs"));
    if let (Some(text), Some(rank)) = (tree.read(locking), rank) {
        found.extend(ranks(locking, &text, &rank.code));
    }
    let compiled = tree.read(Path::new(GUIDE));
    for path in &tree.files {
        let Some(text) = tree.read(path) else {
            continue;
        };
        found.extend(machine_paths(path, &text));
        // An adapter's documents are compiled by its own crate.
        let parts: Vec<_> = path.iter().collect();
        if let [first, adapter, _, ..] = parts[..]
            && first == "integrations"
        {
            let root = Path::new(first).join(adapter);
            let own = tree.read(&root.join("src/lib.rs")).unwrap_or_default();
            let relative = path.strip_prefix(&root).unwrap_or(path);
            let where_to = format!("{}/src/lib.rs", root.display());
            found.extend(uncompiled(path, relative, &text, &own, &where_to));
        } else if let Some(compiled) = &compiled {
            found.extend(uncompiled(path, path, &text, compiled, GUIDE));
        }
        if path.extension().is_some_and(|e| e == "md") {
            found.extend(links(path, &text, &|target| {
                tree.root.join(target).exists()
            }));
        }
        if path.ends_with("Cargo.lock") {
            found.extend(registries(path, &text));
        }
    }
    found
}

fn missing(path: &Path) -> Violation {
    Violation::new(path, 0, "documents", "is not there".to_owned())
}

/// Names of tests and their places: functions under `#[test]`, and the arguments of macros that
/// make tests.
#[derive(Default)]
pub(super) struct Tests {
    functions: BTreeMap<String, Vec<(PathBuf, usize)>>,
    by_macro: BTreeSet<String>,
}

impl Tests {
    pub(super) fn of(sources: &[Source]) -> Tests {
        let mut tests = Tests::default();
        for source in sources {
            let code = &source.code;
            for at in find_word(code, "fn") {
                let before = &code[..at];
                let attributes = before.rfind([';', '{', '}']).map_or(0, |end| end + 1);
                let name = first_word(&code[at + "fn".len()..]);
                // In a macro's own text it is `$name`.
                if before[attributes..].contains("#[test]") && !name.is_empty() {
                    let place = (source.path.clone(), line_of(code, at));
                    tests.functions.entry(name).or_default().push(place);
                }
            }
            tests.by_macro.extend(given_to_macros(code));
        }
        tests
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.functions.contains_key(name) || self.by_macro.contains(name)
    }

    /// Names that more than one function has: a promise that names one would be kept by either.
    fn duplicates(&self) -> Vec<Violation> {
        let named_twice = self.functions.iter().filter(|(_, at)| at.len() > 1);
        named_twice
            .flat_map(|(name, places)| {
                let again = places.iter().skip(1);
                again.map(move |(path, line)| {
                    let (first, at) = &places[0];
                    let message =
                        format!("`{name}` is a test of {} line {at}, too", first.display());
                    Violation::new(path, *line, "test names", message)
                })
            })
            .collect()
    }
}

fn first_word(code: &str) -> String {
    let rest = code.trim_start();
    let len = rest.bytes().position(|b| !is_word(b));
    rest[..len.unwrap_or(rest.len())].to_owned()
}

/// The words given to macros of this file whose text has `#[test]`.
fn given_to_macros(code: &str) -> Vec<String> {
    let mut words = Vec::new();
    for at in find_word(code, "macro_rules") {
        let rest = code[at + "macro_rules".len()..].trim_start();
        let name = first_word(rest.strip_prefix('!').unwrap_or(rest));
        let Some(open) = code[at..].find('{').map(|open| at + open) else {
            continue;
        };
        if !code[open..past_closing(code, open)].contains("#[test]") {
            continue;
        }
        for call in find_word(code, &name) {
            let after = call + name.len();
            if code[after..].starts_with("!(") {
                let given = &code[after + 1..past_closing(code, after + 1)];
                let given = given.split(|c: char| !(c.is_alphanumeric() || c == '_'));
                words.extend(given.map(str::to_owned));
            }
        }
    }
    words
}

/// Checks each promise of `text` against the names of the tests there are.
fn promises(path: &Path, text: &str, tests: &Tests) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut count = 0;
    for (line, item) in list_items(text) {
        count += 1;
        let mut report =
            |message: String| found.push(Violation::new(path, line, "promise", message));
        let Some((_, named)) = item
            .rsplit_once("test: ")
            .or_else(|| item.rsplit_once("tests: "))
        else {
            report("names no test: a promise ends in \"— test: `name`\"".to_owned());
            continue;
        };
        let names: Vec<_> = named.split('`').skip(1).step_by(2).collect();
        if names.is_empty() {
            report("names no test between backticks".to_owned());
        }
        for name in names {
            let function = name.rsplit("::").next().unwrap_or(name);
            if !tests.has(function) {
                report(format!("there is no test `{function}`"));
            }
        }
    }
    if count == 0 {
        found.push(Violation::new(
            path,
            0,
            "promise",
            "promises nothing".to_owned(),
        ));
    }
    found
}

/// List items with their continuation lines joined; the line, from 1, that each starts on.
fn list_items(text: &str) -> Vec<(usize, String)> {
    let mut items: Vec<(usize, String)> = Vec::new();
    let (mut open, mut fenced, mut exempt) = (false, false, false);
    for (number, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        if trimmed.starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        if trimmed.starts_with('#') {
            let title = trimmed.trim_start_matches('#').trim().to_lowercase();
            exempt = title.starts_with("not promised") || title.starts_with("how to read");
        }
        let bullet = trimmed
            .strip_prefix("- ")
            .or_else(|| trimmed.strip_prefix("* "));
        if let Some(item) = bullet {
            open = !exempt;
            if open {
                items.push((number + 1, item.to_owned()));
            }
        } else if trimmed.is_empty() || !line.starts_with(' ') {
            open = false;
        } else if let (true, Some((_, item))) = (open, items.last_mut()) {
            item.push(' ');
            item.push_str(trimmed);
        }
    }
    items
}

/// Every variant of `enum Rank` stands between backticks in the document of the lock order.
fn ranks(path: &Path, text: &str, code: &str) -> Vec<Violation> {
    let Some(at) = code.find("enum Rank") else {
        return Vec::new();
    };
    let Some(open) = code[at..].find('{').map(|i| at + i) else {
        return Vec::new();
    };
    let body = &code[open + 1..past_closing(code, open) - 1];
    split_top(body)
        .into_iter()
        .filter_map(|variant| {
            // Attributes of a variant are in brackets on separate lines.
            let name = variant
                .lines()
                .rev()
                .map(str::trim)
                .find(|l| !l.is_empty())?;
            let len = name.bytes().position(|b| !is_word(b)).unwrap_or(name.len());
            (len > 0).then_some(&name[..len])
        })
        .filter(|name| !text.contains(&format!("`{name}`")))
        .map(|name| {
            Violation::new(
                path,
                0,
                "lock order",
                format!("does not mention the rank `{name}`"),
            )
        })
        .collect()
}

/// Relative links of a Markdown file that lead nowhere.
fn links(path: &Path, text: &str, exists: &dyn Fn(&Path) -> bool) -> Vec<Violation> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("](") {
        let rest = &text[at + 2..];
        let Some(end) = rest.find([')', '\n', ' ']) else {
            continue;
        };
        let target = rest[..end].split('#').next().unwrap_or("");
        if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        let folder: PathBuf = path.parent().unwrap_or(Path::new("")).to_owned();
        if !exists(&normal(&folder.join(target))) {
            let message = format!("links to `{target}`, which is not there");
            found.push(Violation::new(path, line_of(text, at), "link", message));
        }
    }
    found
}

/// A Markdown file with Rust code that the doctests of `compiled` do not include.
///
/// `compiled` is the text of the file `by`, which includes documents; `named` is the path by which it has this one.
fn uncompiled(
    path: &Path,
    named: &Path,
    text: &str,
    compiled: &str,
    by: &str,
) -> Option<Violation> {
    let line = text
        .lines()
        .position(|line| line.trim_start().starts_with("```rust"))?;
    let included = compiled.contains(&format!("/{}\")", named.display()));
    let is_document = path.extension().is_some_and(|e| e == "md");
    (is_document && !included).then(|| {
        let message = format!("has Rust code that is not compiled: list it in {by}");
        Violation::new(path, line + 1, "code", message)
    })
}

/// Paths of the machine that a file was written on.
fn machine_paths(path: &Path, text: &str) -> Vec<Violation> {
    let mut found = Vec::new();
    for (a, b) in MACHINE {
        for (at, name) in text.match_indices(&format!("{a}{b}")) {
            // `mm/work/queue` is a path of ours; so is `{dir}/work/`.
            let before = text[..at].chars().next_back();
            if !before.is_some_and(|c| c.is_alphanumeric() || "_-.}/)>*".contains(c)) {
                let message = format!("names a folder of some machine: `{name}`");
                found.push(Violation::new(
                    path,
                    line_of(text, at),
                    "machine path",
                    message,
                ));
            }
        }
    }
    found
}

fn registries(path: &Path, text: &str) -> Vec<Violation> {
    let source = |line: &str| {
        let value = line.strip_prefix("source = \"")?.strip_suffix('"')?;
        (value != REGISTRY).then(|| value.to_owned())
    };
    text.lines()
        .enumerate()
        .filter_map(|(i, line)| {
            let message = format!("`{}` is not the public registry", source(line)?);
            Some(Violation::new(path, i + 1, "registry", message))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::source::Area;

    const DOC: &str = "docs/semantics.md";

    fn tests_in(text: &str) -> Tests {
        let path = Path::new("crates/mm/src/a.rs");
        Tests::of(&[Source::new(path, "mm", Area::Src, text.to_owned())])
    }

    fn known() -> Tests {
        tests_in(
            "//! A.\nfn helper() {}\n#[cfg(test)]\nmod t {\n    fn body() {}\n    /// Facts.\n    \
             #[test]\n    #[ignore = \"slow {\"]\n    fn reads_zeros() {}\n    macro_rules! both {\n        \
             ($($name:ident),+) => { $(#[test] fn $name() { super::$name(1); })+ };\n    }\n    \
             both!(deep_trees, renames);\n    other!(no_tests);\n}\n",
        )
    }

    fn lines(text: &str) -> Vec<usize> {
        promises(Path::new(DOC), text, &known())
            .into_iter()
            .map(|v| v.line)
            .collect()
    }

    #[test]
    fn promises_name_tests_that_exist() {
        assert_eq!(
            lines("# Read\n- A hole reads zeros — test: `mm::a::reads_zeros`\n"),
            [0; 0]
        );
        assert_eq!(
            lines("- A hole\n  reads zeros —\n  tests: `reads_zeros`, `reads_zeros`\n"),
            [0; 0]
        );
        assert_eq!(lines("# Read\n- A hole reads zeros\n"), [2]);
        assert_eq!(lines("- A hole — test: `gone`\n- B — test: none\n"), [1, 2]);
        // A function is a test only by its attribute, in test code or not, or by a macro.
        assert_eq!(lines("- A hole — test: `helper`\n"), [1]);
        assert_eq!(lines("- A hole — test: `body`\n"), [1]);
        assert_eq!(lines("- A hole — test: `no_tests`\n"), [1]);
        assert_eq!(lines("- A hole — test: `deep_trees`\n"), [0; 0]);
        assert_eq!(lines("# Nothing\n"), [0]);
        let exempt = "- A — test: `reads_zeros`\n## Not promised\n- Atomic writes\n## Write\n- B\n";
        assert_eq!(lines(exempt), [5]);
        assert_eq!(
            lines("- A — test: `reads_zeros`\n```text\n- no promise\n```\n"),
            [0; 0]
        );
    }

    #[test]
    fn two_tests_of_one_name_are_found() {
        let text = "mod a {\n#[test]\nfn one() {}\n}\nmod b {\n#[test]\nfn one() {}\n#[test]\nfn two() {}\n}\n";
        let found = tests_in(text).duplicates();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].line, 7);
        assert!(known().duplicates().is_empty());
    }

    #[test]
    fn the_lock_order_names_each_rank() {
        let code = "enum Rank {\n    Namespace,\n    #[doc(alias = \"x\")]\n    IRwsem = 4,\n}\n";
        let path = Path::new("docs/locking.md");
        assert_eq!(ranks(path, "`Namespace` then `IRwsem`", code), []);
        assert_eq!(ranks(path, "`Namespace`", code).len(), 1);
    }

    #[test]
    fn links_lead_somewhere() {
        let path = Path::new("docs/a.md");
        let text = "[b](b.md) [top](../README.md#x) [web](https://example.org) [self](#y)";
        let there = |target: &Path| target == Path::new("docs/b.md");
        let found = links(path, text, &there);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].message.contains("README"));
    }

    #[test]
    fn uncompiled_code_is_found() {
        let compiled = "#[doc = include_str!(\"../../../docs/a.md\")]";
        let line = |path: &str, text: &str| {
            let path = Path::new(path);
            uncompiled(path, path, text, compiled, GUIDE).map(|v| v.line)
        };
        let code = "# A\n```rust,no_run\nfn main() {}\n```\n";
        assert_eq!(line("docs/a.md", code), None);
        assert_eq!(line("docs/b.md", code), Some(2));
        assert_eq!(line("docs/b.md", "```text\n```\n"), None);
        assert_eq!(line("src/b.rs", code), None);
    }

    #[test]
    fn machine_paths_are_found() {
        let bad = format!("see {}{}main\n", "/wo", "rk/");
        assert_eq!(machine_paths(Path::new("a"), &bad).len(), 1);
        assert_eq!(
            machine_paths(Path::new("a"), &format!("net{bad}").replace("see ", "")),
            []
        );
    }

    #[test]
    fn one_registry() {
        let good = format!("source = \"{REGISTRY}\"\n");
        assert_eq!(registries(Path::new("Cargo.lock"), &good), []);
        let bad = "source = \"registry+https://mirror.example.org/index\"\n";
        assert_eq!(registries(Path::new("Cargo.lock"), bad).len(), 1);
    }

    #[test]
    fn required_files_are_missed() {
        let root = std::env::temp_dir().join("foliocache-xtask-no-such-folder");
        let tree = Tree {
            root,
            files: Vec::new(),
            sources: Vec::new(),
        };
        assert_eq!(check(&tree).len(), REQUIRED.len());
    }
}
