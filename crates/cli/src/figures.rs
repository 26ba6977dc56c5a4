//! What a mount tells of itself: one list of figures, for JSON, for Prometheus and for the page that explains them.
//!
//! # Locking
//!
//! Nothing here asks the source or waits for it: the figures are there while the source hangs.

use crate::status::show;
use foliocache::{Cache, CacheStats, Directory, DirectoryStats, PAGE_SIZE};
use foliocache_fuse::{FuseStats, Mount};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::{RwLock, Weak};
use std::time::Instant;

/// Most files that are named.
const NAMED: usize = 20;

/// What does not change while a mount lives.
pub(crate) struct Facts {
    pub(crate) source: PathBuf,
    pub(crate) mount_point: PathBuf,
    pub(crate) kernel_cache: &'static str,
    pub(crate) read_only: bool,
    pub(crate) since: Instant,
}

/// A mount, to be asked for its figures.
pub(crate) struct Asked {
    pub(crate) facts: Facts,
    pub(crate) cache: Cache,
    pub(crate) directory: Directory,
    /// Gone when the mount has ended.
    pub(crate) mount: Weak<RwLock<Mount>>,
}

/// Whether a figure goes down again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Gauge,
    Counter,
}

/// One number, with its unit in its name.
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) help: &'static str,
    pub(crate) value: f64,
}

/// Everything at one moment.
pub(crate) struct Snapshot {
    pub(crate) cache: CacheStats,
    pub(crate) mount: FuseStats,
    pub(crate) directory: DirectoryStats,
    uptime: f64,
    /// Programs may use it.
    serving: bool,
    /// Files with data that could not be written: how many bytes and why.
    failed: Vec<(String, u64, String)>,
}

impl Asked {
    /// Does not block.
    ///
    /// # Errors
    /// The line to show.
    pub(crate) fn snapshot(&self) -> Result<Snapshot, String> {
        let say = |error: foliocache::Error| error.to_string();
        let cache = self.cache.stats().map_err(say)?;
        let directory = self.directory.stats().map_err(say)?;
        let failed = match cache.files.failed_pages {
            0 => Vec::new(),
            _ => self.cache.unsynced_files().map_err(say)?,
        };
        let failed = failed.into_iter().filter_map(|file| {
            let why = file.errno?.to_string();
            Some((file.file, file.bytes, why))
        });
        let mount = self.mount.upgrade();
        // Locked while it ends.
        let mount = mount.as_ref().and_then(|mount| mount.try_read().ok());
        Ok(Snapshot {
            cache,
            mount: mount
                .as_ref()
                .map(|mount| mount.stats())
                .unwrap_or_default(),
            directory: directory.unwrap_or_default(),
            uptime: self.facts.since.elapsed().as_secs_f64(),
            serving: mount.is_some_and(|mount| !mount.is_ended()),
            failed: failed.collect(),
        })
    }

    /// For programs.
    pub(crate) fn json(&self, now: &Snapshot) -> Value {
        let mut all = json!({
            "source": self.facts.source.display().to_string(),
            "mount_point": self.facts.mount_point.display().to_string(),
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "state": now.state(),
            "read_only": self.facts.read_only,
            "kernel_cache": self.facts.kernel_cache,
            "memory_short_because": now.cache.pressure.source.map(|source| source.to_string()),
            "failed_files": now.failed.iter().take(NAMED).map(|(file, bytes, error)| {
                json!({"file": file, "bytes": bytes, "error": error})
            }).collect::<Vec<_>>(),
        });
        for figure in now.figures() {
            all[figure.name] = number(figure.value);
        }
        all
    }

    /// For a person.
    pub(crate) fn text(&self, now: &Snapshot) -> String {
        let facts = &self.facts;
        let mut text = format!(
            "{} on {}{}, {}, foliocache {}, process {}, up {}\n{}\nkernel cache           {}\n\n{}",
            facts.source.display(),
            facts.mount_point.display(),
            if facts.read_only { " read-only" } else { "" },
            now.state(),
            env!("CARGO_PKG_VERSION"),
            std::process::id(),
            foliocache::show::Time(facts.since.elapsed()),
            now.cache,
            facts.kernel_cache,
            now.mount,
        );
        for (file, bytes, error) in now.failed.iter().take(NAMED) {
            text += &format!("\ncannot be written: {file}: {}: {error}", show(*bytes));
        }
        if now.failed.len() > NAMED {
            text += &format!(
                "\ncannot be written: {} files more",
                now.failed.len() - NAMED
            );
        }
        text
    }
}

