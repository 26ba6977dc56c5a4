//! Compares mounts of one directory: sequential reads or writes through each, in turns.
//!
//! # Model
//!
//! ```text
//!  round 1: mount A, mount B, mount C    round 2: B, C, A    …    medians, and ratios to A
//! ```
//!
//! Every mount shows the same directory and runs before this starts; `compare_mounts.sh` beside
//! this file mounts them and calls it. The first pass over each mount warms it and is not counted.
//! A ratio compares both sides within one round, so a disturbance longer than a round affects both.

use clap::Parser;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Barrier;
use std::time::{Duration, Instant};
use std::{io, thread};

const O_DIRECT: i32 = 0o40000;
const ALIGNMENT: usize = 4096;
const MIB: u64 = 1 << 20;
/// Clock ticks a second in `/proc`, the same on every Linux.
const TICKS: f64 = 100.0;

/// Sequential reads or writes of one file through several mounts of its directory, in turns.
#[derive(Parser)]
struct Arguments {
    /// NAME=DIRECTORY or NAME=DIRECTORY@PID, PID being the process that serves the mount.
    #[arg(required = true, value_parser = place)]
    places: Vec<Place>,
    /// Name of the file; made anew in the first directory if it is missing or has another size.
    #[arg(long, default_value = "compare-mounts.data")]
    file: String,
    /// Size of the file in MiB.
    #[arg(long, default_value_t = 256)]
    size: u64,
    /// Bytes of a request, in KiB.
    #[arg(long, default_value_t = 1024)]
    request: u64,
    /// Readers at once, each of the whole file; one starts where the next is half way.
    #[arg(long, default_value_t = 1)]
    readers: u64,
    /// Counted rounds.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Passes over the file in a round.
    #[arg(long, default_value_t = 2)]
    passes: u64,
    /// Write instead, with fsync at the end; one writer.
    #[arg(long)]
    write: bool,
    /// Leave fsync out of the measured writes.
    #[arg(long)]
    no_fsync: bool,
    /// Before each pass have the kernel drop the mount's own pages of the file.
    #[arg(long)]
    drop: bool,
    /// Open the file with O_DIRECT in the place of this name.
    #[arg(long, value_name = "NAME")]
    direct: Vec<String>,
}

#[derive(Clone)]
struct Place {
    name: String,
    directory: PathBuf,
    pid: Option<u32>,
}

fn place(text: &str) -> Result<Place, String> {
    let (name, rest) = text.split_once('=').ok_or("NAME=DIRECTORY is expected")?;
    let (directory, pid) = match rest.rsplit_once('@') {
        Some((directory, pid)) => (directory, Some(pid.parse().map_err(|_| "no such PID")?)),
        None => (rest, None),
    };
    Ok(Place {
        name: name.to_owned(),
        directory: directory.into(),
        pid,
    })
}

