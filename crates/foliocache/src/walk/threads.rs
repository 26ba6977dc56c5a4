//! The threads of a walk.

use foliocache_sync::{Arc, thread};
use foliocache_sys::Errno;
use foliocache_sys::signal::undisturbed;

use super::Walk;
use crate::parent_only::{Forked, ParentOnly};

/// The work of the threads of a walk, and the state that they share.
pub(super) trait Work: Send + Sync + 'static {
    fn walk(&self) -> &Walk;
    /// Runs in each thread.
    fn run(&self);
    /// Makes the threads end soon, waiting ones included.
    fn stop(&self);
}

/// Threads that end with this.
pub(super) struct Threads<W: Work> {
    shared: Arc<W>,
    handles: Vec<thread::JoinHandle<()>>,
}

impl<W: Work> Threads<W> {
    /// As many threads as can be had of those wanted; `None` if that is none.
    pub(super) fn start(shared: W, wanted: usize) -> Option<ParentOnly<Self>> {
        let shared = Arc::new(shared);
        let handles = (0..wanted).map_while(|_| {
            let shared = Arc::clone(&shared);
            let builder = thread::Builder::new().name("foliocache-walk".to_owned());
            undisturbed(|| builder.spawn(move || shared.run())).ok()
        });
        let handles: Vec<_> = handles.collect();
        (!handles.is_empty()).then(|| ParentOnly::new(Self { shared, handles }))
    }

    pub(super) fn shared(&self) -> &W {
        &self.shared
    }
}

impl<W: Work> Forked for Threads<W> {
    fn check_fork(&self) -> Result<(), Errno> {
        self.shared.walk().start.check_fork()
    }
}

impl<W: Work> Drop for Threads<W> {
    fn drop(&mut self) {
        self.shared.stop();
        for handle in self.handles.drain(..) {
            // A panic was reported when it happened.
            let _ = handle.join();
        }
    }
}
