//! Asking the file system what a name leads to, for its attributes, and to open it.
//!
//! # Model
//!
//! What it says is believed by time, or, where somebody would tell of a change, until then: the directory is watched and
//! its doubts are noted before the question, and compared after the answer. See [`Belief`](crate::Belief), invariant 1. Of answers that
//! overtake each other, see [`answers`](super::answers).

use super::answers::TRIES;
use super::{Named, SuperBlock};
use crate::credentials::{Access, Credentials};
use crate::dcache::{DentryRef, Name};
use crate::epoch;
use crate::inode::Inode;
use crate::open_file::OpenFile;
use crate::slab::SlabArc;
use crate::types::{Attr, MAX_NAME, OpContext, OpenFlags};
use foliocache_sys::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

impl SuperBlock {
    /// Whether `credentials`, if there are any, allow an access. The attributes are asked for anew if they are
    /// not believed any more.
    ///
    /// # Errors
    /// `EACCES`, those of [`FileSystem::getattr`](crate::FileSystem::getattr).
    pub fn check(
        &self,
        inode: &SlabArc<Inode>,
        access: Access,
        credentials: Option<&Credentials>,
    ) -> Result<(), Errno> {
        match credentials {
            Some(credentials) => {
                self.renew(inode)?;
                credentials.check(inode, access)
            }
            None => Ok(()),
        }
    }

    /// Asks for the attributes that a permission check looks at, unless they are believed.
    pub(crate) fn renew(&self, inode: &SlabArc<Inode>) -> Result<(), Errno> {
        match inode.attributes().is_believed(self.now()) {
            true => Ok(()),
            false if inode.is_directory() => self.getattr_directory(inode).map(drop),
            false => self.caches.fs.getattr(inode).map(drop),
        }
    }

    /// Asks for attributes; those of what is watched are believed until somebody tells of a change.
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

    /// Runs `ask`, which takes over the attributes of what is no directory. They are believed until somebody tells of a change,
    /// if somebody would.
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
            // Somebody may have been told who did not find the dentry there.
            let above = dentry.parent().and_then(|dir| dir.inode());
            let moved = !above.is_some_and(|above| SlabArc::ptr_eq(&above, &dir));
            if moved || !dentry.is_hashed() || dir.attributes().doubts() != before {
                inode.attributes().unwatched();
            }
            inode.ops().asked_while_watched(doubts);
        }
        Ok(answer)
    }

    /// As [`SuperBlock::getattr`], of a directory: its own watch tells.
    fn getattr_directory(&self, dir: &SlabArc<Inode>) -> Result<Attr, Errno> {
        let watched = self.belief.watch(dir);
        let (now, doubts) = (self.now(), dir.attributes().doubts());
        let attr = self.caches.fs.getattr(dir)?;
        if watched {
            dir.attributes().believe_watched(doubts, now);
        }
        Ok(attr)
    }

    /// Asks the file system for a name in a directory and enters what it says, which may be that there is
    /// none.
    ///
    /// Context: the directory's names locked, shared at least.
    pub(super) fn ask(
        &self,
        dir: &DentryRef<Inode>,
        inode: &SlabArc<Inode>,
        name: &Name<'_>,
    ) -> Result<DentryRef<Inode>, Errno> {
        self.ask_all(dir, inode, name).map(|(dentry, _)| dentry)
    }

    /// As [`SuperBlock::ask`], and whether the attributes in memory are those that the file system was told at that.
    pub(super) fn ask_all(
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
        let (dentry, displaced) = self.caches.dcache.add_displacing(dir, name, found)?;
        let last = question.is_last();
        match watched {
            // Somebody may have been told before there was a dentry to doubt.
            true => {
                let mut in_time = false;
                inode.attributes().unless_doubted(doubts, || {
                    if last {
                        dentry.believe(epoch::end(asked));
                    }
                    in_time = true;
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
