//! Whole files, one request after another: reading, writing, and sixteen readers at once.
//!
//! # Model
//!
//! A file four times the memory bound, so that no pass finds anything of the one before. Each pass
//! begins with the file in nobody's cache and goes through it once.
//!
//! | match | contestants |
//! |---|---|
//! | read | ours; `O_DIRECT` at depth 1 and at its fastest; the kernel's cache in a cgroup of the bound's size |
//! | write | ours and `O_DIRECT`, both depths, over blocks that are there, fdatasync included |
//! | streams | one reader; sixteen, each in its part, request by request in turn; sixteen threads |
//!
//! Requests have a MiB. `O_DIRECT` at depth 1 asks for what our caller asks for; at the other depth an io_uring has as
//! many requests under way as is fastest here, found before the match. On the disk first,
//! then on a [compressed disk in memory](crate::zram), which is faster than any disk, so that what
//! is left is the way to it. The streams ask for 128 KiB, as programs do: a request must not hide
//! what readahead does not do.
//!
//! Sixteen buffers do not fit the processor's nearest caches as one does: on zram, where nothing else
//! takes time, `O_DIRECT` itself loses by sixteen streams. What it keeps is the divisor there.

use std::rc::Rc;

use super::{BUFFERED, FILE_PER_MEMORY, OURS, memory};
use crate::case::{Case, Match, Plan, RatioPlan};
use crate::error::BenchError;
use crate::file_bed::{By, DIRECT, FileBed};
use crate::place::{MIB, Place};
use crate::settings::{Settings, Uses};
use crate::streams::Shape;

/// See the module.
pub(crate) struct Seq;

/// Readers that take turns.
const STREAMS: usize = 16;

/// What each of them asks for.
const STREAM_REQUEST: usize = 128 << 10;

impl Case for Seq {
    fn name(&self) -> &'static str {
        "seq"
    }

    fn about(&self) -> &'static str {
        "sequential reads and writes of a file four times the memory, on the disk and on zram"
    }

    fn settings(&self, quick: bool) -> Settings {
        let (samples, memory) = if quick {
            (4, 64 << 20)
        } else {
            (10, 256 << 20)
        };
        Settings {
            samples,
            memory: Some(memory),
            ..Settings::default()
        }
    }

    fn takes(&self, quick: bool) -> u32 {
        if quick { 60 } else { 420 }
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
        let mut plan = Plan {
            place: Some(disk.describe()),
            ..Plan::default()
        };
        let bed = FileBed::new(disk, settings, memory, len)?;
        matches(&bed, len, &ON_DISK, &mut plan)?;
        match Place::on_zram(settings, memory, len) {
            Ok(zram) => {
                let bed = FileBed::new(zram, settings, memory, len)?;
                matches(&bed, len, &ON_ZRAM, &mut plan)?;
            }
            Err(error) => plan.notes.push(format!("nothing on zram: {error}")),
        }
        Ok(plan)
    }
}

/// What rows and ratios are called and what they are to reach.
struct Names {
    place: &'static str,
    read: &'static str,
    write: &'static str,
    streams: &'static str,
    /// Ours to `O_DIRECT` at depth 1 and at the fastest.
    read_vs_direct1: RatioPlan,
    read_vs_fastest: &'static str,
    read_vs_buffered: &'static str,
    write_vs_direct1: RatioPlan,
    write_vs_fastest: &'static str,
    streams16: &'static str,
    streams16_threads: &'static str,
    /// The divisor of `streams16`, where `O_DIRECT` is to be one.
    streams16_direct: Option<&'static str>,
}

const ON_DISK: Names = Names {
    place: "the disk",
    read: "read 1 MiB",
    write: "write 1 MiB, fdatasync",
    streams: "read 128 KiB",
    read_vs_direct1: RatioPlan::new("seq_read_vs_direct_depth1", 0, 0).at_least(0.95),
    read_vs_fastest: "seq_read_vs_direct",
    read_vs_buffered: "seq_read_vs_kernel_buffered",
    write_vs_direct1: RatioPlan::new("seq_write_vs_direct_depth1", 0, 0).at_least(0.9),
    write_vs_fastest: "seq_write_vs_direct",
    streams16: "streams16_vs_one",
    streams16_threads: "streams16_threads_vs_one",
    streams16_direct: None,
};

