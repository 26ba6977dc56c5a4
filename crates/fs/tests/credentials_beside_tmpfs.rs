//! Operations by several users beside the kernel's: the same steps run on a file system of ours with credentials
//! and on a tmpfs directory by a thread with those credentials. Results, errors and the final trees are compared.

mod common;

use foliocache_fs::{DirFs, DirFsOptions, MemFs};
use foliocache_mm::{Mm, MmConfig};
use foliocache_sync::Arc;
use foliocache_sys::Errno;
use foliocache_sys::clock::Timespec;
use foliocache_vfs::{
    Access, Credentials, FileKind, FileSystem, Namei, New, OpContext, OpenFlags, OpenHow,
    RenameMode, SetAttr, SetTime, SuperBlock, WalkError,
};
use rustix::fs::{AtFlags, Dir, Gid, Mode, OFlags, RenameFlags, Timestamps, Uid};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

const UMASK: u32 = 0o027;
const STEPS: usize = 4000;

/// User, group and further groups.
type User = (u32, u32, &'static [u32]);

const USERS: [User; 5] = [
    (0, 0, &[]),
    (1001, 2001, &[]),
    (1002, 2002, &[2001]),
    (1003, 2001, &[2003]),
    (1004, 2004, &[2002, 2003]),
];

#[derive(Clone, Debug)]
enum Op {
    Mkdir(String, u32),
    Open {
        path: String,
        mode: u32,
        flags: OpenFlags,
        create: bool,
        exclusive: bool,
    },
    Unlink(String),
    Rmdir(String),
    Rename(String, String, RenameMode),
    Link(String, String),
    Symlink(String, String),
    Chmod(String, u32),
    Chown(String, Option<u32>, Option<u32>),
    Truncate(String),
    /// Of the access and the modification, to the present or to another time.
    Times(String, [Option<bool>; 2]),
    List(String),
    Stat(String),
}

struct World {
    names: SuperBlock,
    source: Option<TempDir>,
    _top: TempDir,
    top: OwnedFd,
    /// Where the kernel restricts sticky directories, or links, beyond modes.
    restricted: Restricted,
}

#[derive(Clone, Copy)]
struct Restricted {
    sticky: bool,
    links: bool,
}

#[derive(Clone, Copy, Debug)]
enum Ours {
    MemFs,
    /// Over another directory on the tmpfs, whose answers are believed for this long.
    DirFs(Duration),
}

/// A place on a tmpfs, and the right to act as other users.
fn tmpfs_as_root() -> Option<&'static Path> {
    if common::lacks("root") {
        return None;
    }
    assert!(rustix::process::geteuid().is_root(), "this test needs root");
    common::tmpfs()
}

fn restricted() -> Restricted {
    let is_set = |name: &str| {
        let value = std::fs::read_to_string(format!("/proc/sys/fs/protected_{name}"));
        value.is_ok_and(|value| value.trim() != "0")
    };
    Restricted {
        sticky: is_set("symlinks") || is_set("regular") || is_set("fifos"),
        links: is_set("hardlinks"),
    }
}

fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from(std::io::Error::from(error))
}

/// Runs `act` in this thread as the user.
fn as_user<R>(user: User, act: impl FnOnce() -> R) -> R {
    let (uid, gid, groups) = user;
    let become_user = |uid: u32, gid: u32, groups: &[u32]| {
        let groups: Vec<Gid> = groups.iter().map(|&gid| Gid::from_raw(gid)).collect();
        rustix::thread::set_thread_groups(&groups).expect("root may set groups");
        rustix::thread::set_thread_res_gid(None, Gid::from_raw(gid), None).expect("a group");
        rustix::thread::set_thread_res_uid(None, Uid::from_raw(uid), None).expect("a user");
    };
    become_user(uid, gid, groups);
    let result = act();
    rustix::thread::set_thread_res_uid(None, Uid::ROOT, None).expect("root again");
    become_user(0, 0, &[]);
    result
}

fn credentials(user: User) -> Credentials {
    Credentials::new(user.0, user.1, user.2)
}

