//! Asks the file system for the target of a name, for its attributes, and to open it.
//!
//! # Model
//!
//! The answer is believed for a time, or, if changes are reported, until a change: the directory is watched and its
//! doubts are noted before the question, and compared after the answer. See [`Belief`](crate::Belief), invariant 1.
//! For answers that overtake each other, see [`answers`](super::answers).

use super::answers::TRIES;
use super::{Named, SuperBlock};
use crate::credentials::{Access, Credentials};
use crate::dcache::{DentryRef, Name};
use crate::epoch;
use crate::inode::Inode;
use crate::open_file::OpenFile;
use crate::types::{Attr, MAX_NAME, OpContext, OpenFlags};
use foliocache_mm::slab::SlabArc;
use foliocache_sys::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

impl SuperBlock {
    /// Whether `credentials`, if given, allow an access. Requests the attributes if they are no longer believed.
    ///
    /// # Errors
    /// `EACCES`, those of [`FileSystem::getattr`](crate::FileSystem::getattr).
    pub fn check(
        &self,
        inode: &SlabArc<Inode>,
        access: Access,
        credentials: Option<&Credentials>,
    ) -> Result<(), Errno> {
        self.permit(inode, credentials, |credentials| {
            credentials.check(inode, access)
        })
    }

    /// Runs a check of the credentials, if there are any, on attributes that are believed.
    pub(super) fn permit(
        &self,
        inode: &SlabArc<Inode>,
        credentials: Option<&Credentials>,
        check: impl FnOnce(&Credentials) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let Some(credentials) = credentials else {
            return Ok(());
        };
        self.renew(inode)?;
        check(credentials)
    }

    /// Asks for the attributes that a permission check looks at, unless they are believed.
    pub(crate) fn renew(&self, inode: &SlabArc<Inode>) -> Result<(), Errno> {
        match inode.attributes().is_believed(self.now()) {
            true => Ok(()),
            false if inode.is_directory() => self.getattr_directory(inode).map(drop),
            false => self.caches.fs.getattr(inode).map(drop),
        }
    }

    /// Requests attributes; those of a watched file are believed until a change is reported.
    ///
    /// # Errors
    /// Those of [`FileSystem::getattr`](crate::FileSystem::getattr).
    pub(crate) fn getattr(&self, named: &Named) -> Result<Attr, Errno> {
        match named.inode.is_directory() {
            true => self.getattr_directory(&named.inode),
            false => self.believing(named, || self.caches.fs.getattr(&named.inode)),
        }
    }

    /// Opens a regular file, see [`FileSystem::open`](crate::FileSystem::open).
    ///
    /// # Errors
    /// Those of [`FileSystem::open`](crate::FileSystem::open).
    pub fn open(
        &self,
        ctx: &OpContext,
        named: &Named,
        flags: OpenFlags,
    ) -> Result<OpenFile, Errno> {
        let open = || self.caches.fs.open(ctx, &named.inode, flags);
        let opened = match named.inode.attributes().is_watched(self.now()) {
            true => open(),
            false => self.believing(named, open),
        };
        if opened.is_ok() && (flags.write || flags.truncate) {
            self.tell_of_writer(&named.inode);
        }
        opened
    }

    /// Runs `ask`, which takes over the attributes of anything but a directory. They are believed until a change is
    /// reported, if changes are reported.
    fn believing<R>(
        &self,
        Named { dentry, inode }: &Named,
        ask: impl FnOnce() -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let dir = dentry.parent().and_then(|dir| dir.inode());
        let Some(dir) = dir.filter(|dir| self.belief.watch(dir)) else {
            return ask();
        };
        let before = dir.attributes().doubts();
        let (now, doubts) = (self.now(), inode.attributes().doubts());
        let answer = ask()?;
        if self.caches.fs.is_told_all(&dir, inode) {
            inode.attributes().believe_watched(doubts, now);
            // A report may have come that did not find the dentry at its place.
            let above = dentry.parent().and_then(|dir| dir.inode());
            let moved = !above.is_some_and(|above| SlabArc::ptr_eq(&above, &dir));
            if moved || !dentry.is_hashed() || dir.attributes().doubts() != before {
                inode.attributes().unwatched();
            }
            inode.ops().asked_while_watched(doubts);
        }
        Ok(answer)
    }

    /// As [`SuperBlock::getattr`], for a directory: its own watch reports changes.
    fn getattr_directory(&self, dir: &SlabArc<Inode>) -> Result<Attr, Errno> {
        let watched = self.belief.watch(dir);
        let (now, doubts) = (self.now(), dir.attributes().doubts());
        let attr = self.caches.fs.getattr(dir)?;
        if watched {
            dir.attributes().believe_watched(doubts, now);
        }
        Ok(attr)
    }

    /// Asks the file system for a name in a directory and enters the answer, which may be that it does not exist. Also
    /// returns whether the attributes in memory are those of that answer.
    ///
    /// Context: the directory's names locked, shared at least.
    pub(super) fn ask(
        &self,
        dir: &DentryRef<Inode>,
        inode: &SlabArc<Inode>,
        name: &Name<'_>,
    ) -> Result<(DentryRef<Inode>, bool), Errno> {
        let watched = self.belief.watch(inode);
        let name_str = OsStr::from_bytes(name.bytes());
        let mut tries = 0;
        let (mut question, asked, doubts, found, told) = loop {
            let question = self.caches.answers.begin(inode, name);
            let (asked, doubts) = (self.now(), inode.attributes().doubts());
            let (found, told) = match self.caches.fs.lookup_with_attributes(inode, name_str) {
                Ok((inode, told)) => (Some(inode), told),
                // A longer name is no name of a dentry; in a directory that is gone it is not there, either.
                Err(Errno::ENOENT) if name.bytes().len() <= MAX_NAME => (None, false),
                Err(error) => return Err(error),
            };
            tries += 1;
            if tries == TRIES || !question.is_overtaken() {
                break (question, asked, doubts, found, told);
            }
        };
        let present = found.is_some();
        question.enter();
        // Something in the store leads back to a directory above: a bind mount, say.
        let (dentry, displaced) = self.caches.dcache.add(dir, name, found)?;
        let last = question.is_last();
        match watched {
            // A report may have come before there was a dentry to doubt.
            true => {
                let in_time = inode.attributes().unless_doubted(doubts, || {
                    if last {
                        dentry.believe(epoch::end(asked));
                    }
                });
                if !in_time {
                    self.caches.doubt_found(&dentry);
                }
            }
            false if last => dentry.believe(self.belief.until(asked, present)),
            false => {}
        }
        self.caches
            .expect_displaced(inode, name.bytes(), doubts, &displaced);
        Ok((dentry, told))
    }
}
