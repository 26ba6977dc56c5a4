//! Looks at files, compared with the ledger.

use std::collections::VecDeque;
use std::io;
use std::ops::RangeInclusive;

use super::content::BLOCK;
use super::ledger::{Entry, Ledger};
use super::place::{How, Place, Status};
use super::{CAPABILITY, FILES, HOT, Kind, NET_RAW, VERSION, content, has_capability, mode};
use crate::Rng;

/// Handles that a reader keeps open.
const HELD: usize = 6;

/// The result of a read, with the violation it found.
type Looked<T = ()> = Result<T, String>;

/// Looks at files of a place.
#[derive(Debug)]
pub struct Reader<'a, P: Place> {
    place: &'a P,
    ledger: &'a Ledger,
    rng: Rng,
    subjects: Subjects,
    /// The newest version seen of each file.
    newest: Vec<u64>,
    held: VecDeque<Held<P::File>>,
}

/// The files that a reader reads, and how strict it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subjects {
    /// All files; each must be right.
    All,
    /// All files, where the kernel keeps pages and sends no open. [Allowed](Ledger::allowed) and counted, for a
    /// moment, for files changed from outside: `ESTALE`, an old mode, and anything in a log; such files are not
    /// mapped. Not counted: a log that is shorter than `fstat` says, and zeros in a read beside a truncate.
    AllWithTheKernelsPages,
    /// The source: only [`Kind::Replaced`] is the same there as through the cache.
    Source,
}

/// A handle that stays open, of a version that never changes.
#[derive(Debug)]
struct Held<F> {
    file: u64,
    version: u64,
    open: F,
}

fn told<T>(what: &str, result: io::Result<T>) -> Looked<T> {
    result.map_err(|error| format!("{what}: {error}"))
}

impl<'a, P: Place> Reader<'a, P> {
    /// A reader that chooses with `rng`.
    pub fn new(place: &'a P, ledger: &'a Ledger, rng: Rng, subjects: Subjects) -> Self {
        Reader {
            place,
            ledger,
            rng,
            subjects,
            newest: vec![1; FILES.len()],
            held: VecDeque::new(),
        }
    }

    /// One look at one file.
    ///
    /// # Errors
    /// The violation it found.
    pub fn look(&mut self) -> Looked {
        self.ledger.looked();
        if self.rng.one_in(1, 4) && !self.held.is_empty() {
            return self.look_again();
        }
        let file = self.choose();
        let (way, looked) = match self.rng.below(8) {
            0 => ("at random places", self.places(file)),
            1 => ("stat", self.stat(file)),
            2 => ("after a listing", self.listed(file)),
            3 | 4 => ("mapped", self.whole(file, true)),
            _ => ("read", self.whole(file, false)),
        };
        self.allow(file, &format!("{way}: "), looked)
    }

    fn choose(&mut self) -> u64 {
        loop {
            let some = [HOT, FILES.len() as u64][self.rng.below(2) as usize];
            let file = self.rng.below(some);
            let is_replaced = FILES[file as usize].kind == Kind::Replaced;
            if is_replaced || self.subjects != Subjects::Source {
                return file;
            }
        }
    }

    fn is_lenient(&self) -> bool {
        self.subjects == Subjects::AllWithTheKernelsPages
    }

    /// Names the file of a violation, unless it is allowed.
    fn allow(&self, file: u64, way: &str, looked: Looked) -> Looked {
        let subject = FILES[file as usize];
        looked.or_else(|error| {
            let late = match subject.kind {
                Kind::TheirLog => true,
                Kind::TheirReplaced => {
                    error.contains("os error 116") || error.contains(", not Status")
                }
                _ => false,
            };
            if self.is_lenient() && late {
                self.ledger.allowed();
                return Ok(());
            }
            let entry = self.ledger.entry(file);
            Err(format!("{} {way}{error} ({entry:?} now)", subject.name))
        })
    }

    /// The bytes of a file from the first to the last.
    fn read(&mut self, open: &P::File) -> Looked<Vec<u8>> {
        let piece = [4096, 20_000, 1 << 17][self.rng.below(3) as usize];
        let (mut found, mut bytes) = (Vec::new(), vec![0; piece]);
        loop {
            let read = self.place.read_at(open, &mut bytes, found.len() as u64);
            match told(&format!("read at {}", found.len()), read)? {
                0 => return Ok(found),
                n => found.extend(&bytes[..n]),
            }
        }
    }

