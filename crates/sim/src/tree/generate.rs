//! Sequences of operations on a tree: seeded ones, and all short ones.

use super::{How, TreeOp, TreeOracle};
use crate::{Fill, Rng};

/// Directories and files of seeded sequences.
const DIRS: [&str; 3] = [".", "d", "d/e"];
const FILES: [&str; 3] = ["a", "b", "c"];

/// Most bytes of a file.
const MAX_SIZE: u64 = 160 << 10;

/// An endless, repeatable sequence of operations, each possible after the previous ones.
#[derive(Clone, Debug)]
pub struct TreeWorkload {
    rng: Rng,
    /// The tree with everything given out.
    state: TreeOracle,
    /// The next operations of a sequence that belongs together.
    next: Vec<TreeOp>,
}

fn join(dir: &str, name: &str) -> String {
    match dir {
        "." => name.to_owned(),
        dir => format!("{dir}/{name}"),
    }
}

impl TreeWorkload {
    /// The sequence for `seed`, on the tree of `state`.
    pub fn new(seed: u64, state: TreeOracle) -> Self {
        Self {
            rng: Rng::new(seed),
            state,
            next: Vec::new(),
        }
    }

    fn pick<T>(&mut self, list: &[T]) -> Option<T>
    where
        T: Clone,
    {
        let len = list.len() as u64;
        (len > 0).then(|| list[self.rng.below(len) as usize].clone())
    }

    fn dirs(&self) -> Vec<&'static str> {
        let there = |dir: &&str| self.state.directory(dir).is_some();
        DIRS.into_iter().filter(there).collect()
    }

    fn paths(&self) -> Vec<String> {
        let dirs = self.dirs().into_iter();
        dirs.flat_map(|dir| FILES.map(|name| join(dir, name)))
            .collect()
    }

    fn files(&self) -> Vec<String> {
        let mut paths = self.paths();
        paths.retain(|path| self.state.size(path).is_some());
        paths
    }

    fn free(&self) -> Vec<String> {
        let mut paths = self.paths();
        paths.retain(|path| self.state.size(path).is_none());
        paths
    }

    fn fill(&mut self) -> Fill {
        Fill(self.rng.next_u64())
    }

    /// A length: a few bytes, about a page, or more.
    fn len(&mut self) -> usize {
        let len = match self.rng.below(5) {
            0 => self.rng.between(1, 600),
            1 => 4096 * self.rng.between(1, 3),
            2 => self.rng.between(4090, 4102),
            3 => self.rng.between(1, 20_000),
            _ => self.rng.between(1, 80_000),
        };
        len as usize
    }

    fn change(&mut self) -> Option<TreeOp> {
        let path = self.pick(&self.files())?;
        let size = self.state.size(&path)?;
        let len = self.len();
        Some(match self.rng.below(10) {
            0..=4 => {
                let gap = self.rng.one_in(1, 8);
                let most = if gap { MAX_SIZE } else { size + 1 };
                let pos = match self.rng.below(3) {
                    0 => self.rng.below(most) / 4096 * 4096,
                    _ => self.rng.below(most),
                };
                let pos = pos.min(MAX_SIZE);
                let mut how = match self.rng.below(8) {
                    0 | 1 => How::Uncached,
                    2 => How::Mapped,
                    3 => How::Synced,
                    _ => How::Plain,
                };
                // Stores make no file longer.
                if how == How::Mapped && pos + len as u64 > size {
                    how = How::Plain;
                }
                let fill = self.fill();
                TreeOp::Write {
                    path,
                    pos,
                    len,
                    fill,
                    how,
                }
            }
            5 | 6 if size < MAX_SIZE => {
                let fill = self.fill();
                TreeOp::Append { path, len, fill }
            }
            7 => {
                let (pos, len) = (self.rng.below(size + 1), len as u64);
                TreeOp::Punch { path, pos, len }
            }
            8 => {
                let size = self.rng.below(size + 9000).min(MAX_SIZE);
                TreeOp::Truncate { path, size }
            }
            _ => {
                let size = self.rng.below(size + 1);
                TreeOp::Truncate { path, size }
            }
        })
    }

    fn name(&mut self) -> Option<TreeOp> {
        Some(match self.rng.below(10) {
            0..=3 => TreeOp::Create {
                path: self.pick(&self.free())?,
            },
            4 | 5 => {
                let from = self.pick(&self.files())?;
                let to = self.pick(&self.paths())?;
                // Two names of one file: a rename of one to the other would do nothing.
                if from == to || self.state.same(&from, &to) {
                    return None;
                }
                TreeOp::Rename { from, to }
            }
            6 => TreeOp::Link {
                existing: self.pick(&self.files())?,
                new: self.pick(&self.free())?,
            },
            7 => TreeOp::Unlink {
                path: self.pick(&self.files())?,
            },
            8 => {
                // The usual way to replace a file.
                let to = self.pick(&self.paths())?;
                let (dir, _) = super::split(&to);
                let (path, dir) = (join(dir, "new"), dir.to_owned());
                let (len, fill) = (self.len(), self.fill());
                self.next = vec![
                    TreeOp::SyncDir { path: dir },
                    TreeOp::Rename {
                        from: path.clone(),
                        to,
                    },
                    TreeOp::SyncData { path: path.clone() },
                    TreeOp::Append {
                        path: path.clone(),
                        len,
                        fill,
                    },
                ];
                TreeOp::Create { path }
            }
            _ => {
                let missing: Vec<&str> = DIRS
                    .into_iter()
                    .filter(|d| !self.dirs().contains(d))
                    .collect();
                match missing.first() {
                    Some(&path) => TreeOp::Mkdir { path: path.into() },
                    None if self.state.directory("d/e") == Some(0) => {
                        TreeOp::Rmdir { path: "d/e".into() }
                    }
                    None => return None,
                }
            }
        })
    }

    fn sync(&mut self) -> Option<TreeOp> {
        Some(match self.rng.below(10) {
            0..=4 => TreeOp::SyncAll {
                path: self.pick(&self.files())?,
            },
            5 | 6 => TreeOp::SyncData {
                path: self.pick(&self.files())?,
            },
            7 | 8 => TreeOp::SyncDir {
                path: self.pick(&self.dirs())?.to_owned(),
            },
            _ => TreeOp::SyncEverything,
        })
    }
}

