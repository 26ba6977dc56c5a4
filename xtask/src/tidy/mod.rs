//! The project's lint: checks of the tree that no compiler makes.
//!
//! # Model
//!
//! [`Tree`] reads every file that git tracks or would track. `edges` checks dependencies, `publish` the needs of
//! published packages, `modules` that every file is compiled, `circles` and `layers` the imports between modules,
//! `locks` that locks have a rank, `text` the sources, `docs` the documents, `figures` the figures in them and
//! `planted` the planted bugs. Each returns [`Violation`]s; an empty list is a tidy tree.

mod circles;
mod docs;
mod edges;
mod figures;
mod layers;
mod locks;
mod modules;
mod planted;
mod publish;
mod source;
mod text;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

pub(crate) use edges::{array, string};
use source::{Area, Source};

/// One broken rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Violation {
    path: PathBuf,
    /// From 1; 0 is the file as a whole.
    line: usize,
    rule: &'static str,
    message: String,
}

impl Violation {
    fn new(path: &Path, line: usize, rule: &'static str, message: String) -> Violation {
        Violation {
            path: path.to_owned(),
            line,
            rule,
            message,
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        write!(f, ": {}: {}", self.rule, self.message)
    }
}

/// The files of the workspace.
struct Tree {
    root: PathBuf,
    /// All files, relative to the root.
    files: Vec<PathBuf>,
    /// The Rust files of packages.
    sources: Vec<Source>,
}

impl Tree {
    fn load(root: &Path) -> Result<Tree, String> {
        let files = list_files(root)?;
        let mut tree = Tree {
            root: root.to_owned(),
            files,
            sources: Vec::new(),
        };
        for path in &tree.files {
            if let Some((room, area)) = placed(path) {
                let text = tree
                    .read(path)
                    .ok_or_else(|| format!("{}: not text", path.display()))?;
                tree.sources.push(Source::new(path, &room, area, text));
            }
        }
        if tree.sources.is_empty() {
            return Err(format!("{}: no sources found", root.display()));
        }
        Ok(tree)
    }

    /// A file's text; nothing if it is not there or not text.
    fn read(&self, path: &Path) -> Option<String> {
        std::fs::read_to_string(self.root.join(path)).ok()
    }
}

/// The room and the area of a package's Rust file.
fn placed(path: &Path) -> Option<(String, Area)> {
    if path.extension().is_none_or(|e| e != "rs") {
        return None;
    }
    let parts: Vec<&str> = path.iter().filter_map(|p| p.to_str()).collect();
    let (room, folder) = match parts.as_slice() {
        ["crates", room, folder, _, ..] => (*room, *folder),
        ["xtask", folder, _, ..] => ("xtask", *folder),
        _ => return None,
    };
    let area = match folder {
        "src" => Area::Src,
        "tests" | "benches" | "examples" => Area::Outer,
        _ => return None,
    };
    Some((room.to_owned(), area))
}

/// The files that git tracks or would track; every file without git.
fn list_files(root: &Path) -> Result<Vec<PathBuf>, String> {
    let git = Command::new("git")
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .current_dir(root)
        .output();
    let mut files: Vec<PathBuf> = match git {
        Ok(out) if out.status.success() => String::from_utf8_lossy(&out.stdout)
            .split('\0')
            .filter(|name| !name.is_empty())
            .map(PathBuf::from)
            .collect(),
        _ => {
            let mut files = Vec::new();
            walk(root, Path::new(""), &mut files)
                .map_err(|e| format!("{}: {e}", root.display()))?;
            files
        }
    };
    // A file that was deleted but is still in git's index.
    files.retain(|path| root.join(path).is_file());
    files.sort();
    files.dedup();
    Ok(files)
}

fn walk(root: &Path, folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            if entry.file_name() != "target" && entry.file_name() != ".git" {
                walk(root, &path, files)?;
            }
        } else {
            files.push(path);
        }
    }
    Ok(())
}

/// Roots of all targets, relative to the workspace.
fn roots(metadata: &Value, root: &Path) -> Vec<PathBuf> {
    array(metadata, "packages")
        .iter()
        .filter(|package| package["source"].is_null())
        .flat_map(|package| array(package, "targets"))
        .filter_map(|target| {
            Path::new(string(target, "src_path"))
                .strip_prefix(root)
                .ok()
        })
        .map(Path::to_owned)
        .collect()
}

/// Checks the whole tree. `metadata` is `cargo metadata`'s answer for it.
pub(crate) fn check(root: &Path, metadata: &Value) -> Result<Vec<Violation>, String> {
    let mut tree = Tree::load(root)?;
    let mut found = edges::check(metadata);
    found.extend(publish::check(metadata));
    for violation in &mut found {
        if let Ok(relative) = violation.path.strip_prefix(root) {
            violation.path = relative.to_owned();
        }
    }
    found.extend(modules::check(&mut tree.sources, &roots(metadata, root)));
    found.extend(circles::check(&tree.sources));
    found.extend(layers::check(&tree.sources));
    found.extend(tree.sources.iter().flat_map(text::check));
    found.extend(tree.sources.iter().flat_map(locks::check));
    found.extend(docs::check(&tree));
    found.extend(figures::check(&tree));
    found.extend(planted::check(&tree));
    found.extend(manifests(&tree));
    found.sort();
    found.dedup();
    Ok(found)
}

/// Each package takes the workspace's lints.
fn manifests(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for path in &tree.files {
        let parts: Vec<&str> = path.iter().filter_map(|p| p.to_str()).collect();
        if !matches!(
            parts.as_slice(),
            ["crates", _, "Cargo.toml"] | ["xtask", "Cargo.toml"]
        ) {
            continue;
        }
        let manifest = tree.read(path).unwrap_or_default();
        let lines: Vec<&str> = manifest.lines().map(str::trim).collect();
        if !lines
            .windows(2)
            .any(|pair| pair == ["[lints]", "workspace = true"])
        {
            let message = "does not take the workspace's lints".to_owned();
            found.push(Violation::new(path, 0, "manifest", message));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rust_files_belong_to_rooms() {
        let placed = |path| placed(Path::new(path));
        assert_eq!(
            placed("crates/mm/src/folio.rs"),
            Some(("mm".to_owned(), Area::Src))
        );
        assert_eq!(
            placed("crates/mm/tests/a/b.rs"),
            Some(("mm".to_owned(), Area::Outer))
        );
        assert_eq!(
            placed("xtask/src/tidy/mod.rs"),
            Some(("xtask".to_owned(), Area::Src))
        );
        assert_eq!(placed("crates/xarray/fuzz/fuzz_targets/ops.rs"), None);
        assert_eq!(placed("crates/mm/Cargo.toml"), None);
    }

    #[test]
    fn a_violation_reads_as_one_line() {
        let v = Violation::new(Path::new("a/b.rs"), 3, "length", "too long".to_owned());
        assert_eq!(v.to_string(), "a/b.rs:3: length: too long");
    }
}
