//! Opens the source: read-only if it is read-only, and after waiting for a previous mount of it to end.
//!
//! # Model
//!
//! umount(8) returns before the mount's process has written everything back, and that process keeps the source locked until then.
//! A new mount waits for the lock, but not if a mount that is still in the tree shows the source.

use crate::check::FS_TYPE;
use crate::log::say;
use foliocache::{Cache, Directory, DirectoryError, DirectoryOptions, Error};
use foliocache_sys::dir::mount::{MountInfo, is_read_only, mounts};
use foliocache_sys::signal::{Signal, Signals, signal_name};
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest wait for another mount to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Between two attempts.
const RETRY: Duration = Duration::from_millis(50);

/// Opens it, and returns whether it is read-only. May block for [`PATIENCE`], until a signal ends the wait.
///
/// # Errors
/// The line to show.
pub(crate) fn open(
    cache: &Cache,
    source: &Path,
    read_only: bool,
    options: DirectoryOptions,
    signals: &Signals,
) -> Result<(Directory, bool), String> {
    let must_be = is_read_only(source).is_ok_and(|read_only| read_only);
    if must_be && !read_only {
        say(&format!(
            "{} is read-only, so the mount is, too",
            source.display()
        ));
    }
    let read_only = read_only || must_be;
    let options = options.read_only(read_only);
    let begun = Instant::now();
    let mut said = false;
    loop {
        let error = match cache.directory_with(source, options.clone()) {
            Ok(directory) => return Ok((directory, read_only)),
            Err(error) => error,
        };
        if !matches!(error, Error::Directory(DirectoryError::Locked { .. })) {
            return Err(error.to_string());
        }
        if begun.elapsed() >= PATIENCE || is_shown(source) {
            return Err(format!(
                "{error}; mount it with --read-only, or with --force all the same"
            ));
        }
        if !said {
            said = true;
            let source = source.display();
            let seconds = PATIENCE.as_secs();
            say(&format!(
                "{source} is in use, maybe by a mount that is ending: waiting for up to {seconds} s"
            ));
        }
        if let Ok(Some(signal @ (Signal::INT | Signal::TERM))) = signals.wait(RETRY) {
            return Err(format!("{}: not mounted", signal_name(signal)));
        }
    }
}

/// Whether a mount of ours shows the source.
fn is_shown(source: &Path) -> bool {
    let mounts = mounts().unwrap_or_default();
    let shows = |mount: &MountInfo| mount.fs_type == FS_TYPE && Path::new(&mount.source) == source;
    mounts.iter().any(shows)
}
