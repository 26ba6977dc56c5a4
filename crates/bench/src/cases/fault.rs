//! Page faults of mapped files: the loop `page_fault3` of will-it-scale, and random reads of a file four times the
//! memory bound.
//!
//! # Model
//!
//! A *loop* maps 128 MiB of a file, stores a byte to each page, or loads one, and unmaps. The figure is pages a
//! second, all of the loop included; a turn is as many loops as fit into its time. The file is in memory, so that
//! only faults are measured.
//!
//! | variant | the file | faults of 32,768 stores |
//! |---|---|---|
//! | kernel, tmpfs | folios of 4 KiB | 32,768 |
//! | kernel, ext4 | folios made by stores into a file without blocks, as `page_fault3` has it: the readahead's | 2,800 |
//! | kernel, ext4, written | made by writes of 4 MiB: 2 MiB | 64 |
//! | kernel, tmpfs huge=always | huge pages | 64 |
//! | foliocache inline, 64 KiB | in a memory file system of ours; a fault maps so much at most | 2,050 |
//! | foliocache thread, … | the same, resolved by threads of the cache | as many |
//! | foliocache inline, on ext4, … | in a directory; its pages stay dirty, as the kernel's do | 80 |
//! | foliocache inline, huge pages | the same, in huge pages of the kernel's pool, if `vm.nr_hugepages` has enough | 64 |
//! | foliocache, locked, untracked | kept in memory, in huge pages, and mapped without faults of ours | the kernel's: 64 |
//!
//! Ours are written in pieces of 4 MiB, which makes folios of 2 MiB: only `fault_around_bytes` differs between 4
//! KiB, 64 KiB and 2 MiB. Ratios with the kernel are those of the inline mode.
//!
//! Loads downwards and strided, and several threads, are in `patterns`; random reads are in [`map_random`](super::map_random).

mod files;
mod patterns;

use files::{Kind, LARGE, LoopFile, kernels, ours};
use foliocache::LockedAccess::Untracked;
use foliocache::MappingFaults::{Inline, Thread};
use foliocache::{Cache, HugePages, MapAccess, MappingFaults};
use std::path::Path;

use super::map_random;
use crate::cases::prelude::*;
use crate::cost::Meter;
use crate::mapped::{Access, touch};

/// Bytes that a loop maps, of a bound that holds them.
const LEN: usize = 128 * MIB;

/// The least bound of a cache whose files are mapped.
const LEAST_MEMORY: u64 = 16 << 20;

const TMPFS: &str = "kernel, tmpfs";
const EXT4: &str = "kernel, ext4";
const EXT4_WRITTEN: &str = "kernel, ext4, written";
const HUGE: &str = "kernel, tmpfs huge=always";

const INLINE_4K: &str = "foliocache inline, 4 KiB";
const INLINE_16K: &str = "foliocache inline, 16 KiB";
const INLINE_64K: &str = "foliocache inline, 64 KiB";
const INLINE_2M: &str = "foliocache inline, 2 MiB";
const THREAD_4K: &str = "foliocache thread, 4 KiB";
const THREAD_64K: &str = "foliocache thread, 64 KiB";
const THREAD_2M: &str = "foliocache thread, 2 MiB";
const OURS_HUGE: &str = "foliocache inline, huge pages";
const OURS_ON_EXT4: &str = "foliocache inline, on ext4, 2 MiB";
const UNTRACKED: &str = "foliocache, locked, untracked";

/// Ours by the most bytes that a fault maps: orders 0, 2 (the folios of the kernel's test of batched faults), 4 and 9; and those without faults of ours.
const OURS_INLINE: [(&str, Kind); 7] = [
    (INLINE_4K, Kind::Around(4 << 10)),
    (INLINE_16K, Kind::Around(16 << 10)),
    (INLINE_64K, Kind::Around(64 << 10)),
    (INLINE_2M, Kind::Around(2 << 20)),
    (UNTRACKED, Kind::Locked(Untracked)),
    (OURS_HUGE, Kind::Huge),
    (OURS_ON_EXT4, Kind::Around(2 << 20)),
];
const OURS_THREAD: [(&str, Kind); 3] = [
    (THREAD_4K, Kind::Around(4 << 10)),
    (THREAD_64K, Kind::Around(64 << 10)),
    (THREAD_2M, Kind::Around(2 << 20)),
];

