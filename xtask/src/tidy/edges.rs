//! The allowed dependencies between crates, checked from `cargo metadata`.
//!
//! # Model
//!
//! Three tables. [`ROOMS`] lists, for each of our packages, the packages of ours that it may build
//! on: dependencies point down only, and a package that is not listed is an error. [`OWNED`] lists
//! outside packages that belong to some rooms alone. [`CLOSURE`] lists outside packages that may
//! not be reached from a room by any path. [`OPTIONAL`] lists exceptions from that: packages that a room has behind a
//! feature of the same name, which is not a default.
//!
//! Tests may see more: a development dependency obeys none of the tables but the one on async
//! runtimes, and `sim` may be nothing else.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;

use serde_json::Value;

use super::Violation;

/// A package of ours, and those of ours that it may depend on.
const ROOMS: &[(&str, &[&str])] = &[
    ("foliocache-sys", &[]),
    ("foliocache-sync", &["foliocache-sys"]),
    ("foliocache-xarray", &["foliocache-sync"]),
    (
        "foliocache-mm",
        &["foliocache-sys", "foliocache-sync", "foliocache-xarray"],
    ),
    (
        "foliocache-vfs",
        &["foliocache-sys", "foliocache-sync", "foliocache-mm"],
    ),
    (
        "foliocache-fs",
        &[
            "foliocache-sys",
            "foliocache-sync",
            "foliocache-mm",
            "foliocache-vfs",
        ],
    ),
    (
        "foliocache",
        &[
            "foliocache-sys",
            "foliocache-sync",
            "foliocache-mm",
            "foliocache-vfs",
            "foliocache-fs",
        ],
    ),
    (
        "foliocache-fuse",
        &[
            "foliocache-sys",
            "foliocache-sync",
            "foliocache-mm",
            "foliocache-vfs",
            "foliocache-fs",
            "foliocache",
        ],
    ),
    ("foliocache-cuda", &["foliocache"]),
    (
        "foliocache-bench",
        &[
            "foliocache-sys",
            "foliocache-sync",
            "foliocache-xarray",
            "foliocache-mm",
            "foliocache-vfs",
            "foliocache-fs",
            "foliocache-fuse",
            "foliocache",
        ],
    ),
    (
        "foliocache-sim",
        &[
            "foliocache-sys",
            "foliocache-sync",
            "foliocache-xarray",
            "foliocache-mm",
            "foliocache-vfs",
            "foliocache-fs",
            "foliocache-fuse",
            "foliocache",
        ],
    ),
    (
        "foliocache-cli",
        &[
            "foliocache-sys",
            "foliocache-fuse",
            "foliocache",
            "foliocache-bench",
        ],
    ),
    ("foliocache-fuzz", &[]),
    ("foliocache-guide", &[]),
    ("xtask", &[]),
];

/// Outside packages, and the rooms of ours that alone may depend on them.
const OWNED: &[(&str, &[&str])] = &[
    // `cuda` loads the driver.
    ("libc", &["foliocache-sys", "foliocache-cuda"]),
    // `sim` attaches and mounts disks.
    ("rustix", &["foliocache-sys", "foliocache-sim"]),
    ("nix", &[]),
    // The other side of a comparison.
    ("io-uring", &["foliocache-sys", "foliocache-bench"]),
    ("loom", &["foliocache-sync"]),
    ("shuttle", &["foliocache-sync"]),
    ("parking_lot", &[]),
    ("crossbeam", &[]),
    ("fuser", &["foliocache-fuse", "foliocache-sim"]),
    ("clap", &["foliocache-cli"]),
    ("anyhow", &["foliocache-cli", "foliocache-bench"]),
];

const ASYNC_AND_FUSE: &[&str] = &[
    "fuser",
    "tokio",
    "futures",
    "futures-core",
    "futures-util",
    "async-std",
    "async-io",
    "smol",
    "mio",
];

/// Rooms, and packages that none of their dependencies may bring in either.
const CLOSURE: &[(&str, &[&str])] = &[
    ("foliocache-sys", ASYNC_AND_FUSE),
    ("foliocache-sync", ASYNC_AND_FUSE),
    ("foliocache-xarray", ASYNC_AND_FUSE),
    ("foliocache-mm", ASYNC_AND_FUSE),
    ("foliocache-vfs", ASYNC_AND_FUSE),
    ("foliocache-fs", ASYNC_AND_FUSE),
    ("foliocache", ASYNC_AND_FUSE),
];

