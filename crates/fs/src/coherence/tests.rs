//! The machine beside a world that knows the truth: a source that others change at any moment, answers that arrive late, changes of
//! ours under way, marks, and news that come late or are lost.

use super::{Answer, Asked, Cached, Coherence, LocalChange, Moment, OwnChange, Token, Verdict};
use proptest::prelude::*;
use std::mem;

/// For how long the source need not be asked, in milliseconds.
const LOOK_AFTER: u64 = 1000;
/// An epoch of [`Moment::at`].
const EPOCH: u64 = 1 << 40;

/// A change of the data by others that the cached data lacks without an excuse.
#[derive(Clone, Copy, Debug)]
struct Missing {
    /// Its stamp, and when it was.
    stamp: i64,
    at: u64,
    /// A change was reported.
    told: bool,
    /// The kernel counted it.
    counted: bool,
    /// It was counted, or an answer that showed it was noted: no change of ours may hide it.
    recorded: bool,
}

/// A change of ours.
#[derive(Debug)]
struct Own {
    change: OwnChange,
    what: LocalChange,
    /// The source has changed.
    done: bool,
    /// Another one was under way beside it.
    overlapped: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Compare,
    Open,
    /// Before a change of ours.
    Note,
    Lock,
}

#[derive(Clone, Copy, Debug)]
struct Question {
    purpose: Purpose,
    asked: Asked,
    moment: Moment,
    said: Option<Token>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ByOthers {
    Write {
        grows: bool,
    },
    /// It is not reported.
    Store,
    Chmod,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    ByOthers(ByOthers),
    Deliver,
    Overflow,
    Begin(LocalChange),
    /// The source changes by one of ours; it is cut if so.
    Do {
        which: usize,
        cut: bool,
    },
    End {
        which: usize,
        looks: bool,
    },
    Ask(Purpose),
    Say(usize),
    Answer(usize),
    TookOver(usize),
    Pass(u64),
    Dirty,
    Clean,
    Mark,
    Unmark,
    Stamp(usize),
    Use,
}

#[derive(Debug)]
struct World {
    machine: Coherence,
    stamp: i64,
    ms: u64,
    epoch: u64,
    doubts: u32,
    source: Token,
    size: u64,
    dirty: bool,
    /// Our data went to the source since it became dirty.
    wrote: bool,
    by_others: bool,
    /// The holder of a lock doubts the data, or times of ours look like those of others.
    doubted: bool,
    /// A change of ours ended, and the source has not been asked since.
    unseen: bool,
    missing: Vec<Missing>,
    /// The queue of news, by stamps.
    queue: Vec<i64>,
    /// The last change of ours to data or times ended without a look: later changes cannot be told
    /// from it.
    blind: bool,
    counted: Option<u64>,
    own: Vec<Own>,
    questions: Vec<Question>,
    /// Answers whose data was dropped.
    dropped: Vec<Answer>,
}

impl World {
    fn new() -> World {
        let source = Token {
            size: 10,
            mtime: 0,
            ctime: 0,
        };
        let mut world = World {
            machine: Coherence::default(),
            stamp: 0,
            ms: 1,
            epoch: 0,
            doubts: 0,
            source,
            size: source.size,
            dirty: false,
            wrote: false,
            by_others: false,
            doubted: false,
            unseen: false,
            missing: Vec::new(),
            queue: Vec::new(),
            blind: false,
            counted: None,
            own: Vec::new(),
            questions: Vec::new(),
            dropped: Vec::new(),
        };
        let answer = Answer {
            asked: world.machine.ask(None),
            moment: None,
            token: source,
        };
        world.machine.took_over(&answer);
        world
    }

    fn now(&self) -> Moment {
        Moment {
            at: self.ms | self.epoch,
            doubts: self.doubts,
        }
    }

    fn tick(&mut self) -> i64 {
        self.stamp += 1;
        self.stamp
    }

    fn hides(&self) -> bool {
        let hides = |own: &Own| own.what != LocalChange::Attributes;
        self.blind || self.own.iter().any(hides)
    }

