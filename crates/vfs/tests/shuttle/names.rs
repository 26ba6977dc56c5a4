//! A file system in memory that is also changed from outside, and that may report it.
#![allow(dead_code, reason = "each model uses a part of it")]

use foliocache_mm::AddressSpace;
use foliocache_sync::{Arc, Mutex, thread};
use foliocache_sys::Errno;
use foliocache_sys::clock::Timespec;
use foliocache_vfs::{
    Attr, AttrCell, Attributes, Belief, Change, Credentials, Device, FallocateMode, FileKind,
    FileSystem, Generation, Inode, InodeOperations, Namei, New, News, OpContext, OpenDirectory,
    OpenFile, OpenFlags, Remove, RenameMode, SeekSparse, SetAttr, SlabArc, SlabWeak, StatFs,
    SuperBlock, Told, Validity, XattrMode,
};
use std::ffi::{OsStr, OsString};
use std::mem;

/// Paths from the root, which do not leave it.
pub(crate) fn paths<'a>(sb: &'a SuperBlock, credentials: Option<&'a Credentials>) -> Namei<'a> {
    Namei {
        names: sb,
        start: sb.root(),
        beneath: true,
        ctx: OpContext::ROOT,
        credentials,
    }
}

pub(crate) const ROOT: u64 = 1;
pub(crate) const A: u64 = 2;
pub(crate) const FILE_OF_A: u64 = 3;
pub(crate) const B: u64 = 4;
pub(crate) const FILE_OF_B: u64 = 5;

/// The known state of the files, by number.
#[derive(Default)]
struct Known {
    /// Grows with each change; the first one closes a directory to all but its owner, user 0.
    sizes: [u64; 6],
    /// Questions for names and attributes.
    asked: usize,
    /// A file; answers with it take a while.
    late: u64,
    /// Writes to each file, and how many of them the store has.
    written: [u64; 6],
    stored: [u64; 6],
    /// Files that were asked for because they may be gone.
    looked_at: Vec<u64>,
    /// The store's contents when a name moved.
    moves: Vec<(RenameMode, [u64; 6])>,
}

struct Ops {
    known: Arc<Mutex<Known>>,
    belief: Arc<Belief>,
}

impl InodeOperations for Ops {
    fn getattr(&self, inode: &Inode) -> Result<Attr, Errno> {
        let attributes = inode.attributes();
        let doubts = attributes.doubts();
        let until = self.belief.until(self.belief.now(), true);
        let mut known = self.known.lock();
        known.asked += 1;
        let size = known.sizes[inode.ino() as usize];
        drop(known);
        attributes.believe(doubts, until, |attributes| {
            attributes.size = size;
            attributes.mode = if size == 0 { 0o755 } else { 0o700 };
        });
        Ok(attributes.get().of(inode.ino(), inode.kind()))
    }

    fn new_mapping(&self, _: &Inode) -> Result<SlabArc<AddressSpace>, Errno> {
        Err(Errno::ENOSYS)
    }

    fn remove_privileges(&self, _: &Inode, _: bool) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }

    fn sync(&self, _: &Inode, _: bool) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }

    fn allocate(&self, _: &Inode, _: FallocateMode, _: u64, _: u64) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }

    fn seek_sparse(&self, _: &Inode, _: SeekSparse, _: u64) -> Result<u64, Errno> {
        Err(Errno::ENOSYS)
    }

    fn has_unwritten(&self, inode: &Inode) -> bool {
        let (known, file) = (self.known.lock(), inode.ino() as usize);
        known.written[file] > known.stored[file]
    }

    fn write_and_wait(&self, inode: &Inode) -> Result<(), Errno> {
        let file = inode.ino() as usize;
        let written = self.known.lock().written[file];
        // Later writes do not count as under way.
        let stored = &mut self.known.lock().stored[file];
        *stored = written.max(*stored);
        Ok(())
    }

    fn released(&self, _: &Inode, _: bool) {}
}

/// A change in a directory.
struct Event {
    dir: u64,
    name: Option<OsString>,
    change: Change,
}

/// Tells of changes as inotify does: each is in the queue before the call that made it returns.
pub(crate) struct Queue {
    /// Directories that cannot be watched.
    refused: &'static [u64],
    room: usize,
    queued: Mutex<Queued>,
}

#[derive(Default)]
struct Queued {
    watched: Vec<(u64, SlabWeak<Inode>)>,
    events: Vec<Event>,
    lost: bool,
    /// The news are not to be read yet.
    held_back: bool,
}

