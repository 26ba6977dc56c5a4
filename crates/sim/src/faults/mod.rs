//! A plan of faults, with their times and places, that tests change while a backend runs.
//!
//! # Model
//!
//! A plan is a list of [`Rule`]s: *on* some operations, in some *range*, *when* a counter or a
//! seeded coin says so, an [`Effect`]. For each operation the rules are tried in the order in which
//! they were added. Delays and hangs add up; the first effect that decides the outcome ends the
//! search. Everything drawn comes from the plan's one seed.
//!
//! ```text
//!  operation ──▶ rules ──▶ delays, hangs ──▶ outcome (fail, torn, short, lose) or none: it works
//! ```
//!
//! # Locking
//!
//! *protects*: one mutex holds the rules, the generator, the counters and the trace.
//! *order*: innermost; nothing is called with it held. *may block*: `begin` sleeps for delays and
//! waits for hangs, with the mutex given up.

mod count;
mod rule;

use std::collections::VecDeque;
use std::ops::Range;

use foliocache_sync::time::{Duration, Instant, sleep};
use foliocache_sync::{Arc, Condvar, Mutex};
use foliocache_sys::Errno;

pub use self::count::{Counts, Event};
pub use self::rule::{Effect, OpKind, OpSet, Rule, RuleId, When};
use crate::{Rng, SECTOR};

/// Operations that the trace keeps.
const TRACE_LEN: usize = 512;

/// How an operation is to go on after its delays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// As if nothing were wrong.
    Works,
    /// It fails and does nothing.
    Fails(Errno),
    /// It fails after some sectors of it were written; the number seeds the choice.
    Torn(Errno, u64),
    /// It does its first bytes only.
    Short(u64),
    /// It says that it is done, and does nothing.
    Lies,
    /// A flush that fails and loses data.
    Loses(Errno, crate::Lost),
}

/// A handle to the plan of one or more backends; clones share the plan.
#[derive(Clone, Debug)]
pub struct Faults(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    plan: Mutex<Plan>,
    /// Signalled when hung operations are released, and when an operation begins.
    changed: Condvar,
}

#[derive(Debug)]
struct Plan {
    rules: Vec<Armed>,
    next_id: u64,
    rng: Rng,
    counts: Counts,
    trace: VecDeque<Event>,
    /// Hangs of operations that began before the last release are over; see [`Faults::release`].
    releases: u64,
    /// The result that the last release gave to hanging operations.
    released: Result<(), Errno>,
}

#[derive(Debug)]
struct Armed {
    id: RuleId,
    rule: Rule,
    /// Operations that the rule's kinds and range matched so far.
    matched: u64,
    /// Operations that the effect was applied to so far.
    fired: u64,
}

