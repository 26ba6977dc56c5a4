//! File systems mounted below the source of a mount.
//!
//! Needs FUSE, root and tmpfs.

use crate::common::{Folder, foliocache, no_root_or_fuse, output, run, shell};
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

/// Files of a directory that is listed with more than one request.
const MANY: usize = 1000;

/// A tmpfs, until this is dropped.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn at(place: PathBuf) -> Tmpfs {
        fs::create_dir_all(&place).unwrap();
        run(Command::new("mount")
            .args(["-t", "tmpfs", "none"])
            .arg(&place));
        Tmpfs(place)
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Whether there is no root, no FUSE or no tmpfs.
fn skipped() -> bool {
    let known = std::env::var("FOLIOCACHE_MISSING").unwrap_or_default();
    let no_tmpfs = known.split(',').any(|name| name == "tmpfs");
    if no_tmpfs {
        eprintln!("SKIPPED: there is no tmpfs");
    }
    no_root_or_fuse() || no_tmpfs
}

/// All below `top`, relative to it, with its number by `stat`; that of its entry is the same, unless something is mounted on it.
fn numbers(top: &Path, mount_points: &[&str]) -> HashMap<String, (u64, u64)> {
    let mut found = HashMap::new();
    let mut left = vec![top.to_owned()];
    while let Some(dir) = left.pop() {
        // All names first: so most of a long listing comes without attributes.
        let entries: Vec<_> = fs::read_dir(dir).unwrap().map(Result::unwrap).collect();
        for entry in entries {
            let (path, stat) = (entry.path(), entry.path().symlink_metadata().unwrap());
            let name = path.strip_prefix(top).unwrap().to_str().unwrap().to_owned();
            if !mount_points.contains(&&*name) {
                assert_eq!(entry.ino(), stat.ino(), "{name}");
            }
            if stat.is_dir() {
                left.push(path);
            }
            found.insert(name, (stat.dev(), stat.ino()));
        }
    }
    found
}

/// Two file systems below the source whose files have the same numbers: programs that recognise hard links by
/// device and number copy all of them.
#[test]
#[ignore = "system tier"]
fn files_of_two_file_systems_below_the_source_are_told_apart() {
    if skipped() {
        return;
    }
    let folder = Folder::new("submounts");
    let (one, two) = (folder.source().join("one"), folder.source().join("two"));
    let _mounts = [Tmpfs::at(one.clone()), Tmpfs::at(two.clone())];
    for (place, text) in [(&one, "one"), (&two, "two")] {
        fs::write(place.join("a"), format!("{text} a")).unwrap();
        fs::hard_link(place.join("a"), place.join("b")).unwrap();
        fs::create_dir(place.join("dir")).unwrap();
        fs::write(place.join("dir/c"), format!("{text} c")).unwrap();
        fs::hard_link(place.join("dir/c"), place.join("d")).unwrap();
    }
    for file in 0..MANY {
        fs::write(one.join(format!("dir/{file}")), "").unwrap();
    }
    fs::write(folder.source().join("own"), "own").unwrap();
    let number = |path: &Path| path.metadata().unwrap().ino();
    assert_eq!(number(&one.join("a")), number(&two.join("a")), "no test");

    let mounted = folder.mount(&["--memory", "16M"]);
    let top = folder.mount_point();
    let found = numbers(&top, &["one", "two"]);
    assert_eq!(found.len(), 13 + MANY);
    for name in ["one/", "two/"] {
        let of = |file: &str| found[&format!("{name}{file}")];
        assert_eq!(of("a"), of("b"));
        assert_eq!(of("dir/c"), of("d"));
    }
    let mut different: Vec<_> = found.values().collect();
    different.sort_unstable();
    different.dedup();
    assert_eq!(different.len(), 9 + MANY);

    // However often they are forgotten.
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    assert_eq!(numbers(&top, &["one", "two"]), found);

    shell(
        folder.top(),
        "mkdir tarred && tar -C mount -cf - . | tar -C tarred -xf - && cp -a mount copied && \
            diff -r source tarred && diff -r source copied && test tarred/two/a -ef tarred/two/b",
    );
    mounted.end_well();
}