/// Rooms, and their exceptions for a feature of that name.
const OPTIONAL: &[(&str, &str)] = &[
    // Its traits for readers and writers, which the async files implement; no runtime comes with them.
    ("foliocache", "tokio"),
];

/// Whether a package has another one only behind a feature of that name, which is not a default.
fn is_optional(package: &Value, on: &str) -> bool {
    let features = &package["features"];
    let enables = |feature: &str| {
        let items = array(features, feature).iter();
        items.filter_map(Value::as_str).any(|item| {
            let item = item.strip_prefix("dep:").unwrap_or(item);
            item.split('/').next() == Some(on)
        })
    };
    let normal = array(package, "dependencies")
        .iter()
        .find(|dependency| string(dependency, "name") == on && dependency["kind"].is_null());
    normal.is_some_and(|dependency| dependency["optional"] == true)
        && enables(on)
        && !enables("default")
}

/// Checks the answer of `cargo metadata`.
pub(crate) fn check(metadata: &Value) -> Vec<Violation> {
    let mut found = Vec::new();
    for package in array(metadata, "packages")
        .iter()
        .filter(|p| p["source"].is_null())
    {
        let name = string(package, "name");
        let manifest = Path::new(string(package, "manifest_path"));
        let mut report = |rule, message: String| {
            found.push(Violation::new(
                manifest,
                0,
                rule,
                format!("{name}: {message}"),
            ));
        };
        let Some((_, allowed)) = ROOMS.iter().find(|(room, _)| *room == name) else {
            report(
                "edges",
                "not in the table of rooms and of what they may build on".to_owned(),
            );
            continue;
        };
        for dependency in array(package, "dependencies") {
            let on = string(dependency, "name");
            if dependency["kind"] == "dev" {
                continue;
            }
            if on == "foliocache-sim" {
                report(
                    "edges",
                    "builds on `sim`, which only tests may see".to_owned(),
                );
            } else if ROOMS.iter().any(|(room, _)| *room == on) && !allowed.contains(&on) {
                report(
                    "edges",
                    format!("may not build on {on}: dependencies point down only"),
                );
            }
            if let Some((_, owners)) = OWNED.iter().find(|(owned, _)| *owned == on)
                && !owners.contains(&name)
            {
                let who = if owners.is_empty() {
                    "no crate".into()
                } else {
                    owners.join(", ")
                };
                report("absence", format!("may not depend on {on}: {who} may"));
            }
        }
    }
    closures(metadata, &mut found);
    found
}

/// Follows normal and build dependencies from each room of [`CLOSURE`].
fn closures(metadata: &Value, found: &mut Vec<Violation>) {
    let mut names = BTreeMap::new();
    let mut optional = BTreeSet::new();
    let mut manifests = BTreeMap::new();
    for package in array(metadata, "packages") {
        names.insert(string(package, "id"), string(package, "name"));
        manifests.insert(string(package, "id"), string(package, "manifest_path"));
        let exceptions = OPTIONAL
            .iter()
            .filter(|(room, on)| string(package, "name") == *room && is_optional(package, on));
        optional.extend(exceptions.copied());
    }
    let mut edges: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for node in array(&metadata["resolve"], "nodes") {
        let built = array(node, "deps").iter().filter(|dep| {
            array(dep, "dep_kinds")
                .iter()
                .any(|kind| kind["kind"] != "dev")
        });
        edges.insert(
            string(node, "id"),
            built.map(|dep| string(dep, "pkg")).collect(),
        );
    }
    for (room, forbidden) in CLOSURE {
        let Some((&start, _)) = names.iter().find(|(_, name)| *name == room) else {
            continue;
        };
        let (mut seen, mut queue) = (BTreeSet::from([start]), VecDeque::from([start]));
        while let Some(id) = queue.pop_front() {
            let name = names.get(id).copied().unwrap_or("");
            if forbidden.contains(&name) {
                found.push(Violation::new(
                    Path::new(manifests[start]),
                    0,
                    "absence",
                    format!("{room}: {name} is among what it is built from"),
                ));
            }
            for &next in edges.get(id).into_iter().flatten() {
                let is_exception = id == start
                    && names
                        .get(next)
                        .is_some_and(|on| optional.contains(&(*room, *on)));
                if !is_exception && seen.insert(next) {
                    queue.push_back(next);
                }
            }
        }
    }
}

