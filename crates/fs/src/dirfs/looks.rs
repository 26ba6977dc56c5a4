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

use super::attributes::remembered;
use super::file::Descriptors;
use super::file_locks::Looked;
use super::node::DirNode;
use super::state::{Checked, FileState, Opens, RemoteChange, StatSample};
use super::stats::count;
use foliocache_mm::{AddressSpace, PAGE_SIZE};
use foliocache_sync::Arc;
use foliocache_sys::fd::{self, AsFd, Stat};
use foliocache_sys::{Errno, credentials};
use foliocache_vfs::{Belief, OpenFlags};

impl DirNode {
    /// Asks the source for the attributes with `ask` and takes them over. If `opens` are held, and nothing of ours waits to
    /// be written, it compares them with what was seen last, too, and takes the source's side if somebody else changed the
    /// file. An answer that should have been compared and was not is provisional: it holds as long as it cannot be compared.
    /// What the comparison came to; of a file that was never opened there is none, and it is the same.
    ///
    /// # Errors
    /// Those of `ask`.
    pub(super) fn revalidate(
        &self,
        opens: Option<&Opens>,
        ask: impl FnOnce() -> Result<Stat, Errno>,
    ) -> Result<Looked, Errno> {
        let doubts = self.attributes.doubts();
        let asked = self.shared.belief.now();
        let until = self.shared.belief.until(asked, true);
        // What the source says after this look is not our own doing, unless a change of ours is under way or begins meanwhile,
        // which the look knows. Of a file without an address space nothing is cached that could be compared.
        let mapping = opens
            .and_then(|_| self.file().mapping())
            .filter(|mapping| !mapping.is_dirty());
        let look = self.regular().map(FileState::look);
        let stat = ask()?;
        // Most looks find the file as it was seen last. Then there is nothing to take over, if what is shown is watched.
        let holds = |look| self.file().shows_no_news(&stat, look, (asked, doubts));
        if mapping.is_some() && self.is_settled_and_watched(asked) && look.is_some_and(holds) {
            return Ok(Looked::Same);
        }
        let compared = mapping.zip(look).map(|(mapping, look)| {
            let looked = self.compare(&mapping, &stat, look);
            if opens.is_some_and(|opens| opens.writers == 0) {
                self.attributes.settle(mapping.size());
            }
            looked
        });
        let may_differ = compared.is_none() && !self.shared.options.exclusive;
        self.attributes.believe_as(doubts, until, |attributes| {
            self.refresh(attributes, &stat, look);
            may_differ && self.regular().is_some_and(FileState::has_mapping)
        });
        if compared.is_some() {
            self.file().io.lock().compared = Some((asked, doubts));
        }
        let never_opened = || !self.regular().is_some_and(FileState::has_mapping);
        Ok(compared.unwrap_or_else(|| match never_opened() {
            true => Looked::Same,
            false => Looked::OursHolds,
        }))
    }

    /// Whether the attributes are those of what is cached, and whoever changes them tells.
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

    /// Whether somebody else may have changed the file since it was compared with the source: somebody told of a change,
    /// of ours perhaps, or it is a while ago, since not all is told.
    ///
    /// Context: no lock held.
    pub(super) fn may_have_changed(&self) -> bool {
        let now = self.shared.belief.now();
        let (compared, marked) = {
            let io = self.file().io.lock();
            if io.fds.is_none() {
                // It gave its descriptors up, and gets one before the write.
                return true;
            }
            if io.is_just_made() {
                return false;
            }
            if io.written_by_others {
                return true;
            }
            (io.compared, io.marked.clone())
        };
        let look_again = u64::try_from(self.shared.options.revalidate_after.as_millis());
        let told = |doubts| match marked {
            // Of our own writes it is told as well, but apart.
            Some(marked) => marked.has_news(),
            None => doubts != self.attributes.doubts(),
        };
        compared.is_none_or(|(asked, doubts)| {
            // Another thread may have asked since `now`.
            now.saturating_sub(asked) > look_again.unwrap_or(u64::MAX)
                || !Belief::is_same_epoch(asked, now)
                || told(doubts)
        })
    }