impl World {
    fn new(ours: Ours, tmpfs: &Path) -> Self {
        rustix::process::umask(Mode::from_raw_mode(UMASK));
        let mm = Mm::new(MmConfig::new(16 << 20)).expect("a cache");
        let mut source = None;
        let fs: Arc<dyn FileSystem> = match ours {
            Ours::MemFs => Arc::new(MemFs::new(&mm).expect("a file system")),
            Ours::DirFs(believed) => {
                let mut options = DirFsOptions::default();
                options.revalidate_after = believed;
                options.revalidate_absent_after = believed;
                let directory = source.insert(tempfile::tempdir_in(tmpfs).expect("a directory"));
                Arc::new(DirFs::open(&mm, directory.path(), options).expect("a file system"))
            }
        };
        let top = tempfile::tempdir_in(tmpfs).expect("a directory");
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(top.path(), flags, Mode::empty()).expect("it opens");
        rustix::fs::chmod(top.path(), Mode::from_raw_mode(0o777)).expect("the mode is set");
        let set = SetAttr {
            mode: Some(0o777),
            ..SetAttr::default()
        };
        let done = fs.setattr(&OpContext::ROOT, &fs.root(), &set);
        done.expect("the mode is set");
        Self {
            names: SuperBlock::new(fs, &mm),
            source,
            _top: top,
            top: fd,
            restricted: restricted(),
        }
    }

    /// Does one step on both; an error describes the difference.
    fn step(&self, user: User, op: &Op) -> Result<(), String> {
        if let Op::Link(from, _) = op
            && self.restricted.links
        {
            let owner = rustix::fs::statat(&self.top, from, AtFlags::SYMLINK_NOFOLLOW);
            if user.0 != 0 && owner.is_ok_and(|stat| stat.st_uid != user.0) {
                return Ok(());
            }
        }
        let credentials = credentials(user);
        let ours = match self.ours(&credentials, op) {
            Err(WalkError::Escape) => return Ok(()),
            done => done.map_err(WalkError::errno),
        };
        let theirs = as_user(user, || self.theirs(op)).map_err(errno);
        // Directories are opened by another call of ours.
        let opened = matches!(op, Op::Open { .. }) && ours == Err(Errno::EISDIR);
        match ours == theirs || opened {
            true => Ok(()),
            false => Err(format!("ours {ours:?}, the kernel's {theirs:?}")),
        }
    }

    fn ours(&self, credentials: &Credentials, op: &Op) -> Result<(), WalkError> {
        let namei = Namei {
            names: &self.names,
            start: self.names.root(),
            beneath: true,
            ctx: credentials.context(0, UMASK),
            credentials: Some(credentials),
        };
        let os = OsStr::new;
        match op {
            Op::Mkdir(path, mode) => namei
                .make(os(path), New::Directory { mode: *mode })
                .map(drop),
            Op::Open {
                path,
                mode,
                flags,
                create,
                exclusive,
            } => {
                let how = OpenHow {
                    flags: *flags,
                    create: *create,
                    exclusive: *exclusive,
                    follow: true,
                    mode: *mode,
                };
                namei.open(os(path), how).map(drop)
            }
            Op::Unlink(path) => namei.unlink(os(path)),
            Op::Rmdir(path) => namei.rmdir(os(path)),
            Op::Rename(from, to, mode) => namei.rename(os(from), &namei, os(to), *mode),
            Op::Link(from, to) => namei.link(os(from), false, &namei, os(to)).map(drop),
            Op::Symlink(target, path) => namei.make(os(path), New::Symlink(os(target))).map(drop),
            Op::Chmod(path, mode) => self.set(
                &namei,
                path,
                SetAttr {
                    mode: Some(*mode),
                    ..SetAttr::default()
                },
            ),
            Op::Chown(path, uid, gid) => self.set(
                &namei,
                path,
                SetAttr {
                    uid: *uid,
                    gid: *gid,
                    ..SetAttr::default()
                },
            ),
            Op::Truncate(path) => self.set(
                &namei,
                path,
                SetAttr {
                    size: Some(100),
                    ..SetAttr::default()
                },
            ),
            Op::Times(path, which) => {
                let [atime, mtime] = which.map(|now| {
                    now.map(|now| match now {
                        true => SetTime::Now,
                        false => SetTime::At(Timespec::new(1000, 0)),
                    })
                });
                let set = SetAttr {
                    atime,
                    mtime,
                    ..SetAttr::default()
                };
                self.set(&namei, path, set)
            }
            Op::List(path) => {
                let inode = namei.inode(os(path), true)?;
                if inode.kind() != FileKind::Directory {
                    return Err(Errno::ENOTDIR.into());
                }
                self.names
                    .check(&inode, Access::READ, Some(credentials))
                    .map_err(WalkError::from)
            }
            Op::Stat(path) => namei.stat(os(path), true).map(drop),
        }
    }

