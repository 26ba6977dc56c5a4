//! The figures of a mount: one table for JSON, for Prometheus and for the page that explains them.
//!
//! # Locking
//!
//! Nothing here asks the source or waits for it: the figures are there while the source hangs.

use self::Kind::{Counter, Gauge};
use crate::status::show;
use foliocache::{Cache, CacheStats, Directory, DirectoryStats, PAGE_SIZE};
use foliocache_fuse::{FuseStats, Mount};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::{RwLock, Weak};
use std::time::Instant;

/// Most files that are named.
const NAMED: usize = 20;

/// Properties that do not change while a mount lives.
pub(crate) struct Facts {
    pub(crate) source: PathBuf,
    pub(crate) mount_point: PathBuf,
    pub(crate) kernel_cache: &'static str,
    pub(crate) read_only: bool,
    pub(crate) since: Instant,
}

/// A mount whose figures are requested.
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

/// A number out of a snapshot.
type Of = fn(&Snapshot) -> f64;

/// All figures: kind, name, help and value.
#[rustfmt::skip]
const FIGURES: &[(Kind, &str, &str, Of)] = &[
    (Gauge, "uptime_seconds", "Time since the mount.", |now| now.uptime),
    (Gauge, "memory_limit_bytes", "The bound on the cache's memory.", |now| now.cache.pressure.configured_bytes as f64),
    (Gauge, "memory_effective_limit_bytes", "The bound that is kept, less while memory is short outside.", |now| now.cache.pressure.effective_bytes as f64),
    (Gauge, "memory_bytes", "Memory that counts against the bound.", |now| now.cache.memory.total_bytes() as f64),
    (Gauge, "memory_data_bytes", "Memory in use by data of files.", |now| bytes(now.cache.memory.in_use_pages)),
    (Gauge, "memory_metadata_bytes", "Memory in use by tables, names and attributes.", |now| now.cache.memory.metadata_bytes as f64),
    (Gauge, "memory_unreclaimable_bytes", "Memory that cannot be evicted.", |now| bytes(now.cache.unreclaimable.total_pages())),
    (Gauge, "memory_waiters", "Callers that wait for memory.", |now| now.cache.memory.waiters as f64),
    (Gauge, "hit_ratio", "Hits as a part of all pages looked up, 0 to 1.", |now| now.cache.files.hit_ratio()),
    (Counter, "hits", "Pages found that had been used before.", |now| now.cache.files.hit_pages as f64),
    (Counter, "readahead_first_uses", "Pages found that had been read ahead, at their first use.", |now| now.cache.files.readahead_first_used_pages as f64),
    (Counter, "misses", "Pages that had to be brought in.", |now| now.cache.files.missed_pages as f64),
    (Counter, "evicted_bytes", "Pages that were evicted.", |now| bytes(now.cache.files.evicted_pages)),
    (Counter, "refaults", "Misses on what was evicted shortly before.", |now| now.cache.files.refaults as f64),
    (Counter, "readahead_bytes", "Pages read ahead.", |now| bytes(now.cache.files.readahead_pages)),
    (Counter, "readahead_wasted_bytes", "Pages read ahead that were evicted unused.", |now| bytes(now.cache.files.readahead_wasted_pages)),
    (Gauge, "cached_bytes", "Pages of files in the cache.", |now| bytes(now.cache.files.resident_pages)),
    (Gauge, "dirty_bytes", "Pages newer than the source.", |now| bytes(now.cache.files.dirty_pages)),
    (Gauge, "writeback_bytes", "Pages being written.", |now| bytes(now.cache.files.writeback_pages)),
    (Gauge, "unstable_bytes", "Pages written and not flushed to the medium.", |now| bytes(now.cache.files.unstable_pages)),
    (Gauge, "failed_bytes", "Pages whose last write failed; they are tried again.", |now| bytes(now.cache.files.failed_pages)),
    (Counter, "source_read_bytes", "Bytes read from the source.", |now| now.cache.files.read_bytes as f64),
    (Counter, "source_written_bytes", "Bytes written to the source.", |now| now.cache.files.written_bytes as f64),
    (Counter, "throttles", "Waits of writers for the source.", |now| now.cache.throttle.waits as f64),
    (Counter, "throttled_seconds", "Time that writers waited for the source.", |now| now.cache.files.throttled.as_secs_f64()),
    (Gauge, "throttle_longest_seconds", "The longest wait of a writer.", |now| now.cache.throttle.max.as_secs_f64()),
    (Counter, "direct_reclaims", "Times that a caller had to evict pages itself.", |now| now.cache.direct_reclaims as f64),
    (Counter, "pressure_steps_down", "Times that the bound shrank because memory was short outside.", |now| now.cache.pressure.steps_down as f64),
    (Gauge, "open_files", "Files open on the mount.", |now| now.mount.open_files as f64),
    (Gauge, "known_files", "Files that the cache knows.", |now| now.cache.known_files as f64),
    (Gauge, "inodes", "Inodes in memory.", |now| now.directory.inodes as f64),
    (Gauge, "failed_files_count", "Files with data that could not be written.", |now| now.failed.len() as f64),
    (Counter, "requests", "Requests of the kernel.", |now| now.mount.requests as f64),
    (Counter, "request_errors", "Requests that ended with an error, names that were not found included.", |now| now.mount.errors as f64),
    (Counter, "read_bytes", "Bytes handed to programs.", |now| now.mount.read_bytes as f64),
    (Counter, "written_bytes", "Bytes taken from programs.", |now| now.mount.written_bytes as f64),
    (Counter, "to_kernel_cache_bytes", "Bytes that went into the kernel's own cache.", |now| now.mount.kernel_cache_bytes as f64),
    (Counter, "invalidations", "Files that others changed, whose pages were dropped.", |now| now.directory.invalidations as f64),
    (Counter, "changes_lost", "Times that the kernel lost changes by others, so that all was asked again.", |now| now.directory.changes_lost as f64),
    (Counter, "memory_faults", "Copies that bad memory stopped.", |now| now.cache.memory_faults as f64),
    (Counter, "panics", "Panics of operations and of threads.", |now| (now.mount.panics + now.cache.background_panics) as f64),
];

fn bytes(pages: u64) -> f64 {
    (pages * PAGE_SIZE as u64) as f64
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
    pub(crate) fn figures(&self) -> impl Iterator<Item = Figure> {
        FIGURES.iter().map(|&(kind, name, help, value)| Figure {
            kind,
            name,
            help,
            value: value(self),
        })
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
        // The page explains no figure that does not exist.
        for row in page.lines().filter_map(|line| line.strip_prefix("| `")) {
            let (name, _) = row.split_once('`').unwrap();
            let is_field = fields.contains_key(name);
            assert!(is_field || name.starts_with('-'), "{name} is no field");
        }
    }

    #[test]
    fn names_say_their_units_and_are_there_once() {
        let source = tempfile::tempdir().unwrap();
        let figures = asked(source.path())
            .snapshot()
            .unwrap()
            .figures()
            .collect::<Vec<_>>();
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
