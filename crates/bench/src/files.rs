//! A file of one page that is in memory: ours, and the kernel's on tmpfs.

use foliocache::{Cache, Directory, Errno, File};
use foliocache_sys::fd;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{BenchError, OrSetup, set_up};
use crate::place::Buffer;

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;

/// Least bytes of a piece of a file whose calls are measured beside their copies.
pub(crate) const BLOCK: usize = 16 << 10;

/// A buffer on a page boundary.
#[derive(Clone)]
#[repr(align(4096))]
pub(crate) struct Aligned<const LEN: usize>(pub(crate) [u8; LEN]);

pub(crate) type PageBuf = Aligned<PAGE>;

impl<const LEN: usize> Aligned<LEN> {
    /// A buffer that has been touched.
    pub(crate) fn new() -> Box<Self> {
        Box::new(Self(std::array::from_fn(|at| at as u8)))
    }
}

/// An operation moved fewer bytes than it was given.
#[cold]
fn short() -> io::Error {
    io::ErrorKind::UnexpectedEof.into()
}

/// Checks that an operation moved all of `len` bytes.
#[inline]
pub(crate) fn whole(moved: usize, len: usize) -> io::Result<()> {
    if moved == len { Ok(()) } else { Err(short()) }
}

/// Memory of the cache: the files have a page each.
const MEMORY: u64 = 64 << 20;

/// A file system of ours whose store is the cache. Lives as long as its files.
pub(crate) struct Ours(Directory);

impl Ours {
    /// With default settings, or with handlers of faults in callers' buffers.
    pub(crate) fn new(fault_handlers: bool) -> Result<Self, BenchError> {
        let cache = Cache::builder().fault_handlers(fault_handlers);
        let cache = cache.memory(MEMORY).build();
        let directory = cache.and_then(|cache| cache.memfs());
        directory.map(Self).setting_up("a file system in the cache")
    }

    /// A new file that holds one page.
    pub(crate) fn file(&self, name: &str) -> Result<Arc<File>, BenchError> {
        set_up(format!("{name} in the cache"), || {
            let file = self.0.create_new(name)?;
            file.write_all_at(&PageBuf::new().0, 0)?;
            Ok(Arc::new(file))
        })
    }

    /// A new file of so many blocks of `len` bytes, in one folio each.
    pub(crate) fn block_file(
        &self,
        name: &str,
        (blocks, len): (usize, usize),
    ) -> Result<Arc<File>, BenchError> {
        set_up(format!("{name} in the cache"), || {
            let (file, mut block) = (self.0.create_new(name)?, Buffer::random(len, 0));
            for number in 0..blocks {
                file.write_all_at(block.bytes(), (number * len) as u64)?;
            }
            Ok(Arc::new(file))
        })
    }
}

/// Where a tmpfs may be mounted.
const PLACES: [&str; 4] = ["/dev/shm", "/run", "/tmp", "/run/user"];

/// `statfs.f_type` of tmpfs.
pub(crate) const TMPFS_MAGIC: u64 = 0x0102_1994;

/// A folder on tmpfs in which files can be made.
pub(crate) fn tmpfs() -> Option<&'static str> {
    PLACES.into_iter().find(|place| {
        let on_tmpfs =
            fs::File::open(place).is_ok_and(|dir| fd::fs_magic(dir.as_fd()) == Ok(TMPFS_MAGIC));
        on_tmpfs && unlinked(place, "probe").is_ok()
    })
}

/// The folder of the kernel's files, for the report.
pub(crate) fn kernel_place() -> String {
    tmpfs().map_or_else(String::new, |place| format!("tmpfs at {place}"))
}

/// A new file in `place` that has no name any more.
fn unlinked(place: &str, name: &str) -> io::Result<fs::File> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Relaxed: the numbers only have to differ.
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let id = process::id();
    let path = PathBuf::from(format!("{place}/foliocache-bench-{id}-{number}-{name}"));
    let mut options = fs::File::options();
    let file = options
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

/// A new file of the kernel's on tmpfs that holds one page.
pub(crate) fn kernel_file(name: &str) -> Result<Arc<fs::File>, BenchError> {
    set_up(format!("{name} on a tmpfs (one of {PLACES:?})"), || {
        let file = unlinked(tmpfs().ok_or(Errno::ENODEV)?, name)?;
        file.write_all_at(&PageBuf::new().0, 0)?;
        Ok(Arc::new(file))
    })
}