    fn set(&self, namei: &Namei<'_>, path: &str, set: SetAttr) -> Result<(), WalkError> {
        let inode = namei.inode(OsStr::new(path), true)?;
        let done = self
            .names
            .setattr(&namei.ctx, &inode, &set, namei.credentials);
        Ok(done.map(drop)?)
    }

    fn theirs(&self, op: &Op) -> rustix::io::Result<()> {
        use rustix::fs;
        let top = &self.top;
        let empty = Mode::empty();
        match op {
            Op::Mkdir(path, mode) => fs::mkdirat(top, path, Mode::from_raw_mode(*mode)),
            Op::Open {
                path,
                mode,
                flags,
                create,
                exclusive,
            } => {
                let mut how = OFlags::CLOEXEC;
                how |= match (flags.read, flags.write) {
                    (true, true) => OFlags::RDWR,
                    (false, true) => OFlags::WRONLY,
                    _ => OFlags::RDONLY,
                };
                how.set(OFlags::TRUNC, flags.truncate);
                how.set(OFlags::CREATE, *create);
                how.set(OFlags::EXCL, *exclusive);
                fs::openat(top, path, how, Mode::from_raw_mode(*mode)).map(drop)
            }
            Op::Unlink(path) => fs::unlinkat(top, path, AtFlags::empty()),
            Op::Rmdir(path) => fs::unlinkat(top, path, AtFlags::REMOVEDIR),
            Op::Rename(from, to, mode) => {
                let flags = match mode {
                    RenameMode::Replace => RenameFlags::empty(),
                    RenameMode::NoReplace => RenameFlags::NOREPLACE,
                    RenameMode::Exchange => RenameFlags::EXCHANGE,
                    RenameMode::Whiteout => RenameFlags::WHITEOUT,
                };
                fs::renameat_with(top, from, top, to, flags)
            }
            Op::Link(from, to) => fs::linkat(top, from, top, to, AtFlags::empty()),
            Op::Symlink(target, path) => fs::symlinkat(target, top, path),
            Op::Chmod(path, mode) => {
                fs::chmodat(top, path, Mode::from_raw_mode(*mode), AtFlags::empty())
            }
            Op::Chown(path, uid, gid) => {
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                fs::chownat(top, path, uid, gid, AtFlags::empty())
            }
            Op::Truncate(path) => {
                let file = fs::openat(top, path, OFlags::WRONLY | OFlags::CLOEXEC, empty)?;
                fs::ftruncate(&file, 100)
            }
            Op::Times(path, which) => {
                let [last_access, last_modification] = which.map(|now| fs::Timespec {
                    tv_sec: 1000,
                    tv_nsec: match now {
                        None => fs::UTIME_OMIT,
                        Some(true) => fs::UTIME_NOW,
                        Some(false) => 0,
                    },
                });
                let times = Timestamps {
                    last_access,
                    last_modification,
                };
                fs::utimensat(top, path, &times, AtFlags::empty())
            }
            Op::List(path) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                fs::openat(top, path, flags, empty).map(drop)
            }
            Op::Stat(path) => fs::statat(top, path, AtFlags::empty()).map(drop),
        }
    }

    /// Compares both trees, and the directory that ours is over.
    fn compare(&self) -> Result<(), String> {
        let mut theirs = BTreeMap::new();
        tree(&self.top, "", &mut theirs);
        let mut ours = BTreeMap::new();
        self.our_tree("", &mut ours);
        differ(&theirs, &ours)?;
        if let Some(source) = &self.source {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let fd = rustix::fs::open(source.path(), flags, Mode::empty()).expect("it opens");
            let mut below = BTreeMap::new();
            tree(&fd, "", &mut below);
            differ(&below, &ours)?;
        }
        Ok(())
    }

    fn our_tree(&self, dir: &str, all: &mut BTreeMap<String, Looks>) {
        let namei = common::root_namei(&self.names);
        let at = if dir.is_empty() { "." } else { dir };
        let inode = namei.inode(OsStr::new(at), false).expect("it is there");
        let stream = self.names.fs().opendir(&inode).expect("it opens");
        for entry in stream.read_all().expect("it is read") {
            let name = entry.name.to_str().expect("text");
            if name == "." || name == ".." {
                continue;
            }
            let path = match dir {
                "" => name.to_owned(),
                _ => format!("{dir}/{name}"),
            };
            let attr = namei.stat(OsStr::new(&path), false).expect("it is there");
            all.insert(path.clone(), (attr.mode, attr.uid, attr.gid, attr.nlink));
            if attr.kind == FileKind::Directory {
                self.our_tree(&path, all);
            }
        }
    }
}

