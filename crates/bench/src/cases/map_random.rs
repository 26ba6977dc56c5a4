//! Random reads through a mapping of a file four times the memory bound; a part of [`fault`](super::fault).
//!
//! # Model
//!
//! Threads read 64 bytes at a time of random pages, all alike or by popularity (zipf, θ = 0.99), of a file four
//! times the bound, on the disk and on a compressed disk in memory. The kernel's side is a process in a memory
//! cgroup of the bound's size, with its default advice (a miss reads what lies around, as much as the device's
//! `read_ahead_kb` says) and with `MADV_RANDOM` (a miss reads its page). All read the same traces, each from a file of
//! its own that was in nobody's cache, and go on from turn to turn with what is cached; before the first turn each
//! has read twice as many pages as the file has, or for ten times the time of a turn.
//!
//! The kernel's hits are the reads that were no major fault.

use std::rc::Rc;

use super::rand::KernelTurn;
use super::{FILE_PER_MEMORY, KERNEL_DEFAULT, KERNEL_RANDOM};
use crate::case::{Contestant, Match, Plan, RatioPlan, Work};
use crate::error::BenchError;
use crate::files::PAGE;
use crate::kernel::{KernelSide, Way};
use crate::passes::{Popularity, Trace, Until};
use crate::place::Place;
use crate::settings::Settings;

/// Bytes of a read.
const READ: usize = 64;

/// Of all traces.
const SEED: u64 = 43;

/// What rows and ratios are called.
struct Names {
    popularity: Popularity,
    read: &'static str,
    /// `MADV_RANDOM` against the default.
    advice: &'static str,
}

const ON_DISK: [Names; 2] = [
    Names {
        popularity: Popularity::Uniform,
        read: "read 64 B, uniform",
        advice: "map_random_kernel_advice",
    },
    Names {
        popularity: Popularity::Zipf,
        read: "read 64 B, zipf",
        advice: "map_zipf_kernel_advice",
    },
];

const ON_ZRAM: [Names; 2] = [
    Names {
        popularity: Popularity::Uniform,
        read: "zram, read 64 B, uniform",
        advice: "map_random_kernel_advice_zram",
    },
    Names {
        popularity: Popularity::Zipf,
        read: "zram, read 64 B, zipf",
        advice: "map_zipf_kernel_advice_zram",
    },
];

/// Files: what one side has read is in nobody's cache for the others.
const FILE_DEFAULT: &str = "data-of-the-kernels";
const FILE_RANDOM: &str = "data-advised";

/// Adds the matches, and what is left out.
pub(super) fn plan(settings: &Settings, memory: u64, plan: &mut Plan) -> Result<(), BenchError> {
    let len = FILE_PER_MEMORY * memory;
    let (helper, dir) = (&settings.helper[..], settings.dir.as_deref());
    let disk = Place::on_disk(helper, dir, memory, 2 * len)?;
    if let Some(kib) = disk.read_ahead() {
        let note = format!("the kernel's default on the disk: it reads {kib} KiB around a miss");
        plan.notes.push(note);
    }
    plan.matches
        .extend(matches(disk, settings, memory, &ON_DISK)?);
    match Place::on_zram(helper, dir, memory, 2 * len) {
        Ok(zram) => plan
            .matches
            .extend(matches(zram, settings, memory, &ON_ZRAM)?),
        Err(error) => plan.notes.push(format!("nothing on zram: {error}")),
    }
    Ok(())
}

fn matches(
    mut place: Place,
    settings: &Settings,
    memory: u64,
    names: &[Names],
) -> Result<Vec<Match>, BenchError> {
    let len = FILE_PER_MEMORY * memory;
    let pages = (len / PAGE as u64) as u32;
    for name in [FILE_DEFAULT, FILE_RANDOM] {
        place.make(name, len)?;
    }
    let until = Until::seconds(settings.seconds);
    let warm_up = Until {
        seconds: 10.0 * settings.seconds,
        reads: 2 * u64::from(pages),
    };
    let mut sides = Vec::new();
    for names in names {
        let trace = Trace {
            threads: settings.threads,
            pages,
            popularity: names.popularity,
            len: READ,
            seed: SEED,
        };
        let mut side = || KernelSide::start(&settings.helper, place.guard(), memory, Some(trace));
        sides.push([side()?, side()?]);
    }
    let place = Rc::new(place);
    let matches = names.iter().zip(sides).map(|(names, [default, random])| {
        let contestant = |variant, kernel, file, advised| Contestant {
            name: names.read,
            variant,
            work: Work::Pass {
                threads: settings.threads,
                unit: "op/s",
                pass: Box::new(KernelTurn {
                    kernel,
                    path: place.path(file),
                    way: Way::Mapping { advised },
                    warm_up: Some(warm_up),
                    until,
                    len: READ,
                    _place: Rc::clone(&place),
                }),
            },
        };
        Match {
            contestants: vec![
                contestant(KERNEL_DEFAULT, default, FILE_DEFAULT, false),
                contestant(KERNEL_RANDOM, random, FILE_RANDOM, true),
            ],
            ratios: vec![RatioPlan::new(names.advice, 1, 0)],
        }
    });
    Ok(matches.collect())
}
