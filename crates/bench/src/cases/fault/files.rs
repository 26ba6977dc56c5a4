//! Files for the loop: the kernel's and ours, all of them in memory.

use foliocache::{
    Cache, CacheBuilder, Directory, File, HugePages, LockedAccess, MapAccess, Mapping,
    MappingFaults,
};
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::mapped::{Kernels, Mapped, page_faults};
use crate::place::{Folder, MIB};

/// Bytes of a write that makes the largest folios.
const LARGE: usize = 4 * MIB;

/// The least bound of a cache that makes folios of 2 MiB, and something to spare.
const LEAST_BOUND: usize = 160 * MIB;

/// The kernel's default.
const DIRTY_EXPIRE: Duration = Duration::from_secs(30);

/// A file that a loop maps.
pub(super) trait LoopFile {
    /// Maps all of it, for loads and stores.
    fn map(&self) -> io::Result<Box<dyn Mapped>>;

    /// Its bytes.
    fn len(&self) -> usize;

    /// Faults so far; where the kernel resolves them, those of the process.
    fn faults(&self) -> io::Result<u64>;
}

/// A file of the kernel's.
pub(super) struct KernelFile {
    file: fs::File,
    len: usize,
    /// Taken away with the last of its files.
    _folder: Rc<Folder>,
}

impl KernelFile {
    /// A new one; written in large pieces, or not at all.
    pub(super) fn new(
        folder: &Rc<Folder>,
        path: &Path,
        len: usize,
        written: bool,
    ) -> io::Result<Self> {
        let mut options = fs::File::options();
        let file = options.read(true).write(true).create_new(true).open(path)?;
        file.set_len(len as u64)?;
        if written {
            fill(len, |piece, pos| file.write_all_at(piece, pos))?;
        }
        Ok(Self {
            file,
            len,
            _folder: Rc::clone(folder),
        })
    }
}

impl LoopFile for KernelFile {
    fn map(&self) -> io::Result<Box<dyn Mapped>> {
        Ok(Box::new(Kernels::new(&self.file, self.len)?))
    }

    fn len(&self) -> usize {
        self.len
    }

    fn faults(&self) -> io::Result<u64> {
        Ok(page_faults()?.minor)
    }
}

/// A file of ours, in a cache of its own. It goes before its folder.
pub(super) struct OurFile {
    /// Keeps all of it in memory, and has it mapped without faults of ours.
    held: Option<(Mapping, LockedAccess)>,
    /// Whether it has huge pages.
    pub(super) huge: HugePages,
    file: File,
    _folder: Option<Rc<Folder>>,
}

impl OurFile {
    /// A new one, written in large pieces, in a directory or else in memory alone; a fault maps at most so many bytes.
    pub(super) fn new(
        folder: Option<&Rc<Folder>>,
        len: usize,
        faults: MappingFaults,
        around: u32,
    ) -> foliocache::Result<Self> {
        let builder = Cache::builder().mapping_faults(faults);
        Self::of_cache(folder, len, builder.fault_around_bytes(around), false)
    }

    fn of_cache(
        folder: Option<&Rc<Folder>>,
        len: usize,
        builder: CacheBuilder,
        huge: bool,
    ) -> foliocache::Result<Self> {
        let cache = builder
            .huge_pages(huge)
            .memory((4 * len).max(LEAST_BOUND) as u64)
            // All of the file stays dirty, as it does in the kernel's cache.
            .dirty_background_percent(60)
            .dirty_percent(80)
            .dirty_expire(DIRTY_EXPIRE)
            .build()?;
        let directory: Directory = match folder {
            Some(folder) => cache.directory(folder.path())?,
            None => cache.memfs()?,
        };
        let file = directory.create_new("ours")?;
        if huge {
            // What a memory file system has already does not move into huge pages.
            file.set_len(len as u64)?;
            file.map(.., MapAccess::ReadWrite)?;
        }
        fill(len, |piece, pos| file.write_all_at(piece, pos))?;
        // Frames move to where they can be mapped; once, so none of the loop's business.
        file.map(.., MapAccess::ReadWrite)?;
        Ok(Self {
            held: None,
            huge: cache.stats()?.memory.huge,
            file,
            _folder: folder.cloned(),
        })
    }

    /// One that is to have huge pages, in memory alone.
    pub(super) fn new_huge(len: usize, faults: MappingFaults) -> foliocache::Result<Self> {
        let builder = Cache::builder().mapping_faults(faults);
        Self::of_cache(None, len, builder, true)
    }

    /// One that is kept in memory.
    pub(super) fn new_locked(len: usize, access: LockedAccess) -> foliocache::Result<Self> {
        let mut new = Self::new(None, len, MappingFaults::Inline, 2 << 20)?;
        new.held = Some((new.file.map_locked(.., access)?, access));
        Ok(new)
    }
}

impl LoopFile for OurFile {
    fn map(&self) -> io::Result<Box<dyn Mapped>> {
        Ok(Box::new(match self.held {
            None => self.file.map(.., MapAccess::ReadWrite)?,
            Some((_, access)) => self.file.map_locked(.., access)?,
        }))
    }

    fn len(&self) -> usize {
        self.file.len() as usize
    }

    fn faults(&self) -> io::Result<u64> {
        match self.held {
            None => Ok(self.file.stats()?.faults),
            // The kernel resolves them.
            Some(_) => Ok(page_faults()?.minor),
        }
    }
}

/// Writes `len` bytes in large pieces.
fn fill<E>(len: usize, write: impl Fn(&[u8], u64) -> Result<(), E>) -> Result<(), E> {
    let piece = vec![1; LARGE.min(len)];
    for pos in (0..len).step_by(LARGE) {
        write(&piece[..piece.len().min(len - pos)], pos as u64)?;
    }
    Ok(())
}