    fn others(&mut self, what: ByOthers) {
        self.by_others = true;
        let stamp = self.tick();
        self.source.ctime = stamp;
        if what == ByOthers::Chmod {
            self.queue.push(stamp);
            return;
        }
        self.source.mtime = stamp;
        let told = matches!(what, ByOthers::Write { .. });
        if let ByOthers::Write { grows: true } = what {
            self.source.size += 1;
        }
        let mut counted = false;
        if told {
            self.queue.push(stamp);
            if let Some(count) = &mut self.counted {
                *count += 1;
                counted = true;
            }
        }
        if counted || !self.hides() {
            self.missing.push(Missing {
                stamp,
                at: self.ms,
                told: false,
                counted,
                recorded: counted,
            });
        }
    }

    fn deliver(&mut self) {
        let told = mem::take(&mut self.queue);
        for missing in &mut self.missing {
            missing.told |= told.contains(&missing.stamp);
        }
        if !told.is_empty() {
            self.doubts += 1;
        }
    }

    fn begin(&mut self, what: LocalChange) {
        if what != LocalChange::Attributes {
            // Changes that were not looked for are hidden.
            self.missing.retain(|missing| missing.recorded);
        }
        let overlapped = !self.own.is_empty();
        self.doubted |= what == LocalChange::Times && (overlapped || self.unseen);
        self.own.iter_mut().for_each(|own| own.overlapped = true);
        self.own.push(Own {
            change: self.machine.begin(what),
            what,
            done: false,
            overlapped,
        });
    }

    fn act(&mut self, which: usize, cut: bool) {
        if self.own[which].done {
            return;
        }
        self.own[which].done = true;
        let stamp = self.tick();
        self.source.ctime = stamp;
        match self.own[which].what {
            LocalChange::Data => {
                self.source.mtime = stamp;
                if cut {
                    self.size = stamp as u64 + 100;
                    self.source.size = self.size;
                }
                self.wrote = true;
            }
            // A time that we set.
            LocalChange::Times => self.source.mtime = -stamp,
            LocalChange::Attributes => {}
        }
    }

    fn end(&mut self, which: usize, looks: bool) {
        self.act(which, false);
        let own = self.own.swap_remove(which);
        let token = looks.then_some(self.source);
        self.machine.end(&own.change, token, self.stamp);
        self.doubts += 1;
        let seen = looks && !own.overlapped;
        self.unseen |= !seen;
        if seen {
            self.blind = false;
        } else if own.what != LocalChange::Attributes {
            self.blind = true;
        }
    }

    fn ask(&mut self, purpose: Purpose) {
        if purpose == Purpose::Note && self.machine.before_change(0) != Verdict::Ask {
            return;
        }
        self.questions.push(Question {
            purpose,
            moment: self.now(),
            asked: self.machine.ask(self.counted),
            said: None,
        });
    }

    /// Whether the cache lacks a change that others made before the answer.
    fn lacks(&self, answer: &Answer) -> bool {
        let is_before = |missing: &Missing| missing.stamp <= answer.token.ctime;
        self.missing.iter().any(is_before)
    }

    /// An answer arrives; returns the machine's verdict.
    fn answer(&mut self, question: &Question) -> Option<Verdict> {
        let answer = Answer {
            asked: question.asked,
            moment: Some(question.moment),
            token: question.said?,
        };
        let holds = self.machine.holds(answer.asked);
        let cached = Cached {
            size: self.size,
            dirty: self.dirty,
        };
        let verdict = match question.purpose {
            Purpose::Note => {
                self.machine.note(&answer);
                self.noted(&answer, holds);
                return None;
            }
            Purpose::Lock => self.machine.answer_under_lock(&answer, None),
            Purpose::Compare | Purpose::Open => self.machine.answer(&answer, cached),
        };
        match verdict {
            Verdict::Valid => {
                assert!(!self.lacks(&answer), "valid, without what others did");
                if question.purpose != Purpose::Lock {
                    (self.blind, self.unseen) = (false, false);
                }
            }
            Verdict::AttributesStale => {
                assert!(!self.lacks(&answer), "their data is taken for attributes");
            }
            Verdict::DataStale => {
                self.doubted |= question.purpose == Purpose::Lock && self.blind;
                assert!(self.by_others || self.doubted, "ours is taken for others'");
            }
            Verdict::KeepOurs => self.noted(&answer, holds),
            Verdict::Unsure => assert!(!holds, "nothing came between"),
            Verdict::Ask | Verdict::GoneButOpen => panic!("no verdict of an answer: {verdict:?}"),
        }
        if question.purpose == Purpose::Lock {
            return None;
        }
        let stale = matches!(verdict, Verdict::AttributesStale | Verdict::DataStale);
        assert!(!(stale && self.dirty), "dirty data is stale");
        if stale && self.machine.holds(answer.asked) {
            if verdict == Verdict::DataStale {
                self.missing
                    .retain(|missing| missing.stamp > answer.token.ctime);
                self.size = answer.token.size;
            }
            self.dropped.push(answer);
        }
        if question.purpose == Purpose::Open {
            self.machine.opened(Some((question.moment, true)));
        }
        Some(verdict)
    }