/// A whole number where it is one.
fn number(value: f64) -> Value {
    match value.fract() == 0.0 {
        true => json!(value as u64),
        false => json!(value),
    }
}

impl Snapshot {
    fn state(&self) -> &'static str {
        match self.serving {
            true => "serving",
            false => "ending",
        }
    }

    /// All numbers.
    pub(crate) fn figures(&self) -> Vec<Figure> {
        let (cache, mount, directory) = (&self.cache, &self.mount, &self.directory);
        let files = &cache.files;
        let bytes = |pages: u64| (pages * PAGE_SIZE as u64) as f64;
        let gauge = |name, help, value| Figure {
            name,
            kind: Kind::Gauge,
            help,
            value,
        };
        let counter = |name, help, value| Figure {
            name,
            kind: Kind::Counter,
            help,
            value,
        };
        vec![
            gauge("uptime_seconds", "Time since the mount.", self.uptime),
            gauge(
                "memory_limit_bytes",
                "The bound on the cache's memory.",
                cache.pressure.configured_bytes as f64,
            ),
            gauge(
                "memory_effective_limit_bytes",
                "The bound that is kept, less while memory is short outside.",
                cache.pressure.effective_bytes as f64,
            ),
            gauge(
                "memory_bytes",
                "Memory that counts against the bound.",
                cache.memory.total_bytes() as f64,
            ),
            gauge(
                "memory_data_bytes",
                "Memory in use by data of files.",
                bytes(cache.memory.in_use_pages),
            ),
            gauge(
                "memory_metadata_bytes",
                "Memory in use by tables, names and attributes.",
                cache.memory.metadata_bytes as f64,
            ),
            gauge(
                "memory_unreclaimable_bytes",
                "Memory that cannot be evicted.",
                bytes(cache.unreclaimable.total_pages()),
            ),
            gauge(
                "memory_waiters",
                "Callers that wait for memory.",
                cache.memory.waiters as f64,
            ),
            gauge(
                "hit_ratio",
                "Hits as a part of all pages looked up, 0 to 1.",
                files.hit_ratio(),
            ),
            counter(
                "hits",
                "Pages found that had been used before.",
                files.hit_pages as f64,
            ),
            counter(
                "readahead_first_uses",
                "Pages found that had been read ahead, at their first use.",
                files.readahead_first_used_pages as f64,
            ),
            counter(
                "misses",
                "Pages that had to be brought in.",
                files.missed_pages as f64,
            ),
            counter(
                "evicted_bytes",
                "Pages that were evicted.",
                bytes(files.evicted_pages),
            ),
            counter(
                "refaults",
                "Misses on what was evicted shortly before.",
                files.refaults as f64,
            ),
            counter(
                "readahead_bytes",
                "Pages read ahead.",
                bytes(files.readahead_pages),
            ),
            counter(
                "readahead_wasted_bytes",
                "Pages read ahead that were evicted unused.",
                bytes(files.readahead_wasted_pages),
            ),
            gauge(
                "cached_bytes",
                "Pages of files in the cache.",
                bytes(files.resident_pages),
            ),
            gauge(
                "dirty_bytes",
                "Pages newer than the source.",
                bytes(files.dirty_pages),
            ),
            gauge(
                "writeback_bytes",
                "Pages being written.",
                bytes(files.writeback_pages),
            ),
            gauge(
                "unstable_bytes",
                "Pages written and not flushed to the medium.",
                bytes(files.unstable_pages),
            ),
            gauge(
                "failed_bytes",
                "Pages whose last write failed; they are tried again.",
                bytes(files.failed_pages),
            ),
            counter(
                "source_read_bytes",
                "Bytes read from the source.",
                files.read_bytes as f64,
            ),
            counter(
                "source_written_bytes",
                "Bytes written to the source.",
                files.written_bytes as f64,
            ),
            counter(
                "throttles",
                "Waits of writers for the source.",
                cache.throttle.waits as f64,
            ),
            counter(
                "throttled_seconds",
                "Time that writers waited for the source.",
                files.throttled.as_secs_f64(),
            ),
            gauge(
                "throttle_longest_seconds",
                "The longest wait of a writer.",
                cache.throttle.max.as_secs_f64(),
            ),
            counter(
                "direct_reclaims",
                "Times that a caller had to evict pages itself.",
                cache.direct_reclaims as f64,
            ),
            counter(
                "pressure_steps_down",
                "Times that the bound shrank because memory was short outside.",
                cache.pressure.steps_down as f64,
            ),
            gauge(
                "open_files",
                "Files open on the mount.",
                mount.open_files as f64,
            ),
            gauge(
                "known_files",
                "Files that the cache knows.",
                cache.known_files as f64,
            ),
            gauge("inodes", "Inodes in memory.", directory.inodes as f64),
            gauge(
                "failed_files_count",
                "Files with data that could not be written.",
                self.failed.len() as f64,
            ),
            counter("requests", "Requests of the kernel.", mount.requests as f64),
            counter(
                "request_errors",
                "Requests that ended with an error, names that were not found included.",
                mount.errors as f64,
            ),
            counter(
                "read_bytes",
                "Bytes handed to programs.",
                mount.read_bytes as f64,
            ),
            counter(
                "written_bytes",
                "Bytes taken from programs.",
                mount.written_bytes as f64,
            ),
            counter(
                "to_kernel_cache_bytes",
                "Bytes that went into the kernel's own cache.",
                mount.kernel_cache_bytes as f64,
            ),
            counter(
                "invalidations",
                "Files that others changed, whose pages were dropped.",
                directory.invalidations as f64,
            ),
            counter(
                "changes_lost",
                "Times that the kernel lost changes by others, so that all was asked again.",
                directory.changes_lost as f64,
            ),
            counter(
                "memory_faults",
                "Copies that bad memory stopped.",
                cache.memory_faults as f64,
            ),
            counter(
                "panics",
                "Panics of operations and of threads.",
                (mount.panics + cache.background_panics) as f64,
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(source: &std::path::Path) -> Asked {
        let cache = Cache::builder().memory("16M").build().unwrap();
        Asked {
            facts: Facts {
                source: source.to_owned(),
                mount_point: "/mnt".into(),
                kernel_cache: "mapped",
                read_only: false,
                since: Instant::now(),
            },
            directory: cache.directory(source).unwrap(),
            cache,
            mount: Weak::new(),
        }
    }

    #[test]
    fn each_field_of_status_is_explained_in_the_guide() {
        let page = include_str!("../../../docs/guide/statistics.md");
        let source = tempfile::tempdir().unwrap();
        let asked = asked(source.path());
        let all = asked.json(&asked.snapshot().unwrap());
        let fields = all.as_object().unwrap();
        assert!(fields.len() >= 50, "{} fields", fields.len());
        for field in fields.keys() {
            assert!(
                page.contains(&format!("`{field}`")),
                "{field} is not explained"
            );
        }
        // And nothing is explained that there is not.
        for row in page.lines().filter_map(|line| line.strip_prefix("| `")) {
            let (name, _) = row.split_once('`').unwrap();
            let is_field = fields.contains_key(name);
            assert!(is_field || name.starts_with('-'), "{name} is no field");
        }
    }

    #[test]
    fn names_say_their_units_and_are_there_once() {
        let source = tempfile::tempdir().unwrap();
        let figures = asked(source.path()).snapshot().unwrap().figures();
        for (at, figure) in figures.iter().enumerate() {
            assert!(figures[..at].iter().all(|other| other.name != figure.name));
            assert!(!figure.name.ends_with("_pages") && !figure.name.ends_with("_total"));
            assert!(figure.help.ends_with('.') && !figure.help.contains('\n'));
        }
    }

    #[test]
    fn the_text_begins_with_the_places() {
        let source = tempfile::tempdir().unwrap();
        let asked = asked(source.path());
        let text = asked.text(&asked.snapshot().unwrap());
        let begin = format!("{} on /mnt, ending, foliocache ", source.path().display());
        assert!(text.starts_with(&begin), "{text}");
        assert!(text.contains("\nhit ratio "), "{text}");
    }
}
