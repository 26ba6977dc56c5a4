//! The report as a section of a Markdown document.
//!
//! # Model
//!
//! ```text
//!  <!-- bench pread -->
//!  … heading, conditions, ratios, figures, notes
//!  <!-- end of bench pread -->
//! ```
//!
//! A document may have anything around its sections: a new run of a case replaces the text between the two marks,
//! or adds its section at the end.

use std::fmt::Write;

use crate::case::Figure;
use crate::report::{RatioReport, Report, Row};
use crate::stats::median;
use crate::table::{cell_of, compared, of_one_work, threads};

impl Report {
    /// A section with the case's ratios and figures, the machine and the conditions. It names no folder.
    pub fn markdown(&self) -> String {
        let mut text = String::new();
        self.write(&mut text)
            .expect("a text takes what is written to it");
        text
    }

    /// `document` with the section of this case replaced, or added at the end.
    ///
    /// # Errors
    /// It has the beginning of the section and no end, or more than one: the reason, in words.
    pub fn put_into(&self, document: &str) -> Result<String, String> {
        let [begin, end] = self.marks();
        let section = self.markdown();
        let (mut begins, mut ends) = (document.match_indices(&begin), document.match_indices(&end));
        match (begins.next(), ends.next()) {
            (None, None) if document.is_empty() => Ok(section),
            (None, None) => Ok(format!("{}\n\n{section}", document.trim_end())),
            (Some((from, _)), Some((to, _)))
                if from < to && begins.next().is_none() && ends.next().is_none() =>
            {
                let after = document[to + end.len()..].trim_start_matches('\n');
                let gap = if after.is_empty() { "" } else { "\n" };
                Ok(format!("{}{section}{gap}{after}", &document[..from]))
            }
            _ => Err(format!("{begin} and {end} are not there once each")),
        }
    }

    /// The marks around the section.
    fn marks(&self) -> [String; 2] {
        ["bench", "end of bench"].map(|mark| format!("<!-- {mark} {} -->", self.case))
    }

    fn write(&self, to: &mut String) -> std::fmt::Result {
        let ([begin, end], host) = (self.marks(), &self.host);
        writeln!(to, "{begin}")?;
        writeln!(to, "### `bench {}`: {}\n", self.case, self.about)?;
        writeln!(
            to,
            "{host}; {}; {}; {}; load {} at the start and {} at the end.\n",
            without_folders(&host.kernel_files),
            self.samples(),
            host.date,
            host.load[0],
            host.load_at_end[0],
        )?;
        if host.debug_assertions {
            writeln!(
                to,
                "**Built with debug assertions: the figures say nothing.**\n"
            )?;
        }
        writeln!(
            to,
            "| ratio | of what | median | range | against itself | aim |\n|---|---|---|---|---|---|"
        )?;
        for ratio in &self.ratios {
            self.ratio_line(to, ratio)?;
        }
        let has_device = (self.rows.iter()).any(|row| row.device_bytes_per_byte.is_some());
        writeln!(
            to,
            "\n| work | by | figure | p50, p99, p99.9 in µs | CPU s/GB | hits |{}\n|---|---|---|---|---|---|{}",
            if has_device { " device |" } else { "" },
            if has_device { "---|" } else { "" },
        )?;
        for row in &self.rows {
            row_line(to, row, has_device)?;
        }
        let streams = self.streams();
        for of_one in of_one_work(&streams) {
            self.series_of(to, of_one)?;
        }
        if !self.notes.is_empty() {
            writeln!(to)?;
        }
        for note in &self.notes {
            writeln!(to, "- {}.", cell(&without_folders(note)))?;
        }
        writeln!(to, "{end}")
    }

    fn ratio_line(&self, to: &mut String, ratio: &RatioReport) -> std::fmt::Result {
        let control = cell_of(ratio.control, |control| {
            format!("{} to {}", short(control.min), short(control.max))
        });
        line(
            to,
            &format!(
                "| `{}` | {} | {} | {} to {} | {control} | {} |",
                ratio.plan.name,
                cell(&self.meaning(ratio)),
                short(ratio.ratio.median),
                short(ratio.ratio.min),
                short(ratio.ratio.max),
                ratio.aim(", "),
            ),
        )
    }

