//! Cases about attributes, special nodes and inodes by number.

use super::{Case, Place};
use foliocache_sys::Errno;
use foliocache_vfs::{Device, FileKind, New, OpContext, OpenFlags, S_ISGID, SetAttr, XattrMode};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

pub(super) const CASES: &[Case] = &[
    ("permission_bits", permission_bits),
    ("owners", owners),
    ("xattrs", xattrs),
    ("statfs", statfs),
    ("nodes", nodes),
];

fn permission_bits(place: &Place<'_>) {
    let ctx = OpContext {
        umask: 0o027,
        ..OpContext::ROOT
    };
    let file = place
        .fs
        .create(
            &ctx,
            &place.dir,
            OsStr::new("file"),
            0o666,
            OpenFlags::READ_WRITE,
        )
        .expect("create");
    let mode = |inode| place.fs.getattr(inode).expect("getattr").mode;
    assert_eq!(mode(file.inode()), 0o640);
    let dir = place
        .fs
        .make(
            &ctx,
            &place.dir,
            OsStr::new("dir"),
            New::Directory { mode: 0o1777 },
        )
        .expect("mkdir");
    assert_eq!(mode(&dir), 0o1750);
    for bits in [0, 0o777, 0o4711, 0o600] {
        let set = SetAttr {
            mode: Some(bits),
            ..SetAttr::default()
        };
        let attr = place.fs.setattr(&ctx, file.inode(), &set).expect("setattr");
        assert_eq!(attr.mode, bits);
        assert_eq!(mode(file.inode()), bits);
    }
}

fn owners(place: &Place<'_>) {
    let root = OpContext::ROOT;
    let ctx = OpContext {
        uid: 1234,
        gid: 5678,
        ..root
    };
    let owner = |inode| {
        let attr = place.fs.getattr(inode).expect("getattr");
        (attr.uid, attr.gid)
    };
    let dir = place
        .fs
        .make(
            &ctx,
            &place.dir,
            OsStr::new("dir"),
            New::Directory { mode: 0o755 },
        )
        .expect("mkdir");
    if owner(&dir) != (1234, 5678) {
        // The process may not give files away: everything is its own.
        return;
    }
    let file = place
        .fs
        .create(
            &ctx,
            &dir,
            OsStr::new("file"),
            0o4755,
            OpenFlags::READ_WRITE,
        )
        .expect("create");
    assert_eq!(owner(file.inode()), (1234, 5678));
    assert_eq!(
        place.fs.getattr(file.inode()).expect("getattr").mode,
        0o4755
    );
    let link = place
        .fs
        .make(
            &ctx,
            &dir,
            OsStr::new("link"),
            New::Symlink(OsStr::new("x")),
        )
        .expect("symlink");
    assert_eq!(owner(&link), (1234, 5678));
    let set = SetAttr {
        uid: Some(1),
        gid: Some(2),
        ..SetAttr::default()
    };
    place
        .fs
        .setattr(&root, file.inode(), &set)
        .expect("setattr");
    assert_eq!(owner(file.inode()), (1, 2));

    // A set-group-id directory hands its group down, and its bit to directories.
    let set = SetAttr {
        mode: Some(0o2755),
        gid: Some(77),
        ..SetAttr::default()
    };
    place.fs.setattr(&root, &dir, &set).expect("setattr");
    let set = SetAttr {
        mode: Some(0o2755),
        ..SetAttr::default()
    };
    place.fs.setattr(&root, &dir, &set).expect("setattr");
    let sub = place
        .fs
        .make(
            &ctx,
            &dir,
            OsStr::new("sub"),
            New::Directory { mode: 0o755 },
        )
        .expect("mkdir");
    assert_eq!(owner(&sub), (1234, 77));
    assert_ne!(place.fs.getattr(&sub).expect("getattr").mode & S_ISGID, 0);
}

fn xattrs(place: &Place<'_>) {
    let inode = place.create("file").inode().clone();
    let (name, other) = (OsStr::new("user.one"), OsStr::new("user.two"));
    match place
        .fs
        .setxattr(&inode, name, Some(b"value"), XattrMode::Set)
    {
        // A source without extended attributes says so everywhere alike.
        Err(Errno::EOPNOTSUPP) => return,
        done => done.expect("setxattr"),
    }
    assert_eq!(place.fs.getxattr(&inode, name).expect("getxattr"), b"value");
    assert_eq!(place.fs.getxattr(&inode, other), Err(Errno::ENODATA));
    let set = |name, mode| place.fs.setxattr(&inode, name, Some(b"new"), mode);
    assert_eq!(set(name, XattrMode::Create), Err(Errno::EEXIST));
    assert_eq!(set(other, XattrMode::Replace), Err(Errno::ENODATA));
    assert_eq!(set(name, XattrMode::Replace), Ok(()));
    assert_eq!(set(other, XattrMode::Create), Ok(()));
    let mut names = place.fs.listxattr(&inode).expect("listxattr");
    names.retain(|name| name.as_bytes().starts_with(b"user."));
    names.sort();
    assert_eq!(names, [name, other]);
    assert_eq!(place.fs.getxattr(&inode, name).expect("getxattr"), b"new");
    place
        .fs
        .setxattr(&inode, name, None, XattrMode::Set)
        .expect("removexattr");
    assert_eq!(
        place.fs.setxattr(&inode, name, None, XattrMode::Set),
        Err(Errno::ENODATA)
    );
}

fn statfs(place: &Place<'_>) {
    let room = place.fs.statfs().expect("statfs");
    assert!(room.block_size >= 512 && room.blocks > 0 && room.max_name >= 255);
    assert!(room.blocks_free <= room.blocks && room.blocks_available <= room.blocks);
}

fn nodes(place: &Place<'_>) {
    let ctx = OpContext::ROOT;
    for kind in [FileKind::Fifo, FileKind::Socket, FileKind::Regular] {
        let name = format!("{kind:?}");
        let made = place
            .fs
            .make(
                &ctx,
                &place.dir,
                OsStr::new(&name),
                New::Node {
                    kind,
                    mode: 0o600,
                    rdev: Device::default(),
                },
            )
            .expect("mknod");
        assert_eq!(place.fs.getattr(&made).expect("getattr").kind, kind);
        if kind != FileKind::Regular {
            let opened = place.fs.open(&ctx, &made, OpenFlags::READ);
            assert_eq!(opened.map(drop), Err(Errno::ENXIO));
        }
    }
    let rdev = Device { major: 1, minor: 3 };
    match place.fs.make(
        &ctx,
        &place.dir,
        OsStr::new("null"),
        New::Node {
            kind: FileKind::CharDevice,
            mode: 0o600,
            rdev,
        },
    ) {
        Ok(made) => assert_eq!(place.fs.getattr(&made).expect("getattr").rdev, rdev),
        Err(error) => assert_eq!(error, Errno::EPERM),
    }
}
