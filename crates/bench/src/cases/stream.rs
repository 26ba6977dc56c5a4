//! Files four times the memory, read and written by several threads, with and without leaving them in the cache.
//!
//! # Model
//!
//! Requests of 64 KiB, each thread through its part of the file, round and round: the shape of the measurements
//! that came with the kernel's own uncached reads. Each turn begins with the file in no cache, so a cache fills
//! up in the first part of a turn and evicts in the rest; the series shows it, a line for each second.
//!
//! | match | contestants |
//! |---|---|
//! | read | ours cached, uncached, views; kernel buffered and `RWF_DONTCACHE`; `O_DIRECT` |
//! | once | ours cached and uncached, once through the file |
//! | longer | ours cached and uncached, kernel buffered: the series of 14 seconds, in two rounds |
//! | one thread | ours uncached, kernel buffered: processor time |
//! | write | ours cached, uncached; kernel buffered and `RWF_DONTCACHE`; once through, fdatasync included |
//! | fairness | a cached writer beside an uncached one, and beside a second cached one, each in its file |
//! | hot set | pages of a second file, read twice, that are in the cache after an uncached scan, and without one |
//!
//! Going round, a cache that keeps a part of the file reads less of it from the disk (the column of the device), and where the
//! disk is the limit it is faster by that. Uncached reads keep nothing, so they are compared with cached ones by a pass
//! that reads each byte once.
//!
//! `O_DIRECT` is there at depth 1, a request of each thread at a time, and at that depth of an io_uring for each
//! thread that is fastest here, found before the match. The kernel's are processes in a memory cgroup of the bound's
//! size; its threads reclaim by themselves, so their time is the callers'. On the disk first, then on a
//! [compressed disk in memory](crate::zram), where the processor is the limit: there `O_DIRECT` of the same requests and
//! threads is compared with, and the fastest depth stated beside.

use foliocache_sys::{Errno, testing};
use std::os::fd::AsFd;

use crate::case::Figure;
use crate::cases::prelude::*;
use crate::file_bed::{By, DIRECT, FILE, FileBed};
use crate::host::Host;
use crate::place::Buffer;
use crate::streams::{Shape, Time};

mod beside;

/// Bytes of a request.
const REQUEST: usize = 64 << 10;

const UNCACHED: &str = "foliocache uncached";
const VIEWS: &str = "foliocache views";
/// Seconds of the long series as a multiple of a turn's, and its rounds.
const LONGER: f64 = 3.5;
const LONG_ROUNDS: usize = 2;

const DONT_CACHE: &str = "kernel RWF_DONTCACHE, cgroup";

pub(super) fn plan(settings: &Settings) -> Result<Plan, BenchError> {
    let memory = settings.bound()?;
    let len = FILE_PER_MEMORY * memory;
    let shape = Shape {
        threads: settings.threads,
        in_turn: 1,
        len,
        request: REQUEST,
        time: Some(Time {
            seconds: settings.seconds,
            interval: settings.interval(),
        }),
    };
    let mut plan = Plan::default();
    let lens = [2 * len + memory / beside::MEMORY_PER_HOT, len];
    on_disk_and_zram(&mut plan, settings, lens, |place, at, plan| {
        let bed = FileBed::new(place, settings, len)?;
        matches(&bed, shape, at, plan)?;
        if !at.zram {
            plan.matches.extend(beside::plan(&bed, shape, memory)?);
        }
        Ok(())
    })?;
    Ok(plan)
}

