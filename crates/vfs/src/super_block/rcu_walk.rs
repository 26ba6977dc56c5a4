//! The mode of a walk under RCU: no reference, no lock, nothing written that others write.
//!
//! # Model
//!
//! A place is a dentry with the sequence number at which it was found. A child counts only if, after it
//! was found, its directory still had its number: then both were true at one moment. A name that is not
//! there, not believed any more, or changed meanwhile ends the walk with [`Stop::Bail`].

use super::SuperBlock;
use crate::credentials::{Access, Credentials};
use crate::dcache::{Dentry, Name};
use crate::inode::Inode;
use crate::types::FileKind;
use crate::walk::{Mode, Stop};
use foliocache_sync::rcu::RcuReadGuard;
use foliocache_sys::Errno;

/// Walks as long as nothing has to be asked. With `PLAIN` over nothing but names, noting how long they are believed.
pub(crate) struct RcuMode<'g, const PLAIN: bool = false> {
    pub(crate) sb: &'g SuperBlock,
    pub(crate) credentials: Option<&'g Credentials>,
    pub(crate) now: u64,
    pub(crate) rcu: &'g RcuReadGuard,
    /// With `PLAIN`: the time until which all names and permissions on the way are believed.
    pub(super) until: u64,
}

/// A dentry with an inode, as it was at `seq`.
#[derive(Clone, Copy)]
pub(crate) struct RcuAt<'g> {
    pub(crate) dentry: &'g Dentry<Inode>,
    /// A `u32` in a word of the width that copies load: loading a word after a store of its half would wait for the
    /// store to complete.
    seq: u64,
    pub(crate) inode: &'g Inode,
}

impl<'g> RcuAt<'g> {
    #[inline(always)]
    fn new(dentry: &'g Dentry<Inode>, seq: u32, inode: &'g Inode) -> Self {
        let seq = u64::from(seq);
        Self { dentry, seq, inode }
    }

    /// The dentry's sequence number then.
    #[inline(always)]
    pub(crate) fn seq(&self) -> u32 {
        self.seq as u32
    }

    /// Whether it has changed since.
    #[inline(always)]
    pub(crate) fn has_changed(&self) -> bool {
        self.dentry.read_retry(self.seq())
    }
}

impl<'g, const PLAIN: bool> RcuMode<'g, PLAIN> {
    pub(crate) fn new(
        sb: &'g SuperBlock,
        credentials: Option<&'g Credentials>,
        now: u64,
        rcu: &'g RcuReadGuard,
    ) -> Self {
        Self {
            sb,
            credentials,
            now,
            rcu,
            until: u64::MAX,
        }
    }

    /// The place that a dentry is at now; `None` if it is negative.
    #[inline]
    pub(crate) fn at(&self, dentry: &'g Dentry<Inode>) -> Option<RcuAt<'g>> {
        let seq = dentry.read_begin();
        let inode = dentry.inode_rcu(self.rcu)?;
        Some(RcuAt::new(dentry, seq, inode))
    }
}

impl<'g, const PLAIN: bool> Mode for RcuMode<'g, PLAIN> {
    type At = RcuAt<'g>;
    type Target = &'g [u8];

    #[inline(always)]
    fn kind(&self, at: &RcuAt<'g>) -> FileKind {
        at.inode.kind()
    }

    #[inline(always)]
    fn may_search(&mut self, dir: &RcuAt<'g>) -> Result<(), Stop> {
        if PLAIN && self.credentials.is_some() {
            self.until = self.until.min(dir.inode.attributes().believed_until());
        }
        match self.credentials {
            Some(_) if !dir.inode.attributes().is_believed(self.now) => Err(Stop::Bail),
            Some(credentials) => Ok(credentials.check(dir.inode, Access::EXECUTE)?),
            None => Ok(()),
        }
    }

    #[inline(always)]
    fn child(&mut self, dir: &RcuAt<'g>, name: &Name<'_>) -> Result<RcuAt<'g>, Stop> {
        let found = self.sb.dcache().lookup_rcu(dir.dentry, name, self.rcu);
        let (dentry, seq) = found.ok_or(Stop::Bail)?;
        dentry.prefetch_beside();
        let inode = dentry.inode_rcu(self.rcu);
        if dir.has_changed() || dentry.read_retry(seq) || self.now >= dentry.believed_until() {
            return Err(Stop::Bail);
        }
        if PLAIN {
            self.until = self.until.min(dentry.believed_until());
        }
        let inode = inode.ok_or(Errno::ENOENT)?;
        Ok(RcuAt::new(dentry, seq, inode))
    }

    fn too_long(&self, _dir: &RcuAt<'g>) -> Stop {
        Stop::Bail
    }

    fn parent(&mut self, _dir: &RcuAt<'g>) -> Result<RcuAt<'g>, Stop> {
        Err(Stop::Bail)
    }

    fn root(&mut self) -> Result<RcuAt<'g>, Stop> {
        self.at(self.sb.root()).ok_or(Stop::Bail)
    }

    fn target(&mut self, link: &RcuAt<'g>) -> Result<&'g [u8], Stop> {
        // The text of a link may be replaced without any directory changing its place.
        let target = link.inode.ops().cached_target().filter(|_| !PLAIN);
        target
            .map(|target| target.as_encoded_bytes())
            .ok_or(Stop::Bail)
    }

    #[inline(always)]
    fn down(&mut self, _dir: RcuAt<'g>) {}

    /// Where it came from may have moved.
    fn up(&mut self) -> Result<Option<RcuAt<'g>>, Stop> {
        Err(Stop::Bail)
    }
}
