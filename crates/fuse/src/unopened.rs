//! Files that the kernel reads and writes without having opened them.
//!
//! # Model
//!
//! A kernel that keeps all data ([`KernelCache::All`](crate::KernelCache::All)) sends no `OPEN` and no `RELEASE`, and so says
//! neither when a program opens a file nor when the last one closes it. The first request for data opens it here, if it was not
//! just made; a thread closes it once nothing was asked of it for [`IDLE`], or it gives way to another. A handle that was read
//! from is opened once more when it is written to.
//!
//! A file that loses its name is opened before, and held with its node until the kernel forgets it: some program may
//! have it open.
//!
//! # Locking
//!
//! `state` protects the list alone; what is dropped is dropped after it.

use crate::handles::FileHandle;
use foliocache_sync::background::{self, Panics};
use foliocache_sync::thread::JoinHandle;
use foliocache_sync::time::{Duration, Instant};
use foliocache_sync::{Arc, Condvar, Mutex};
use std::io;

/// How long a file stays open that nobody asks for.
const IDLE: Duration = Duration::from_secs(1);

/// Files that are open, most.
const OPEN: usize = 64;

struct Open {
    handle: Arc<FileHandle>,
    used: Instant,
}

#[derive(Default)]
struct State {
    /// The one used last at the end.
    open: Vec<Open>,
    stopped: bool,
}

/// The open files, see the module's header.
#[derive(Default)]
pub(crate) struct Unopened {
    state: Mutex<State>,
    wake: Condvar,
}

impl Unopened {
    /// An open handle of a file, for writing too if `write`.
    pub(crate) fn get(&self, ino: u64, write: bool) -> Option<Arc<FileHandle>> {
        let mut state = self.state.lock();
        let serves = |open: &Open| {
            let file = &open.handle.file;
            file.inode().ino() == ino && (file.flags().write || !write)
        };
        let place = state.open.iter().rposition(serves)?;
        let mut open = state.open.remove(place);
        open.used = Instant::now();
        let handle = Arc::clone(&open.handle);
        state.open.push(open);
        Some(handle)
    }

    /// Keeps a handle for the next request.
    pub(crate) fn put(&self, handle: Arc<FileHandle>) {
        let mut state = self.state.lock();
        let oldest = (state.open.len() == OPEN).then(|| state.open.remove(0));
        if state.open.is_empty() {
            self.wake.notify_one();
        }
        let used = Instant::now();
        state.open.push(Open { handle, used });
        drop(state);
        drop(oldest);
    }

    /// Starts the thread.
    pub(crate) fn start(self: &Arc<Self>, panics: &Arc<Panics>) -> io::Result<JoinHandle<()>> {
        let unopened = Arc::clone(self);
        background::spawn("fuse-close", panics, move || unopened.run())
    }

    pub(crate) fn stop(&self) {
        self.state.lock().stopped = true;
        self.wake.notify_one();
    }

    fn run(&self) {
        let mut state = self.state.lock();
        while !state.stopped {
            let now = Instant::now();
            let idle = |open: &Open| now.duration_since(open.used) >= IDLE;
            let nr = state.open.partition_point(idle);
            if nr > 0 {
                let closed: Vec<_> = state.open.drain(..nr).collect();
                drop(state);
                drop(closed);
                state = self.state.lock();
                continue;
            }
            state = match state.open.is_empty() {
                true => self.wake.wait(state),
                false => self.wake.wait_timeout(state, IDLE).0,
            };
        }
    }
}
