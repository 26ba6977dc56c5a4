//! Whether packages can be published, checked from `cargo metadata`.
//!
//! # Model
//!
//! A package may be published unless its manifest says `publish = false`. Then a registry needs more fields, and
//! all its dependencies must be published too: a dependency by path alone is not.

use std::path::Path;

use serde_json::Value;

use super::{Violation, array, string};

/// Fields that each package has.
const ALWAYS: &[&str] = &["description", "license"];
/// Further fields of a package that may be published.
const PUBLISHED: &[&str] = &["readme", "rust_version"];
/// Lists of words that it has.
const WORDS: &[&str] = &["keywords", "categories"];

/// Checks the answer of `cargo metadata`.
pub(crate) fn check(metadata: &Value) -> Vec<Violation> {
    let mut found = Vec::new();
    let ours = || {
        array(metadata, "packages")
            .iter()
            .filter(|p| p["source"].is_null())
    };
    let published = |name: &str| ours().any(|p| string(p, "name") == name && may_be_published(p));
    let is_ours = |name: &str| ours().any(|p| string(p, "name") == name);
    for package in ours() {
        let mut report = |message: String| {
            let manifest = Path::new(string(package, "manifest_path"));
            let message = format!("{}: {message}", string(package, "name"));
            found.push(Violation::new(manifest, 0, "manifest", message));
        };
        let more = if may_be_published(package) {
            PUBLISHED
        } else {
            &[]
        };
        for field in ALWAYS.iter().chain(more) {
            if string(package, field).trim().is_empty() {
                report(format!("has no {field}"));
            }
        }
        if !may_be_published(package) {
            continue;
        }
        for field in WORDS
            .iter()
            .filter(|field| array(package, field).is_empty())
        {
            report(format!("has no {field}"));
        }
        let dependencies = array(package, "dependencies").iter();
        for dependency in dependencies.filter(|d| is_ours(string(d, "name"))) {
            let on = string(dependency, "name");
            let by_path_alone = string(dependency, "req") == "*";
            if dependency["kind"] != "dev" {
                if by_path_alone {
                    report(format!("depends on {on} by path alone, without a version"));
                }
                if !published(on) {
                    report(format!(
                        "may be published, and depends on {on}, which may not"
                    ));
                }
            } else if !by_path_alone && (!published(on) || on == string(package, "name")) {
                // A development dependency by path alone is left out of the published package.
                report(format!(
                    "its tests depend on a version of {on} that is not there before it"
                ));
            }
        }
    }
    found
}

fn may_be_published(package: &Value) -> bool {
    package["publish"]
        .as_array()
        .is_none_or(|registries| !registries.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn package(name: &str, dependencies: Value) -> Value {
        json!({
            "name": name, "source": null, "manifest_path": "a/Cargo.toml", "description": "d", "license": "l", "publish": null,
            "readme": "r", "rust_version": "1", "keywords": ["k"], "categories": ["c"],
            "dependencies": dependencies,
        })
    }

    fn private(name: &str) -> Value {
        let mut private = package(name, json!([]));
        private["publish"] = json!([]);
        private
    }

    fn found(packages: &[Value]) -> usize {
        check(&json!({ "packages": packages })).len()
    }

    #[test]
    fn published_packages_have_complete_metadata() {
        assert_eq!(found(&[package("a", json!([]))]), 0);
        for field in ALWAYS.iter().chain(PUBLISHED).chain(WORDS) {
            let mut lacking = package("a", json!([]));
            lacking[*field] = Value::Null;
            assert_eq!(found(&[lacking]), 1, "{field}");
        }
    }

    #[test]
    fn packages_that_stay_here_need_less() {
        let mut lacking = private("a");
        lacking["readme"] = Value::Null;
        lacking["keywords"] = json!([]);
        assert_eq!(found(&[lacking.clone()]), 0);
        lacking["description"] = json!(" ");
        assert_eq!(found(&[lacking]), 1);
    }

    #[test]
    fn published_packages_depend_on_published_versions() {
        let on = |req: &str, kind: Value| {
            package("a", json!([{ "name": "b", "req": req, "kind": kind }]))
        };
        let other = || package("b", json!([]));
        assert_eq!(found(&[on("^0.1", Value::Null), other()]), 0);
        assert_eq!(found(&[on("*", Value::Null), other()]), 1);
        assert_eq!(found(&[on("^0.1", Value::Null), private("b")]), 1);
        // Of others' packages nothing is known here.
        assert_eq!(found(&[on("*", Value::Null)]), 0);
    }

    #[test]
    fn tests_depend_on_unpublished_packages_by_path_alone() {
        let on = |name: &str, req: &str| {
            package("a", json!([{ "name": name, "req": req, "kind": "dev" }]))
        };
        assert_eq!(found(&[on("b", "*"), private("b")]), 0);
        assert_eq!(found(&[on("b", "^0.1"), private("b")]), 1);
        assert_eq!(found(&[on("a", "^0.1")]), 1);
        assert_eq!(found(&[on("a", "*")]), 0);
    }
}
