//! Which files the compiler reaches, and which of them only in test builds.
//!
//! # Model
//!
//! A walk from each target's root along `mod name;`, `#[path]` and `include!`. A file that no walk
//! meets is dead: it is in the tree, but never compiled. A file met only below `#[cfg(test)]` is
//! test code, whatever its name.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use super::Violation;
use super::source::{Area, Source, find_word, is_word, past_closing};

/// One `mod name;` or `include!("…")`.
#[derive(Debug, PartialEq, Eq)]
struct Declared {
    /// Where the file may be, best first.
    candidates: Vec<PathBuf>,
    /// Declared under `#[cfg(test)]`.
    test: bool,
    line: usize,
}

/// Marks roots and test-only files in `sources`; reports files that no root reaches and
/// declarations without a file. `roots` are relative to the workspace, like the sources' paths.
pub(crate) fn check(sources: &mut [Source], roots: &[PathBuf]) -> Vec<Violation> {
    let by_path: BTreeMap<PathBuf, usize> = sources
        .iter()
        .enumerate()
        .map(|(i, s)| (s.path.clone(), i))
        .collect();
    let mut found = Vec::new();
    let mut reached: Vec<Option<bool>> = vec![None; sources.len()];
    let mut queue = Vec::new();
    for root in roots {
        if let Some(&i) = by_path.get(root) {
            sources[i].root = true;
            queue.push((i, sources[i].area == Area::Outer));
        }
    }
    while let Some((i, test)) = queue.pop() {
        // Once as live code, or once more when a live route follows a test route.
        match reached[i] {
            Some(was_test) if !was_test || test => continue,
            _ => reached[i] = Some(test),
        }
        for declared in declarations(&sources[i]) {
            match declared.candidates.iter().find_map(|c| by_path.get(c)) {
                Some(&next) => queue.push((next, test || declared.test)),
                // The compiler complains about a missing file itself, unless a cfg hides it.
                None => found.push(Violation::new(
                    &sources[i].path,
                    declared.line,
                    "modules",
                    format!(
                        "declares a module without a file: {}",
                        show(&declared.candidates)
                    ),
                )),
            }
        }
    }
    for (source, reached) in sources.iter_mut().zip(reached) {
        match reached {
            Some(test) => source.test = test,
            None => found.push(Violation::new(
                &source.path,
                0,
                "dead file",
                "no target reaches this file: declare it with `mod` or delete it".to_owned(),
            )),
        }
    }
    found
}

fn show(candidates: &[PathBuf]) -> String {
    candidates
        .iter()
        .map(|c| c.display().to_string())
        .collect::<Vec<_>>()
        .join(" or ")
}

fn declarations(source: &Source) -> Vec<Declared> {
    let folder = source.path.parent().unwrap_or(Path::new(""));
    let stem = source
        .path
        .file_stem()
        .and_then(|s| s.to_str())
        .unwrap_or("");
    // A root and a mod.rs have their children beside them, any other file in a folder of its name.
    let children = if source.root || stem == "mod" {
        folder.to_owned()
    } else {
        folder.join(stem)
    };
    let mut found = Vec::new();
    for at in find_word(&source.code, "mod") {
        let Some((name, end)) = identifier(&source.code, at + "mod".len()) else {
            continue;
        };
        if !source.code[end..].trim_start().starts_with(';') {
            continue;
        }
        let inline: PathBuf = enclosing_modules(&source.code, at).iter().collect();
        let candidates = match path_attribute(source, at) {
            Some(path) if inline.as_os_str().is_empty() => vec![normal(&folder.join(path))],
            Some(path) => vec![normal(&children.join(&inline).join(path))],
            None => {
                let base = children.join(&inline);
                vec![
                    base.join(format!("{name}.rs")),
                    base.join(name).join("mod.rs"),
                ]
            }
        };
        let test = source.test_regions.iter().any(|r| r.contains(&at));
        found.push(Declared {
            candidates,
            test,
            line: source.line(at),
        });
    }
    for at in find_word(&source.code, "include!") {
        let open = at + "include!".len();
        if let Some(path) = literal(source, open, past_closing(&source.code, open)) {
            let test = source.test_regions.iter().any(|r| r.contains(&at));
            let candidates = vec![normal(&folder.join(path))];
            found.push(Declared {
                candidates,
                test,
                line: source.line(at),
            });
        }
    }
    found
}

