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
//! Ours are written in pieces of 4 MiB, which makes folios of 2 MiB: what differs between 4 KiB, 64 KiB and 2 MiB is
//! `fault_around_bytes` alone. Ratios with the kernel are those of the inline mode.
//!
//! Random reads are in [`map_random`](super::map_random).

mod files;

use foliocache::LockedAccess::Untracked;
use foliocache::MappingFaults::{Inline, Thread};
use foliocache::{Cache, HugePages, MapAccess, MappingFaults};
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::{map_random, memory};
use crate::case::{Case, Match, Outcome, Pass, Plan, RatioPlan, Work};
use crate::cost::Meter;
use crate::error::BenchError;
use crate::files::PAGE;
use crate::mapped::{Access, touch};
use crate::place::{Folder, MIB, check_room};
use crate::settings::{Settings, Uses};
use files::{KernelFile, LoopFile, OurFile};

/// See the module.
pub(crate) struct Fault;

/// Bytes that a loop maps, of a bound that holds them.
const LEN: usize = 128 * MIB;

/// The least bound of a cache whose files are mapped.
const LEAST_MEMORY: u64 = 16 << 20;

const STORES: &str = "map, store, unmap";
const LOADS: &str = "map, load, unmap";
const FAULTS: &str = "faults of stores";

const TMPFS: &str = "kernel, tmpfs";
const EXT4: &str = "kernel, ext4";
const EXT4_WRITTEN: &str = "kernel, ext4, written";
const HUGE: &str = "kernel, tmpfs huge=always";

const INLINE_4K: &str = "foliocache inline, 4 KiB";
const INLINE_64K: &str = "foliocache inline, 64 KiB";
const INLINE_2M: &str = "foliocache inline, 2 MiB";
const THREAD_4K: &str = "foliocache thread, 4 KiB";
const THREAD_64K: &str = "foliocache thread, 64 KiB";
const THREAD_2M: &str = "foliocache thread, 2 MiB";
const OURS_HUGE: &str = "foliocache inline, huge pages";
const OURS_ON_EXT4: &str = "foliocache inline, on ext4, 2 MiB";
const UNTRACKED: &str = "foliocache, locked, untracked";

/// Ours by what a fault maps at most, in bytes: orders 0, 4 and 9.
const OURS_INLINE: [(&str, u32); 3] = [
    (INLINE_4K, 4 << 10),
    (INLINE_64K, 64 << 10),
    (INLINE_2M, 2 << 20),
];
const OURS_THREAD: [(&str, u32); 3] = [
    (THREAD_4K, 4 << 10),
    (THREAD_64K, 64 << 10),
    (THREAD_2M, 2 << 20),
];

/// A ratio whose operands are told by their variants.
type Named = (RatioPlan, &'static str, &'static str);

const fn ratio(name: &'static str, of: &'static str, to: &'static str) -> Named {
    (RatioPlan::new(name, 0, 0), of, to)
}

const fn aim(name: &'static str, of: &'static str, to: &'static str, least: f64) -> Named {
    (RatioPlan::new(name, 0, 0).at_least(least), of, to)
}

const STORE_RATIOS: [Named; 11] = [
    aim("fault_vs_kernel_64k", INLINE_64K, TMPFS, 1.5),
    aim("fault_vs_kernel_2m", INLINE_2M, TMPFS, 2.5),
    aim("fault_batched_vs_single", INLINE_64K, INLINE_4K, 5.0),
    aim("resident_vs_tmpfs_huge", UNTRACKED, HUGE, 0.95),
    aim("fault_huge_vs_ext4", OURS_HUGE, EXT4, 10.0),
    ratio("fault_huge_vs_ext4_written", OURS_HUGE, EXT4_WRITTEN),
    ratio("fault_2m_vs_ext4", INLINE_2M, EXT4),
    ratio("fault_2m_vs_ext4_written", INLINE_2M, EXT4_WRITTEN),
    ratio("fault_on_ext4_vs_kernel", OURS_ON_EXT4, EXT4),
    ratio("fault_thread_vs_inline_64k", THREAD_64K, INLINE_64K),
    ratio("fault_thread_vs_inline_2m", THREAD_2M, INLINE_2M),
];