impl Queue {
    pub(crate) fn new(room: usize, refused: &'static [u64]) -> Arc<Queue> {
        Arc::new(Queue {
            refused,
            room,
            queued: Mutex::default(),
        })
    }

    /// News are not read from now on, as in the moment before they are looked for again.
    pub(crate) fn hold_back(&self) {
        self.queued.lock().held_back = true;
    }

    fn push(&self, dir: u64, name: Option<&OsStr>, change: Change) {
        let mut queued = self.queued.lock();
        if !queued.watched.iter().any(|watched| watched.0 == dir) {
            return;
        }
        if queued.events.len() == self.room {
            queued.lost = true;
            return;
        }
        let name = name.map(OsStr::to_owned);
        queued.events.push(Event { dir, name, change });
    }
}

impl News for Queue {
    fn watch(&self, dir: &SlabArc<Inode>) -> bool {
        if self.refused.contains(&dir.ino()) {
            return false;
        }
        let mut queued = self.queued.lock();
        if !queued.watched.iter().any(|watched| watched.0 == dir.ino()) {
            queued.watched.push((dir.ino(), SlabArc::downgrade(dir)));
        }
        true
    }

    fn read(&self, tell: &mut dyn FnMut(Told<'_>)) -> bool {
        let (events, lost) = {
            let mut queued = self.queued.lock();
            if queued.held_back {
                return true;
            }
            (mem::take(&mut queued.events), mem::take(&mut queued.lost))
        };
        for Event { dir, name, change } in events {
            let dir = {
                let queued = self.queued.lock();
                let watched = queued.watched.iter().find(|watched| watched.0 == dir);
                watched.and_then(|watched| watched.1.upgrade())
            };
            if let Some(dir) = &dir {
                let name = name.as_deref();
                tell(Told { dir, name, change });
            }
        }
        !lost
    }
}

/// A directory's number, a name in it, and the inode behind it.
type Entry = (u64, OsString, SlabArc<Inode>);

/// Names in memory.
pub(crate) struct Names {
    root: SlabArc<Inode>,
    permissions: Arc<Generation>,
    entries: Mutex<Vec<Entry>>,
    known: Arc<Mutex<Known>>,
    belief: Arc<Belief>,
    queue: Arc<Queue>,
}

impl Names {
    /// `a/f` and `b/f`, changed through the cache alone.
    pub(crate) fn new() -> Names {
        Self::of(Belief::new(Validity::FOR_EVER), Queue::new(0, &[]))
    }

    /// The same, with reports of its changes.
    pub(crate) fn watched(validity: Validity, queue: Arc<Queue>) -> Names {
        Self::of(Belief::watching(validity, queue.clone()), queue)
    }

    fn of(belief: Belief, queue: Arc<Queue>) -> Names {
        let (permissions, known) = (Arc::new(Generation::default()), Arc::default());
        let belief = Arc::new(belief);
        let inode = |ino, kind| {
            let zero = Timespec::new(0, 0);
            let attributes = Attributes {
                mode: 0o755,
                nlink: 1,
                uid: 0,
                gid: 0,
                rdev: Device { major: 0, minor: 0 },
                size: 0,
                blocks: 0,
                blksize: 512,
                atime: zero,
                mtime: zero,
                ctime: zero,
                btime: None,
            };
            let cell = SlabArc::new(match kind {
                FileKind::Directory => AttrCell::of_directory(attributes, Arc::clone(&permissions)),
                _ => AttrCell::new(attributes),
            });
            let (known, belief) = (Arc::clone(&known), belief.clone());
            let ops = SlabArc::new(Ops { known, belief });
            SlabArc::new(Inode::new(ino, 0, kind, cell, ops))
        };
        let entry = |dir, name: &str, ino, kind| (dir, name.into(), inode(ino, kind));
        let entries = vec![
            entry(ROOT, "a", A, FileKind::Directory),
            entry(A, "f", FILE_OF_A, FileKind::Regular),
            entry(ROOT, "b", B, FileKind::Directory),
            entry(B, "f", FILE_OF_B, FileKind::Regular),
        ];
        Names {
            root: inode(ROOT, FileKind::Directory),
            entries: Mutex::new(entries),
            permissions: permissions.clone(),
            known: known.clone(),
            belief: belief.clone(),
            queue,
        }
    }

    /// Answers that a name leads to this file take a while from now on.
    pub(crate) fn answer_late(&self, file: u64) {
        self.known.lock().late = file;
    }

