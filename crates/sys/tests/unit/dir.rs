//! Names below a directory: the calls work, and refuse to leave it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use foliocache_sys::Errno;
use foliocache_sys::clock::Timespec;
use foliocache_sys::dir::{self, DirReader, RenameMode};
use foliocache_sys::fd::{self, FileKind, OFlags, SetTime, Stat};

const CREATE: OFlags = OFlags::RDWR.union(OFlags::CREATE).union(OFlags::EXCL);

struct Tree {
    root: OwnedFd,
    /// Removed when dropped.
    _path: tempfile::TempDir,
}

fn tree() -> Tree {
    let path = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let root = fd::open(path.path(), OFlags::PATH | OFlags::DIRECTORY, 0).unwrap();
    Tree { root, _path: path }
}

fn n(name: &str) -> &OsStr {
    OsStr::new(name)
}

fn statat(dir: BorrowedFd<'_>, name: &OsStr) -> Result<Stat, Errno> {
    let path = dir::openat(dir, name, OFlags::PATH, 0)?;
    fd::fstat(path.as_fd())
}

fn names(reader: &mut DirReader) -> Vec<OsString> {
    let mut out = Vec::new();
    while let Some(entry) = reader.next().unwrap() {
        out.push(entry.name.to_owned());
    }
    out
}

#[test]
fn names_that_are_no_single_component_are_refused_by_every_call() {
    let t = tree();
    let d = t.root.as_fd();
    dir::mkdirat(d, n("sub"), 0o755).unwrap();
    let bad = [
        ("", Errno::ENOENT),
        (".", Errno::EINVAL),
        ("..", Errno::EINVAL),
        ("/", Errno::EINVAL),
        ("/etc", Errno::EINVAL),
        ("sub/..", Errno::EINVAL),
        ("sub/x", Errno::EINVAL),
        ("sub/", Errno::EINVAL),
        ("a\0b", Errno::EINVAL),
    ];
    for (name, errno) in bad {
        let name = n(name);
        let to = n("to");
        let results = [
            dir::openat(d, name, OFlags::RDONLY, 0).map(drop),
            dir::mkdirat(d, name, 0o755),
            dir::mknodat(d, name, FileKind::Regular, 0o644, 0),
            dir::symlinkat(n("x"), d, name),
            dir::link_fd(d, d, name),
            dir::unlinkat(d, name),
            dir::rmdirat(d, name),
            dir::renameat2(d, name, d, to, RenameMode::Replace),
            dir::renameat2(d, n("sub"), d, name, RenameMode::Replace),
        ];
        for (call, result) in results.into_iter().enumerate() {
            assert_eq!(result, Err(errno), "call {call} with {name:?}");
        }
    }
    let long = "x".repeat(256);
    assert_eq!(dir::mkdirat(d, n(&long), 0o755), Err(Errno::ENAMETOOLONG));
    let odd = [&b"\xff\xfe"[..], b"...", b" ", b"\n", b"-"];
    for name in odd {
        use std::os::unix::ffi::OsStrExt;
        dir::mkdirat(d, OsStr::from_bytes(name), 0o755).unwrap();
    }
    let mut reader = DirReader::open(d).unwrap();
    assert_eq!(names(&mut reader).len(), odd.len() + 3);
}

#[test]
fn links_are_not_followed() {
    let t = tree();
    let d = t.root.as_fd();
    dir::symlinkat(n("/etc"), d, n("out")).unwrap();
    dir::symlinkat(n("../../x y"), d, n("odd")).unwrap();
    let odd = dir::openat(d, n("odd"), OFlags::PATH, 0).unwrap();
    assert_eq!(dir::readlink_fd(odd.as_fd()).unwrap(), "../../x y");
    let opened = dir::openat(d, n("out"), OFlags::RDONLY, 0);
    assert_eq!(opened.unwrap_err(), Errno::ELOOP);
    let link = dir::openat(d, n("out"), OFlags::PATH, 0).unwrap();
    assert_eq!(fd::fstat(link.as_fd()).unwrap().kind, FileKind::Symlink);
    assert_eq!(dir::readlink_fd(link.as_fd()).unwrap(), "/etc");
    assert_eq!(statat(d, n("out")).unwrap().kind, FileKind::Symlink);
    let past = SetTime::At(Timespec::new(77, 0));
    fd::futimens(link.as_fd(), Some(past), Some(past)).unwrap();
    assert_eq!(statat(d, n("out")).unwrap().mtime.sec, 77);
}

