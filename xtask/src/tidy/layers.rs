//! The layers of a crate's modules: none knows the one above, and no module knows itself through others.
//!
//! # Model
//!
//! [`LAYERS`] puts each module at the top of a crate into one layer, the lowest first. A module *knows* another if a path in it leads
//! there, as in [`circles`](super::circles), or if it calls a method that the other alone defines: a method of a type may stand in any
//! module, so a list of imports says little about it. Calls are seen by the name alone, so names that the standard library has, too,
//! do not count ([`COMMON`]), nor those of which there are several.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::Violation;
use super::circles::{Module, Names, Product, Uses, used, way_round};
use super::source::{Source, find_word, is_word};

/// A layer's name and its modules.
type Layer = (&'static str, &'static [&'static str]);

/// A room, and its layers from the lowest to the highest.
const LAYERS: &[(&str, &[Layer])] = &[(
    "mm",
    &[
        (
            "values",
            &[
                "errseq", "error", "iocb", "iov", "ops", "paging", "show", "types", "worker",
            ],
        ),
        (
            "memory",
            &["bound", "direct_map", "frames", "nodes", "slab", "testing"],
        ),
        ("folio", &["folio"]),
        (
            "state",
            &[
                "counters",
                "dirty",
                "hints",
                "lookup",
                "mapped",
                "pins",
                "pressure",
                "queues",
                "readahead",
                "reliance",
                "rounds",
                "shrinker",
                "views",
            ],
        ),
        (
            "core",
            &[
                "address_space",
                "counting",
                "dirty_files",
                "file_frames",
                "file_locks",
                "held_off",
                "owner",
                "prepared",
                "records",
                "registry",
                "shown",
                "start",
                "unnoticed",
            ],
        ),
        (
            "services",
            &[
                "bad_memory",
                "bdi",
                "charge",
                "fill",
                "follower",
                "held",
                "holder",
                "linear",
                "pin",
                "prepare",
                "reclaim",
                "relied",
                "replace",
                "revoke",
                "split",
                "told",
                "uncached",
                "unreclaimable",
                "window",
                "writeback",
            ],
        ),
        ("operations", &["filemap", "vma"]),
        ("face", &["mm", "stats"]),
    ],
)];

/// Names of methods that other libraries' types have, too.
const COMMON: &[&str] = &[
    "as_ref",
    "copied",
    "extend",
    "is_zero",
    "load",
    "lock",
    "map",
    "next",
    "position",
    "push_back",
    "replace",
    "store",
    "sub",
    "sum",
    "try_lock",
    "unmap",
    "write",
];

/// Checks all rooms that have layers.
pub(crate) fn check(sources: &[Source]) -> Vec<Violation> {
    check_layers(sources, LAYERS)
}

fn check_layers(sources: &[Source], rooms: &[(&str, &[Layer])]) -> Vec<Violation> {
    let product = Product::new(sources);
    let mut found = Vec::new();
    for (room, layers) in rooms {
        let files = product.of(room);
        let ranks: BTreeMap<&str, usize> = (layers.iter().enumerate())
            .flat_map(|(rank, (_, modules))| modules.iter().map(move |module| (*module, rank)))
            .collect();
        found.extend(unlisted(room, files, &ranks));
        let mut uses = Uses::new();
        for (from, source, to, offset) in known(files) {
            if from != to.0 {
                let place = (source.path.clone(), source.line(offset));
                let places = uses.entry(from.clone()).or_default();
                places.entry(to.0.clone()).or_insert(place);
            }
            let rank = |module: &str| ranks.get(module).copied();
            if let (Some(low), Some(high)) = (rank(&from), rank(&to.0))
                && low < high
            {
                let (here, there, what) = (layers[low].0, layers[high].0, &to.1);
                let message = format!(
                    "{from}, of the layer {here}, knows {what} of {}, of the layer {there}",
                    to.0
                );
                found.push(Violation::new(
                    &source.path,
                    source.line(offset),
                    "layers",
                    message,
                ));
            }
        }
        found.extend(circle(room, &uses));
    }
    found
}

/// One way round a circle of modules that know each other, if there is one.
fn circle(room: &str, uses: &Uses) -> Option<Violation> {
    let way = uses.keys().find_map(|module| way_round(uses, module))?;
    let (path, line) = &uses[&way[0]][way.get(1).unwrap_or(&way[0])];
    let message = format!("{room}: modules know each other: {}", way.join(" -> "));
    Some(Violation::new(path, *line, "layers", message))
}

/// Modules without a layer, and those of a layer that are not there.
fn unlisted(
    room: &str,
    files: &[(Module, &Source)],
    ranks: &BTreeMap<&str, usize>,
) -> Vec<Violation> {
    let here: BTreeSet<&str> = (files.iter())
        .filter_map(|(module, _)| module.first().map(String::as_str))
        .collect();
    let listed: BTreeSet<&str> = ranks.keys().copied().collect();
    let here_alone = here
        .difference(&listed)
        .map(|module| (module, "has no layer"));
    let listed_alone = listed
        .difference(&here)
        .map(|module| (module, "is not there"));
    let list = Path::new("xtask/src/tidy/layers.rs");
    here_alone
        .chain(listed_alone)
        .map(|(module, what)| {
            let message = format!("the module {module} of {room} {what}");
            Violation::new(list, 0, "layers", message)
        })
        .collect()
}

/// What the modules of a room know of one another: the module, its source, the other module with what is known of it, and where.
fn known<'a>(files: &[(Module, &'a Source)]) -> Vec<(String, &'a Source, (String, String), usize)> {
    let names = Names::new(files);
    let methods = methods(files);
    let mut found = Vec::new();
    for (module, source) in files {
        let Some(from) = module.first() else {
            continue;
        };
        for named in used(source) {
            let to = names.resolve(module, &named.path, 0);
            if let Some(to) = to.as_ref().and_then(|to| to.first()) {
                let what = named.path.last().cloned().unwrap_or_default();
                found.push((from.clone(), *source, (to.clone(), what), named.offset));
            }
        }
        for (name, offset) in calls(&source.live) {
            if let Some(Some(to)) = methods.get(name) {
                found.push((from.clone(), *source, (to.clone(), name.to_owned()), offset));
            }
        }
    }
    found
}

