//! The live line: memory against the bound, hit ratio, dirty data, throughput.

use crate::log;
use foliocache::{CacheStats, PAGE_SIZE};
use foliocache_fuse::FuseStats;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The line that is shown, for the log to write around.
static SHOWN: OnceLock<ProgressBar> = OnceLock::new();

/// Runs `write`, which writes to standard error, beside the live line.
pub(crate) fn beside_the_line<R>(write: impl FnOnce() -> R) -> R {
    match SHOWN.get() {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

/// Says something on standard error, and in the log file if there is one. A closed terminal is no reason to stop.
pub(crate) fn say(text: &str) {
    if !log::is_standard_error() {
        let _ = beside_the_line(|| writeln!(io::stderr(), "foliocache: {text}"));
    }
    log::note(text);
}

/// How often the line is drawn anew.
pub(crate) const INTERVAL: Duration = Duration::from_millis(500);

/// The line at the bottom of the terminal; nothing where standard error is no terminal.
pub(crate) struct StatusLine {
    bar: ProgressBar,
    /// When the line was drawn, and the figures of then.
    last: (Instant, FuseStats),
    /// When the figures were asked for, and those of then.
    asked: (Instant, FuseStats),
}

impl StatusLine {
    /// A line, unless `hidden`.
    pub(crate) fn new(hidden: bool) -> StatusLine {
        let bar = if hidden {
            ProgressBar::hidden()
        } else {
            ProgressBar::new_spinner()
        };
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
            bar.set_style(style);
        }
        // There is one line a process.
        let _ = SHOWN.set(bar.clone());
        StatusLine {
            bar,
            last: (Instant::now(), FuseStats::default()),
            asked: (Instant::now(), FuseStats::default()),
        }
    }

    pub(crate) fn is_hidden(&self) -> bool {
        self.bar.is_hidden()
    }

    /// Draws the figures of now.
    pub(crate) fn draw(&mut self, cache: &CacheStats, mount: FuseStats) {
        let now = Instant::now();
        let (then, before) = std::mem::replace(&mut self.last, (now, mount));
        self.bar
            .set_message(line(cache, &mount, &before, now.duration_since(then)));
        self.bar.tick();
    }

    /// Says the figures of now, with rates since they were said last.
    pub(crate) fn report(&mut self, cache: &CacheStats, mount: FuseStats) {
        let now = Instant::now();
        let (then, before) = std::mem::replace(&mut self.asked, (now, mount));
        let figures = line(cache, &mount, &before, now.duration_since(then));
        say(&format!(
            "statistics: {figures}  read in all {}  written in all {}  open files {}  requests {}  errors {}",
            show(mount.bytes_read),
            show(mount.bytes_written),
            mount.open_files,
            mount.requests,
            mount.errors,
        ));
    }

    /// The terminal may be gone: no line is drawn then.
    pub(crate) fn look_for_terminal(&self) {
        if !io::stderr().is_terminal() {
            self.bar.set_draw_target(ProgressDrawTarget::hidden());
        }
    }

    /// Shows `text` in place of the figures.
    pub(crate) fn working(&self, text: String) {
        self.bar.set_message(text);
        self.bar.tick();
    }

    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

/// Bytes that are not safely in the source.
pub(crate) fn not_durable(cache: &CacheStats) -> u64 {
    let files = &cache.files;
    (files.dirty + files.writeback + files.unstable) * PAGE_SIZE as u64
}

fn line(cache: &CacheStats, mount: &FuseStats, before: &FuseStats, over: Duration) -> String {
    let seconds = over.as_secs_f64().max(0.001);
    let rate = |now: u64, then: u64| show((now.saturating_sub(then) as f64 / seconds) as u64);
    let files = &cache.files;
    let mut text = format!(
        "{} of {}  hits {:.1} %  dirty {}  read {}/s  write {}/s",
        show(cache.memory.total()),
        show(cache.memory.limit),
        files.hit_ratio() * 100.0,
        show(not_durable(cache)),
        rate(mount.bytes_read, before.bytes_read),
        rate(mount.bytes_written, before.bytes_written),
    );
    if cache.pressure.effective < cache.pressure.configured {
        text += &format!("  memory is short: not {}", show(cache.pressure.configured));
    }
    if files.failed > 0 {
        text += &format!(
            "  CANNOT BE WRITTEN {}",
            show(files.failed * PAGE_SIZE as u64)
        );
    }
    text
}

/// `bytes` in the largest unit that leaves a number of at least one, with one decimal place where
/// it says something.
pub(crate) fn show(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let step = (bytes.max(1).ilog2() / 10).min(4);
    let value = bytes as f64 / (1u64 << (10 * step)) as f64;
    let unit = units[step as usize];
    if step == 0 || value >= 100.0 || value.fract() == 0.0 {
        format!("{value:.0} {unit}")
    } else {
        format!("{value:.1} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shown() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (512 << 20, "512 MiB"),
            (1536, "1.5 KiB"),
            (150 << 30 | 1 << 29, "150 GiB"),
            (3 << 40, "3 TiB"),
        ] {
            assert_eq!(show(bytes), text);
        }
    }
}
