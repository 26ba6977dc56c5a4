//! Path walk over both file systems, and beside the kernel's.

mod prefixes;

use crate::common::{Paths as _, WalkFlags};
use foliocache_fs::{DirFs, DirFsOptions, MemFs};
use foliocache_mm::{Mm, MmConfig};
use foliocache_sync::Arc;
use foliocache_sys::Errno;
use foliocache_vfs::dcache::DentryRef;
use foliocache_vfs::{
    Credentials, FileKind, FileSystem, Inode, New, OpContext, OpenFlags, Remove, RenameMode,
    SetAttr, SuperBlock, WalkError,
};
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

const STAY: WalkFlags = WalkFlags {
    follow: true,
    beneath: true,
};
const NO_FOLLOW: WalkFlags = WalkFlags {
    follow: false,
    ..STAY
};

fn mm() -> Arc<Mm> {
    Mm::new(MmConfig::new(16 << 20)).expect("a cache")
}

fn memory() -> SuperBlock {
    let mm = mm();
    let fs: Arc<dyn FileSystem> = Arc::new(MemFs::new(&mm).expect("a file system"));
    SuperBlock::new(fs, &mm)
}

fn directory(source: &Path, options: DirFsOptions) -> SuperBlock {
    let mm = mm();
    let fs: Arc<dyn FileSystem> =
        Arc::new(DirFs::open(&mm, source, options).expect("a file system"));
    SuperBlock::new(fs, &mm)
}

/// Runs a test on both.
fn on_both(test: impl Fn(&SuperBlock)) {
    on_both_with(DirFsOptions::default(), test);
}

fn on_both_with(options: DirFsOptions, test: impl Fn(&SuperBlock)) {
    test(&memory());
    let source = tempfile::tempdir().expect("a directory");
    test(&directory(source.path(), options));
}

/// As [`on_both`], with answers that stay believed however long the test takes.
fn on_both_believing(test: impl Fn(&SuperBlock)) {
    let mut options = DirFsOptions::default();
    options.revalidate_after = Duration::from_secs(3600);
    on_both_with(options, test);
}

/// Calls by path, as root.
trait Calls {
    fn dir(&self, path: &str) -> DentryRef<Inode>;
    fn make_dir(&self, path: &str);
    fn make_file(&self, path: &str);
    fn make_link(&self, path: &str, target: &str);
    fn ino(&self, path: &str) -> Result<u64, WalkError>;
}

fn parts(path: &str) -> (&str, &OsStr) {
    let (dir, name) = path.rsplit_once('/').unwrap_or((".", path));
    (dir, OsStr::new(name))
}

impl Calls for SuperBlock {
    fn dir(&self, path: &str) -> DentryRef<Inode> {
        self.lookup(self.root(), OsStr::new(path), STAY, None)
            .unwrap_or_else(|error| panic!("{path}: {error:?}"))
    }

    fn make_dir(&self, path: &str) {
        let (dir, name) = parts(path);
        self.make(
            &OpContext::ROOT,
            &self.dir(dir),
            name,
            New::Directory { mode: 0o755 },
            None,
        )
        .expect("a directory");
    }

    fn make_file(&self, path: &str) {
        let (dir, name) = parts(path);
        let flags = OpenFlags::READ_WRITE;
        self.create(&OpContext::ROOT, &self.dir(dir), name, 0o644, flags, None)
            .expect("a file");
    }

    fn make_link(&self, path: &str, target: &str) {
        let (dir, name) = parts(path);
        let (dir, target) = (self.dir(dir), OsStr::new(target));
        self.make(&OpContext::ROOT, &dir, name, New::Symlink(target), None)
            .expect("a link");
    }

    fn ino(&self, path: &str) -> Result<u64, WalkError> {
        let attr = self.stat(self.root(), OsStr::new(path), STAY, None)?;
        let dentry = self.lookup(self.root(), OsStr::new(path), STAY, None)?;
        assert_eq!(dentry.inode().expect("it is there").ino(), attr.ino);
        Ok(attr.ino)
    }
}

fn errno(error: Errno) -> WalkError {
    WalkError::Errno(error)
}

