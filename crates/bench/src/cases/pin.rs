//! The cost of pins to a direct reader of pages, and of one pin by itself.
//!
//! # Model
//!
//! The reader of the seed's figures: 4 KiB each, in order, 64 in flight, past the kernel's cache, on a private
//! io_uring. It reads into folios of one page of a file of ours, in three ways: they are pinned once for all, so
//! that a request costs nothing; each request pins its folio and unpins it at its completion; and the same, with
//! the folio taken off reclaim's queue at the pin and put back at the unpin, as the seed did. A turn reads for a
//! while and continues in the source where the last one stopped.
//!
//! The pin of a cached page is also timed alone, beside a clone and drop of an uncontended `Arc`.
//!
//! # Safety
//!
//! A ring writes to folios that are pinned as long as the file of the buffers is open: all turns long.
#![allow(unsafe_code)]

use foliocache::{Advice, File, FolioPin, PinMode};
use io_uring::{IoUring, opcode, types};
use std::os::fd::AsRawFd;

use crate::cases::prelude::*;
use crate::cost::Meter;
use crate::place::open_direct;

/// Requests in flight.
const DEPTH: usize = 64;

/// Bytes of the source, in bounds.
const SOURCE_PER_MEMORY: u64 = 4;

/// Pins that are timed together.
const PINS: u32 = 200_000;

const SOURCE: &str = "source";
const BUFFERS: &str = "buffers";

const NOT_PINNED: &str = "not pinned";
const ISOLATED: &str = "isolated";

pub(super) fn plan(settings: &Settings) -> Result<Plan, BenchError> {
    let len = SOURCE_PER_MEMORY * settings.bound()?;
    let note = "the pages that are read into were told that reads are at random".to_owned();
    let mut plan = Plan {
        notes: vec![note],
        ..Plan::default()
    };
    on_disk_and_zram(&mut plan, settings, [len; 2], |place, at, plan| {
        place.make(SOURCE, len)?;
        let file = buffers(place)?;
        if !at.zram {
            plan.matches.push(alone(&file));
        }
        let reader = set_up(SOURCE, || {
            Ok(Rc::new(RefCell::new(Reader {
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
            })))
        })?;
        let mut one = at.new_match();
        for (variant, way) in [
            (NOT_PINNED, Way::Nothing),
            (OURS, Way::Counted),
            (ISOLATED, Way::Isolated),
        ] {
            let reader = Rc::clone(&reader);
            let turn = move || {
                let done = reader.borrow_mut().run(way);
                if done.is_err() {
                    // Requests in flight may write to the pinned pages, so these stay pinned for
                    // ever.
                    std::mem::forget(Rc::clone(&reader));
                }
                done
            };
            one.add("direct read 4 KiB", variant, Work::pass(1, "op/s", turn));
        }
        ratios! { one;
            "pin_counted_vs_none" => OURS / NOT_PINNED, at_least(0.97);
            "pin_isolated_vs_none" => ISOLATED / NOT_PINNED;
            "pin_p99_counted_vs_none" => OURS / NOT_PINNED, of_p99();
        }
        plan.matches.push(one);
        Ok(())
    })?;
    Ok(plan)
}

/// A file of cached pages, each in a separate folio.
fn buffers(place: &Place) -> Result<Rc<File>, BenchError> {
    place.make(BUFFERS, (DEPTH * PAGE) as u64)?;
    set_up(BUFFERS, || {
        let file = place.ours(BUFFERS)?;
        file.advise(Advice::Random, ..)?;
        let mut page = vec![0; PAGE];
        for at in (0..DEPTH).rev() {
            file.read_exact_at(&mut page, (at * PAGE) as u64)?;
        }
        Ok(Rc::new(file))
    })
}

/// One pin and unpin of a cached page, and a plain reference.
fn alone(file: &Rc<File>) -> Match {
    let mut one = Match::default();
    let pin = |mode| {
        let file = Rc::clone(file);
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

/// The pin that a request takes on the folio that it reads into.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Nothing,
    Counted,
    Isolated,
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
        let outcome = Outcome::plain(reads as f64 / cost.seconds);
        Ok(outcome
            .cost(cost, reads * PAGE as u64)
            .latency(Times::drain(std::iter::once(&mut self.times))))
    }
}