    fn noted(&mut self, answer: &Answer, holds: bool) {
        for missing in &mut self.missing {
            missing.recorded |= holds && missing.stamp <= answer.token.ctime;
        }
    }

    fn took_over(&mut self, answer: &Answer) {
        if self.machine.holds(answer.asked) {
            (self.blind, self.unseen) = (false, false);
        }
        self.machine.took_over(answer);
    }

    fn step(&mut self, step: Step) {
        let which = |which: usize, len: usize| (len > 0).then(|| which % len);
        match step {
            Step::ByOthers(what) => self.others(what),
            Step::Deliver => self.deliver(),
            Step::Overflow => {
                self.queue.clear();
                self.epoch += EPOCH;
                self.missing
                    .iter_mut()
                    .for_each(|missing| missing.told = true);
            }
            Step::Begin(what) if self.own.len() < 3 => self.begin(what),
            Step::Begin(_) => {}
            Step::Do { which: of, cut } => {
                if let Some(of) = which(of, self.own.len()) {
                    self.act(of, cut);
                }
            }
            Step::End { which: of, looks } => {
                if let Some(of) = which(of, self.own.len()) {
                    self.end(of, looks);
                }
            }
            Step::Ask(purpose) => self.ask(purpose),
            Step::Say(of) => {
                if let Some(of) = which(of, self.questions.len()) {
                    let source = self.source;
                    self.questions[of].said.get_or_insert(source);
                }
            }
            Step::Answer(of) => {
                if let Some(of) = which(of, self.questions.len()) {
                    let mut question = self.questions.swap_remove(of);
                    question.said.get_or_insert(self.source);
                    self.answer(&question);
                }
            }
            Step::TookOver(of) => {
                if let Some(of) = which(of, self.dropped.len()) {
                    let answer = self.dropped.swap_remove(of);
                    self.took_over(&answer);
                }
            }
            Step::Pass(ms) => self.ms += ms,
            Step::Dirty => {
                self.wrote &= self.dirty;
                self.dirty = true;
            }
            Step::Clean => {
                let writes = |own: &Own| own.what == LocalChange::Data;
                self.dirty &= !self.wrote || self.own.iter().any(writes);
            }
            Step::Mark if self.counted.is_none() => {
                self.counted = Some(0);
                self.machine.mark(self.stamp);
            }
            Step::Mark => {}
            Step::Unmark => {
                if let Some(counted) = self.counted.take() {
                    self.machine.unmark(counted);
                    self.missing
                        .iter_mut()
                        .for_each(|missing| missing.counted = false);
                    // By another mark they would count anew.
                    self.questions.clear();
                    self.dropped.clear();
                }
            }
            Step::Stamp(of) => {
                if let Some(of) = which(of, self.own.len()) {
                    self.check_stamp(of);
                }
            }
            Step::Use => self.check_use(),
        }
    }

    fn check_stamp(&self, of: usize) {
        let own = &self.own[of];
        if own.done {
            return;
        }
        let verdict = self
            .machine
            .before_stamp(&own.change, self.counted, Some(self.source));
        let counted = self.counted.is_some() && self.missing.iter().any(|missing| missing.counted);
        match verdict {
            Verdict::Valid => assert!(!(own.change.marked && counted), "their time is lost"),
            _ => assert!(self.by_others || self.doubted, "our own time is not set"),
        }
    }

