//! Changes of files, each noted in the ledger.

use std::io;
use std::thread;
use std::time::Duration;

use super::ledger::Ledger;
use super::place::{How, Place};
use super::{CAPABILITY, FILES, Kind, NET_RAW, VERSION, content, has_capability, mode};
use crate::Rng;

/// A log that is longer is begun anew.
const LONGEST_LOG: u64 = 128 << 10;

/// Changes files of a place.
#[derive(Debug)]
pub struct Writer<'a, P> {
    /// Where the files are.
    pub place: &'a P,
    /// Records the versions.
    pub ledger: &'a Ledger,
    /// Chooses.
    pub rng: Rng,
}

impl<P: Place> Writer<'_, P> {
    /// Makes a whole file, before it has readers.
    ///
    /// # Errors
    /// Those of the place.
    pub fn reset(&mut self, file: u64) -> io::Result<()> {
        let name = FILES[file as usize].name;
        for name in [name, &temporary(file), &linked(file)] {
            match self.place.unlink(name) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        let version = self.ledger.begin(file);
        self.make(file, version, name, true)?;
        self.ledger.complete(file, version, true);
        Ok(())
    }

    /// One change of one of `files`, half the time of the first.
    ///
    /// # Errors
    /// The failure.
    pub fn step(&mut self, files: &[u64]) -> Result<(), String> {
        let at = match self.rng.one_in(1, 2) {
            true => 0,
            false => self.rng.below(files.len() as u64),
        };
        let file = files[at as usize];
        let name = FILES[file as usize].name;
        self.change(file)
            .map_err(|error| format!("a change of {name}: {error}; {:?}", self.ledger.entry(file)))
    }

    /// As [`Writer::step`], and a pause: changes come a thousand times a second for a while, and then thirty times.
    ///
    /// # Errors
    /// The failure.
    pub fn step_and_pause(&mut self, files: &[u64]) -> Result<(), String> {
        self.step(files)?;
        let is_fast = (self.ledger.entry(files[0]).begun / 64).is_multiple_of(2);
        thread::sleep(Duration::from_millis(if is_fast { 1 } else { 30 }));
        Ok(())
    }

    fn change(&mut self, file: u64) -> io::Result<()> {
        match FILES[file as usize].kind {
            Kind::Replaced | Kind::TheirReplaced => self.replace(file),
            Kind::Log | Kind::TheirLog => self.append(file),
            Kind::Rewritten => self.rewrite(file, How::Truncate),
            Kind::Remade => {
                self.ledger.begin(file);
                self.place.unlink(FILES[file as usize].name)?;
                self.rewrite(file, How::New)
            }
        }
    }

    fn replace(&mut self, file: u64) -> io::Result<()> {
        let (name, temporary) = (FILES[file as usize].name, temporary(file));
        let version = self.ledger.begin(file);
        let sync = self.rng.one_in(1, 4);
        self.make(file, version, &temporary, sync)?;
        match self.rng.below(4) {
            0 => {
                self.place.exchange(&temporary, name)?;
                self.ledger.complete(file, version, sync);
                self.place.unlink(&temporary)?;
            }
            1 => {
                let linked = linked(file);
                self.place.link(&temporary, &linked)?;
                self.place.rename(&linked, name)?;
                self.ledger.complete(file, version, sync);
                self.place.unlink(&temporary)?;
            }
            _ => {
                self.place.rename(&temporary, name)?;
                self.ledger.complete(file, version, sync);
            }
        }
        Ok(())
    }

    /// Makes a version in a new file, with all that belongs to it.
    fn make(&mut self, file: u64, version: u64, name: &str, sync: bool) -> io::Result<()> {
        let new = self.place.open(name, How::New)?;
        self.write(&new, &content(file).bytes(version))?;
        let (sync_first, close_first) = (self.rng.one_in(1, 2), self.rng.one_in(1, 2));
        if sync && sync_first {
            self.place.sync(&new)?;
        }
        let open = (!close_first || sync && !sync_first).then_some(new);
        self.attribute(version, name)?;
        if let Some(new) = open.filter(|_| sync && !sync_first) {
            self.place.sync(&new)?;
        }
        Ok(())
    }

    fn attribute(&mut self, version: u64, name: &str) -> io::Result<()> {
        let value = version.to_le_bytes();
        self.place.set_attribute(name, VERSION, &value)?;
        self.place.set_mode(name, mode(version))?;
        if self.ledger.has_capabilities() && has_capability(version) {
            self.place.set_attribute(name, CAPABILITY, &NET_RAW)?;
        }
        Ok(())
    }

    fn write(&mut self, file: &P::File, bytes: &[u8]) -> io::Result<()> {
        let piece = [bytes.len(), 4096, 30_000][self.rng.below(3) as usize].max(1);
        bytes
            .chunks(piece)
            .try_for_each(|piece| self.place.write(file, piece))
    }

    fn rewrite(&mut self, file: u64, how: How) -> io::Result<()> {
        let name = FILES[file as usize].name;
        let version = self.ledger.begin(file);
        let sync = self.rng.one_in(1, 4);
        let open = self.place.open(name, how)?;
        self.write(&open, &content(file).bytes(version))?;
        self.place.set_mode(name, mode(version))?;
        if sync {
            self.place.sync(&open)?;
        }
        self.place.close(open)?;
        self.ledger.complete(file, version, sync);
        Ok(())
    }

    fn append(&mut self, file: u64) -> io::Result<()> {
        let name = FILES[file as usize].name;
        if self.place.status_of(name)?.len > LONGEST_LOG {
            return self.replace(file);
        }
        let log = self.place.open(name, How::Append)?;
        for _ in 0..1 + self.rng.below(8) {
            let version = self.ledger.begin(file);
            self.place.write(&log, &content(file).bytes(version))?;
            let sync = self.rng.one_in(1, 8);
            if sync {
                self.place.sync(&log)?;
            }
            self.ledger.complete(file, version, sync);
        }
        Ok(())
    }
}

/// A new version, before it has its name.
fn temporary(file: u64) -> String {
    format!(".t{file}")
}

/// A second name of a new version.
fn linked(file: u64) -> String {
    format!(".l{file}")
}