const LOAD_RATIOS: [Named; 2] = [
    ratio("read_fault_vs_kernel_64k", INLINE_64K, TMPFS),
    ratio("read_fault_thread_vs_inline_64k", THREAD_64K, INLINE_64K),
];

/// How many times fewer.
const FAULT_RATIOS: [Named; 2] = [
    ratio("faults_reduced", INLINE_4K, INLINE_64K),
    ratio("faults_reduced_2m", INLINE_4K, INLINE_2M),
];

impl Case for Fault {
    fn name(&self) -> &'static str {
        "fault"
    }

    fn about(&self) -> &'static str {
        "page faults of mapped files: page_fault3, and random reads of a file four times the memory"
    }

    fn settings(&self, quick: bool) -> Settings {
        let settings = match quick {
            true => Settings::bounded(4, 0.2, 64 << 20),
            false => Settings::bounded(10, 1.0, 256 << 20),
        };
        Settings {
            threads: 2,
            ..settings
        }
    }

    fn takes(&self, quick: bool) -> u32 {
        if quick { 60 } else { 400 }
    }

    fn uses(&self) -> Uses {
        Uses {
            threads: true,
            ..Uses::FILES
        }
    }

    fn plan(&self, settings: &Settings) -> Result<Plan, BenchError> {
        let memory = memory(settings, self)?;
        if memory < LEAST_MEMORY {
            return Err(BenchError::Setting("memory: at least 16 MiB for mappings"));
        }
        // The turns of loops are many, and those of random reads long.
        let time = Duration::from_secs_f64(settings.seconds / 8.0);
        let len = LEN.min(memory as usize);
        let mut plan = Plan::default();
        let files = Files::new(settings, len, &mut plan)?;
        plan.matches = vec![
            files.loops(STORES, Access::Store, time),
            files.loops(LOADS, Access::Load, time),
            files.faults(),
        ];
        map_random::plan(settings, memory, &mut plan)?;
        Ok(plan)
    }
}