/// The module at the top that defines each function; nothing for names of which there are several, or that are common.
fn methods<'a>(files: &[(Module, &'a Source)]) -> BTreeMap<&'a str, Option<String>> {
    let mut methods: BTreeMap<&str, Option<String>> = BTreeMap::new();
    for (module, source) in files {
        for offset in find_word(&source.live, "fn") {
            let name = word(source.live[offset + "fn".len()..].trim_start());
            let to = module.first().filter(|_| !COMMON.contains(&name)).cloned();
            methods
                .entry(name)
                .and_modify(|to| *to = None)
                .or_insert(to);
        }
    }
    methods
}

/// The methods that are called, each with its place.
fn calls(code: &str) -> Vec<(&str, usize)> {
    let starts = (code.match_indices('.')).chain(code.match_indices("Self::"));
    starts
        .map(|(at, before)| (at + before.len(), word(&code[at + before.len()..])))
        .filter(|(at, name)| {
            let rest = &code[at + name.len()..];
            !name.is_empty() && (rest.starts_with('(') || rest.starts_with("::<"))
        })
        .map(|(at, name)| (name, at))
        .collect()
}

/// The word at the beginning of `code`.
fn word(code: &str) -> &str {
    let len = code.bytes().position(|b| !is_word(b));
    &code[..len.unwrap_or(code.len())]
}

#[cfg(test)]
mod tests {
    use super::super::source::Area;
    use super::*;

    const LAYERS: &[(&str, &[Layer])] = &[(
        "mm",
        &[("core", &["folio", "index"]), ("services", &["reclaim"])],
    )];

    fn check_tree(files: &[(&str, &str)]) -> Vec<String> {
        let source = |(path, text): &(&str, &str)| {
            let path = format!("crates/mm/src/{path}");
            Source::new(Path::new(&path), "mm", Area::Src, (*text).to_owned())
        };
        let sources: Vec<_> = files.iter().map(source).collect();
        let found = check_layers(&sources, LAYERS);
        found.into_iter().map(|found| found.message).collect()
    }

    const LIB: (&str, &str) = ("lib.rs", "mod folio;\nmod index;\nmod reclaim;\n");
    const FOLIO: (&str, &str) = ("folio.rs", "pub struct Folio;\n");
    const RECLAIM: (&str, &str) = (
        "reclaim.rs",
        "use crate::folio::Folio;\nimpl Folio {\n    fn evict(&self) {}\n    fn lock(&self) {}\n}\npub struct Queue;\n",
    );

    #[test]
    fn a_layer_knows_itself_and_the_ones_below() {
        let index = (
            "index.rs",
            "//! See [`crate::reclaim`].\nuse crate::folio::Folio;\npub struct Index;\nfn f(a: &M) { a.lock(); }\n",
        );
        assert_eq!(check_tree(&[LIB, FOLIO, index, RECLAIM]), [""; 0]);
    }

    #[test]
    fn an_import_from_the_layer_above_is_found() {
        let index = ("index.rs", "pub struct Index(crate::reclaim::Queue);\n");
        let found = check_tree(&[LIB, FOLIO, index, RECLAIM]);
        assert_eq!(
            found,
            ["index, of the layer core, knows Queue of reclaim, of the layer services"]
        );
    }

    #[test]
    fn a_call_of_a_method_that_the_layer_above_defines_is_found() {
        let index = (
            "index.rs",
            "use crate::folio::Folio;\nfn f(folio: &Folio) { folio.evict(); }\n",
        );
        let found = check_tree(&[LIB, FOLIO, index, RECLAIM]);
        assert_eq!(
            found,
            ["index, of the layer core, knows evict of reclaim, of the layer services"]
        );
    }

    #[test]
    fn a_circle_through_a_method_is_found() {
        let index = (
            "index.rs",
            "pub struct Index;\nimpl M {\n    fn find(&self) { self.attach(); }\n}\n",
        );
        let folio = (
            "folio.rs",
            "use crate::index::Index;\nimpl M {\n    fn attach(&self) {}\n}\n",
        );
        let found = check_tree(&[LIB, folio, index, ("reclaim.rs", "pub struct Queue;\n")]);
        assert_eq!(found, ["mm: modules know each other: folio -> index"]);
    }

    #[test]
    fn each_module_is_in_a_layer_and_each_of_a_layer_is_there() {
        let found = check_tree(&[LIB, FOLIO, RECLAIM, ("views/mod.rs", "struct View;\n")]);
        assert_eq!(
            found,
            [
                "the module views of mm has no layer",
                "the module index of mm is not there"
            ]
        );
    }
}
