//! Whether others changed a file: one state machine for one file.
//!
//! # Model
//!
//! ```text
//!  events ──▶ Coherence ──▶ verdicts
//!  a change of ours begins, ends with an answer              valid · attributes stale · data stale ·
//!  an answer, asked at a known moment                        ask · keep ours · unsure · gone but open
//!  told by the kernel: doubts, or exactly; an overflow
//!  time; opened, closed; gone from its name
//! ```
//!
//! The machine does no I/O and has no lock and no clock: moments are arguments, and its owner's lock guards it. The
//! owner asks the source, passes the answer in, and obeys the verdict. [Decision
//! 85](../../../../docs/decisions/0085-one-coherence-machine.md) has the table of events and verdicts.
//!
//! **A token** ([`Token`]) is compared with the last one seen. A change of ours moves the token, so from its
//! beginning on none is known, until an answer arrives that no change of ours has overtaken. A change of attributes
//! leaves size and modification time alone: the token from before it is kept in `unsure`, and the data is compared
//! with that.
//!
//! **Before a change of ours to data or times**, which would hide changes by others, the owner
//! asks, and the machine records the answer.
//!
//! **News** arrive as doubts of the attributes, which do not say who made the change, or exactly: the kernel counts
//! others' writes to a marked file. Stores through mappings are not counted, but have a time later than our last
//! change.
//!
//! # Invariants
//!
//! 1. An answer is compared only if no change of ours was under way when it was requested, nor has
//!    begun since.
//! 2. After *valid*, the cached data contains every change that others made before the answer. Exception: a change
//!    during one of ours to data or times, that is, from the last answer before its beginning to the first after
//!    its end.
//! 3. *Valid* without an answer: since the file was last compared no change was reported and no news were lost, and
//!    that was less than the given time ago.
//! 4. Our data is never stale while it is dirty. Changes by others in the meantime are recorded until they are
//!    taken over.
//! 5. If nothing changes any more, two answers are enough to be valid.
//!
//! # Differences from Linux
//!
//! NFS compares a change attribute, or size and times, and uses the attributes before and after a change in its
//! reply for the rest (weak cache consistency). Here our changes are recognised by their beginning and end, and
//! others' changes are also reported.

mod change;
#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
mod token;

pub(crate) use change::{LocalChange, OwnChange};
pub(crate) use token::{Answer, Asked, Cached, Moment, Token, nanoseconds};

use self::token::Data;

/// How long others are not expected to write to a file that was made through us, in milliseconds.
const JUST_MADE: u64 = 10;

/// The machine's answer: the state of the cached file against the source, and the owner's next
/// step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The cached file equals the source.
    Valid,
    /// Others changed attributes alone, or that may be: revalidate them.
    AttributesStale,
    /// Others changed, or may have changed, the data: invalidate the cached data.
    DataStale,
    /// Ask the source.
    Ask,
    /// Our data waits to be written or to become durable: it wins.
    KeepOurs,
    /// A change of ours is under way or came in between: the answer proves nothing.
    Unsure,
    /// Its name is gone or leads to another file. Open handles use the cached data.
    GoneButOpen,
}

/// A marked file: the kernel counts the writes of others.
#[derive(Debug)]
struct Marks {
    /// Reported writes by others that the cached data contains.
    known: u64,
    /// The latest stamp of our changes, in nanoseconds.
    changed_until: i64,
    /// The changes of ours that had begun when the file got the mark.
    begun_before: u64,
    /// The source was asked since: before, others may have written without a report.
    covers: bool,
}

