//! Where a benchmark ran.

use foliocache_sys::memory::total_memory;
use serde::Serialize;
use std::fs;
use std::thread;

/// What matters of the machine for the figures that it gives.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Host {
    /// Release of the kernel.
    pub kernel: String,
    /// Name of the processor.
    pub cpu: String,
    /// Processors this process may use.
    pub cpus: usize,
    /// Bytes of memory.
    pub memory: u64,
    /// Load average over 1, 5 and 15 minutes, when the run began. More than a little of it belongs
    /// to others and makes the figures worth less.
    pub load: [f64; 3],
    /// The kernel's setting of transparent huge pages.
    pub transparent_hugepage: String,
    /// Where the kernel's files are.
    pub kernel_files: String,
    /// Version of this program.
    pub version: &'static str,
    /// Whether it was built with debug assertions: such figures say nothing.
    pub debug_assertions: bool,
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
            transparent_hugepage: chosen(&line("/sys/kernel/mm/transparent_hugepage/enabled")),
            kernel_files: crate::files::kernel_place(),
            version: env!("CARGO_PKG_VERSION"),
            debug_assertions: cfg!(debug_assertions),
        }
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

fn load() -> [f64; 3] {
    let text = line("/proc/loadavg");
    let mut values = text.split(' ').map(|value| value.parse().unwrap_or(0.0));
    std::array::from_fn(|_| values.next().unwrap_or(0.0))
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
    fn this_machine() {
        let host = Host::now();
        assert!(host.cpus > 0 && host.memory > 0 && !host.kernel.is_empty());
    }
}