    /// Questions so far.
    pub(crate) fn asked(&self) -> usize {
        self.known.lock().asked
    }

    /// Whether it was asked about a file that may be gone.
    pub(crate) fn looked_at(&self, file: u64) -> bool {
        self.known.lock().looked_at.contains(&file)
    }

    /// Writes to a file; the store does not have it.
    pub(crate) fn write(&self, file: u64) {
        self.known.lock().written[file as usize] += 1;
    }

    /// How often each file was written to.
    pub(crate) fn written(&self) -> [u64; 6] {
        self.known.lock().written
    }

    /// How many of the writes to each file the store had when a name was last moved so.
    pub(crate) fn stored_when_moved(&self, mode: RenameMode) -> Option<[u64; 6]> {
        let known = self.known.lock();
        let found = known.moves.iter().rfind(|moved| moved.0 == mode);
        found.map(|moved| moved.1)
    }

    /// Waits for this many steps.
    pub(crate) fn wait(&self, steps: usize) {
        for _ in 0..steps {
            self.asked();
        }
    }

    /// The file behind a name.
    pub(crate) fn leads_to(&self, dir: u64, name: &str) -> Option<u64> {
        let entries = self.entries.lock();
        find(&entries, dir, OsStr::new(name)).map(|at| entries[at].2.ino())
    }

    /// Waits until there is such a name, or none.
    pub(crate) fn wait_for(&self, dir: u64, name: &str, is_there: bool) {
        while self.leads_to(dir, name).is_some() != is_there {
            thread::yield_now();
        }
    }

    /// Takes a name away.
    pub(crate) fn take(&self, dir: u64, name: &str) -> Result<SlabArc<Inode>, Errno> {
        let name = OsStr::new(name);
        let mut entries = self.entries.lock();
        let at = find(&entries, dir, name).ok_or(Errno::ENOENT)?;
        let (_, _, inode) = entries.remove(at);
        self.known.lock().sizes[dir as usize] += 1;
        drop(entries);
        self.queue.push(dir, Some(name), Change::NameLost);
        Ok(inode)
    }

    /// Moves a name, or exchanges it with another.
    pub(crate) fn move_to(
        &self,
        from: (u64, &str),
        to: (u64, &str),
        exchange: bool,
    ) -> Result<(), Errno> {
        let (from, to) = ((from.0, OsStr::new(from.1)), (to.0, OsStr::new(to.1)));
        let mut entries = self.entries.lock();
        let moved = find(&entries, from.0, from.1).ok_or(Errno::ENOENT)?;
        let target = find(&entries, to.0, to.1);
        (entries[moved].0, entries[moved].1) = (to.0, to.1.to_owned());
        match target {
            Some(target) if exchange => {
                (entries[target].0, entries[target].1) = (from.0, from.1.to_owned());
            }
            None if exchange => return Err(Errno::ENOENT),
            Some(target) if target != moved => drop(entries.remove(target)),
            _ => {}
        }
        let mut known = self.known.lock();
        known.sizes[from.0 as usize] += 1;
        known.sizes[to.0 as usize] += 1;
        drop((known, entries));
        self.queue.push(from.0, Some(from.1), Change::Name);
        self.queue.push(to.0, Some(to.1), Change::NameLost);
        Ok(())
    }

    /// Changes the attributes of the file with a name.
    pub(crate) fn touch(&self, dir: u64, name: &str) {
        let entries = self.entries.lock();
        let at = find(&entries, dir, OsStr::new(name)).expect("it is there");
        let (_, name, inode) = entries[at].clone();
        self.known.lock().sizes[inode.ino() as usize] += 1;
        drop(entries);
        self.queue.push(dir, Some(&name), Change::Attributes);
        if inode.is_directory() {
            self.queue.push(inode.ino(), None, Change::Attributes);
        }
    }

    /// Changes the attributes of the root, which has no name.
    pub(crate) fn touch_root(&self) {
        self.known.lock().sizes[ROOT as usize] += 1;
        self.queue.push(ROOT, None, Change::Attributes);
    }
}

fn find(entries: &[Entry], dir: u64, name: &OsStr) -> Option<usize> {
    entries
        .iter()
        .position(|entry| (entry.0, &*entry.1) == (dir, name))
}

fn str_of(name: &OsStr) -> &str {
    name.to_str().expect("a name of a model")
}

impl FileSystem for Names {
    fn kind(&self) -> &'static str {
        "names"
    }

    fn belief(&self) -> Arc<Belief> {
        self.belief.clone()
    }

