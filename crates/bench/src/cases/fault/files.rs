//! Files for the loop: the kernel's and ours, all of them in memory.

use foliocache::{Cache, CacheBuilder, HugePages, LockedAccess, MapAccess, MappingFaults};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::cases::prelude::*;
use crate::mapped::{Kernels, Mapped, page_faults};

/// Bytes of a write that makes the largest folios.
pub(super) const LARGE: usize = 4 * MIB;

/// The least bound of a cache that makes folios of 2 MiB, and something to spare.
const LEAST_BOUND: usize = 160 * MIB;

/// The kernel's default.
const DIRTY_EXPIRE: Duration = Duration::from_secs(30);

type Map = Box<dyn Fn() -> io::Result<Box<dyn Mapped>> + Send + Sync>;
type Count = Box<dyn Fn() -> io::Result<u64> + Send + Sync>;

/// A file that a loop maps.
pub(super) struct LoopFile {
    /// Maps all of it, for loads and stores.
    pub(super) map: Map,
    /// Faults so far; where the kernel resolves them, those of the process.
    pub(super) faults: Count,
    pub(super) len: usize,
    /// Of ours: whether it has huge pages.
    pub(super) huge: Option<HugePages>,
}

/// A new file of the kernel's; written in large pieces, or not at all.
pub(super) fn kernels(path: &Path, len: usize, written: bool) -> io::Result<LoopFile> {
    let mut options = fs::File::options();
    let file = options.read(true).write(true).create_new(true).open(path)?;
    file.set_len(len as u64)?;
    if written {
        fill(len, LARGE, |piece, pos| file.write_all_at(piece, pos))?;
    }
    Ok(LoopFile {
        map: Box::new(move || Ok(Box::new(Kernels::new(&file, len)?))),
        faults: Box::new(|| Ok(page_faults()?.minor)),
        len,
        huge: None,
    })
}

/// The kind of a file of ours.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Most bytes that a fault maps.
    Around(u32),
    /// In huge pages.
    Huge,
    /// Kept in memory, and mapped without faults of ours.
    Locked(LockedAccess),
}

/// A new file of ours in a new cache, written in pieces, in a directory or in memory.
pub(super) fn ours(
    folder: Option<&Folder>,
    len: usize,
    faults: MappingFaults,
    kind: Kind,
    piece: usize,
) -> foliocache::Result<LoopFile> {
    let builder = Cache::builder().mapping_faults(faults);
    let builder: CacheBuilder = match kind {
        Kind::Around(around) => builder.fault_around_bytes(around),
        Kind::Huge => builder.huge_pages(true),
        Kind::Locked(_) => builder.fault_around_bytes(2 << 20),
    };
    let cache = builder
        .memory((4 * len).max(LEAST_BOUND) as u64)
        // All of the file stays dirty, as it does in the kernel's cache.
        .dirty_background_percent(60)
        .dirty_percent(80)
        .dirty_expire(DIRTY_EXPIRE)
        .build()?;
    let directory = match folder {
        Some(folder) => cache.directory(folder.path())?,
        None => cache.memfs()?,
    };
    let file = directory.create_new("ours")?;
    if kind == Kind::Huge {
        // Pages that a memory file system has already do not move into huge pages.
        file.set_len(len as u64)?;
        file.map(.., MapAccess::ReadWrite)?;
    }
    fill(len, piece, |piece, pos| file.write_all_at(piece, pos))?;
    // Frames move to where they can be mapped; once, so none of the loop's business.
    file.map(.., MapAccess::ReadWrite)?;
    let (file, huge) = (Arc::new(file), cache.stats()?.memory.huge);
    let again = Arc::clone(&file);
    let (map, faults): (Map, Count) = match kind {
        Kind::Locked(access) => {
            let held = file.map_locked(.., access)?;
            let map = move || {
                let _ = &held;
                Ok(Box::new(file.map_locked(.., access)?) as _)
            };
            // The kernel resolves them.
            (Box::new(map), Box::new(|| Ok(page_faults()?.minor)))
        }
        _ => (
            Box::new(move || Ok(Box::new(file.map(.., MapAccess::ReadWrite)?) as _)),
            Box::new(move || Ok(again.stats()?.faults)),
        ),
    };
    Ok(LoopFile {
        map,
        faults,
        len,
        huge: Some(huge),
    })
}

/// Writes `len` bytes in pieces.
fn fill<E>(len: usize, each: usize, write: impl Fn(&[u8], u64) -> Result<(), E>) -> Result<(), E> {
    let piece = vec![1; each.min(len)];
    for pos in (0..len).step_by(each) {
        write(&piece[..piece.len().min(len - pos)], pos as u64)?;
    }
    Ok(())
}
