//! Whole files, one request after another: reading, writing, and sixteen readers at once.
//!
//! # Model
//!
//! A file four times the memory bound, so that no pass finds anything of the one before. Each pass
//! begins with the file in nobody's cache.
//!
//! | match | contestants |
//! |---|---|
//! | read | ours; the same again; `O_DIRECT`; the kernel's cache in a cgroup of the bound's size |
//! | write | ours and `O_DIRECT` over blocks that are there, fdatasync included |
//! | streams | one reader; sixteen, each in its part, request by request in turn; sixteen threads |
//!
//! `O_DIRECT` asks for what our caller asks for: one request of a MiB at a time. On the disk first,
//! then on a [compressed disk in memory](crate::zram), which is faster than any disk, so that what
//! is left is the way to it. The streams ask for 128 KiB, as programs do: a request must not hide
//! what readahead does not do.
//!
//! Sixteen buffers do not fit the processor's nearest caches as one does: on zram, where nothing else
//! takes time, `O_DIRECT` itself loses by sixteen streams. What it keeps is the control there.

use foliocache::{Advice, File};
use foliocache_sys::fd::{self, OwnedFd};
use std::cell::RefCell;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::thread;

use super::{AGAIN, BUFFERED, FILE_PER_MEMORY, OURS, memory};
use crate::case::{Case, Contestant, Match, Outcome, Pass, Plan, RatioPlan, Work};
use crate::cost::{Cost, Meter};
use crate::error::BenchError;
use crate::files::whole;
use crate::kernel::KernelSide;
use crate::passes::{filled, sequential};
use crate::place::{Buffer, MIB, Place, drop_from_kernel_cache, open_direct};
use crate::settings::{Settings, Uses};

/// See the module.
pub(crate) struct Seq;

/// The file.
const FILE: &str = "data";

/// Readers that take turns.
const STREAMS: usize = 16;

/// What each of them asks for.
const STREAM_REQUEST: usize = 128 << 10;

/// Past the kernel's cache.
const DIRECT: &str = "O_DIRECT";

impl Case for Seq {
    fn name(&self) -> &'static str {
        "seq"
    }

    fn about(&self) -> &'static str {
        "sequential reads and writes of a file four times the memory, on the disk and on zram"
    }

    fn settings(&self, quick: bool) -> Settings {
        let (samples, memory) = if quick { (3, 64 << 20) } else { (9, 256 << 20) };
        Settings {
            samples,
            memory: Some(memory),
            ..Settings::default()
        }
    }

    fn uses(&self) -> Uses {
        Uses {
            memory: true,
            dir: true,
            ..Uses::NONE
        }
    }

    fn plan(&self, settings: &Settings) -> Result<Plan, BenchError> {
        let memory = memory(settings, self)?;
        let len = FILE_PER_MEMORY * memory;
        let disk = Place::on_disk(settings, memory, len)?;
        let place = Some(disk.describe());
        let mut matches = Bed::new(disk, settings, memory, len)?.matches(&ON_DISK);
        let mut notes = Vec::new();
        match Place::on_zram(settings, memory, len) {
            Ok(zram) => matches.extend(Bed::new(zram, settings, memory, len)?.matches(&ON_ZRAM)),
            Err(error) => notes.push(format!("nothing on zram: {error}")),
        }
        Ok(Plan {
            matches,
            place,
            notes,
        })
    }
}

