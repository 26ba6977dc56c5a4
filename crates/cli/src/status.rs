//! The live line: memory against the bound, hit ratio, dirty data, throughput.

use crate::log;
use foliocache::show::Bytes;
use foliocache::{CacheStats, PAGE_SIZE};
use foliocache_fuse::FuseStats;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

/// How often the line is drawn anew.
pub(crate) const INTERVAL: Duration = Duration::from_millis(500);

/// The line at the bottom of the terminal; nothing where standard error is no terminal.
pub(crate) struct StatusLine {
    bar: ProgressBar,
    /// When the line was drawn, and the figures of then.
    last: (Instant, FuseStats),
    /// When figures were last requested, and their values.
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
        log::write_around(bar.clone());
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
        log::say(&format!(
            "statistics: {figures}  read in all {}  written in all {}  open files {}  requests {}  errors {}",
            show(mount.read_bytes),
            show(mount.written_bytes),
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
    cache.files.unsynced_pages() * PAGE_SIZE as u64
}

fn line(cache: &CacheStats, mount: &FuseStats, before: &FuseStats, over: Duration) -> String {
    let seconds = over.as_secs_f64().max(0.001);
    let rate = |now: u64, then: u64| show((now.saturating_sub(then) as f64 / seconds) as u64);
    let files = &cache.files;
    let mut text = format!(
        "{} of {}  hits {:.1} %  dirty {}  read {}/s  write {}/s",
        show(cache.memory.total_bytes()),
        show(cache.memory.limit_bytes),
        files.hit_ratio() * 100.0,
        show(not_durable(cache)),
        rate(mount.read_bytes, before.read_bytes),
        rate(mount.written_bytes, before.written_bytes),
    );
    if cache.pressure.effective_bytes < cache.pressure.configured_bytes {
        text += &format!(
            "  memory is short: not {}",
            show(cache.pressure.configured_bytes)
        );
    }
    if files.failed_pages > 0 {
        text += &format!(
            "  CANNOT BE WRITTEN {}",
            show(files.failed_pages * PAGE_SIZE as u64)
        );
    }
    text
}

/// `bytes` in a unit that suits them.
pub(crate) fn show(bytes: u64) -> String {
    Bytes(bytes).to_string()
}
