//! Cases about names, links, directories and attributes.

use super::{Case, Place};
use crate::common::{read_all, write_all};
use foliocache_sys::Errno;
use foliocache_vfs::{
    Device, FileKind, New, OpContext, OpenFlags, ROOT_INO, Remove, RenameMode, SlabArc,
};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

pub(super) const CASES: &[Case] = &[
    ("lookup_gives_one_inode", lookup_gives_one_inode),
    ("dot_and_dot_dot", dot_and_dot_dot),
    ("strange_names", strange_names),
    ("create_over_names", create_over_names),
    ("directories", directories),
    ("unlink_and_rmdir_errors", unlink_and_rmdir_errors),
    ("rename_over", rename_over),
    ("rename_between_directories", rename_between_directories),
    ("rename_modes", rename_modes),
    ("rename_leaves_a_whiteout", rename_leaves_a_whiteout),
    ("rename_of_dirty_file", rename_of_dirty_file),
    ("hard_links", hard_links),
    ("symlinks", symlinks),
    ("readdir_from_offsets", readdir_from_offsets),
    ("readdir_while_changing", readdir_while_changing),
];

fn lookup_gives_one_inode(place: &Place<'_>) {
    let file = place.create("file");
    let inode = place.lookup("file").expect("lookup");
    assert!(SlabArc::ptr_eq(&inode, file.inode()));
    assert_eq!(place.lookup("missing").map(drop), Err(Errno::ENOENT));
    let through_file = place.fs.lookup(&inode, OsStr::new("x"));
    assert_eq!(through_file.map(drop), Err(Errno::ENOTDIR));
    assert_eq!(place.fs.getattr(&inode).expect("getattr").ino, inode.ino());
}

fn dot_and_dot_dot(place: &Place<'_>) {
    let sub = place.mkdir("sub");
    assert!(SlabArc::ptr_eq(&place.lookup(".").expect("."), &place.dir));
    assert!(SlabArc::ptr_eq(
        &place.fs.lookup(&sub, OsStr::new("..")).expect(".."),
        &place.dir
    ));
    let root = place.fs.root();
    assert_eq!(root.ino(), ROOT_INO);
    assert_eq!(
        place.fs.lookup(&root, OsStr::new("..")).expect("..").ino(),
        ROOT_INO
    );
}

fn strange_names(place: &Place<'_>) {
    let ctx = OpContext::ROOT;
    let longest = [b'n'; 255];
    let names: [&[u8]; 6] = [
        b"\xff\xfe not utf-8",
        &longest,
        b"new\nline",
        b" ",
        b"...",
        "größe".as_bytes(),
    ];
    for name in names {
        let name = OsStr::from_bytes(name);
        let file = place
            .fs
            .create(&ctx, &place.dir, name, 0o644, OpenFlags::READ_WRITE)
            .unwrap_or_else(|error| panic!("{name:?}: {error}"));
        write_all(&file, name.as_bytes(), 0);
        let inode = place.fs.lookup(&place.dir, name).expect("lookup");
        assert!(SlabArc::ptr_eq(&inode, file.inode()));
    }
    let stream = place.fs.opendir(&place.dir).expect("opendir");
    let found: BTreeSet<_> = stream
        .read_all()
        .expect("readdir")
        .into_iter()
        .map(|entry| entry.name)
        .collect();
    for name in names {
        assert!(found.contains(OsStr::from_bytes(name)));
    }
    for (name, error) in [
        (&[b'n'; 256] as &[u8], Errno::ENAMETOOLONG),
        (b"", Errno::ENOENT),
        (b"a/b", Errno::EINVAL),
        (b"nul\0nul", Errno::EINVAL),
        (b"..", Errno::EINVAL),
        (b".", Errno::EINVAL),
    ] {
        let name = OsStr::from_bytes(name);
        let made = place
            .fs
            .make(&ctx, &place.dir, name, New::Directory { mode: 0o755 });
        assert_eq!(made.map(drop), Err(error), "{name:?}");
        let renamed = place.fs.rename(
            &place.dir,
            OsStr::new(" "),
            &place.dir,
            name,
            RenameMode::Replace,
        );
        assert_eq!(renamed, Err(error), "{name:?}");
    }
}

