//! A tree of names that changes all the time, held against a model of it, through the front door and in the source.

use crate::mounted;
use crate::place::{Kind, Place};
use crate::work::{Context, Done, Worker, same};
use foliocache_sim::Fill;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// Names in the tree, about.
const NAMES: usize = 60;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    Directory,
    /// An inode: a number that its names share.
    File(u64),
    Link(String),
}

#[derive(Clone, Copy, Debug)]
struct Content {
    fill: Fill,
    len: usize,
}

impl Content {
    fn bytes(self) -> Vec<u8> {
        self.fill.bytes(0, self.len)
    }
}

struct Tree<'a> {
    place: &'a dyn Place,
    top: String,
    /// By path relative to the place, below `top`.
    names: BTreeMap<String, Node>,
    contents: BTreeMap<u64, Content>,
    next: u64,
}

/// Works in the directory `folder`, which it makes and removes.
pub(crate) fn work(worker: &mut Worker<'_>, place: &dyn Place, folder: &str) -> Done {
    place.create_dir(folder)?;
    let mut tree = Tree {
        place,
        top: folder.to_owned(),
        names: BTreeMap::new(),
        contents: BTreeMap::new(),
        next: 0,
    };
    while worker.goes_on() {
        let what = tree.step(worker)?;
        worker.did(what, 0);
    }
    tree.check_all()?;
    tree.check_source()?;
    place.remove_dir_all(folder)
}

