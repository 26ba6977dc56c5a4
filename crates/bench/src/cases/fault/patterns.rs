//! Loops that load pages up, down and strided, of files written in pieces of several sizes, and by threads on one file and on two; a part of
//! [`fault`](super).
//!
//! # Model
//!
//! A *loop* is that of the case. It loads each page from the first to the last, or from the last to the first, or every
//! 32nd page. The figure is pages that are touched a second. Ours are resolved inline, up to 2 MiB a fault, over files that
//! were written in order in pieces of 4 KiB, 16 KiB and 4 MiB. Folios may be larger than their pieces.
//!
//! With two threads each maps all of its file by itself.

use super::files::{Kind, LoopFile, kernels, ours};
use super::{INLINE_2M, INLINE_4K, TMPFS, can_map};
use crate::cases::prelude::*;
use crate::cost::Meter;
use crate::mapped::{Access, Order, touch_in};
use crate::threads::on_threads;
use foliocache::MappingFaults::Inline;

/// Pages from one load of the strided loop to the next: 128 KiB.
const STRIDE: usize = 32;

const KIB_4: &str = "foliocache inline, written by 4 KiB";
const KIB_16: &str = "foliocache inline, written by 16 KiB";
const MIB_2: &str = "foliocache inline, written by 4 MiB";
const KIB_16_SINGLE: &str = "foliocache inline, written by 16 KiB, 4 KiB";

/// Ours: pieces in which a file is written, and the end of the names of its ratios.
const OURS: [(&str, usize, &str); 3] = [
    (KIB_4, 4 << 10, "4k"),
    (KIB_16, 16 << 10, "16k"),
    (MIB_2, 4 * MIB, "2m"),
];

/// Adds the matches.
pub(super) fn plan(settings: &Settings, len: usize, plan: &mut Plan) -> Result<(), BenchError> {
    let time = Duration::from_secs_f64(settings.seconds / 8.0);
    let memory = Folder::in_memory(&settings.helper)?;
    let small = memory.mount_tmpfs("patterns", "never")?;
    let kernels = |name: &str| {
        let file = kernels(&small.join(name), len, true);
        Ok::<_, BenchError>(Arc::new(file.setting_up(TMPFS)?))
    };
    let files = [kernels("one")?, kernels("other")?];
    let mut sides = vec![(TMPFS, Arc::clone(&files[0]), "")];
    let mut pairs = vec![(TMPFS, files, "kernel")];
    let mut single = None;
    if can_map(Inline).is_ok() {
        let ours = |variant, around, piece| {
            let file = ours(None, len, Inline, Kind::Around(around), piece);
            Ok::<_, BenchError>(Arc::new(file.setting_up(variant)?))
        };
        for (variant, piece, id) in OURS {
            sides.push((variant, ours(variant, 2 << 20, piece)?, id));
        }
        let (_, large, _) = &sides[sides.len() - 1];
        let files = [Arc::clone(large), ours(MIB_2, 2 << 20, 4 * MIB)?];
        pairs.push((INLINE_2M, files, "ours"));
        single = Some(ours(INLINE_4K, 4 << 10, 16 << 10)?);
    }
    plan.matches.extend([
        orders(&sides, time),
        counts(&sides, single),
        by_threads(&pairs, time),
    ]);
    plan.holds.push(Rc::new(memory));
    Ok(())
}

