//! The cost of pins to a direct reader, and of one pin by itself.
//!
//! # Model
//!
//! The reader of the seed's figures: 4 KiB each, in order, 64 in flight, past the kernel's cache, on a private
//! io_uring; also with two threads, each with a ring of its own, and with 128 KiB, 8 in flight. It reads
//!
//! | way | into | pins |
//! |---|---|---|
//! | not pinned | memory of its own | none |
//! | kept | folios of a page each of a file of ours | one for long, of all folios |
//! | foliocache | the same | one a request, from its submission to its completion: the only pin of its folio |
//! | one over 64 | the same | one over all folios for each 64 requests |
//! | isolated | the same | as foliocache, and the folio is off reclaim's queue meanwhile, as the seed had it |
//!
//! Requests that follow each other in the source read into pages in an order at random: the kernel merges requests, and a
//! merged one is faster where its memory is in a row, which is no matter of pins.
//!
//! A turn reads for a while and continues in the source where the last one stopped. The place has more room than the cache
//! watches over ([`ROOM`]), so that the figures are of pins and not of a disk that is nearly full.
//!
//! The pin of a cached page is also timed alone, beside a clone and drop of an uncontended `Arc`.
//!
//! # Safety
//!
//! A ring writes to memory that is kept until its requests have ended: that of the reader, or folios with a pin that is.
#![allow(unsafe_code)]

use foliocache::{Advice, File, FolioPin, PinMode};
use foliocache_sys::memory::ReservedRange;
use io_uring::{IoUring, opcode, types};
use std::os::fd::AsRawFd;

use crate::cases::prelude::*;
use crate::cost::Meter;
use crate::place::open_direct;
use crate::threads::on_threads;

/// Bytes of the source, in bounds.
const SOURCE_PER_MEMORY: u64 = 4;

/// Bytes that stay free beside the source: the cache asks about its room when less than 64 MiB are.
const ROOM: u64 = 192 << 20;

/// The least bound with folios of 128 KiB.
const LEAST_FOR_LARGE: u64 = 16 << 20;

/// Pins that are timed together.
const PINS: u32 = 200_000;

const SOURCE: &str = "source";
const ALONE: &str = "alone";

const NOT_PINNED: &str = "not pinned";
const KEPT: &str = "kept";
const OVER_ALL: &str = "one over 64";
const ISOLATED: &str = "isolated";

/// Requests of one kind.
#[derive(Clone, Copy)]
struct Shape {
    /// The row.
    name: &'static str,
    /// The file that they read into.
    buffers: &'static str,
    bytes: usize,
    /// In flight, of each thread.
    depth: usize,
    threads: usize,
}

const SMALL: Shape = Shape {
    name: "direct read 4 KiB",
    buffers: "buffers",
    bytes: PAGE,
    depth: 64,
    threads: 1,
};

const THREADS: Shape = Shape {
    buffers: "buffers of threads",
    threads: 2,
    ..SMALL
};

const LARGE: Shape = Shape {
    name: "direct read 128 KiB",
    buffers: "large buffers",
    bytes: 32 * PAGE,
    depth: 8,
    threads: 1,
};

