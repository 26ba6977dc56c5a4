//! The source of a mount gets written data before a name or a privilege.
//!
//! Needs FUSE and root.

use crate::common::{Folder, Mounted, no_root_or_fuse, pattern, run, shell};
use rustix::fs::{XattrFlags, fsetxattr, getxattr, setxattr};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::thread::{self, sleep};
use std::time::Duration;

/// Nothing is written because of its age.
const OLD: [&str; 2] = ["--dirty-age", "3600"];

const MODES: [&[&str]; 6] = [
    &[],
    &["--writeback", "delayed"],
    &["--writeback", "close"],
    &["--kernel-cache", "all"],
    &["--kernel-cache", "all", "--writeback", "delayed"],
    &["--kernel-cache", "all", "--writeback", "close"],
];

/// A size that goes into batches of small files, and one that does not.
const SIZES: [usize; 2] = [6_000, 200_000];

const CAPABILITY: &str = "security.capability";

/// `cap_net_raw+ep`, as the kernel keeps it.
fn capability() -> Vec<u8> {
    [0x0200_0001u32, 1 << 13, 0, 0, 0]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect()
}

/// Kills a mount, and takes it away.
fn kill(mounted: Mounted, folder: &Folder) {
    mounted.signal("KILL");
    mounted.wait();
    run(Command::new("umount").arg("-l").arg(folder.mount_point()));
}

fn write_durably(path: &Path, content: &[u8]) {
    let mut file = File::create(path).unwrap();
    file.write_all(content).unwrap();
    file.sync_all().unwrap();
}

#[test]
#[ignore = "system tier"]
fn a_file_that_is_replaced_survives_a_kill_of_the_mount_at_once() {
    if no_root_or_fuse() {
        return;
    }
    let folder = Folder::new("replaced-killed");
    let point = folder.mount_point();
    for (mode, arguments) in MODES.iter().enumerate() {
        for (size, len) in SIZES.into_iter().enumerate() {
            for (nr, pause) in [0, 20, 100].into_iter().enumerate() {
                let mounted = folder.mount(&[arguments, &OLD[..]].concat());
                let seed = (mode * 100 + size * 10 + nr) as u64;
                let new = pattern(len, 2 + seed);
                write_durably(&point.join("f"), &pattern(5000, 1));
                fs::write(point.join("f.new"), &new).unwrap();
                fs::rename(point.join("f.new"), point.join("f")).unwrap();
                sleep(Duration::from_millis(pause));
                kill(mounted, &folder);
                let found = fs::read(folder.source().join("f")).unwrap();
                assert!(found == new, "{arguments:?} {len}: {} bytes", found.len());
            }
        }
    }
}

/// A program replaces a file again and again while the mount is killed.
#[test]
#[ignore = "system tier"]
fn a_file_that_is_being_replaced_is_whole_after_a_kill_of_the_mount() {
    if no_root_or_fuse() {
        return;
    }
    let folder = Folder::new("being-replaced");
    let (point, len) = (folder.mount_point(), SIZES[1]);
    let content = |version: u64| [&version.to_le_bytes(), &pattern(len, version)[..]].concat();
    let mut round = 0;
    for arguments in [&[][..], &["--kernel-cache", "all"]] {
        for pause in [5, 25, 40, 90] {
            let mounted = folder.mount(arguments);
            round += 1000;
            write_durably(&point.join("f"), &content(round));
            thread::scope(|threads| {
                threads.spawn(|| {
                    for version in round + 1.. {
                        let replaced = fs::write(point.join("f.new"), content(version))
                            .and_then(|()| fs::rename(point.join("f.new"), point.join("f")));
                        if replaced.is_err() {
                            break;
                        }
                    }
                });
                sleep(Duration::from_millis(pause));
                kill(mounted, &folder);
            });
            let found = fs::read(folder.source().join("f")).unwrap();
            let version = found
                .first_chunk()
                .map_or(0, |bytes| u64::from_le_bytes(*bytes));
            assert!(version >= round, "{} bytes", found.len());
            assert!(found == content(version), "{arguments:?} {version}");
        }
    }
}

