//! The report as text, in the manner of the kernel's 0-day reports.
//!
//! # Model
//!
//! ```text
//!         %stddev   %change          %stddev
//!              \       |                  \
//!   1421857 ± 2%   +506.3%     8620011 ± 1%  op/s  write 4 KiB, 1 thread: kernel, foliocache
//! ```
//!
//! One line for each ratio: the baseline on the left, the contestant on the right. Below, where it is known, the
//! cost of each row: processor seconds for 10⁹ bytes, of the process, of the cache's reclaim and its other threads,
//! and of the kernel's own threads; the share of hits; the bytes read from the device for each byte; and the
//! latency of a read in microseconds. Streams have a line for each interval, by default a second.

use std::fmt;

use crate::case::Figure;
use crate::cases::find;
use crate::ratio::{Target, Verdict};
use crate::report::{RatioReport, Report, Row};
use crate::settings::Uses;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = &self.host;
        let load = |load: [f64; 3]| load.map(|load| load.to_string()).join(" ");
        writeln!(
            f,
            "{}: {}, taken in turns\n{host}, {}\n{}, load {} at the start, {} at the end\n",
            self.case,
            self.samples(),
            host.kernel_files,
            host.date,
            load(host.load),
            load(host.load_at_end),
        )?;
        if host.debug_assertions {
            writeln!(f, "BUILT WITH DEBUG ASSERTIONS: the figures say nothing.\n")?;
        }
        writeln!(f, "{:>20}  {:>9}  {:>20}", "%stddev", "%change", "%stddev")?;
        writeln!(f, "{:>20}  {:>9}  {:>20}", "\\", "|", "\\")?;
        let of_values = |ratio: &&RatioReport| ratio.plan.figure == Figure::Value;
        for ratio in self.ratios.iter().filter(of_values) {
            self.change(f, ratio)?;
        }
        self.costs(f)?;
        self.series(f)?;
        writeln!(
            f,
            "\n{:<36} {:>8} {:>8} {:>8}  {:>16}  target",
            "ratio", "median", "min", "max", "against itself"
        )?;
        for report in &self.ratios {
            let (name, ratio) = (&report.plan.name, report.ratio);
            let control = cell_of(report.control, |control| {
                format!("{:.3} to {:.3}", control.min, control.max)
            });
            let line = format!(
                "{name:<36} {:>8.3} {:>8.3} {:>8.3}  {control:>16}  {}",
                ratio.median,
                ratio.min,
                ratio.max,
                report.aim(": ")
            );
            writeln!(f, "{}", line.trim_end())?;
        }
        if !self.notes.is_empty() {
            writeln!(f)?;
        }
        self.notes
            .iter()
            .try_for_each(|note| writeln!(f, "Note: {note}."))
    }
}

impl RatioReport {
    /// The target, and the verdict, with `between` between the two; empty without a target.
    pub(crate) fn aim(&self, between: &str) -> String {
        let Some((target, verdict)) = self.plan.target.zip(self.verdict) else {
            return String::new();
        };
        let aim = match target {
            Target::AtLeast(least) => format!("≥ {least}"),
            Target::AtMost(most) => format!("≤ {most}"),
            Target::NotWorse => "not worse than against itself".to_owned(),
            Target::NotLonger => "not longer than against itself".to_owned(),
        };
        let verdict = match verdict {
            Verdict::Reached => "reached",
            Verdict::Missed => "MISSED",
            Verdict::TooFew => "too few samples to say",
            Verdict::Undecided => "undecided",
        };
        format!("{aim}{between}{verdict}")
    }
}

impl Report {
    /// The number and kind of samples.
    pub(crate) fn samples(&self) -> String {
        let settings = &self.settings;
        let mut text = format!("{} samples", settings.samples);
        if find(self.case).is_ok_and(|case| case.uses.has(Uses::SECONDS)) {
            text += &format!(" of {} s", settings.seconds);
        }
        if let Some((dirs, files)) = settings.dirs.zip(settings.files) {
            text += &format!(", trees of {dirs} times {files} files");
        }
        if let Some(memory) = settings.memory {
            text += &format!(", --memory {} MiB", memory >> 20);
        }
        text
    }