impl Iterator for TreeWorkload {
    type Item = TreeOp;

    fn next(&mut self) -> Option<TreeOp> {
        let operation = loop {
            let operation = match self.next.pop() {
                Some(operation) => Some(operation),
                None => match self.rng.below(10) {
                    0..=3 => self.change(),
                    4 | 5 => self.name(),
                    _ => self.sync(),
                },
            };
            if let Some(operation) = operation {
                break operation;
            }
        };
        self.state.record(&operation);
        Some(operation)
    }
}

/// The durable state before a short sequence: a file of two and a half pages, and a directory.
pub const SETUP: fn() -> Vec<TreeOp> = || {
    let path = || "a".to_owned();
    vec![
        TreeOp::Create { path: path() },
        TreeOp::Append {
            path: path(),
            len: 10_000,
            fill: Fill(1),
        },
        TreeOp::Mkdir { path: "d".into() },
        TreeOp::SyncEverything,
    ]
};

/// Each operation of the small vocabulary, and the sync that follows it.
fn vocabulary() -> Vec<(TreeOp, TreeOp)> {
    let text = str::to_owned;
    let sync_all = |path: &str| TreeOp::SyncAll { path: text(path) };
    let sync_data = |path: &str| TreeOp::SyncData { path: text(path) };
    let sync_dir = |path: &str| TreeOp::SyncDir { path: text(path) };
    let create = |path: &str| TreeOp::Create { path: text(path) };
    let write = |path: &str, pos, len| TreeOp::Write {
        path: text(path),
        pos,
        len,
        fill: Fill(pos + len as u64),
        how: How::Plain,
    };
    let append = |path: &str| TreeOp::Append {
        path: text(path),
        len: 5000,
        fill: Fill(7),
    };
    let rename = |from: &str, to: &str| TreeOp::Rename {
        from: text(from),
        to: text(to),
    };
    let link = |existing: &str, new: &str| TreeOp::Link {
        existing: text(existing),
        new: text(new),
    };
    vec![
        (write("a", 3000, 3000), sync_data("a")),
        (append("a"), sync_data("a")),
        (
            TreeOp::Truncate {
                path: text("a"),
                size: 5000,
            },
            sync_all("a"),
        ),
        (
            TreeOp::Punch {
                path: text("a"),
                pos: 4096,
                len: 4096,
            },
            sync_all("a"),
        ),
        (create("b"), sync_all("b")),
        (append("b"), sync_all("b")),
        (create("d/b"), sync_dir("d")),
        (append("d/b"), sync_all("d/b")),
        (rename("a", "b"), sync_all("b")),
        (rename("a", "b"), sync_dir(".")),
        (rename("a", "d/a"), sync_all("d/a")),
        (rename("b", "a"), sync_all("a")),
        (rename("d/b", "b"), sync_all("b")),
        (link("a", "b"), sync_all("b")),
        (link("a", "d/a"), sync_all("a")),
        (TreeOp::Unlink { path: text("a") }, sync_dir(".")),
        (TreeOp::Unlink { path: text("b") }, sync_dir(".")),
        (TreeOp::Mkdir { path: text("d/e") }, sync_dir("d")),
        (rename("d", "f"), sync_dir(".")),
    ]
}