fn create_over_names(place: &Place<'_>) {
    let ctx = OpContext::ROOT;
    drop(place.create("file"));
    place.mkdir("dir");
    place
        .fs
        .make(
            &ctx,
            &place.dir,
            OsStr::new("link"),
            New::Symlink(OsStr::new("file")),
        )
        .expect("symlink");
    for name in ["file", "dir", "link"] {
        let flags = OpenFlags::READ_WRITE.truncate();
        let name = OsStr::new(name);
        let made = place.fs.create(&ctx, &place.dir, name, 0o644, flags);
        assert_eq!(made.map(drop), Err(Errno::EEXIST), "{name:?}");
    }
}

fn directories(place: &Place<'_>) {
    let ctx = OpContext::ROOT;
    let sub = place.mkdir("sub");
    assert_eq!(sub.kind(), FileKind::Directory);
    let again = place.fs.make(
        &ctx,
        &place.dir,
        OsStr::new("sub"),
        New::Directory { mode: 0o755 },
    );
    assert_eq!(again.map(drop), Err(Errno::EEXIST));
    let below = place
        .fs
        .make(
            &ctx,
            &sub,
            OsStr::new("below"),
            New::Directory { mode: 0o700 },
        )
        .expect("mkdir");
    assert_eq!(place.fs.getattr(&below).expect("getattr").mode, 0o700);
    assert_eq!(
        place
            .fs
            .remove(&place.dir, OsStr::new("sub"), Remove::Directory),
        Err(Errno::ENOTEMPTY)
    );
    assert_eq!(
        place
            .fs
            .remove(&sub, OsStr::new("below"), Remove::Directory),
        Ok(())
    );
    assert_eq!(
        place
            .fs
            .remove(&place.dir, OsStr::new("sub"), Remove::Directory),
        Ok(())
    );
    assert_eq!(place.names(), Vec::<String>::new());
    // A removed directory accepts no new files.
    let in_dead = place
        .fs
        .make(&ctx, &sub, OsStr::new("x"), New::Directory { mode: 0o755 });
    assert_eq!(in_dead.map(drop), Err(Errno::ENOENT));
    place
        .fs
        .opendir(&place.dir)
        .expect("opendir")
        .fsync()
        .expect("fsync of a directory");
}

fn unlink_and_rmdir_errors(place: &Place<'_>) {
    drop(place.create("file"));
    place.mkdir("dir");
    assert_eq!(
        place.fs.remove(&place.dir, OsStr::new("dir"), Remove::File),
        Err(Errno::EISDIR)
    );
    assert_eq!(
        place
            .fs
            .remove(&place.dir, OsStr::new("file"), Remove::Directory),
        Err(Errno::ENOTDIR)
    );
    assert_eq!(
        place
            .fs
            .remove(&place.dir, OsStr::new("missing"), Remove::File),
        Err(Errno::ENOENT)
    );
    assert_eq!(
        place
            .fs
            .remove(&place.dir, OsStr::new("missing"), Remove::Directory),
        Err(Errno::ENOENT)
    );
    assert_eq!(
        place
            .fs
            .remove(&place.dir, OsStr::new(".."), Remove::Directory),
        Err(Errno::ENOTEMPTY)
    );
    assert_eq!(
        place
            .fs
            .remove(&place.dir, OsStr::new("."), Remove::Directory),
        Err(Errno::EINVAL)
    );
    let file = place.lookup("file").expect("lookup");
    assert_eq!(place.fs.opendir(&file).map(drop), Err(Errno::ENOTDIR));
    assert_eq!(place.fs.readlink(&file).map(drop), Err(Errno::EINVAL));
    assert_eq!(place.names(), ["dir", "file"]);
}

