//! What pins cost a direct reader of pages, and one pin by itself.
//!
//! # Model
//!
//! The reader of the seed's figures: 4 KiB each, in order, 64 in flight, past the kernel's cache, on an io_uring of its own.
//! It reads into folios of one page of a file of ours, in three ways: they are pinned once for all, so that a
//! request costs nothing; each request pins its folio and unpins it at its completion; and the same, with the folio
//! taken off reclaim's queue at the pin and put back at the unpin, as the seed had it. A turn reads for a while and goes
//! on in the source where the last one stopped.
//!
//! The pin of a cached page is also timed alone, beside a clone and drop of an `Arc` that nobody else uses.
//!
//! # Safety
//!
//! A ring writes to folios that are pinned as long as the file of the buffers is open: all turns long.
#![allow(unsafe_code)]

use foliocache::{Advice, File, FolioPin, PinMode};
use io_uring::{IoUring, opcode, types};
use std::cell::RefCell;
use std::fs;
use std::hint::black_box;
use std::io;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{OURS, memory};
use crate::case::{Case, Contestant, Match, Outcome, Pass, Plan, RatioPlan, Work};
use crate::cost::Meter;
use crate::error::BenchError;
use crate::files::{PAGE, whole};
use crate::latency::Times;
use crate::place::{Place, open_direct};
use crate::settings::{Settings, Uses};

/// See the module.
pub(crate) struct Pin;

/// Requests in flight.
const DEPTH: usize = 64;

/// Bytes of the source, in bounds.
const SOURCE_PER_MEMORY: u64 = 4;

/// Pins that are timed together.
const PINS: u32 = 200_000;

impl Case for Pin {
    fn name(&self) -> &'static str {
        "pin"
    }

    fn about(&self) -> &'static str {
        "direct reads of 4 KiB, 64 in flight, into pinned folios; one pin and unpin"
    }

    fn settings(&self, quick: bool) -> Settings {
        match quick {
            true => Settings::bounded(4, 0.3, 16 << 20),
            false => Settings::bounded(16, 1.0, 256 << 20),
        }
    }

    fn takes(&self, quick: bool) -> u32 {
        if quick { 20 } else { 180 }
    }

    fn uses(&self) -> Uses {
        Uses::FILES
    }

    fn plan(&self, settings: &Settings) -> Result<Plan, BenchError> {
        let memory = memory(settings, self)?;
        let len = SOURCE_PER_MEMORY * memory;
        let disk = Place::on_disk(settings, memory, len)?;
        let place = Some(disk.describe());
        let mut matches = vec![alone(&disk)?, reads(disk, settings, len, &ON_DISK)?];
        let mut notes =
            vec!["the pages that are read into were told that reads are at random".to_owned()];
        match Place::on_zram(settings, memory, len) {
            Ok(zram) => matches.push(reads(zram, settings, len, &ON_ZRAM)?),
            Err(error) => notes.push(format!("nothing on zram: {error}")),
        }
        Ok(Plan {
            matches,
            place,
            notes,
        })
    }
}

/// What rows and ratios are called.
struct Names {
    read: &'static str,
    counted: &'static str,
    isolated: &'static str,
    p99: &'static str,
}

const ON_DISK: Names = Names {
    read: "direct read 4 KiB",
    counted: "pin_counted_vs_none",
    isolated: "pin_isolated_vs_none",
    p99: "pin_p99_counted_vs_none",
};

const ON_ZRAM: Names = Names {
    read: "zram, direct read 4 KiB",
    counted: "pin_counted_vs_none_zram",
    isolated: "pin_isolated_vs_none_zram",
    p99: "pin_p99_counted_vs_none_zram",
};

const SOURCE: &str = "source";
const BUFFERS: &str = "buffers";

/// A file of cached pages, each in a folio of its own.
fn buffers(place: &Place) -> Result<Rc<File>, BenchError> {
    place.make(BUFFERS, (DEPTH * PAGE) as u64)?;
    let made = || {
        let file = place.ours(BUFFERS)?;
        file.advise(Advice::Random, ..)?;
        let mut page = vec![0; PAGE];
        for at in (0..DEPTH).rev() {
            file.read_exact_at(&mut page, (at * PAGE) as u64)?;
        }
        Ok::<_, io::Error>(Rc::new(file))
    };
    made().map_err(|error| BenchError::setup(BUFFERS, error))
}

/// One pin and unpin of a cached page, and a plain reference.
fn alone(place: &Place) -> Result<Match, BenchError> {
    let file = buffers(place)?;
    let pin = |variant, mode| {
        let file = Rc::clone(&file);
        timed(variant, move || {
            drop(black_box(file.pin(0..PAGE as u64, mode)?));
            Ok(())
        })
    };
    let reference = Arc::new(());
    Ok(Match {
        contestants: vec![
            pin("for reads", PinMode::READ),
            timed("a plain reference", move || {
                drop(black_box(Arc::clone(&reference)));
                Ok(())
            }),
            pin("for writes", PinMode::WRITE),
        ],
        ratios: vec![
            RatioPlan::new("pin_vs_reference", 0, 1),
            RatioPlan::new("pin_write_vs_reference", 2, 1),
        ],
        ..Match::default()
    })
}