impl Faults {
    /// A plan without faults, whose later draws follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Inner {
            plan: Mutex::new(Plan {
                rules: Vec::new(),
                next_id: 0,
                rng: Rng::new(seed),
                counts: Counts::default(),
                trace: VecDeque::with_capacity(TRACE_LEN),
                releases: 0,
                released: Ok(()),
            }),
            changed: Condvar::new(),
        }))
    }

    /// Adds a rule behind the existing ones.
    pub fn add(&self, rule: Rule) -> RuleId {
        let mut plan = self.0.plan.lock();
        plan.next_id += 1;
        let id = RuleId(plan.next_id);
        plan.rules.push(Armed {
            id,
            rule,
            matched: 0,
            fired: 0,
        });
        id
    }

    /// Takes a rule away, and says how often it fired; `None` if it is not there (any more).
    /// Operations that it made hang stay hung until [`Faults::release`].
    pub fn remove(&self, id: RuleId) -> Option<u64> {
        let mut plan = self.0.plan.lock();
        let at = plan.rules.iter().position(|armed| armed.id == id)?;
        Some(plan.rules.remove(at).fired)
    }

    /// Whether any rule may change or delay an operation that begins now.
    #[cfg(feature = "disk")]
    pub(crate) fn has_rules(&self) -> bool {
        !self.0.plan.lock().rules.is_empty()
    }

    /// How often a rule fired; `None` if it is not there (any more).
    pub fn fired(&self, id: RuleId) -> Option<u64> {
        let plan = self.0.plan.lock();
        plan.rules
            .iter()
            .find(|armed| armed.id == id)
            .map(|armed| armed.fired)
    }

    /// Takes all rules away and lets everything go on that hangs: the backend is well again.
    pub fn heal(&self) {
        self.0.plan.lock().rules.clear();
        self.release(Ok(()));
    }

    /// Lets the operations go on that hang now, or makes them fail with the error given. So it does with those that have begun
    /// and would hang after a delay. Rules that make operations hang stay and catch the next ones.
    pub fn release(&self, outcome: Result<(), Errno>) {
        let mut plan = self.0.plan.lock();
        plan.releases += 1;
        plan.released = outcome;
        drop(plan);
        self.0.changed.notify_all();
    }

    /// Operations that hang at this moment.
    pub fn hung(&self) -> u64 {
        self.0.plan.lock().counts.hung
    }

    /// Waits until at least `n` operations hang; false if that takes longer than `patience`.
    pub fn wait_hung(&self, n: u64, patience: Duration) -> bool {
        self.wait(patience, |plan| plan.counts.hung >= n)
    }

    /// Waits until `n` operations of the kinds `on` have begun since the plan was made; false if
    /// that takes longer than `patience`.
    pub fn wait_begun(&self, on: OpSet, n: u64, patience: Duration) -> bool {
        self.wait(patience, |plan| plan.counts.begun_of(on) >= n)
    }

    fn wait(&self, patience: Duration, done: impl Fn(&Plan) -> bool) -> bool {
        let until = Instant::now() + patience;
        let mut plan = self.0.plan.lock();
        while !done(&plan) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            (plan, _) = self.0.changed.wait_timeout(plan, left);
        }
        true
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        self.0.plan.lock().counts
    }

    /// The last operations, oldest first, for messages.
    pub fn trace(&self) -> Vec<Event> {
        self.0.plan.lock().trace.iter().copied().collect()
    }

    /// The last `n` operations as lines of text.
    pub fn trace_text(&self, n: usize) -> String {
        let trace = self.trace();
        let skip = trace.len().saturating_sub(n);
        trace[skip..]
            .iter()
            .map(|event| format!("{event}\n"))
            .collect()
    }

    /// Starts an operation on `range`: counts it, delays it, waits while it hangs, and returns how
    /// it must end. `len` is the full length of a short operation.
    pub(crate) fn begin(&self, kind: OpKind, range: Range<u64>, len: u64) -> (u64, Outcome) {
        let mut plan = self.0.plan.lock();
        plan.counts.begun[kind as usize] += 1;
        let seq = plan.counts.operations();
        // From its beginning: otherwise a release during its delay would be missed.
        let releases = plan.releases;
        let (effects, outcome) = plan.decide(kind, &range, len);
        self.0.changed.notify_all();
        let mut outcome = outcome;
        for effect in effects {
            match effect {
                Effect::Delay(time) => {
                    drop(plan);
                    sleep(time);
                    plan = self.0.plan.lock();
                }
                Effect::DelayOps { ops, at_most } => {
                    drop(plan);
                    self.wait(at_most, |plan| plan.counts.operations() >= seq + ops);
                    plan = self.0.plan.lock();
                }
                Effect::Hang => {
                    plan.counts.hung += 1;
                    self.0.changed.notify_all();
                    while plan.releases == releases {
                        plan = self.0.changed.wait(plan);
                    }
                    plan.counts.hung -= 1;
                    if let Err(errno) = plan.released {
                        outcome = Outcome::Fails(errno);
                        break;
                    }
                }
                _ => {}
            }
        }
        (seq, outcome)
    }

    /// Runs an operation on the `len` bytes at `pos`: `body` obeys the plan, and returns the
    /// result.
    pub(crate) fn run(
        &self,
        kind: OpKind,
        pos: u64,
        len: u64,
        body: impl FnOnce(Outcome) -> Result<u64, Errno>,
    ) -> Result<u64, Errno> {
        let (seq, outcome) = self.begin(kind, pos..pos.saturating_add(len), len);
        let outcome = body(outcome);
        self.end(Event {
            seq,
            kind,
            pos,
            len,
            outcome,
        });
        outcome
    }

    /// Ends an operation: counts its bytes or its failure and writes it to the trace.
    pub(crate) fn end(&self, event: Event) {
        #[cfg(shuttle)]
        foliocache_sync::model::trace(&event);
        let mut plan = self.0.plan.lock();
        plan.counts.note(&event);
        if plan.trace.len() == TRACE_LEN {
            plan.trace.pop_front();
        }
        plan.trace.push_back(event);
    }
}

impl Plan {
    /// The delays and hangs that the operation has, in order, and its outcome.
    fn decide(&mut self, kind: OpKind, range: &Range<u64>, len: u64) -> (Vec<Effect>, Outcome) {
        let mut effects = Vec::new();
        for armed in &mut self.rules {
            let rule = &armed.rule;
            if !rule.matches(kind, range) {
                continue;
            }
            armed.matched += 1;
            let due = match rule.when {
                When::Always => true,
                When::Nth(n) => armed.matched == n,
                When::First(n) => armed.matched <= n,
                When::After(n) => armed.matched > n,
                When::Every(n) => armed.matched.is_multiple_of(n.max(1)),
                When::Chance { part, whole } => self.rng.one_in(part, whole.max(1)),
            };
            if !due || rule.times.is_some_and(|times| armed.fired >= times) {
                continue;
            }
            armed.fired += 1;
            let outcome = match rule.effect {
                Effect::Delay(_) | Effect::DelayOps { .. } | Effect::Hang => {
                    effects.push(rule.effect);
                    continue;
                }
                Effect::Fail(errno) => Outcome::Fails(errno),
                Effect::Torn(errno) => Outcome::Torn(errno, self.rng.next_u64()),
                Effect::Short if len == 0 => continue,
                Effect::Short => Outcome::Short(self.rng.below(len) / SECTOR * SECTOR),
                Effect::ShortTo(most) if most >= len => continue,
                Effect::ShortTo(most) => Outcome::Short(most),
                Effect::Lie => Outcome::Lies,
                Effect::Lose(errno, lost) => Outcome::Loses(errno, lost),
            };
            return (effects, outcome);
        }
        (effects, Outcome::Works)
    }
}

#[cfg(test)]
mod tests;
