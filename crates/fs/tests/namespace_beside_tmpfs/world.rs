//! A file system of ours and a directory of the kernel's, to which the same is done.

use crate::steps::{At, HELD, Step};
use foliocache_fs::{DirFs, DirFsOptions, MemFs};
use foliocache_mm::{Mm, MmConfig};
use foliocache_sync::Arc;
use foliocache_sys::Errno;
use foliocache_vfs::dcache::DentryRef;
use foliocache_vfs::{
    Attr, Device, FileKind, FileSystem, Inode, Namei, New, OpContext, OpenFlags, OpenHow,
    RenameMode, SetAttr, SlabArc, SuperBlock, WalkError,
};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

/// Which file system of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ours {
    MemFs,
    /// Over another directory on the tmpfs.
    DirFs,
    /// The same, where next to nothing that is cached is believed.
    DirFsDoubted,
}

/// The result of `stat`, as far as both sides must agree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Looks {
    pub(crate) kind: FileKind,
    mode: u32,
    /// Names that lead to it; 0 where others change that meanwhile.
    pub(crate) nlink: u64,
    /// Except for directories.
    size: u64,
}

/// The result of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Done,
    Looks(Looks),
    Target(OsString),
    Names(BTreeSet<OsString>),
}

/// The handles held on both sides.
#[derive(Default)]
pub(crate) struct Held {
    ours: [Option<DentryRef<Inode>>; HELD],
    theirs: [Option<OwnedFd>; HELD],
}

pub(crate) struct World {
    pub(crate) names: SuperBlock,
    source: Option<TempDir>,
    _top: TempDir,
    top_fd: OwnedFd,
}

fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from(io::Error::from(error))
}

impl World {
    pub(crate) fn new(ours: Ours, tmpfs: &Path) -> Self {
        // Modes must be exactly those of the steps.
        rustix::process::umask(Mode::empty());
        let mm = Mm::new(MmConfig::new(16 << 20)).expect("a cache");
        let mut source = None;
        let fs: Arc<dyn FileSystem> = match ours {
            Ours::MemFs => Arc::new(MemFs::new(&mm).expect("a file system")),
            Ours::DirFs | Ours::DirFsDoubted => {
                let mut options = DirFsOptions::default();
                // There are no other changes, so a wrong cached answer would stay.
                let believed = match ours {
                    Ours::DirFs => Duration::from_secs(3600),
                    _ => Duration::ZERO,
                };
                options.revalidate_after = believed;
                options.revalidate_absent_after = believed;
                let directory = source.insert(tempfile::tempdir_in(tmpfs).expect("a directory"));
                Arc::new(DirFs::open(&mm, directory.path(), options).expect("a file system"))
            }
        };
        let top = tempfile::tempdir_in(tmpfs).expect("a directory");
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top_fd = rustix::fs::open(top.path(), flags, Mode::empty()).expect("it opens");
        let mode = 0o755;
        rustix::fs::chmod(top.path(), Mode::from_raw_mode(mode)).expect("the mode is set");
        let root = SetAttr {
            mode: Some(mode),
            ..SetAttr::default()
        };
        fs.setattr(&OpContext::ROOT, &fs.root(), &root)
            .expect("the mode is set");
        Self {
            names: SuperBlock::new(fs, &mm),
            source,
            _top: top,
            top_fd,
        }
    }

    /// Does one step on both, and returns whether it succeeded; an error describes the difference.
    pub(crate) fn step(&self, held: &mut Held, step: &Step) -> Result<bool, String> {
        if matches!(step, Step::Readlink(at) if at.path.is_empty()) {
            // The kernel reads the link itself that is held.
            return Ok(false);
        }
        let ours = match self.ours(held, step) {
            // It would have left the compared tree.
            Err(WalkError::Escape) => return Ok(false),
            ours => ours.map_err(WalkError::errno),
        };
        let theirs = self.theirs(held, step);
        match ours == theirs {
            true => Ok(ours.is_ok()),
            false => Err(format!("ours {ours:?}, the kernel's {theirs:?}")),
        }
    }