    /// Compares the file with the source, if nothing of ours waits to be written: to be called before something does. Whether
    /// it did, or need not: not with `nowait` if it would have to wait.
    ///
    /// Context: no lock held.
    pub(super) fn look_before_write(&self, nowait: bool) -> bool {
        let file = self.file();
        if !nowait {
            self.open_before_write();
        }
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

    /// Looks whether others changed the file, and notes it: to be called before each change of ours to its data or times, which would hide
    /// theirs. Of a marked file the kernel tells. Whether the source answered, where it was asked.
    ///
    /// Context: `io` not held.
    pub(super) fn look_for_others(&self) -> bool {
        let file = self.file();
        if self.shared.options.exclusive || !file.can_be_compared() {
            return true;
        }
        let look = file.look();
        // A source that does not answer says so when it is changed.
        let stat = self.stat();
        stat.map(|stat| file.note_news(&stat, look)).is_ok()
    }

    /// Whether others wrote to the file since it was compared with the source, or may have: to be asked before something of ours is
    /// written back.
    ///
    /// Context: `io` not held.
    pub(super) fn look_before_writeback(&self) -> bool {
        let answered = self.look_for_others();
        let (noted, marked) = {
            let io = self.file().io.lock();
            (io.written_by_others, io.marked.clone())
        };
        noted || !answered || marked.is_some_and(|marked| marked.has_news())
    }

    /// Compares what the source said at `look` with what was seen of the file last.
    fn compare(&self, mapping: &Arc<AddressSpace>, stat: &Stat, look: StatSample) -> Looked {
        let file = self.file();
        // What came between a write of ours and the look after it was taken for known.
        let other_size = || {
            let differs = stat.size != mapping.size() && !mapping.is_dirty();
            (differs && file.holds(look)).then_some(RemoteChange::Data)
        };
        let news = file.news(stat, look).or_else(other_size);
        if news.is_some() {
            self.attributes.unsettle();
        }
        if news == Some(RemoteChange::Data) {
            if mapping.is_relied_on() && self.end_reliance(mapping).is_err() {
                // The name leads to another file by now. What is open is the one before.
                return Looked::OursHolds;
            }
            let holds =
                || file.holds(look) || foliocache_sync::planted!(cut_taken_for_a_write_of_others);
            if !mapping.backing_changed(stat.size, holds) {
                // Something was written meanwhile, which goes first.
                file.note_news(stat, look);
                return Looked::OursHolds;
            }
            count(&self.shared.counters.invalidations);
        }
        if news.is_some() {
            self.attributes.take_over(|attributes| {
                // A rename beside us, say, changes the source's times between the look and the comparison.
                if file.holds(look) {
                    *attributes = remembered(stat);
                }
            });
            file.took_over(stat, look);
            Looked::TookOver
        } else if file.settle(stat, look) {
            Looked::Same
        } else {
            Looked::OursHolds
        }
    }

    /// Whether the file may be opened for reading as it was opened last, without a descriptor and without asking: its
    /// pages are all there, and nobody told of a change. Stores through a mapping are not told, so the source is
    /// looked at once a second; with `nowait` it is not looked at, and the answer is no.
    ///
    /// Context: `opens` held.
    pub(super) fn opens_as_before(
        &self,
        opens: &mut Opens,
        mapping: &AddressSpace,
        nowait: bool,
    ) -> bool {
        let now = self.shared.belief.now();
        let holds = |checked: &Checked| {
            checked.watched
                && Belief::is_same_epoch(checked.asked, now)
                && self.attributes.is_watched(now)
                && self.attributes.doubts() == checked.doubts
        };
        let Some(checked) = opens.checked.filter(holds) else {
            return false;
        };
        if self.has_to_compare(mapping) {
            return false;
        }
        let handles = opens.handles;
        let all_there = || mapping.nr_pages() >= mapping.size().div_ceil(PAGE_SIZE as u64);
        let all_stay =
            || all_there() && (self.file().has_descriptors() || Self::relies(handles, mapping));
        let look_again = u64::try_from(self.shared.options.revalidate_after.as_millis());
        if !all_there() || now - checked.asked <= look_again.unwrap_or(u64::MAX) {
            return all_stay();
        }
        if nowait {
            return false;
        }
        let looked = self.revalidate(Some(opens), || self.stat());
        opens.checked = Some(Checked {
            asked: now,
            ..checked
        });
        looked.is_ok() && self.attributes.doubts() == checked.doubts && all_stay()
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
        opens: &mut Opens,
        made: Option<Descriptors>,
        flags: OpenFlags,
    ) -> Result<(), Errno> {
        let file = self.file();
        opens.checked = None;
        self.pin()?;
        let (asked, doubts) = (self.shared.belief.now(), self.attributes.doubts());
        let watched = self.attributes.is_watched(asked);
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
        let checked = Checked {
            asked,
            doubts,
            watched,
        };
        opens.checked = (opens.writers == 0).then_some(checked);
        Ok(())
    }
}
