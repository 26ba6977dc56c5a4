//! Files that are written and made durable over and over, by our cache, through the kernel's and past it.
//!
//! # Model
//!
//! Each turn of an append begins with an empty file. Nothing else is on its way to the disk then. A file that is
//! overwritten stays, and both its copies are in memory. Our caches have default settings, and the process the usual soft
//! limit of descriptors.

use foliocache::{Cache, Directory, DirectoryOptions, File};
use foliocache_sys::fd::{self, OFlags};
use std::cell::RefCell;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::case::{Outcome, Work};
use crate::files::PAGE;
use crate::latency::Times;
use crate::place::{Buffer, Folder, MIB, Random, USUAL_LIMIT};
use crate::threads::on_threads;

/// A writer, which opens files in its folder.
pub(crate) struct Side {
    directory: Option<Directory>,
    /// How the kernel opens a file.
    flags: OFlags,
    path: PathBuf,
    /// The file that is open. It may stay open for more than one log.
    file: RefCell<Option<(Open, PathBuf)>>,
}

impl Side {
    /// The kernel's, with these flags.
    pub(crate) fn kernel(folder: &Folder, name: &str, flags: OFlags) -> io::Result<Rc<Self>> {
        Self::new(folder, name, flags, |_| Ok(None))
    }

    /// Through a cache of ours; `exclusive` if no other process uses the directory.
    pub(crate) fn ours(
        folder: &Folder,
        name: &str,
        memory: u64,
        exclusive: bool,
    ) -> io::Result<Rc<Self>> {
        fd::set_open_file_limit(USUAL_LIMIT)?;
        Self::new(folder, name, OFlags::empty(), |path| {
            let options = DirectoryOptions::new().exclusive(exclusive);
            let cache = Cache::builder().memory(memory).build()?;
            Ok(Some(cache.directory_with(path, options)?))
        })
    }

    fn new(
        folder: &Folder,
        name: &str,
        flags: OFlags,
        directory: impl FnOnce(&Path) -> io::Result<Option<Directory>>,
    ) -> io::Result<Rc<Self>> {
        let path = folder.path().join(name);
        fs::create_dir(&path)?;
        Ok(Rc::new(Self {
            directory: directory(&path)?,
            flags,
            path,
            file: RefCell::new(None),
        }))
    }

    /// With no file open, for another log.
    pub(crate) fn again(&self) -> Rc<Self> {
        Rc::new(Self {
            directory: self.directory.clone(),
            path: self.path.clone(),
            file: RefCell::new(None),
            flags: self.flags,
        })
    }

    /// A new file.
    fn open(&self) -> io::Result<(Open, PathBuf)> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Relaxed: the numbers only have to differ.
        let name = NEXT.fetch_add(1, Ordering::Relaxed).to_string();
        let path = self.path.join(&name);
        let open = match &self.directory {
            Some(directory) => {
                let mut options = directory.open_options();
                let options = options.read(true).write(true).create(true);
                Open::Ours(Box::new(options.open(&name)?))
            }
            None => {
                let flags = OFlags::RDWR | OFlags::CREATE | self.flags;
                Open::Kernel(fd::open(&path, flags, 0o600)?.into())
            }
        };
        Ok((open, path))
    }
}

/// A file that is open.
enum Open {
    Ours(Box<File>),
    Kernel(fs::File),
}

impl Open {
    fn write(&self, record: &[u8], pos: u64) -> io::Result<()> {
        match self {
            Self::Ours(file) => Ok(file.write_all_at(record, pos)?),
            Self::Kernel(file) => file.write_all_at(record, pos),
        }
    }

    fn sync(&self) -> io::Result<()> {
        match self {
            Self::Ours(file) => Ok(file.sync_data()?),
            Self::Kernel(file) => file.sync_data(),
        }
    }

    /// Makes it a file to be overwritten, of `len` bytes.
    fn fill(&self, len: u64) -> io::Result<()> {
        let mut buffer = Buffer::random(MIB, len);
        for pos in (0..len).step_by(MIB) {
            let part = MIB.min((len - pos) as usize);
            self.write(&buffer.bytes()[..part], pos)?;
        }
        self.sync()
    }
}

/// The shape of a log.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) record: usize,
    /// Records that are made durable together.
    pub(crate) together: usize,
    pub(crate) threads: usize,
    /// Records go to random places in a file of this many bytes, and not to the end of the file.
    pub(crate) overwrite: Option<u64>,
    pub(crate) time: Duration,
}

/// Turns of a log, whose figure has this unit.
pub(crate) fn log(side: &Rc<Side>, shape: Shape, unit: &'static str) -> Work {
    let (side, mut turns) = (Rc::clone(side), 0);
    Work::pass(shape.threads, unit, move || {
        // Each has other places.
        turns += 1;
        turn(&side, shape, turns << 16)
    })
}

fn turn(side: &Side, shape: Shape, seed: u64) -> io::Result<Outcome> {
    let mut file = side.file.borrow_mut();
    if let (Some((_, path)), None) = (&*file, shape.overwrite) {
        fs::remove_file(path)?;
        *file = None;
    }
    if file.is_none() {
        let (new, path) = side.open()?;
        shape.overwrite.map_or(Ok(()), |len| new.fill(len))?;
        *file = Some((new, path));
    }
    // Nothing is on its way while it is measured.
    fd::syncfs(fs::File::open(&side.path)?.as_fd())?;
    let (file, _) = file.as_ref().expect("it was opened");
    let direct = side.flags.contains(OFlags::DIRECT);
    let (end, start) = (AtomicU64::new(0), Instant::now());
    let done = on_threads(0..shape.threads as u64, |_, thread| {
        write(file, shape, direct, (start, &end), seed | thread)
    })?;
    let (records, mut times): (Vec<usize>, Vec<Times>) = done.into_iter().unzip();
    let outcome = Outcome::per_second(records.into_iter().sum(), start);
    Ok(outcome.latency(Times::drain(times.iter_mut())))
}

/// One thread writes until the time is over: its records, and how long each took that was made durable.
fn write(
    file: &Open,
    shape: Shape,
    direct: bool,
    (start, end): (Instant, &AtomicU64),
    seed: u64,
) -> io::Result<(usize, Times)> {
    let (record, mut random) = (shape.record, Random(seed));
    let mut buffer = Buffer::random(record.max(PAGE), seed);
    let (mut records, mut times) = (0, Times::new());
    loop {
        let begun = Instant::now();
        if begun - start >= shape.time {
            return Ok((records, times));
        }
        for _ in 0..shape.together {
            let (mut pos, mut len) = match shape.overwrite {
                // Relaxed: a place that no other thread has.
                None => (end.fetch_add(record as u64, Ordering::Relaxed), record),
                Some(len) => (
                    (random.below(len as usize / record) * record) as u64,
                    record,
                ),
            };
            if direct {
                (pos, len) = (pos - pos % PAGE as u64, len.max(PAGE));
            }
            file.write(&buffer.bytes()[..len], pos)?;
        }
        // A direct write is durable by itself.
        if !direct {
            file.sync()?;
        }
        times.add(begun.elapsed());
        records += shape.together;
    }
}
