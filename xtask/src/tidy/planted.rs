//! The planted bugs of the code, of the list, and of the documents are the same.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::docs::Tests;
use super::source::{Area, Source, find_word};
use super::{Tree, Violation};
use crate::planted::{BUGS, Bug, last, table};

/// Where the list is.
const LIST: &str = "xtask/src/planted/list.rs";

/// Where the table is.
const DOCUMENT: &str = "docs/reliability.md";

/// All checks of planted bugs.
pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let mut found = places(&tree.sources, BUGS);
    let tests = Tests::of(&tree.sources);
    found.extend(missing_tests(&tests, BUGS));
    let document = tree.read(Path::new(DOCUMENT)).unwrap_or_default();
    found.extend(table_lines(&document, &table()));
    found
}

/// Each listed bug is planted in its crate, and each planted one is listed, once.
fn places(sources: &[Source], bugs: &[Bug]) -> Vec<Violation> {
    let list = Path::new(LIST);
    let report = |message| Violation::new(list, 0, "planted bugs", message);
    let mut found = Vec::new();
    let mut rooms: BTreeMap<&str, &str> = BTreeMap::new();
    for bug in bugs {
        if rooms.insert(bug.name, bug.room).is_some() {
            found.push(report(format!("`{}` is listed twice", bug.name)));
        }
    }
    let mut planted = BTreeSet::new();
    for source in sources
        .iter()
        .filter(|source| source.area == Area::Src && !source.test)
    {
        for at in find_word(&source.live, "planted!") {
            let Some(rest) = source.live[at..].strip_prefix("planted!(") else {
                continue;
            };
            let name = rest.split(')').next().unwrap_or("").trim();
            planted.insert(name.to_owned());
            if rooms.get(name) != Some(&source.room.as_str()) {
                let message = format!("`{name}` is not in the list of {LIST} under this crate");
                let line = source.line(at);
                found.push(Violation::new(&source.path, line, "planted bugs", message));
            }
        }
    }
    let gone = rooms.keys().filter(|name| !planted.contains(**name));
    found.extend(gone.map(|name| report(format!("`{name}` is planted nowhere"))));
    found
}

/// The tests that are to find bugs are there.
fn missing_tests(tests: &Tests, bugs: &[Bug]) -> Vec<Violation> {
    let named = bugs.iter().flat_map(|bug| bug.tests);
    let missing = named.filter(|test| !tests.has(last(test)));
    missing
        .map(|test| {
            let message = format!("there is no test `{test}`");
            Violation::new(Path::new(LIST), 0, "planted bugs", message)
        })
        .collect()
}

/// The document has each line of the table.
fn table_lines(document: &str, table: &str) -> Vec<Violation> {
    let lines: BTreeSet<&str> = document.lines().collect();
    let missing = table.lines().filter(|line| !lines.contains(line));
    missing
        .map(|line| {
            let message = format!("lacks a line of `cargo xtask planted --markdown`: {line}");
            Violation::new(Path::new(DOCUMENT), 0, "planted bugs", message)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiers::Tier;

    fn bug(name: &'static str, tests: &'static [&'static str]) -> Bug {
        Bug {
            name,
            room: "mm",
            does: "",
            tier: Tier::Unit,
            tests,
            needs: &[],
        }
    }

    fn source(text: &str) -> Source {
        let path = Path::new("crates/mm/src/a.rs");
        Source::new(path, "mm", Area::Src, text.to_owned())
    }

    fn messages(found: &[Violation]) -> Vec<String> {
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn bugs_that_are_not_planted_or_not_listed_are_found() {
        let text = "//! A.\n// planted!(of_a_comment)\nfn f() -> bool { foliocache_sync::planted!(one) }\n";
        assert_eq!(places(&[source(text)], &[bug("one", &[])]), []);
        let found = messages(&places(&[source(text)], &[bug("two", &[])]));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("crates/mm/src/a.rs:3: ") && found[0].contains("`one`"));
        assert!(found[1].contains("`two` is planted nowhere"));
        let twice = [bug("one", &[]), bug("one", &[])];
        assert_eq!(places(&[source(text)], &twice).len(), 1);
    }

    #[test]
    fn tests_that_are_gone_are_found() {
        let tests = Tests::of(&[source("//! A.\n#[test]\nfn is_there() {}\n")]);
        assert_eq!(missing_tests(&tests, &[bug("a", &["mm::b::is_there"])]), []);
        assert_eq!(
            missing_tests(&tests, &[bug("a", &["mm::b::is_gone"])]).len(),
            1
        );
    }

    #[test]
    fn a_table_of_before_is_found() {
        assert_eq!(table_lines("# A\n| a |\n| b |\n", "| a |\n| b |\n"), []);
        assert_eq!(table_lines("# A\n| a |\n", "| a |\n| b |\n").len(), 1);
    }
}
