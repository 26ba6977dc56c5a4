//! A walk in one thread, depth first: the directories that are open, innermost last.

use foliocache_sync::Arc;

use super::Walk;
use super::read::{Job, Open, Step};

/// The walk below one directory.
pub(super) struct Steps {
    walk: Arc<Walk>,
    open: Vec<Open>,
    /// To be opened before anything else is read.
    next: Option<Box<Job>>,
}

impl Steps {
    pub(super) fn new(walk: &Arc<Walk>, job: Box<Job>) -> Self {
        Self {
            walk: Arc::clone(walk),
            open: Vec::new(),
            next: Some(job),
        }
    }

    pub(super) fn next(&mut self) -> Option<Step> {
        loop {
            if let Some(job) = self.next.take() {
                match self.walk.open(*job) {
                    Ok(open) => self.open.push(open),
                    Err(error) => return Some(Err(error)),
                }
            }
            let open = self.open.last_mut()?;
            let Open { place, entries } = open;
            match entries.next(place, |found| self.walk.entry(place, found)) {
                Some(step) => return Some(step),
                None => drop(self.open.pop()),
            }
        }
    }

    /// Walks a directory that came with an entry, next.
    pub(super) fn descend(&mut self, job: Option<Box<Job>>) {
        self.next = job;
    }
}