    /// Where a path of ours begins; `None` for a place that is not held.
    fn namei<'a>(
        &'a self,
        held: &'a Held,
        at: &'a At,
    ) -> Result<(Namei<'a>, &'a OsStr), WalkError> {
        let start = match at.start {
            None => self.names.root(),
            Some(slot) => held.ours[slot].as_ref().unwrap_or(self.names.root()),
        };
        let mut namei = Namei {
            names: &self.names,
            start,
            beneath: true,
            ctx: OpContext {
                uid: rustix::process::getuid().as_raw(),
                gid: rustix::process::getgid().as_raw(),
                ..OpContext::ROOT
            },
            credentials: None,
        };
        if let Some(above) = at.path.as_bytes().strip_prefix(b"../")
            && let Some(parent) = start.parent()
            && start.inode().is_some_and(|inode| inode.is_directory())
        {
            // The rest stays below the directory above, so that all of it stays below the top.
            let rest = Namei {
                start: &parent,
                ..namei
            };
            if rest.lookup(OsStr::from_bytes(above), true).err() == Some(WalkError::Escape) {
                return Err(WalkError::Escape);
            }
            namei.beneath = false;
        }
        Ok((namei, OsStr::new(&at.path)))
    }

    fn ours(&self, held: &mut Held, step: &Step) -> Result<Seen, WalkError> {
        let done = |_| Seen::Done;
        match step {
            Step::Open {
                at,
                create,
                exclusive,
                truncate,
                follow,
            } => {
                let (namei, path) = self.namei(held, at)?;
                let how = OpenHow {
                    flags: OpenFlags {
                        truncate: *truncate,
                        ..OpenFlags::WRITE
                    },
                    create: *create,
                    exclusive: *exclusive,
                    follow: *follow,
                    mode: 0o644,
                };
                namei.open(path, how).map(|_| Seen::Done)
            }
            Step::Mkdir(at, mode) => {
                let (namei, path) = self.namei(held, at)?;
                namei.make(path, New::Directory { mode: *mode }).map(done)
            }
            Step::Fifo(at, mode) => {
                let (namei, path) = self.namei(held, at)?;
                namei
                    .make(
                        path,
                        New::Node {
                            kind: FileKind::Fifo,
                            mode: *mode,
                            rdev: Device::default(),
                        },
                    )
                    .map(done)
            }
            Step::Symlink(target, at) => {
                let (namei, path) = self.namei(held, at)?;
                namei.make(path, New::Symlink(target)).map(done)
            }
            Step::Link { from, follow, to } => {
                let (target, to) = self.namei(held, to)?;
                let (namei, from) = self.namei(held, from)?;
                namei.link(from, *follow, &target, to).map(done)
            }
            Step::Unlink(at) => {
                let (namei, path) = self.namei(held, at)?;
                namei.unlink(path).map(|()| Seen::Done)
            }
            Step::Rmdir(at) => {
                let (namei, path) = self.namei(held, at)?;
                namei.rmdir(path).map(|()| Seen::Done)
            }
            Step::Rename { from, to, mode } => {
                let (target, to) = self.namei(held, to)?;
                let (namei, from) = self.namei(held, from)?;
                namei.rename(from, &target, to, *mode).map(|()| Seen::Done)
            }
            Step::Stat { at, follow } => {
                let (namei, path) = self.namei(held, at)?;
                let attr = namei.stat(path, *follow)?;
                Ok(Seen::Looks(looks(&attr)))
            }
            Step::Readlink(at) => {
                let (namei, path) = self.namei(held, at)?;
                let target = namei.readlink(path)?;
                Ok(Seen::Target(target))
            }
            Step::Readdir(at) => {
                let (namei, path) = self.namei(held, at)?;
                let inode = namei.inode(path, true)?;
                Ok(Seen::Names(self.names_in(&inode)?))
            }
            Step::Truncate(at, size) => {
                let size = Some(*size);
                self.set(
                    held,
                    at,
                    SetAttr {
                        size,
                        ..SetAttr::default()
                    },
                )
            }
            Step::Chmod(at, mode) => {
                let mode = Some(*mode);
                self.set(
                    held,
                    at,
                    SetAttr {
                        mode,
                        ..SetAttr::default()
                    },
                )
            }
            Step::Hold(slot, at) => {
                let (namei, path) = self.namei(held, at)?;
                let found = namei.lookup(path, false)?;
                held.ours[*slot] = Some(found);
                Ok(Seen::Done)
            }
            Step::StatHeld(slot) => match &held.ours[*slot] {
                None => Ok(Seen::Done),
                Some(dentry) => {
                    let inode = dentry.inode().ok_or(Errno::ENOENT)?;
                    Ok(Seen::Looks(looks(&self.names.fs().getattr(&inode)?)))
                }
            },
        }
    }

    fn set(&self, held: &Held, at: &At, set: SetAttr) -> Result<Seen, WalkError> {
        let (namei, path) = self.namei(held, at)?;
        let inode = namei.inode(path, true)?;
        self.names.fs().setattr(&namei.ctx, &inode, &set)?;
        Ok(Seen::Done)
    }

    fn names_in(&self, inode: &SlabArc<Inode>) -> Result<BTreeSet<OsString>, Errno> {
        let all = self.names.fs().opendir(inode)?.read_all()?;
        let mut names = BTreeSet::new();
        for entry in all {
            let name = entry.name;
            if name != "." && name != ".." {
                assert!(names.insert(name.clone()), "{name:?} twice");
            }
        }
        Ok(names)
    }

    fn start<'a>(&'a self, held: &'a Held, at: &At) -> BorrowedFd<'a> {
        let held = at.start.and_then(|slot| held.theirs[slot].as_ref());
        held.unwrap_or(&self.top_fd).as_fd()
    }

    fn theirs(&self, held: &mut Held, step: &Step) -> Result<Seen, Errno> {
        use rustix::fs;
        let done = match step {
            Step::Open {
                at,
                create,
                exclusive,
                truncate,
                follow,
            } => {
                let mut flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
                flags.set(OFlags::CREATE, *create);
                flags.set(OFlags::EXCL, *exclusive);
                flags.set(OFlags::TRUNC, *truncate);
                flags.set(OFlags::NOFOLLOW, !*follow);
                let mode = Mode::from_raw_mode(0o644);
                fs::openat(self.start(held, at), &at.path, flags, mode).map(drop)
            }
            Step::Mkdir(at, mode) => {
                let mode = Mode::from_raw_mode(*mode);
                fs::mkdirat(self.start(held, at), &at.path, mode)
            }
            Step::Fifo(at, mode) => {
                let mode = Mode::from_raw_mode(*mode);
                fs::mknodat(self.start(held, at), &at.path, FileType::Fifo, mode, 0)
            }
            Step::Symlink(target, at) => fs::symlinkat(target, self.start(held, at), &at.path),
            Step::Link { from, follow, to } => {
                let mut flags = AtFlags::empty();
                flags.set(AtFlags::SYMLINK_FOLLOW, *follow);
                let (old, new) = (self.start(held, from), self.start(held, to));
                fs::linkat(old, &from.path, new, &to.path, flags)
            }
            Step::Unlink(at) => fs::unlinkat(self.start(held, at), &at.path, AtFlags::empty()),
            Step::Rmdir(at) => fs::unlinkat(self.start(held, at), &at.path, AtFlags::REMOVEDIR),
            Step::Rename { from, to, mode } => {
                let flags = match mode {
                    RenameMode::Replace => RenameFlags::empty(),
                    RenameMode::NoReplace => RenameFlags::NOREPLACE,
                    RenameMode::Exchange => RenameFlags::EXCHANGE,
                    RenameMode::Whiteout => RenameFlags::WHITEOUT,
                };
                let (old, new) = (self.start(held, from), self.start(held, to));
                fs::renameat_with(old, &from.path, new, &to.path, flags)
            }
            Step::Stat { at, follow } => {
                let mut flags = AtFlags::empty();
                flags.set(AtFlags::SYMLINK_NOFOLLOW, !*follow);
                let stat = fs::statat(self.start(held, at), &at.path, flags).map_err(errno)?;
                return Ok(Seen::Looks(their_looks(&stat)));
            }
            Step::Readlink(at) => {
                let start = self.start(held, at);
                let target = fs::readlinkat(start, &at.path, Vec::new()).map_err(errno)?;
                return Ok(Seen::Target(OsString::from_vec(target.into_bytes())));
            }
            Step::Readdir(at) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let start = self.start(held, at);
                let fd = fs::openat(start, &at.path, flags, Mode::empty()).map_err(errno)?;
                return Ok(Seen::Names(their_names(&fd).map_err(errno)?));
            }
            Step::Truncate(at, size) => {
                let start = self.start(held, at);
                let stat = fs::statat(start, &at.path, AtFlags::empty()).map_err(errno)?;
                match FileType::from_raw_mode(stat.st_mode) {
                    FileType::Directory => return Err(Errno::EISDIR),
                    FileType::RegularFile => {}
                    _ => return Err(Errno::EINVAL),
                }
                let flags = OFlags::WRONLY | OFlags::CLOEXEC;
                let file = fs::openat(start, &at.path, flags, Mode::empty()).map_err(errno)?;
                fs::ftruncate(&file, *size)
            }
            Step::Chmod(at, mode) => {
                let (start, mode) = (self.start(held, at), Mode::from_raw_mode(*mode));
                fs::chmodat(start, &at.path, mode, AtFlags::empty())
            }
            Step::Hold(slot, at) => {
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let start = self.start(held, at);
                let fd = fs::openat(start, &at.path, flags, Mode::empty()).map_err(errno)?;
                held.theirs[*slot] = Some(fd);
                Ok(())
            }
            Step::StatHeld(slot) => match &held.theirs[*slot] {
                None => Ok(()),
                Some(fd) => {
                    let stat = fs::fstat(fd).map_err(errno)?;
                    return Ok(Seen::Looks(their_looks(&stat)));
                }
            },
        };
        done.map(|()| Seen::Done).map_err(errno)
    }

    /// Compares both trees, and the directory that ours is over.
    pub(crate) fn compare_trees(&self) -> Result<usize, String> {
        let mut theirs = BTreeMap::new();
        let mut groups = HashMap::new();
        their_tree(&self.top_fd, String::new(), &mut theirs, &mut groups);
        let mut ours = BTreeMap::new();
        self.our_tree(
            self.names.root().clone(),
            "",
            &mut ours,
            &mut HashMap::new(),
        );
        differ("the kernel's", &theirs, "ours", &ours)?;
        if let Some(source) = &self.source {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let fd = rustix::fs::open(source.path(), flags, Mode::empty()).expect("it opens");
            let mut below = BTreeMap::new();
            their_tree(&fd, String::new(), &mut below, &mut HashMap::new());
            differ("ours", &ours, "that below", &below)?;
        }
        Ok(ours.len())
    }

    fn our_tree(
        &self,
        dir: DentryRef<Inode>,
        path: &str,
        tree: &mut Tree,
        groups: &mut HashMap<u64, String>,
    ) {
        let names = self.names_in(&dir.inode().expect("a directory"));
        let namei = Namei {
            names: &self.names,
            start: &dir,
            beneath: true,
            ctx: OpContext::ROOT,
            credentials: None,
        };
        for name in names.expect("it is read") {
            let path = below(path, &name);
            let name = name.as_os_str();
            let attr = namei.stat(name, false).expect("it is there");
            let target = namei.readlink(name).ok();
            let first = groups.entry(attr.ino).or_insert_with(|| path.clone());
            tree.insert(path.clone(), (looks(&attr), target, first.clone()));
            if attr.kind == FileKind::Directory {
                let dir = namei.lookup(name, false).expect("it is there");
                self.our_tree(dir, &path, tree, groups);
            }
        }
    }
}