/// See the module's header.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Coherence {
    // The first field is the last one that an open reads. Optional parts have flags below, since
    // every node has this structure.
    /// When it could be opened, if it could.
    opened: Moment,
    /// When it was compared with the source last, if it was.
    compared: Moment,
    /// The last answer of the source. None while changes of ours are under way, or before the first.
    seen: Token,
    /// The known state of the data, instead of `seen`, which may include more. None once our data
    /// goes to the source.
    unsure: Data,
    /// Changes of ours that ever began.
    begun: u64,
    /// When it was made through us, in milliseconds; 0 once it is written to the source.
    made_at: u64,
    /// The kernel counts others' writes. Without it there are doubts, where changes are reported,
    /// and time.
    marks: Option<Box<Marks>>,
    /// Changes of ours under way.
    under_way: u32,
    /// Changes of ours since the last one to data or times began.
    since_hidden: u32,
    /// How often writes by others were recorded: an answer requested before the last one does not
    /// cover it.
    notes: u32,
    /// Looks that no change of our data is to overtake.
    looks: u16,
    /// Others changed the data before a change of ours that would hide it, and the cached data has
    /// not been invalidated since.
    written: bool,
    /// That was a write or truncate, or may have been: the source's modification time is theirs.
    stamped: bool,
    /// It was not found by its name while it was open.
    gone: bool,
    is_opened: bool,
    /// During the open: a change since then would have been reported.
    is_watched: bool,
    is_compared: bool,
    is_seen: bool,
    is_unsure: bool,
    /// The cached data was read when `seen` was so old that a later change has another stamp.
    is_settled: bool,
    /// The file has no other writers.
    alone: bool,
}

/// Changes of ours.
impl Coherence {
    /// A change of ours begins: until its end, differences in the source are no news.
    #[must_use = "a change has an end"]
    pub(crate) fn begin(&mut self, what: LocalChange) -> OwnChange {
        self.under_way += 1;
        self.begun += 1;
        self.since_hidden = match what {
            LocalChange::Data | LocalChange::Times => 0,
            LocalChange::Attributes => self.since_hidden.saturating_add(1),
        };
        let seen = self.seen().map(|seen| seen.data());
        self.is_seen = false;
        let before = match what {
            LocalChange::Data => {
                self.is_unsure = false;
                None
            }
            LocalChange::Times | LocalChange::Attributes if !self.is_unsure => {
                if !foliocache_sync::planted!(attribute_change_hides_data) {
                    self.set_unsure(seen);
                }
                seen
            }
            LocalChange::Times | LocalChange::Attributes => None,
        };
        OwnChange {
            what,
            before,
            number: self.begun,
            alone: self.under_way == 1,
            marked: self.marks.is_some(),
            among_others: !self.alone,
        }
    }

    /// A change of ours has ended; `token` is the source's token now, if it was asked, and `now` the time of a
    /// marked file, in nanoseconds. The token is remembered only if no other change was under way at the same time,
    /// which it might not include.
    pub(crate) fn end(&mut self, change: &OwnChange, token: Option<Token>, now: i64) -> Asked {
        self.under_way -= 1;
        let alone = self.is_alone(change);
        self.is_seen = false;
        if let Some(token) = token.filter(|_| alone) {
            self.see(token);
        }
        let same = match (change.before, self.seen(), change.what) {
            // Which of the times that it shows is ours is not known.
            (_, None, what) => what == LocalChange::Times,
            (Some(before), Some(now), LocalChange::Times) => before.size == now.size,
            (Some(before), Some(now), _) => before == now.data(),
            (None, ..) => true,
        };
        // A later token that was taken over meanwhile is for the next comparison.
        if same && self.unsure() == change.before {
            self.is_unsure = false;
        }
        if let Some(marks) = &mut self.marks {
            marks.changed_until = now;
        }
        Asked {
            begun: alone.then_some(change.number),
            told: None,
            notes: self.notes,
        }
    }

    /// Whether no other change of ours was under way since `change` began.
    fn is_alone(&self, change: &OwnChange) -> bool {
        change.alone && self.begun == change.number
    }

    /// How many changes of ours are under way.
    pub(crate) fn under_way(&self) -> u32 {
        self.under_way
    }

    /// Whether none has ever begun.
    pub(crate) fn is_unchanged(&self) -> bool {
        self.begun == 0
    }

    /// Changes of our data are to wait. Those that have begun by now.
    pub(crate) fn hold_off(&mut self) -> u64 {
        self.looks += 1;
        self.begun
    }

    /// They need not any more.
    pub(crate) fn let_go_on(&mut self) {
        self.looks -= 1;
    }

    /// Whether they are to wait.
    pub(crate) fn is_held_off(&self) -> bool {
        self.looks > 0
    }

    /// Whether a change has begun since `begun` had, or none is under way.
    pub(crate) fn went_on(&self, begun: u64) -> bool {
        self.under_way == 0 || self.begun != begun
    }
}

