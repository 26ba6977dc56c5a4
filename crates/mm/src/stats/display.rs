//! The figures as text for a person: one aligned line for each fact.

use std::fmt;

use super::MmStats;
use crate::counters::{FileStats, UncachedStats};
use crate::dirty::ThrottleStats;
use crate::frames::FrameUsage;
use crate::pressure::{PressureSource, PressureStats};
use crate::show::{Bytes, Count, Time, lines, pages};
use crate::unreclaimable::Unreclaimable;

/// The name of a line and what it says.
type Line = (&'static str, String);

/// A table of lines, each with its name, format and values.
macro_rules! table {
    ($($name:literal: $format:literal $(, $value:expr)*;)*) => {
        vec![$(($name, format!($format $(, $value)*))),*]
    };
}

impl FileStats {
    fn lines(&self) -> Vec<Line> {
        let mut lines = table![
            "cached": "{} in {} folios", pages(self.resident_pages), Count(self.folios);
            "not durable": "{} dirty, {} being written, {} not flushed",
                pages(self.dirty_pages), pages(self.writeback_pages), pages(self.unstable_pages);
            "hit ratio": "{:.1} %: {} hits, {} first uses of readahead, {} misses",
                self.hit_ratio() * 100.0, Count(self.hit_pages),
                Count(self.readahead_first_used_pages), Count(self.missed_pages);
            "evicted": "{}, {} times asked for again soon",
                pages(self.evicted_pages), Count(self.refaults);
            "read ahead": "{}: {} used, {} wasted", pages(self.readahead_pages),
                pages(self.readahead_used_pages), pages(self.readahead_wasted_pages);
            "store": "{} read, {} written", Bytes(self.read_bytes), Bytes(self.written_bytes);
            "writers waited": "{}", Time(self.throttled);
            "mappings": "{} faults, {} mapped", Count(self.faults), pages(self.mapped_pages);
            "uncached": "{}", self.uncached;
        ];
        if self.failed_pages > 0 {
            let failed = pages(self.failed_pages).to_string();
            lines.insert(2, ("CANNOT BE WRITTEN", failed));
        }
        if self.pinned_pages > 0 {
            lines.push(("pinned", pages(self.pinned_pages).to_string()));
        }
        lines
    }
}

impl fmt::Display for FileStats {
    /// Several lines.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        lines(f, &self.lines())
    }
}

impl fmt::Display for UncachedStats {
    /// One line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} dropped, {} kept, {} left to reclaim, {} pending",
            pages(self.asked_pages),
            pages(self.dropped_pages),
            pages(self.kept_present_pages + self.kept_used_pages),
            pages(self.failed_locked_pages + self.failed_held_pages),
            pages(self.pending_pages()),
        )
    }
}

impl FrameUsage {
    fn lines(&self) -> Vec<Line> {
        let mut lines = table![
            "memory": "{} of {}", Bytes(self.total_bytes()), Bytes(self.limit_bytes);
            "in use": "{} by pages, {} reserved, {} by tables and names",
                pages(self.in_use_pages), pages(self.reserved_pages), Bytes(self.metadata_bytes);
            "available": "{} of {} for pages",
                pages(self.available_pages), pages(self.capacity_pages);
        ];
        if self.waiters > 0 {
            let waiting = format!("{} callers", Count(self.waiters));
            lines.push(("waiting for memory", waiting));
        }
        if self.linear_bytes > 0 {
            let mapped = format!("{}, {}", Bytes(self.linear_bytes), self.huge);
            lines.push(("mapped files", mapped));
        }
        lines
    }
}

impl fmt::Display for FrameUsage {
    /// Several lines.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        lines(f, &self.lines())
    }
}

impl fmt::Display for ThrottleStats {
    /// One line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.waits {
            0 => f.write_str("never"),
            waits => write!(
                f,
                "{} times: half at most {}, 99 % at most {}, 99.9 % at most {}, longest {}",
                Count(waits),
                Time(self.p50),
                Time(self.p99),
                Time(self.p999),
                Time(self.max),
            ),
        }
    }
}

impl fmt::Display for PressureSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PressureSource::Cgroup => "the memory cgroup",
            PressureSource::Machine => "the machine",
            PressureSource::Stalls => "tasks that stand still for memory",
        })
    }
}

impl fmt::Display for PressureStats {
    /// One line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.followed, self.source) {
            (false, _) => return f.write_str("not followed"),
            (true, None) => write!(f, "none")?,
            (true, Some(source)) => write!(
                f,
                "{} of {} because of {source}",
                Bytes(self.effective_bytes),
                Bytes(self.configured_bytes),
            )?,
        }
        write!(
            f,
            "; {} steps down, {} steps up",
            Count(self.steps_down),
            Count(self.steps_up),
        )
    }
}

impl fmt::Display for Unreclaimable {
    /// One line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of at most {}",
            pages(self.total_pages()),
            pages(self.most_pages),
        )?;
        let classes = [
            ("in memory file systems", self.memory_pages),
            ("that cannot be written", self.failed_pages),
            ("held by mappings", self.held_pages),
            ("pinned", self.pinned_pages),
            ("viewed", self.viewed_pages),
        ];
        let mut before = ": ";
        for (name, count) in classes.into_iter().filter(|(_, count)| *count > 0) {
            write!(f, "{before}{} {name}", pages(count))?;
            before = ", ";
        }
        Ok(())
    }
}

impl fmt::Display for MmStats {
    /// Several lines.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = self.memory.lines();
        all.push(("not reclaimable", self.unreclaimable.to_string()));
        all.push(("pressure outside", self.pressure.to_string()));
        all.push(("files", Count(self.known_files).to_string()));
        all.extend(self.files.lines());
        all.push(("throttled", self.throttle.to_string()));
        let events = [
            ("direct reclaims", self.direct_reclaims),
            ("bad memory", self.memory_faults),
            ("background panics", self.background_panics),
            ("memory not taken back", self.give_back_failures),
        ];
        let happened = events.into_iter().filter(|(_, count)| *count > 0);
        all.extend(happened.map(|(name, count)| (name, Count(count).to_string())));
        lines(f, &all)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use foliocache_sync::time::Duration;

    #[test]
    fn figures_of_a_file_are_aligned_lines_in_units() {
        let stats = FileStats {
            resident_pages: 256,
            folios: 3,
            dirty_pages: 2,
            hit_pages: 9_000,
            readahead_first_used_pages: 500,
            missed_pages: 500,
            throttled: Duration::from_millis(1500),
            ..FileStats::default()
        };
        let text = stats.to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "cached          1 MiB in 3 folios");
        assert_eq!(
            lines[2],
            "hit ratio       90.0 %: 9,000 hits, 500 first uses of readahead, 500 misses"
        );
        assert!(lines.contains(&"writers waited  1.5 s"), "{text}");
        assert!(!text.contains("CANNOT"), "{text}");
        let failed = FileStats {
            failed_pages: 1,
            ..stats
        };
        assert!(
            failed.to_string().contains("CANNOT BE WRITTEN  4 KiB"),
            "{failed}"
        );
    }
}
