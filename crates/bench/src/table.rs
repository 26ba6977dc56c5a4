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
//! One line for each ratio: on the left what is compared with, on the right what is compared.

use std::fmt;

use crate::ratio::Target;
use crate::report::{RatioReport, Report, Row};

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (host, settings) = (&self.host, &self.settings);
        let [one, five, fifteen] = host.load;
        writeln!(
            f,
            "{}: {} samples of {} s a figure, taken in turns\n\
             {}, {} CPUs, {} GiB, Linux {}, {}; load {one} {five} {fifteen}\n",
            self.case,
            settings.samples,
            settings.seconds,
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
        for ratio in &self.ratios {
            self.change(f, ratio)?;
        }
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
                Some(Target::NotWorse { control }) => write!(f, "  not worse (see {control})")?,
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
        Ok(())
    }
}

impl Report {
    fn change(&self, f: &mut fmt::Formatter<'_>, ratio: &RatioReport) -> fmt::Result {
        let base = &self.rows[ratio.change.base];
        let with = &self.rows[ratio.change.with];
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
    format!("{:.0} ±{:>3.0}%", row.value, row.stddev_percent())
}

fn threads(row: &Row) -> String {
    match row.threads {
        1 => "1 thread".to_owned(),
        n => format!("{n} threads"),
    }
}
