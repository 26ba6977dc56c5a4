//! A seed is threads that make, move, link, open and remove names of a file system in memory, beside a file over a store
//! that fails: both under one bound, so that names are evicted.
//!
//! Each name is made by one thread only, so that thread knows where it is; the directories are
//! shared.

use super::files::Owner;
use super::{MIB, PAGE, delay, end, fail, join, thread_sleep};
use foliocache_fs::MemFs;
use foliocache_mm::{BackingDevInfo, BdiKind, FrameKind, Mm, MmConfig};
use foliocache_sim::{Faults, Fill, Rng};
use foliocache_sync::model::{trace, with_virtual_time};
use foliocache_sync::{Arc, thread};
use foliocache_sys::Errno;
use foliocache_vfs::{
    FileSystem, Namei, New, OpContext, OpenFlags, OpenHow, RenameMode, SuperBlock, WalkError,
};
use std::collections::BTreeMap;
use std::ffi::OsStr;

const DIRS: [&str; 4] = ["a", "a/b", "c", "c/d"];

/// The names of one thread: each with its file's contents.
struct Names {
    sb: Arc<SuperBlock>,
    thread: usize,
    made: usize,
    there: BTreeMap<String, (Fill, usize)>,
    rng: Rng,
    seed: u64,
}

fn namei(sb: &SuperBlock) -> Namei<'_> {
    Namei {
        names: sb,
        start: sb.root(),
        beneath: false,
        ctx: OpContext::ROOT,
        credentials: None,
    }
}

fn at<T>(result: Result<T, WalkError>) -> Result<T, Errno> {
    result.map_err(|error| error.errno())
}

/// The error of an exhausted bound.
fn no_room(error: Errno) -> bool {
    matches!(error, Errno::ENOSPC | Errno::ENOMEM)
}

impl Names {
    fn fail(&self, what: &str) -> ! {
        panic!("seed {}, thread {}: {what}", self.seed, self.thread);
    }

    /// A new name of this thread in some directory.
    fn fresh(&mut self) -> String {
        self.made += 1;
        let dir = DIRS[self.rng.below(4) as usize];
        format!("{dir}/{}.{}", self.thread, self.made)
    }

    /// Some name that is there.
    fn some(&mut self) -> Option<String> {
        let n = self.there.len() as u64;
        let at = (n > 0).then(|| self.rng.below(n) as usize)?;
        self.there.keys().nth(at).cloned()
    }

    fn make(&mut self) {
        let path = self.fresh();
        let how = OpenHow {
            flags: OpenFlags::READ_WRITE,
            create: true,
            exclusive: true,
            mode: 0o644,
            ..OpenHow::default()
        };
        let file = match at(namei(&self.sb).open(OsStr::new(&path), how)) {
            Ok(file) => file,
            Err(error) if no_room(error) => return,
            Err(error) => self.fail(&format!("making {path}: {error:?}")),
        };
        let fill = Fill(self.rng.next_u64());
        let len = if self.rng.one_in(1, 3) {
            self.rng.between(1, 2 * PAGE) as usize
        } else {
            0
        };
        let written = match file.write_at(&fill.bytes(0, len), 0) {
            Ok(n) => n,
            Err(error) if no_room(error) => 0,
            Err(error) => self.fail(&format!("writing {path}: {error:?}")),
        };
        self.there.insert(path, (fill, written));
    }

    fn look(&mut self) {
        let Some(path) = self.some() else { return };
        let (fill, len) = self.there[&path];
        let attr = match at(namei(&self.sb).stat(OsStr::new(&path), true)) {
            Ok(attr) => attr,
            Err(error) => self.fail(&format!("{path} is there: {error:?}")),
        };
        if attr.attributes.size != len as u64 {
            self.fail(&format!("{path} has {} bytes", attr.attributes.size));
        }
        if self.rng.one_in(1, 2) {
            return;
        }
        let how = OpenHow {
            flags: OpenFlags::READ,
            ..OpenHow::default()
        };
        let file = match at(namei(&self.sb).open(OsStr::new(&path), how)) {
            Ok(file) => file,
            Err(error) if no_room(error) => return,
            Err(error) => self.fail(&format!("opening {path}: {error:?}")),
        };
        let mut bytes = vec![0xee; len + 10];
        let n = file.read_at(&mut bytes, 0).expect("memory does not fail");
        if bytes[..n] != fill.bytes(0, len) {
            self.fail(&format!("{path} has other bytes"));
        }
    }

    fn look_for_none(&mut self) {
        let path = self.fresh();
        match at(namei(&self.sb).stat(OsStr::new(&path), true)) {
            Err(Errno::ENOENT) => {}
            Err(error) if no_room(error) => {}
            other => self.fail(&format!("{path} is not there: {other:?}")),
        }
    }

    fn rename(&mut self) {
        let Some(from) = self.some() else { return };
        let (to, mode) = match self.rng.below(3) {
            0 => (self.some(), RenameMode::Exchange),
            1 => (self.some(), RenameMode::Replace),
            _ => (Some(self.fresh()), RenameMode::NoReplace),
        };
        let Some(to) = to.filter(|to| *to != from) else {
            return;
        };
        let names = namei(&self.sb);
        match at(names.rename(OsStr::new(&from), &names, OsStr::new(&to), mode)) {
            Ok(()) => {}
            Err(error) if no_room(error) => return,
            Err(error) => self.fail(&format!("{from} to {to}: {error:?}")),
        }
        let moved = self.there.remove(&from).expect("it was there");
        let before = self.there.insert(to, moved);
        if let (RenameMode::Exchange, Some(before)) = (mode, before) {
            self.there.insert(from, before);
        }
    }

