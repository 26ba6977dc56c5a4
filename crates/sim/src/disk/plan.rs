//! The plan of faults of a disk, which its server has.

use std::time::{Duration, Instant};

use foliocache_sys::Errno;

use super::Disk;
use super::protocol::Request;
use crate::{Counts, Effect, OpSet, Rule, RuleId, When};

/// The faults of a disk, as those of [`Faults`](crate::Faults). A disk's operations are reads, writes, flushes and
/// discards (`PunchHole`).
///
/// Add rules before the operations that they are meant for: an operation under way is not affected.
#[derive(Clone, Copy, Debug)]
pub struct DiskFaults<'a>(pub(super) &'a Disk);

impl DiskFaults<'_> {
    /// Adds a rule behind the existing ones.
    pub fn add(&self, rule: Rule) -> RuleId {
        self.0.call(&Request::AddRule(self.0.0.id, rule))
    }

    /// The n-th operation of `on` from now on, from 1, fails once.
    pub fn fail_nth(&self, on: OpSet, n: u64, errno: Errno) -> RuleId {
        self.add(Rule::new(on, Effect::Fail(errno)).when(When::Nth(n)))
    }

    /// The n-th operation of `on` from now on, from 1, fails, and all after it.
    pub fn fail_from(&self, on: OpSet, n: u64, errno: Errno) -> RuleId {
        let when = When::After(n.saturating_sub(1));
        self.add(Rule::new(on, Effect::Fail(errno)).when(when))
    }

    /// Operations of `on` hang from now on, until [`DiskFaults::heal`] or [`DiskFaults::release`].
    pub fn hang(&self, on: OpSet) -> RuleId {
        self.add(Rule::new(on, Effect::Hang))
    }

    /// Takes a rule away, and says how often it fired.
    pub fn remove(&self, rule: RuleId) -> Option<u64> {
        self.0.call(&Request::RemoveRule(self.0.0.id, rule))
    }

    /// How often a rule fired.
    pub fn fired(&self, rule: RuleId) -> Option<u64> {
        self.0.call(&Request::Fired(self.0.0.id, rule))
    }

    /// Takes all rules away and lets everything go on that hangs.
    pub fn heal(&self) {
        self.0.call(&Request::Heal(self.0.0.id))
    }

    /// Lets the operations go on that hang now, or makes them fail.
    pub fn release(&self, outcome: Result<(), Errno>) {
        let errno = outcome.err().map(Errno::raw);
        self.0.call(&Request::Release(self.0.0.id, errno))
    }

    /// Every operation fails from now on, those that hang among them.
    pub fn vanish(&self) {
        self.add(Rule::new(OpSet::ALL, Effect::Fail(Errno::EIO)));
        self.release(Err(Errno::EIO));
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        self.0.call(&Request::Counts(self.0.0.id))
    }

    /// Waits until at least `n` operations hang; false if that takes longer than `patience`.
    pub fn wait_hung(&self, n: u64, patience: Duration) -> bool {
        self.wait(patience, |counts| counts.hung >= n)
    }

    /// Waits until `n` operations of the kinds `on` have begun in all; false if that takes longer than `patience`.
    pub fn wait_begun(&self, on: OpSet, n: u64, patience: Duration) -> bool {
        self.wait(patience, |counts| counts.begun_of(on) >= n)
    }

    fn wait(&self, patience: Duration, done: impl Fn(&Counts) -> bool) -> bool {
        let until = Instant::now() + patience;
        while !done(&self.counts()) {
            if Instant::now() > until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }

    /// The last `n` operations as lines of text.
    pub fn trace_text(&self, n: usize) -> String {
        self.0.call(&Request::Trace(self.0.0.id, n))
    }
}