    fn give_up_removed(&self, inode: &SlabArc<Inode>) -> bool {
        let is_there = self
            .entries
            .lock()
            .iter()
            .any(|entry| SlabArc::ptr_eq(&entry.2, inode));
        if !is_there {
            self.known.lock().looked_at.push(inode.ino());
        }
        !is_there
    }

    fn is_told_all(&self, _: &Inode, _: &Inode) -> bool {
        true
    }

    fn permissions(&self) -> &Arc<Generation> {
        &self.permissions
    }

    fn root(&self) -> SlabArc<Inode> {
        self.root.clone()
    }

    fn lookup(&self, dir: &SlabArc<Inode>, name: &OsStr) -> Result<SlabArc<Inode>, Errno> {
        let entries = self.entries.lock();
        self.known.lock().asked += 1;
        let at = find(&entries, dir.ino(), name).ok_or(Errno::ENOENT)?;
        let found = entries[at].2.clone();
        drop(entries);
        if self.known.lock().late == found.ino() {
            self.wait(100);
        }
        Ok(found)
    }

    fn getattr(&self, inode: &SlabArc<Inode>) -> Result<Attr, Errno> {
        inode.ops().getattr(inode)
    }

    fn remove(&self, dir: &SlabArc<Inode>, name: &OsStr, _: Remove) -> Result<(), Errno> {
        self.take(dir.ino(), str_of(name)).map(drop)
    }

    fn rename(
        &self,
        from_dir: &SlabArc<Inode>,
        from: &OsStr,
        to_dir: &SlabArc<Inode>,
        to: &OsStr,
        mode: RenameMode,
    ) -> Result<(), Errno> {
        let from = (from_dir.ino(), str_of(from));
        let to = (to_dir.ino(), str_of(to));
        let mut known = self.known.lock();
        let stored = known.stored;
        known.moves.push((mode, stored));
        drop(known);
        self.move_to(from, to, mode == RenameMode::Exchange)
    }

    fn setattr(&self, _: &OpContext, _: &SlabArc<Inode>, _: &SetAttr) -> Result<Attr, Errno> {
        Err(Errno::ENOSYS)
    }

    fn create(
        &self,
        _: &OpContext,
        _: &SlabArc<Inode>,
        _: &OsStr,
        _: u32,
        _: OpenFlags,
    ) -> Result<OpenFile, Errno> {
        Err(Errno::ENOSYS)
    }

    fn make(
        &self,
        _: &OpContext,
        _: &SlabArc<Inode>,
        _: &OsStr,
        _: New<'_>,
    ) -> Result<SlabArc<Inode>, Errno> {
        Err(Errno::ENOSYS)
    }

    fn readlink(&self, _: &SlabArc<Inode>) -> Result<OsString, Errno> {
        Err(Errno::ENOSYS)
    }

    fn link(
        &self,
        inode: &SlabArc<Inode>,
        dir: &SlabArc<Inode>,
        name: &OsStr,
    ) -> Result<(), Errno> {
        let entry = (dir.ino(), name.to_owned(), inode.clone());
        let mut entries = self.entries.lock();
        match find(&entries, dir.ino(), name) {
            Some(_) => return Err(Errno::EEXIST),
            None => entries.push(entry),
        }
        self.known.lock().sizes[dir.ino() as usize] += 1;
        drop(entries);
        self.queue.push(dir.ino(), Some(name), Change::Name);
        Ok(())
    }

    fn open(&self, _: &OpContext, _: &SlabArc<Inode>, _: OpenFlags) -> Result<OpenFile, Errno> {
        Err(Errno::ENOSYS)
    }

    fn opendir(&self, _: &SlabArc<Inode>) -> Result<Box<dyn OpenDirectory>, Errno> {
        Err(Errno::ENOSYS)
    }

    fn statfs(&self) -> Result<StatFs, Errno> {
        Err(Errno::ENOSYS)
    }

    fn sync_fs(&self) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }

    fn getxattr(&self, _: &SlabArc<Inode>, _: &OsStr) -> Result<Vec<u8>, Errno> {
        Err(Errno::ENOSYS)
    }

    fn setxattr(
        &self,
        _: &SlabArc<Inode>,
        _: &OsStr,
        _: Option<&[u8]>,
        _: XattrMode,
    ) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }

    fn listxattr(&self, _: &SlabArc<Inode>) -> Result<Vec<OsString>, Errno> {
        Err(Errno::ENOSYS)
    }
}