/// The files, their contents, and for each the first name of the same file.
type Tree = BTreeMap<String, (Looks, Option<OsString>, String)>;

/// The path of a name in a directory; names that are no text are escaped.
fn below(path: &str, name: &OsStr) -> String {
    format!("{path}/{}", name.as_bytes().escape_ascii())
}

fn differ(first: &str, a: &Tree, second: &str, b: &Tree) -> Result<(), String> {
    let paths: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    for path in paths {
        if a.get(path) != b.get(path) {
            return Err(format!(
                "{path}: {first} {:?}, {second} {:?}",
                a.get(path),
                b.get(path)
            ));
        }
    }
    Ok(())
}

fn their_tree(dir: &OwnedFd, path: String, tree: &mut Tree, groups: &mut HashMap<u64, String>) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(dir, ".", flags, Mode::empty()).expect("it opens");
    for name in their_names(&fd).expect("it is read") {
        let path = below(&path, &name);
        let stat = rustix::fs::statat(&fd, &name, AtFlags::SYMLINK_NOFOLLOW).expect("there");
        let target = rustix::fs::readlinkat(&fd, &name, Vec::new()).ok();
        let target = target.map(|target| OsString::from_vec(target.into_bytes()));
        let first = groups.entry(stat.st_ino).or_insert_with(|| path.clone());
        let looks = their_looks(&stat);
        let is_dir = looks.kind == FileKind::Directory;
        tree.insert(path.clone(), (looks, target, first.clone()));
        if is_dir {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let dir = rustix::fs::openat(&fd, &name, flags, Mode::empty()).expect("it opens");
            their_tree(&dir, path, tree, groups);
        }
    }
}

fn their_names(fd: &OwnedFd) -> rustix::io::Result<BTreeSet<OsString>> {
    let mut names = BTreeSet::new();
    for entry in Dir::read_from(fd)? {
        let name = OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned();
        if name != "." && name != ".." {
            names.insert(name);
        }
    }
    Ok(names)
}

fn looks(attr: &Attr) -> Looks {
    Looks {
        kind: attr.kind,
        mode: attr.mode,
        nlink: attr.nlink.into(),
        size: match attr.kind {
            FileKind::Directory => 0,
            _ => attr.size,
        },
    }
}

#[allow(
    clippy::useless_conversion,
    reason = "other processors count in other types"
)]
fn their_looks(stat: &rustix::fs::Stat) -> Looks {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => FileKind::Regular,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        _ => FileKind::Unknown,
    };
    Looks {
        kind,
        mode: stat.st_mode & 0o7777,
        nlink: stat.st_nlink.into(),
        size: match kind {
            FileKind::Directory => 0,
            _ => stat.st_size as u64,
        },
    }
}