#[test]
fn paths_resolve_as_in_the_kernel() {
    on_both(|names| {
        names.make_dir("a");
        names.make_dir("a/b");
        names.make_file("a/b/file");
        names.make_link("to_b", "a/b");
        names.make_link("a/up", "../a/b/");
        names.make_link("self", "self");
        names.make_link("out", "../elsewhere");
        names.make_link("top", "/a");
        let file = names.ino("a/b/file").expect("the file");
        let b = names.ino("a/b").expect("the directory");
        for path in [
            "a//b/./file",
            "./a/b/file",
            "a/b/../b/file",
            "to_b/file",
            "a/up/file",
            "a/up/../b/file",
            "to_b/../b/file",
        ] {
            // Twice: the second time it is cached.
            for _ in 0..2 {
                assert_eq!(names.ino(path), Ok(file), "{path}");
            }
        }
        for path in [
            "to_b", "to_b/", "a/b/", "a/b/.", "to_b/.", "a/b/../b", "a/up/",
        ] {
            assert_eq!(names.ino(path), Ok(b), "{path}");
        }
        let long = format!("a/{}", "x".repeat(256));
        let longer = "a/".repeat(2100);
        for (path, error) in [
            ("", Errno::ENOENT),
            ("missing", Errno::ENOENT),
            ("missing/", Errno::ENOENT),
            ("missing/more", Errno::ENOENT),
            ("a/missing/../b", Errno::ENOENT),
            ("a/b/file/", Errno::ENOTDIR),
            ("a/b/file/.", Errno::ENOTDIR),
            ("a/b/file/..", Errno::ENOTDIR),
            ("a/b/file/more", Errno::ENOTDIR),
            ("self", Errno::ELOOP),
            ("self/x", Errno::ELOOP),
            (&long, Errno::ENAMETOOLONG),
            (&longer, Errno::ENAMETOOLONG),
        ] {
            for _ in 0..2 {
                assert_eq!(names.ino(path), Err(errno(error)), "{path}");
            }
        }
        for path in ["..", "a/../..", "/a", "out", "top/b", "a/b/../../../a"] {
            assert_eq!(names.ino(path), Err(WalkError::Escape), "{path}");
        }
        let at = |path: &str, flags| names.stat(names.root(), OsStr::new(path), flags, None);
        assert_eq!(
            at("to_b", NO_FOLLOW).map(|attr| attr.kind),
            Ok(FileKind::Symlink)
        );
        assert_eq!(
            at("to_b/", NO_FOLLOW).map(|attr| attr.kind),
            Ok(FileKind::Directory)
        );
        assert_eq!(
            at("self", NO_FOLLOW).map(|attr| attr.kind),
            Ok(FileKind::Symlink)
        );
    });
}

#[test]
fn a_walk_that_may_leave_its_start_goes_as_far_as_the_root() {
    on_both(|names| {
        names.make_dir("a");
        names.make_dir("a/b");
        names.make_file("a/file");
        names.make_link("a/b/top", "/a/file");
        let file = names.ino("a/file");
        let b = names.dir("a/b");
        let free = WalkFlags {
            follow: true,
            beneath: false,
        };
        for path in [
            "../file",
            "../../a/file",
            "../../../../a/file",
            "/a/file",
            "top",
        ] {
            for _ in 0..2 {
                let found = names.stat(&b, OsStr::new(path), free, None);
                assert_eq!(found.map(|attr| attr.ino), file, "{path}");
            }
        }
        assert_eq!(
            names
                .stat(&b, OsStr::new("../file"), STAY, None)
                .map(|_| ()),
            Err(WalkError::Escape)
        );
    });
}

