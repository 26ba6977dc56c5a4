//! Asking the file system about what a name leads to: its attributes, and to open it.
//!
//! # Model
//!
//! What it says is believed by time, or, where somebody would tell of a change, until then: the directory is watched and
//! its doubts are noted before the question, and compared after the answer. See [`Belief`](crate::Belief), invariant 1.

use super::{Named, SuperBlock};
use crate::credentials::{Access, Credentials};
use crate::inode::Inode;
use crate::open_file::OpenFile;
use crate::slab::SlabArc;
use crate::types::{Attr, OpContext, OpenFlags};
use foliocache_sys::Errno;

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
}
