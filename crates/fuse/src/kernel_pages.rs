//! Gives back what a mapping brought into the kernel's cache.
//!
//! # Model
//!
//! The kernel keeps the pages of a mapped file in its own cache, which is memory that our bound
//! does not see. When the last handle of such a file is closed nobody maps it any more, and the
//! kernel is told to drop the pages. It may have to wait for requests of ours to do so, so a thread
//! of its own asks it, which serves no requests.
//!
//! # Locking
//!
//! `queue` protects the numbers that wait, `open` the counts of handles; nothing is called under either.

use foliocache_sync::background::{self, Panics};
use foliocache_sync::thread::JoinHandle;
use foliocache_sync::{Arc, Condvar, Mutex};
use fuser::{INodeNo, Notifier};
use std::collections::{HashMap, VecDeque};

/// Numbers that may wait; what comes on top is left to the kernel's own reclaim.
const MAX_WAITING: usize = 4096;

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Request>,
    stopped: bool,
}

#[derive(Clone, Copy)]
enum Request {
    DropPages(u64),
    /// The attributes changed without the kernel's doing.
    ForgetAttributes(u64),
}

/// An inode that the kernel has open.
#[derive(Default)]
struct Open {
    handles: u64,
    /// The kernel read pages into its cache through a handle that is closed now.
    mapped: bool,
}

/// The queue of inodes whose pages the kernel is to drop.
#[derive(Default)]
pub(crate) struct KernelPages {
    queue: Mutex<Queue>,
    wake: Condvar,
    /// By inode number.
    open: Mutex<HashMap<u64, Open>>,
}

impl KernelPages {
    /// The kernel has opened one more handle of this inode.
    pub(crate) fn opened(&self, ino: u64) {
        self.open.lock().entry(ino).or_default().handles += 1;
    }

    /// A handle was closed, through which the kernel read pages into its cache if `mapped`. With the last
    /// handle of the inode these pages are to go.
    pub(crate) fn closed(&self, ino: u64, mapped: bool) {
        let drop_pages = {
            let mut inodes = self.open.lock();
            let Some(open) = inodes.get_mut(&ino) else {
                return;
            };
            open.mapped |= mapped;
            open.handles -= 1;
            let last = open.handles == 0;
            let drop_pages = last && open.mapped;
            if last {
                inodes.remove(&ino);
            }
            drop_pages
        };
        if drop_pages {
            self.push(Request::DropPages(ino));
        }
    }

    /// The kernel is to ask for this inode's attributes again.
    pub(crate) fn forget_attributes(&self, ino: u64) {
        self.push(Request::ForgetAttributes(ino));
    }

    fn push(&self, request: Request) {
        let mut queue = self.queue.lock();
        if queue.waiting.len() < MAX_WAITING && !queue.stopped {
            queue.waiting.push_back(request);
            self.wake.notify_one();
        }
    }

    /// Starts the thread.
    pub(crate) fn start(
        self: &Arc<Self>,
        notifier: Notifier,
        panics: &Arc<Panics>,
    ) -> std::io::Result<JoinHandle<()>> {
        let pages = Arc::clone(self);
        background::spawn("kernel-pages", panics, move || pages.run(&notifier))
    }

    pub(crate) fn stop(&self) {
        self.queue.lock().stopped = true;
        self.wake.notify_one();
    }

    fn run(&self, notifier: &Notifier) {
        let mut queue = self.queue.lock();
        loop {
            if queue.stopped {
                return;
            }
            let Some(request) = queue.waiting.pop_front() else {
                queue = self.wake.wait(queue);
                continue;
            };
            drop(queue);
            // A negative offset means the attributes alone.
            let (ino, offset) = match request {
                Request::DropPages(ino) => (ino, 0),
                Request::ForgetAttributes(ino) => (ino, -1),
            };
            if let Err(error) = notifier.inval_inode(INodeNo(ino), offset, 0) {
                tracing::debug!(ino, %error, "the kernel did not drop what it holds");
            }
            queue = self.queue.lock();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(pages: &KernelPages) -> Vec<u64> {
        let numbers = |request: &Request| match request {
            Request::DropPages(ino) | Request::ForgetAttributes(ino) => *ino,
        };
        pages.queue.lock().waiting.iter().map(numbers).collect()
    }

    #[test]
    fn the_last_handle_of_a_mapped_file_drops_its_pages() {
        let pages = KernelPages::default();
        for ino in [1, 1, 2, 3, 3] {
            pages.opened(ino);
        }
        pages.closed(1, true);
        pages.closed(2, true);
        assert_eq!(waiting(&pages), [2], "inode 1 is open elsewhere");
        pages.closed(1, false);
        assert_eq!(waiting(&pages), [2, 1]);
        pages.closed(3, false);
        pages.closed(3, false);
        assert_eq!(waiting(&pages), [2, 1], "nobody mapped inode 3");
        assert!(pages.open.lock().is_empty());
        pages.opened(1);
        pages.closed(1, false);
        assert_eq!(waiting(&pages), [2, 1], "it was mapped before, not since");
    }
}
