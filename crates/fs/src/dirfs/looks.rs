//! Looks at a file of the source, which show what others did to it.
//!
//! # Model
//!
//! ```text
//!  opened, asked for its attributes, or about to become dirty ──▶ compared with what was seen last
//!                                    nothing new ──▶ what is cached holds
//!                                    other data  ──▶ its pages are dropped, size and times are theirs
//!  before data or times of ours go to the source ──▶ what others did is noted: afterwards it would not show
//! ```
//!
//! # Differences from Linux
//!
//! A change from outside is noticed when the file is opened or looked at, and before a write makes a file dirty that was
//! clean (close-to-open). While data of ours waits to be written, ours holds; what others changed meanwhile is kept in the source, and seen
//! afterwards. A look that a change of ours has overtaken is not taken over.

use super::descriptors::Descriptors;
use super::node::DirNode;
use super::state::{FileState, Opens};
use super::stats::count;
use crate::coherence::{Answer, Cached, Moment, Verdict};
use foliocache_mm::{AddressSpace, PAGE_SIZE, SlabArc};
use foliocache_sys::fd::{self, AsFd, Stat};
use foliocache_sys::{Errno, credentials};
use foliocache_vfs::OpenFlags;

impl DirNode {
    /// Asks the source for the attributes with `ask` and takes them over. If `opens` are held, the answer is also compared with the
    /// known state, stale data is dropped, and the verdict is returned. An answer that should have been compared and was
    /// not is provisional: it holds as long as it cannot be compared. A file that was never opened is valid.
    ///
    /// # Errors
    /// Those of `ask`.
    pub(super) fn revalidate(
        &self,
        opens: Option<&Opens>,
        ask: impl FnOnce() -> Result<Stat, Errno>,
    ) -> Result<Verdict, Errno> {
        let moment = self.moment();
        let until = self.shared.belief.until(moment.at, true);
        // Of a file without an address space nothing is cached that could be compared.
        let mapping = opens.and_then(|_| self.file().mapping());
        let waits = mapping.as_ref().is_some_and(|mapping| mapping.is_dirty());
        let asked = self.regular().map(FileState::look);
        let stat = ask()?;
        let verdict = mapping.as_ref().zip(asked).map(|(mapping, asked)| {
            let answer = Answer::new(asked, Some(moment), &stat);
            self.compare(mapping, waits, &stat, &answer)
        });
        // Most answers show nothing new. Then there is nothing to take over, if what is shown is watched.
        if verdict == Some(Verdict::Valid) && self.is_settled_and_watched(moment.at) {
            return Ok(Verdict::Valid);
        }
        let compared = verdict.is_some() && !waits;
        if let Some(mapping) = mapping.filter(|_| compared)
            && opens.is_some_and(|opens| opens.writers == 0)
        {
            self.attributes.settle(mapping.size());
        }
        let may_differ = !compared && !self.shared.options.exclusive;
        let never_opened = || !self.regular().is_some_and(FileState::has_mapping);
        self.attributes
            .believe_as(moment.doubts, until, |attributes| {
                self.refresh(attributes, &stat, asked);
                may_differ && !never_opened()
            });
        Ok(verdict.unwrap_or_else(|| match never_opened() {
            true => Verdict::Valid,
            false => Verdict::KeepOurs,
        }))
    }

    /// Now, and what was told of the file by now.
    fn moment(&self) -> Moment {
        // The news may be read first, and doubt it.
        let at = self.shared.belief.now();
        let doubts = self.attributes.doubts();
        Moment { at, doubts }
    }

    /// Milliseconds after which a file is looked at without a report of a change, since not all changes are reported.
    fn look_after(&self) -> u64 {
        let after = self.shared.options.revalidate_after.as_millis();
        u64::try_from(after).unwrap_or(u64::MAX)
    }

