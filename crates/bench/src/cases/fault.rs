//! Page faults of mapped files: the loop `page_fault3` of will-it-scale, and random reads of a file four times the
//! memory bound.
//!
//! # Model
//!
//! A *loop* maps 128 MiB of a file, stores a byte to each page, or loads one, and unmaps. The figure is pages a
//! second, all of the loop included; a turn is as many loops as fit into its time. The file is in memory, so that
//! only faults are measured.
//!
//! | variant | folios | the kernel's faults of 32,768 stores |
//! |---|---|---|
//! | kernel, tmpfs | 4 KiB | 32,768 |
//! | kernel, ext4 | made by stores into a file without blocks, as `page_fault3` has it: the readahead's | 2,800 |
//! | kernel, ext4, written | made by writes of 4 MiB: 2 MiB | 64 |
//! | kernel, tmpfs huge=always | huge pages | 64 |
//!
//! Random reads are in [`map_random`](super::map_random).

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::{map_random, memory};
use crate::case::{Case, Contestant, Match, Outcome, Pass, Plan, RatioPlan, Work};
use crate::cost::Meter;
use crate::error::BenchError;
use crate::files::PAGE;
use crate::mapped::{Access, Kernels, page_faults, touch};
use crate::place::{Folder, MIB, check_room};
use crate::settings::{Settings, Uses};

/// See the module.
pub(crate) struct Fault;

/// Bytes that a loop maps, of a bound that holds them.
const LEN: usize = 128 * MIB;

/// Bytes of a write that makes the largest folios.
const LARGE: usize = 4 * MIB;

const STORES: &str = "map, store, unmap";
const LOADS: &str = "map, load, unmap";
const FAULTS: &str = "faults of stores";

const TMPFS: &str = "kernel, tmpfs";
const TMPFS_AGAIN: &str = "kernel, tmpfs again";

impl Case for Fault {
    fn name(&self) -> &'static str {
        "fault"
    }

    fn about(&self) -> &'static str {
        "page faults of mapped files: page_fault3, and random reads of a file four times the memory"
    }

    fn settings(&self, quick: bool) -> Settings {
        let (samples, seconds, memory) = match quick {
            true => (3, 0.2, 64 << 20),
            false => (9, 1.0, 256 << 20),
        };
        Settings {
            samples,
            seconds,
            threads: 2,
            memory: Some(memory),
            ..Settings::default()
        }
    }

    fn uses(&self) -> Uses {
        Uses {
            seconds: true,
            threads: true,
            memory: true,
            dir: true,
            ..Uses::NONE
        }
    }

    fn plan(&self, settings: &Settings) -> Result<Plan, BenchError> {
        let memory = memory(settings, self)?;
        // The turns of loops are many, and those of random reads long.
        let time = Duration::from_secs_f64(settings.seconds / 8.0);
        let len = LEN.min(memory as usize);
        let mut plan = Plan::default();
        let files = Files::new(settings, len, &mut plan)?;
        plan.matches = vec![
            files.loops(STORES, Access::Store, time, "fault_kernel_aa"),
            files.loops(LOADS, Access::Load, time, "read_fault_kernel_aa"),
            files.faults(),
        ];
        map_random::plan(settings, memory, &mut plan)?;
        Ok(plan)
    }
}

/// A file of the kernel's whose pages are in memory.
struct KernelFile {
    file: fs::File,
    len: usize,
    /// Taken away with the last of its files.
    _folder: Rc<Folder>,
}

impl KernelFile {
    /// A new one; written in pieces of 4 MiB, or not at all.
    fn new(folder: &Rc<Folder>, path: &Path, len: usize, written: bool) -> io::Result<Rc<Self>> {
        let mut options = fs::File::options();
        let file = options.read(true).write(true).create_new(true).open(path)?;
        file.set_len(len as u64)?;
        let piece = vec![1; LARGE.min(len)];
        for pos in (0..len).step_by(LARGE).take_while(|_| written) {
            file.write_all_at(&piece[..piece.len().min(len - pos)], pos as u64)?;
        }
        Ok(Rc::new(Self {
            file,
            len,
            _folder: Rc::clone(folder),
        }))
    }
}

