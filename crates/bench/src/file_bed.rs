//! A file at one place, and the ways to go through it: our cache, the kernel's, and past both.
//!
//! # Model
//!
//! ```text
//!  case ──shape, who──▶ turn: the file leaves all caches; streams of that shape; fdatasync if they wrote
//! ```
//!
//! Ours and `O_DIRECT` work in this process, the kernel's cache in one that a memory cgroup bounds.

use foliocache::{Advice, IoOptions};
use foliocache_sys::fd;
use std::cell::RefCell;
use std::hint::black_box;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;

use crate::case::{Match, Outcome, Work};
use crate::error::BenchError;
use crate::files::{PAGE, whole};
use crate::kernel::KernelSide;
use crate::place::{Buffer, Place, drop_from_kernel_cache, open_direct};
use crate::ring::{Ring, fastest_depth};
use crate::settings::Settings;
use crate::streams::{Access, InTurn, Shape, Stream, Streamed, ThroughKernel, Time};

/// The file.
pub(crate) const FILE: &str = "data";

/// Past the kernel's cache, one request of each stream at a time.
pub(crate) const DIRECT: &str = "O_DIRECT, depth 1";

/// The longest turn that a depth is tried with, in seconds.
const TRIAL: f64 = 0.25;

/// The reader or writer of a turn.
#[derive(Clone, Copy, Debug)]
pub(crate) enum By {
    Ours {
        uncached: bool,
    },
    /// Ours, without a copy.
    Views,
    Kernel {
        dont_cache: bool,
    },
    /// By calls, one after another.
    Direct,
    /// By an io_uring of each stream.
    Ring {
        depth: usize,
    },
}

/// The state that all passes over one file share. Fields go in this order: the kernel's side leaves its cgroup before the
/// place's guard takes that away.
pub(crate) struct FileBed {
    kernel: RefCell<KernelSide>,
    pub(crate) place: Rc<Place>,
}

impl FileBed {
    /// Makes the file, of `len` bytes.
    pub(crate) fn new(
        place: &Rc<Place>,
        settings: &Settings,
        len: u64,
    ) -> Result<Rc<Self>, BenchError> {
        let kernel = KernelSide::start(&settings.helper, place.guard(), settings.bound()?, None)?;
        place.make(FILE, len)?;
        let kernel = RefCell::new(kernel);
        let place = Rc::clone(place);
        Ok(Rc::new(Self { kernel, place }))
    }

    /// Adds turns of this shape, a contestant for each of a table.
    pub(crate) fn add(
        self: &Rc<Self>,
        one: &mut Match,
        name: &str,
        contestants: impl IntoIterator<Item = (&'static str, By)>,
        (shape, write): (Shape, bool),
    ) {
        for (variant, by) in contestants {
            let bed = Rc::clone(self);
            let turn = move || {
                let streamed = bed.turn(by, shape, write)?;
                let bytes = streamed.bytes();
                let from_disk = streamed.from_disk as f64 * PAGE as f64;
                Ok(Outcome {
                    series: streamed.series,
                    device: (!write).then(|| from_disk / bytes as f64),
                    ..Outcome::of_bytes(bytes, streamed.cost)
                })
            };
            one.add(name, variant, Work::pass(shape.threads, "MB/s", turn));
        }
    }

    /// The depth at which `O_DIRECT` is fastest with this shape, and how that is called.
    pub(crate) fn fastest_depth(
        &self,
        shape: Shape,
        write: bool,
    ) -> Result<(usize, &'static str), BenchError> {
        let seconds = shape.time.map_or(TRIAL, |time| time.seconds.min(TRIAL));
        let interval = seconds;
        let time = Some(Time { seconds, interval });
        let shape = Shape { time, ..shape };
        fastest_depth(|depth| {
            let mut streams = self.streams(By::Ring { depth }, shape, write)?;
            let streamed = shape.run(&mut streams, || Ok(()))?;
            Ok(streamed.bytes() as f64 / streamed.cost.seconds)
        })
    }

    /// Streams over the file in this process.
    pub(crate) fn streams(
        &self,
        by: By,
        shape: Shape,
        write: bool,
    ) -> io::Result<Vec<Box<dyn Stream>>> {
        let path = self.place.path(FILE);
        let request = shape.request;
        let stream = |number: u64| -> io::Result<Box<dyn Stream>> {
            Ok(match by {
                By::Ours { uncached } => self.ours(FILE, uncached, write, request, 0)?,
                By::Views => self.views(request)?,
                By::Direct => Box::new(ThroughKernel::direct(&path, write, request, number)?),
                By::Ring { depth } => Box::new(Ring::direct(&path, depth, request, write)?),
                By::Kernel { .. } => return Err(io::ErrorKind::InvalidInput.into()),
            })
        };
        let thread = |number: u64| match shape.in_turn {
            1 => stream(number),
            many => {
                let numbers = (0..many as u64).map(|nr| number * many as u64 + nr);
                let streams = numbers.map(stream).collect::<io::Result<_>>()?;
                let part = shape.part();
                Ok(Box::new(InTurn { streams, part }) as _)
            }
        };
        (0..shape.threads as u64).map(thread).collect()
    }

    /// A stream of ours. The file begins at `start` of its positions.
    pub(crate) fn ours(
        &self,
        name: &str,
        uncached: bool,
        write: bool,
        request: usize,
        start: u64,
    ) -> io::Result<Box<dyn Stream>> {
        let file = self.place.ours(name)?;
        let mut buffer = Buffer::random(request, start);
        let options = IoOptions::new().uncached(uncached);
        Ok(Box::new(move |pos| {
            let moved = match write {
                false => file.read_at_with(buffer.bytes(), pos - start, options)?,
                true => file.write_at_with(buffer.bytes(), pos - start, options)?,
            };
            whole(moved, request).map(|()| request)
        }))
    }

    /// A stream of views of the file.
    fn views(&self, request: usize) -> io::Result<Box<dyn Stream>> {
        let file = self.place.ours(FILE)?;
        Ok(Box::new(move |pos| {
            let (mut at, end) = (pos, pos + request as u64);
            while at < end {
                let view = file.view(at..end)?;
                black_box(view.first());
                match view.len() as u64 {
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    len => at += len,
                }
            }
            Ok(request)
        }))
    }

    /// Drops a file from the kernel's cache and ours; its data becomes durable before.
    pub(crate) fn chill(&self, name: &str) -> io::Result<()> {
        let file = self.place.ours(name)?;
        file.sync_data()?;
        file.advise(Advice::DontNeed, ..)?;
        drop_from_kernel_cache(&self.place.path(name))
    }

    /// Goes through the file, which no cache has; in the end all writes are durable.
    fn turn(&self, by: By, shape: Shape, write: bool) -> io::Result<Streamed> {
        self.chill(FILE)?;
        let path = self.place.path(FILE);
        let mut ready = match by {
            By::Kernel { .. } => Vec::new(),
            by => self.streams(by, shape, write)?,
        };
        let ready = &mut ready;
        match by {
            By::Kernel { dont_cache } => {
                let access = Access { write, dont_cache };
                (self.kernel.borrow_mut()).streams(&path, shape, access)
            }
            By::Direct | By::Ring { .. } if write => {
                let file = open_direct(&path)?;
                shape.run(ready, || Ok(fd::fdatasync(file.as_fd())?))
            }
            _ if write => {
                let file = self.place.ours(FILE)?;
                shape.run(ready, || Ok(file.sync_data()?))
            }
            _ => shape.run(ready, || Ok(())),
        }
    }
}
