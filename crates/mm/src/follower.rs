//! The thread that has a cache follow the pressure from outside, as the policy of [`crate::pressure`] says.

use foliocache_sync::{Arc, background};
use foliocache_sys::Errno;
use foliocache_sys::pressure::{Monitor, Outside};
use std::time::Duration;

use crate::error::MmError;
use crate::pressure::{Follower, Usage, adapt, held};
use crate::records::Mm;

/// Times a sample is repeated because the cache changed meanwhile.
const ATTEMPTS: usize = 3;

/// Least time between two looks when the kernel tells of pressure that is none of ours.
const EVENT_PAUSE: Duration = Duration::from_millis(100);

impl Mm {
    /// Starts the thread, which holds the cache only while it looks.
    pub(crate) fn start_following(self: &Arc<Self>, mut monitor: Monitor) -> Result<(), Errno> {
        let waker = monitor.waker();
        let panics = self.panics();
        let mm = Arc::downgrade(self);
        let run = move || {
            let mut told = false;
            while let Some(mm) = mm.upgrade() {
                let before = mm.frames.limit();
                let pause = mm.follow_pressure(&mut monitor);
                let changed = mm.frames.limit() != before;
                drop(mm);
                told = match told && !changed {
                    // The event of the kernel does not concern this cache: there may be many of them.
                    true => {
                        monitor.rest(EVENT_PAUSE.min(pause));
                        false
                    }
                    false => monitor.wait(pause),
                };
            }
        };
        let thread = background::spawn("foliocache-press", panics, run).map_err(Errno::from)?;
        *self.pressure.follower.lock() = Some(Follower { thread, waker });
        Ok(())
    }

    /// Looks outside and does what the policy says; returns how long to wait for the next look.
    fn follow_pressure(&self, monitor: &mut Monitor) -> Duration {
        #[cfg(all(test, not(any(loom, shuttle))))]
        self.pressure.inject_panic();
        let (outside, held) = self.sample(monitor);
        if let Err(error) = self.follow(&outside, held) {
            tracing::warn!(%error, "the limit could not follow the pressure from outside");
        }
        self.pressure.policy.lock().pause()
    }

    /// Follows `outside`, for a model, which has no surroundings of its own. Returns how long to wait for the next look.
    #[cfg(shuttle)]
    #[doc(hidden)]
    pub fn follow_model(&self, outside: &Outside) -> Result<Duration, MmError> {
        self.follow(outside, self.held())?;
        Ok(self.pressure.policy.lock().pause())
    }

    /// Keeps the limit that the policy finds right for the use of memory outside and inside.
    pub(crate) fn follow(&self, outside: &Outside, held: Usage) -> Result<(), MmError> {
        adapt(
            &mut self.pressure.policy.lock(),
            &self.frames,
            outside,
            held,
        )?;
        if self.give_back_excess(self.reclaimer.giving_back.try_lock()) > 0 {
            self.reclaimer.worker.wake();
        }
        Ok(())
    }

    /// The use of memory outside, and inside at the same time.
    fn sample(&self, monitor: &mut Monitor) -> (Outside, Usage) {
        // The two figures belong together only if the cache took and gave back no block in between. If it does so all
        // the time, the smaller one is used: the rest counts as taken by others, which errs on the safe side.
        let mut held = self.held();
        let mut outside = monitor.sample();
        for attempt in 1..=ATTEMPTS {
            let after = self.held();
            if after.bytes == held.bytes {
                break;
            }
            if attempt == ATTEMPTS {
                held.bytes = held.bytes.min(after.bytes);
                break;
            }
            held = after;
            outside = monitor.sample();
        }
        (outside, held)
    }

    pub(crate) fn held(&self) -> Usage {
        held(
            &self.frames,
            self.folios.bytes(),
            self.unreclaimable().bytes(),
        )
    }
}
