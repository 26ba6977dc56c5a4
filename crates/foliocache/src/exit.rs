//! Writing back when the process exits.
//!
//! # Model
//!
//! ```text
//!  Cache::close_on_exit ──▶ CACHES: the file systems of each cache that asked for it
//!  exit ──▶ a thread writes them back ──▶ tells on standard error what it could not write
//!       └── waits, until nothing was written or flushed for PATIENCE ──▶ tells what is lost
//! ```
//!
//! A separate thread does the work. Another thread may hold a lock that it needs, or a store may not answer; the
//! exiting thread itself may be in the middle of a call of the cache.
//!
//! A file system stays in the list as long as a handle of it lives, also after its cache was dropped: a handle that was leaked may
//! have been written to since.
//!
//! # Locking
//!
//! *Protects*: the lists. *Order*: leaves. *May block*: no.
//!
//! # Memory ordering
//!
//! `done` is stored with Release and loaded with Acquire: the thread's messages are written before the process ends.

use foliocache_sync::atomic::{AtomicBool, Ordering};
use foliocache_sync::background::Panics;
use foliocache_sync::time::{Duration, Instant, sleep};
use foliocache_sync::{Arc, Mutex, Weak, thread};
use foliocache_sys::Errno;
use foliocache_sys::exit::{self, AtExit};
use foliocache_sys::signal::undisturbed;
use std::collections::BTreeMap;
use std::io::{self, Write};

use crate::error::{Error, Operation, Result};
use crate::mount::VfsMount;

/// How long the exit waits while nothing is written or flushed.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long it then waits for the list of lost files.
const PATIENCE_TO_TELL: Duration = Duration::from_secs(1);

/// The file systems of a cache.
pub(crate) type Mounts = Mutex<Vec<Weak<VfsMount>>>;

/// The caches that are written back at the exit. Holds only those in use.
static CACHES: Mutex<Vec<Arc<Mounts>>> = Mutex::new(Vec::new());

/// Enters the file systems of a cache, present and future.
///
/// # Errors
/// `ENOMEM`.
pub(crate) fn register(mounts: &Arc<Mounts>) -> Result<()> {
    let mut caches = CACHES.lock();
    let is_used = |mounts: &Arc<Mounts>| {
        let has_mounts = || mounts.lock().iter().any(|mount| mount.strong_count() > 0);
        Arc::strong_count(mounts) > 1 || has_mounts()
    };
    caches.retain(is_used);
    if !caches.iter().any(|known| Arc::ptr_eq(known, mounts)) {
        caches.push(Arc::clone(mounts));
    }
    drop(caches);
    exit::register::<WriteBack>().map_err(Error::of_cache(Operation::Sync))
}

/// Those of this process; not its parent's.
fn mounts() -> Vec<Arc<VfsMount>> {
    let caches = CACHES.lock();
    let all = caches.iter().flat_map(|mounts| {
        let mounts = mounts.lock();
        mounts.iter().filter_map(Weak::upgrade).collect::<Vec<_>>()
    });
    all.filter(|mount| mount.super_block().is_ok()).collect()
}

struct WriteBack;

impl AtExit for WriteBack {
    fn run() {
        if foliocache_sync::planted!(exit_without_writing_back) {
            return;
        }
        let mounts = mounts();
        let steps_left = || {
            mounts
                .iter()
                .map(|mount| mount.bdi().steps_left())
                .sum::<u64>()
        };
        let done = start(&mounts, |mounts| {
            let failed = mounts.iter().flat_map(|mount| mount.sync());
            let failed = failed.map(|failed| (failed.file, failed.errno)).collect();
            tell_lost(mounts, failed);
        });
        let (mut left, mut since) = (steps_left(), Instant::now());
        while !done.load(Ordering::Acquire) && since.elapsed() < PATIENCE {
            sleep(Duration::from_millis(2));
            let now = steps_left();
            if now < left {
                (left, since) = (now, Instant::now());
            }
        }
        if !done.load(Ordering::Acquire) {
            let said = start(&mounts, |mounts| tell_lost(mounts, BTreeMap::new()));
            let since = Instant::now();
            while !said.load(Ordering::Acquire) && since.elapsed() < PATIENCE_TO_TELL {
                sleep(Duration::from_millis(2));
            }
        }
        // The process ends. Dropping them could wait for the store again.
        std::mem::forget(mounts);
    }
}

/// Runs `work` on a thread. The result becomes true when it is done.
fn start(
    mounts: &[Arc<VfsMount>],
    work: impl FnOnce(&[Arc<VfsMount>]) + Send + 'static,
) -> Arc<AtomicBool> {
    let done = Arc::new(AtomicBool::new(false));
    let (mounts, is_done) = (mounts.to_vec(), Arc::clone(&done));
    let panics = Panics::new(|_, message| say(&format!("writing back panicked: {message}")));
    let run = move || {
        panics.catch("exit", || work(&mounts));
        std::mem::forget(mounts);
        is_done.store(true, Ordering::Release);
    };
    let thread = thread::Builder::new().name("foliocache-exit".to_owned());
    if let Err(error) = undisturbed(|| thread.spawn(run)) {
        say(&format!("cannot start a thread to write back: {error}"));
        done.store(true, Ordering::Release);
    }
    done
}

/// Says which files have data that is not in the source, and why.
fn tell_lost(mounts: &[Arc<VfsMount>], failed: BTreeMap<String, Errno>) {
    let mut lost: BTreeMap<_, _> = failed
        .into_iter()
        .map(|(file, errno)| (file, (0, Some(errno))))
        .collect();
    for unsynced in mounts.iter().flat_map(|mount| mount.unsynced_files()) {
        let known = lost.entry(unsynced.file).or_insert((0, unsynced.errno));
        known.0 = unsynced.bytes;
    }
    for (file, (bytes, errno)) in lost {
        let why = errno.map_or("not written yet".to_owned(), |errno| errno.to_string());
        say(&format!("lost at exit: {file}: {bytes} bytes: {why}"));
    }
}

fn say(line: &str) {
    // Without standard error it cannot be reported.
    let _ = writeln!(io::stderr(), "foliocache: {line}");
}
