//! Pages written here and there, and made durable together: what a database does at a commit or a checkpoint. Default settings,
//! over a directory of the local disk, with the usual soft limit of 1,024 descriptors.
//!
//! # Model
//!
//! Over and over, in a file that all of is in memory: 1 to 5,000 writes of 4 KiB at random places, then `fdatasync`. Beside it
//! the kernel's buffered calls, and a directory that ours has to itself. Each side has a file of its own.

use foliocache::{Cache, DirectoryOptions, File};
use foliocache_sys::fd;
use std::cell::RefCell;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::create::USUAL_LIMIT;
use super::{DIRFS, KERNEL};
use crate::case::{Case, Match, Outcome, Pass, Plan, RatioPlan, Work};
use crate::error::BenchError;
use crate::files::PAGE;
use crate::latency::Times;
use crate::place::{Buffer, Folder, MIB, Random, check_room};
use crate::settings::{Settings, Uses};

/// See the module.
pub(crate) struct Scatter;

const EXCLUSIVE: &str = "foliocache, dirfs, exclusive";

/// The file takes this part of the memory.
const MEMORY_PER_FILE: u64 = 4;

/// Pages of a round, and what their ratios are called.
struct Shape {
    name: &'static str,
    pages: usize,
    vs_kernel: RatioPlan,
    p99_vs_kernel: &'static str,
    exclusive_vs_shared: &'static str,
}

const SHAPES: [Shape; 5] = [
    Shape {
        name: "write 1 page of 4 KiB, fdatasync",
        pages: 1,
        vs_kernel: RatioPlan::new("scatter1_vs_kernel", 0, 1).at_least(1.0),
        p99_vs_kernel: "scatter1_p99_vs_kernel",
        exclusive_vs_shared: "scatter1_exclusive_vs_shared",
    },
    Shape {
        name: "write 10 pages of 4 KiB, fdatasync",
        pages: 10,
        vs_kernel: RatioPlan::new("scatter10_vs_kernel", 0, 1).at_least(1.0),
        p99_vs_kernel: "scatter10_p99_vs_kernel",
        exclusive_vs_shared: "scatter10_exclusive_vs_shared",
    },
    Shape {
        name: "write 100 pages of 4 KiB, fdatasync",
        pages: 100,
        vs_kernel: RatioPlan::new("scatter100_vs_kernel", 0, 1).at_least(1.0),
        p99_vs_kernel: "scatter100_p99_vs_kernel",
        exclusive_vs_shared: "scatter100_exclusive_vs_shared",
    },
    Shape {
        name: "write 1,000 pages of 4 KiB, fdatasync",
        pages: 1_000,
        vs_kernel: RatioPlan::new("scatter1000_vs_kernel", 0, 1).at_least(1.1),
        p99_vs_kernel: "scatter1000_p99_vs_kernel",
        exclusive_vs_shared: "scatter1000_exclusive_vs_shared",
    },
    Shape {
        name: "write 5,000 pages of 4 KiB, fdatasync",
        pages: 5_000,
        vs_kernel: RatioPlan::new("scatter5000_vs_kernel", 0, 1).at_least(1.1),
        p99_vs_kernel: "scatter5000_p99_vs_kernel",
        exclusive_vs_shared: "scatter5000_exclusive_vs_shared",
    },
];