    /// Opens a file, and reads it from the first byte to the last.
    fn whole(&mut self, file: u64, mapped: bool) -> Looked {
        let subject = FILES[file as usize];
        let before = self.ledger.entry(file);
        let open = match self.place.open(subject.name, How::Read) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let after = self.ledger.entry(file);
                return match subject.kind == Kind::Remade && quiet(before, after).is_none() {
                    true => Ok(()),
                    false => Err(format!("there is none, but {before:?}")),
                };
            }
            open => told("open", open)?,
        };
        let status = told("fstat", self.place.status(&open))?;
        let maps = subject.kind.is_replaced() && !(self.is_lenient() && subject.kind.is_theirs());
        let map = match mapped && maps {
            true => told("map", self.place.mapped(&open, status.len as usize))?,
            false => None,
        };
        let found = match map {
            Some(found) => found,
            None => self.read(&open)?,
        };
        let after = self.ledger.entry(file);
        let version = self.judge(file, [before, after], status, &found);
        let version = version.map_err(|error| format!("{error}; {before:?} to {after:?}"))?;
        let Some(version) = version else {
            return Ok(());
        };
        if subject.kind == Kind::Replaced {
            self.attributes(&open, version)?;
        }
        if self.rng.one_in(1, 3) {
            self.held.push_back(Held {
                file,
                version,
                open,
            });
        }
        if self.held.len() > HELD {
            self.held.pop_front();
        }
        Ok(())
    }

    /// Whether a version may be seen by a look between two readings of the ledger.
    fn in_time(&mut self, file: u64, [before, after]: [Entry; 2], version: u64) -> Looked {
        let newest = &mut self.newest[file as usize];
        let least = match FILES[file as usize].kind.is_theirs() {
            true => *newest,
            false => before.complete,
        };
        *newest = (*newest).max(version);
        in_range(least..=after.begun, version)
    }

    /// Judges the bytes read from a file. Returns its version, if that never changes.
    fn judge(
        &mut self,
        file: u64,
        times: [Entry; 2],
        status: Status,
        found: &[u8],
    ) -> Looked<Option<u64>> {
        let (kind, content) = (FILES[file as usize].kind, content(file));
        let [before, after] = times;
        if kind.is_log() {
            let (records, len) = content.records(found);
            let wanted = content.bytes(records.end);
            let torn = &found[len..];
            if records.is_empty() || !wanted.starts_with(torn) {
                let describe = content.describe(torn);
                return Err(format!("records {records:?}, {len} bytes; {describe}"));
            }
            if !torn.is_empty() {
                in_range(records.end..=after.begun, records.end)?;
            }
            self.in_time(file, times, records.end - 1)?;
            if status.len > found.len() as u64 && !self.is_lenient() {
                let found = found.len();
                return Err(format!("{found} bytes, but {} by fstat", status.len));
            }
            return Ok(None);
        }
        let quiet = quiet(before, after);
        let versions = before.complete..=after.begun;
        if kind == Kind::Rewritten && quiet.is_none() {
            content.mixture(found, versions, self.is_lenient())?;
            return Ok(None);
        }
        if kind == Kind::Remade && quiet.is_none() {
            return match content.beginning(found, versions)? {
                // A version that was whole stays whole without a name.
                Some(version) if version <= before.complete => content.whole(found).map(Some),
                _ => Ok(None),
            };
        }
        let version = content.whole(found)?;
        self.in_time(file, times, version)?;
        let wanted = Status {
            len: content.len(version) as u64,
            mode: mode(version),
        };
        if status != wanted {
            return Err(format!("version {version}: {status:?}, not {wanted:?}"));
        }
        Ok((kind != Kind::Rewritten).then_some(version))
    }

    fn attributes(&self, open: &P::File, version: u64) -> Looked {
        attributes(self.place, self.ledger, open, version)
    }

    /// Looks again at a version that was seen whole.
    fn look_again(&mut self) -> Looked {
        let at = self.rng.below(self.held.len() as u64) as usize;
        let Some(held) = self.held.remove(at) else {
            return Ok(());
        };
        let looked = self.is_same(&held);
        let file = held.file;
        if looked.is_ok() && self.rng.one_in(3, 4) {
            self.held.push_back(held);
        }
        self.allow(file, "kept open: ", looked)
    }

    fn is_same(&mut self, held: &Held<P::File>) -> Looked {
        let status = told("fstat", self.place.status(&held.open))?;
        let found = self.read(&held.open)?;
        let version = content(held.file).whole(&found)?;
        if (version, status.len) != (held.version, found.len() as u64) {
            let was = held.version;
            return Err(format!("version {version}, which was {was}; {status:?}"));
        }
        match FILES[held.file as usize].kind {
            Kind::Replaced => self.attributes(&held.open, version),
            _ => Ok(()),
        }
    }

    /// Reads here and there in a version that does not change.
    fn places(&mut self, file: u64) -> Looked {
        let subject = FILES[file as usize];
        if !subject.kind.is_replaced() {
            return self.whole(file, false);
        }
        let before = self.ledger.entry(file);
        let open = told("open", self.place.open(subject.name, How::Read))?;
        let len = told("fstat", self.place.status(&open))?.len;
        let mut pieces = Vec::new();
        for _ in 0..4 {
            let pos = self.rng.below(len.max(1)) / BLOCK as u64 * BLOCK as u64;
            let mut bytes = vec![0; 1 + self.rng.below(3 * 4096) as usize];
            let read = self.place.read_at(&open, &mut bytes, pos);
            bytes.truncate(told(&format!("read at {pos}"), read)?);
            pieces.push((pos as usize, bytes));
        }
        let mut head = [0; BLOCK];
        let read = told("read", self.place.read_at(&open, &mut head, 0))?;
        let after = self.ledger.entry(file);
        let content = content(file);
        let Some(version) = content.version(&head[..read]) else {
            return Err(content.describe(&head[..read]));
        };
        self.in_time(file, [before, after], version)?;
        let wanted = content.bytes(version);
        if wanted.len() as u64 != len {
            let wanted = wanted.len();
            return Err(format!(
                "version {version} of {wanted} bytes, {len} by fstat"
            ));
        }
        for (pos, bytes) in pieces {
            // A read that ends before it must is found out by reads of the whole.
            if wanted.get(pos..pos + bytes.len()) != Some(&bytes[..]) || bytes.is_empty() {
                let describe = content.describe(&bytes);
                return Err(format!("at {pos} of version {version}: {describe}"));
            }
        }
        Ok(())
    }

    fn stat(&mut self, file: u64) -> Looked {
        let subject = FILES[file as usize];
        if subject.kind != Kind::Replaced {
            return self.whole(file, false);
        }
        let before = self.ledger.entry(file);
        let status = told("stat", self.place.status_of(subject.name))?;
        let after = self.ledger.entry(file);
        let is = |version| {
            let len = content(file).len(version) as u64;
            (len, mode(version)) == (status.len, status.mode)
        };
        match (before.complete..=after.begun).any(is) {
            true => Ok(()),
            false => Err(format!("{status:?} is none of {before:?} to {after:?}")),
        }
    }

    fn listed(&mut self, file: u64) -> Looked {
        let names = told("listing", self.place.names())?;
        let missing = FILES.iter().find(|subject| {
            let is_there = subject.kind == Kind::Replaced || subject.kind == Kind::Rewritten;
            is_there && !names.iter().any(|name| name == subject.name)
        });
        match missing {
            Some(missing) => Err(format!("{} is not listed: {names:?}", missing.name)),
            None => self.whole(file, false),
        }
    }
}