/// Answers of the source.
impl Coherence {
    /// Call it before the source is asked; `told` is the count of a marked file.
    pub(crate) fn ask(&self, told: Option<u64>) -> Asked {
        Asked {
            begun: (self.under_way == 0).then_some(self.begun),
            told,
            notes: self.notes,
        }
    }

    /// Whether an answer is still the last word, see invariant 1.
    pub(crate) fn holds(&self, asked: Asked) -> bool {
        asked.begun == Some(self.begun)
    }

    /// Compares a valid answer with the known state.
    fn judge(&self, answer: &Answer) -> Verdict {
        let now = &answer.token;
        if self.written || self.is_told(answer.asked.told) {
            return Verdict::DataStale;
        }
        let is_later = || {
            let marks = self.marks.as_ref();
            marks.is_some_and(|marks| now.mtime > marks.changed_until)
        };
        match (self.unsure(), self.seen()) {
            (Some(known), _) if known == now.data() => Verdict::AttributesStale,
            (Some(_), _) => Verdict::DataStale,
            (None, Some(seen)) if seen != *now => Verdict::DataStale,
            (None, None) if is_later() => Verdict::DataStale,
            (None, _) => Verdict::Valid,
        }
    }

    /// Compares an answer with the last one. If something is stale the owner revalidates or invalidates it while
    /// the answer holds, and reports that ([`Coherence::took_over`]).
    pub(crate) fn answer(&mut self, answer: &Answer, cached: Cached) -> Verdict {
        if cached.dirty && !foliocache_sync::planted!(dirty_data_stale) {
            self.note(answer);
            return Verdict::KeepOurs;
        }
        if !self.holds(answer.asked) && !foliocache_sync::planted!(late_answer_compared) {
            return Verdict::Unsure;
        }
        match self.judge(answer) {
            // Changes by others between one of ours and the look after it were taken for ours.
            _ if answer.token.size != cached.size => Verdict::DataStale,
            Verdict::Valid => {
                self.settle(answer);
                Verdict::Valid
            }
            stale => stale,
        }
    }

    /// The owner has dropped or revalidated the stale data: the answer describes its present data.
    pub(crate) fn took_over(&mut self, answer: &Answer) {
        let is_hidden = |begun| begun < self.begun - u64::from(self.since_hidden);
        match self.holds(answer.asked) {
            true => self.settle(answer),
            // It cannot be distinguished from our later changes.
            false if answer.asked.begun.is_some_and(is_hidden) => {}
            false => self.set_unsure(Some(answer.token.data())),
        }
    }

    fn settle(&mut self, answer: &Answer) {
        self.see(answer.token);
        self.is_unsure = false;
        if answer.asked.notes == self.notes || foliocache_sync::planted!(noted_news_forgotten) {
            (self.written, self.stamped) = (false, false);
        }
        if let Some(moment) = answer.moment
            && !foliocache_sync::planted!(never_compared)
        {
            (self.compared, self.is_compared) = (moment, true);
        }
        if let Some((marks, told)) = self.marks.as_mut().zip(answer.asked.told) {
            (marks.known, marks.covers) = (told, true);
        }
    }

    /// Records changes of the data by others that an answer shows: a change of ours is about to
    /// hide them.
    pub(crate) fn note(&mut self, answer: &Answer) {
        if !self.holds(answer.asked) || foliocache_sync::planted!(hidden_by_our_change) {
            return;
        }
        if self.judge(answer) == Verdict::DataStale {
            self.stamped |= self.known() != Some(answer.token.data());
            self.doubt_data();
        }
        if let Some(marks) = &mut self.marks {
            marks.covers |= answer.asked.told.is_some();
        }
    }

    /// As [`Coherence::answer`], for the holder of a lock, which needs certainty; the comparison changes nothing.
    /// `coarse` is for a source where two changes may have one stamp: whether this one is so old that a later one has another.
    pub(crate) fn answer_under_lock(&mut self, answer: &Answer, coarse: Option<bool>) -> Verdict {
        let (known, holds) = (self.known(), self.holds(answer.asked));
        // Our changes followed each other too closely for a look in between.
        let is_out_of_sight = self.under_way == 0 && self.marks.is_none() && known.is_none();
        let is_settled = self.is_settled && known == Some(answer.token.data());
        if is_out_of_sight || (coarse.is_some() && !is_settled) {
            self.doubt_data();
        }
        // The cached data is dropped now, or was with this token and since it is old.
        self.is_settled = holds && coarse == Some(true);
        match self.holds(answer.asked) {
            true => self.judge(answer),
            false if self.written => Verdict::DataStale,
            false => Verdict::Unsure,
        }
    }