/// What rows and ratios are called and what they are to reach.
struct Names {
    read: &'static str,
    write: &'static str,
    streams: &'static str,
    read_vs_direct: (&'static str, f64),
    read_vs_buffered: &'static str,
    aa: &'static str,
    write_vs_direct: (&'static str, Option<f64>),
    streams16_vs_one: (&'static str, f64),
    streams16_threads_vs_one: &'static str,
    /// The control of `streams16_vs_one`, where `O_DIRECT` is to be one.
    streams16_direct_vs_one: Option<&'static str>,
}

const ON_DISK: Names = Names {
    read: "read 1 MiB",
    write: "write 1 MiB, fdatasync",
    streams: "read 128 KiB",
    read_vs_direct: ("seq_read_vs_direct", 0.95),
    read_vs_buffered: "seq_read_vs_kernel_buffered",
    aa: "seq_aa",
    write_vs_direct: ("seq_write_vs_direct", Some(0.9)),
    streams16_vs_one: ("streams16_vs_one", 0.9),
    streams16_threads_vs_one: "streams16_threads_vs_one",
    streams16_direct_vs_one: None,
};

const ON_ZRAM: Names = Names {
    read: "zram, read 1 MiB",
    write: "zram, write 1 MiB, fdatasync",
    streams: "zram, read 128 KiB",
    read_vs_direct: ("seq_read_vs_direct_zram", 0.75),
    read_vs_buffered: "seq_read_vs_kernel_buffered_zram",
    aa: "seq_aa_zram",
    write_vs_direct: ("seq_write_vs_direct_zram", None),
    streams16_vs_one: ("streams16_vs_one_zram", 0.9),
    streams16_threads_vs_one: "streams16_threads_vs_one_zram",
    streams16_direct_vs_one: Some("streams16_direct_vs_one_zram"),
};

/// What all passes over one place share. Fields go in this order: the kernel's side leaves its
/// cgroup before the place's guard takes that away.
struct Bed {
    kernel: RefCell<KernelSide>,
    place: Place,
    len: u64,
}

impl Bed {
    fn new(
        place: Place,
        settings: &Settings,
        memory: u64,
        len: u64,
    ) -> Result<Rc<Self>, BenchError> {
        let kernel = KernelSide::start(&settings.helper, place.guard(), memory, None)?;
        place.make(FILE, len)?;
        Ok(Rc::new(Self {
            kernel: RefCell::new(kernel),
            place,
            len,
        }))
    }

    fn matches(self: &Rc<Self>, names: &Names) -> Vec<Match> {
        let bed = || Rc::clone(self);
        let contestant = |name, variant, threads, pass| Contestant {
            name,
            variant,
            work: Work::Pass {
                threads,
                unit: "MB/s",
                pass,
            },
        };
        let ours = |request, streams, turns| Ours::pass(bed(), request, streams, turns);
        let (read, write, streams) = (names.read, names.write, names.streams);
        let one = |request| ours(request, 1, Turns::OneThread);
        let write_ratio = {
            let (name, least) = names.write_vs_direct;
            let plan = RatioPlan::new(name, 0, 1);
            least.map_or(plan, |least| plan.at_least(least))
        };
        let (read_vs_direct, least_read) = names.read_vs_direct;
        let (streams16_vs_one, least_streams) = names.streams16_vs_one;
        let mut of_streams = Match {
            contestants: vec![
                contestant(streams, "one stream", 1, one(STREAM_REQUEST)),
                contestant(
                    streams,
                    "16 streams in turn",
                    1,
                    ours(STREAM_REQUEST, STREAMS, Turns::OneThread),
                ),
                contestant(
                    streams,
                    "16 streams",
                    STREAMS,
                    ours(STREAM_REQUEST, STREAMS, Turns::OwnThreads),
                ),
            ],
            ratios: vec![
                RatioPlan::new(streams16_vs_one, 1, 0).at_least(least_streams),
                RatioPlan::new(names.streams16_threads_vs_one, 2, 0),
            ],
        };
        if let Some(control) = names.streams16_direct_vs_one {
            let direct = |streams| Direct::pass(bed(), Direction::Read, STREAM_REQUEST, streams);
            of_streams.contestants.extend([
                contestant(streams, "O_DIRECT, one stream", 1, direct(1)),
                contestant(streams, "O_DIRECT, 16 streams in turn", 1, direct(STREAMS)),
            ]);
            of_streams.ratios[0].control = Some((4, 3));
            of_streams.ratios.push(RatioPlan::new(control, 4, 3));
        }
        vec![
            Match {
                contestants: vec![
                    contestant(read, OURS, 1, one(MIB)),
                    contestant(
                        read,
                        DIRECT,
                        1,
                        Direct::pass(bed(), Direction::Read, MIB, 1),
                    ),
                    contestant(read, BUFFERED, 1, Box::new(Buffered(bed()))),
                    contestant(read, AGAIN, 1, one(MIB)),
                ],
                ratios: vec![
                    RatioPlan::new(read_vs_direct, 0, 1).at_least(least_read),
                    RatioPlan::new(names.read_vs_buffered, 0, 2),
                    RatioPlan::new(names.aa, 0, 3),
                ],
            },
            Match {
                contestants: vec![
                    contestant(write, OURS, 1, OursWrite::pass(bed())),
                    contestant(
                        write,
                        DIRECT,
                        1,
                        Direct::pass(bed(), Direction::Write, MIB, 1),
                    ),
                ],
                ratios: vec![write_ratio],
            },
            of_streams,
        ]
    }

    /// The file leaves the kernel's cache and ours.
    fn chill(&self) -> io::Result<()> {
        drop_from_kernel_cache(&self.place.path(FILE))?;
        self.place.ours(FILE)?.advise(Advice::DontNeed, ..)?;
        Ok(())
    }

    /// The figure of a pass that cost so much.
    fn outcome(&self, cost: Cost) -> Outcome {
        Outcome {
            cost: Some((cost, self.len)),
            ..Outcome::plain(self.len as f64 / 1e6 / cost.seconds)
        }
    }
}

/// Who makes the requests of several streams.
#[derive(Clone, Copy)]
enum Turns {
    /// One thread, for each stream in turn.
    OneThread,
    /// A thread for each.
    OwnThreads,
}

/// A part of the file, its reader and where that is.
struct Stream {
    file: File,
    buffer: Buffer,
    pos: u64,
    end: u64,
}

impl Stream {
    /// Makes the next request; false at the end.
    fn step(&mut self) -> io::Result<bool> {
        let buffer = self.buffer.bytes();
        let len = buffer.len().min((self.end - self.pos) as usize);
        whole(self.file.read_at(&mut buffer[..len], self.pos)?, len)?;
        self.pos += len as u64;
        Ok(self.pos < self.end)
    }
}

/// Reads through our cache.
struct Ours {
    bed: Rc<Bed>,
    request: usize,
    streams: usize,
    turns: Turns,
    ready: Vec<Stream>,
}

impl Ours {
    fn pass(bed: Rc<Bed>, request: usize, streams: usize, turns: Turns) -> Box<dyn Pass> {
        Box::new(Self {
            bed,
            request,
            streams,
            turns,
            ready: Vec::new(),
        })
    }
}

impl Pass for Ours {
    fn prepare(&mut self) -> io::Result<()> {
        self.bed.chill()?;
        let part = self.bed.len / self.streams as u64;
        let stream = |number| {
            Ok(Stream {
                file: self.bed.place.ours(FILE)?,
                buffer: Buffer::random(self.request, number),
                pos: number * part,
                end: (number + 1) * part,
            })
        };
        self.ready = (0..self.streams as u64)
            .map(stream)
            .collect::<io::Result<_>>()?;
        Ok(())
    }

    fn run(&mut self) -> io::Result<Outcome> {
        let mut streams = std::mem::take(&mut self.ready);
        let meter = Meter::start();
        match self.turns {
            Turns::OneThread => {
                let mut more = true;
                while more {
                    more = false;
                    for stream in &mut streams {
                        more |= stream.step()?;
                    }
                }
            }
            Turns::OwnThreads => thread::scope(|scope| {
                let start = |mut stream: Stream| {
                    scope.spawn(move || {
                        while stream.step()? {}
                        Ok(())
                    })
                };
                let threads: Vec<_> = streams.drain(..).map(start).collect();
                threads
                    .into_iter()
                    .try_for_each(|thread| thread.join().expect("a reader does not panic"))
                    .map_err(|error: io::Error| error)
            })?,
        }
        Ok(self.bed.outcome(meter.stop()))
    }
}

/// Writes through our cache, and waits until it is on the medium.
struct OursWrite {
    bed: Rc<Bed>,
    buffer: Buffer,
}

impl OursWrite {
    fn pass(bed: Rc<Bed>) -> Box<dyn Pass> {
        let buffer = Buffer::random(MIB, 1);
        Box::new(Self { bed, buffer })
    }
}

impl Pass for OursWrite {
    fn prepare(&mut self) -> io::Result<()> {
        self.bed.chill()
    }

    fn run(&mut self) -> io::Result<Outcome> {
        let file = self.bed.place.ours(FILE)?;
        let meter = Meter::start();
        sequential(0, self.bed.len, self.buffer.bytes(), |part, pos| {
            Ok(file.write_all_at(part, pos)?)
        })?;
        file.sync_data()?;
        Ok(self.bed.outcome(meter.stop()))
    }
}

enum Direction {
    Read,
    Write,
}

/// Reads or writes past the kernel's cache: so many parts of the file, request by request in turn.
struct Direct {
    bed: Rc<Bed>,
    direction: Direction,
    buffers: Vec<Buffer>,
}

impl Direct {
    fn pass(bed: Rc<Bed>, direction: Direction, request: usize, parts: usize) -> Box<dyn Pass> {
        let buffers = (0..parts as u64).map(|part| Buffer::random(request, 2 + part));
        Box::new(Self {
            bed,
            direction,
            buffers: buffers.collect(),
        })
    }
}

impl Pass for Direct {
    fn prepare(&mut self) -> io::Result<()> {
        self.bed.chill()
    }

    fn run(&mut self) -> io::Result<Outcome> {
        let file: OwnedFd = open_direct(&self.bed.place.path(FILE))?;
        let part_len = self.bed.len / self.buffers.len() as u64;
        let meter = Meter::start();
        let mut at = 0;
        while at < part_len {
            let mut step = 0;
            for (part, buffer) in self.buffers.iter_mut().enumerate() {
                let buffer = buffer.bytes();
                step = (buffer.len() as u64).min(part_len - at);
                let (buffer, pos) = (&mut buffer[..step as usize], part as u64 * part_len + at);
                match self.direction {
                    Direction::Read => {
                        let read = fd::pread(file.as_fd(), pos, buffer);
                        filled(read.map_err(io::Error::from), buffer.len())?;
                    }
                    Direction::Write => fd::pwrite(file.as_fd(), pos, buffer)?,
                }
            }
            at += step;
        }
        if matches!(self.direction, Direction::Write) {
            fd::fdatasync(file.as_fd())?;
        }
        Ok(self.bed.outcome(meter.stop()))
    }
}

/// Reads through the kernel's cache, in a cgroup.
struct Buffered(Rc<Bed>);

impl Pass for Buffered {
    fn prepare(&mut self) -> io::Result<()> {
        self.0.chill()
    }

    fn run(&mut self) -> io::Result<Outcome> {
        let path = self.0.place.path(FILE);
        let cost = self.0.kernel.borrow_mut().sequential(&path)?;
        Ok(self.0.outcome(cost))
    }
}
