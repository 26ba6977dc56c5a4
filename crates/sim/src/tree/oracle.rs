//! The judge of several files and of their names after a power cut.
//!
//! # Model
//!
//! Each file has a [`DurabilityOracle`] for its content. Each name of a directory is a *slot* with a history: its
//! targets since the last sync that promised it, oldest first, the present one last. After a cut
//!
//! 1. a slot leads to an entry of its history, or to nothing if that is in it;
//! 2. there is no other name;
//! 3. the content of a file is one that its oracle allows;
//! 4. a file or directory whose name was promised once, and that was not removed since, has a name: the old one or the
//!    new one of a rename.
//!
//! A sync of a file promises its content, its names, and the names of the directories above. A sync of a directory
//! promises the names in it. The order between files follows: if a later sync's data is there, so is that of an
//! earlier sync.

use std::collections::{BTreeMap, BTreeSet};

use super::{Found, How, TreeOp, split};
use crate::{DurabilityOracle, Image, Operation};

/// The number of a file or directory; the root is 0.
type Id = usize;

#[derive(Clone, Debug)]
enum Object {
    File(DurabilityOracle),
    /// The targets of each name since it was last promised.
    Dir(BTreeMap<String, Vec<Option<Id>>>),
}

/// Judges trees against the history of one.
#[derive(Clone, Debug)]
pub struct TreeOracle {
    objects: Vec<Object>,
    /// Those with a promised name; rule 4.
    promised: BTreeSet<Id>,
}

impl Default for TreeOracle {
    fn default() -> Self {
        TreeOracle {
            objects: vec![Object::Dir(BTreeMap::new())],
            promised: BTreeSet::from([0]),
        }
    }
}

impl TreeOracle {
    /// For a tree that durably holds `found`.
    pub fn from_found(found: &Found) -> TreeOracle {
        let mut oracle = TreeOracle {
            objects: Vec::new(),
            promised: BTreeSet::new(),
        };
        oracle.adopt(found);
        oracle
    }

    fn adopt(&mut self, found: &Found) -> Id {
        let id = self.objects.len();
        self.objects.push(Object::Dir(BTreeMap::new()));
        self.promised.insert(id);
        self.objects[id] = match found {
            Found::File(bytes) => {
                let mut image = Image::new();
                image.write(0, bytes);
                Object::File(DurabilityOracle::new(image))
            }
            Found::Dir(entries) => {
                let adopt = |(name, found): (&String, &Found)| {
                    (name.clone(), vec![Some(self.adopt(found))])
                };
                Object::Dir(entries.iter().map(adopt).collect())
            }
        };
        id
    }

    fn slots_mut(&mut self, dir: Id) -> &mut BTreeMap<String, Vec<Option<Id>>> {
        match &mut self.objects[dir] {
            Object::Dir(slots) => slots,
            Object::File(_) => panic!("a file in the place of a directory"),
        }
    }

    /// The file at a path now.
    fn find(&self, path: &str) -> Option<Id> {
        let mut at = 0;
        for name in path.split('/').filter(|&name| name != ".") {
            let Object::Dir(slots) = &self.objects[at] else {
                return None;
            };
            at = (*slots.get(name)?.last()?)?;
        }
        Some(at)
    }

    fn at(&self, path: &str) -> Id {
        self.find(path)
            .unwrap_or_else(|| panic!("nothing at {path}"))
    }

    fn file_mut(&mut self, path: &str) -> &mut DurabilityOracle {
        let id = self.at(path);
        match &mut self.objects[id] {
            Object::File(file) => file,
            Object::Dir(_) => panic!("{path} is a directory"),
        }
    }

    /// The size of the file at a path now; `None` for anything else.
    pub fn size(&self, path: &str) -> Option<u64> {
        match &self.objects[self.find(path)?] {
            Object::File(file) => Some(file.content().size()),
            Object::Dir(_) => None,
        }
    }

    /// Whether there is a directory at a path now, and how many names it has.
    pub fn directory(&self, path: &str) -> Option<usize> {
        match &self.objects[self.find(path)?] {
            Object::File(_) => None,
            Object::Dir(slots) => Some(slots.values().filter(|s| s.last() != Some(&None)).count()),
        }
    }

    /// Whether two paths are names of one file.
    pub(super) fn same(&self, one: &str, other: &str) -> bool {
        self.find(one).is_some() && self.find(one) == self.find(other)
    }

    fn bind(&mut self, path: &str, to: Option<Id>) {
        let (dir, name) = split(path);
        let dir = self.at(dir);
        let slot = self.slots_mut(dir).entry(name.to_owned());
        let slot = slot.or_insert_with(|| vec![None]);
        let before = *slot.last().unwrap_or(&None);
        if before != to {
            slot.push(to);
        }
        if let Some(lost) = before
            && self.names(lost).is_empty()
        {
            self.promised.remove(&lost);
        }
    }

    /// The present names of something: directory and name.
    fn names(&self, id: Id) -> Vec<(Id, String)> {
        let mut found = Vec::new();
        for (dir, object) in self.objects.iter().enumerate() {
            let Object::Dir(slots) = object else {
                continue;
            };
            let names = slots
                .iter()
                .filter(|(_, slot)| slot.last() == Some(&Some(id)));
            found.extend(names.map(|(name, _)| (dir, name.clone())));
        }
        found
    }

    fn add(&mut self, path: &str, object: Object) {
        self.objects.push(object);
        let id = self.objects.len() - 1;
        self.bind(path, Some(id));
    }

