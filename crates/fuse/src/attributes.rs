//! Attributes in answers, and how long the kernel may believe them.

use crate::answers::{Asked, Print};
use crate::conn::FuseConn;
use crate::convert;
use foliocache_sys::Errno;
use foliocache_vfs::{Attr, Inode, Named, OpContext, SetAttr, SlabArc};
use fuser::{FileAttr, INodeNo};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

impl FuseConn {
    /// Attributes, and how long the kernel may believe them. `dir` is a directory with a name of the inode whose
    /// changes the kernel would be told of. The attributes are `known` if the file system was asked after that
    /// became so.
    pub(crate) fn attributes(
        &self,
        inode: &SlabArc<Inode>,
        dir: Option<&Inode>,
        known: Option<Attr>,
    ) -> Result<(FileAttr, Duration), Errno> {
        let mut told = match inode.is_directory() {
            true => self.news.tells_of(&self.names, inode),
            false => dir.is_some(),
        };
        let attr = match known {
            // A directory need not have been watched for changes of its own attributes.
            Some(known) if !inode.is_directory() => known,
            _ => self.attributes_now(inode)?,
        };
        if let Some(dir) = dir
            && !inode.is_directory()
        {
            told = self.fs().is_told_all(dir, inode) && !self.is_used(inode);
        }
        let mut attr = self.shown.attr(convert::attr(&attr));
        attr.ino = INodeNo(inode.ino());
        Ok((attr, self.ttl(told, true)))
    }

    /// Whether its attributes may change without notice: stores into mappings cause no event, and data that waits
    /// to be written is known only here.
    fn is_used(&self, inode: &Inode) -> bool {
        let provisional = inode.attributes().is_provisional();
        provisional || inode.ops().writers() > 0 || self.nodes.is_open(inode.ino())
    }

    /// The attributes of an inode that the kernel knows.
    pub(crate) fn attributes_of(
        &self,
        ino: INodeNo,
        thread: u32,
    ) -> Result<(FileAttr, Duration), Errno> {
        let asked = self.nodes.asked(thread);
        let (inode, dir) = self.told(ino)?;
        let (attr, mut ttl) = self.attributes(&inode, dir.as_deref(), None)?;
        self.believe(&attr, &mut ttl, asked);
        Ok((attr, ttl))
    }

    /// Notes attributes that the kernel is about to be told, and shortens the time for which it may believe them. It may have to be told
    /// first that earlier ones are stale.
    ///
    /// Context: waits for some milliseconds at most.
    pub(crate) fn believe(&self, attr: &FileAttr, ttl: &mut Duration, asked: Asked) {
        if self.believe_now(attr, ttl, asked) {
            return;
        }
        let ino = attr.ino.0;
        if !self.stale.tell(ino) && self.news.is_telling() {
            self.news.forget_attributes(ino);
        }
        self.nodes.answered_unbelieved(ino, Print::of(attr));
        *ttl = Duration::ZERO;
    }

    /// As [`FuseConn::believe`]. Returns false if the kernel must be told first.
    pub(crate) fn believe_now(&self, attr: &FileAttr, ttl: &mut Duration, asked: Asked) -> bool {
        let believed = !ttl.is_zero();
        let answered = (self.nodes).answered(attr.ino.0, Print::of(attr), believed, asked);
        if answered == Some(false) {
            *ttl = Duration::ZERO;
        }
        answered.is_some()
    }

    /// Changes the attributes of an inode that the kernel knows. It must not believe the answer, which it enters whatever it has learned
    /// in the meantime.
    pub(crate) fn set_attributes(
        &self,
        ctx: &OpContext,
        ino: INodeNo,
        set: &SetAttr,
    ) -> Result<(FileAttr, Duration), Errno> {
        let inode = self.inode(ino)?;
        if set.size.is_some() && ctx.uid != 0 {
            self.remove_privileges(ctx, &inode)?;
        }
        let attr = self.fs().setattr(ctx, &inode, set)?;
        let (attr, _) = self.attributes(&inode, None, Some(attr))?;
        Ok((attr, Duration::ZERO))
    }

    /// An inode that the kernel knows, and the directory whose watch reports all its changes.
    /// `None` for a directory and for a file in use.
    fn told(&self, ino: INodeNo) -> Result<(SlabArc<Inode>, Option<SlabArc<Inode>>), Errno> {
        let (inode, dentry) = self.nodes.named(&self.names, ino.0)?;
        let dentry = dentry.filter(|_| !inode.is_directory() && !self.is_used(&inode));
        let dir = dentry.and_then(|dentry| {
            let inode = inode.clone();
            self.told_by(&Named { dentry, inode })
        });
        Ok((inode, dir))
    }

    /// The directory whose watch reports changes of a file, if the file still has its name there.
    fn told_by(&self, named: &Named) -> Option<SlabArc<Inode>> {
        let within = self.within(named.dentry.parent()?).ok()?;
        let is_there = || {
            let name = named.dentry.name();
            let found = self
                .names
                .lookup_name(&within.dentry, OsStr::from_bytes(&name));
            found.is_ok_and(|found| SlabArc::ptr_eq(&found.inode, &named.inode))
        };
        let told = within.told && (self.names.is_believed_as_watched(named) || is_there());
        told.then_some(within.inode)
    }
}
