//! What a thread remembers of its paths, beside changes of the directories on them: the walk, the prefixes and the
//! changes of names as front doors call them, over a file system in memory.
//!
//! A walk may say what was true at any moment of it, and nothing that was over before it began.
#![cfg(shuttle)]

use foliocache_mm::AddressSpace;
use foliocache_sync::atomic::{AtomicU64, Ordering};
use foliocache_sync::model::sample;
use foliocache_sync::{Arc, Condvar, Mutex, thread};
use foliocache_sys::Errno;
use foliocache_sys::clock::Timespec;
use foliocache_vfs::{
    Attr, AttrCell, Attributes, Device, FallocateMode, FileKind, FileSystem, Generation, Inode,
    InodeOperations, OpContext, OpenDirectory, OpenFile, OpenFlags, RenameMode, SeekSparse,
    SetAttr, SlabArc, StatFs, SuperBlock, WalkError, WalkFlags, XattrMode,
};
use std::ffi::{OsStr, OsString};

struct Ops;

impl InodeOperations for Ops {
    fn getattr(&self, inode: &Inode) -> Result<Attr, Errno> {
        Ok(inode.attributes().get().of(inode.ino(), inode.kind()))
    }

    fn new_mapping(&self, _: &Inode) -> Result<Arc<AddressSpace>, Errno> {
        Err(Errno::ENOSYS)
    }

    fn remove_privileges(&self, _: &Inode) -> Result<(), Errno> {
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

    fn released(&self, _: &Inode, _: bool) {}
}

/// A directory's number, a name in it, and what that leads to.
type Entry = (u64, OsString, SlabArc<Inode>);

/// Names in memory.
struct Names {
    root: SlabArc<Inode>,
    permissions: Arc<Generation>,
    entries: Mutex<Vec<Entry>>,
}

const A: u64 = 2;
const FILE_OF_A: u64 = 3;
const B: u64 = 4;
const FILE_OF_B: u64 = 5;

fn inode(ino: u64, kind: FileKind, permissions: &Arc<Generation>) -> SlabArc<Inode> {
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
    let cell = match kind {
        FileKind::Directory => AttrCell::of_directory(attributes, Arc::clone(permissions)),
        _ => AttrCell::new(attributes),
    };
    let cell = SlabArc::new(cell.without_store());
    SlabArc::new(Inode::new(ino, 0, kind, cell, SlabArc::new(Ops)))
}

impl Names {
    /// `a/f` and `b/f`.
    fn new() -> Names {
        let permissions = Arc::new(Generation::default());
        let entry = |dir, name: &str, ino, kind| (dir, name.into(), inode(ino, kind, &permissions));
        let entries = vec![
            entry(1, "a", A, FileKind::Directory),
            entry(A, "f", FILE_OF_A, FileKind::Regular),
            entry(1, "b", B, FileKind::Directory),
            entry(B, "f", FILE_OF_B, FileKind::Regular),
        ];
        Names {
            root: inode(1, FileKind::Directory, &permissions),
            entries: Mutex::new(entries),
            permissions,
        }
    }

    fn remove(&self, dir: u64, name: &OsStr) -> Result<(), Errno> {
        let mut entries = self.entries.lock();
        let at = find(&entries, dir, name).ok_or(Errno::ENOENT)?;
        entries.remove(at);
        Ok(())
    }
}

fn find(entries: &[Entry], dir: u64, name: &OsStr) -> Option<usize> {
    entries
        .iter()
        .position(|entry| (entry.0, &*entry.1) == (dir, name))
}

impl FileSystem for Names {
    fn kind(&self) -> &'static str {
        "names"
    }

    fn permissions(&self) -> &Arc<Generation> {
        &self.permissions
    }

    fn root(&self) -> SlabArc<Inode> {
        self.root.clone()
    }

    fn lookup(&self, dir: &SlabArc<Inode>, name: &OsStr) -> Result<SlabArc<Inode>, Errno> {
        let entries = self.entries.lock();
        let at = find(&entries, dir.ino(), name).ok_or(Errno::ENOENT)?;
        Ok(entries[at].2.clone())
    }

    fn getattr(&self, inode: &SlabArc<Inode>) -> Result<Attr, Errno> {
        inode.ops().getattr(inode)
    }

    fn unlink(&self, dir: &SlabArc<Inode>, name: &OsStr) -> Result<(), Errno> {
        self.remove(dir.ino(), name)
    }

    fn rmdir(&self, dir: &SlabArc<Inode>, name: &OsStr) -> Result<(), Errno> {
        self.remove(dir.ino(), name)
    }