#[test]
fn changes_of_names_are_seen_at_once() {
    on_both(|names| {
        let root = names.root();
        let name = OsStr::new;
        names.make_dir("d");
        assert_eq!(names.ino("d/f"), Err(errno(Errno::ENOENT)));
        names.make_file("d/f");
        let f = names.ino("d/f").expect("it was made");
        names.make_dir("e");
        let (d, e) = (names.dir("d"), names.dir("e"));
        let rename = |from: &_, old, to: &_, new, mode| {
            names.rename(from, name(old), to, name(new), mode, None)
        };
        assert_eq!(rename(&d, "f", &e, "g", RenameMode::Replace), Ok(()));
        assert_eq!(names.ino("d/f"), Err(errno(Errno::ENOENT)));
        assert_eq!(names.ino("e/g"), Ok(f));
        // A directory with a subtree, and with handles into it.
        assert_eq!(rename(root, "e", &d, "e2", RenameMode::Replace), Ok(()));
        assert_eq!(names.ino("d/e2/g"), Ok(f));
        assert_eq!(names.ino("e/g"), Err(errno(Errno::ENOENT)));
        assert_eq!(
            names.stat(&e, name("g"), STAY, None).map(|attr| attr.ino),
            Ok(f)
        );
        assert_eq!(
            rename(&d, "e2", &e, "x", RenameMode::Replace),
            Err(Errno::EINVAL)
        );
        // Two change places.
        names.make_dir("d/other");
        names.make_file("d/other/o");
        let o = names.ino("d/other/o").expect("it was made");
        assert_eq!(rename(&d, "e2", &d, "other", RenameMode::Exchange), Ok(()));
        assert_eq!(names.ino("d/other/g"), Ok(f));
        assert_eq!(names.ino("d/e2/o"), Ok(o));
        assert_eq!(
            rename(&d, "e2", &d, "other", RenameMode::NoReplace),
            Err(Errno::EEXIST)
        );
        // Another name of the same file, and one name less.
        let inode = names.dir("d/other/g").inode().expect("a file");
        names
            .link(&inode, root, name("hard"), None)
            .expect("a link");
        assert_eq!(names.ino("hard"), Ok(f));
        let nlink = || {
            names
                .stat(root, name("hard"), STAY, None)
                .map(|attr| attr.nlink)
        };
        assert_eq!(nlink(), Ok(2));
        assert_eq!(
            rename(
                root,
                "hard",
                &names.dir("d/other"),
                "g",
                RenameMode::Replace
            ),
            Ok(())
        );
        assert_eq!(nlink(), Ok(2), "two names of one file are left as they are");
        names
            .remove(&names.dir("d/other"), name("g"), Remove::File, None)
            .expect("one less");
        assert_eq!(nlink(), Ok(1));
        assert_eq!(names.ino("d/other/g"), Err(errno(Errno::ENOENT)));
        names
            .remove(root, name("hard"), Remove::File, None)
            .expect("the last");
        assert_eq!(names.ino("hard"), Err(errno(Errno::ENOENT)));
        // A directory that goes, and one of the same name.
        assert_eq!(
            names.remove(&d, name("e2"), Remove::Directory, None),
            Err(Errno::ENOTEMPTY)
        );
        names
            .remove(&names.dir("d/e2"), name("o"), Remove::File, None)
            .expect("empty now");
        let gone = names.dir("d/e2");
        names
            .remove(&d, name("e2"), Remove::Directory, None)
            .expect("it is empty");
        assert_eq!(names.ino("d/e2"), Err(errno(Errno::ENOENT)));
        names.make_dir("d/e2");
        assert_eq!(names.ino("d/e2/o"), Err(errno(Errno::ENOENT)));
        let in_gone = names.create(
            &OpContext::ROOT,
            &gone,
            name("x"),
            0o644,
            OpenFlags::READ_WRITE,
            None,
        );
        assert!(in_gone.is_err(), "made in a directory that is gone");
        assert_eq!(names.ino("d/e2/x"), Err(errno(Errno::ENOENT)));
    });
}

#[test]
fn attributes_are_those_of_now() {
    on_both(|names| {
        names.make_dir("d");
        names.make_file("d/f");
        let stat = |path: &str| names.stat(names.root(), OsStr::new(path), STAY, None);
        let inode = names.dir("d/f").inode().expect("a file");
        let file = names
            .fs()
            .open(&OpContext::ROOT, &inode, OpenFlags::READ_WRITE)
            .expect("it opens");
        for round in 1..=3_u64 {
            let before = stat("d/f").expect("it is there");
            file.write_at(&[7; 5000], 5000 * (round - 1))
                .expect("written");
            let after = stat("d/f").expect("it is there");
            assert_eq!(after.size, 5000 * round);
            assert!(
                after.mtime >= before.mtime && after.blocks >= before.blocks,
                "{before:?} {after:?}"
            );
            file.fsync().expect("durable");
            assert!(stat("d/f").expect("it is there").blocks >= 5000 * round / 512);
            let set = SetAttr {
                mode: Some(0o600 + round as u32),
                ..SetAttr::default()
            };
            names
                .fs()
                .setattr(&OpContext::ROOT, &inode, &set)
                .expect("set");
            assert_eq!(stat("d/f").map(|attr| attr.mode), Ok(0o600 + round as u32));
        }
        let links = stat("d").expect("a directory").nlink;
        let changed = stat("d").expect("a directory").mtime;
        std::thread::sleep(Duration::from_millis(20));
        names.make_dir("d/below");
        let now = stat("d").expect("a directory");
        assert_eq!(now.nlink, links + 1);
        assert!(now.mtime > changed);
    });
}