#[test]
#[ignore = "system tier"]
fn one_file_system_leaves_out_submounts() {
    if skipped() {
        return;
    }
    let folder = Folder::new("one-file-system");
    let source = folder.source();
    for dir in ["below", "later", "plain"] {
        fs::create_dir(source.join(dir)).unwrap();
    }
    fs::write(source.join("below/underneath"), "underneath").unwrap();
    fs::write(source.join("file"), "file").unwrap();
    fs::write(folder.top().join("over"), "over").unwrap();
    let below = Tmpfs::at(source.join("below"));
    fs::write(source.join("below/on top"), "on top").unwrap();
    run(Command::new("mount")
        .arg("--bind")
        .arg(folder.top().join("over"))
        .arg(source.join("file")));
    let over = Tmpfs(source.join("file"));

    let names = |top: PathBuf| {
        let mut names: Vec<_> = numbers(&top, &["below", "later", "file"])
            .into_keys()
            .collect();
        names.sort();
        names
    };
    let mounted = folder.mount(&[]);
    let (top, other) = (folder.mount_point(), "below/on top".to_owned());
    assert!(names(top.clone()).contains(&other));
    assert_eq!(fs::read(top.join("file")).unwrap(), b"over");
    mounted.end_well();

    let mounted = folder.mount(&["--one-file-system"]);
    let expected = ["below", "below/underneath", "file", "later", "plain"];
    assert_eq!(names(top.clone()), expected);
    assert_eq!(fs::read(top.join("file")).unwrap(), b"file");
    let later = Tmpfs::at(source.join("later"));
    fs::write(source.join("later/new"), "new").unwrap();
    assert_eq!(fs::read_dir(top.join("later")).unwrap().count(), 0);
    // It works as any other mount does.
    fs::write(top.join("below/written"), "written").unwrap();
    fs::rename(top.join("below/written"), top.join("plain/moved")).unwrap();
    fs::hard_link(top.join("plain/moved"), top.join("below/linked")).unwrap();
    fs::write(source.join("plain/outside"), "outside").unwrap();
    crate::common::wait_for("a name made outside", || top.join("plain/outside").exists());
    let place = folder.top().join("second");
    fs::create_dir(&place).unwrap();
    let second = output(foliocache().arg("mount").arg(&source).arg(place));
    assert_eq!(second.status.code(), Some(2), "{second:?}");
    mounted.end_well();
    drop((below, over, later));
    assert_eq!(fs::read(source.join("below/linked")).unwrap(), b"written");
    assert_eq!(fs::read(source.join("file")).unwrap(), b"file");
}

/// Changes there are not reported, and programs can set a directory's times.
#[test]
#[ignore = "system tier"]
fn names_made_outside_below_the_source_are_listed_whatever_the_times_say() {
    if skipped() {
        return;
    }
    let folder = Folder::new("submount-listing");
    let sub = folder.source().join("sub");
    let _mount = Tmpfs::at(sub.clone());
    for nr in 0..MANY {
        fs::write(sub.join(format!("name{nr}")), "").unwrap();
    }
    let set_back = || shell(&sub, "touch -d '2001-02-03 04:05:06' .");
    set_back();
    let mounted = folder.mount(&[]);
    let place = folder.mount_point().join("sub");
    // Names alone, and with attributes.
    for (nr, list) in ["ls -U", "ls -lU"].into_iter().enumerate() {
        let count = || shell(&place, &format!("{list} | grep -c name"));
        assert_eq!(count().trim(), (MANY + nr).to_string());
        fs::write(sub.join(format!("name{}", MANY + nr)), "").unwrap();
        set_back();
        thread::sleep(Duration::from_secs(2));
        assert_eq!(count().trim(), (MANY + nr + 1).to_string(), "{list}");
    }
    mounted.end_well();
}

#[test]
#[ignore = "system tier"]
fn one_file_system_takes_the_right_to_mount() {
    if skipped() {
        return;
    }
    let folder = Folder::public("one-file-system-refused");
    shell(folder.top(), "chmod 777 source mount");
    let mut command = Command::new("setpriv");
    command.args(["--reuid=101", "--regid=101", "--clear-groups"]);
    let program = folder.top().join("foliocache");
    fs::copy(foliocache().get_program(), &program).unwrap();
    command.arg(&program).arg("mount");
    command.args([folder.source(), folder.mount_point()]);
    let refused = output(command.arg("--one-file-system"));
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(
        said.contains("cannot leave out what is mounted below"),
        "{said}"
    );
}