    /// Notes an operation; to be called *before* it is done, since a cut may come amid it.
    pub fn record(&mut self, operation: &TreeOp) {
        match operation {
            TreeOp::Create { path } => {
                self.add(path, Object::File(DurabilityOracle::new(Image::new())));
            }
            TreeOp::Mkdir { path } => self.add(path, Object::Dir(BTreeMap::new())),
            &TreeOp::Write {
                ref path,
                pos,
                len,
                fill,
                ..
            } => {
                let write = Operation::Write { pos, len, fill };
                self.file_mut(path).record(&write);
            }
            &TreeOp::Append {
                ref path,
                len,
                fill,
            } => self.file_mut(path).record(&Operation::Append { len, fill }),
            &TreeOp::Truncate { ref path, size } => {
                self.file_mut(path).record(&Operation::Truncate { size });
            }
            &TreeOp::Punch { ref path, pos, len } => {
                self.file_mut(path)
                    .record(&Operation::PunchHole { pos, len });
            }
            TreeOp::Rename { from, to } => {
                let id = self.at(from);
                // In this order, so that the file always has a name and is not removed.
                self.bind(to, Some(id));
                self.bind(from, None);
            }
            TreeOp::Link { existing, new } => {
                let id = self.at(existing);
                self.bind(new, Some(id));
            }
            TreeOp::Unlink { path } | TreeOp::Rmdir { path } => self.bind(path, None),
            TreeOp::SyncData { .. }
            | TreeOp::SyncAll { .. }
            | TreeOp::SyncDir { .. }
            | TreeOp::SyncEverything => {}
        }
    }

    /// The operation returned without an error.
    pub fn acknowledge(&mut self, operation: &TreeOp) {
        match operation {
            TreeOp::SyncData { path } => self.file_mut(path).acknowledge(),
            &TreeOp::Write {
                ref path,
                pos,
                len,
                how: How::Mapped | How::Synced,
                ..
            } => self.file_mut(path).acknowledge_range(pos, len as u64),
            TreeOp::SyncAll { path } => {
                self.file_mut(path).acknowledge();
                self.promise_names(self.at(path));
            }
            TreeOp::SyncDir { path } => {
                let dir = self.at(path);
                self.promise_directory(dir);
            }
            TreeOp::SyncEverything => {
                for id in 0..self.objects.len() {
                    match &mut self.objects[id] {
                        Object::File(file) => file.acknowledge(),
                        Object::Dir(_) => self.promise_directory(id),
                    }
                }
            }
            _ => {}
        }
    }

    fn promise_directory(&mut self, dir: Id) {
        let there = self.promised.contains(&dir);
        let mut kept = Vec::new();
        for slot in self.slots_mut(dir).values_mut() {
            let last = *slot.last().unwrap_or(&None);
            *slot = vec![last];
            kept.extend(last);
        }
        if there {
            self.promised.extend(kept);
        }
    }

    fn promise_names(&mut self, id: Id) {
        if id == 0 {
            return;
        }
        for (dir, name) in self.names(id) {
            self.promise_names(dir);
            if let Some(slot) = self.slots_mut(dir).get_mut(&name) {
                *slot = vec![Some(id)];
            }
        }
        self.promised.insert(id);
    }

    /// Whether a power cut may leave `found`.
    ///
    /// # Errors
    /// The first violation.
    pub fn check(&self, found: &Found) -> Result<(), String> {
        let mut seen = BTreeSet::new();
        self.check_object(0, found, ".", &mut seen)?;
        match self.promised.iter().find(|id| !seen.contains(id)) {
            None => Ok(()),
            Some(&id) => {
                let names = self.names(id);
                let names: Vec<_> = names.iter().map(|(_, name)| name.as_str()).collect();
                Err(format!(
                    "{} is gone, whose name was promised",
                    names.join(", ")
                ))
            }
        }
    }

    fn check_object(
        &self,
        id: Id,
        found: &Found,
        path: &str,
        seen: &mut BTreeSet<Id>,
    ) -> Result<(), String> {
        match (&self.objects[id], found) {
            (Object::File(file), Found::File(bytes)) => {
                let mut image = Image::new();
                image.write(0, bytes);
                let checked = file.check(&image);
                checked.map_err(|violation| format!("{path}: {violation}"))?;
            }
            (Object::Dir(slots), Found::Dir(entries)) => {
                if let Some(name) = entries.keys().find(|&name| !slots.contains_key(name)) {
                    return Err(format!("{path}/{name}: this name was never made"));
                }
                for (name, slot) in slots {
                    let path = format!("{path}/{name}");
                    self.check_slot(slot, entries.get(name), &path, seen)?;
                }
            }
            (Object::File(_), _) => return Err(format!("{path}: a directory and no file")),
            (Object::Dir(_), _) => return Err(format!("{path}: a file and no directory")),
        }
        seen.insert(id);
        Ok(())
    }

    fn check_slot(
        &self,
        slot: &[Option<Id>],
        found: Option<&Found>,
        path: &str,
        seen: &mut BTreeSet<Id>,
    ) -> Result<(), String> {
        let Some(found) = found else {
            return match slot.contains(&None) {
                true => Ok(()),
                false => Err(format!("{path}: the name is gone")),
            };
        };
        let mut why = format!("{path}: a name that was removed is there");
        let mut fits = false;
        for &id in slot.iter().flatten() {
            // It may be any that fits: each of them counts as there.
            let mut here = seen.clone();
            match self.check_object(id, found, path, &mut here) {
                Ok(()) => {
                    *seen = here;
                    fits = true;
                }
                Err(error) => why = error,
            }
        }
        if fits { Ok(()) } else { Err(why) }
    }
}

#[cfg(test)]
mod tests;