/// The measurement of one place in one round.
struct Sample {
    mib_per_second: f64,
    cpu_seconds_per_gib: f64,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error may be closed.
            let _ = writeln!(io::stderr(), "compare_mounts: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> io::Result<()> {
    prepare(&arguments.places[0].directory, arguments)?;
    let mut samples: Vec<Vec<Sample>> = arguments.places.iter().map(|_| Vec::new()).collect();
    for round in 0..=arguments.rounds {
        for turn in 0..samples.len() {
            let which = (round + turn) % samples.len();
            let sample = measure(&arguments.places[which], arguments)?;
            if round > 0 {
                samples[which].push(sample);
            }
        }
    }
    report(arguments, &samples)
}

fn prepare(directory: &Path, arguments: &Arguments) -> io::Result<()> {
    let path = directory.join(&arguments.file);
    let size = arguments.size * MIB;
    if fs::metadata(&path).is_ok_and(|found| found.len() == size) {
        return Ok(());
    }
    let file = File::create(&path)?;
    let mut block = vec![0; MIB as usize];
    for number in 0..arguments.size {
        for (index, word) in block.chunks_exact_mut(8).enumerate() {
            let mixed = (number << 32 | index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            word.copy_from_slice(&mixed.to_le_bytes());
        }
        file.write_all_at(&block, number * MIB)?;
    }
    file.sync_all()
}

fn measure(place: &Place, arguments: &Arguments) -> io::Result<Sample> {
    let path = place.directory.join(&arguments.file);
    let direct = arguments.direct.contains(&place.name);
    let mut took = Duration::ZERO;
    let mut cpu = 0.0;
    for _ in 0..arguments.passes {
        if arguments.drop {
            drop_pages(&path)?;
        }
        let before = cpu_seconds(place.pid)?;
        took += if arguments.write {
            write_pass(&path, direct, arguments)?
        } else {
            read_pass(&path, direct, arguments)?
        };
        cpu += cpu_seconds(place.pid)? - before;
    }
    let readers = if arguments.write {
        1
    } else {
        arguments.readers
    };
    let mib = (arguments.size * arguments.passes * readers) as f64;
    Ok(Sample {
        mib_per_second: mib / took.as_secs_f64(),
        cpu_seconds_per_gib: cpu * 1024.0 / mib,
    })
}

/// GNU dd's way to have the kernel drop the pages of one file.
fn drop_pages(path: &Path) -> io::Result<()> {
    let mut source = std::ffi::OsString::from("if=");
    source.push(path);
    let done = Command::new("dd")
        .arg(source)
        .args(["iflag=nocache", "count=0", "status=none"])
        .status()?;
    if done.success() {
        Ok(())
    } else {
        Err(io::Error::other("dd could not drop the file's pages"))
    }
}

/// Processor seconds of this process and of the serving one so far.
fn cpu_seconds(server: Option<u32>) -> io::Result<f64> {
    let mut ticks = 0.0;
    let own = Some("self".to_owned());
    for who in [own, server.map(|pid| pid.to_string())]
        .into_iter()
        .flatten()
    {
        let text = fs::read_to_string(format!("/proc/{who}/stat"))?;
        // The name is in parentheses and may hold anything; user and system time are the 12th and
        // 13th fields behind it.
        let fields = text.rsplit(')').next().unwrap_or_default();
        let times = fields.split_whitespace().skip(11).take(2);
        ticks += times.map(|field| field.parse().unwrap_or(0.0)).sum::<f64>();
    }
    Ok(ticks / TICKS)
}

fn open(options: &mut OpenOptions, direct: bool, path: &Path) -> io::Result<File> {
    if direct {
        options.custom_flags(O_DIRECT);
    }
    options.open(path)
}

/// A buffer that was touched, and the part of it that O_DIRECT takes.
fn buffer(len: usize) -> (Vec<u8>, usize) {
    let memory = vec![1; len + ALIGNMENT];
    let start = memory.as_ptr().align_offset(ALIGNMENT);
    (memory, start)
}

fn read_pass(path: &Path, direct: bool, arguments: &Arguments) -> io::Result<Duration> {
    let (request, size) = (arguments.request << 10, arguments.size * MIB);
    let readers = arguments.readers.max(1);
    let barrier = Barrier::new(readers as usize + 1);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..readers)
            .map(|reader| {
                let first = (size / readers * reader) / request * request;
                let barrier = &barrier;
                scope.spawn(move || {
                    let file = open(OpenOptions::new().read(true), direct, path);
                    let (mut memory, start) = buffer(request as usize);
                    let buffer = &mut memory[start..start + request as usize];
                    barrier.wait();
                    read_whole(&file?, first, size, buffer)
                })
            })
            .collect();
        barrier.wait();
        let start = Instant::now();
        for thread in threads {
            thread
                .join()
                .map_err(|_| io::Error::other("a reader panicked"))??;
        }
        Ok(start.elapsed())
    })
}

/// Reads from `first` to the end, and then the part before it.
fn read_whole(file: &File, first: u64, size: u64, buffer: &mut [u8]) -> io::Result<()> {
    for (mut pos, end) in [(first, size), (0, first)] {
        while pos < end {
            let want = buffer.len().min((end - pos) as usize);
            let n = file.read_at(&mut buffer[..want], pos)?;
            if n == 0 {
                return Err(io::Error::other("the file is shorter than it was"));
            }
            pos += n as u64;
        }
    }
    Ok(())
}

fn write_pass(path: &Path, direct: bool, arguments: &Arguments) -> io::Result<Duration> {
    let (request, size) = (arguments.request << 10, arguments.size * MIB);
    let file = open(OpenOptions::new().write(true), direct, path)?;
    let (memory, start) = buffer(request as usize);
    let begin = Instant::now();
    let mut pos = 0;
    while pos < size {
        let want = request.min(size - pos) as usize;
        file.write_all_at(&memory[start..start + want], pos)?;
        pos += want as u64;
    }
    let written = begin.elapsed();
    // In any case, so that the next place does not pay for it.
    file.sync_data()?;
    Ok(if arguments.no_fsync {
        written
    } else {
        begin.elapsed()
    })
}

fn median(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let median = if values.len() % 2 == 1 {
        values[middle]
    } else {
        (values[middle - 1] + values[middle]) / 2.0
    };
    (median, values[0], values[values.len() - 1])
}

fn report(arguments: &Arguments, samples: &[Vec<Sample>]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "{} of {} MiB, {} KiB a request, {} at once, {} rounds of {} passes",
        if arguments.write { "write" } else { "read" },
        arguments.size,
        arguments.request,
        if arguments.write {
            1
        } else {
            arguments.readers
        },
        arguments.rounds,
        arguments.passes,
    )?;
    writeln!(
        out,
        "{:<28} {:>22} {:>26} {:>12}",
        "", "MiB/s (least to most)", "the first is n times it", "CPU s/GiB"
    )?;
    for (place, own) in arguments.places.iter().zip(samples) {
        let (speed, least, most) = median(own.iter().map(|one| one.mib_per_second).collect());
        let pairs = samples[0].iter().zip(own);
        let (ratio, low, high) = median(
            pairs
                .map(|(first, one)| first.mib_per_second / one.mib_per_second)
                .collect(),
        );
        let (cpu, _, _) = median(own.iter().map(|one| one.cpu_seconds_per_gib).collect());
        writeln!(
            out,
            "{:<28} {:>22} {:>26} {:>12}",
            place.name,
            format!("{speed:.0} ({least:.0} to {most:.0})"),
            format!("{ratio:.2} ({low:.2} to {high:.2})"),
            format!("{cpu:.2}"),
        )?;
    }
    Ok(())
}