    fn rename(
        &self,
        from_dir: &SlabArc<Inode>,
        from: &OsStr,
        to_dir: &SlabArc<Inode>,
        to: &OsStr,
        mode: RenameMode,
    ) -> Result<(), Errno> {
        let mut entries = self.entries.lock();
        let moved = find(&entries, from_dir.ino(), from).ok_or(Errno::ENOENT)?;
        if mode == RenameMode::Exchange {
            let target = find(&entries, to_dir.ino(), to).ok_or(Errno::ENOENT)?;
            (entries[target].0, entries[target].1) = (from_dir.ino(), from.to_owned());
        }
        (entries[moved].0, entries[moved].1) = (to_dir.ino(), to.to_owned());
        Ok(())
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

    fn mknod(
        &self,
        _: &OpContext,
        _: &SlabArc<Inode>,
        _: &OsStr,
        _: FileKind,
        _: u32,
        _: Device,
    ) -> Result<SlabArc<Inode>, Errno> {
        Err(Errno::ENOSYS)
    }

    fn mkdir(
        &self,
        _: &OpContext,
        _: &SlabArc<Inode>,
        _: &OsStr,
        _: u32,
    ) -> Result<SlabArc<Inode>, Errno> {
        Err(Errno::ENOSYS)
    }

    fn symlink(
        &self,
        _: &OpContext,
        _: &SlabArc<Inode>,
        _: &OsStr,
        _: &OsStr,
    ) -> Result<SlabArc<Inode>, Errno> {
        Err(Errno::ENOSYS)
    }

    fn readlink(&self, _: &SlabArc<Inode>) -> Result<OsString, Errno> {
        Err(Errno::ENOSYS)
    }

    fn link(&self, _: &SlabArc<Inode>, _: &SlabArc<Inode>, _: &OsStr) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
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

    fn setxattr(&self, _: &SlabArc<Inode>, _: &OsStr, _: &[u8], _: XattrMode) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }

    fn listxattr(&self, _: &SlabArc<Inode>) -> Result<Vec<OsString>, Errno> {
        Err(Errno::ENOSYS)
    }

    fn removexattr(&self, _: &SlabArc<Inode>, _: &OsStr) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }
}

/// What `a/f` leads to.
fn walk(names: &SuperBlock) -> Option<u64> {
    let flags = WalkFlags {
        follow: true,
        beneath: true,
    };
    match names.lookup(names.root(), OsStr::new("a/f"), flags, None) {
        Ok(dentry) => dentry.inode().map(|inode| inode.ino()),
        Err(WalkError::Errno(Errno::ENOENT)) => None,
        Err(error) => panic!("{error:?}"),
    }
}

/// One thread walks to `a/f` so many times before, from the third on by what it remembers, and on while
/// another makes `change`, after which it leads to `after`.
fn race(before: usize, change: fn(&SuperBlock), after: Option<u64>) {
    sample(1500, move || {
        let names = Arc::new(SuperBlock::unbounded(Arc::new(Names::new())));
        let learnt = Arc::new((Mutex::new(false), Condvar::new()));
        let changed = Arc::new(AtomicU64::new(0));
        let (walked, learns, seen) = (names.clone(), learnt.clone(), changed.clone());
        let walker = thread::spawn(move || {
            for _ in 0..before {
                assert_eq!(walk(&walked), Some(FILE_OF_A));
            }
            let remembers = walked.remembers(walked.root(), OsStr::new("a/f"), None);
            assert_eq!(remembers, before == 3);
            *learns.0.lock() = true;
            learns.1.notify_all();
            let mut is_over = false;
            // To the end of a walk that began after the change.
            let mut last = false;
            while !last {
                // Acquire pairs with the Release below.
                last = seen.load(Ordering::Acquire) == 1;
                is_over |= last;
                let found = walk(&walked);
                let was_there = !is_over && found == Some(FILE_OF_A);
                assert!(found == after || was_there, "{found:?}");
                is_over |= found == after;
            }
        });
        let changer = thread::spawn(move || {
            let mut ready = learnt.0.lock();
            while !*ready {
                ready = learnt.1.wait(ready);
            }
            drop(ready);
            change(&names);
            changed.store(1, Ordering::Release);
        });
        changer.join().unwrap();
        walker.join().unwrap();
    });
}

fn rename(names: &SuperBlock, to: &str, mode: RenameMode) {
    let root = names.root();
    let done = names.rename(root, OsStr::new("a"), root, OsStr::new(to), mode, None);
    assert_eq!(done, Ok(()));
}

#[test]
fn a_remembered_directory_that_moves_is_not_found_where_it_was() {
    let away = |names: &SuperBlock| rename(names, "c", RenameMode::Replace);
    race(3, away, None);
}

#[test]
fn two_directories_that_change_places_are_found_where_they_are() {
    let exchange = |names: &SuperBlock| rename(names, "b", RenameMode::Exchange);
    race(3, exchange, Some(FILE_OF_B));
}

#[test]
fn what_is_remembered_beside_a_change_does_not_outlive_it() {
    let exchange = |names: &SuperBlock| rename(names, "b", RenameMode::Exchange);
    race(1, exchange, Some(FILE_OF_B));
}

#[test]
fn a_remembered_directory_that_is_removed_is_not_gone_to() {
    let remove = |names: &SuperBlock| {
        let root = names.root();
        let flags = WalkFlags::default();
        let dir = names.lookup(root, OsStr::new("a"), flags, None).unwrap();
        names.unlink(&dir, OsStr::new("f"), None).unwrap();
        drop(dir);
        names.rmdir(root, OsStr::new("a"), None).unwrap();
    };
    race(3, remove, None);
}