impl Case for Scatter {
    fn name(&self) -> &'static str {
        "scatter"
    }

    fn about(&self) -> &'static str {
        "1 to 5,000 pages written at random places of a file, durable together"
    }

    fn settings(&self, quick: bool) -> Settings {
        match quick {
            true => Settings::bounded(6, 0.2, 256 << 20),
            false => Settings::bounded(12, 1.0, 1 << 30),
        }
    }

    fn takes(&self, quick: bool) -> u32 {
        if quick { 25 } else { 200 }
    }

    fn uses(&self) -> Uses {
        Uses::FILES
    }

    fn plan(&self, settings: &Settings) -> Result<Plan, BenchError> {
        let memory = super::memory(settings, self)?;
        let folder = Rc::new(Folder::on_disk(settings)?);
        let len = memory / MEMORY_PER_FILE;
        check_room(folder.path(), 4 * len, 16)?;
        let failed = |error| BenchError::setup("a file", error);
        fd::set_open_file_limit(USUAL_LIMIT).map_err(|error| failed(error.into()))?;
        let side = |open: io::Result<Open>| {
            let open = open.and_then(|open| {
                open.fill(len)?;
                Ok(open)
            });
            let open = open.map_err(failed)?;
            Ok::<_, BenchError>(Rc::new(RefCell::new(open)))
        };
        let ours = |exclusive| Open::ours(&folder, memory, exclusive);
        let sides = [
            (DIRFS, side(ours(false))?),
            (KERNEL, side(Open::kernel(&folder))?),
            (EXCLUSIVE, side(ours(true))?),
        ];
        let mut plan = Plan {
            place: Some(folder.describe()),
            ..Plan::default()
        };
        for shape in &SHAPES {
            let mut one = Match::default();
            for (variant, open) in &sides {
                let rounds = Rounds {
                    open: open.clone(),
                    pages: shape.pages,
                    len,
                    time: Duration::from_secs_f64(settings.seconds),
                    random: Random(1),
                    folder: folder.clone(),
                };
                one.add(shape.name, variant, Work::pass(1, "pages/s", rounds));
            }
            one.ratios = vec![
                shape.vs_kernel,
                RatioPlan::new(shape.p99_vs_kernel, 0, 1).of_p99(),
                RatioPlan::new(shape.exclusive_vs_shared, 2, 0),
            ];
            plan.matches.push(one);
        }
        Ok(plan)
    }
}

/// A file that is open.
enum Open {
    Ours(Box<File>),
    Kernel(fs::File),
}

impl Open {
    fn ours(folder: &Folder, memory: u64, exclusive: bool) -> io::Result<Open> {
        let path = folder
            .path()
            .join(if exclusive { "exclusive" } else { "shared" });
        fs::create_dir(&path)?;
        let cache = Cache::builder().memory(memory).build()?;
        let options = DirectoryOptions::new().exclusive(exclusive);
        let directory = cache.directory_with(&path, options)?;
        let mut options = directory.open_options();
        let file = options.read(true).write(true).create(true).open("file")?;
        Ok(Open::Ours(Box::new(file)))
    }

    fn kernel(folder: &Folder) -> io::Result<Open> {
        let path = folder.path().join("kernel");
        Ok(Open::Kernel(fs::File::create_new(path)?))
    }

    fn fill(&self, len: u64) -> io::Result<()> {
        let mut buffer = Buffer::random(MIB, len);
        for pos in (0..len).step_by(MIB) {
            let part = MIB.min((len - pos) as usize);
            self.write(&buffer.bytes()[..part], pos)?;
        }
        self.sync()
    }

    fn write(&self, page: &[u8], pos: u64) -> io::Result<()> {
        match self {
            Open::Ours(file) => Ok(file.write_all_at(page, pos)?),
            Open::Kernel(file) => file.write_all_at(page, pos),
        }
    }

    fn sync(&self) -> io::Result<()> {
        match self {
            Open::Ours(file) => Ok(file.sync_data()?),
            Open::Kernel(file) => file.sync_data(),
        }
    }
}

/// One side's turns. The file goes before its folder.
struct Rounds {
    open: Rc<RefCell<Open>>,
    pages: usize,
    len: u64,
    time: Duration,
    random: Random,
    folder: Rc<Folder>,
}

impl Pass for Rounds {
    fn prepare(&mut self) -> io::Result<()> {
        // Nothing is on its way while it is measured.
        Ok(fd::syncfs(fs::File::open(self.folder.path())?.as_fd())?)
    }

    fn run(&mut self) -> io::Result<Outcome> {
        let (open, mut times) = (self.open.borrow(), Times::new());
        let mut buffer = Buffer::random(PAGE, self.random.next());
        let (start, mut written) = (Instant::now(), 0);
        while start.elapsed() < self.time {
            let begun = Instant::now();
            for _ in 0..self.pages {
                let page = self.random.below(self.len as usize / PAGE);
                open.write(buffer.bytes(), (page * PAGE) as u64)?;
            }
            open.sync()?;
            times.add(begun.elapsed());
            written += self.pages;
        }
        let value = written as f64 / start.elapsed().as_secs_f64();
        Ok(Outcome {
            latency: Some(Times::drain([&mut times].into_iter())),
            ..Outcome::plain(value)
        })
    }
}