const ON_ZRAM: Names = Names {
    place: "zram",
    read: "zram, read 1 MiB",
    write: "zram, write 1 MiB, fdatasync",
    streams: "zram, read 128 KiB",
    read_vs_direct1: RatioPlan::new("seq_read_vs_direct_depth1_zram", 0, 0).at_least(0.75),
    read_vs_fastest: "seq_read_vs_direct_zram",
    read_vs_buffered: "seq_read_vs_kernel_buffered_zram",
    write_vs_direct1: RatioPlan::new("seq_write_vs_direct_depth1_zram", 0, 0),
    write_vs_fastest: "seq_write_vs_direct_zram",
    streams16: "streams16_vs_one_zram",
    streams16_threads: "streams16_threads_vs_one_zram",
    streams16_direct: Some("streams16_direct_vs_one_zram"),
};

/// Adds the matches over one place.
fn matches(bed: &Rc<FileBed>, len: u64, names: &Names, plan: &mut Plan) -> Result<(), BenchError> {
    let whole = Shape {
        threads: 1,
        in_turn: 1,
        len,
        request: MIB,
        time: None,
    };
    let ours = By::Ours { uncached: false };
    for write in [false, true] {
        let (depth, fastest) = bed.fastest_depth(whole, write)?;
        plan.notes.push(format!(
            "O_DIRECT {} on {}: fastest with {depth} requests under way",
            if write { "writes" } else { "reads" },
            names.place
        ));
        let mut one = Match::default();
        let name = if write { names.write } else { names.read };
        let mut add = |variant, by| one.add(name, variant, bed.turn(by, whole, write));
        let first = add(OURS, ours);
        let direct = add(DIRECT, By::Direct);
        let ring = add(fastest, By::Ring { depth });
        let (vs_direct1, vs_fastest) = match write {
            false => (names.read_vs_direct1, names.read_vs_fastest),
            true => (names.write_vs_direct1, names.write_vs_fastest),
        };
        one.ratios = vec![
            vs_direct1.between(first, direct),
            RatioPlan::new(vs_fastest, first, ring),
        ];
        if !write {
            let by = By::Kernel { dont_cache: false };
            let kernel = one.add(name, BUFFERED, bed.turn(by, whole, write));
            let ratio = RatioPlan::new(names.read_vs_buffered, first, kernel);
            one.ratios.push(ratio);
        }
        plan.matches.push(one);
    }
    plan.matches.push(streams(bed, whole, names));
    Ok(())
}

fn streams(bed: &Rc<FileBed>, whole: Shape, names: &Names) -> Match {
    let mut one = Match::default();
    let mut add = |variant, by, threads, in_turn| {
        let shape = Shape {
            threads,
            in_turn,
            request: STREAM_REQUEST,
            ..whole
        };
        one.add(names.streams, variant, bed.turn(by, shape, false))
    };
    let ours = By::Ours { uncached: false };
    let single = add("one stream", ours, 1, 1);
    let in_turn = add("16 streams in turn", ours, 1, STREAMS);
    let threads = add("16 streams", ours, STREAMS, 1);
    let direct = names.streams16_direct.map(|name| {
        let single = add("O_DIRECT, one stream", By::Direct, 1, 1);
        let in_turn = add("O_DIRECT, 16 streams in turn", By::Direct, 1, STREAMS);
        (name, in_turn, single)
    });
    one.ratios = vec![
        RatioPlan {
            divisor: direct.map(|(_, in_turn, single)| (in_turn, single)),
            ..RatioPlan::new(names.streams16, in_turn, single).at_least(0.9)
        },
        RatioPlan::new(names.streams16_threads, threads, single),
    ];
    let direct = direct.map(|(name, in_turn, single)| RatioPlan::new(name, in_turn, single));
    one.ratios.extend(direct);
    one
}