/// The array under `key`, or an empty one.
pub(crate) fn array<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

/// The text under `key`, or an empty one.
pub(crate) fn string<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A workspace of one package with one dependency.
    fn one(name: &str, on: &str, kind: Value) -> Vec<&'static str> {
        let metadata = json!({ "packages": [{
            "name": name, "source": null, "manifest_path": "a/Cargo.toml", "id": name,
            "description": "d", "license": "l",
            "dependencies": [{ "name": on, "kind": kind }],
        }]});
        check(&metadata).into_iter().map(|v| v.rule).collect()
    }

    #[test]
    fn edges_point_down() {
        assert_eq!(
            one("foliocache-mm", "foliocache-fs", Value::Null),
            ["edges"]
        );
        assert_eq!(
            one("foliocache-mm", "foliocache-sync", Value::Null),
            [""; 0]
        );
        assert_eq!(
            one("foliocache-xarray", "foliocache-mm", json!("build")),
            ["edges"]
        );
        assert_eq!(
            one("foliocache-fuse", "foliocache-bench", Value::Null),
            ["edges"]
        );
        assert_eq!(
            one("foliocache-cli", "foliocache-bench", Value::Null),
            [""; 0]
        );
    }

    #[test]
    fn sim_is_for_tests_only() {
        assert_eq!(
            one("foliocache-cli", "foliocache-sim", Value::Null),
            ["edges"]
        );
        assert_eq!(
            one("foliocache-mm", "foliocache-sim", json!("dev")),
            [""; 0]
        );
    }

    #[test]
    fn outside_packages_have_their_rooms() {
        assert_eq!(one("foliocache-mm", "libc", Value::Null), ["absence"]);
        assert_eq!(one("foliocache-sys", "libc", Value::Null), [""; 0]);
        assert_eq!(one("foliocache-xarray", "loom", Value::Null), ["absence"]);
        assert_eq!(one("foliocache-xarray", "loom", json!("dev")), [""; 0]);
        assert_eq!(
            one("foliocache-mm", "parking_lot", Value::Null),
            ["absence"]
        );
    }

    #[test]
    fn a_new_package_must_be_placed() {
        assert_eq!(
            one("foliocache-new", "foliocache-mm", Value::Null),
            ["edges"]
        );
    }

    #[test]
    fn a_runtime_below_a_dependency_is_found() {
        let package = |name: &str| json!({ "name": name, "source": "registry", "id": name, "manifest_path": "m" });
        let node = |id: &str, on: &str, kind: Value| json!({ "id": id, "deps": [{ "pkg": on, "dep_kinds": [{ "kind": kind }] }] });
        let metadata = |kind: Value| {
            json!({
                "packages": [package("foliocache-mm"), package("helper"), package("tokio")],
                "resolve": { "nodes": [
                    node("foliocache-mm", "helper", Value::Null), node("helper", "tokio", kind),
                ]},
            })
        };
        assert_eq!(check(&metadata(Value::Null)).len(), 1);
        assert_eq!(check(&metadata(json!("dev"))), []);
    }

    #[test]
    fn a_runtime_behind_a_feature_of_its_own_is_an_exception() {
        let found = |room: &str, optional: bool, features: Value| {
            let room = json!({
                "name": room, "source": null, "id": "a", "manifest_path": "m",
                "description": "d", "license": "l", "features": features,
                "dependencies": [{ "name": "tokio", "kind": null, "optional": optional }],
            });
            let tokio =
                json!({ "name": "tokio", "source": "registry", "id": "t", "manifest_path": "m" });
            let deps = json!([{ "pkg": "t", "dep_kinds": [{ "kind": null }] }]);
            let metadata = json!({
                "packages": [room, tokio],
                "resolve": { "nodes": [{ "id": "a", "deps": deps }] },
            });
            check(&metadata).len()
        };
        let feature = json!({ "tokio": ["dep:tokio"] });
        assert_eq!(found("foliocache", true, feature.clone()), 0);
        assert_eq!(found("foliocache", false, feature.clone()), 1);
        assert_eq!(found("foliocache-mm", true, feature), 1);
        let default = json!({ "tokio": ["dep:tokio"], "default": ["tokio"] });
        assert_eq!(found("foliocache", true, default), 1);
        let another = json!({ "default": ["dep:tokio"] });
        assert_eq!(found("foliocache", true, another), 1);
    }
}