fn orders(sides: &[(&'static str, Arc<LoopFile>, &str)], time: Duration) -> Match {
    let mut one = Match::default();
    let mut kernels = None;
    for (variant, file, id) in sides {
        let mut add = |name, order| {
            let files = vec![Arc::clone(file)];
            one.add(name, variant, loops(files, Access::Load, order, time))
        };
        let up = add("map, load up, unmap", Order::Up);
        let down = add("map, load down, unmap", Order::Down);
        let strided = add("map, load every 32nd page, unmap", Order::Every(STRIDE));
        let Some((of_down, of_strided)) = kernels else {
            kernels = Some((down, strided));
            one.ratio(RatioPlan::new("fault_down_vs_up_kernel", down, up));
            continue;
        };
        ratios! { one;
            format!("fault_down_vs_up_{id}") => down / up, at_least(0.9);
            format!("fault_down_vs_kernel_{id}") => down / of_down;
            format!("fault_strided_vs_kernel_{id}") => strided / of_strided;
        }
    }
    one
}

/// Faults of one loop, counted.
fn counts(sides: &[(&'static str, Arc<LoopFile>, &str)], single: Option<Arc<LoopFile>>) -> Match {
    let mut one = Match {
        exact: true,
        ..Match::default()
    };
    let count = |file: &Arc<LoopFile>, access, order| {
        let file = Arc::clone(file);
        Work::pass(1, "faults", move || {
            let before = (file.faults)()?;
            let mapped = (file.map)()?;
            touch_in(&*mapped, access, order);
            Ok(Outcome::plain(((file.faults)()? - before) as f64))
        })
    };
    let mut of_stores = None;
    for (variant, file, id) in sides {
        let up = one.add(
            "faults of loads up",
            variant,
            count(file, Access::Load, Order::Up),
        );
        let down = one.add(
            "faults of loads down",
            variant,
            count(file, Access::Load, Order::Down),
        );
        let every = Order::Every(STRIDE);
        one.add(
            "faults of loads of every 32nd page",
            variant,
            count(file, Access::Load, every),
        );
        if !id.is_empty() {
            one.ratio(RatioPlan::new(
                format!("load_faults_down_vs_up_{id}"),
                down,
                up,
            ));
        }
        if *variant == KIB_16 {
            let stores = count(file, Access::Store, Order::Up);
            of_stores = Some(one.add("faults of stores", variant, stores));
        }
    }
    if let (Some(file), Some(large)) = (single, of_stores) {
        let stores = count(&file, Access::Store, Order::Up);
        let single = one.add("faults of stores", KIB_16_SINGLE, stores);
        one.ratio(RatioPlan::new("faults_reduced_written_16k", single, large));
    }
    one
}

fn by_threads(pairs: &[(&'static str, [Arc<LoopFile>; 2], &str)], time: Duration) -> Match {
    let mut one = Match::default();
    for (variant, [first, second], id) in pairs {
        for (access, of) in [(Access::Store, "store"), (Access::Load, "load")] {
            let mut add = |files: &[&Arc<LoopFile>], on: &str| {
                let files = files.iter().copied().map(Arc::clone).collect();
                let name = format!("map, {of}, unmap, {on}");
                one.add(&name, variant, loops(files, access, Order::Up, time))
            };
            let alone = add(&[first], "one file");
            let shared = add(&[first, first], "one file");
            let apart = add(&[first, second], "two files");
            ratios! { one;
                format!("fault_{of}_threads_one_file_{id}") => shared / alone;
                format!("fault_{of}_threads_two_files_{id}") => apart / alone;
            }
        }
    }
    one
}

/// Loops over these files, each in a thread of its own.
fn loops(files: Vec<Arc<LoopFile>>, access: Access, order: Order, time: Duration) -> Work {
    Work::pass(files.len(), "pages/s", move || {
        let meter = Meter::start();
        let start = Instant::now();
        let pages = on_threads(&files, |_, file: &Arc<LoopFile>| {
            let mut pages = 0;
            while pages == 0 || start.elapsed() < time {
                let mapped = (file.map)()?;
                pages += touch_in(&*mapped, access, order);
            }
            Ok(pages)
        })?;
        let pages: usize = pages.iter().sum();
        let cost = meter.stop();
        let outcome = Outcome::plain(pages as f64 / cost.seconds);
        Ok(outcome.cost(cost, (pages * PAGE) as u64))
    })
}
