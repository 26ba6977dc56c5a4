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
//! One line for each ratio: on the left what is compared with, on the right what is compared. Below,
//! where it is known, what each row cost: processor seconds for 10⁹ bytes, of the process, of its parts that are
//! the cache's reclaim and its other threads, and of the kernel's own threads; the share of hits; and how long a read took, in microseconds. Streams have a line for each interval, a second if nothing else was said.

use std::fmt;

use crate::ratio::Target;
use crate::report::{Change, RatioReport, Report, Row};

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (host, settings) = (&self.host, &self.settings);
        let [one, five, fifteen] = host.load;
        write!(f, "{}: {} samples", self.case, settings.samples)?;
        match (settings.memory, settings.dirs.zip(settings.files)) {
            (Some(memory), _) => write!(f, ", memory bound {} MiB", memory >> 20)?,
            (None, Some((dirs, files))) => write!(f, ", trees of {dirs} times {files} files")?,
            (None, None) => write!(f, " of {} s", settings.seconds)?,
        }
        writeln!(
            f,
            ", taken in turns\n\
             {}, {} CPUs, {} GiB, Linux {}, {}; load {one} {five} {fifteen}\n",
            host.cpu,
            host.cpus,
            host.memory >> 30,
            host.kernel,
            host.kernel_files,
        )?;
        if host.debug_assertions {
            writeln!(f, "BUILT WITH DEBUG ASSERTIONS: the figures say nothing.\n")?;
        }
        writeln!(f, "{:>20}  {:>9}  {:>20}", "%stddev", "%change", "%stddev")?;
        writeln!(f, "{:>20}  {:>9}  {:>20}", "\\", "|", "\\")?;
        for change in self.ratios.iter().filter_map(|ratio| ratio.change) {
            self.change(f, change)?;
        }
        self.costs(f)?;
        self.series(f)?;
        writeln!(
            f,
            "\n{:<32} {:>8} {:>8} {:>8}  target",
            "ratio", "median", "min", "max"
        )?;
        for RatioReport {
            name,
            ratio,
            target,
            reached,
            ..
        } in &self.ratios
        {
            write!(
                f,
                "{name:<32} {:>8.3} {:>8.3} {:>8.3}",
                ratio.median, ratio.min, ratio.max
            )?;
            match target {
                None => {}
                Some(Target::AtLeast(least)) => write!(f, "  ≥ {least}")?,
                Some(Target::AtMost(most)) => write!(f, "  ≤ {most}")?,
                Some(Target::NotWorse { control }) => write!(f, "  not worse (see {control})")?,
                Some(Target::NotLonger { control }) => write!(f, "  not longer (see {control})")?,
            }
            writeln!(
                f,
                "{}",
                match (target, reached) {
                    (None, _) => "",
                    (_, Some(true)) => ": reached",
                    (_, Some(false)) => ": MISSED",
                    (_, None) => ": too few samples to say",
                }
            )?;
        }
        if !self.notes.is_empty() {
            writeln!(f)?;
        }
        self.notes
            .iter()
            .try_for_each(|note| writeln!(f, "Note: {note}."))
    }
}

impl Report {
    /// What the rows cost, where that is known.
    fn costs(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = |row: &&Row| row.cpu_s_per_gb.is_some() || row.hit_ratio.is_some();
        if !self.rows.iter().any(|row| known(&row)) {
            return Ok(());
        }
        writeln!(
            f,
            "\n{:>20}  {:>8}  {:>8}  {:>8}  {:>8}  {:>6}  {:>22}\n{:>20}  {:>8}  {:>8}  {:>8}  {:>8}  {:>6}  {:>22}",
            "",
            "CPU s/GB",
            "reclaim",
            "threads",
            "kthreads",
            "hits",
            "p50, p99, p99.9 µs",
            "%stddev",
            "|",
            "|",
            "|",
            "|",
            "|",
            "|"
        )?;
        for row in self.rows.iter().filter(known) {
            let [process, reclaim, background, kernel] = match row.cpu_s_per_gb {
                Some(cpu) => [cpu.process, cpu.reclaim, cpu.background, cpu.kernel_threads]
                    .map(|seconds| format!("{seconds:.3}")),
                None => Default::default(),
            };
            let hits = row
                .hit_ratio
                .map_or(String::new(), |hits| format!("{:.2}%", 100.0 * hits));
            let times = row.latency_us.map_or(String::new(), |times| {
                format!("{:.1} {:.1} {:.1}", times.p50, times.p99, times.p99_9)
            });
            writeln!(
                f,
                "{:>20}  {process:>8}  {reclaim:>8}  {background:>8}  {kernel:>8}  {hits:>6}  {times:>22}  {}  {}, {}: {}",
                figure(row),
                row.unit,
                row.name,
                threads(row),
                row.variant
            )?;
        }
        Ok(())
    }

    /// The intervals of streams: a table for each work, a column for each contestant.
    fn series(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let streams: Vec<&Row> = self
            .rows
            .iter()
            .filter(|row| !row.series.is_empty())
            .collect();
        for of_one in streams.chunk_by(|a, b| (a.name, a.threads) == (b.name, b.threads)) {
            let Row { name, unit, .. } = of_one[0];
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
            let in_round = of_one[0].series.len() / self.settings.samples;
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

    fn change(&self, f: &mut fmt::Formatter<'_>, change: Change) -> fmt::Result {
        let base = &self.rows[change.base];
        let with = &self.rows[change.with];
        let change = format!("{:+.1}%", 100.0 * (with.value / base.value - 1.0));
        write!(
            f,
            "{:>20}  {change:>9}  {:>20}  {}  ",
            figure(base),
            figure(with),
            base.unit
        )?;
        match (base.name == with.name, base.threads == with.threads) {
            (true, true) => writeln!(
                f,
                "{}, {}: {}, {}",
                base.name,
                threads(base),
                base.variant,
                with.variant
            ),
            (true, false) => writeln!(
                f,
                "{}, {}: {}, {}",
                base.name,
                base.variant,
                threads(base),
                threads(with)
            ),
            (false, _) => writeln!(
                f,
                "{} ({}, {}), {} ({}, {})",
                base.name,
                base.variant,
                threads(base),
                with.name,
                with.variant,
                threads(with)
            ),
        }
    }
}

fn figure(row: &Row) -> String {
    let places = if row.value < 100.0 { 2 } else { 0 };
    format!("{:.places$} ±{:>3.0}%", row.value, row.stddev_percent())
}

fn threads(row: &Row) -> String {
    match row.threads {
        1 => "1 thread".to_owned(),
        n => format!("{n} threads"),
    }
}