pub(super) fn plan(settings: &Settings) -> Result<Plan, BenchError> {
    let len = SOURCE_PER_MEMORY * settings.bound()?;
    let has_large = settings.bound()? >= LEAST_FOR_LARGE;
    let note = "the pages that are read into were told that reads are at random".to_owned();
    let mut plan = Plan {
        notes: vec![note],
        ..Plan::default()
    };
    on_disk_and_zram(&mut plan, settings, [len + ROOM; 2], |place, at, plan| {
        place.make(SOURCE, len)?;
        if !at.zram {
            plan.matches.push(alone(&cached(place, ALONE, PAGE, 1)?));
        }
        let of = |shape: Shape, ways: &[(&'static str, Way)]| {
            let readers = readers(place, shape, settings.seconds, len)?;
            let mut one = at.new_match();
            for &(variant, way) in ways {
                one.add(shape.name, variant, turn(&readers, shape, way));
            }
            Ok::<_, BenchError>(one)
        };
        let every = [
            (NOT_PINNED, Way::Nothing),
            (KEPT, Way::Kept),
            (OURS, Way::Counted),
            (OVER_ALL, Way::OverAll),
            (ISOLATED, Way::Isolated),
        ];
        let both = [every[0], every[2]];
        let mut one = of(SMALL, &every)?;
        ratios! { one;
            "pin_counted_vs_none" => OURS / NOT_PINNED, at_least(at.pick(0.97, 0.94));
            "pin_kept_vs_none" => KEPT / NOT_PINNED, at_least(0.97);
            "pin_over_64_vs_none" => OVER_ALL / NOT_PINNED, at_least(0.97);
            "pin_isolated_vs_none" => ISOLATED / NOT_PINNED;
            "pin_p50_counted_vs_none" => OURS / NOT_PINNED, of_p50(), at_most(1.05);
            "pin_p99_counted_vs_none" => OURS / NOT_PINNED, of_p99(), at_most(1.05);
        }
        plan.matches.push(one);
        let mut one = of(THREADS, &both)?;
        ratios! { one;
            "pin_counted_threads_vs_none" => OURS / NOT_PINNED, at_least(at.pick(0.97, 0.94));
        }
        plan.matches.push(one);
        if has_large {
            let mut one = of(LARGE, &both)?;
            ratios! { one;
                "pin_counted_128k_vs_none" => OURS / NOT_PINNED, at_least(0.97);
            }
            plan.matches.push(one);
        }
        Ok(())
    })?;
    if !has_large {
        let note = "nothing with 128 KiB: in so little memory folios are smaller";
        plan.notes.push(note.to_owned());
    }
    Ok(plan)
}

/// A file of cached pages, in so many folios of `bytes` each.
fn cached(place: &Place, name: &str, bytes: usize, folios: usize) -> Result<Arc<File>, BenchError> {
    place.make(name, (folios * bytes) as u64)?;
    set_up(name, || {
        let file = place.ours(name)?;
        file.advise(Advice::Random, ..)?;
        // A write in one piece makes one folio.
        let folio = vec![0; bytes];
        for at in (0..folios).rev() {
            file.write_all_at(&folio, (at * bytes) as u64)?;
        }
        file.sync_data()?;
        Ok(Arc::new(file))
    })
}

type Readers = Rc<RefCell<Vec<Reader>>>;

/// A reader for each thread, with folios of its own.
fn readers(place: &Place, shape: Shape, seconds: f64, len: u64) -> Result<Readers, BenchError> {
    let file = cached(
        place,
        shape.buffers,
        shape.bytes,
        shape.threads * shape.depth,
    )?;
    let reader = |thread: usize| -> io::Result<Reader> {
        let memory = ReservedRange::reserve(shape.depth * shape.bytes)?;
        memory.activate(0..memory.len(), true)?;
        memory.populate(0..memory.len())?;
        let mut places: Vec<_> = (0..shape.depth).collect();
        Random(thread as u64).shuffle(&mut places);
        Ok(Reader {
            places,
            source: open_direct(&place.path(SOURCE))?.into(),
            ring: IoUring::new(shape.depth as u32)?,
            memory,
            file: Arc::clone(&file),
            first: (thread * shape.depth * shape.bytes) as u64,
            kept: None,
            pins: (0..shape.depth).map(|_| None).collect(),
            shared: (0..shape.depth).map(|_| None).collect(),
            begun: vec![Instant::now(); shape.depth],
            times: Times::new(),
            pos: len / shape.threads as u64 * thread as u64 / MIB as u64 * MIB as u64,
            len,
            seconds,
            bytes: shape.bytes,
        })
    };
    set_up(SOURCE, || {
        let readers: io::Result<Vec<_>> = (0..shape.threads).map(reader).collect();
        Ok(Rc::new(RefCell::new(readers?)))
    })
}

/// The work of all readers in a turn.
fn turn(readers: &Readers, shape: Shape, way: Way) -> Work {
    let readers = Rc::clone(readers);
    Work::pass(shape.threads, "op/s", move || {
        let mut all = readers.borrow_mut();
        let meter = Meter::start();
        let done = on_threads(all.iter_mut(), |_, reader| reader.run(way));
        let cost = meter.stop();
        if done.is_err() {
            // Requests in flight may write to their memory, so it and its pins stay for ever.
            std::mem::forget(Rc::clone(&readers));
        }
        let reads: u64 = done?.into_iter().sum();
        let latency = Times::drain(all.iter_mut().map(|reader| &mut reader.times));
        let outcome = Outcome::plain(reads as f64 / cost.seconds);
        Ok(outcome
            .cost(cost, reads * shape.bytes as u64)
            .latency(latency))
    })
}

/// One pin and unpin of a cached page, and a plain reference.
fn alone(file: &Arc<File>) -> Match {
    let mut one = Match::default();
    let pin = |mode| {
        let file = Arc::clone(file);
        timed(move || {
            drop(black_box(file.pin(0..PAGE as u64, mode)?));
            Ok(())
        })
    };
    let reference = Arc::new(());
    let reference = timed(move || {
        drop(black_box(Arc::clone(&reference)));
        Ok(())
    });
    one.add("pin_ns", "for reads", pin(PinMode::READ));
    one.add("pin_ns", "a plain reference", reference);
    one.add("pin_ns", "for writes", pin(PinMode::WRITE));
    ratios! { one;
        "pin_vs_reference" => 0 / 1;
        "pin_write_vs_reference" => 2 / 1;
    }
    one
}

fn timed(mut one: impl FnMut() -> io::Result<()> + 'static) -> Work {
    let turn = move || {
        let start = Instant::now();
        (0..PINS).try_for_each(|_| one())?;
        let ns = start.elapsed().as_nanos() as f64;
        Ok(Outcome::plain(ns / f64::from(PINS)))
    };
    Work::pass(1, "ns", turn)
}

/// The pin of the memory that a request reads into; the module's header has a table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Nothing,
    Kept,
    Counted,
    OverAll,
    Isolated,
}

