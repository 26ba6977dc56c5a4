//! The behaviour of the mount where changes by others cause no events.
//!
//! Needs FUSE and root.

use crate::common::{Folder, Mounted, foliocache, no_root_or_fuse, shell};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::thread;
use std::time::Duration;

/// Changes in a directory that the mount's process may not read cause no events.
#[test]
#[ignore = "system tier"]
fn names_moved_to_an_unwatched_directory_are_asked_for_again() {
    if no_root_or_fuse() {
        return;
    }
    let folder = Folder::new("untold");
    let (source, place) = (folder.source(), folder.mount_point());
    shell(
        &source,
        "mkdir told untold && cd told && echo old | tee moved exchanged changed > ../untold/other && mkdir -p dir/in &&
            chmod 300 ../untold",
    );
    let mut command = Command::new("setpriv");
    command.arg("--bounding-set=-dac_override,-dac_read_search");
    command.arg(foliocache().get_program()).arg("mount");
    let mounted = Mounted::start(command.args([&source, &place]));
    shell(
        &place.join("told"),
        "stat moved exchanged changed dir dir/in ../untold/other",
    );
    shell(&place, "mv told/moved told/changed told/dir untold");
    let exchange = RenameFlags::EXCHANGE;
    let (one, other) = (place.join("told/exchanged"), place.join("untold/other"));
    renameat_with(CWD, &one, CWD, &other, exchange).unwrap();
    shell(
        &source.join("untold"),
        "test ! -e ../told/moved && mv moved gone && echo another > new && mv new other && chmod 604 changed && mv dir gone-dir",
    );
    thread::sleep(Duration::from_secs(2));
    let untold = place.join("untold");
    let mode = fs::metadata(untold.join("changed")).unwrap().mode();
    assert_eq!(mode & 0o777, 0o604);
    assert_eq!(fs::read_to_string(other).unwrap(), "another\n");
    assert_eq!(fs::read_to_string(one).unwrap(), "old\n");
    for name in ["moved", "dir"] {
        assert!(!untold.join(name).exists(), "{name}");
    }
    assert!(untold.join("gone-dir/in").exists());
    mounted.end_well();
}