    /// Others may have written, though nothing shows it.
    pub(crate) fn doubt_data(&mut self) {
        self.written = true;
        self.notes = self.notes.wrapping_add(1);
    }

    /// The last answer of the source, where it is known.
    pub(crate) fn seen(&self) -> Option<Token> {
        self.is_seen.then_some(self.seen)
    }

    fn see(&mut self, token: Token) {
        self.is_settled &= self.is_seen && token.data() == self.seen.data();
        (self.seen, self.is_seen) = (token, true);
    }

    fn unsure(&self) -> Option<Data> {
        self.is_unsure.then_some(self.unsure)
    }

    fn set_unsure(&mut self, data: Option<Data>) {
        (self.unsure, self.is_unsure) = (data.unwrap_or_default(), data.is_some());
    }

    /// The known state of the data.
    fn known(&self) -> Option<Data> {
        self.unsure().or(self.seen().map(|seen| seen.data()))
    }
}

/// News.
impl Coherence {
    /// The file has no other writers.
    pub(crate) fn alone() -> Coherence {
        Coherence {
            alone: true,
            ..Coherence::default()
        }
    }

    /// The kernel counts the writes of others from now on, from 0.
    pub(crate) fn mark(&mut self, now: i64) {
        self.marks = Some(Box::new(Marks {
            known: 0,
            changed_until: now,
            begun_before: self.begun,
            covers: foliocache_sync::planted!(hidden_by_the_mark),
        }));
    }

    /// The mark is removed; the kernel had counted `told`.
    pub(crate) fn unmark(&mut self, told: u64) {
        if self.is_told(Some(told)) {
            self.doubt_data();
        }
        self.marks = None;
    }

    /// Whether a change of ours was under way when the file got its mark.
    pub(crate) fn is_before_mark(&self, change: &OwnChange) -> bool {
        (self.marks.as_ref()).is_some_and(|marks| change.number <= marks.begun_before)
    }

    /// Whether the kernel counts all writes by others, except stores through mappings.
    fn is_counted(&self) -> bool {
        self.marks.as_ref().is_some_and(|marks| marks.covers)
    }

    /// Whether others have written to a marked file since it was compared.
    fn is_told(&self, told: Option<u64>) -> bool {
        let marks = self.marks.as_ref();
        marks
            .zip(told)
            .is_some_and(|(marks, told)| told != marks.known)
    }
}

/// Questions before the owner does something.
impl Coherence {
    /// Whether a file may be opened for reading without the source. *Attributes stale*: open it there, since others
    /// may have changed the permissions. *Ask*: a look is enough, for changes that are not reported. `watched`: its
    /// attributes are believed until a change is reported.
    pub(crate) fn before_open(&self, now: Moment, watched: bool, look_after: u64) -> Verdict {
        let opened = &self.opened;
        let holds = self.is_opened
            && self.is_watched
            && watched
            && !self.written
            && !opened.is_of_another_epoch(now.at)
            && opened.doubts == now.doubts;
        match holds {
            false => Verdict::AttributesStale,
            // It may have been opened during a change of ours, when no answer proves anything.
            true if self.under_way > 0 => Verdict::Unsure,
            true if opened.is_long_ago(now.at, look_after) => Verdict::Ask,
            true => Verdict::Valid,
        }
    }

    /// Whether a write may make a file dirty that others may have changed. `told` is the count of a marked file,
    /// `clock` the time in milliseconds if it [was made here](Coherence::was_made).
    pub(crate) fn before_write(
        &self,
        now: Moment,
        told: Option<u64>,
        look_after: u64,
        clock: u64,
    ) -> Verdict {
        if self.is_just_made(clock) {
            return Verdict::Valid;
        }
        let holds = |compared: &Moment| {
            // Our own writes cause doubts too, but do not count.
            let is_doubted = !self.is_counted() && compared.doubts != now.doubts;
            let is_told = is_doubted || self.is_told(told);
            !is_told
                && !compared.is_of_another_epoch(now.at)
                && !compared.is_long_ago(now.at, look_after)
        };
        match self.written || !self.is_compared || !holds(&self.compared) {
            true => Verdict::Ask,
            false => Verdict::Valid,
        }
    }

