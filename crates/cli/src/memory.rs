//! The bound on the cache's memory, read from the command line.

use crate::status::show;
use foliocache::{MIN_MEMORY, MemorySize};
use foliocache_sys::memory::total_memory;
use foliocache_sys::pressure::{Level, LevelKind, Monitor};

/// A bound, and remarks on it besides its size.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Bound {
    pub(crate) bytes: u64,
    /// The size that a percentage refers to.
    pub(crate) of: String,
}

/// The bound in `text`: a size, or a fraction of the memory that the process may use. `what` names
/// it in errors.
///
/// # Errors
/// The line to show.
pub(crate) fn bound(what: &str, text: &str) -> Result<Bound, String> {
    let machine = Level {
        kind: LevelKind::Machine,
        limit: total_memory(),
        used: 0,
    };
    match text.trim().strip_suffix('%') {
        Some(percent) => {
            let mut monitor = Monitor::new().map_err(|errno| format!("{what} {text}: {errno}"))?;
            let least = monitor.sample().smallest().unwrap_or(machine);
            part(what, text, percent, least)
        }
        None => size(what, text, machine.limit),
    }
}

fn size(what: &str, text: &str, machine: u64) -> Result<Bound, String> {
    let bytes = text.in_bytes().map_err(|_| {
        format!("{what} {text} is no size: give bytes, a number with K, M, G or T, or a part such as 10%")
    })?;
    if bytes > machine {
        return Err(format!(
            "{what} {text} is more than the {} of this machine",
            show(machine)
        ));
    }
    let of = String::new();
    at_least(what, text, Bound { bytes, of })
}

/// `percent` of the memory that the machine has, or that the process's memory cgroup allows if that is less.
fn part(what: &str, text: &str, percent: &str, of: Level) -> Result<Bound, String> {
    let percent = percent.trim_end().parse::<u64>().ok();
    let percent = percent.filter(|percent| (1..=100).contains(percent));
    let percent = percent.ok_or_else(|| {
        format!("{what} {text} is no part of the memory: give whole percent, from 1% to 100%")
    })?;
    let whole = show(of.limit);
    let bytes = u128::from(of.limit) * u128::from(percent) / 100;
    let bound = Bound {
        // Whole pages.
        bytes: bytes as u64 & !4095,
        of: match of.kind {
            LevelKind::Cgroup => format!(" ({percent} % of the {whole} of the memory cgroup)"),
            LevelKind::Machine => format!(" ({percent} % of the {whole} of this machine)"),
        },
    };
    at_least(what, text, bound)
}

fn at_least(what: &str, text: &str, bound: Bound) -> Result<Bound, String> {
    if bound.bytes < MIN_MEMORY {
        return Err(format!(
            "{what} {text}{} is too little: at least {} are needed",
            bound.of,
            show(MIN_MEMORY)
        ));
    }
    Ok(bound)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: LevelKind, limit: u64) -> Level {
        Level {
            kind,
            limit,
            used: 0,
        }
    }

    #[test]
    fn a_fraction_names_the_memory_that_it_is_taken_of() {
        let machine = of(LevelKind::Machine, 8 << 30);
        let bound = part("--memory", "25%", "25", machine).unwrap();
        assert!(bound.bytes.abs_diff(2 << 30) < 100, "{bound:?}");
        assert_eq!(bound.of, " (25 % of the 8 GiB of this machine)");
        let group = of(LevelKind::Cgroup, 1 << 30);
        let bound = part("--memory", "50 %", "50 ", group).unwrap();
        assert!(bound.bytes.abs_diff(512 << 20) < 100, "{bound:?}");
        assert_eq!(bound.of, " (50 % of the 1 GiB of the memory cgroup)");
    }

    #[test]
    fn bounds_that_cannot_be_had_are_refused() {
        let machine = of(LevelKind::Machine, 1 << 30);
        for text in ["0%", "101%", "x%", "-1%", "1.5%", "%"] {
            let said = part("--memory", text, text.trim_end_matches('%'), machine).unwrap_err();
            assert!(said.contains("no part of the memory"), "{text}: {said}");
        }
        let said = part("--memory", "1%", "1", of(LevelKind::Machine, 1 << 20)).unwrap_err();
        assert!(said.contains("is too little"), "{said}");
        for (text, says) in [
            ("1", "too little"),
            ("2G", "of this machine"),
            ("x", "no size"),
        ] {
            let said = size("--memory", text, 1 << 30).unwrap_err();
            assert!(said.contains(says), "{text}: {said}");
        }
    }
}
