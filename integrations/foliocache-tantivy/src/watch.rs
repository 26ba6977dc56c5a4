//! Who is told of new commits.
//!
//! # Model
//!
//! A commit of this process tells at once. For those of others a thread looks at `meta.json` twice a second. What was told is
//! remembered, so that the thread does not tell again what this process did.
//!
//! # Locking
//!
//! *Protects*: `state` what was told last, and whether to go on. *Order*: nothing is locked under it. *May block*: no.

use foliocache::Directory;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;
use tantivy::directory::{WatchCallback, WatchCallbackList, WatchHandle};

/// The file that holds the newest commit.
pub(crate) const META: &str = "meta.json";

/// How often the thread looks. tantivy's own directory waits as long.
const INTERVAL: Duration = Duration::from_millis(500);

/// Callbacks, and what they know.
pub(crate) struct Watch {
    /// Here and not with the thread, which would keep it open for a moment after its last user.
    directory: Directory,
    callbacks: WatchCallbackList,
    signals: Arc<Signals>,
}

#[derive(Default)]
struct Signals {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    runs: bool,
    is_over: bool,
    /// What was in the file when callbacks were called last.
    told: Option<Vec<u8>>,
}

impl Signals {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nobody knows of this content yet.
    fn is_news(&self, content: &[u8]) -> bool {
        let mut state = self.state();
        if state.told.as_deref() == Some(content) {
            return false;
        }
        state.told = Some(content.to_vec());
        true
    }
}

impl Watch {
    pub(crate) fn new(directory: Directory) -> Self {
        Self {
            directory,
            callbacks: WatchCallbackList::default(),
            signals: Arc::default(),
        }
    }

    /// Calls `callback` for each commit from now on. A commit just before may call it, too, so that none is missed between a reader's
    /// first look and this.
    pub(crate) fn subscribe(
        this: &Arc<Self>,
        callback: WatchCallback,
    ) -> tantivy::Result<WatchHandle> {
        let handle = this.callbacks.subscribe(callback);
        let mut state = this.signals.state();
        state.told = None;
        if !state.runs {
            let (watch, signals) = (Arc::downgrade(this), Arc::clone(&this.signals));
            thread::Builder::new()
                .name("foliocache-tantivy-watch".to_owned())
                .spawn(move || look_at_times(&watch, &signals))?;
            state.runs = true;
        }
        Ok(handle)
    }

    /// This process has put `content` into `meta.json`.
    pub(crate) fn committed(&self, content: &[u8]) {
        if self.signals.state().runs && self.signals.is_news(content) {
            drop(self.callbacks.broadcast());
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.signals.state().is_over = true;
        self.signals.ended.notify_all();
    }
}

fn look_at_times(watch: &Weak<Watch>, signals: &Signals) {
    loop {
        let Some(watch) = watch.upgrade() else { return };
        if let Ok(content) = watch.directory.read(META)
            && signals.is_news(&content)
        {
            // A callback that panics is not ours to handle.
            drop(watch.callbacks.broadcast().wait());
        }
        drop(watch);
        let state = signals.state();
        let waited = signals
            .ended
            .wait_timeout_while(state, INTERVAL, |state| !state.is_over);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.is_over {
            return;
        }
    }
}