/// Files to map: how they are kept, and they.
struct Files(Vec<(&'static str, Rc<KernelFile>)>);

impl Files {
    /// Adds to the plan where they are, and what is left out.
    fn new(settings: &Settings, len: usize, plan: &mut Plan) -> Result<Self, BenchError> {
        let helper = &settings.helper[..];
        let disk = Folder::on_disk(helper, settings.dir.as_deref())?;
        check_room(disk.path(), 2 * len as u64 + (64 << 20), 2)?;
        let mut memory = Folder::in_memory(helper)?;
        plan.place = Some(format!("tmpfs, and {}", disk.describe()));
        let small = memory.mount_tmpfs("small", "never")?;
        let huge = memory.mount_tmpfs("huge", "always");
        let (disk, memory) = (Rc::new(disk), Rc::new(memory));
        let mut files = Vec::new();
        let mut add = |variant, folder, dir: &Path, name, written| {
            let made = KernelFile::new(folder, &dir.join(name), len, written);
            files.push((
                variant,
                made.map_err(|error| BenchError::setup(variant, error))?,
            ));
            Ok::<_, BenchError>(())
        };
        add(TMPFS, &memory, &small, "file", true)?;
        match disk.kind().as_str() {
            "ext4" => {
                add("kernel, ext4", &disk, disk.path(), "stored", false)?;
                add("kernel, ext4, written", &disk, disk.path(), "written", true)?;
            }
            other => plan
                .notes
                .push(format!("nothing on ext4: the folder is on {other}")),
        }
        match huge {
            Ok(huge) => add("kernel, tmpfs huge=always", &memory, &huge, "file", true)?,
            Err(error) => plan.notes.push(format!("nothing in huge pages: {error}")),
        }
        Ok(Self(files))
    }

    /// All of them in turns, the first once more.
    fn loops(&self, name: &'static str, access: Access, time: Duration, aa: &'static str) -> Match {
        let again = self
            .0
            .first()
            .map(|(_, file)| (TMPFS_AGAIN, Rc::clone(file)));
        let all = self.0.iter().cloned().chain(again);
        let contestants: Vec<_> = all
            .map(|(variant, file)| Contestant {
                name,
                variant,
                work: Work::Pass {
                    threads: 1,
                    unit: "pages/s",
                    pass: Box::new(Loops { file, access, time }),
                },
            })
            .collect();
        let ratios = vec![RatioPlan::new(aa, contestants.len() - 1, 0)];
        Match {
            contestants,
            ratios,
        }
    }

    /// How many faults a loop of stores takes.
    fn faults(&self) -> Match {
        let all = self.0.iter();
        let contestants = all.map(|(variant, file)| Contestant {
            name: FAULTS,
            variant,
            work: Work::Pass {
                threads: 1,
                unit: "faults",
                pass: Box::new(Faults(Rc::clone(file))),
            },
        });
        Match {
            contestants: contestants.collect(),
            ratios: Vec::new(),
        }
    }
}

/// Maps, stores to and unmaps a file, once; the figure is the number of faults.
struct Faults(Rc<KernelFile>);

impl Pass for Faults {
    fn run(&mut self) -> io::Result<Outcome> {
        let before = page_faults()?;
        let mapped = Kernels::new(&self.0.file, self.0.len)?;
        touch(&mapped, Access::Store);
        let faults = page_faults()?.minor - before.minor;
        Ok(Outcome::plain(faults as f64))
    }
}

/// Maps, accesses and unmaps a file, over and over.
struct Loops {
    file: Rc<KernelFile>,
    access: Access,
    /// For so long.
    time: Duration,
}

impl Pass for Loops {
    fn run(&mut self) -> io::Result<Outcome> {
        let meter = Meter::start();
        let (start, mut pages) = (Instant::now(), 0);
        while pages == 0 || start.elapsed() < self.time {
            let mapped = Kernels::new(&self.file.file, self.file.len)?;
            touch(&mapped, self.access);
            pages += self.file.len / PAGE;
        }
        let cost = meter.stop();
        Ok(Outcome {
            cost: Some((cost, (pages * PAGE) as u64)),
            ..Outcome::plain(pages as f64 / cost.seconds)
        })
    }
}
