//! Files that the kernel reads and writes without having opened them.
//!
//! # Model
//!
//! A kernel that keeps all data ([`KernelCache::All`](crate::KernelCache::All)) sends no `OPEN` and no `RELEASE` if this process may
//! open files whatever their mode says, and so says neither when a program opens a file nor when the last one closes it. The first request for data opens it here, if it was not
//! just made; a thread closes it once nothing was asked of it for [`IDLE`], or it gives way to another. A handle that was read
//! from is opened once more when it is written to.
//!
//! Some program may have a file open that has no name any more. Its last handle is not closed: that would discard data that
//! is not yet in the source. It is held with the file's node instead, until the kernel forgets the file. A file with data to
//! write is opened before it may lose its last name.
//!
//! # Invariants
//!
//! 1. A handle that a request uses stays in the list. So the last handle of a file is closed here, except those of a node that
//!    the kernel forgot.
//! 2. A handle of a file without a name leaves the list only to be held, until the mount ends.
//!
//! # Locking
//!
//! `state` protects the list alone. Handles are cloned under it; they are closed, or held, after it.

use crate::handles::FileHandle;
use crate::nodes::Nodes;
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

impl Open {
    /// Whether no request uses it. With the list's lock held that stays so.
    fn is_unused(&self) -> bool {
        Arc::strong_count(&self.handle) == 1
    }
}

#[derive(Default)]
struct State {
    /// The one used last at the end.
    open: Vec<Open>,
    stopped: bool,
}

/// The open files, see the module's header.
pub(crate) struct Unopened {
    state: Mutex<State>,
    wake: Condvar,
    nodes: Arc<Nodes>,
}

impl Unopened {
    /// None yet. Of files without a name `nodes` get the handles.
    pub(crate) fn new(nodes: Arc<Nodes>) -> Unopened {
        Unopened {
            state: Mutex::default(),
            wake: Condvar::new(),
            nodes,
        }
    }

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

    /// Keeps a handle for the next request. May close another.
    pub(crate) fn put(&self, handle: Arc<FileHandle>) {
        let mut state = self.state.lock();
        if state.stopped {
            return;
        }
        let full = state.open.len() >= OPEN;
        let oldest = state.open.iter().position(|open| full && open.is_unused());
        let oldest = oldest.map(|oldest| state.open.remove(oldest));
        if state.open.is_empty() {
            self.wake.notify_one();
        }
        let used = Instant::now();
        state.open.push(Open { handle, used });
        drop(state);
        self.close(oldest);
    }

    /// The kernel forgot this inode.
    pub(crate) fn end(&self, ino: u64) {
        let mut state = self.state.lock();
        let is_its = |open: &mut Open| open.handle.file.inode().ino() == ino;
        let gone: Vec<_> = state.open.extract_if(.., is_its).collect();
        drop(state);
        drop(gone);
    }

    /// Closes what nobody uses, unless it has no name.
    fn close(&self, handles: impl IntoIterator<Item = Open>) {
        for Open { handle, .. } in handles {
            if handle.file.inode().attributes().get().nlink == 0 {
                self.nodes.hold(handle);
            }
        }
    }

    /// Starts the thread.
    pub(crate) fn start(self: &Arc<Self>, panics: &Arc<Panics>) -> io::Result<JoinHandle<()>> {
        let unopened = Arc::clone(self);
        background::spawn("fuse-close", panics, move || unopened.run())
    }

    /// Ends the thread and closes all files. To be called when no request is served any more.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        let open = std::mem::take(&mut state.open);
        self.wake.notify_one();
        drop(state);
        drop(open);
    }

    fn run(&self) {
        let mut state = self.state.lock();
        while !state.stopped {
            let now = Instant::now();
            let idle = |open: &mut Open| now.duration_since(open.used) >= IDLE && open.is_unused();
            let closed: Vec<_> = state.open.extract_if(.., idle).collect();
            if !closed.is_empty() {
                drop(state);
                self.close(closed);
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