    /// The cost of the rows, where it is known.
    fn costs(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |cells: [&str; 8]| {
            let [
                figure,
                process,
                reclaim,
                threads,
                kernel,
                hits,
                device,
                times,
            ] = cells;
            format!(
                "{figure:>20}  {process:>8}  {reclaim:>8}  {threads:>8}  {kernel:>8}  {hits:>6}  {device:>6}  {times:>22}"
            )
        };
        let mut head = [
            [
                "",
                "CPU s/GB",
                "reclaim",
                "threads",
                "kthreads",
                "hits",
                "device",
                "p50, p99, p99.9 µs",
            ],
            ["%stddev", "|", "|", "|", "|", "|", "|", "|"],
        ]
        .map(line)
        .join("\n");
        head.insert(0, '\n');
        for row in &self.rows {
            let cpu = row.cpu_s_per_gb;
            let cpu = cpu.map(|cpu| [cpu.process, cpu.reclaim, cpu.background, cpu.kernel_threads]);
            let [process, reclaim, background, kernel] = cpu.map_or_else(Default::default, |cpu| {
                cpu.map(|seconds| format!("{seconds:.3}"))
            });
            let hits = cell_of(row.hit_ratio, |hits| format!("{:.2}%", 100.0 * hits));
            let device = cell_of(row.device_bytes_per_byte, |bytes| format!("{bytes:.2}"));
            let times = cell_of(row.latency_us, |times| {
                format!("{:.1} {:.1} {:.1}", times.p50, times.p99, times.p99_9)
            });
            let cells = [
                &process,
                &reclaim,
                &background,
                &kernel,
                &hits,
                &device,
                &times,
            ];
            if cells.iter().all(|cell| cell.is_empty()) {
                continue;
            }
            if !head.is_empty() {
                writeln!(f, "{}", std::mem::take(&mut head))?;
            }
            writeln!(
                f,
                "{}  {}  {}, {}: {}",
                line([
                    &figure(row),
                    &process,
                    &reclaim,
                    &background,
                    &kernel,
                    &hits,
                    &device,
                    &times
                ]),
                row.unit,
                row.name,
                threads(row),
                row.variant
            )?;
        }
        Ok(())
    }

    /// Rows with a figure for each interval.
    pub(crate) fn streams(&self) -> Vec<&Row> {
        let has_series = |row: &&Row| !row.series.is_empty();
        self.rows.iter().filter(has_series).collect()
    }

    /// The intervals of streams: a table for each work, a column for each contestant.
    fn series(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let streams = self.streams();
        for of_one in of_one_work(&streams) {
            let Row { name, unit, .. } = &of_one[0];
            writeln!(
                f,
                "\n{name}, {}, {unit} in each interval",
                threads(of_one[0])
            )?;
            for (column, row) in of_one.iter().enumerate() {
                writeln!(f, "{:>8}: {}", column + 1, row.variant)?;
            }
            let columns = 1..=of_one.len();
            write!(f, "{:>6}  {:>6}", "round", "s")?;
            columns
                .into_iter()
                .try_for_each(|column| write!(f, "  {column:>8}"))?;
            writeln!(f)?;
            let in_round = of_one[0].intervals();
            for at in 0..of_one[0].series.len() {
                let seconds = (at % in_round + 1) as f64 * self.settings.interval();
                write!(f, "{:>6}  {seconds:>6.2}", at / in_round + 1)?;
                of_one
                    .iter()
                    .try_for_each(|row| write!(f, "  {:>8.0}", row.series[at]))?;
                writeln!(f)?;
            }
        }
        Ok(())
    }

    fn change(&self, f: &mut fmt::Formatter<'_>, ratio: &RatioReport) -> fmt::Result {
        let [with, base] = self.rows_of(ratio, (ratio.plan.of, ratio.plan.to));
        let change = format!("{:+.1}%", 100.0 * (with.value / base.value - 1.0));
        write!(
            f,
            "{:>20}  {change:>9}  {:>20}  {}  ",
            figure(base),
            figure(with),
            base.unit
        )?;
        writeln!(f, "{}", compared(base, with, ", "))
    }
}

/// Rows beside one another that are of the same work.
pub(crate) fn of_one_work<'a, 'r>(rows: &'a [&'r Row]) -> impl Iterator<Item = &'a [&'r Row]> {
    rows.chunk_by(|a, b| (&a.name, a.threads) == (&b.name, b.threads))
}

/// The text of a cell, empty where there is nothing to say.
pub(crate) fn cell_of<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(String::new, text)
}

/// The work and the contestants; `between` stands between the two.
pub(crate) fn compared(one: &Row, other: &Row, between: &str) -> String {
    let [one_threads, threads] = [one, other].map(threads);
    let (what, variant) = (&other.name, other.variant);
    let same_threads = one.threads == other.threads;
    match (one.name == *what, same_threads || one.variant == variant) {
        (true, true) if same_threads => {
            format!("{what}, {threads}: {}{between}{variant}", one.variant)
        }
        (true, true) => format!("{what}, {variant}: {one_threads}{between}{threads}"),
        _ => format!(
            "{} ({}, {one_threads}){between}{what} ({variant}, {threads})",
            one.name, one.variant
        ),
    }
}

pub(crate) fn figure(row: &Row) -> String {
    let places = if row.value < 100.0 { 2 } else { 0 };
    format!("{:.places$} ±{:>3.0}%", row.value, row.stddev_percent())
}

pub(crate) fn threads(row: &Row) -> String {
    match row.threads {
        1 => "1 thread".to_owned(),
        n => format!("{n} threads"),
    }
}