fn rename(place: &Place<'_>, from: &str, to: &str, mode: RenameMode) -> Result<(), Errno> {
    place.fs.rename(
        &place.dir,
        OsStr::new(from),
        &place.dir,
        OsStr::new(to),
        mode,
    )
}

fn rename_over(place: &Place<'_>) {
    let (one, two) = (place.create("one"), place.create("two"));
    write_all(&one, b"content of one", 0);
    write_all(&two, b"content of two", 0);
    rename(place, "one", "two", RenameMode::Replace).expect("rename");
    assert_eq!(place.names(), ["two"]);
    assert!(SlabArc::ptr_eq(
        &place.lookup("two").expect("lookup"),
        one.inode()
    ));
    assert_eq!(
        read_all(&two),
        b"content of two",
        "what was replaced lives in its handle"
    );
    assert_eq!(place.fs.getattr(two.inode()).expect("getattr").nlink, 0);
    drop((one, two));
    assert_eq!(
        read_all(&place.open("two", OpenFlags::READ)),
        b"content of one"
    );
    rename(place, "two", "two", RenameMode::Replace).expect("rename onto itself");

    place.mkdir("dir");
    assert_eq!(
        rename(place, "two", "dir", RenameMode::Replace),
        Err(Errno::EISDIR)
    );
    assert_eq!(
        rename(place, "dir", "two", RenameMode::Replace),
        Err(Errno::ENOTDIR)
    );
    assert_eq!(
        rename(place, "missing", "x", RenameMode::Replace),
        Err(Errno::ENOENT)
    );
    let full = place.mkdir("full");
    place
        .fs
        .make(
            &OpContext::ROOT,
            &full,
            OsStr::new("x"),
            New::Directory { mode: 0o755 },
        )
        .expect("mkdir");
    assert_eq!(
        rename(place, "dir", "full", RenameMode::Replace),
        Err(Errno::ENOTEMPTY)
    );
    rename(place, "full", "dir", RenameMode::Replace).expect("over an empty directory");
    assert_eq!(place.names(), ["dir", "two"]);
}

fn rename_between_directories(place: &Place<'_>) {
    let ctx = OpContext::ROOT;
    let (a, b) = (place.mkdir("a"), place.mkdir("b"));
    let sub = place
        .fs
        .make(&ctx, &a, OsStr::new("sub"), New::Directory { mode: 0o755 })
        .expect("mkdir");
    let file = place
        .fs
        .create(&ctx, &sub, OsStr::new("file"), 0o644, OpenFlags::READ_WRITE)
        .expect("create");
    write_all(&file, b"moved along", 0);
    let (sub_name, new) = (OsStr::new("sub"), OsStr::new("moved"));
    place
        .fs
        .rename(&a, sub_name, &b, new, RenameMode::Replace)
        .expect("rename");
    assert!(SlabArc::ptr_eq(
        &place.fs.lookup(&b, new).expect("lookup"),
        &sub
    ));
    assert!(SlabArc::ptr_eq(
        &place.fs.lookup(&sub, OsStr::new("..")).expect(".."),
        &b
    ));
    file.fsync().expect("fsync");
    assert_eq!(read_all(&file), b"moved along");
    let found = place.fs.lookup(&sub, OsStr::new("file")).expect("lookup");
    assert!(SlabArc::ptr_eq(&found, file.inode()));
    let into_itself = place.fs.rename(
        &place.dir,
        OsStr::new("b"),
        &sub,
        OsStr::new("x"),
        RenameMode::Replace,
    );
    assert_eq!(into_itself, Err(Errno::EINVAL));
    assert_eq!(
        place.fs.getattr(&place.dir).expect("getattr").kind,
        FileKind::Directory
    );
}