#[test]
fn credentials_decide() {
    on_both(|names| {
        names.make_dir("closed");
        names.make_dir("closed/inside");
        names.make_file("closed/inside/file");
        let set = |path: &str, mode, owner: Option<u32>| {
            let inode = names.dir(path).inode().expect("it is there");
            let set = SetAttr {
                mode: Some(mode),
                uid: owner,
                gid: owner,
                ..SetAttr::default()
            };
            names
                .fs()
                .setattr(&OpContext::ROOT, &inode, &set)
                .map(|_| ())
        };
        if let Err(error) = set("closed/inside", 0o755, Some(7)) {
            assert!(crate::common::lacks("root"), "{error}");
            return;
        }
        let stat = |who: &Credentials| {
            let path = OsStr::new("closed/inside/file");
            let found = names.stat(names.root(), path, STAY, Some(who));
            found.map(|_| ()).map_err(WalkError::errno)
        };
        let (owner, member, other, root) = (
            Credentials::new(7, 1, &[]),
            Credentials::new(8, 1, &[5, 7]),
            Credentials::new(9, 9, &[]),
            Credentials::new(0, 0, &[]),
        );
        for (mode, allowed) in [
            (0o755, [true, true, true]),
            (0o750, [true, true, false]),
            (0o700, [true, false, false]),
            // The first class that fits decides.
            (0o077, [false, true, true]),
            (0o707, [true, false, true]),
        ] {
            set("closed/inside", mode, None).expect("set");
            for _ in 0..2 {
                let seen = [&owner, &member, &other].map(|who| stat(who) == Ok(()));
                assert_eq!(seen, allowed, "{mode:o}");
                assert_eq!(stat(&root), Ok(()));
            }
        }
        assert_eq!(stat(&owner), Ok(()));
        set("closed/inside", 0o077, None).expect("set");
        assert_eq!(stat(&owner), Err(Errno::EACCES));
        // Making and taking away.
        set("closed/inside", 0o1777, None).expect("set");
        let dir = names.dir("closed/inside");
        let make = |who: &Credentials, name: &str| {
            let ctx = who.context(0, 0);
            names
                .make(
                    &ctx,
                    &dir,
                    OsStr::new(name),
                    New::Directory { mode: 0o777 },
                    Some(who),
                )
                .map(|_| ())
        };
        assert_eq!(make(&other, "others"), Ok(()));
        let owned = names.stat(&dir, OsStr::new("others"), STAY, None);
        assert_eq!(owned.map(|attr| (attr.uid, attr.gid)), Ok((9, 9)));
        let remove = |who: &Credentials| {
            names.remove(&dir, OsStr::new("others"), Remove::Directory, Some(who))
        };
        assert_eq!(remove(&member), Err(Errno::EPERM), "sticky");
        set("closed/inside", 0o755, None).expect("set");
        assert_eq!(remove(&other), Err(Errno::EACCES));
        assert_eq!(make(&other, "more"), Err(Errno::EACCES));
        assert_eq!(remove(&owner), Ok(()));
    });
}