/// Mode, owner, group and number of names.
type Looks = (u32, u32, u32, u32);

fn tree(top: &OwnedFd, dir: &str, all: &mut BTreeMap<String, Looks>) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let at = if dir.is_empty() { "." } else { dir };
    let fd = rustix::fs::openat(top, at, flags, Mode::empty()).expect("it opens");
    for entry in Dir::read_from(&fd).expect("it is read") {
        let entry = entry.expect("it is read");
        let name = entry.file_name().to_str().expect("text");
        if name == "." || name == ".." {
            continue;
        }
        let path = match dir {
            "" => name.to_owned(),
            _ => format!("{dir}/{name}"),
        };
        let stat = rustix::fs::statat(top, &path, AtFlags::SYMLINK_NOFOLLOW).expect("there");
        let looks = (
            stat.st_mode & 0o7777,
            stat.st_uid,
            stat.st_gid,
            stat.st_nlink as u32,
        );
        all.insert(path.clone(), looks);
        if FileKind::Directory as u32 == kind_bits(stat.st_mode) {
            tree(top, &path, all);
        }
    }
}

/// [`FileKind::Directory`] for a directory's mode, something else for others.
fn kind_bits(mode: u32) -> u32 {
    match rustix::fs::FileType::from_raw_mode(mode) {
        rustix::fs::FileType::Directory => FileKind::Directory as u32,
        _ => u32::MAX,
    }
}

fn differ(theirs: &BTreeMap<String, Looks>, ours: &BTreeMap<String, Looks>) -> Result<(), String> {
    for path in theirs.keys().chain(ours.keys()) {
        let (theirs, ours) = (theirs.get(path), ours.get(path));
        if theirs != ours {
            let looks = |looks: Option<&Looks>| {
                looks.map(|(mode, uid, gid, nlink)| format!("{mode:o} {uid} {gid} {nlink}"))
            };
            let (theirs, ours) = (looks(theirs), looks(ours));
            return Err(format!("{path}: the kernel's {theirs:?}, ours {ours:?}"));
        }
    }
    Ok(())
}

/// Numbers by chance, the same for a seed each time.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize % n
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn path(&mut self) -> String {
        const NAMES: [&str; 5] = ["a", "b", "c", "f", "g"];
        let depth = self.of(&[1, 1, 2, 2, 3]);
        let names: Vec<_> = (0..depth).map(|_| self.of(&NAMES)).collect();
        names.join("/")
    }

    /// Permissions that let many operations succeed, and set-id and sticky bits.
    fn mode(&mut self, sticky: bool) -> u32 {
        let permissions = self.of(&[
            0o777, 0o777, 0o775, 0o755, 0o750, 0o770, 0o711, 0o733, 0o070, 0o707, 0o700, 0o666,
            0o640, 0o000,
        ]);
        let bits = [0, 0, 0, 0o2000, 0o2000, 0o4000, 0o6000, 0o1000, 0o3000];
        let bits = self.of(&bits);
        permissions | if sticky { bits } else { bits & !0o1000 }
    }

    fn op(&mut self, sticky: bool) -> Op {
        let path = self.path();
        match self.below(24) {
            0..3 => Op::Mkdir(path, self.mode(sticky)),
            3..7 => {
                let (read, write) = self.of(&[(true, false), (true, true), (false, true)]);
                let flags = OpenFlags {
                    read,
                    write,
                    truncate: write && self.below(3) == 0,
                    ..OpenFlags::default()
                };
                let create = self.below(3) > 0;
                Op::Open {
                    path,
                    mode: self.mode(sticky),
                    flags,
                    create,
                    exclusive: create && self.below(3) == 0,
                }
            }
            7 | 8 => Op::Unlink(path),
            9 => Op::Rmdir(path),
            10..14 => {
                let modes = [
                    RenameMode::Replace,
                    RenameMode::Replace,
                    RenameMode::NoReplace,
                    RenameMode::Exchange,
                ];
                Op::Rename(path, self.path(), self.of(&modes))
            }
            14 => Op::Link(path, self.path()),
            15 => Op::Symlink(self.of(&["a", "b", "f"]).to_owned(), path),
            16..19 => Op::Chmod(path, self.mode(sticky)),
            19 => {
                let uid = self.of(&[None, Some(1001), Some(1002), Some(1003), Some(0)]);
                let gid = self.of(&[None, Some(2001), Some(2002), Some(2003), Some(0)]);
                match (uid, gid) {
                    (None, None) => Op::Stat(path),
                    _ => Op::Chown(path, uid, gid),
                }
            }
            20 => Op::Truncate(path),
            21 => match [(); 2].map(|()| self.of(&[None, Some(true), Some(true), Some(false)])) {
                [None, None] => Op::Stat(path),
                which => Op::Times(path, which),
            },
            22 => Op::List(path),
            _ => Op::Stat(path),
        }
    }
}