/// Whether an operation can be done.
fn fits(state: &TreeOracle, operation: &TreeOp) -> bool {
    let file = |path: &str| state.size(path).is_some();
    let free = |path: &str| {
        let (dir, _) = super::split(path);
        state.directory(dir).is_some() && !file(path) && state.directory(path).is_none()
    };
    match operation {
        TreeOp::Create { path } | TreeOp::Mkdir { path } => free(path),
        TreeOp::Link { existing, new } => file(existing) && free(new),
        TreeOp::Rename { from, to } => {
            let (dir, _) = super::split(to);
            let replaces = file(from) && file(to) && !state.same(from, to);
            let there = file(from) || state.directory(from).is_some();
            there && state.directory(dir).is_some() && (free(to) || replaces)
        }
        TreeOp::Write { path, .. }
        | TreeOp::Append { path, .. }
        | TreeOp::Truncate { path, .. }
        | TreeOp::Punch { path, .. }
        | TreeOp::Unlink { path }
        | TreeOp::SyncAll { path }
        | TreeOp::SyncData { path } => file(path),
        TreeOp::Rmdir { path } | TreeOp::SyncDir { path } => state.directory(path).is_some(),
        TreeOp::SyncEverything => true,
    }
}

/// All sequences of up to `most` operations of a small vocabulary after [`SETUP`], each operation followed by a
/// sync of its file or directory.
pub fn short_sequences(most: usize) -> Vec<Vec<TreeOp>> {
    let mut setup = TreeOracle::default();
    SETUP().iter().for_each(|operation| setup.record(operation));
    let vocabulary = vocabulary();
    let (mut all, mut longest) = (Vec::new(), vec![(Vec::new(), setup)]);
    for _ in 0..most {
        let mut longer = Vec::new();
        for (sequence, state) in &longest {
            for (operation, sync) in &vocabulary {
                if !fits(state, operation) {
                    continue;
                }
                let (mut sequence, mut state): (Vec<TreeOp>, TreeOracle) =
                    (sequence.clone(), state.clone());
                for operation in [operation, sync] {
                    state.record(operation);
                    sequence.push(operation.clone());
                }
                longer.push((sequence, state));
            }
        }
        all.extend(longer.iter().map(|(sequence, _)| sequence.clone()));
        longest = longer;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_gives_one_tree_of_operations() {
        let run = |seed| {
            let workload = TreeWorkload::new(seed, TreeOracle::default());
            workload.take(300).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn every_operation_comes_and_can_be_done() {
        let mut kinds = std::collections::HashSet::new();
        for seed in 0..30 {
            let mut state = TreeOracle::default();
            for operation in TreeWorkload::new(seed, state.clone()).take(300) {
                assert!(fits(&state, &operation), "{operation:?}");
                kinds.insert(std::mem::discriminant(&operation));
                state.record(&operation);
                state.acknowledge(&operation);
            }
        }
        assert_eq!(kinds.len(), 14);
    }

    #[test]
    fn short_sequences_are_all_there_is() {
        let [one, two, three] = [1, 2, 3].map(|most| short_sequences(most).len());
        assert!(
            one >= 10 && two > 80 && three > 1000,
            "{one}, {two}, {three}"
        );
        let sequences = short_sequences(2);
        let mut different = sequences.clone();
        different.dedup();
        assert_eq!(sequences.len(), different.len());
    }
}