fn timed(variant: &'static str, one: impl FnMut() -> io::Result<()> + 'static) -> Contestant {
    Contestant {
        name: "pin_ns",
        variant,
        work: Work::Pass {
            threads: 1,
            unit: "ns",
            pass: Box::new(Timed(one)),
        },
    }
}

struct Timed<F>(F);

impl<F: FnMut() -> io::Result<()>> Pass for Timed<F> {
    fn run(&mut self) -> io::Result<Outcome> {
        let start = Instant::now();
        for _ in 0..PINS {
            (self.0)()?;
        }
        Ok(Outcome::plain(
            start.elapsed().as_nanos() as f64 / f64::from(PINS),
        ))
    }
}

/// What a request does with the folio that it reads into.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Nothing,
    Counted,
    Isolated,
}

fn reads(place: Place, settings: &Settings, len: u64, names: &Names) -> Result<Match, BenchError> {
    place.make(SOURCE, len)?;
    let file = buffers(&place)?;
    let opened = || {
        Ok::<_, io::Error>(Reader {
            source: open_direct(&place.path(SOURCE))?.into(),
            ring: IoUring::new(DEPTH as u32)?,
            pinned: file.pin(.., PinMode::WRITE.long_term())?,
            pins: (0..DEPTH).map(|_| None).collect(),
            begun: [Instant::now(); DEPTH],
            times: Times::new(),
            pos: 0,
            len,
            seconds: settings.seconds,
            file: Rc::clone(&file),
        })
    };
    let reader = opened().map_err(|error| BenchError::setup(SOURCE, error))?;
    let reader = Rc::new(RefCell::new(reader));
    let place = Rc::new(place);
    let mut one = Match::default();
    let mut add = |variant, way| {
        let turn = Turn {
            way,
            reader: Rc::clone(&reader),
            _place: Rc::clone(&place),
        };
        one.add(names.read, variant, Work::pass(1, "op/s", turn))
    };
    let none = add("not pinned", Way::Nothing);
    let counted = add(OURS, Way::Counted);
    let isolated = add("isolated", Way::Isolated);
    one.ratios = vec![
        RatioPlan::new(names.counted, counted, none).at_least(0.97),
        RatioPlan::new(names.isolated, isolated, none),
        RatioPlan::new(names.p99, counted, none).of_p99(),
    ];
    Ok(one)
}

/// The ring, the source, and the buffers. Requests have ended between two turns.
struct Reader {
    source: fs::File,
    ring: IoUring,
    /// All of the buffers.
    pinned: FolioPin,
    /// Those of requests in flight.
    pins: Vec<Option<FolioPin>>,
    begun: [Instant; DEPTH],
    times: Times,
    pos: u64,
    len: u64,
    seconds: f64,
    file: Rc<File>,
}

impl Reader {
    fn submit(&mut self, slot: usize, addr: *mut u8, way: Way) -> io::Result<()> {
        self.begun[slot] = Instant::now();
        if way != Way::Nothing {
            let start = (slot * PAGE) as u64;
            let pin = self.file.pin(start..start + PAGE as u64, PinMode::WRITE)?;
            if way == Way::Isolated {
                pin.isolate();
            }
            self.pins[slot] = Some(pin);
        }
        let source = types::Fd(self.source.as_raw_fd());
        let read = opcode::Read::new(source, addr, PAGE as u32).offset(self.pos);
        self.pos = (self.pos + PAGE as u64) % self.len;
        // SAFETY: see the module's header.
        let pushed = unsafe { (self.ring.submission()).push(&read.build().user_data(slot as u64)) };
        pushed.map_err(io::Error::other)
    }

    fn run(&mut self, way: Way) -> io::Result<Outcome> {
        let addresses: Vec<*mut u8> = self.pinned.parts().map(|part| part.addr).collect();
        whole(addresses.len(), DEPTH)?;
        let meter = Meter::start();
        let until = Instant::now() + Duration::from_secs_f64(self.seconds);
        for (slot, &addr) in addresses.iter().enumerate() {
            self.submit(slot, addr, way)?;
        }
        let (mut in_flight, mut reads) = (DEPTH, 0_u64);
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
                self.times.add(now - self.begun[slot]);
                in_flight -= 1;
                whole(done.result().max(0) as usize, PAGE)?;
                reads += 1;
                if now < until {
                    self.submit(slot, addresses[slot], way)?;
                    in_flight += 1;
                }
            }
        }
        let cost = meter.stop();
        Ok(Outcome {
            cost: Some((cost, reads * PAGE as u64)),
            latency: Some(Times::drain(std::iter::once(&mut self.times))),
            ..Outcome::plain(reads as f64 / cost.seconds)
        })
    }
}

/// A turn of one of the ways.
struct Turn {
    way: Way,
    reader: Rc<RefCell<Reader>>,
    _place: Rc<Place>,
}

impl Pass for Turn {
    fn run(&mut self) -> io::Result<Outcome> {
        let done = self.reader.borrow_mut().run(self.way);
        if done.is_err() {
            // Requests may be under way, and write to what is pinned: for ever then.
            std::mem::forget(Rc::clone(&self.reader));
        }
        done
    }
}
