//! No circles of imports among sibling modules, at any depth of a crate.
//!
//! # Model
//!
//! The modules of a circle can only be read, tested and moved together. So modules form layers, and each uses only
//! those below it.
//!
//! A module *uses* a sibling if a path in it, or in a module below it, leads to that sibling or below: a `use`, or a path that
//! begins with `crate`, `super` or `self`. A name that is re-exported is followed to the module that defines it. Test code and the
//! files of models do not count. Calls of methods are not seen, and parents and their children are no siblings.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use super::Violation;
use super::modules::enclosing_modules;
use super::source::{Area, Source, blank, find_word, is_word, past_closing, split_top};

/// Rooms that are no part of the product: measurements, tests, documents and tools.
const UNCHECKED: &[&str] = &["bench", "sim", "fuzz", "guide", "xtask"];

/// A module, as the names that lead to it from the crate's root.
pub(super) type Module = Vec<String>;

/// A place in the sources that makes one module use another.
pub(super) type Place = (PathBuf, usize);

/// For each parent: the uses among its modules, with the first place of each.
pub(super) type Uses = BTreeMap<String, BTreeMap<String, Place>>;

/// Modules that use each other, and one way round: modules, each with the place where it uses the next.
struct Circle {
    modules: Vec<String>,
    way: Vec<(String, Place)>,
}

/// Checks all rooms.
pub(crate) fn check(sources: &[Source]) -> Vec<Violation> {
    let mut found = Vec::new();
    for (room, files) in Product::new(sources).0 {
        if !UNCHECKED.contains(&room) {
            let circles = circles(&Names::new(&files), &files);
            found.extend(circles.iter().map(|circle| report(room, circle)));
        }
    }
    found
}

fn report(room: &str, circle: &Circle) -> Violation {
    let way: Vec<_> = circle
        .way
        .iter()
        .map(|(module, (path, line))| format!("{module} ({}:{line})", path.display()))
        .collect();
    let message = format!(
        "{room}: {} modules use each other: {}; one way round: {}",
        circle.modules.len(),
        circle.modules.join(", "),
        way.join(" -> ")
    );
    let (path, line) = &circle.way[0].1;
    Violation::new(path, *line, "circles", message)
}

