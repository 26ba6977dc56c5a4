//! Files that the kernel reads and writes without an `OPEN`.
//!
//! # Model
//!
//! A kernel that keeps all data ([`KernelCache::All`](crate::KernelCache::All)) sends no `OPEN` and no `RELEASE` if
//! this process may open any file, so neither the first open nor the last close of a file by programs is known. The
//! first data request opens the file here, unless it was just created. A thread closes it after [`IDLE`] without a
//! request, or when another file needs its place. A file that was opened for reading is opened once more when it is
//! written to.
//!
//! A program may have an unlinked file open. Its last handle is not closed, because that would discard data that is
//! not yet in the source. The file's node holds it instead, until the kernel forgets the file. A file with dirty
//! data is opened before it may lose its last name.
//!
//! # Invariants
//!
//! 1. A handle that a request uses stays in the list. So the last handle of a file is closed here, except for nodes
//!    that the kernel forgot.
//! 2. A handle of an unlinked file leaves the list only to be held by its node, until the mount
//!    ends.
//!
//! # Locking
//!
//! `state`, a [`Leaf`](foliocache_sync::rank::Rank::Leaf), protects the list. A handle is cloned under it, and closed or handed to the node
//! after it is released.

use crate::handles::FileHandle;
use crate::nodes::Nodes;
use foliocache_sync::rank::LeafMutex;
use foliocache_sync::time::{Duration, Instant};
use foliocache_sync::{Arc, Condvar};

/// How long a file without requests stays open.
const IDLE: Duration = Duration::from_secs(1);

/// Most open files.
const OPEN: usize = 64;

struct Open {
    handle: Arc<FileHandle>,
    used: Instant,
}

impl Open {
    /// Whether no request uses it. It stays unused while the list's lock is held.
    fn is_unused(&self) -> bool {
        Arc::strong_count(&self.handle) == 1
    }
}

#[derive(Default)]
struct State {
    /// The most recently used one last.
    open: Vec<Open>,
    stopped: bool,
}

/// The open files, see the module's header.
pub(crate) struct Unopened {
    state: LeafMutex<State>,
    wake: Condvar,
    nodes: Arc<Nodes>,
}

impl Unopened {
    /// No open files. `nodes` get the handles of unlinked files.
    pub(crate) fn new(nodes: Arc<Nodes>) -> Unopened {
        Unopened {
            state: LeafMutex::default(),
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

    /// Keeps a handle for the next request. May close another one.
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

    /// Closes the handles, except those of unlinked files, which their nodes hold from now on.
    fn close(&self, handles: impl IntoIterator<Item = Open>) {
        for Open { handle, .. } in handles {
            if handle.file.inode().attributes().get().nlink == 0 {
                self.nodes.hold(handle);
            }
        }
    }

    /// Ends the thread and closes all files. Call it when no more requests are served.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        let open = std::mem::take(&mut state.open);
        self.wake.notify_one();
        drop(state);
        drop(open);
    }

    /// The thread's work, until [`stop`](Self::stop).
    pub(crate) fn run(&self) {
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
                true => self.wake.wait_ranked(state),
                false => self.wake.wait_timeout_ranked(state, IDLE).0,
            };
        }
    }
}