/// `FOLIOCACHE_SEEDS` adds this many seeds.
fn random_users(ours: Ours, seeds: std::ops::Range<u64>) {
    let Some(tmpfs) = tmpfs_as_root() else { return };
    let more = std::env::var("FOLIOCACHE_SEEDS").map_or(0, |n| n.parse().expect("a number"));
    for seed in seeds.start..seeds.end + more {
        let world = World::new(ours, tmpfs);
        let mut random = Random(seed);
        let mut done = Vec::new();
        for step in 0..STEPS {
            let user = random.of(&USERS);
            let op = random.op(!world.restricted.sticky);
            let same = world.step(user, &op);
            done.push((user, op));
            let compared = match step % 16 {
                15 => same.and_then(|()| world.compare()),
                _ => same,
            };
            if let Err(how) = compared {
                let last = &done[done.len().saturating_sub(16)..];
                let last: Vec<_> = last.iter().map(|step| format!("{step:?}")).collect();
                panic!(
                    "{ours:?}, seed {seed}, step {step}: {how}\n{}",
                    last.join("\n")
                );
            }
        }
    }
}

#[test]
fn random_users_in_memory() {
    random_users(Ours::MemFs, 1..5);
}

#[test]
fn random_users_over_a_directory() {
    random_users(Ours::DirFs(Duration::from_secs(3600)), 11..13);
}

#[test]
fn random_users_over_a_doubted_directory() {
    random_users(Ours::DirFs(Duration::ZERO), 21..23);
}

/// A directory is closed, and opened again, behind the cache's back.
#[test]
fn a_mode_changed_from_outside_is_checked_as_it_is() {
    let Some(tmpfs) = tmpfs_as_root() else { return };
    let world = World::new(Ours::DirFs(Duration::ZERO), tmpfs);
    let source = world.source.as_ref().expect("a directory").path();
    let (root, user) = (USERS[0], USERS[1]);
    let create = |path: &str| Op::Open {
        path: path.to_owned(),
        mode: 0o666,
        flags: OpenFlags::WRITE,
        create: true,
        exclusive: true,
    };
    let ours = |user: User, op: &Op| world.ours(&credentials(user), op).map_err(WalkError::errno);
    assert_eq!(ours(root, &Op::Mkdir("d".to_owned(), 0o777)), Ok(()));
    assert_eq!(ours(root, &Op::Chmod("d".to_owned(), 0o777)), Ok(()));
    assert_eq!(ours(user, &create("d/before")), Ok(()));
    let stat = Op::Stat("d/before".to_owned());
    for _ in 0..3 {
        assert_eq!(ours(user, &stat), Ok(()));
    }
    let chmod = |mode| {
        let mode = Mode::from_raw_mode(mode);
        rustix::fs::chmod(source.join("d"), mode).expect("the mode is set");
    };
    chmod(0o755);
    assert_eq!(ours(user, &create("d/after")), Err(Errno::EACCES));
    let unlink = Op::Unlink("d/before".to_owned());
    assert_eq!(ours(user, &unlink), Err(Errno::EACCES));
    chmod(0o700);
    assert_eq!(ours(user, &stat), Err(Errno::EACCES));
    chmod(0o777);
    assert_eq!(ours(user, &stat), Ok(()));
    assert_eq!(ours(user, &unlink), Ok(()));
}