    /// Whether the attributes are those of the cached data, and a change of them would be reported.
    ///
    /// Context: `opens` held.
    fn is_settled_and_watched(&self, now: u64) -> bool {
        let attributes = &self.attributes;
        attributes.is_settled() && !attributes.is_provisional() && attributes.is_watched(now)
    }

    /// Whether the attributes that are believed came with an answer that can be compared by now.
    pub(super) fn has_to_compare(&self, mapping: &AddressSpace) -> bool {
        self.attributes.is_provisional() && !mapping.is_dirty()
    }

    /// Whether others may have changed the file since it was compared with the source. So it is if a change was reported,
    /// perhaps our own, or if the comparison is some time ago, since not all changes are reported.
    ///
    /// Context: no lock held.
    pub(super) fn may_have_changed(&self) -> bool {
        let (now, look_after) = (self.moment(), self.look_after());
        let (io, told) = self.file().lock_told();
        // It gave its descriptors up, and gets one before the write.
        io.fds.is_none()
            || io.coherence.before_write(now, told, look_after, io.clock()) == Verdict::Ask
    }

    /// Compares the file with the source, if no data of ours waits to be written. Call it before the first such data. Returns
    /// false if it would have to wait, with `nowait`.
    ///
    /// Context: no lock held.
    pub(super) fn look_before_write(&self, nowait: bool) -> bool {
        let file = self.file();
        let opens = match nowait {
            true if file.any_fd().is_none() => return false,
            true => file.opens.try_lock(),
            false => Some(file.opens.lock()),
        };
        let Some(opens) = opens else { return false };
        // A source that does not answer says so when the data is written.
        if let Err(error) = self.revalidate(Some(&opens), || self.stat()) {
            tracing::debug!(file = self.display_path(), %error, "not looked at before a write");
        }
        true
    }

    /// Looks whether others changed the file, and notes it. Call it before each change of ours to data or times, which would hide
    /// theirs. Returns false if the source was asked and did not answer.
    ///
    /// Context: `io` not held.
    pub(super) fn look_for_others(&self) -> bool {
        let file = self.file();
        let verdict = {
            let io = file.io.lock();
            io.coherence.before_change(io.clock())
        };
        if verdict != Verdict::Ask {
            return true;
        }
        let asked = file.look();
        // A source that does not answer says so when it is changed.
        let Ok(stat) = self.stat() else { return false };
        let answer = Answer::new(asked, None, &stat);
        file.coherence(|machine| machine.note(&answer));
        true
    }

    /// Whether others wrote to the file since it was compared with the source, or may have. Call it before data of ours is
    /// written back.
    ///
    /// Context: `io` not held.
    pub(super) fn look_before_writeback(&self) -> bool {
        let answered = self.look_for_others();
        let (io, told) = self.file().lock_told();
        !answered || io.coherence.before_writeback(told) != Verdict::Valid
    }

    /// Compares an answer with what is known, and takes it over where that is stale. `waits`: data of ours was dirty when it was asked for.
    fn compare(
        &self,
        mapping: &SlabArc<AddressSpace>,
        waits: bool,
        stat: &Stat,
        answer: &Answer,
    ) -> Verdict {
        let file = self.file();
        let cached = Cached {
            size: mapping.size(),
            dirty: waits || mapping.is_dirty(),
        };
        let verdict = file.coherence(|machine| machine.answer(answer, cached));
        if !matches!(verdict, Verdict::AttributesStale | Verdict::DataStale) {
            return verdict;
        }
        self.attributes.unsettle();
        if verdict == Verdict::DataStale {
            if mapping.is_relied_on() && self.end_reliance(mapping).is_err() {
                // The name leads to another file by now. The one before is open.
                file.coherence(|machine| machine.gone());
                return Verdict::GoneButOpen;
            }
            let holds = || {
                file.holds(answer.asked)
                    || foliocache_sync::planted!(cut_taken_for_a_write_of_others)
            };
            if !mapping.backing_changed(stat.size, holds) {
                // Something was written meanwhile, which goes first.
                file.coherence(|machine| machine.note(answer));
                return Verdict::KeepOurs;
            }
            count(&self.shared.counters.invalidations);
        }
        self.attributes.take_over(|attributes| {
            // A rename beside us, say, changes the source's times between the look and the comparison.
            if file.holds(answer.asked) {
                *attributes = stat.attributes;
            }
        });
        file.coherence(|machine| machine.took_over(answer));
        verdict
    }