    /// The figures of streams in each interval: medians of the rounds, a column for each contestant.
    fn series_of(&self, to: &mut String, rows: &[&Row]) -> std::fmt::Result {
        let first = rows[0];
        let head = rows.iter().map(|row| cell(row.variant));
        writeln!(
            to,
            "\n{}, {}, {} in each interval:\n\n| s | {} |\n|---|{}",
            cell(&first.name),
            threads(first),
            first.unit,
            head.collect::<Vec<_>>().join(" | "),
            "---|".repeat(rows.len()),
        )?;
        for at in 0..first.intervals() {
            let seconds = (at + 1) as f64 * self.settings.interval();
            write!(to, "| {seconds:.2} |")?;
            for row in rows {
                let rounds: Vec<f64> = (row.series.chunks(row.intervals()))
                    .map(|round| round[at])
                    .collect();
                write!(to, " {:.0} |", median(&rounds))?;
            }
            writeln!(to)?;
        }
        Ok(())
    }

    /// The dividend and the divisor, in words.
    fn meaning(&self, ratio: &RatioReport) -> String {
        let plan = &ratio.plan;
        let of = |pair| {
            let [with, base] = self.rows_of(ratio, pair);
            compared(with, base, " over ")
        };
        let figure = match plan.figure {
            Figure::Value => "",
            Figure::P50 => "median of the time: ",
            Figure::P99 => "99th percentile of the time: ",
            Figure::Cpu => "processor time for each byte: ",
            Figure::Flatness => "slowest interval over the median one: ",
        };
        let divisor = cell_of(plan.divisor, |pair| format!("; divided by {}", of(pair)));
        let or = cell_of(plan.or, |pair| format!("; or {}, if less", of(pair)));
        format!("{figure}{}{divisor}{or}", of((plan.of, plan.to)))
    }
}

/// Bytes from the device for each byte have a column where they are known.
fn row_line(to: &mut String, row: &Row, has_device: bool) -> std::fmt::Result {
    let times = cell_of(row.latency_us, |times| {
        format!("{:.1}, {:.1}, {:.1}", times.p50, times.p99, times.p99_9)
    });
    let cpu = cell_of(row.cpu_s_per_gb, |cpu| format!("{:.2}", cpu.process));
    let hits = cell_of(row.hit_ratio, |hits| format!("{:.1} %", 100.0 * hits));
    let device = cell_of(row.device_bytes_per_byte, |bytes| format!(" {bytes:.2}"));
    let device = cell_of(has_device.then_some(device), |device| format!("{device} |"));
    line(
        to,
        &format!(
            "| {}, {} | {} | {} {}, ±{:.0} % | {times} | {cpu} | {hits} |{device}",
            cell(&row.name),
            threads(row),
            cell(row.variant),
            short(row.value),
            row.unit,
            row.stddev_percent(),
        ),
    )
}

/// A line of a table, empty cells a blank wide.
fn line(to: &mut String, cells: &str) -> std::fmt::Result {
    writeln!(
        to,
        "{}",
        cells.replace("|  |", "| |").replace("|  |", "| |")
    )
}

/// Three digits or so.
fn short(figure: f64) -> String {
    let (figure, unit) = match figure.abs() {
        1e6.. => (figure / 1e6, " M"),
        1e5.. => (figure / 1e3, " k"),
        _ => (figure, ""),
    };
    let places = match figure.abs() {
        ..10.0 => 2,
        10.0..100.0 => 1,
        _ => 0,
    };
    format!("{figure:.places$}{unit}")
}

/// Text that stays in its cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

