//! The two ways of opening a path beneath a directory agree.

use std::os::fd::AsFd;
use std::path::Path;

use super::*;

#[test]
fn with_and_without_openat2() {
    let temp = tempfile::tempdir().unwrap();
    let root = fd::open(temp.path(), OFlags::PATH | OFlags::DIRECTORY, 0).unwrap();
    let root = root.as_fd();
    mkdirat(root, OsStr::new("a"), 0o755).unwrap();
    let a = openat(root, OsStr::new("a"), OFlags::PATH, 0).unwrap();
    mkdirat(a.as_fd(), OsStr::new("b"), 0o755).unwrap();
    mknodat(a.as_fd(), OsStr::new("f"), FileKind::Regular, 0o600, 0).unwrap();
    symlinkat(OsStr::new("/"), a.as_fd(), OsStr::new("out")).unwrap();
    symlinkat(OsStr::new("a"), root, OsStr::new("in")).unwrap();
    let read = OFlags::RDONLY;
    let link = OFlags::PATH | OFlags::NOFOLLOW;
    let cases = [
        ("a/f", read, Ok(FileKind::Regular)),
        ("./a//./f", read, Ok(FileKind::Regular)),
        ("a/b", read, Ok(FileKind::Directory)),
        (
            "a/b",
            OFlags::PATH | OFlags::DIRECTORY,
            Ok(FileKind::Directory),
        ),
        (".", OFlags::PATH, Ok(FileKind::Directory)),
        ("a/out", link, Ok(FileKind::Symlink)),
        ("a/out", read, Err(Errno::ELOOP)),
        ("a/out", OFlags::PATH, Err(Errno::ELOOP)),
        ("a/out/etc", read, Err(Errno::ELOOP)),
        ("in/f", read, Err(Errno::ELOOP)),
        ("a/f/g", read, Err(Errno::ENOTDIR)),
        ("a/none", read, Err(Errno::ENOENT)),
        ("none/f", read, Err(Errno::ENOENT)),
        ("", read, Err(Errno::ENOENT)),
    ];
    for (path, flags, expected) in cases {
        let path = Path::new(path);
        let kind = |fd: Result<OwnedFd, Errno>| Ok(fd::fstat(fd?.as_fd())?.kind());
        let one = kind(open_beneath(root, path, flags, 0));
        let two = kind(step_beneath(root, path, flags, 0));
        assert_eq!((one, two), (expected, expected), "{path:?} {flags:?}");
    }
    for path in ["..", "a/..", "/", "/etc", "a/../a/f"] {
        let refused = open_beneath(root, Path::new(path), read, 0);
        assert_eq!(refused.unwrap_err(), Errno::EXDEV, "{path}");
    }
}