    /// Whether to ask the source before a change of ours to data or times, which would hide changes by others.
    /// *Unsure*: there is nothing to compare an answer with.
    pub(crate) fn before_change(&self, clock: u64) -> Verdict {
        match self.known() {
            _ if self.alone || self.is_counted() || self.is_just_made(clock) => Verdict::Valid,
            None => Verdict::Unsure,
            Some(_) => Verdict::Ask,
        }
    }

    /// Have others changed the data that ours is about to be written over?
    pub(crate) fn before_writeback(&self, told: Option<u64>) -> Verdict {
        match self.written || self.is_told(told) {
            true => Verdict::DataStale,
            false => Verdict::Valid,
        }
    }

    /// Whether the source's modification time belongs to a write by others, so that ours must not be set. `token`
    /// is the source's token during `change`, if it was asked.
    pub(crate) fn before_stamp(
        &self,
        change: &OwnChange,
        told: Option<u64>,
        token: Option<Token>,
    ) -> Verdict {
        let marks = self.marks.as_ref().filter(|_| change.marked);
        match (marks, token) {
            _ if self.stamped => Verdict::DataStale,
            (None, _) => Verdict::Valid,
            (Some(_), _) if self.is_told(told) => Verdict::DataStale,
            (Some(_), None) => Verdict::Ask,
            // The time may belong to another change of ours that is under way.
            (Some(marks), Some(token)) => {
                match token.mtime > marks.changed_until && self.is_alone(change) {
                    true => Verdict::DataStale,
                    false => Verdict::Valid,
                }
            }
        }
    }

    /// The time was set as the user asked.
    pub(crate) fn stamped_by_us(&mut self) {
        self.stamped = false;
    }

    /// Whether to show the attributes that came with the end of a change of ours. `cached` is
    /// `None` before the file is first opened.
    pub(crate) fn after_change(&self, cached: Option<Cached>, writing: bool) -> Verdict {
        let has_more = self.is_unsure || self.written || self.marks.is_some();
        match (self.seen().filter(|_| !has_more), cached) {
            (Some(_), Some(Cached { dirty: true, .. })) if writing => Verdict::KeepOurs,
            (Some(seen), Some(Cached { dirty: false, size })) if seen.size == size => {
                Verdict::Valid
            }
            (Some(_), None) => Verdict::Valid,
            _ => Verdict::Ask,
        }
    }
}

/// Opening, closing, and the name.
impl Coherence {
    /// It was made through us, at `clock`.
    pub(crate) fn made(&mut self, clock: u64) {
        self.made_at = clock.max(1);
    }

    /// Whether it was, and nothing of it is written to the source yet.
    pub(crate) fn was_made(&self) -> bool {
        self.made_at != 0
    }

    /// Data of it is about to be written to the source.
    pub(crate) fn writes(&mut self) {
        self.made_at = 0;
    }

    /// Whether it was made so recently that it has no other writers.
    fn is_just_made(&self, clock: u64) -> bool {
        self.was_made() && clock.saturating_sub(self.made_at) <= JUST_MADE
    }

    /// The open succeeded or failed. `watched`: a change since then would have been reported.
    pub(crate) fn opened(&mut self, opened: Option<(Moment, bool)>) {
        self.is_opened = opened.is_some();
        (self.opened, self.is_watched) = opened.unwrap_or_default();
    }

    /// After [`Verdict::Ask`], the source was asked.
    pub(crate) fn looked(&mut self, now: u64) {
        self.opened.at = now;
    }

    /// It was looked up by name while changes were reported, with this many doubts.
    pub(crate) fn watched(&mut self, doubts: u32) {
        self.is_watched |= self.is_opened && self.opened.doubts == doubts;
    }

    /// It was not found by its name, and is open.
    pub(crate) fn gone(&mut self) {
        self.gone = true;
    }

    /// The last handle is closed. *Gone but open*: whether it is removed is to be looked for now.
    pub(crate) fn closed(&mut self) -> Verdict {
        match std::mem::take(&mut self.gone) {
            true => Verdict::GoneButOpen,
            false => Verdict::Valid,
        }
    }
}