/// Random paths through a tree with links, beside the kernel's own walk of the same tree.
#[test]
fn random_paths_beside_the_kernel() {
    let source = tempfile::tempdir().expect("a directory");
    let names = directory(source.path(), DirFsOptions::default());
    for dir in ["a", "a/b", "a/b/c", "d", "d/a"] {
        names.make_dir(dir);
    }
    for file in ["f", "a/f", "a/b/f", "d/a/f"] {
        names.make_file(file);
    }
    for (link, target) in [
        ("l", "a/b"),
        ("a/l", "../d"),
        ("a/b/l", "../../l/c/"),
        ("d/l", "l2"),
        ("d/l2", "l3/../f"),
        ("d/l3", "a"),
        ("a/b/c/l", "../../b/./c/../../b"),
        ("m", "n"),
        ("n", "m"),
        ("d/x", "missing"),
        ("d/a/l", "../../f"),
    ] {
        names.make_link(link, target);
    }
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    const WORDS: [&str; 14] = [
        "a", "b", "c", "d", "f", "l", "l2", "l3", "m", "x", ".", "..", "", "none",
    ];
    let (mut found, mut escapes) = (0, 0);
    for _ in 0..30_000 {
        let mut path = String::new();
        for _ in 0..=random(7) {
            path.push_str(WORDS[random(WORDS.len())]);
            path.push('/');
        }
        if random(3) > 0 {
            path.pop();
        }
        let path = path.trim_start_matches('/');
        let follow = random(2) == 0;
        let flags = WalkFlags { follow, ..STAY };
        let ours = names.stat(names.root(), OsStr::new(path), flags, None);
        if ours == Err(WalkError::Escape) {
            escapes += 1;
            continue;
        }
        let real = source.path().join(path);
        // A join ignores an empty path.
        let theirs = match (path.is_empty(), follow) {
            (true, _) => Err(Errno::ENOENT),
            (_, true) => std::fs::metadata(&real).map_err(Errno::from),
            (_, false) => std::fs::symlink_metadata(&real).map_err(Errno::from),
        };
        match (&ours, &theirs) {
            (Ok(ours), Ok(theirs)) => {
                let top = theirs.ino() == names_root(source.path());
                assert!(ours.ino == theirs.ino() || top, "{path:?}");
                found += 1;
            }
            (Err(ours), Err(theirs)) => assert_eq!(ours.errno(), *theirs, "{path:?}"),
            _ => panic!("{path:?} follow {follow}: {ours:?}, the kernel {theirs:?}"),
        }
    }
    assert!(
        found > 2000 && escapes > 300,
        "{found} found, {escapes} escapes"
    );
}

fn names_root(source: &Path) -> u64 {
    std::fs::metadata(source).expect("it is there").ino()
}

#[test]
fn changes_from_outside_are_noticed_in_time() {
    let source = tempfile::tempdir().expect("a directory");
    let at = |name: &str| source.path().join(name);
    let mut options = DirFsOptions::default();
    options.watch = false;
    options.revalidate_after = Duration::from_millis(150);
    let names = directory(source.path(), options);
    names.make_dir("d");
    names.make_file("d/f");
    let f = names.ino("d/f").expect("it was made");
    // By default a missing name is asked for each time.
    assert_eq!(names.ino("d/new"), Err(errno(Errno::ENOENT)));
    std::fs::write(at("d/new"), "x").expect("written");
    assert!(names.ino("d/new").is_ok());
    // Removed, replaced, moved.
    std::fs::remove_file(at("d/f")).expect("removed");
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(names.ino("d/f"), Err(errno(Errno::ENOENT)));
    std::fs::write(at("d/f"), "another").expect("written");
    let other = names.ino("d/f").expect("it is there again");
    let generation = |path| names.dir(path).inode().expect("there").generation();
    assert!(other != f || generation("d/f") != 0);
    std::fs::rename(at("d"), at("e")).expect("moved");
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(names.ino("d/f"), Err(errno(Errno::ENOENT)));
    assert_eq!(names.ino("e/f"), Ok(other));
    // Attributes.
    let mode = || {
        names
            .stat(names.root(), OsStr::new("e/f"), STAY, None)
            .map(|attr| attr.mode)
    };
    let before = mode().expect("it is there");
    let mut permissions = std::fs::metadata(at("e/f")).expect("there").permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, before ^ 0o111);
    std::fs::set_permissions(at("e/f"), permissions).expect("set");
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(mode(), Ok(before ^ 0o111));
}

/// Making and moving a directory changes the links of the one above.
#[test]
fn directories_in_memory_are_known_by_the_names_that_we_give_them() {
    let names = memory();
    let root = names.root();
    let make = |name: &str| {
        let made = names.make(
            &OpContext::ROOT,
            root,
            OsStr::new(name),
            New::Directory { mode: 0o755 },
            None,
        );
        made.expect("a directory")
    };
    let (one, two) = (make("one"), make("two"));
    let believed = |dir: &DentryRef<Inode>| dir.believed_until() == u64::MAX;
    assert!(believed(&one) && believed(&two));
    let (from, to) = (OsStr::new("one"), OsStr::new("moved"));
    names
        .rename(root, from, &two, to, RenameMode::Replace, None)
        .expect("rename");
    assert!(believed(&one));
}