#[test]
fn names_below_a_descriptor_are_made_moved_and_removed() {
    let t = tree();
    let d = t.root.as_fd();
    let one = dir::openat(d, n("one"), CREATE, 0o600).unwrap();
    let ino = fd::fstat(one.as_fd()).unwrap().ino;
    dir::link_fd(one.as_fd(), d, n("two")).unwrap();
    dir::link_fd(one.as_fd(), d, n("three")).unwrap();
    let path = dir::openat(d, n("one"), OFlags::PATH, 0).unwrap();
    dir::link_fd(path.as_fd(), d, n("four")).unwrap();
    assert_eq!(fd::fstat(one.as_fd()).unwrap().nlink, 4);
    let taken = dir::link_fd(one.as_fd(), d, n("two"));
    assert_eq!(taken, Err(Errno::EEXIST));

    dir::mknodat(d, n("pipe"), FileKind::Fifo, 0o600, 0).unwrap();
    assert_eq!(statat(d, n("pipe")).unwrap().kind, FileKind::Fifo);
    assert_eq!(
        dir::mknodat(d, n("d"), FileKind::Directory, 0, 0),
        Err(Errno::EINVAL)
    );

    let no = dir::renameat2(d, n("one"), d, n("pipe"), RenameMode::NoReplace);
    assert_eq!(no, Err(Errno::EEXIST));
    dir::renameat2(d, n("one"), d, n("pipe"), RenameMode::Exchange).unwrap();
    assert_eq!(statat(d, n("pipe")).unwrap().ino, ino);
    dir::mkdirat(d, n("sub"), 0o755).unwrap();
    let sub = dir::openat(d, n("sub"), OFlags::PATH | OFlags::DIRECTORY, 0).unwrap();
    dir::renameat2(d, n("pipe"), sub.as_fd(), n("new"), RenameMode::Replace).unwrap();
    assert_eq!(statat(d, n("pipe")), Err(Errno::ENOENT));
    assert_eq!(dir::rmdirat(d, n("sub")), Err(Errno::ENOTEMPTY));
    assert_eq!(dir::unlinkat(d, n("sub")), Err(Errno::EISDIR));
    assert_eq!(dir::rmdirat(d, n("two")), Err(Errno::ENOTDIR));
    dir::unlinkat(sub.as_fd(), n("new")).unwrap();
    dir::rmdirat(d, n("sub")).unwrap();
    assert_eq!(fd::fstat(one.as_fd()).unwrap().nlink, 3);
    // The last name gone, nothing can be linked again.
    for name in ["two", "three", "four"] {
        dir::unlinkat(d, n(name)).unwrap();
    }
    assert_eq!(dir::link_fd(one.as_fd(), d, n("back")), Err(Errno::ENOENT));
}

#[test]
fn a_directory_is_read_from_any_offset() {
    let t = tree();
    let d = t.root.as_fd();
    let count = 3000;
    for i in 0..count {
        dir::mknodat(d, n(&format!("file-{i:05}")), FileKind::Regular, 0o600, 0).unwrap();
    }
    let mut reader = DirReader::open(d).unwrap();
    let mut order = Vec::new();
    let mut after = BTreeMap::new();
    while let Some(entry) = reader.next().unwrap() {
        assert_ne!(entry.ino, 0);
        if entry.name.len() > 2 {
            assert_eq!(entry.kind, FileKind::Regular);
        }
        after.insert(order.len(), entry.next_offset);
        order.push(entry.name.to_owned());
    }
    assert_eq!(order.len(), count + 2);
    assert!(reader.next().unwrap().is_none(), "the end stays the end");

    // From the middle, forwards and backwards, by this reader and by another.
    let mut other = DirReader::open(d).unwrap();
    for at in [0, 1, 777, 778, 1500, count, count + 1] {
        for reader in [&mut reader, &mut other] {
            reader.seek(after[&at]).unwrap();
            assert_eq!(reader.offset(), after[&at]);
            assert_eq!(names(reader), order[at + 1..]);
        }
    }
    // Offsets hold while names before and behind them go away.
    reader.seek(after[&1000]).unwrap();
    let mut left = Vec::new();
    for (i, name) in order.iter().enumerate().filter(|(_, name)| name.len() > 2) {
        if i % 2 == 0 {
            dir::unlinkat(d, name).unwrap();
        } else if i > 1000 {
            left.push(name.clone());
        }
    }
    reader.seek(0).unwrap();
    reader.seek(after[&1000]).unwrap();
    assert_eq!(names(&mut reader), left);
    reader.seek(0).unwrap();
    assert!(names(&mut reader).len() >= left.len());
}

#[test]
fn only_directories_are_read() {
    let t = tree();
    let file = dir::openat(t.root.as_fd(), n("f"), CREATE, 0o600).unwrap();
    assert_eq!(DirReader::open(file.as_fd()).unwrap_err(), Errno::ENOTDIR);
    dir::mkdirat(t.root.as_fd(), n("gone"), 0o700).unwrap();
    let gone = dir::openat(t.root.as_fd(), n("gone"), OFlags::RDONLY, 0).unwrap();
    dir::rmdirat(t.root.as_fd(), n("gone")).unwrap();
    let mut reader = DirReader::open(gone.as_fd()).unwrap();
    assert_eq!(reader.next(), Err(Errno::ENOENT));
}