/// A ring, the source, and the memory to read into. Requests have ended between two turns.
struct Reader {
    source: fs::File,
    ring: IoUring,
    /// The place among its memory, or its folios, of each request in flight.
    places: Vec<usize>,
    memory: ReservedRange,
    file: Arc<File>,
    /// Where its folios begin in the file.
    first: u64,
    /// The pin of all folios for a turn.
    kept: Option<FolioPin>,
    /// Those of requests in flight.
    pins: Vec<Option<FolioPin>>,
    /// Those that requests in flight share.
    shared: Vec<Option<Arc<FolioPin>>>,
    begun: Vec<Instant>,
    times: Times,
    pos: u64,
    len: u64,
    seconds: f64,
    /// Of a request.
    bytes: usize,
}

/// A pin of all folios for the next requests.
#[derive(Default)]
struct OverAll {
    pin: Option<Arc<FolioPin>>,
    /// Requests that it is for yet.
    left: usize,
}

impl Reader {
    fn depth(&self) -> usize {
        self.pins.len()
    }

    fn all(&self) -> std::ops::Range<u64> {
        self.first..self.first + (self.depth() * self.bytes) as u64
    }

    /// Where the requests read to that take no pin of their own.
    fn addresses(&self, pin: Option<&FolioPin>) -> io::Result<Vec<*mut u8>> {
        let all: Vec<_> = match pin {
            Some(pin) => pin.parts().map(|part| part.addr).collect(),
            None => (0..self.depth())
                .map(|at| self.memory.as_ptr().wrapping_add(at * self.bytes))
                .collect(),
        };
        whole(all.len(), self.depth())?;
        Ok(self.places.iter().map(|&at| all[at]).collect())
    }

    /// Pins the memory of a request as its way says, and returns where it is.
    fn memory_for(
        &mut self,
        slot: usize,
        way: Way,
        over_all: &mut OverAll,
        addresses: &mut Vec<*mut u8>,
    ) -> io::Result<*mut u8> {
        match way {
            Way::Nothing | Way::Kept => {}
            Way::Counted | Way::Isolated => {
                let start = self.first + (self.places[slot] * self.bytes) as u64;
                let range = start..start + self.bytes as u64;
                let pin = self.file.pin(range, PinMode::WRITE)?;
                if way == Way::Isolated {
                    pin.isolate();
                }
                let part = pin.parts().next();
                whole(part.map_or(0, |part| part.len), self.bytes)?;
                addresses[slot] = part.map_or(std::ptr::null_mut(), |part| part.addr);
                self.pins[slot] = Some(pin);
            }
            Way::OverAll => {
                if over_all.left == 0 {
                    let pin = Arc::new(self.file.pin(self.all(), PinMode::WRITE)?);
                    *addresses = self.addresses(Some(&pin))?;
                    *over_all = OverAll {
                        pin: Some(pin),
                        left: self.depth(),
                    };
                }
                over_all.left -= 1;
                self.shared[slot].clone_from(&over_all.pin);
            }
        }
        Ok(addresses[slot])
    }

    fn submit(&mut self, slot: usize, addr: *mut u8) -> io::Result<()> {
        let source = types::Fd(self.source.as_raw_fd());
        let read = opcode::Read::new(source, addr, self.bytes as u32).offset(self.pos);
        self.pos = (self.pos + self.bytes as u64) % self.len;
        // SAFETY: see the module's header.
        let pushed = unsafe { (self.ring.submission()).push(&read.build().user_data(slot as u64)) };
        pushed.map_err(io::Error::other)
    }

    /// Reads for a while; returns how often.
    fn run(&mut self, way: Way) -> io::Result<u64> {
        if way == Way::Kept {
            self.kept = Some(self.file.pin(self.all(), PinMode::WRITE.long_term())?);
        }
        let mut addresses = self.addresses(self.kept.as_ref())?;
        let mut over_all = OverAll::default();
        let mut begin = |reader: &mut Self, slot: usize| {
            reader.begun[slot] = Instant::now();
            let addr = reader.memory_for(slot, way, &mut over_all, &mut addresses)?;
            reader.submit(slot, addr)
        };
        let until = Instant::now() + Duration::from_secs_f64(self.seconds);
        for slot in 0..self.depth() {
            begin(self, slot)?;
        }
        let (mut in_flight, mut reads) = (self.depth(), 0_u64);
        while in_flight > 0 {
            self.ring.submit_and_wait(1)?;
            let now = Instant::now();
            let done: Vec<_> = self.ring.completion().collect();
            for done in done {
                let slot = done.user_data() as usize;
                if let Some(pin) = self.pins[slot].take()
                    && way == Way::Isolated
                {
                    pin.put_back();
                }
                self.shared[slot] = None;
                self.times.add(now - self.begun[slot]);
                in_flight -= 1;
                whole(done.result().max(0) as usize, self.bytes)?;
                reads += 1;
                if now < until {
                    begin(self, slot)?;
                    in_flight += 1;
                }
            }
        }
        self.kept = None;
        Ok(reads)
    }
}
