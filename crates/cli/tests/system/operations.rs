//! Every operation that a directory supports, on a mount and on a plain directory: the results are
//! the same.
//!
//! `c/ops.c` does the work and writes a line for each operation; both transcripts are compared.
//! Lines that begin with `~` may differ, and are listed here.
//!
//! Needs FUSE, root and a C compiler.

use crate::common::{Folder, compile, no_root_or_fuse, output, run, shell, wait_for};
use rustix::fs::{FallocateFlags, copy_file_range, fallocate};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a section of `ops.c` on a mount and on a plain directory, and compares. Of the mount's
/// transcript, `expected` must be lines.
fn same_on_both(section: &str, expected: &[&str]) {
    if no_root_or_fuse() {
        return;
    }
    let folder = Folder::public(section);
    let program = folder.top().join("ops");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/ops.c");
    compile(&source, &program);
    let mounted = folder.mount(&["--allow-other"]);
    let transcript = |place: PathBuf| {
        let text = run(Command::new(&program).arg(section).arg(place));
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let plain = transcript(folder.plain());
    let inside = transcript(folder.mount_point());
    mounted.end_well();
    let mut differences = Vec::new();
    for at in 0..plain.len().max(inside.len()) {
        let (here, there) = (inside.get(at), plain.get(at));
        let excepted = here.is_some_and(|line| line.starts_with('~'));
        if here != there && !excepted {
            differences.push(format!("{at}: mount {here:?}, directory {there:?}"));
        }
    }
    assert!(differences.is_empty(), "{differences:#?}");
    let excepted = |line: &&String| line.starts_with('~');
    for line in inside.iter().filter(excepted) {
        assert!(expected.contains(&line.as_str()), "{line}");
    }
    for line in expected {
        assert!(inside.iter().any(|found| found == line), "no {line}");
    }
}

#[test]
#[ignore = "system tier"]
fn renames_with_and_without_flags() {
    same_on_both(
        "renames",
        &[
            "no replace over a name: File exists",
            "exchange file and directory: 0",
            "the open file: links 1",
            "whiteout: 0",
            "where it was: mode 20000 links 1 owner 0:0 size 0 device 0:0",
            "where it is: 1 'a'",
            "in it: 4 'axyz'",
            "~and no replace: Invalid argument",
        ],
    );
}

#[test]
#[ignore = "system tier"]
fn links_nodes_and_files_without_a_name() {
    same_on_both(
        "links",
        &[
            "ctime 1 mtime 0 same 1",
            "it holds 4095 same 1",
            "large device: mode 60600 links 1 owner 0:0 size 0 device 300:70000",
            "fifo: 7 'through'",
            "unlinked: links 0 size 2",
            "back to a name: No such file or directory",
        ],
    );
}

#[test]
#[ignore = "system tier"]
fn extended_attributes() {
    same_on_both(
        "xattrs",
        &[
            "trusted.four: 0",
            "too small: Numerical result out of range",
            "names: 6",
        ],
    );
}

#[test]
#[ignore = "system tier"]
fn times_to_the_nanosecond() {
    same_on_both(
        "times",
        &[
            "atime 1000000001.123456789 mtime 1100000002.987654321",
            "atime -1.999999999 mtime -1000000.000000001",
            "after fsync: mtime 3.000000004",
        ],
    );
}

#[test]
#[ignore = "system tier"]
fn space_holes_and_copies() {
    same_on_both(
        "space",
        &[
            "zero and keep: 0",
            "~collapse: Operation not supported",
            "~insert: Operation not supported",
            "dirty data: 4194304",
            "copy: 200000",
            "overlapping: Invalid argument",
        ],
    );
}

#[test]
#[ignore = "system tier"]
fn appends_direct_io_mappings_locks_programs_and_events() {
    same_on_both(
        "handles",
        &[
            "appended 2000 and 2000, 0 failed, 0 bad",
            "flock of another: Resource temporarily unavailable",
            "held: 1 from 100 for 100, by the parent 1",
            "range of another: Resource temporarily unavailable",
            "~unnamed file: Operation not supported",
            "~flags: Inappropriate ioctl for device",
            "script: 0",
            "cut a running program: Text file busy",
            "kept 1",
            "event 40 a",
        ],
    );
}

#[test]
#[ignore = "system tier"]
fn modes_and_access_control_lists_are_enforced() {
    same_on_both(
        "users",
        &[
            "give away: Operation not permitted",
            "to a user: user.y",
            "to root: trusted.x",
            "unlink in a sticky directory: Operation not permitted",
            "set-id after root's write: mode 106777 links 1 owner 0:0 size 4",
            "set-id after a write: mode 100777 links 1 owner 0:0 size 4",
            "listed user reads: 1",
            "unlisted user reads: Permission denied",
            "file that inherits: mode 100640 links 1 owner 106:106 size 1",
        ],
    );
}

/// A change of the data without privilege clears the set-user-id bit, and the set-group-id bit if the group may
/// execute the file or the caller is not in the group.
#[test]
#[ignore = "system tier"]
fn set_id_bits_go_as_on_the_directory() {
    same_on_both(
        "setid",
        &[
            "6777, allocate: 0, left: mode 106777 links 1 owner 0:103 size 10000",
            "6777, allocate: 0, left: mode 100777 links 1 owner 0:103 size 10000",
            "6666, allocate: 0, left: mode 100666 links 1 owner 0:103 size 10000",
            "6666, allocate: 0, left: mode 102666 links 1 owner 0:103 size 10000",
            "6666, write: 3, left: mode 100666 links 1 owner 0:103 size 4",
            "6666, copy: 3, left: mode 102666 links 1 owner 0:103 size 4",
        ],
    );
}

#[test]
#[ignore = "system tier"]
fn directories_of_100_000_names_that_change_while_they_are_read() {
    same_on_both(
        "directories",
        &[
            "found 100000, 0 twice",
            "0 places wrong",
            "0 missed, 0 twice",
            "unlinked 100000",
        ],
    );
}

/// A write with `O_DSYNC` or `O_SYNC` is in the source when it returns; another write is not, or
/// not at once.
#[test]
#[ignore = "system tier"]
fn writes_of_files_opened_for_syncing_are_in_the_source() {
    let folder = Folder::new("syncing");
    let mounted = folder.mount(&[]);
    for (name, flags) in [("dsync", 0o10_000), ("sync", 0o4_010_000)] {
        let mut options = OpenOptions::new();
        options.write(true).create(true).custom_flags(flags);
        let mut file = options.open(folder.mount_point().join(name)).unwrap();
        for round in 1..=3 {
            file.write_all(&[round; 10_000]).unwrap();
            let found = fs::read(folder.source().join(name)).unwrap();
            assert_eq!(found.len(), 10_000 * usize::from(round), "{name}");
            assert!(found.ends_with(&[round; 10_000]), "{name}");
        }
        // Space and copies too, and with them the writes of another descriptor.
        let inside = |name: &str| folder.mount_point().join(name);
        let plain = options.clone().custom_flags(0).open(inside(name)).unwrap();
        plain.write_all_at(&[4; 10_000], 0).unwrap();
        fallocate(&file, FallocateFlags::ZERO_RANGE, 100, 300).unwrap();
        let found = fs::read(folder.source().join(name)).unwrap();
        assert!(found[400..10_000] == [4; 9600], "{name}");
        assert!(found[100..400] == [0; 300], "{name}");
        fs::write(inside("from"), [5; 10_000]).unwrap();
        let from = fs::File::open(inside("from")).unwrap();
        let copied = copy_file_range(&from, None, &file, Some(&mut 40_000), 10_000);
        assert_eq!(copied, Ok(10_000), "{name}");
        let found = fs::read(folder.source().join(name)).unwrap();
        assert!(found[40_000..] == [5; 10_000], "{name}");
    }
    let mut file = fs::File::create(folder.mount_point().join("cached")).unwrap();
    file.write_all(&[1; 10_000]).unwrap();
    let cached = || fs::read(folder.source().join("cached")).unwrap().len();
    assert_eq!(cached(), 0);
    wait_for("the flusher", || cached() == 10_000);
    drop(file);
    mounted.end_well();
}

/// Where the source knows no access control lists, modes alone count.
#[test]
#[ignore = "system tier"]
fn a_source_without_lists_serves_other_users() {
    if no_root_or_fuse() {
        return;
    }
    let folder = Folder::public("no-lists");
    run(Command::new("mount")
        .args(["-t", "ramfs", "none"])
        .arg(folder.source()));
    shell(
        &folder.source(),
        "chmod 755 .; echo x > f; chgrp 103 f; chmod 640 f",
    );
    let mounted = folder.mount(&["--allow-other"]);
    let file = folder.mount_point().join("f");
    let read_as = |group: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=101", group, "--clear-groups", "cat"]);
        output(command.arg(&file)).status.success()
    };
    assert!(read_as("--regid=103"));
    assert!(!read_as("--regid=104"));
    mounted.end_well();
}