/// Files to map, each with the name of its variant.
struct Files(Vec<(&'static str, Rc<dyn LoopFile>)>);

impl Files {
    /// Adds to the plan where they are, and what is left out.
    fn new(settings: &Settings, len: usize, plan: &mut Plan) -> Result<Self, BenchError> {
        let disk = Folder::on_disk(settings)?;
        check_room(disk.path(), 3 * len as u64 + (64 << 20), 3)?;
        let memory = Folder::in_memory(&settings.helper)?;
        plan.place = Some(format!("tmpfs, and {}", disk.describe()));
        let small = memory.mount_tmpfs("small", "never")?;
        let huge = memory.mount_tmpfs("huge", "always");
        let (disk, memory) = (Rc::new(disk), Rc::new(memory));
        let mut files = Self(Vec::new());
        let on_ext4 = disk.kind() == "ext4";
        let kernels = |folder, dir: &Path, name, written| {
            let path = dir.join(name);
            KernelFile::new(folder, &path, len, written)
        };
        files.add(TMPFS, kernels(&memory, &small, "file", true))?;
        if on_ext4 {
            files.add(EXT4, kernels(&disk, disk.path(), "stored", false))?;
            let written = kernels(&disk, disk.path(), "written", true);
            files.add(EXT4_WRITTEN, written)?;
        } else {
            let note = format!("nothing on ext4: the folder is on {}", disk.kind());
            plan.notes.push(note);
        }
        match huge {
            Ok(huge) => files.add(HUGE, kernels(&memory, &huge, "file", true))?,
            Err(error) => plan.notes.push(format!("nothing in huge pages: {error}")),
        }
        for (faults, variants) in [(Inline, OURS_INLINE), (Thread, OURS_THREAD)] {
            if let Err(error) = can_map(faults) {
                let note = format!("no mappings of ours, {faults:?}: {error}");
                plan.notes.push(note);
                continue;
            }
            for (variant, around) in variants {
                files.add(variant, OurFile::new(None, len, faults, around))?;
            }
            if faults == Inline {
                files.add(UNTRACKED, OurFile::new_locked(len, Untracked))?;
            }
            if faults == Inline {
                let why = match OurFile::new_huge(len, faults) {
                    Ok(ours) if ours.huge == HugePages::On => {
                        files.add(OURS_HUGE, Ok::<_, io::Error>(ours))?;
                        None
                    }
                    Ok(ours) => Some(ours.huge.to_string()),
                    Err(error) => Some(error.to_string()),
                };
                let note = why.map(|why| format!("nothing of ours in huge pages: {why}"));
                plan.notes.extend(note);
            }
            if on_ext4 && faults == Inline {
                let ours = OurFile::new(Some(&disk), len, faults, 2 << 20);
                files.add(OURS_ON_EXT4, ours)?;
            }
        }
        Ok(files)
    }

    fn add<E: Into<io::Error>>(
        &mut self,
        variant: &'static str,
        file: Result<impl LoopFile + 'static, E>,
    ) -> Result<(), BenchError> {
        let file = file.map_err(|error| BenchError::setup(variant, error.into()))?;
        self.0.push((variant, Rc::new(file)));
        Ok(())
    }

    /// The ratios of those variants that there are.
    fn ratios(&self, ratios: &[Named]) -> Vec<RatioPlan> {
        let place = |variant: &str| self.0.iter().position(|(name, _)| *name == variant);
        let planned = |&(plan, of, to): &Named| Some(plan.between(place(of)?, place(to)?));
        ratios.iter().filter_map(planned).collect()
    }

    /// All of them in turns.
    fn loops(&self, name: &'static str, access: Access, time: Duration) -> Match {
        let mut one = Match::default();
        for (variant, file) in &self.0 {
            let file = Rc::clone(file);
            let loops = Loops { file, access, time };
            one.add(name, variant, Work::pass(1, "pages/s", loops));
        }
        one.ratios = match access {
            Access::Store => self.ratios(&STORE_RATIOS),
            Access::Load => self.ratios(&LOAD_RATIOS),
        };
        one
    }

    /// How many faults a loop of stores takes.
    fn faults(&self) -> Match {
        let mut one = Match {
            exact: true,
            ..Match::default()
        };
        for (variant, file) in &self.0 {
            one.add(
                FAULTS,
                variant,
                Work::pass(1, "faults", Faults(Rc::clone(file))),
            );
        }
        one.ratios = self.ratios(&FAULT_RATIOS);
        one
    }
}

/// Whether the process may resolve page faults like this.
pub(super) fn can_map(faults: MappingFaults) -> foliocache::Result<()> {
    let cache = Cache::builder().memory("32M").mapping_faults(faults);
    let file = cache.build()?.memfs()?.create_new("probe")?;
    file.set_len(PAGE as u64)?;
    file.map(.., MapAccess::Read).map(drop)
}

/// Maps, stores to and unmaps a file, once; the figure is the number of faults.
struct Faults(Rc<dyn LoopFile>);

impl Pass for Faults {
    fn run(&mut self) -> io::Result<Outcome> {
        let before = self.0.faults()?;
        let mapped = self.0.map()?;
        touch(&*mapped, Access::Store);
        let faults = self.0.faults()? - before;
        Ok(Outcome::plain(faults as f64))
    }
}

/// Maps, accesses and unmaps a file, over and over.
struct Loops {
    file: Rc<dyn LoopFile>,
    access: Access,
    /// For so long.
    time: Duration,
}

impl Pass for Loops {
    fn run(&mut self) -> io::Result<Outcome> {
        let meter = Meter::start();
        let (start, mut pages) = (Instant::now(), 0);
        while pages == 0 || start.elapsed() < self.time {
            let mapped = self.file.map()?;
            touch(&*mapped, self.access);
            pages += self.file.len() / PAGE;
        }
        let cost = meter.stop();
        Ok(Outcome {
            cost: Some((cost, (pages * PAGE) as u64)),
            ..Outcome::plain(pages as f64 / cost.seconds)
        })
    }
}
