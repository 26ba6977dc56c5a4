//! Whether the library compiles with the least versions that its manifests state.
//!
//! # Model
//!
//! ```text
//!   metadata ─▶ a package below target/ that depends on the library, and on each outside dependency of it, with the same
//!               requirement ─▶ cargo update -Z direct-minimal-versions ─▶ cargo check
//! ```
//!
//! Cargo uses the least version only of a workspace's direct dependencies, and this workspace includes the command
//! and all tests, whose dependencies require newer versions of the same crates. So the package is checked in a
//! separate workspace, with a separate lock file. Versions are resolved again when a requirement has changed, which
//! needs the registry.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::runner::cargo;
use crate::tidy::{array, string};

/// The package that users of the library depend on.
const LIBRARY: &str = "foliocache";

/// The path of the package's manifest, from `cargo metadata`.
fn manifest(metadata: &Value) -> Result<String, String> {
    let packages: BTreeMap<_, _> = array(metadata, "packages")
        .iter()
        .filter(|package| package["source"].is_null())
        .map(|package| (string(package, "name"), package))
        .collect();
    let library = packages.get(LIBRARY).ok_or("there is no library")?;
    let folder = Path::new(string(library, "manifest_path"))
        .parent()
        .ok_or("the library is nowhere")?;
    let features: Vec<_> = library["features"]
        .as_object()
        .map_or(Vec::new(), |features| features.keys().collect());
    let mut outside = BTreeMap::new();
    let (mut seen, mut left) = (BTreeSet::new(), vec![LIBRARY]);
    while let Some(name) = left.pop() {
        let package = packages.get(name).filter(|_| seen.insert(name));
        let dependencies = package.map_or(&[][..], |package| array(package, "dependencies"));
        for dependency in dependencies {
            let name = string(dependency, "name");
            let is_ours = !dependency["path"].is_null();
            // Those of the model checkers have a target.
            let is_built = dependency["kind"].is_null() && dependency["target"].is_null();
            match (is_built, is_ours) {
                (true, true) => left.push(name),
                (true, false) => _ = outside.insert(name, string(dependency, "req")),
                (false, _) => {}
            }
        }
    }
    let mut text = format!(
        "[package]\nname = \"least-versions\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n\
         [dependencies]\n{LIBRARY} = {{ path = {:?}, features = {features:?} }}\n",
        folder.display().to_string()
    );
    for (name, requirement) in outside {
        writeln!(
            text,
            "{name} = {{ version = {requirement:?}, default-features = false }}"
        )
        .map_err(|e| e.to_string())?;
    }
    Ok(text)
}

/// Checks the library with its least versions, below `target`; whether it compiles.
pub(crate) fn run(metadata: &Value, target: &Path) -> Result<bool, String> {
    let folder = target.join("least-versions");
    let said = |e: std::io::Error| format!("{}: {e}", folder.display());
    let (text, path) = (manifest(metadata)?, folder.join("Cargo.toml"));
    let lock = folder.join("Cargo.lock");
    fs::create_dir_all(folder.join("src")).map_err(said)?;
    fs::write(folder.join("src/lib.rs"), "").map_err(said)?;
    if !lock.exists() || fs::read_to_string(&path).ok().as_deref() != Some(&*text) {
        // A lock file is there only for the manifest beside it, or if cargo is stopped the next run would take it.
        _ = fs::remove_file(&lock);
        fs::write(&path, &text).map_err(said)?;
        if !succeeds(&folder, &["update", "-Zdirect-minimal-versions"])? {
            _ = fs::remove_file(&lock);
            return Ok(false);
        }
    }
    succeeds(&folder, &["check"])
}

fn succeeds(folder: &Path, arguments: &[&str]) -> Result<bool, String> {
    let status = Command::new(cargo())
        .args(arguments)
        .current_dir(folder)
        .env("CARGO_TARGET_DIR", folder.join("target"))
        // The option is cargo's alone: the compiler of the check gets none.
        .envs((arguments[0] == "update").then_some(("RUSTC_BOOTSTRAP", "1")))
        .status();
    status
        .map(|status| status.success())
        .map_err(|e| format!("cargo: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn dependency(name: &str, req: &str, ours: bool, kind: Option<&str>) -> Value {
        let path = ours.then(|| format!("/w/{name}"));
        json!({ "name": name, "req": req, "path": path, "kind": kind, "target": null })
    }

    #[test]
    fn the_package_has_the_dependencies_of_the_library() {
        let mut checker = dependency("loom", "^0.7", false, None);
        checker["target"] = json!("cfg(loom)");
        let package = |name: &str, dependencies: &[Value]| {
            json!({
                "name": name, "source": null, "manifest_path": format!("/w/{name}/Cargo.toml"),
                "features": { "tokio": [] }, "dependencies": dependencies,
            })
        };
        let metadata = json!({ "packages": [
            package("foliocache", &[
                dependency("foliocache-sys", "^0.1", true, None),
                dependency("tokio", "^1", false, None),
                dependency("bytes", "^1.9", false, Some("dev")),
            ]),
            package("foliocache-sys", &[dependency("rustix", "^1.1.6", false, None), checker]),
            package("foliocache-cli", &[dependency("clap", "^4.6", false, None)]),
        ] });
        let text = manifest(&metadata).unwrap();
        let (_, dependencies) = text.split_once("[dependencies]\n").unwrap();
        assert_eq!(
            dependencies,
            "foliocache = { path = \"/w/foliocache\", features = [\"tokio\"] }\n\
             rustix = { version = \"^1.1.6\", default-features = false }\n\
             tokio = { version = \"^1\", default-features = false }\n"
        );
    }
}