/// Adds reads by several threads and by one, and writes.
fn matches(bed: &Rc<FileBed>, shape: Shape, at: At, plan: &mut Plan) -> Result<(), BenchError> {
    let (depth, fastest) = bed.fastest_depth(shape, false)?;
    let dont_cache = knows_dont_cache(bed).setting_up(DONT_CACHE)?;
    let name = at.name();
    plan.notes.push(format!(
        "O_DIRECT on {name}: fastest with {depth} requests of each thread under way"
    ));
    plan.notes.push(match dont_cache {
        true => {
            let kernel = Host::now().kernel;
            format!("RWF_DONTCACHE on {name} is that of Linux {kernel}")
        }
        false => {
            format!("no RWF_DONTCACHE on {name}: this kernel or file system does not know it")
        }
    });
    let cached = (OURS, By::Ours { uncached: false });
    let uncached = (UNCACHED, By::Ours { uncached: true });
    let buffered = (BUFFERED, By::Kernel { dont_cache: false });
    let dont_cache = dont_cache.then_some((DONT_CACHE, By::Kernel { dont_cache: true }));

    let (mut read, name) = (at.new_match(), "read 64 KiB");
    let direct = [(DIRECT, By::Direct), (fastest, By::Ring { depth })];
    let ours = [cached, uncached, (VIEWS, By::Views)];
    let kernels = [buffered].into_iter().chain(dont_cache);
    let all = ours.into_iter().chain(direct).chain(kernels.clone());
    bed.add(&mut read, name, all, (shape, false));
    let copy = at.pick("stream_uncached", "stream_zram_copy");
    let view = at.pick("stream_view_vs_direct_depth1", "stream_zram_view_vs_direct");
    // On zram the plain name is that of depth 1.
    read.suffix = "";
    ratios! { read;
        format!("{copy}_vs_direct{}", at.pick("", "_fastest")) => UNCACHED / fastest, at_least(at.pick(Some(0.98), None));
        format!("{copy}_vs_direct{}", at.pick("_depth1", "")) => UNCACHED / DIRECT, at_least(at.pick(None, Some(0.75)));
        view => VIEWS / DIRECT, at_least(at.pick(None, Some(0.9)));
    }
    read.suffix = at.new_match().suffix;
    ratios! { read;
        "stream_uncached_vs_cached" => UNCACHED / OURS;
        "stream_uncached_vs_kernel_buffered" => UNCACHED / BUFFERED;
        "stream_flatness" => UNCACHED / fastest, of_figure(Figure::Flatness), at_least(at.pick(Some(0.9), None));
        "stream_cpu_threads_vs_kernel_buffered" => UNCACHED / BUFFERED, of_figure(Figure::Cpu);
        "stream_uncached_vs_kernel_dontcache" => UNCACHED / DONT_CACHE;
    }

    let once = Shape {
        time: None,
        ..shape
    };
    let mut first = at.new_match();
    let both = [cached, uncached];
    bed.add(&mut first, "read 64 KiB once", both, (once, false));
    ratios! { first;
        "stream_uncached_vs_cached_once" => UNCACHED / OURS, at_least(0.98);
    }

    let longer = Shape {
        time: shape.time.map(|time| Time {
            seconds: LONGER * time.seconds,
            ..time
        }),
        ..shape
    };
    let mut long = Match {
        most_rounds: Some(LONG_ROUNDS),
        ..at.new_match()
    };
    let all = [cached, uncached, buffered];
    bed.add(&mut long, "read 64 KiB, longer", all, (longer, false));
    ratios! { long;
        "stream_flatness_vs_kernel_buffered" => UNCACHED / BUFFERED, of_figure(Figure::Flatness);
        "stream_longer_vs_kernel_buffered" => UNCACHED / BUFFERED;
    }

    let (alone, mut one) = (
        Shape {
            threads: 1,
            ..shape
        },
        at.new_match(),
    );
    bed.add(&mut one, name, [uncached, buffered], (alone, false));
    ratios! { one;
        "stream_cpu_vs_kernel_buffered" => UNCACHED / BUFFERED, of_figure(Figure::Cpu), at_most(at.pick(Some(1.1), None));
    }

    // Once through the file, and durable.
    let mut write = at.new_match();
    let all = [cached, uncached].into_iter().chain(kernels);
    bed.add(&mut write, "write 64 KiB, fdatasync", all, (once, true));
    ratios! { write;
        "write_uncached_vs_buffered" => UNCACHED / OURS, at_least(at.pick(Some(0.9), None));
        "write_uncached_vs_kernel_buffered" => UNCACHED / BUFFERED;
        "write_kernel_dontcache_vs_kernel_buffered" => DONT_CACHE / BUFFERED;
    }
    plan.matches.extend([read, first, long, one, write]);
    Ok(())
}

fn knows_dont_cache(bed: &FileBed) -> io::Result<bool> {
    let file = fs::File::open(bed.place.path(FILE))?;
    match testing::pread_dontcache(file.as_fd(), 0, Buffer::random(PAGE, 0).bytes()) {
        Ok(_) => Ok(true),
        Err(Errno::EOPNOTSUPP) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
