//! Where a benchmark ran.

use foliocache_sys::memory::total_memory;
use serde::Serialize;
use std::fmt;
use std::fs;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

/// Facts about the machine that matter for its figures.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Host {
    /// Release of the kernel.
    pub(crate) kernel: String,
    /// Name of the processor.
    pub(crate) cpu: String,
    /// Processors this process may use.
    pub(crate) cpus: usize,
    /// Bytes of memory.
    pub(crate) memory: u64,
    /// Load average over 1, 5 and 15 minutes, when the run began. More than a little of it belongs
    /// to others and makes the figures worth less.
    pub(crate) load: [f64; 3],
    /// The same when it ended.
    pub(crate) load_at_end: [f64; 3],
    /// When the run began, in UTC: `2026-01-31 12:00`.
    pub(crate) date: String,
    /// The kernel's setting of transparent huge pages.
    pub(crate) transparent_hugepage: String,
    /// Where the kernel's files are.
    pub(crate) kernel_files: String,
    /// Version of this program.
    pub(crate) version: &'static str,
    /// Whether it was built with debug assertions: such figures say nothing.
    pub(crate) debug_assertions: bool,
}

impl Host {
    /// This machine, now.
    pub(crate) fn now() -> Self {
        Self {
            kernel: line("/proc/sys/kernel/osrelease"),
            cpu: cpu(),
            cpus: thread::available_parallelism().map_or(1, usize::from),
            memory: total_memory(),
            load: load(),
            load_at_end: load(),
            date: date(SystemTime::now()),
            transparent_hugepage: chosen(&line("/sys/kernel/mm/transparent_hugepage/enabled")),
            kernel_files: crate::files::kernel_place(),
            version: env!("CARGO_PKG_VERSION"),
            debug_assertions: cfg!(debug_assertions),
        }
    }
}

impl fmt::Display for Host {
    /// The machine in a line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gib = (self.memory as f64 / f64::from(1 << 30)).round();
        write!(
            f,
            "{}, {} CPUs, {gib} GiB, Linux {}, foliocache {}",
            self.cpu, self.cpus, self.kernel, self.version
        )
    }
}

/// First line of a file of the kernel's; empty where there is none.
fn line(path: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

fn cpu() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = text.lines().find(|line| line.starts_with("model name"));
    let name = named.and_then(|line| line.split_once(':'));
    name.map_or_else(String::new, |(_, name)| name.trim().to_owned())
}

pub(crate) fn load() -> [f64; 3] {
    let text = line("/proc/loadavg");
    let mut values = text.split(' ').map(|value| value.parse().unwrap_or(0.0));
    std::array::from_fn(|_| values.next().unwrap_or(0.0))
}

/// A time in UTC, to the minute.
fn date(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let minutes = since.as_secs() / 60;
    let (mut days, mut year) = (minutes / (24 * 60), 1970);
    let is_leap =
        |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for len in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < len {
            break;
        }
        days -= len;
        month += 1;
    }
    let (hour, minute) = (minutes / 60 % 24, minutes % 60);
    format!("{year}-{month:02}-{:02} {hour:02}:{minute:02}", days + 1)
}

/// The size of the processor's largest cache, as the kernel writes it.
pub(crate) fn processor_cache() -> String {
    let level = |level| {
        line(&format!(
            "/sys/devices/system/cpu/cpu0/cache/index{level}/size"
        ))
    };
    let known = (0..8).map(level).take_while(|size| !size.is_empty());
    known.last().unwrap_or_else(|| "unknown".to_owned())
}

/// The word in brackets, of a file that lists all choices.
fn chosen(choices: &str) -> String {
    let (_, rest) = choices.split_once('[').unwrap_or(("", choices));
    rest.split(']').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets() {
        assert_eq!(chosen("always [madvise] never"), "madvise");
        assert_eq!(chosen(""), "");
    }

    #[test]
    fn dates() {
        let at = |seconds| date(UNIX_EPOCH + std::time::Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01 00:00");
        assert_eq!(at(951_782_399), "2000-02-28 23:59");
        assert_eq!(at(951_782_400), "2000-02-29 00:00");
        assert_eq!(at(951_868_800), "2000-03-01 00:00");
        assert_eq!(at(1_798_761_599), "2026-12-31 23:59");
        assert_eq!(at(1_798_761_600), "2027-01-01 00:00");
    }

    #[test]
    fn this_machine() {
        let host = Host::now();
        assert!(host.cpus > 0 && host.memory > 0 && !host.kernel.is_empty());
    }
}