    /// The verdicts without an answer.
    fn check_use(&self) {
        let now = self.now();
        let recorded = self.missing.iter().any(|missing| missing.recorded);
        match self.machine.before_writeback(self.counted) {
            Verdict::Valid => assert!(!recorded, "what was noted is forgotten"),
            _ => assert!(self.by_others || self.doubted, "others wrote nothing"),
        }
        if self.dirty {
            return;
        }
        let is_long_ago = |missing: &Missing| missing.at + LOOK_AFTER < self.ms;
        let known = |told: &dyn Fn(&Missing) -> bool| {
            self.missing
                .iter()
                .any(|missing| told(missing) || is_long_ago(missing))
        };
        if self.machine.before_write(now, self.counted, LOOK_AFTER, 0) == Verdict::Valid {
            let told = |missing: &Missing| missing.told || missing.counted;
            assert!(
                !known(&told),
                "written to, though others were told to have written"
            );
        }
        if self.machine.before_open(now, true, LOOK_AFTER) == Verdict::Valid {
            let told = |missing: &Missing| missing.told;
            assert!(
                !known(&told),
                "opened, though others were told to have written"
            );
        }
    }

    /// Nothing changes any more: it is valid soon, and stays so.
    fn settles(mut self) {
        while !self.own.is_empty() {
            self.end(0, true);
        }
        self.questions.clear();
        for answer in mem::take(&mut self.dropped) {
            self.took_over(&answer);
        }
        self.deliver();
        self.dirty = false;
        let mut verdicts = Vec::new();
        for _ in 0..2 {
            let question = Question {
                purpose: Purpose::Open,
                moment: self.now(),
                asked: self.machine.ask(self.counted),
                said: Some(self.source),
            };
            verdicts.extend(self.answer(&question));
            for answer in mem::take(&mut self.dropped) {
                self.took_over(&answer);
            }
        }
        assert_eq!(verdicts[1], Verdict::Valid, "after {:?}", verdicts[0]);
        assert!(self.missing.is_empty(), "{:?}", self.missing);
        for (after, verdict) in [
            (0, Verdict::Valid),
            (LOOK_AFTER, Verdict::Valid),
            (1, Verdict::Ask),
        ] {
            self.ms += after;
            let now = self.now();
            let write = self.machine.before_write(now, self.counted, LOOK_AFTER, 0);
            let open = self.machine.before_open(now, true, LOOK_AFTER);
            assert_eq!((write, open), (verdict, verdict), "after {after} ms");
        }
        assert_eq!(self.machine.before_writeback(self.counted), Verdict::Valid);
    }
}

fn step() -> impl Strategy<Value = Step> {
    let what = prop_oneof![
        3 => Just(LocalChange::Data),
        1 => Just(LocalChange::Times),
        1 => Just(LocalChange::Attributes),
    ];
    let purpose = prop_oneof![
        4 => Just(Purpose::Compare),
        2 => Just(Purpose::Open),
        3 => Just(Purpose::Note),
        1 => Just(Purpose::Lock),
    ];
    let by_others = prop_oneof![
        any::<bool>().prop_map(|grows| ByOthers::Write { grows }),
        Just(ByOthers::Store),
        Just(ByOthers::Chmod),
    ];
    let which = 0..4_usize;
    prop_oneof![
        4 => by_others.prop_map(Step::ByOthers),
        3 => Just(Step::Deliver),
        1 => Just(Step::Overflow),
        4 => what.prop_map(Step::Begin),
        2 => (which.clone(), any::<bool>()).prop_map(|(which, cut)| Step::Do { which, cut }),
        5 => (which.clone(), prop::bool::weighted(0.8)).prop_map(|(which, looks)| Step::End { which, looks }),
        6 => purpose.prop_map(Step::Ask),
        3 => which.clone().prop_map(Step::Say),
        6 => which.clone().prop_map(Step::Answer),
        3 => which.clone().prop_map(Step::TookOver),
        2 => prop_oneof![Just(1), Just(LOOK_AFTER / 2), Just(LOOK_AFTER + 1)].prop_map(Step::Pass),
        2 => Just(Step::Dirty),
        3 => Just(Step::Clean),
        1 => Just(Step::Mark),
        1 => Just(Step::Unmark),
        2 => which.prop_map(Step::Stamp),
        6 => Just(Step::Use),
    ]
}

/// Runs the steps; where others change nothing if they are `alone`.
fn run(steps: &[Step], alone: bool) {
    let mut world = World::new();
    for &step in steps {
        if !(alone && matches!(step, Step::ByOthers(_))) {
            world.step(step);
        }
    }
    world.settles();
}

const WRITE: Step = Step::ByOthers(ByOthers::Write { grows: false });
const UNSEEN: Step = Step::End {
    which: 0,
    looks: false,
};

/// A write-back looks between an invalidation and its end.
#[test]
fn a_note_outlives_an_older_answer_that_is_taken_over() {
    let (compare, note) = (Step::Ask(Purpose::Compare), Step::Ask(Purpose::Note));
    let answer = Step::Answer(0);
    let steps = [
        WRITE,
        compare,
        answer,
        note,
        WRITE,
        answer,
        Step::TookOver(0),
        Step::Use,
    ];
    run(&steps, false);
}

#[test]
fn a_write_that_was_told_before_the_mark_is_asked_for() {
    let ask = [Step::Ask(Purpose::Compare), Step::Say(0)];
    let told = [WRITE, Step::Deliver, Step::Mark, Step::Answer(0), Step::Use];
    run(&[&ask[..], &told].concat(), false);
}

/// The data that is known is older than our own write.
#[test]
fn an_answer_that_is_taken_over_beside_a_write_of_ours_is_not_compared_with_it() {
    let attributes = [Step::Begin(LocalChange::Attributes), UNSEEN];
    let answer = [Step::Ask(Purpose::Compare), Step::Answer(0)];
    let data = [Step::Begin(LocalChange::Data)];
    run(&[&attributes[..], &answer, &data].concat(), true);
}

#[test]
fn another_size_is_other_data_after_a_change_of_attributes() {
    let seen = Step::End {
        which: 0,
        looks: true,
    };
    let grown = Step::ByOthers(ByOthers::Write { grows: true });
    let data = [grown, Step::Begin(LocalChange::Data), seen];
    run(
        &[&data[..], &[Step::Begin(LocalChange::Attributes), UNSEEN]].concat(),
        false,
    );
}

#[test]
fn an_open_beside_dirty_data_is_no_comparison() {
    let noted = [
        Step::Dirty,
        WRITE,
        Step::Ask(Purpose::Compare),
        Step::Deliver,
        Step::Answer(0),
    ];
    let data = [Step::Begin(LocalChange::Data), UNSEEN];
    let open = [
        Step::Ask(Purpose::Open),
        Step::Answer(0),
        Step::Clean,
        Step::Use,
    ];
    run(&[&noted[..], &data, &open].concat(), false);
}

#[test]
fn an_open_beside_a_change_of_ours_is_no_look() {
    let marked = [Step::Begin(LocalChange::Data), Step::Mark, WRITE];
    let open = [Step::Ask(Purpose::Open), Step::Answer(0), Step::Use];
    run(
        &[&marked[..], &[Step::Pass(LOOK_AFTER + 1)], &open].concat(),
        false,
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn valid_data_has_every_change_by_others(steps in prop::collection::vec(step(), 0..60)) {
        run(&steps, false);
    }

    #[test]
    fn what_we_do_alone_is_never_stale(steps in prop::collection::vec(step(), 0..60)) {
        run(&steps, true);
    }
}

#[test]
fn a_coarse_stamp_hides_changes_until_it_was_looked_at_when_it_was_old() {
    let mut machine = Coherence::default();
    let token = |mtime| Token {
        size: 8,
        mtime,
        ctime: mtime,
    };
    let write = |machine: &mut Coherence, mtime| {
        let own = machine.begin(LocalChange::Data);
        machine.end(&own, Some(token(mtime)), 0);
    };
    let look = |machine: &mut Coherence, mtime, is_old| {
        let answer = |machine: &Coherence| Answer {
            asked: machine.ask(None),
            moment: None,
            token: token(mtime),
        };
        let verdict = machine.answer_under_lock(&answer(machine), Some(is_old));
        machine.took_over(&answer(machine));
        verdict
    };
    write(&mut machine, 5);
    assert_eq!(look(&mut machine, 5, false), Verdict::DataStale);
    assert_eq!(look(&mut machine, 5, false), Verdict::DataStale);
    // Others may have written before the stamp was old.
    assert_eq!(look(&mut machine, 5, true), Verdict::DataStale);
    assert_eq!(look(&mut machine, 5, true), Verdict::Valid);
    assert_eq!(look(&mut machine, 7, true), Verdict::DataStale);
    assert_eq!(look(&mut machine, 7, true), Verdict::DataStale);
    assert_eq!(look(&mut machine, 7, true), Verdict::Valid);
    write(&mut machine, 9);
    assert_eq!(look(&mut machine, 9, true), Verdict::DataStale);
}