fn rename_modes(place: &Place<'_>) {
    let (one, two) = (place.create("one"), place.create("two"));
    write_all(&one, b"1", 0);
    write_all(&two, b"22", 0);
    assert_eq!(
        rename(place, "one", "two", RenameMode::NoReplace),
        Err(Errno::EEXIST)
    );
    match rename(place, "one", "two", RenameMode::Exchange) {
        Ok(()) => {
            assert!(SlabArc::ptr_eq(
                &place.lookup("two").expect("lookup"),
                one.inode()
            ));
            assert!(SlabArc::ptr_eq(
                &place.lookup("one").expect("lookup"),
                two.inode()
            ));
            assert_eq!(read_all(&place.open("one", OpenFlags::READ)), b"22");
        }
        Err(error) => assert_eq!(error, Errno::EINVAL, "not every source can exchange"),
    }
    assert_eq!(
        rename(place, "one", "missing", RenameMode::Exchange),
        Err(Errno::ENOENT)
    );
    rename(place, "one", "free", RenameMode::NoReplace).expect("rename");
    assert_eq!(place.names(), ["free", "two"]);
}

fn rename_leaves_a_whiteout(place: &Place<'_>) {
    let file = place.create("old");
    write_all(&file, &[5; 20_000], 0);
    match rename(place, "old", "new", RenameMode::Whiteout) {
        Ok(()) => {
            let whiteout = place.lookup("old").expect("lookup");
            let attr = place.fs.getattr(&whiteout).expect("getattr");
            assert_eq!(
                (attr.kind, attr.rdev),
                (FileKind::CharDevice, Device::default())
            );
            assert_eq!(place.names(), ["new", "old"]);
            rename(place, "new", "old", RenameMode::Replace).expect("over a whiteout");
        }
        Err(error) => assert_eq!(error, Errno::EINVAL, "not every source makes whiteouts"),
    }
    assert_eq!(place.names(), ["old"]);
    let found = place.lookup("old").expect("lookup");
    assert!(SlabArc::ptr_eq(&found, file.inode()));
    file.fsync().expect("fsync");
    assert_eq!(read_all(&place.open("old", OpenFlags::READ)), [5; 20_000]);
}

fn rename_of_dirty_file(place: &Place<'_>) {
    let file = place.create("old");
    write_all(&file, &[5; 20_000], 0);
    drop(file);
    rename(place, "old", "new", RenameMode::Replace).expect("rename");
    place.fs.sync_fs().expect("sync");
    assert_eq!(read_all(&place.open("new", OpenFlags::READ)), [5; 20_000]);
}

fn hard_links(place: &Place<'_>) {
    let file = place.create("one");
    write_all(&file, b"shared", 0);
    let inode = file.inode().clone();
    place
        .fs
        .link(&inode, &place.dir, OsStr::new("two"))
        .expect("link");
    assert!(SlabArc::ptr_eq(
        &place.lookup("two").expect("lookup"),
        &inode
    ));
    assert_eq!(place.fs.getattr(&inode).expect("getattr").nlink, 2);
    assert_eq!(
        place.fs.link(&inode, &place.dir, OsStr::new("two")),
        Err(Errno::EEXIST)
    );
    assert_eq!(
        place.fs.link(&place.dir, &place.dir, OsStr::new("x")),
        Err(Errno::EPERM)
    );
    place
        .fs
        .remove(&place.dir, OsStr::new("one"), Remove::File)
        .expect("unlink");
    drop(file);
    assert_eq!(place.fs.getattr(&inode).expect("getattr").nlink, 1);
    let file = place.open("two", OpenFlags::READ_WRITE);
    assert_eq!(read_all(&file), b"shared");
    // Renaming one name of a file onto another does nothing.
    place
        .fs
        .link(&inode, &place.dir, OsStr::new("three"))
        .expect("link");
    rename(place, "two", "three", RenameMode::Replace).expect("rename");
    assert_eq!(place.names(), ["three", "two"]);
    place
        .fs
        .remove(&place.dir, OsStr::new("two"), Remove::File)
        .expect("unlink");
    place
        .fs
        .remove(&place.dir, OsStr::new("three"), Remove::File)
        .expect("unlink");
    assert_eq!(
        place.fs.link(&inode, &place.dir, OsStr::new("again")),
        Err(Errno::ENOENT)
    );
}

