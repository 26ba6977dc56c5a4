//! Set-id bits, which a user's change of the data clears: the kernel leaves that to us.
//!
//! Needs FUSE and root.

use crate::common::{HookedFs, Mounted, mm, no_root_or_fuse, shell_as_user};
use foliocache_vfs::{FileSystem, OpContext, OpenFlags, SetAttr};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

#[test]
#[ignore = "system tier"]
fn set_id_bits_go_with_changes_of_data_by_users() {
    if no_root_or_fuse() {
        return;
    }
    let (mm, root) = (mm(), OpContext::ROOT);
    let fs = HookedFs::new(&mm);
    let set = SetAttr {
        mode: Some(0o6777),
        ..SetAttr::default()
    };
    let files = [
        "written", "added", "cut", "emptied", "punched", "copied", "roots",
    ];
    for name in files {
        let (top, flags) = (fs.root(), OpenFlags::READ_WRITE);
        let file = fs.create(&root, &top, name.as_ref(), 0o777, flags).unwrap();
        file.write_at(b"secret", 0).unwrap();
        fs.setattr(&root, file.inode(), &set).unwrap();
    }
    let mounted = Mounted::new("privileges", &mm, fs);
    let mode = |name: &str| fs::metadata(mounted.at(name)).unwrap().mode() & 0o7777;
    for name in files {
        assert_eq!(mode(name), 0o6777, "{name}");
    }
    let changes = "printf x 1<>written; printf x >>added; truncate -s 1 cut; : >emptied; fallocate -p -l 3 punched; \
        cp written copied";
    let (status, said) = shell_as_user(&mounted.point, changes);
    assert_eq!((status, said.as_str()), (Some(0), ""));
    for name in &files[..6] {
        assert_eq!(mode(name), 0o777, "{name}");
    }
    File::options()
        .write(true)
        .open(mounted.at("roots"))
        .unwrap()
        .set_len(1)
        .unwrap();
    assert_eq!(mode("roots"), 0o6777);
}