/// The sources that count, by their rooms, each with the module that it is.
pub(super) struct Product<'a>(BTreeMap<&'a str, Vec<(Module, &'a Source)>>);

impl<'a> Product<'a> {
    pub(super) fn new(sources: &'a [Source]) -> Self {
        let mut rooms: BTreeMap<&str, Vec<(Module, &Source)>> = BTreeMap::new();
        for source in sources {
            let counts = source.area == Area::Src && !source.test && !is_model(&source.path);
            if let Some(module) = module_of(source).filter(|_| counts) {
                let files = rooms.entry(&source.room).or_default();
                files.push((module, source));
            }
        }
        Self(rooms)
    }

    /// Those of one room.
    pub(super) fn of(&self, room: &str) -> &[(Module, &'a Source)] {
        self.0.get(room).map_or(&[], Vec::as_slice)
    }
}

/// Whether a file is there for the model checkers alone, or for tests in several crates.
fn is_model(path: &Path) -> bool {
    path.iter().filter_map(|part| part.to_str()).any(|part| {
        let name = part.strip_suffix(".rs").unwrap_or(part);
        name == "model" || name.ends_with("_model") || name.starts_with("test_")
    })
}

/// The module that a file is.
fn module_of(source: &Source) -> Option<Module> {
    let parts: Vec<&str> = source
        .path
        .iter()
        .filter_map(|part| part.to_str())
        .collect();
    let below = parts.iter().position(|part| *part == "src")? + 1;
    let mut module: Module = parts[below..].iter().map(|&part| part.to_owned()).collect();
    let last = module.pop()?;
    match last.strip_suffix(".rs")? {
        "lib" | "main" | "mod" => {}
        name => module.push(name.to_owned()),
    }
    Some(module)
}

/// A path in a source, and where it is.
pub(super) struct Named {
    pub(super) path: Vec<String>,
    pub(super) offset: usize,
}

/// A `use` of a name, or a re-export.
struct Imported {
    named: Named,
    /// The name that it brings.
    name: String,
    public: bool,
}

/// All `use` declarations, and their ranges.
fn imports(code: &str) -> (Vec<Imported>, Vec<std::ops::Range<usize>>) {
    let (mut found, mut ranges) = (Vec::new(), Vec::new());
    for offset in find_word(code, "use") {
        let start = offset + "use".len();
        let Some(len) = code[start..].find(';') else {
            continue;
        };
        let tree = &code[start..start + len];
        // Not the `use<'a>` of a type.
        if !tree.starts_with(char::is_whitespace) {
            continue;
        }
        let public = is_public(&code[..offset]);
        leaves(tree, &[], &mut |path, name| {
            let named = Named { path, offset };
            found.push(Imported {
                named,
                name,
                public,
            });
        });
        ranges.push(offset..start + len);
    }
    (found, ranges)
}

/// Whether `pub`, or `pub(…)`, is the last word before an item.
fn is_public(before: &str) -> bool {
    let before = before.trim_end();
    let word = find_word(before, "pub").pop();
    word.is_some_and(|at| {
        let rest = &before[at + "pub".len()..];
        rest.is_empty() || rest.starts_with('(') && past_closing(rest, 0) == rest.len()
    })
}

/// Calls `each` with the path and the name of each leaf of a tree such as `a::{b, c as d}`.
fn leaves(tree: &str, before: &[String], each: &mut impl FnMut(Vec<String>, String)) {
    for part in split_top(tree) {
        let part = part.trim();
        let group = part.find('{');
        let (path, rename) = match part.split_once(" as ") {
            Some((path, name)) if group.is_none() => (path, Some(name.trim())),
            _ => (&part[..group.unwrap_or(part.len())], None),
        };
        let segments = path.split("::").map(str::trim).filter(|s| !s.is_empty());
        let path: Vec<String> = before
            .iter()
            .cloned()
            .chain(segments.map(str::to_owned))
            .collect();
        if let Some(open) = group {
            leaves(&part[open + 1..past_closing(part, open) - 1], &path, each);
        } else if let Some(last) = path.last().filter(|_| !part.is_empty()) {
            let name = rename.unwrap_or(last).to_owned();
            each(path, name);
        }
    }
}

/// Paths outside `use` that begin with `crate`, `super` or `self`.
fn paths(code: &str) -> Vec<Named> {
    let mut found = Vec::new();
    for first in ["crate", "super", "self"] {
        for offset in find_word(code, first) {
            // In the middle of a path.
            if code[..offset].ends_with("::") {
                continue;
            }
            let mut path = vec![first.to_owned()];
            let mut rest = &code[offset + first.len()..];
            while let Some(after) = rest.strip_prefix("::") {
                let len = after
                    .bytes()
                    .position(|b| !is_word(b))
                    .unwrap_or(after.len());
                if len == 0 {
                    break;
                }
                path.push(after[..len].to_owned());
                rest = &after[len..];
            }
            if path.len() > 1 {
                found.push(Named { path, offset });
            }
        }
    }
    found
}

/// The modules of a room, and the names that they re-export.
pub(super) struct Names {
    modules: BTreeSet<Module>,
    /// From a module and a name to the module with the re-export and the path there.
    exports: BTreeMap<(Module, String), Vec<String>>,
}

impl Names {
    pub(super) fn new(files: &[(Module, &Source)]) -> Names {
        let mut names = Names {
            modules: BTreeSet::new(),
            exports: BTreeMap::new(),
        };
        for (module, source) in files {
            for len in 0..=module.len() {
                names.modules.insert(module[..len].to_vec());
            }
            for imported in imports(&source.live).0 {
                if imported.public {
                    let key = (module.clone(), imported.name);
                    names.exports.insert(key, imported.named.path);
                }
            }
        }
        names
    }

    fn has(&self, parent: &[String], child: &str) -> bool {
        let mut module = parent.to_vec();
        module.push(child.to_owned());
        self.modules.contains(&module)
    }

    /// The module that defines the item `path` in `from`; `None` for another crate's.
    pub(super) fn resolve(&self, from: &[String], path: &[String], depth: usize) -> Option<Module> {
        let mut at = from.to_vec();
        let mut rest = path;
        match path.first().map(String::as_str) {
            Some("crate") => {
                at.clear();
                rest = &path[1..];
            }
            Some("self" | "super") => {
                while let Some(word) = rest
                    .first()
                    .filter(|word| *word == "self" || *word == "super")
                {
                    if word == "super" {
                        at.pop();
                    }
                    rest = &rest[1..];
                }
            }
            Some(_) if !self.has(from, &path[0]) => return None,
            _ => {}
        }
        while let Some(child) = rest.first().filter(|child| self.has(&at, child)) {
            at.push(child.clone());
            rest = &rest[1..];
        }
        // A re-export may lead back to itself.
        let export = rest.first().filter(|_| depth < 8);
        let export = export.and_then(|name| self.exports.get(&(at.clone(), name.clone())));
        let defined = export.and_then(|to| self.resolve(&at, to, depth + 1));
        Some(defined.unwrap_or(at))
    }
}

/// The uses of a file, in order of the modules.
pub(super) fn used(source: &Source) -> Vec<Named> {
    let (imported, ranges) = imports(&source.live);
    let bare = blank(&source.live, &ranges);
    let imported = imported.into_iter().filter(|imported| !imported.public);
    let mut used: Vec<Named> = imported.map(|imported| imported.named).collect();
    used.extend(paths(&bare));
    for named in &mut used {
        // From an inline module, as many steps up stay in the file.
        if named.path[0] == "super" {
            let inline = enclosing_modules(&source.live, named.offset).len();
            let up = named
                .path
                .iter()
                .take_while(|word| *word == "super")
                .count();
            named.path.splice(..inline.min(up), ["self".to_owned()]);
        }
    }
    used
}

/// The circles of a room.
fn circles(names: &Names, files: &[(Module, &Source)]) -> Vec<Circle> {
    let mut parents: BTreeMap<Module, Uses> = BTreeMap::new();
    for (module, source) in files {
        for named in used(source) {
            let Some(to) = names.resolve(module, &named.path, 0) else {
                continue;
            };
            let shared = module.iter().zip(&to).take_while(|(a, b)| a == b).count();
            if let (Some(user), Some(used)) = (module.get(shared), to.get(shared)) {
                let uses = parents.entry(module[..shared].to_vec()).or_default();
                let place = (source.path.clone(), source.line(named.offset));
                let places = uses.entry(user.clone()).or_default();
                places.entry(used.clone()).or_insert(place);
            }
        }
    }
    let mut found = Vec::new();
    for (parent, uses) in &parents {
        let full = |name: &str| {
            [&parent.join("/"), name]
                .map(str::to_owned)
                .join("/")
                .trim_start_matches('/')
                .to_owned()
        };
        let mut done = BTreeSet::new();
        for module in uses.keys() {
            let Some(way) = way_round(uses, module).filter(|_| !done.contains(module)) else {
                continue;
            };
            let mutual = |other: &&String| {
                *other == module
                    || is_reached(uses, module, other) && is_reached(uses, other, module)
            };
            let modules: Vec<&String> = uses.keys().filter(mutual).collect();
            done.extend(modules.iter().copied());
            let place = |(from, to): (&String, &String)| (full(from), uses[from][to].clone());
            let next = way.iter().skip(1).chain(&way[..1]);
            found.push(Circle {
                way: way.iter().zip(next).map(place).collect(),
                modules: modules.into_iter().map(|module| full(module)).collect(),
            });
        }
    }
    found
}

/// Whether `from` uses `to`, be it through others.
fn is_reached(uses: &Uses, from: &str, to: &str) -> bool {
    shortest(uses, from, to).is_some()
}

/// The shortest way from a module back to itself, without its end.
pub(super) fn way_round(uses: &Uses, module: &str) -> Option<Vec<String>> {
    let mut way = shortest(uses, module, module)?;
    way.pop();
    Some(way)
}

/// The shortest way of one use at least.
fn shortest(uses: &Uses, from: &str, to: &str) -> Option<Vec<String>> {
    let mut queue = VecDeque::from([vec![from.to_owned()]]);
    let mut seen = BTreeSet::new();
    while let Some(way) = queue.pop_front() {
        let last = way.last()?;
        for next in uses.get(last).into_iter().flat_map(BTreeMap::keys) {
            if seen.insert(next.clone()) {
                let mut longer = way.clone();
                longer.push(next.clone());
                if next == to {
                    return Some(longer);
                }
                queue.push_back(longer);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The violations of a crate with these files.
    fn check_tree(files: &[(&str, &str)]) -> Vec<String> {
        let source = |(path, text): &(&str, &str)| {
            let path = format!("crates/mm/src/{path}");
            Source::new(Path::new(&path), "mm", Area::Src, (*text).to_owned())
        };
        let sources: Vec<_> = files.iter().map(source).collect();
        let found = check(&sources);
        found
            .into_iter()
            .map(|violation| violation.message)
            .collect()
    }

    const THROUGH_A_REEXPORT: &[(&str, &str)] = &[
        (
            "lib.rs",
            "mod folio;\nmod pool;\nmod state;\npub use state::State;\n",
        ),
        ("folio.rs", "use crate::pool::Pool;\nuse std::fmt;\n"),
        ("pool.rs", "use crate::{State, pool};\n"),
        ("state.rs", "fn f() -> super::folio::Folio {}\n"),
    ];

    #[test]
    fn a_circle_through_a_reexport_is_found() {
        let found = check_tree(THROUGH_A_REEXPORT);
        assert_eq!(
            found,
            [
                "mm: 3 modules use each other: folio, pool, state; one way round: \
              folio (crates/mm/src/folio.rs:1) -> pool (crates/mm/src/pool.rs:1) -> \
              state (crates/mm/src/state.rs:1)"
            ]
        );
    }

    #[test]
    fn layers_are_no_circle() {
        let files = [
            (
                "lib.rs",
                "mod folio;\nmod pool;\npub use folio::Folio;\npub use pool::Pool;\n",
            ),
            (
                "folio.rs",
                "//! See [`crate::pool`].\nuse crate::Folio;\n#[cfg(test)]\nmod tests { use crate::pool::Pool; }\n",
            ),
            ("pool.rs", "use crate::Folio;\nmod part;\nuse part::Part;\n"),
            (
                "pool/part.rs",
                "use super::Pool;\nuse crate::folio::Folio as F;\n",
            ),
        ];
        assert_eq!(check_tree(&files), [""; 0]);
    }

    #[test]
    fn a_circle_is_found_below_the_top_and_from_an_inline_module() {
        let files = [
            ("lib.rs", "mod walk;\n"),
            ("walk/mod.rs", "mod rcu;\nmod prefix;\n"),
            ("walk/rcu.rs", "use super::prefix::{self, At};\n"),
            (
                "walk/prefix.rs",
                "mod inner {\n    use super::super::rcu::Rcu;\n    use super::Own;\n}\n",
            ),
        ];
        let found = check_tree(&files);
        assert_eq!(found.len(), 1);
        assert!(
            found[0].contains("2 modules use each other: walk/prefix, walk/rcu;"),
            "{found:?}"
        );
    }
}
