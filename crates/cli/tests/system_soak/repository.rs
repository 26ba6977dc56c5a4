//! Files as a version control system makes them: written under another name, synced, moved into place, packed, removed.

use crate::place::Place;
use crate::work::{Done, Worker, same};
use foliocache_sim::{Fill, Rng};
use std::collections::BTreeSet;

/// Loose objects before they are packed.
const LOOSE: usize = 24;

/// Packs before the oldest is removed.
const PACKS: usize = 3;

fn object(id: u64) -> Vec<u8> {
    let len = Rng::new(id).between(1, 12_000);
    Fill(id).bytes(0, len as usize)
}

struct Repository<'a> {
    place: &'a dyn Place,
    top: String,
    loose: BTreeSet<u64>,
    packs: Vec<(u64, Vec<u64>)>,
    next: u64,
}

/// Works in the directory `folder`, which it makes and removes.
pub(crate) fn work(worker: &mut Worker<'_>, place: &dyn Place, folder: &str) -> Done {
    place.create_dir(folder)?;
    place.create_dir(&format!("{folder}/objects"))?;
    place.create_dir(&format!("{folder}/pack"))?;
    for i in 0..16 {
        place.create_dir(&format!("{folder}/objects/{i:x}"))?;
    }
    let mut repository = Repository {
        place,
        top: folder.to_owned(),
        loose: BTreeSet::new(),
        packs: Vec::new(),
        next: 0,
    };
    while worker.goes_on() {
        repository.commit(worker)?;
        if repository.loose.len() > LOOSE {
            repository.pack(worker)?;
        }
    }
    repository.check()?;
    place.remove_dir_all(folder)
}

impl Repository<'_> {
    fn path_of(&self, id: u64) -> String {
        format!("{}/objects/{:x}/{id:016x}", self.top, id % 16)
    }

    /// Writes under a temporary name, syncs, and moves into place.
    fn publish(&mut self, worker: &mut Worker<'_>, path: &str, bytes: &[u8]) -> Done {
        self.next += 1;
        let temporary = format!("{}/objects/tmp_{}", self.top, self.next);
        self.place.write(&temporary, bytes)?;
        if worker.rng.one_in(1, 3) {
            self.place.open(&temporary)?.sync(false, &mut worker.rng)?;
        }
        // Both ways are in use: a link fails if the name is there.
        match worker.rng.one_in(1, 2) && self.place.kind(path).is_err() {
            true => {
                self.place.hard_link(&temporary, path)?;
                self.place.remove_file(&temporary)?;
            }
            false => self.place.rename(&temporary, path)?,
        }
        Ok(())
    }

    /// Some new objects, and an index that lists all loose ones.
    fn commit(&mut self, worker: &mut Worker<'_>) -> Done {
        for _ in 0..worker.rng.between(1, 4) {
            let id = worker.rng.next_u64();
            self.publish(worker, &self.path_of(id), &object(id))?;
            self.loose.insert(id);
        }
        let index: Vec<u8> = self.loose.iter().flat_map(|id| id.to_le_bytes()).collect();
        let (lock, path) = (
            format!("{}/index.lock", self.top),
            format!("{}/index", self.top),
        );
        self.place.write(&lock, &index)?;
        self.place.rename(&lock, &path)?;
        same(&self.place.read(&path)?, &index, || path.clone())?;
        let at = worker.rng.below(self.loose.len() as u64) as usize;
        let id = *self.loose.iter().nth(at).expect("is below the number");
        let path = self.path_of(id);
        same(&self.place.read(&path)?, &object(id), || path.clone())?;
        let what = ["commit", "commit on a mount"][usize::from(self.place.is_mount())];
        worker.did(what, index.len());
        Ok(())
    }

    /// All loose objects in one file, which takes their place.
    fn pack(&mut self, worker: &mut Worker<'_>) -> Done {
        let ids: Vec<u64> = self.loose.iter().copied().collect();
        let number = worker.rng.next_u64();
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| object(id)).collect();
        self.publish(worker, &self.pack_path(number), &bytes)?;
        self.place.sync_dir(&format!("{}/pack", self.top))?;
        for &id in &ids {
            self.place.remove_file(&self.path_of(id))?;
        }
        self.loose.clear();
        self.packs.push((number, ids));
        if self.packs.len() > PACKS {
            let (oldest, _) = self.packs.remove(0);
            self.place.remove_file(&self.pack_path(oldest))?;
        }
        self.check()?;
        let what = ["pack", "pack on a mount"][usize::from(self.place.is_mount())];
        worker.did(what, bytes.len());
        Ok(())
    }

    fn pack_path(&self, number: u64) -> String {
        format!("{}/pack/{number:016x}.pack", self.top)
    }

    fn check(&self) -> Done {
        for &id in &self.loose {
            let path = self.path_of(id);
            same(&self.place.read(&path)?, &object(id), || path.clone())?;
        }
        for (number, ids) in &self.packs {
            let path = self.pack_path(*number);
            let expected: Vec<u8> = ids.iter().flat_map(|&id| object(id)).collect();
            same(&self.place.read(&path)?, &expected, || path.clone())?;
        }
        let packs = self.place.list(&format!("{}/pack", self.top))?.len();
        match packs == self.packs.len() {
            true => Ok(()),
            false => Err(format!("{packs} packs, expected {}", self.packs.len())),
        }
    }
}