    /// Whether the file may be opened for reading as it was opened last, without a descriptor and without asking: all its
    /// pages are cached, and no change was reported. Stores through a mapping are not reported, so the source is
    /// looked at once a second. With `nowait` it is not looked at, and the answer is no.
    ///
    /// Context: `opens` held.
    pub(super) fn opens_as_before(
        &self,
        opens: &Opens,
        mapping: &AddressSpace,
        nowait: bool,
    ) -> bool {
        let now = self.moment();
        let is_watched = self.attributes.is_watched(now.at);
        let (verdict, mut has_descriptors) = {
            let io = self.file().io.lock();
            let verdict = io.coherence.before_open(now, is_watched, self.look_after());
            (verdict, io.fds.is_some())
        };
        let all_there = || mapping.nr_pages() >= mapping.size().div_ceil(PAGE_SIZE as u64);
        if !matches!(verdict, Verdict::Valid | Verdict::Ask)
            || self.has_to_compare(mapping)
            || !all_there()
        {
            return false;
        }
        if verdict == Verdict::Ask {
            if nowait || self.revalidate(Some(opens), || self.stat()).is_err() {
                return false;
            }
            let mut io = self.file().io.lock();
            io.coherence.looked(now.at);
            has_descriptors = io.fds.is_some();
            drop(io);
            if self.attributes.doubts() != now.doubts || !all_there() {
                return false;
            }
        }
        has_descriptors || Self::relies(opens.handles, mapping)
    }

    /// Opens descriptors, or keeps those `made`, and looks at the source. Descriptors that are held were opened when mode
    /// and owner may have been others, or were made with the file: whether they would be opened now, the kernel is asked.
    ///
    /// Context: `opens` held.
    ///
    /// # Errors
    /// As [`DirNode::descriptors`], and those of `fstat(2)`.
    pub(super) fn check_open(
        &self,
        opens: &Opens,
        made: Option<Descriptors>,
        flags: OpenFlags,
    ) -> Result<(), Errno> {
        let now = self.moment();
        let watched = self.attributes.is_watched(now.at);
        let opened = self.try_open(opens, made, flags);
        let is_opened = opened.is_ok() && opens.writers == 0;
        let at = is_opened.then_some((now, watched));
        self.file().coherence(|machine| machine.opened(at));
        opened
    }

    fn try_open(
        &self,
        opens: &Opens,
        made: Option<Descriptors>,
        flags: OpenFlags,
    ) -> Result<(), Errno> {
        let file = self.file();
        self.pin()?;
        let open = || -> Result<_, Errno> {
            if let Some(fds) = made {
                let fds = file.install(fds);
                self.stand_in_line(&fds);
                return Ok((fds, None));
            }
            let writable = flags.write || flags.truncate;
            if writable {
                self.look_whether_it_appends();
            }
            let (fds, stat) = self.open_descriptors(writable)?;
            if stat.is_none() && !credentials::overrides_modes() {
                let fd = fds.buffered.as_fd();
                credentials::check_access(fd, flags.read || !writable, writable)?;
            }
            Ok((fds, stat))
        };
        if let Some(mapping) = file.mapping() {
            self.revalidate(Some(opens), || {
                let (fds, stat) = open()?;
                mapping.end_reliance();
                stat.map_or_else(|| fd::fstat(fds.buffered.as_fd()), Ok)
            })?;
        } else {
            // The address space asks when it is made.
            open()?;
        }
        Ok(())
    }
}