/// The identifier after `from` and where it ends.
fn identifier(code: &str, from: usize) -> Option<(&str, usize)> {
    let start = from + code[from..].len() - code[from..].trim_start().len();
    let len = code[start..]
        .bytes()
        .position(|b| !is_word(b))
        .unwrap_or(code.len() - start);
    (len > 0 && start > from).then(|| (&code[start..start + len], start + len))
}

/// Names of the inline modules around an offset, outermost first.
pub(crate) fn enclosing_modules(code: &str, at: usize) -> Vec<&str> {
    find_word(code, "mod")
        .into_iter()
        .take_while(|&m| m < at)
        .filter_map(|m| {
            let (name, end) = identifier(code, m + "mod".len())?;
            let open = end + code[end..].find(|c: char| !c.is_whitespace())?;
            (code[open..].starts_with('{') && past_closing(code, open) > at).then_some(name)
        })
        .collect()
}

/// The value of `#[path = "…"]` among the attributes before the `mod` at `at`.
fn path_attribute(source: &Source, at: usize) -> Option<String> {
    let before = &source.code[..at];
    let item = before.rfind([';', '}', '{']).map_or(0, |i| i + 1);
    let attribute = item + before[item..].rfind("#[path")?;
    literal(source, attribute, past_closing(&source.code, attribute + 1))
}

/// The first string literal of a range, read from the unmasked text.
fn literal(source: &Source, from: usize, to: usize) -> Option<String> {
    let start = from + source.code[from..to].find('"')? + 1;
    let len = source.code[start..to].find('"')?;
    Some(source.text[start..start + len].to_owned())
}

/// Resolves `..` and `.` by name.
pub(crate) fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                out.pop();
            }
            Component::CurDir => {}
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        let area = if path.contains("/src/") {
            Area::Src
        } else {
            Area::Outer
        };
        Source::new(Path::new(path), "mm", area, text.to_owned())
    }

    #[test]
    fn an_undeclared_file_is_dead() {
        let mut sources = vec![
            source("crates/mm/src/lib.rs", "//! A.\nmod folio;\n"),
            source("crates/mm/src/folio.rs", "//! B.\n// mod forgotten;\n"),
            source("crates/mm/src/forgotten.rs", "//! C.\n"),
        ];
        let found = check(&mut sources, &[PathBuf::from("crates/mm/src/lib.rs")]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].path, Path::new("crates/mm/src/forgotten.rs"));
    }

    #[test]
    fn nested_path_and_included_files_are_reached() {
        let mut sources = vec![
            source(
                "crates/mm/src/lib.rs",
                "//! A.\npub mod folio;\nmod a {\n    mod b;\n}\n#[path = \"odd/name.rs\"]\nmod c;\ninclude!(\"table.rs\");\n",
            ),
            source(
                "crates/mm/src/folio.rs",
                "//! B.\nmod state;\n#[cfg(test)]\nmod tests;\n",
            ),
            source("crates/mm/src/folio/state.rs", "//! C.\n"),
            source("crates/mm/src/folio/tests.rs", "//! D.\nmod deep;\n"),
            source("crates/mm/src/folio/tests/deep.rs", "//! E.\n"),
            source("crates/mm/src/a/b.rs", "//! F.\n"),
            source("crates/mm/src/odd/name.rs", "//! G.\n"),
            source("crates/mm/src/table.rs", "//! H.\n"),
            source("crates/mm/tests/system.rs", "//! I.\nmod common;\n"),
            source("crates/mm/tests/common/mod.rs", "//! J.\n"),
        ];
        let roots = [
            PathBuf::from("crates/mm/src/lib.rs"),
            PathBuf::from("crates/mm/tests/system.rs"),
        ];
        assert_eq!(check(&mut sources, &roots), []);
        let tests: Vec<_> = sources.iter().map(|s| s.test).collect();
        assert_eq!(
            tests,
            [
                false, false, false, true, true, false, false, false, true, true
            ],
            "only what cfg(test) hides is test code"
        );
    }

    #[test]
    fn a_declaration_without_a_file_is_reported() {
        let mut sources = vec![source(
            "crates/mm/src/lib.rs",
            "//! A.\n#[cfg(windows)]\nmod gone;\n",
        )];
        let found = check(&mut sources, &[PathBuf::from("crates/mm/src/lib.rs")]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].line, 3);
    }
}