#[test]
#[ignore = "system tier"]
fn readers_of_the_source_see_whole_versions_of_replaced_files() {
    if no_root_or_fuse() {
        return;
    }
    for arguments in [&[][..], &["--kernel-cache", "all"]] {
        let folder = Folder::new("replaced-read");
        let mounted = folder.mount(&[arguments, &OLD[..]].concat());
        let (point, source) = (folder.mount_point(), folder.source().join("f"));
        let versions: Vec<_> = (0..=30).map(|seed| pattern(SIZES[1], seed + 1)).collect();
        write_durably(&point.join("f"), &versions[0]);
        thread::scope(|threads| {
            let writer = threads.spawn(|| {
                for version in &versions[1..] {
                    fs::write(point.join("f.new"), version).unwrap();
                    fs::rename(point.join("f.new"), point.join("f")).unwrap();
                }
            });
            while !writer.is_finished() {
                let found = fs::read(&source).unwrap();
                let whole = versions.contains(&found);
                assert!(whole, "{arguments:?}: {} bytes", found.len());
            }
        });
        assert!(fs::read(&source).unwrap() == versions[30]);
        mounted.end_well();
    }
}

#[test]
#[ignore = "system tier"]
fn capabilities_that_are_set_after_a_write_on_a_mount_stay() {
    if no_root_or_fuse() {
        return;
    }
    let folder = Folder::new("capabilities");
    let (point, source) = (folder.mount_point(), folder.source());
    for arguments in MODES {
        let mounted = folder.mount(&[arguments, &OLD[..]].concat());
        for len in SIZES {
            let closed = point.join(format!("closed-{len}"));
            fs::write(&closed, pattern(len, 3)).unwrap();
            setxattr(&closed, CAPABILITY, &capability(), XattrFlags::empty()).unwrap();
            // As tar does it: before the close.
            let mut open = File::create(point.join(format!("open-{len}"))).unwrap();
            open.write_all(&pattern(len, 4)).unwrap();
            fsetxattr(&open, CAPABILITY, &capability(), XattrFlags::empty()).unwrap();
            open.sync_all().unwrap();
        }
        mounted.end_well();
        for name in ["closed", "open"] {
            for len in SIZES {
                let file = source.join(format!("{name}-{len}"));
                let mut found = [0; 64];
                let bytes = getxattr(&file, CAPABILITY, &mut found[..]).unwrap_or(0);
                assert_eq!(found[..bytes], capability(), "{arguments:?} {name} {len}");
            }
        }
        shell(&source, "rm *");
    }
}

/// The mount may not leave set-id bits of a file that it writes to, as one of a user may not.
#[test]
#[ignore = "system tier"]
fn set_id_bits_that_are_set_after_a_write_on_a_mount_stay() {
    if no_root_or_fuse() {
        return;
    }
    let folder = Folder::new("set-id");
    let (point, source) = (folder.mount_point(), folder.source());
    for arguments in MODES {
        let mut command = Command::new("setpriv");
        command.arg("--bounding-set=-fsetid");
        command.arg(env!("CARGO_BIN_EXE_foliocache"));
        command.arg("mount").args([&source, &point]);
        let mounted = Mounted::start(command.args(arguments).args(OLD));
        let bits = fs::Permissions::from_mode(0o6755);
        for len in SIZES {
            let closed = point.join(format!("closed-{len}"));
            fs::write(&closed, pattern(len, 3)).unwrap();
            fs::set_permissions(&closed, bits.clone()).unwrap();
            let mut open = File::create(point.join(format!("open-{len}"))).unwrap();
            open.write_all(&pattern(len, 4)).unwrap();
            open.set_permissions(bits.clone()).unwrap();
            open.sync_all().unwrap();
        }
        mounted.end_well();
        for file in fs::read_dir(&source).unwrap() {
            let file = file.unwrap();
            let mode = file.metadata().unwrap().mode() & 0o7777;
            assert_eq!(mode, 0o6755, "{arguments:?} {:?}", file.file_name());
            fs::remove_file(file.path()).unwrap();
        }
    }
}