impl Tree<'_> {
    fn step(&mut self, worker: &mut Worker<'_>) -> Done<&'static str> {
        let grows = self.names.len() < NAMES;
        let at = usize::from(self.place.is_mount());
        let what = match worker.rng.below(16) {
            0 | 1 if grows => self
                .make_directory(worker)
                .map(|()| ["directory", "directory on a mount"]),
            2..=4 => self
                .write(worker)
                .map(|()| ["whole-file write", "whole-file write on a mount"]),
            5 => self.copy(worker).map(|()| ["copy", "copy on a mount"]),
            6 | 7 => self
                .rename(worker)
                .map(|()| ["rename", "rename on a mount"]),
            8 if grows => self
                .hard_link(worker)
                .map(|()| ["hard link", "hard link on a mount"]),
            9 if grows => self
                .symlink(worker)
                .map(|()| ["symbolic link", "symbolic link on a mount"]),
            10 | 11 => self
                .remove(worker)
                .map(|()| ["removal", "removal on a mount"]),
            12 => self
                .list(worker)
                .map(|()| ["listing", "listing on a mount"]),
            13 => self
                .exchange(worker)
                .map(|()| ["exchange", "exchange on a mount"]),
            _ => self
                .read(worker)
                .map(|()| ["whole-file read", "whole-file read on a mount"]),
        };
        Ok(what?[at])
    }

    /// An unused name in an existing directory.
    fn free_name(&mut self, worker: &mut Worker<'_>) -> String {
        let mut parents = vec![&self.top];
        let directories = self
            .names
            .iter()
            .filter(|(path, node)| **node == Node::Directory && path.matches('/').count() < 5);
        parents.extend(directories.map(|(path, _)| path));
        let parent = parents[worker.rng.below(parents.len() as u64) as usize].clone();
        self.next += 1;
        format!("{parent}/n{}", self.next)
    }

    fn pick(&self, worker: &mut Worker<'_>, wanted: impl Fn(&Node) -> bool) -> Option<String> {
        let paths: Vec<&String> = self
            .names
            .iter()
            .filter(|(_, node)| wanted(node))
            .map(|(path, _)| path)
            .collect();
        match paths.len() {
            0 => None,
            n => Some(paths[worker.rng.below(n as u64) as usize].clone()),
        }
    }

    fn pick_file(&self, worker: &mut Worker<'_>) -> Option<(String, u64)> {
        let path = self.pick(worker, |node| matches!(node, Node::File(_)))?;
        match self.names[&path] {
            Node::File(inode) => Some((path, inode)),
            _ => None,
        }
    }

    fn content(&self, worker: &mut Worker<'_>) -> Content {
        let most = *[64, 4096, 20_000, 100_000]
            .get(worker.rng.below(4) as usize)
            .expect("is below 4");
        Content {
            fill: Fill(worker.rng.next_u64()),
            len: worker.rng.below(most) as usize,
        }
    }

    fn add_file(&mut self, path: String, content: Content) {
        self.next += 1;
        self.contents.insert(self.next, content);
        self.names.insert(path, Node::File(self.next));
    }

    /// Forgets contents that no name leads to.
    fn forget(&mut self) {
        let named: BTreeSet<u64> = self
            .names
            .values()
            .filter_map(|node| match node {
                Node::File(inode) => Some(*inode),
                _ => None,
            })
            .collect();
        self.contents.retain(|inode, _| named.contains(inode));
    }

    fn make_directory(&mut self, worker: &mut Worker<'_>) -> Done {
        let path = self.free_name(worker);
        self.place.create_dir(&path)?;
        self.names.insert(path, Node::Directory);
        Ok(())
    }

    fn write(&mut self, worker: &mut Worker<'_>) -> Done {
        let content = self.content(worker);
        let bytes = content.bytes();
        let old = self.pick_file(worker);
        match old {
            Some((path, inode)) if self.names.len() >= NAMES || worker.rng.one_in(1, 3) => {
                self.place.write(&path, &bytes)?;
                self.contents.insert(inode, content);
            }
            _ => {
                let path = self.free_name(worker);
                self.place.write(&path, &bytes)?;
                self.add_file(path, content);
            }
        }
        Ok(())
    }

    fn copy(&mut self, worker: &mut Worker<'_>) -> Done {
        let Some((from, inode)) = self.pick_file(worker) else {
            return Ok(());
        };
        if self.names.len() >= NAMES {
            return Ok(());
        }
        let to = self.free_name(worker);
        self.place.copy(&from, &to)?;
        let content = self.contents[&inode];
        self.add_file(to, content);
        Ok(())
    }

    /// To a new name, or over another file.
    fn rename(&mut self, worker: &mut Worker<'_>) -> Done {
        let Some(from) = self.pick(worker, |_| true) else {
            return Ok(());
        };
        let node = self.names[&from].clone();
        let mut to = self.free_name(worker);
        if let (Node::File(inode), true) = (&node, worker.rng.one_in(1, 2)) {
            // Two names of one file are left as they are by a rename.
            match self.pick_file(worker) {
                Some((other, of)) if of != *inode => to = other,
                _ => {}
            }
        }
        if to.starts_with(&format!("{from}/")) {
            return Ok(());
        }
        self.place.rename(&from, &to)?;
        self.names.remove(&from);
        self.names.insert(to.clone(), node);
        let below = format!("{from}/");
        let moved: Vec<String> = self
            .names
            .range(below.clone()..)
            .map(|(path, _)| path.clone())
            .take_while(|path| path.starts_with(&below))
            .collect();
        for path in moved {
            let node = self.names.remove(&path).expect("was just found");
            self.names
                .insert(format!("{to}/{}", &path[below.len()..]), node);
        }
        self.forget();
        Ok(())
    }

    fn exchange(&mut self, worker: &mut Worker<'_>) -> Done {
        let (Some((a, of_a)), Some((b, of_b))) = (self.pick_file(worker), self.pick_file(worker))
        else {
            return Ok(());
        };
        if of_a == of_b {
            return Ok(());
        }
        self.place.exchange(&a, &b)?;
        self.names.insert(a, Node::File(of_b));
        self.names.insert(b, Node::File(of_a));
        Ok(())
    }

    fn hard_link(&mut self, worker: &mut Worker<'_>) -> Done {
        let Some((existing, inode)) = self.pick_file(worker) else {
            return Ok(());
        };
        let new = self.free_name(worker);
        self.place.hard_link(&existing, &new)?;
        self.names.insert(new, Node::File(inode));
        Ok(())
    }

    fn symlink(&mut self, worker: &mut Worker<'_>) -> Done {
        let target = format!("nowhere/{}", worker.rng.next_u64());
        let link = self.free_name(worker);
        self.place.symlink(&target, &link)?;
        self.names.insert(link, Node::Link(target));
        Ok(())
    }

    fn remove(&mut self, worker: &mut Worker<'_>) -> Done {
        let Some(path) = self.pick(worker, |_| true) else {
            return Ok(());
        };
        if self.names[&path] != Node::Directory {
            self.place.remove_file(&path)?;
            self.names.remove(&path);
        } else if self.children(&path).is_empty() {
            self.place.remove_dir(&path)?;
            self.names.remove(&path);
        } else if worker.rng.one_in(1, 4) {
            self.place.remove_dir_all(&path)?;
            let below = format!("{path}/");
            self.names
                .retain(|name, _| *name != path && !name.starts_with(&below));
        }
        self.forget();
        Ok(())
    }

    /// Names of a directory, sorted.
    fn children(&self, path: &str) -> Vec<String> {
        let below = format!("{path}/");
        let names = self.names.keys().filter_map(|name| {
            let name = name.strip_prefix(&below)?;
            (!name.contains('/')).then(|| name.to_owned())
        });
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    fn list(&self, worker: &mut Worker<'_>) -> Done {
        let path = self.pick(worker, |node| *node == Node::Directory);
        self.check_names(&path.unwrap_or_else(|| self.top.clone()))
    }

    fn check_names(&self, path: &str) -> Done {
        let (found, expected) = (self.place.list(path)?, self.children(path));
        match found == expected {
            true => Ok(()),
            false => Err(format!(
                "{path} has the names {found:?}, expected {expected:?}"
            )),
        }
    }

    fn read(&self, worker: &mut Worker<'_>) -> Done {
        match self.pick(worker, |_| true) {
            Some(path) => self.check(&path),
            None => Ok(()),
        }
    }

    fn check(&self, path: &str) -> Done {
        let found = self.place.kind(path)?;
        let expected = match &self.names[path] {
            Node::Directory => Kind::Directory,
            Node::Link(_) => Kind::Link,
            Node::File(inode) => Kind::File(self.contents[inode].len as u64),
        };
        if found != expected {
            return Err(format!("{path} is {found:?}, expected {expected:?}"));
        }
        match &self.names[path] {
            Node::Directory => Ok(()),
            Node::Link(target) => {
                let found = self.place.read_link(path)?;
                same(found.as_bytes(), target.as_bytes(), || path.to_owned())
            }
            Node::File(inode) => {
                let found = self.place.read(path)?;
                same(&found, &self.contents[inode].bytes(), || path.to_owned())
            }
        }
    }

    fn check_all(&self) -> Done {
        self.check_names(&self.top)?;
        for (path, node) in &self.names {
            self.check(path)?;
            if *node == Node::Directory {
                self.check_names(path)?;
            }
        }
        Ok(())
    }

    /// Names are in the source at once, contents after a sync.
    fn check_source(&self) -> Done {
        for (path, node) in &self.names {
            let Some(source) = self.place.source(path) else {
                return Ok(());
            };
            match node {
                Node::Directory => {
                    let (found, expected) = (mounted::list(&source)?, self.children(path));
                    if found != expected {
                        let at = source.display();
                        return Err(format!(
                            "{at} has the names {found:?}, expected {expected:?}"
                        ));
                    }
                }
                Node::Link(_) => {
                    if mounted::kind(&source)? != Kind::Link {
                        return Err(format!("{} is no link", source.display()));
                    }
                }
                Node::File(inode) => {
                    let mut handle = self.place.open(path)?;
                    handle.sync(true, &mut foliocache_sim::Rng::new(1))?;
                    let found = fs::read(&source);
                    let found = found.context(|| format!("read {}", source.display()))?;
                    same(&found, &self.contents[inode].bytes(), || {
                        format!("{} after a sync", source.display())
                    })?;
                }
            }
        }
        Ok(())
    }
}