fn symlinks(place: &Place<'_>) {
    let ctx = OpContext::ROOT;
    for target in ["file", "/etc/passwd", "../../../..", "\u{fffd} missing"] {
        let link = place
            .fs
            .make(
                &ctx,
                &place.dir,
                OsStr::new("link"),
                New::Symlink(OsStr::new(target)),
            )
            .expect("symlink");
        assert_eq!(link.kind(), FileKind::Symlink);
        assert_eq!(place.fs.readlink(&link).expect("readlink"), target);
        assert_eq!(
            place.fs.getattr(&link).expect("getattr").size,
            target.len() as u64
        );
        let opened = place.fs.open(&ctx, &link, OpenFlags::READ);
        assert_eq!(opened.map(drop), Err(Errno::ELOOP));
        let through = place.fs.lookup(&link, OsStr::new("x"));
        assert_eq!(through.map(drop), Err(Errno::ENOTDIR));
        place
            .fs
            .remove(&place.dir, OsStr::new("link"), Remove::File)
            .expect("unlink");
    }
    let empty = place.fs.make(
        &ctx,
        &place.dir,
        OsStr::new("link"),
        New::Symlink(OsStr::new("")),
    );
    assert_eq!(empty.map(drop), Err(Errno::ENOENT));
}

fn readdir_from_offsets(place: &Place<'_>) {
    for at in 0..300 {
        drop(place.create(&format!("file {at}")));
    }
    let stream = place.fs.opendir(&place.dir).expect("opendir");
    let all = stream.read_all().expect("readdir");
    assert_eq!(all.len(), 302, "with . and ..");
    // Three at a time, going on at the offset of the last one each time, with a new handle.
    let (mut offset, mut names) = (0, Vec::new());
    loop {
        let stream = place.fs.opendir(&place.dir).expect("opendir");
        let before = names.len();
        stream
            .read(offset, &mut |entry| {
                if names.len() - before == 3 {
                    return false;
                }
                offset = entry.next_offset;
                names.push(entry.name.to_owned());
                true
            })
            .expect("readdir");
        if names.len() == before {
            break;
        }
    }
    let whole: Vec<_> = all.into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, whole);
    // An offset that no entry can have.
    let beyond = stream.read(u64::MAX, &mut |entry| panic!("{:?}", entry.name));
    assert!(matches!(beyond, Ok(()) | Err(Errno::EINVAL)), "{beyond:?}");
}

fn readdir_while_changing(place: &Place<'_>) {
    for at in 0..200 {
        drop(place.create(&format!("stays {at}")));
        drop(place.create(&format!("goes {at}")));
    }
    let stream = place.fs.opendir(&place.dir).expect("opendir");
    let (mut seen, mut turn, mut offset, mut done) = (Vec::new(), 0, 0, false);
    while !done {
        let mut taken = 0;
        done = true;
        stream
            .read(offset, &mut |entry| {
                if taken == 20 {
                    done = false;
                    return false;
                }
                taken += 1;
                offset = entry.next_offset;
                seen.push(entry.name.to_string_lossy().into_owned());
                true
            })
            .expect("readdir");
        for at in turn * 10..turn * 10 + 10 {
            let _ = place
                .fs
                .remove(&place.dir, OsStr::new(&format!("goes {at}")), Remove::File);
            drop(place.create(&format!("comes {at}")));
        }
        turn += 1;
        assert!(turn < 1000, "reading a directory that grows must end");
    }
    for at in 0..200 {
        let name = format!("stays {at}");
        assert_eq!(
            seen.iter().filter(|&found| *found == name).count(),
            1,
            "{name}"
        );
    }
}
