//! Others replace files in the source while programs open, read and map them on a mount.
//!
//! Needs FUSE and root.
#![allow(unsafe_code)]

use crate::common::{Folder, no_root_or_fuse};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Pauses between two replacements: some 30 and some 1,000 a second.
const PAUSES: [Duration; 2] = [Duration::from_millis(30), Duration::from_millis(1)];

/// How long others replace the file.
const RACE: Duration = Duration::from_secs(5);

const ESTALE: i32 = 116;

/// The contents of a version of a file: its number, again and again.
fn version(number: u64) -> Vec<u8> {
    number
        .to_le_bytes()
        .repeat(700 + (number * 7919 % 5000) as usize)
}

/// Panics if the contents are no whole version.
fn check(contents: &[u8]) {
    let number = contents
        .first_chunk()
        .map(|number| u64::from_le_bytes(*number));
    let number = number.unwrap_or_else(|| panic!("only {} bytes", contents.len()));
    assert!(
        contents == version(number),
        "no whole version, but parts of {number}"
    );
}

fn replace(path: &Path, number: u64) {
    let new = path.with_extension("new");
    fs::write(&new, version(number)).unwrap();
    fs::rename(new, path).unwrap();
}

/// As `cat` does: open, `fstat`, read until the end.
fn cat(path: &Path) -> io::Result<()> {
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    let (mut contents, mut buf) = (Vec::new(), [0; 9000]);
    loop {
        let n = file.read(&mut buf)?;
        contents.extend_from_slice(&buf[..n]);
        if n == 0 {
            break;
        }
    }
    check(&contents);
    assert_eq!(len, contents.len() as u64);
    assert_eq!(file.metadata()?.len(), len);
    Ok(())
}

/// Maps the file and reads it there.
fn map(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    let len = file.metadata()?.len() as usize;
    let (prot, flags) = (ProtFlags::READ, MapFlags::PRIVATE);
    // SAFETY: the kernel chooses the place.
    let addr = unsafe { mmap(ptr::null_mut(), len, prot, flags, &file, 0)? };
    // SAFETY: it is mapped, and a version never changes.
    check(unsafe { std::slice::from_raw_parts(addr.cast(), len) });
    // SAFETY: it is no longer in use.
    unsafe { munmap(addr, len)? };
    Ok(())
}

/// The number of the version that the file has now.
fn number(path: &Path) -> u64 {
    let mut number = [0; 8];
    File::open(path).unwrap().read_exact(&mut number).unwrap();
    u64::from_le_bytes(number)
}

/// By path alone.
fn stat(path: &Path) -> io::Result<()> {
    fs::metadata(path)?;
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    fs::symlink_metadata(path).map(drop)
}

/// Runs `act` again and again on a mount while others replace the file, for each of [`PAUSES`].
fn beside_replacement(name: &str, arguments: &[&str], act: impl Fn(&Path)) {
    if no_root_or_fuse() {
        return;
    }
    let folder = Folder::new(name);
    let (source, place) = (folder.source().join("v"), folder.mount_point().join("v"));
    replace(&source, 1);
    let mounted = folder.mount(arguments);
    for pause in PAUSES {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                // Relaxed: it only ends the loop.
                for number in (2..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                    replace(&source, number);
                    thread::sleep(pause);
                }
            });
            let _end = Stop(&stop);
            let until = Instant::now() + RACE;
            while Instant::now() < until {
                act(&place);
            }
        });
    }
    mounted.end_well();
}

/// Ends the other thread, after a panic too.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        // Relaxed: the flag publishes nothing else.
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
#[ignore = "system tier"]
fn programs_read_one_whole_version_beside_replacement() {
    beside_replacement("replaced", &[], |path| {
        cat(path).unwrap();
        map(path).unwrap();
        stat(path).unwrap();
    });
}

#[test]
#[ignore = "system tier"]
fn programs_read_one_whole_version_in_16_mib() {
    let arguments = ["--memory", "16M", "--kernel-cache", "none"];
    beside_replacement("replaced-none", &arguments, |path| {
        cat(path).unwrap();
        map(path).unwrap();
        stat(path).unwrap();
    });
}

/// Programs that list the directory have the kernel enter its names, each as it was when it was listed.
#[test]
#[ignore = "system tier"]
fn no_program_goes_back_to_an_older_file_while_others_list_the_directory() {
    if no_root_or_fuse() {
        return;
    }
    let folder = Folder::new("replaced-listed");
    let (source, top) = (folder.source().join("v"), folder.mount_point());
    for beside in 0..30 {
        fs::write(folder.source().join(format!("beside-{beside}")), "x").unwrap();
    }
    replace(&source, 1);
    let mounted = folder.mount(&[]);
    let until = Instant::now() + RACE;
    let goes_on = || Instant::now() < until;
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in (2..).take_while(|_| goes_on()) {
                replace(&source, number);
                thread::sleep(PAUSES[1]);
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                while goes_on() {
                    assert!(fs::read_dir(&top).unwrap().count() > 30);
                }
            });
        }
        for _ in 0..3 {
            scope.spawn(|| {
                let mut newest = 0;
                while goes_on() {
                    let number = number(&top.join("v"));
                    assert!(number >= newest, "{number} after {newest}");
                    newest = number;
                }
            });
        }
    });
    mounted.end_well();
}

/// Others write a file piece by piece under another name first: a listing tells the kernel of that file, too.
#[test]
#[ignore = "system tier"]
fn fstat_of_a_replacement_shows_no_half_written_file_while_others_list_the_directory() {
    if no_root_or_fuse() {
        return;
    }
    const PIECES: usize = 25;
    let folder = Folder::new("replaced-fstat");
    let (source, top) = (folder.source(), folder.mount_point());
    let write_and_rename = || {
        let new = source.join(".v");
        let mut file = File::create(&new).unwrap();
        for _ in 0..PIECES {
            file.write_all(&[b'v'; 4096]).unwrap();
        }
        fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(new, source.join("v")).unwrap();
    };
    write_and_rename();
    let mounted = folder.mount(&[]);
    let until = Instant::now() + RACE;
    let goes_on = || Instant::now() < until;
    thread::scope(|scope| {
        scope.spawn(|| {
            while goes_on() {
                write_and_rename();
                thread::sleep(PAUSES[1] / 5);
            }
        });
        for _ in 0..4 {
            scope.spawn(|| {
                while goes_on() {
                    fs::read_dir(&top).unwrap().for_each(drop);
                    let found = File::open(top.join("v")).unwrap().metadata().unwrap();
                    let wanted = (PIECES as u64 * 4096, 0o600);
                    assert_eq!((found.len(), found.mode() & 0o777), wanted);
                }
            });
        }
    });
    mounted.end_well();
}

/// The mount does not know which files are open. A program that opened a file before it was replaced, and reads it
/// afterwards for the first time, may get `ESTALE`, but never parts of two versions.
#[test]
#[ignore = "system tier"]
fn a_kernel_that_opens_files_by_itself_mixes_no_versions() {
    beside_replacement("replaced-all", &["--kernel-cache", "all"], |path| {
        if let Err(error) = cat(path) {
            assert_eq!(error.raw_os_error(), Some(ESTALE), "{error}");
        }
        stat(path).unwrap();
    });
}