/// The text without its paths, and without the word before each: a machine's folders tell the
/// reader nothing.
fn without_folders(text: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for word in text.split(' ') {
        let path = word.trim_end_matches([',', ';', ':', '.']);
        if path.starts_with('/') && path.len() > 1 {
            if kept
                .last()
                .is_some_and(|word| ["in", "at", "on"].contains(word))
            {
                kept.pop();
            }
            match (kept.last_mut(), &word[path.len()..]) {
                (_, "") | (None, _) => {}
                (Some(_), rest) => kept.push(rest),
            }
        } else {
            kept.push(word);
        }
    }
    kept.join(" ")
        .replace(" ,", ",")
        .replace(" ;", ";")
        .replace(" :", ":")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{Match, Outcome, Work, ratios, repeat};
    use crate::latency::Latency;
    use crate::run::Outcomes;
    use crate::settings::Settings;

    /// A report of two contestants, with notes.
    fn report() -> Report {
        let settings = Settings {
            samples: 2,
            ..Settings::default()
        };
        let mut report = Report::new(crate::find("pread").unwrap(), settings);
        let mut one = Match::default();
        let work = || Work::Operations(vec![repeat(|| Ok(()))]);
        one.add("read 4 KiB", "ours | mine", work());
        one.add("read 4 KiB", "kernel", work());
        ratios! { one;
            "near" => 0 / 1, at_least(1.0);
            "p99" => 1 / 0, of_p99();
        }
        let outcome = |value| Outcome {
            latency: Some(Latency {
                p99: value,
                ..Latency::default()
            }),
            ..Outcome::plain(value)
        };
        let outcomes = |values: [f64; 2]| values.map(outcome).to_vec();
        let figures = vec![outcomes([11.0, 11.0]), outcomes([10.0, 11.0])];
        let controls = vec![outcomes([10.0, 12.0]), Vec::new()];
        report.add(&one, &Outcomes { figures, controls });
        report.host.kernel_files = "tmpfs at /dev/shm, and ext4 in /private/folder".to_owned();
        report.notes.push("left out: no zram".to_owned());
        report.finish();
        report
    }

    #[test]
    fn a_section_names_case_and_machine() {
        let text = report().markdown();
        let host = crate::host::Host::now();
        for part in [
            "<!-- bench pread -->\n### `bench pread`: ",
            &host.cpu,
            &host.kernel,
            "; tmpfs, and ext4; 2 samples of 0.2 s; ",
            " at the start and ",
            "| `near` | read 4 KiB, 1 thread: ours \\| mine over kernel | 1.05 | 1.00 to 1.10 | 0.91 to 1.09 | ≥ 1, reached |\n",
            "| `p99` | 99th percentile of the time: read 4 KiB, 1 thread: kernel over ours \\| mine | 0.95 | 0.91 to 1.00 | 0.91 to 1.09 | |\n",
            "| read 4 KiB, 1 thread | kernel | 10.5 op/s, ±7 % | 0.0, 10.5, 0.0 | | |",
            "\n- left out: no zram.\n",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
        assert!(text.ends_with("<!-- end of bench pread -->\n"));
        assert!(!text.contains("/private"), "{text}");
    }

    #[test]
    fn a_series_is_a_table_of_the_medians_of_its_intervals() {
        let settings = Settings {
            samples: 2,
            seconds: 0.8,
            ..Settings::default()
        };
        let mut report = Report::new(crate::find("stream").unwrap(), settings);
        let mut one = Match::default();
        for variant in ["ours", "kernel"] {
            let work = Work::pass(4, "MB/s", || Ok(Outcome::plain(1.0)));
            one.add("read 64 KiB", variant, work);
        }
        let rounds = |rounds: [[f64; 2]; 2]| {
            let outcome = |series: [f64; 2]| Outcome {
                series: series.to_vec(),
                ..Outcome::plain(1.0)
            };
            rounds.map(outcome).to_vec()
        };
        let figures = vec![
            rounds([[10.0, 20.0], [30.0, 20.0]]),
            rounds([[5.0, 6.0], [5.0, 8.0]]),
        ];
        let controls = vec![Vec::new(), Vec::new()];
        report.add(&one, &Outcomes { figures, controls });
        let text = report.markdown();
        let table = "\nread 64 KiB, 4 threads, MB/s in each interval:\n\n\
            | s | ours | kernel |\n|---|---|---|\n| 0.20 | 20 | 5 |\n| 0.40 | 20 | 7 |\n";
        assert!(text.contains(table), "{text}");
    }

    #[test]
    fn a_section_takes_the_place_of_the_old_one() {
        let report = report();
        let section = report.markdown();
        let old = "# All\n\n<!-- bench pread -->\nold\n<!-- end of bench pread -->\n\nText.\n";
        let new = report.put_into(old).unwrap();
        assert_eq!(new, format!("# All\n\n{section}\nText.\n"));
        assert_eq!(report.put_into(&new).unwrap(), new);
        let added = report.put_into("# All\n").unwrap();
        assert_eq!(added, format!("# All\n\n{section}"));
        assert_eq!(report.put_into(&added).unwrap(), added);
        assert_eq!(report.put_into("").unwrap(), section);
        for broken in [
            "<!-- bench pread -->\n",
            "<!-- end of bench pread -->\n<!-- bench pread -->\n",
            &format!("{section}{section}"),
        ] {
            assert!(report.put_into(broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn figures_have_three_digits() {
        for (figure, text) in [
            (0.914, "0.91"),
            (12.34, "12.3"),
            (99_999.0, "99999"),
            (123_456.0, "123 k"),
            (54_169_283.0, "54.2 M"),
        ] {
            assert_eq!(short(figure), text);
        }
    }

    #[test]
    fn folders_are_left_out() {
        for (text, left) in [
            ("ext4 in /tmp", "ext4"),
            ("tmpfs at /dev/shm, and xfs in /var/x", "tmpfs, and xfs"),
            (
                "nothing cold: /proc/x is not to be written to",
                "nothing cold: is not to be written to",
            ),
            ("a / b", "a / b"),
        ] {
            assert_eq!(without_folders(text), left);
        }
    }
}