    fn unlink(&mut self) {
        let Some(path) = self.some() else { return };
        if let Err(error) = at(namei(&self.sb).unlink(OsStr::new(&path))) {
            self.fail(&format!("removing {path}: {error:?}"));
        }
        self.there.remove(&path);
    }

    /// A private directory is made, named and removed.
    fn directory(&mut self) {
        let path = self.fresh();
        let names = namei(&self.sb);
        match at(names.make(OsStr::new(&path), New::Directory { mode: 0o755 })) {
            Ok(_) => {}
            Err(error) if no_room(error) => return,
            Err(error) => self.fail(&format!("making directory {path}: {error:?}")),
        }
        if let Some(from) = self.there.keys().next().cloned() {
            let inside = format!("{path}/x");
            let (from, inside) = (OsStr::new(&from), OsStr::new(&inside));
            let there = at(names.rename(from, &names, inside, RenameMode::NoReplace));
            if there.is_ok() {
                if at(names.rmdir(OsStr::new(&path))) != Err(Errno::ENOTEMPTY) {
                    self.fail(&format!("{path} is not empty"));
                }
                let back = at(names.rename(inside, &names, from, RenameMode::NoReplace));
                if let Err(error) = back {
                    self.fail(&format!("out of {path}: {error:?}"));
                }
            }
        }
        if let Err(error) = at(names.rmdir(OsStr::new(&path))) {
            self.fail(&format!("removing directory {path}: {error:?}"));
        }
    }

    fn work(&mut self, operations: usize) {
        for _ in 0..operations {
            match self.rng.below(12) {
                0..3 => self.make(),
                3..6 => self.look(),
                6 => self.look_for_none(),
                7 | 8 => self.rename(),
                9 => self.unlink(),
                10 => self.directory(),
                _ => self.sb.evict_unused(),
            }
            trace(&(self.thread, self.there.len(), self.made));
            if self.rng.one_in(1, 4) {
                thread_sleep(&mut self.rng, 20);
            }
        }
    }

    /// All names are where they are to be.
    fn end(mut self) {
        for _ in 0..self.there.len() {
            self.look();
        }
        for path in self.there.keys() {
            if let Err(error) = at(namei(&self.sb).lookup(OsStr::new(path), true)) {
                self.fail(&format!("{path} in the end: {error:?}"));
            }
        }
    }
}

/// Runs a seed.
pub(crate) fn run(seed: u64) {
    with_virtual_time(|| simulate(seed));
}

fn simulate(seed: u64) {
    let mut rng = Rng::new(seed ^ 0xf5);
    let mut config = MmConfig::new(8 * MIB);
    config.dirty_background_percent = 1;
    config.dirty_percent = 3;
    let mm = Mm::new(config).expect("a cache");
    let fs = Arc::new(MemFs::new(&mm).expect("a file system"));
    let sb = Arc::new(SuperBlock::new(fs.clone(), &mm));
    for dir in DIRS {
        let made = at(namei(&sb).make(OsStr::new(dir), New::Directory { mode: 0o755 }));
        assert!(made.is_ok(), "{dir}: {:?}", made.err());
    }
    let bdi = BackingDevInfo::new(&mm, "store", BdiKind::Storage).expect("a store");
    let faults = Faults::new(rng.next_u64());
    delay(&faults, &mut rng);
    let fails = rng.one_in(1, 2);
    if fails {
        fail(&faults, &mut rng);
    }
    let frames = Arc::clone(&mm);
    let left = rng.between(48, 96);
    let away = frames.usage().available_pages - left;
    let away = frames
        .frames()
        .try_reserve(FrameKind::General, away as u32)
        .expect("frames");

    let mut owner = Owner::new(&bdi, &faults, seed, 0, fails);
    let (sender, receiver) = std::sync::mpsc::channel();
    let (names_sender, names_receiver) = std::sync::mpsc::channel();
    let operations = rng.between(3, 6) as usize;
    let mut threads = vec![thread::spawn(move || {
        owner.work(operations);
        sender.send(owner).expect("the main thread waits");
    })];
    for thread in 0..rng.between(2, 3) as usize {
        let mut names = Names {
            sb: Arc::clone(&sb),
            thread,
            made: 0,
            there: BTreeMap::new(),
            rng: rng.fork(),
            seed,
        };
        let (operations, sender) = (rng.between(4, 14) as usize, names_sender.clone());
        threads.push(thread::spawn(move || {
            names.work(operations);
            sender.send(names).expect("the main thread waits");
        }));
    }
    drop(names_sender);
    join(threads);
    let mut names: Vec<Names> = names_receiver.into_iter().collect();
    names.sort_by_key(|names| names.thread);
    // Beside each name that a thread has there is no other.
    let expected: usize = names.iter().map(|names| names.there.len()).sum();
    let mut found = 0;
    for dir in DIRS {
        let inode = at(namei(&sb).inode(OsStr::new(dir), true)).expect("a directory");
        let entries = fs.opendir(&inode).and_then(|dir| dir.read_all());
        let entries = entries.expect("memory does not fail");
        let files = |name: &OsStr| name.as_encoded_bytes().contains(&b'.') && name.len() > 2;
        found += entries.iter().filter(|entry| files(&entry.name)).count();
    }
    assert_eq!(found, expected, "seed {seed}: names");
    names.into_iter().for_each(Names::end);
    faults.heal();
    drop(away);
    drop(frames);
    receiver.into_iter().for_each(Owner::end);
    drop(sb);
    drop(fs);
    end(mm, vec![bdi]);
}
