//! Pages of a file four times the memory bound, by popularity, read by several threads; and the
//! cost of awaiting a hit.
//!
//! # Model
//!
//! Reads of 4 KiB with a zipf distribution of θ = 0.99, scattered over the file, by eight threads,
//! each with a separate handle and no advice. Ours and the kernel's read the same traces, each from
//! a separate file, and keep their caches from turn to turn; both have read twice as many pages as
//! the file has before the first turn.
//!
//! The kernel's side is a process in a memory cgroup of the bound's size. Its hits are the reads
//! that were not read from the disk. `O_DIRECT` reads the same trace past both caches, by each thread one read at a
//! time, and as many as are fastest here, by an io_uring of each thread; it has no hits.
//!
//! Hits are awaited on one page in memory, by a thread that polls once: a hit that is not ready then
//! is an error. Beside it the same open file is read by the blocking call.

use foliocache::{AsyncFile, File};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use crate::cases::prelude::*;
use crate::file_bed::DIRECT;
use crate::files::Ours as Hot;
use crate::readers::{Ours, Reader, Set, Way};
use crate::reads::{Read, Reads, Shape, Source, Trace, Until};
use crate::ring::fastest_depth;

/// Separate files, so that neither side finds the other's pages in a cache.
const FILE_OURS: &str = "data";
const FILE_KERNEL: &str = "data-of-the-kernels";

/// Variants, each with its source of reads.
type Contestants = Vec<(&'static str, Source)>;

/// Of all traces.
const SEED: u64 = 42;

pub(super) fn plan(settings: &Settings) -> Result<Plan, BenchError> {
    let len = FILE_PER_MEMORY * settings.bound()?;
    let mut plan = Plan::from(vec![hits()?]);
    on_disk_and_zram(&mut plan, settings, [2 * len; 2], |place, at, plan| {
        let (fastest, sources) = beside_others(place, settings, len)?;
        let mut one = at.new_match();
        for (variant, source) in &sources {
            let read = Read::new(Shape::Zipf, PAGE, settings.seconds);
            one.add("read 4 KiB, zipf", variant, source.work(read));
        }
        ratios! { one;
            "rand_read_vs_kernel" => OURS / BUFFERED, at_least(at.pick(Some(1.0), None));
            "rand_read_vs_direct_depth1" => OURS / DIRECT;
            "rand_read_vs_direct" => 0 / 3;
        }
        plan.matches.push(one);
        plan.notes.push(format!(
            "O_DIRECT on {}: fastest with {fastest} reads of each thread under way",
            at.name()
        ));
        Ok(())
    })?;
    Ok(plan)
}

/// Hits, awaited and not.
fn hits() -> Result<Match, BenchError> {
    const NAME: &str = "read 4 KiB, hit";
    let file = Hot::new(false)?.file("hit")?;
    let file = Arc::into_inner(file).expect("one handle");
    let file: AsyncFile = file.into_async().setting_up("an async file")?;
    let (again, mut page) = (file.clone(), PageBuf::new());
    let awaited = move || {
        let read = pin!(file.read_at(black_box(&mut page.0), 0));
        match read.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(read) => whole(read?, PAGE),
            Poll::Pending => Err(io::Error::other("a hit was not ready at its first poll")),
        }
    };
    let mut page = PageBuf::new();
    let blocking = move || whole(again.blocking().read_at(black_box(&mut page.0), 0)?, PAGE);
    let mut hits = Match::default();
    hits.operations(NAME, "foliocache, async", vec![repeat(awaited)]);
    hits.operations(NAME, OURS, vec![repeat(blocking)]);
    ratios! { hits; "async_vs_blocking_hits" => 0 / 1; }
    Ok(hits)
}

/// The readers, and the depth at which `O_DIRECT` is fastest.
fn beside_others(
    place: &Place,
    settings: &Settings,
    len: u64,
) -> Result<(usize, Contestants), BenchError> {
    let (memory, threads) = (settings.bound()?, settings.threads);
    let trace = Trace {
        zipf: true,
        ..Trace::new(threads, len, SEED)
    };
    let kernel = KernelSide::start(&settings.helper, place.guard(), memory, Some(trace))?;
    place.make(FILE_OURS, len)?;
    place.make(FILE_KERNEL, len)?;
    let files: Vec<Arc<File>> = set_up(FILE_OURS, || {
        (0..threads)
            .map(|_| Ok(Arc::new(place.ours(FILE_OURS)?)))
            .collect()
    })?;
    let warm_up = Some(Until {
        seconds: 600.0,
        reads: 2 * u64::from(trace.pages),
    });
    let reader = |file| Box::new(Ours::new(file, 1)) as Box<dyn Reader>;
    let readers = files.iter().map(reader).collect();
    let missed = move || Ok(files[0].stats()?.missed_pages);
    let ours = Source::here(&trace, warm_up, readers, missed);
    let set = Set::one(place.path(FILE_KERNEL));
    let kernel = Rc::new(RefCell::new(kernel));
    let of_kernel = (set.clone(), Way::Pread);
    let kernel = Source::kernel(threads, warm_up, &kernel, of_kernel);
    let direct = |depth| -> io::Result<_> {
        let mut readers = Way::Depth(depth).open(&set, threads)?;
        let mut reads = Reads::new(&trace);
        Ok(move |read: &Read| {
            let mut result = reads.run(&mut readers, read, || Ok(0))?;
            // It has no cache.
            result.misses = result.reads;
            Ok(result)
        })
    };
    let trial = Read::new(Shape::Zipf, PAGE, settings.seconds / 4.0);
    let (depth, fastest) = fastest_depth(|depth| {
        let result = direct(depth)?(&trial)?;
        Ok(result.reads as f64 / result.cost.seconds)
    })?;
    let mut sources = vec![(OURS, ours), (BUFFERED, kernel)];
    for (variant, depth) in [(DIRECT, 1), (fastest, depth)] {
        let direct = direct(depth).setting_up("O_DIRECT by io_uring")?;
        sources.push((variant, Source::new(threads, None, direct)));
    }
    Ok((depth, sources))
}
