//! Writing everything back while the mount goes on, as SIGUSR2 asks for it.
//!
//! # Model
//!
//! A thread does the work, because a source that does not answer may block it. Signals that come meanwhile are answered by
//! one more round, which begins after this one.

use crate::log::say;
use crate::mappings::{Helper, TAKE_OVER};
use crate::mounted::{Mounted, not_written};
use crate::spawn;
use crate::status::show;
use foliocache::Cache;
use foliocache_fuse::Mount;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Instant;

/// Files that are named in the line.
const NAMED: usize = 5;

/// The thread, if there is one.
#[derive(Default)]
pub(crate) struct WriteBack {
    thread: Option<JoinHandle<()>>,
    asked_again: bool,
}

impl WriteBack {
    /// Begins, or begins again when the round that is under way has ended.
    pub(crate) fn ask(&mut self, mounted: &Mounted) {
        self.asked_again = true;
        self.go_on(mounted);
    }

    /// Starts the round that was requested during the previous one.
    pub(crate) fn go_on(&mut self, mounted: &Mounted) {
        let busy = self
            .thread
            .as_ref()
            .is_some_and(|thread| !thread.is_finished());
        if !self.asked_again || busy {
            return;
        }
        self.asked_again = false;
        let (mount, cache) = (Arc::clone(&mounted.mount), mounted.cache.clone());
        match spawn("write-back", move || say(&write_back(&mount, &cache))) {
            Ok(thread) => self.thread = Some(thread),
            Err(why) => say(&format!("SIGUSR2: {why}")),
        }
    }
}

/// Writes back; returns a line about the result.
fn write_back(mount: &RwLock<Mount>, cache: &Cache) -> String {
    let begun = Instant::now();
    let written = || cache.stats().map_or(0, |stats| stats.files.written_bytes);
    let before = written();
    let taken_over = take_over(&mount.read().unwrap_or_else(PoisonError::into_inner));
    let synced = cache.sync();
    let failed = match (&taken_over, &synced) {
        (Ok(()), Ok(())) => {
            let bytes = show(written().saturating_sub(before));
            let seconds = begun.elapsed().as_secs_f64();
            return format!("SIGUSR2: everything is written back, {bytes} in {seconds:.1} s");
        }
        (Err(why), _) => vec![why.clone()],
        (_, Err(_)) => Vec::new(),
    };
    let left = not_written(cache);
    let files = left.iter().filter_map(|(file, (bytes, errno))| {
        let errno = errno.as_ref()?;
        Some(format!("{file}: {}: {errno}", show(*bytes)))
    });
    let mut failed: Vec<_> = failed.into_iter().chain(files).collect();
    if let (true, Err(error)) = (failed.is_empty(), synced) {
        failed.push(error.to_string());
    }
    let more = failed.len().saturating_sub(NAMED);
    failed.truncate(NAMED);
    if more > 0 {
        failed.push(format!("{more} more"));
    }
    format!("SIGUSR2: not all is written back: {}", failed.join("; "))
}

fn take_over(mount: &Mount) -> Result<(), String> {
    if mount.is_ended() || !mount.may_be_mapped() {
        return Ok(());
    }
    Helper::start(mount)?.take_over(mount, TAKE_OVER)
}
