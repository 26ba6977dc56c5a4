//! Names, and that no path leaves its directory.

use crate::common::{Disk, cache, on_disk};
use foliocache::{
    Credentials, Directory, DirectoryOptions, Errno, Error, FileKind, Permissions, Result,
};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

fn errno<T>(result: Result<T>) -> Errno {
    match result {
        Ok(_) => panic!("this had to fail"),
        Err(error) => error.errno(),
    }
}

fn names(dir: &Directory, path: &str) -> Vec<String> {
    let mut names: Vec<_> = dir
        .read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn names_are_made_moved_and_removed() {
    let disk = Disk::new(16);
    for dir in [disk.dir.clone(), disk.cache.memfs().unwrap()] {
        dir.create_dir_all("a/b/c").unwrap();
        dir.create_dir_all("a/b/c/").unwrap();
        assert_eq!(errno(dir.create_dir("a/b")), Errno::EEXIST);
        assert_eq!(errno(dir.create_dir("x/y")), Errno::ENOENT);
        let file = dir.create_new("a/b/f").unwrap();
        file.write_all_at(b"here", 0).unwrap();
        assert_eq!(errno(dir.create_new("a/b/f")), Errno::EEXIST);
        assert_eq!(errno(dir.create_dir_all("a/b/f")), Errno::EEXIST);
        dir.hard_link("a/b/f", "a/g").unwrap();
        assert_eq!(dir.metadata("a/g").unwrap().nlink(), 2);
        assert_eq!(errno(dir.hard_link("a/b/f", "a/g")), Errno::EEXIST);
        dir.rename("a/b/f", "a/b/c/h").unwrap();
        assert_eq!(errno(dir.metadata("a/b/f")), Errno::ENOENT);
        assert_eq!(names(&dir, "a"), ["b", "g"]);
        assert_eq!(names(&dir, "a/b/c"), ["h"]);
        assert_eq!(errno(dir.rename("a", "a/b/inside")), Errno::EINVAL);
        assert_eq!(errno(dir.remove_dir("a/b")), Errno::ENOTEMPTY);
        assert_eq!(errno(dir.remove_file("a/b")), Errno::EISDIR);
        assert_eq!(errno(dir.remove_dir("a/g")), Errno::ENOTDIR);
        assert_eq!(errno(dir.remove_file("a/none")), Errno::ENOENT);
        let below = dir.open_dir("a/b").unwrap();
        below.rename_to("c/h", &dir, "h").unwrap();
        assert_eq!(dir.metadata("h").unwrap().len(), 4);
        dir.remove_dir("a/b/c").unwrap();
        dir.remove_file("h").unwrap();
        below.sync().unwrap();
        assert_eq!(names(&below, "."), [""; 0]);
        dir.set_permissions("a/g", Permissions::from_mode(0o600))
            .unwrap();
        let attributes = dir.metadata("a/g").unwrap();
        assert_eq!(
            (attributes.mode(), attributes.file_type()),
            (0o100600, FileKind::Regular)
        );
    }
    let elsewhere = disk.cache.memfs().unwrap();
    disk.dir.create("f").unwrap();
    assert_eq!(
        errno(disk.dir.rename_to("f", &elsewhere, "f")),
        Errno::EXDEV
    );
}

#[test]
fn names_move_between_handles_of_the_same_credentials_alone() {
    let dir = cache(16).memfs().unwrap();
    dir.create_dir("from").unwrap();
    dir.create_dir("to").unwrap();
    for name in ["from", "to"] {
        dir.chown(name, Some(11), Some(11)).unwrap();
    }
    dir.write("from/f", "x").unwrap();
    let all = dir.open_dir("from").unwrap();
    let guest = |uid| {
        let to = dir.open_dir("to").unwrap();
        to.with_credentials(Credentials::new(uid, uid, &[]))
    };
    // Neither of the two may do both halves for the other.
    for uid in [11, 12] {
        assert_eq!(errno(all.rename_to("f", &guest(uid), "f")), Errno::EXDEV);
        assert_eq!(errno(guest(uid).rename_to("f", &all, "g")), Errno::EXDEV);
    }
    assert_eq!(names(&dir, "from"), ["f"]);
    let owner = all.with_credentials(Credentials::new(11, 11, &[]));
    owner.rename_to("f", &guest(11), "f").unwrap();
    assert_eq!(names(&dir, "to"), ["f"]);
}

/// A name that is believed to be absent, and is there, is found by whoever may not make it.
#[test]
fn an_open_finds_a_file_made_by_others_under_a_negative_name() {
    let (cache, source) = (cache(16), on_disk());
    let absent = Duration::from_secs(5);
    let options = DirectoryOptions::new()
        .watch(false)
        .revalidate_absent_after(absent);
    let dir = cache.directory_with(source.path(), options).unwrap();
    dir.set_permissions(".", Permissions::from_mode(0o755))
        .unwrap();
    let guest = dir.with_credentials(Credentials::new(1000, 1000, &[]));
    assert!(!guest.exists("f").unwrap());
    let begun = Instant::now();
    let file = source.path().join("f");
    std::fs::write(&file, "x").unwrap();
    let mode = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(&file, mode).unwrap();
    guest.append("f").unwrap().append(b"y").unwrap();
    assert!(begun.elapsed() < absent / 2, "{:?}", begun.elapsed());
    assert_eq!(dir.read("f").unwrap(), b"xy");
}

#[test]
fn many_names_are_read_in_several_goes() {
    let dir = cache(32).memfs().unwrap();
    for n in 0..1000 {
        dir.create(format!("{n:04}")).unwrap();
    }
    let all = names(&dir, ".");
    assert_eq!(all.len(), 1000);
    assert_eq!((&*all[0], &*all[999]), ("0000", "0999"));
    assert_eq!(errno(dir.read_dir("0000")), Errno::ENOTDIR);
}

#[test]
fn options_that_do_not_go_together() {
    let dir = cache(16).memfs().unwrap();
    for options in [
        &mut dir.open_options(),
        dir.open_options().read(true).create(true),
        dir.open_options().read(true).create_new(true),
        dir.open_options().read(true).truncate(true),
        dir.open_options().append(true).truncate(true),
    ] {
        assert_eq!(errno(options.open("f")), Errno::EINVAL, "{options:?}");
    }
    assert_eq!(names(&dir, "."), [""; 0]);
    dir.create("f").unwrap().write_all_at(b"long", 0).unwrap();
    assert_eq!(dir.open("f").unwrap().len(), 4);
    assert_eq!(dir.create("f").unwrap().len(), 0);
    assert_eq!(errno(dir.create("")), Errno::ENOENT);
    assert_eq!(errno(dir.create("new/")), Errno::EISDIR);
    assert_eq!(errno(dir.open("f/")), Errno::ENOTDIR);
    assert_eq!(errno(dir.open("f/.")), Errno::ENOTDIR);
    assert_eq!(errno(dir.open(".")), Errno::EISDIR);
    assert_eq!(errno(dir.open("f\0")), Errno::EINVAL);
    let long = "n".repeat(256);
    assert_eq!(errno(dir.create(&long)), Errno::ENAMETOOLONG);
    assert_eq!(errno(dir.open("d/".repeat(3000))), Errno::ENAMETOOLONG);
}

#[test]
fn new_files_get_owner_and_umask_of_the_process() {
    let disk = Disk::new(16);
    let like = disk.in_source("like");
    std::fs::File::create(&like).unwrap();
    disk.dir.create("f").unwrap();
    let (ours, theirs) = (
        std::fs::metadata(disk.in_source("f")).unwrap(),
        std::fs::metadata(like).unwrap(),
    );
    assert_eq!(
        (ours.mode(), ours.uid(), ours.gid()),
        (theirs.mode(), theirs.uid(), theirs.gid())
    );
}

/// Asserts that a call refused a path that leads out of the directory.
fn is_escape<T>(result: Result<T>) {
    match result {
        Ok(_) => panic!("it got out"),
        Err(error) => {
            assert!(matches!(error, Error::Escape { .. }), "{error}");
            assert_eq!(error.errno(), Errno::EXDEV);
        }
    }
}

#[test]
fn no_path_leaves_the_directory() {
    let disk = Disk::new(16);
    let top = &disk.dir;
    top.create_dir_all("jail/sub").unwrap();
    top.create("secret").unwrap();
    let jail = top.open_dir("jail").unwrap();
    let outside = disk.in_source("secret");
    symlink(&outside, disk.in_source("jail/absolute")).unwrap();
    symlink("../secret", disk.in_source("jail/up")).unwrap();
    symlink("..", disk.in_source("jail/parent")).unwrap();
    symlink("../../jail/inside", disk.in_source("jail/sub/out_and_in")).unwrap();
    symlink("up", disk.in_source("jail/twice")).unwrap();
    symlink("../new", disk.in_source("jail/dangling")).unwrap();
    let out = [
        "..",
        "../secret",
        "sub/../../secret",
        "./sub/.././../secret",
        "absolute",
        "up",
        "parent/secret",
        "parent",
        "twice",
        "sub/out_and_in",
        "sub/../up",
        "/",
        "/etc/passwd",
    ];
    for path in out.map(Path::new).into_iter().chain([&*outside]) {
        is_escape(jail.open(path));
        is_escape(jail.metadata(path));
        is_escape(jail.create(path));
        is_escape(jail.open_dir(path));
        is_escape(jail.read_dir(path));
    }
    is_escape(jail.create("dangling"));
    assert!(!disk.in_source("new").exists());
    is_escape(jail.create_dir("../d"));
    is_escape(jail.remove_file("../secret"));
    is_escape(jail.remove_dir("parent/jail/sub"));
    is_escape(jail.rename("../secret", "mine"));
    is_escape(jail.rename("sub", "../sub"));
    is_escape(jail.hard_link("../secret", "mine"));
    is_escape(jail.symlink("x", "parent/x"));
    assert!(outside.exists());
    // Calls about the link itself do not follow it.
    assert!(jail.symlink_metadata("up").unwrap().is_symlink());
    assert_eq!(jail.read_link("up").unwrap(), Path::new("../secret"));
    assert_eq!(errno(jail.create_new("up")), Errno::EEXIST);
    jail.remove_file("up").unwrap();
    // From the top the same names stay inside.
    top.metadata("jail/../secret").unwrap();
    top.metadata("jail/parent/secret").unwrap();
    jail.metadata("sub/../sub/..").unwrap();
}

#[test]
fn links_that_stay_inside_are_followed() {
    let disk = Disk::new(16);
    for dir in [disk.dir.clone(), disk.cache.memfs().unwrap()] {
        dir.create_dir_all("a/b").unwrap();
        dir.create("a/f").unwrap().write_all_at(b"abc", 0).unwrap();
        dir.symlink("../f", "a/b/link").unwrap();
        dir.symlink("a/b/", "short").unwrap();
        dir.symlink("made", "later").unwrap();
        assert_eq!(dir.metadata("short/link").unwrap().len(), 3);
        assert_eq!(dir.open("short/../f").unwrap().len(), 3);
        dir.create("later").unwrap();
        assert!(dir.metadata("made").unwrap().is_file());
        assert!(dir.symlink_metadata("short").unwrap().is_symlink());
        // A trailing slash follows the link.
        assert!(dir.symlink_metadata("short/").unwrap().is_dir());
        dir.symlink("loop", "loop").unwrap();
        assert_eq!(errno(dir.open("loop")), Errno::ELOOP);
        for n in 0..40 {
            dir.symlink(format!("{}", n + 1), format!("{n}")).unwrap();
        }
        dir.create("40").unwrap();
        dir.open("0").unwrap();
        dir.symlink("0", "one_more").unwrap();
        assert_eq!(errno(dir.open("one_more")), Errno::ELOOP);
    }
}

/// A directory is moved up and down while another thread walks through it with `..`.
#[test]
fn a_walk_stays_inside_while_directories_move() {
    let disk = Disk::new(16);
    let top = &disk.dir;
    top.create_dir_all("jail/deep/er").unwrap();
    top.create("secret").unwrap();
    let jail = top.open_dir("jail").unwrap();
    std::thread::scope(|scope| {
        let mover = scope.spawn(|| {
            for _ in 0..300 {
                top.rename("jail/deep/er", "er").unwrap();
                top.rename("er", "jail/deep/er").unwrap();
            }
        });
        while !mover.is_finished() {
            match jail.metadata("deep/er/../../secret") {
                Ok(_) => panic!("it got out"),
                Err(error) => assert_eq!(error.errno(), Errno::ENOENT, "{error}"),
            }
        }
        mover.join().unwrap();
    });
}

/// An operation on a name that was just removed, replaced or moved from outside, before that is
/// reported.
#[test]
fn no_operation_fails_for_a_name_that_others_changed() {
    type Act = fn(&Directory) -> Result<()>;
    let acts: [(&str, Act); 20] = [
        ("read_dir", |dir| dir.read_dir("b/e").map(drop)),
        ("stat", |dir| dir.metadata("b/e").map(drop)),
        ("read", |dir| dir.read("b/e/x").map(drop)),
        ("create", |dir| dir.create_new("b/e/new").map(drop)),
        ("open or create", |dir| dir.write("b/e/x", b"x")),
        ("mkdir", |dir| dir.create_dir("b/e/new")),
        ("mkdir -p", |dir| dir.create_dir_all("b/e/new/y")),
        ("unlink", |dir| dir.remove_file("b/e/x")),
        ("rmdir", |dir| dir.remove_dir("b/e")),
        ("rename from", |dir| dir.rename("b/e/x", "z")),
        ("rename to", |dir| dir.rename("f", "b/e/z")),
        ("rename it", |dir| dir.rename("b/e", "b/q")),
        ("link to", |dir| dir.hard_link("f", "b/e/z")),
        ("link from", |dir| dir.hard_link("b/g", "z")),
        ("symlink", |dir| dir.symlink("f", "b/e/z")),
        ("readlink", |dir| dir.read_link("b/l").map(drop)),
        ("through a link", |dir| dir.read("b/l").map(drop)),
        ("chmod", |dir| {
            dir.set_permissions("b/e", Permissions::from_mode(0o755))
        }),
        ("xattrs", |dir| dir.list_xattrs("b/e").map(drop)),
        ("deep", |dir| dir.read_dir("b/e/1/2/3/4/5").map(drop)),
    ];
    let changes = [
        "rm -r b/e b/g b/l",
        "rm -r b/e b/g b/l; mkdir -p b/e/1/2/3/4/5; touch b/e/x b/g; ln -s ../f b/l",
        "mv b/e e2; mv b/g g2; mv b/l l2",
        "mv b b2",
    ];
    let others = |source: &Path, script: &str| {
        let mut sh = std::process::Command::new("sh");
        let done = sh.args(["-ec", script]).current_dir(source).status();
        assert!(done.expect("a shell").success(), "{script}");
    };
    let result = |watch: bool, known: bool, change: &str, act: Act| {
        let source = tempfile::tempdir().expect("a directory");
        let others = |script| others(source.path(), script);
        others("mkdir -p a/c/1/2/3/4/5 b; touch f a/g; ln -s ../f a/l");
        let cache = cache(16);
        let options = DirectoryOptions::new().watch(watch).path_descriptors(0);
        let dir = cache.directory_with(source.path(), options);
        let dir = dir.expect("a directory");
        if known {
            for (from, to) in [("a/c", "b/e"), ("a/g", "b/g"), ("a/l", "b/l")] {
                dir.rename(from, to).expect("renamed");
            }
            dir.metadata("b/e/1/2/3/4/5").expect("it is there");
        } else {
            others("mv a/c b/e; mv a/g a/l b");
        }
        others(change);
        std::thread::sleep(std::time::Duration::from_millis(30));
        act(&dir).map_err(|error| error.errno())
    };
    for change in changes {
        for (what, act) in acts {
            let fresh = result(true, false, change, act);
            let watched = result(true, true, change, act);
            assert_eq!(watched, fresh, "{what} after {change}");
            // Without events, a removed name may show for a second.
            let unwatched = result(false, true, change, act);
            assert_ne!(unwatched, Err(Errno::ESTALE), "{what} after {change}");
        }
    }
}

/// Of three names of a file the two that it was found by last are removed, and its descriptor makes room for others.
#[test]
fn a_file_is_used_by_a_name_that_it_had_before_others() {
    let source = on_disk();
    let cache = cache(16);
    let options = DirectoryOptions::new().path_descriptors(4);
    let dir = cache.directory_with(source.path(), options).unwrap();
    for nr in 0..20 {
        dir.write(format!("other{nr}"), "other").unwrap();
    }
    dir.write("a", "content").unwrap();
    dir.hard_link("a", "b").unwrap();
    dir.hard_link("a", "c").unwrap();
    cache.sync().unwrap();
    for name in ["c", "b", "a"] {
        assert_eq!(dir.read(name).unwrap(), b"content");
    }
    dir.remove_file("b").unwrap();
    dir.remove_file("c").unwrap();
    // Opens that ask the source, and then one that need not.
    for _ in 0..3 {
        assert_eq!(dir.read("a").unwrap(), b"content");
        std::thread::sleep(Duration::from_millis(20));
    }
    for nr in 0..20 {
        let other = format!("other{nr}");
        let mode = Permissions::from_mode(0o600);
        dir.set_permissions(other, mode).unwrap();
    }
    let file = dir.open("a").unwrap();
    // It has to be looked at.
    let in_source = source.path().join("a");
    std::fs::set_permissions(in_source, PermissionsExt::from_mode(0o640)).unwrap();
    let begun = Instant::now();
    while file.metadata().unwrap().mode() & 0o777 != 0o640 {
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
    assert_eq!(file.metadata().unwrap().nlink(), 1);
    assert_eq!(dir.read("a").unwrap(), b"content");
}