fn in_range(range: RangeInclusive<u64>, version: u64) -> Looked {
    match range.contains(&version) {
        true => Ok(()),
        false => Err(format!("version {version} is not in {range:?}")),
    }
}

/// The version that was the only one all the time.
fn quiet(before: Entry, after: Entry) -> Option<u64> {
    (before.begun == before.complete && after.begun == before.begun).then_some(before.begun)
}

/// Compares the attributes of a version.
fn attributes<P: Place>(place: &P, ledger: &Ledger, open: &P::File, version: u64) -> Looked {
    let found = told("fgetxattr", place.attribute(open, VERSION))?;
    if found.as_deref() != Some(&version.to_le_bytes()) {
        return Err(format!("version {version} has {VERSION} {found:?}"));
    }
    let found = told("fgetxattr", place.attribute(open, CAPABILITY))?;
    let capability = ledger.has_capabilities() && has_capability(version);
    if found.as_deref() != capability.then_some(&NET_RAW[..]) {
        return Err(format!("version {version} has {CAPABILITY} {found:?}"));
    }
    Ok(())
}

/// The data that the source must have after the cache that wrote it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Everything: it ended well.
    All,
    /// Closed files: the cache was killed, and wrote back at each close.
    Closed,
    /// Synced files, and replacements: the cache was killed.
    Synced,
}

/// Reads all files in the source after the cache is gone. Returns the violations.
pub fn look_at_the_source<P: Place>(place: &P, ledger: &Ledger, left: Left) -> Vec<String> {
    let mut reader = Reader::new(place, ledger, Rng::new(0), Subjects::Source);
    let ours = (0..FILES.len() as u64).filter(|&file| !FILES[file as usize].kind.is_theirs());
    ours.filter_map(|file| {
        let looked = reader.source(file, left);
        let name = FILES[file as usize].name;
        let entry = ledger.entry(file);
        looked
            .err()
            .map(|error| format!("{name} in the source, {left:?}: {error}; {entry:?}"))
    })
    .collect()
}

impl<P: Place> Reader<'_, P> {
    fn source(&mut self, file: u64, left: Left) -> Looked {
        let (subject, content) = (FILES[file as usize], content(file));
        let entry = self.ledger.entry(file);
        let is_written = match left {
            Left::Synced => entry.synced == entry.begun,
            Left::Closed | Left::All => entry.complete == entry.begun,
        };
        if subject.kind == Kind::Replaced || subject.kind != Kind::Log && is_written {
            return self.whole(file, false);
        }
        if subject.kind != Kind::Log {
            return Ok(());
        }
        let open = told("open", self.place.open(subject.name, How::Read))?;
        let found = self.read(&open)?;
        let (records, len) = content.records(&found);
        let (least, is_cut) = match left {
            Left::All => (entry.complete, len < found.len()),
            Left::Closed | Left::Synced => (entry.synced, false),
        };
        match records.is_empty() || is_cut {
            true => Err(format!(
                "records {records:?}; {}",
                content.describe(&found[len..])
            )),
            false => in_range(least..=entry.begun, records.end - 1),
        }
    }
}
