//! Calls with odd paths: on a file system of ours, and on the kernel's tmpfs.
//!
//! # Model
//!
//! Everything of [`World`]: results, error numbers and trees must be the same. Here the paths have arbitrary bytes,
//! names of the greatest length and longer, dots, repeated slashes, and symbolic links among them.

use super::canary;
use crate::steps::{At, HELD, Step};
use crate::world::{Held, Ours, World};
use arbitrary::{Result, Unstructured};
use foliocache_vfs::RenameMode;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// A path or a symbolic link's target. A NUL ends paths of the kernel, so there is none.
fn path(u: &mut Unstructured<'_>) -> Result<OsString> {
    let mut path = Vec::new();
    for _ in 0..=u.arbitrary::<u8>()? % 4 {
        match u.arbitrary::<u8>()? % 32 {
            0 => path.extend([b'n'; 255]),
            1 => path.extend([b'n'; 256]),
            2 | 3 => path.push(b'.'),
            4..=6 => path.extend(b".."),
            7 => path.extend(b"..."),
            8..=10 => {
                for _ in 0..=u.arbitrary::<u8>()? % 4 {
                    path.push(u.arbitrary::<u8>()?.max(1));
                }
            }
            11 => path.extend("a/".repeat(2047).bytes()),
            12 => {}
            13 => path.extend([0xff; 200]),
            word => path.push(b'a' + word % 5),
        }
        match u.arbitrary::<u8>()? % 8 {
            0 => break,
            1 => path.extend(b"//"),
            _ => path.push(b'/'),
        }
    }
    if u.arbitrary::<u8>()? % 8 != 0 {
        while path.last() == Some(&b'/') {
            path.pop();
        }
    }
    Ok(OsString::from_vec(path))
}

/// Where the top of one is, the other has a directory of another name: paths begin below it.
fn at(u: &mut Unstructured<'_>) -> Result<At> {
    let start = match u.arbitrary::<u8>()? {
        n if n % 5 == 0 => Some(usize::from(n / 5) % HELD),
        _ => None,
    };
    Ok(At {
        start,
        path: path(u)?,
    })
}

fn mode(u: &mut Unstructured<'_>) -> Result<u32> {
    Ok(u32::from(u.arbitrary::<u16>()?) & 0o1777)
}

fn step(u: &mut Unstructured<'_>) -> Result<Step> {
    let kind = u.arbitrary::<u8>()? % 32;
    let at_first = at(u)?;
    Ok(match kind {
        0..=5 => {
            let how = u.arbitrary::<u8>()?;
            Step::Open {
                at: at_first,
                create: how & 3 != 0,
                exclusive: how & 12 == 4,
                truncate: how & 16 != 0,
                follow: how & 32 != 0,
            }
        }
        6..=10 => Step::Mkdir(at_first, mode(u)?),
        11 => Step::Fifo(at_first, mode(u)?),
        12..=14 => Step::Symlink(path(u)?, at_first),
        15 | 16 => Step::Link {
            from: at_first,
            follow: u.arbitrary()?,
            to: at(u)?,
        },
        17 | 18 => Step::Unlink(at_first),
        19 => Step::Rmdir(at_first),
        20..=23 => Step::Rename {
            from: at_first,
            to: at(u)?,
            mode: [
                RenameMode::Replace,
                RenameMode::Replace,
                RenameMode::NoReplace,
                RenameMode::Exchange,
            ][usize::from(u.arbitrary::<u8>()? % 4)],
        },
        24..=26 => Step::Stat {
            at: at_first,
            follow: u.arbitrary()?,
        },
        27 => Step::Readlink(at_first),
        28 => Step::Readdir(at_first),
        29 => match u.arbitrary::<u8>()? % 2 {
            0 => Step::Truncate(at_first, u.arbitrary::<u16>()?.into()),
            _ => Step::Chmod(at_first, mode(u)?),
        },
        30 => Step::Hold(usize::from(u.arbitrary::<u8>()?) % HELD, at_first),
        _ => Step::StatHeld(usize::from(u.arbitrary::<u8>()?) % HELD),
    })
}

/// A path that begins at `/` leads out on one side, and is refused on the other.
fn leaves(step: &Step) -> bool {
    let out = |path: &OsString| path.as_bytes().starts_with(b"/");
    match step {
        Step::Symlink(target, at) => out(target) || out(&at.path),
        Step::Link { from, to, .. } | Step::Rename { from, to, .. } => {
            out(&from.path) || out(&to.path)
        }
        Step::Open { at, .. }
        | Step::Mkdir(at, _)
        | Step::Fifo(at, _)
        | Step::Unlink(at)
        | Step::Rmdir(at)
        | Step::Stat { at, .. }
        | Step::Readlink(at)
        | Step::Readdir(at)
        | Step::Truncate(at, _)
        | Step::Chmod(at, _)
        | Step::Hold(_, at) => out(&at.path),
        Step::StatHeld(_) => false,
    }
}

/// The operation that the canary forbids: a directory in another one, with a non-UTF-8 byte in its
/// name.
fn is_canary(step: &Step) -> bool {
    let Step::Mkdir(at, _) = step else {
        return false;
    };
    let path = at.path.as_bytes();
    let above = path.iter().rposition(|byte| *byte == b'/');
    above.is_some_and(|above| path[above..].iter().any(|byte| *byte >= 0x80))
}

pub(crate) fn run(bytes: &[u8]) {
    let mut u = Unstructured::new(bytes);
    let ours = match u.arbitrary::<u8>() {
        Ok(n) if n % 4 == 0 => Ours::DirFs,
        Ok(n) if n % 4 == 1 => Ours::DirFsDoubted,
        _ => Ours::MemFs,
    };
    let world = World::new(ours, Path::new("/dev/shm"));
    let mut held = Held::default();
    let mut steps = Vec::new();
    while !u.is_empty() && steps.len() < 60 {
        let Ok(step) = step(&mut u) else { break };
        if leaves(&step) {
            continue;
        }
        let done = world.step(&mut held, &step);
        assert!(
            !(canary() && is_canary(&step) && done == Ok(true)),
            "the canary of paths was found"
        );
        steps.push(step);
        if let Err(how) = done {
            panic!("{ours:?}, the last of {steps:#?}: {how}");
        }
    }
    if let Err(how) = world.compare_trees() {
        panic!("{ours:?}, after {steps:#?}: {how}");
    }
}