pub(super) fn plan(settings: &Settings) -> Result<Plan, BenchError> {
    let memory = settings.bound()?;
    if memory < LEAST_MEMORY {
        return Err(BenchError::Setting("memory: at least 16 MiB for mappings"));
    }
    let mut plan = Plan::default();
    let len = LEN.min(memory as usize);
    let files = files(settings, len, &mut plan)?;
    // The turns of loops are many, and those of random reads long.
    let time = Duration::from_secs_f64(settings.seconds / 8.0);
    let (mut stores, mut loads) = (Match::default(), Match::default());
    let mut faults = Match {
        exact: true,
        ..Match::default()
    };
    for (variant, file) in &files {
        let loops = |access| {
            let file = Rc::clone(file);
            Work::pass(1, "pages/s", move || map_and_touch(&file, access, time))
        };
        stores.add("map, store, unmap", variant, loops(Access::Store));
        loads.add("map, load, unmap", variant, loops(Access::Load));
        let file = Rc::clone(file);
        let count = move || {
            let before = (file.faults)()?;
            let mapped = (file.map)()?;
            touch(&*mapped, Access::Store);
            Ok(Outcome::plain(((file.faults)()? - before) as f64))
        };
        faults.add("faults of stores", variant, Work::pass(1, "faults", count));
    }
    ratios! { stores;
        "fault_vs_kernel_64k" => INLINE_64K / TMPFS, at_least(1.5);
        "fault_vs_kernel_2m" => INLINE_2M / TMPFS, at_least(2.5);
        "fault_batched_vs_single" => INLINE_64K / INLINE_4K, at_least(5.0);
        "fault_batched_vs_single_16k" => INLINE_16K / INLINE_4K;
        "resident_vs_tmpfs_huge" => UNTRACKED / HUGE, at_least(0.95);
        "fault_huge_vs_ext4" => OURS_HUGE / EXT4, at_least(10.0);
        "fault_huge_vs_ext4_written" => OURS_HUGE / EXT4_WRITTEN;
        "fault_2m_vs_ext4" => INLINE_2M / EXT4;
        "fault_2m_vs_ext4_written" => INLINE_2M / EXT4_WRITTEN;
        "fault_on_ext4_vs_kernel" => OURS_ON_EXT4 / EXT4;
        "fault_thread_vs_inline_64k" => THREAD_64K / INLINE_64K;
        "fault_thread_vs_inline_2m" => THREAD_2M / INLINE_2M;
    }
    ratios! { loads;
        "read_fault_vs_kernel_64k" => INLINE_64K / TMPFS;
        "read_fault_thread_vs_inline_64k" => THREAD_64K / INLINE_64K;
    }
    // How many times fewer.
    ratios! { faults;
        "faults_reduced" => INLINE_4K / INLINE_64K;
        "faults_reduced_16k" => INLINE_4K / INLINE_16K;
        "faults_reduced_2m" => INLINE_4K / INLINE_2M;
    }
    plan.matches = vec![stores, loads, faults];
    patterns::plan(settings, len, &mut plan)?;
    map_random::plan(settings, &mut plan)?;
    Ok(plan)
}

/// Files to map, each with the name of its variant. Adds their places to the plan, and notes about
/// those left out.
fn files(
    settings: &Settings,
    len: usize,
    plan: &mut Plan,
) -> Result<Vec<(&'static str, Rc<LoopFile>)>, BenchError> {
    let disk = Folder::on_disk(settings)?;
    check_room(disk.path(), 3 * len as u64 + (64 << 20), 3)?;
    let memory = Folder::in_memory(&settings.helper)?;
    plan.place = Some(format!("tmpfs, and {}", disk.describe()));
    let small = memory.mount_tmpfs("small", "never")?;
    let huge = memory.mount_tmpfs("huge", "always");
    let mut files = Vec::new();
    let on_ext4 = disk.kind() == "ext4";
    let kernels = |variant, dir: &Path, name, written| {
        let file = kernels(&dir.join(name), len, written);
        Ok::<_, BenchError>((variant, Rc::new(file.setting_up(variant)?)))
    };
    files.push(kernels(TMPFS, &small, "file", true)?);
    if on_ext4 {
        let path = disk.path();
        files.push(kernels(EXT4, path, "stored", false)?);
        files.push(kernels(EXT4_WRITTEN, path, "written", true)?);
    } else {
        let note = format!("nothing on ext4: the folder is on {}", disk.kind());
        plan.notes.push(note);
    }
    match huge {
        Ok(huge) => files.push(kernels(HUGE, &huge, "file", true)?),
        Err(error) => plan.notes.push(format!("nothing in huge pages: {error}")),
    }
    for (faults, variants) in [(Inline, &OURS_INLINE[..]), (Thread, &OURS_THREAD)] {
        if let Err(error) = can_map(faults) {
            let note = format!("no mappings of ours, {faults:?}: {error}");
            plan.notes.push(note);
            continue;
        }
        for &(variant, kind) in variants {
            let on_disk = variant == OURS_ON_EXT4;
            if on_disk && !on_ext4 {
                continue;
            }
            let file = ours(on_disk.then_some(&disk), len, faults, kind, LARGE);
            let why = match &file {
                Ok(file) if file.huge == Some(HugePages::On) => None,
                Ok(file) => file.huge.as_ref().map(ToString::to_string),
                Err(error) => Some(error.to_string()),
            };
            match why.filter(|_| kind == Kind::Huge) {
                Some(why) => {
                    let note = format!("nothing of ours in huge pages: {why}");
                    plan.notes.push(note);
                }
                None => files.push((variant, Rc::new(file.setting_up(variant)?))),
            }
        }
    }
    plan.holds.push(Rc::new((disk, memory)));
    Ok(files)
}

/// Whether the process may resolve page faults like this.
pub(super) fn can_map(faults: MappingFaults) -> foliocache::Result<()> {
    let cache = Cache::builder().memory("32M").mapping_faults(faults);
    let file = cache.build()?.memfs()?.create_new("probe")?;
    file.set_len(PAGE as u64)?;
    file.map(.., MapAccess::Read).map(drop)
}

/// Maps, accesses and unmaps a file repeatedly, for `time`.
fn map_and_touch(file: &LoopFile, access: Access, time: Duration) -> io::Result<Outcome> {
    let meter = Meter::start();
    let (start, mut pages) = (Instant::now(), 0);
    while pages == 0 || start.elapsed() < time {
        let mapped = (file.map)()?;
        touch(&*mapped, access);
        pages += file.len / PAGE;
    }
    let cost = meter.stop();
    let outcome = Outcome::plain(pages as f64 / cost.seconds);
    Ok(outcome.cost(cost, (pages * PAGE) as u64))
}
