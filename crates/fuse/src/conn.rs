//! The state that operations share: inodes, entries, handles. An operation that panics answers an error.
//!
//! # Model
//!
//! The kernel names inodes by their number; [`nodes`](crate::nodes) has those that it knows.
//!
//! Each [`Entry`] says how long the kernel may believe a name and attributes. All changes made through the mount reach
//! the kernel's copies at once, because they pass through it. It is told of other changes in directories that are watched
//! ([`news`](crate::news)). Elsewhere it sees them [`TTL`] later at most.

use crate::answers::Stale;
use crate::buffers::{Buffers, MORE_BUFFERS};
use crate::convert;
use crate::entry::{Entry, LONG, TTL};
use crate::handles::{DirHandle, FileHandle, FileId, HANDLE_BYTES, Handles, NO_HANDLE};
use crate::kernel_pages::KernelPages;
use crate::linking::{Linking, NodeId};
use crate::listed::Listed;
use crate::news::{News, Own, ToldSoFar};
use crate::nodes::{Node, Nodes};
use crate::options::{KernelCache, MountOptions};
use crate::prune::Pruner;
use crate::shown::Shown;
use crate::stats::{Counters, add};
use crate::unopened::Unopened;
use foliocache_mm::MetadataCharge;
use foliocache_sync::Arc;
use foliocache_sync::atomic::{AtomicBool, Ordering};
use foliocache_sync::background::Panics;
use foliocache_sys::{Errno, credentials};
use foliocache_vfs::dcache::DentryRef;
use foliocache_vfs::{
    FileSystem, Inode, Named, New, OpContext, OpenFile, OpenFlags, Remove, RenameMode, SetAttr,
    SlabArc, SuperBlock,
};
use fuser::{FopenFlags, Generation, INodeNo, Request};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

/// Sends a result: `Ok` with `$ok`, an error with `reply.error`.
macro_rules! answer {
    ($reply:ident, $done:expr, $value:pat => $ok:expr) => {
        match $done {
            Ok($value) => $ok,
            Err(error) => $reply.error(error),
        }
    };
}
pub(crate) use answer;

/// The state that the requests of one mount share.
#[doc(alias = "fuse_conn")]
pub(crate) struct FuseConn {
    pub(crate) names: Arc<SuperBlock>,
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) pruner: Arc<Pruner>,
    pub(crate) files: Handles<FileHandle>,
    pub(crate) directories: Handles<DirHandle>,
    pub(crate) listed: Arc<Listed>,
    pub(crate) linking: Arc<Linking>,
    pub(crate) stale: Arc<Stale>,
    pub(crate) buffers: Buffers,
    pub(crate) counters: Arc<Counters>,
    pub(crate) panics: Arc<Panics>,
    pub(crate) kernel_pages: Arc<KernelPages>,
    pub(crate) news: Arc<News>,
    pub(crate) unopened: Arc<Unopened>,
    pub(crate) kernel_cache: KernelCache,
    pub(crate) shown: Shown,
    /// The kernel opens and closes files without a request. It keeps all data, and a file that it opens for a
    /// program can be opened here at any time.
    pub(crate) kernel_opens: bool,
    /// Closing a written file waits until the data is in the source, and returns the error if it is not: the kernel
    /// must send a request for each close.
    pub(crate) writes_at_close: bool,
    /// Files that the kernel opens are kept in its cache, because it asked for that or cannot map them otherwise.
    /// `Relaxed`: set before the threads start that open files.
    pub(crate) kernel_keeps_all: AtomicBool,
    /// The kernel can read directories without opening them, and then caches their listings.
    /// `Relaxed`: set before the threads start that read directories.
    pub(crate) kernel_can_list: AtomicBool,
}

impl Drop for FuseConn {
    fn drop(&mut self) {
        // The requests of a detached mount are served longer than the mount lives.
        self.unopened.stop();
        self.linking.stop();
        self.stale.stop();
    }
}

/// The caller of a request. The file system applies the umask to new files, because a default
/// access control list overrides it.
pub(crate) fn context(req: &Request, umask: u32) -> OpContext {
    OpContext {
        uid: req.uid(),
        gid: req.gid(),
        pid: req.pid(),
        umask,
    }
}

/// A directory that a request is about to ask about.
pub(crate) struct Within {
    pub(crate) dentry: DentryRef<Inode>,
    pub(crate) inode: SlabArc<Inode>,
    /// From now on the kernel is told of changes in it.
    pub(crate) told: bool,
}

impl FuseConn {
    /// The state of a new mount of `names`.
    pub(crate) fn new(names: &Arc<SuperBlock>, options: &MountOptions) -> Result<FuseConn, Errno> {
        let counters = Arc::new(Counters::default());
        let pruner = Arc::new(Pruner::new(Arc::clone(&counters)));
        let listed = Arc::new(Listed::default());
        let linking = Arc::new(Linking::new());
        let nodes = Arc::new(Nodes::new(Arc::clone(&counters)));
        let read_only = options.is_read_only(names);
        let all = options.kernel_cache == KernelCache::All;
        Ok(FuseConn {
            names: Arc::clone(names),
            nodes: Arc::clone(&nodes),
            pruner,
            files: Handles::new(),
            directories: Handles::new(),
            listed: Arc::clone(&listed),
            linking: Arc::clone(&linking),
            stale: Arc::default(),
            buffers: Buffers::new(options.threads.max(1) + MORE_BUFFERS),
            counters,
            panics: Arc::new(Panics::new(|name, message| {
                tracing::error!(name, message, "serving a mount panicked");
            })),
            kernel_pages: Arc::new(KernelPages::default()),
            news: Arc::new(News::new(listed, linking)?),
            unopened: Arc::new(Unopened::new(nodes)),
            kernel_cache: options.kernel_cache,
            shown: options.shown,
            kernel_opens: all && credentials::overrides_modes(),
            writes_at_close: !read_only && names.fs().writes_at_close(),
            kernel_keeps_all: AtomicBool::new(all),
            kernel_can_list: AtomicBool::new(false),
        })
    }

    /// Subtracts look-ups of an inode. Returns the node if those were all, unless the pruner asked
    /// the kernel for it: then the pruner gets it.
    ///
    /// Context: does not wait.
    #[must_use]
    pub(crate) fn forget(&self, ino: u64, nlookup: u64) -> Option<Node> {
        let gone = self.nodes.forget(ino, nlookup)?;
        if gone.is_directory() {
            // Does not wait: the node still holds the inode and the dentry.
            self.listed.end(ino);
        }
        match gone.asked_for() {
            Ok(named) => {
                self.pruner.took_back(named);
                None
            }
            Err(gone) => Some(gone),
        }
    }

    /// Runs one operation: counts it, and turns errors and panics into error numbers.
    pub(crate) fn attempt<T>(
        &self,
        name: &'static str,
        run: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, fuser::Errno> {
        add(&self.counters.requests, 1);
        self.catch(name, run)
    }

    /// As [`FuseConn::attempt`], for a part of an operation that has been counted.
    pub(crate) fn catch<T>(
        &self,
        name: &'static str,
        run: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, fuser::Errno> {
        // An operation that unwinds leaves nothing half-changed: the tables' locks are not held
        // across calls, and the cache keeps its invariants.
        match self.panics.catch(name, || self.news.serving(run)) {
            Some(Ok(value)) => Ok(value),
            Some(Err(errno)) => {
                add(&self.counters.errors, 1);
                tracing::trace!(name, %errno);
                Err(convert::errno(errno))
            }
            None => Err(fuser::Errno::EIO),
        }
    }

    /// The file system.
    pub(crate) fn fs(&self) -> &dyn FileSystem {
        &**self.names.fs()
    }

    pub(crate) fn inode(&self, ino: INodeNo) -> Result<SlabArc<Inode>, Errno> {
        self.nodes.inode(&self.names, ino.0)
    }

    /// A directory for look-ups.
    pub(crate) fn directory(&self, ino: INodeNo) -> Result<DentryRef<Inode>, Errno> {
        self.nodes.dentry(&self.names, ino.0)
    }

    /// A directory for an operation that tells the kernel of an inode. Waits a while if memory is so short that the
    /// kernel has to forget inodes first.
    pub(crate) fn directory_to_tell_of(&self, ino: INodeNo) -> Result<DentryRef<Inode>, Errno> {
        self.pruner.wait_for_room(&self.names);
        self.directory(ino)
    }

    /// Charges the bound for a handle that is about to be opened. Waits a while where memory is short.
    pub(crate) fn charge_handle(&self) -> Result<MetadataCharge, Errno> {
        self.pruner.wait_for_room(&self.names);
        MetadataCharge::before_names(self.names.mm(), HANDLE_BYTES, MetadataCharge::PATIENCE)
    }

    /// A directory, before the operation in it begins.
    pub(crate) fn within(&self, dentry: DentryRef<Inode>) -> Result<Within, Errno> {
        let inode = dentry.inode().ok_or(Errno::ESTALE)?;
        let told = self.news.tells_of(&self.names, &inode);
        Ok(Within {
            dentry,
            inode,
            told,
        })
    }

    pub(crate) fn ttl(&self, told: bool, present: bool) -> Duration {
        match told {
            true => LONG,
            false => self.names.validity(present).min(TTL),
        }
    }

    /// Opens a file that the kernel knows.
    pub(crate) fn open(
        &self,
        ctx: &OpContext,
        ino: INodeNo,
        flags: OpenFlags,
    ) -> Result<OpenFile, Errno> {
        match self.nodes.named(&self.names, ino.0)? {
            (inode, Some(dentry)) => self.names.open(ctx, &Named { dentry, inode }, flags),
            (inode, None) => self.fs().open(ctx, &inode, flags),
        }
    }

    /// A file that the kernel opened. One that it did not open is opened now if necessary.
    pub(crate) fn file(&self, id: FileId, write: bool) -> Result<Arc<FileHandle>, Errno> {
        if let Some(file) = self.open_file(id, write)? {
            return Ok(file);
        }
        let flags = match write {
            true => OpenFlags::READ_WRITE,
            false => OpenFlags::READ,
        };
        let charge = self.charge_handle()?;
        let file = self.open(&OpContext::ROOT, INodeNo(id.ino), flags)?;
        let file = Arc::new(FileHandle::new(file, charge));
        self.unopened.put(Arc::clone(&file));
        Ok(file)
    }

    /// As [`FuseConn::file`], but opens nothing. Does not wait.
    pub(crate) fn open_file(
        &self,
        id: FileId,
        write: bool,
    ) -> Result<Option<Arc<FileHandle>>, Errno> {
        if id.fh != NO_HANDLE {
            return self.files.get(id.fh).map(Some);
        }
        let serves = |held: &Arc<FileHandle>| held.file.flags().write || !write;
        let held = || self.nodes.held(id.ino).filter(serves);
        Ok(self.unopened.get(id.ino, write).or_else(held))
    }

    /// Opens a file that is about to lose a name, if it has dirty data and programs may have it open without a
    /// request: without an open handle the data would go with the last name. Keep the handle until the name is
    /// gone.
    ///
    /// # Errors
    /// `EIO` and the like if it could neither be opened nor be made durable.
    fn keep_data(&self, within: &Within, name: &OsStr) -> Result<Option<Arc<FileHandle>>, Errno> {
        if !self.kernel_opens {
            return Ok(None);
        }
        let Ok(Named { inode, .. }) = self.names.lookup_name(&within.dentry, name) else {
            return Ok(None);
        };
        let (ino, fh) = (inode.ino(), NO_HANDLE);
        let Some(mapping) = inode.mapping().filter(|_| self.nodes.knows(ino)) else {
            return Ok(None);
        };
        let id = FileId { ino, fh };
        if let Some(open) = self.open_file(id, false)? {
            return Ok(Some(open));
        }
        if !mapping.is_dirty() {
            return Ok(None);
        }
        match self.file(id, false) {
            Ok(opened) => Ok(Some(opened)),
            Err(error) => mapping.sync().map(|()| None).map_err(|_| error),
        }
    }

    /// Tells the kernel of an inode, which it may then use until it forgets it. `are_known`: the file system has
    /// just confirmed the attributes. `before` holds the counts from before it was asked.
    fn entry(
        &self,
        within: &Within,
        named: &Named,
        are_known: bool,
        before: ToldSoFar,
    ) -> Result<Entry, Errno> {
        let dir = within.told.then_some(&*within.inode);
        let inode = &named.inode;
        // The directory's own watch reports its attributes. They are compared below.
        let own = inode
            .is_directory()
            .then(|| self.news.told_before(&self.names, inode));
        let known = are_known.then(|| inode.attributes().get().of(inode.ino(), inode.kind()));
        let (attr, attr_ttl) = self.attributes(inode, dir, known)?;
        self.nodes.remember(&self.names, named);
        // Invariant 2 of `news`: a change reported from now on finds the inode among the nodes.
        let now = self.news.told_so_far(&within.inode);
        let is_changed = own.map_or(now != before, |own| self.news.told_so_far(inode) != own);
        if self.news.is_telling() && is_changed {
            self.news.forget_attributes(inode.ino());
        }
        // The kernel does not wait for a look-up of a directory that it knows already.
        let name_may_have_changed = own.is_some() && now.of_names() != before.of_names();
        let name_is_told = within.told && self.news.is_telling() && !name_may_have_changed;
        Ok(Entry {
            attr,
            generation: Generation(named.inode.generation()),
            name_ttl: self.ttl(name_is_told, true),
            attr_ttl,
        })
    }

    /// Looks a name up for the kernel.
    pub(crate) fn lookup(
        &self,
        within: &Within,
        name: &OsStr,
        thread: u32,
    ) -> Result<Entry, Errno> {
        let asked = self.nodes.asked(thread);
        let found = self.lookup_replaced(within, name);
        let node = match &found {
            Ok((_, inode)) => Some(NodeId::of(inode)),
            Err(Errno::ENOENT) => None,
            Err(error) => return Err(*error),
        };
        let listed = self.linking.answer(within.inode.ino(), name, node);
        if let Some(entry) = listed.and_then(|listed| self.entry_of_listed(name, listed)) {
            if let Ok((_, inode)) = found {
                self.forget_untold(inode.ino());
            }
            return Ok(entry);
        }
        match found {
            Err(Errno::ENOENT) => match self.ttl(within.told, false) {
                Duration::ZERO => Err(Errno::ENOENT),
                ttl => Ok(Entry::absent(ttl)),
            },
            found => {
                let (mut entry, _) = found?;
                self.believe(&entry.attr, &mut entry.attr_ttl, asked);
                Ok(entry)
            }
        }
    }

    /// Looks up a name that exists, and tells the kernel of it.
    ///
    /// # Errors
    /// `ENOENT`, and those of the file system.
    pub(crate) fn lookup_present(
        &self,
        within: &Within,
        name: &OsStr,
    ) -> Result<(Entry, SlabArc<Inode>), Errno> {
        let before = self.news.told_before(&self.names, &within.inode);
        let (named, are_known) = self.names.lookup_attributes(&within.dentry, name)?;
        let entry = self.entry(within, &named, are_known, before)?;
        Ok((entry, named.inode))
    }

    /// The kernel had names changed in a directory, which it keeps locked meanwhile.
    fn names_changed(&self, dir: u64) {
        self.listed.names_changed(dir);
        self.linking.is_locked(dir);
    }

    /// Creates a name, and tells the kernel of it; if it `is_new`, with the attributes that it was
    /// created with.
    pub(crate) fn make(
        &self,
        dir: INodeNo,
        name: &OsStr,
        is_new: bool,
        make: impl FnOnce(&DentryRef<Inode>) -> Result<DentryRef<Inode>, Errno>,
    ) -> Result<Entry, Errno> {
        let within = self.within(self.directory_to_tell_of(dir)?)?;
        let own = self.news.own(&self.names, &within.inode, name, 1);
        let mut before = self.news.told_before(&self.names, &within.inode);
        // The creation itself counts as one doubt.
        before.doubts = before.doubts.wrapping_add(1);
        let made = make(&within.dentry);
        self.names_changed(dir.0);
        let made = made?;
        own.done();
        let mut entry = self.entry(&within, &Named::new(made)?, is_new, before)?;
        if !is_new {
            // The kernel enters the attributes of a link, whatever it has learned in the meantime.
            entry.attr_ttl = Duration::ZERO;
        }
        Ok(entry)
    }

    /// Makes an object that has no other name.
    pub(crate) fn make_object(
        &self,
        ctx: &OpContext,
        dir: INodeNo,
        name: &OsStr,
        new: New<'_>,
    ) -> Result<Entry, Errno> {
        self.make(dir, name, true, |dir| {
            self.names.make(ctx, dir, name, new, None)
        })
    }

    /// Removes a name.
    pub(crate) fn remove(&self, dir: INodeNo, name: &OsStr, what: Remove) -> Result<(), Errno> {
        let within = self.within(self.directory(dir)?)?;
        let kept = self.keep_data(&within, name)?;
        let own = self.news.own(&self.names, &within.inode, name, 1);
        let removed = self.names.remove(&within.dentry, name, what, None);
        self.names_changed(dir.0);
        removed?;
        own.done();
        drop(kept);
        Ok(())
    }

    pub(crate) fn rename(
        &self,
        ctx: &OpContext,
        (from, old): (INodeNo, &OsStr),
        (to, new): (INodeNo, &OsStr),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        let (from, to) = (self.directory(from)?, self.directory(to)?);
        let (from, to) = (self.within(from)?, self.within(to)?);
        let exchanged = mode == RenameMode::Exchange;
        let events = if exchanged { 2 } else { 1 };
        let kept = match mode {
            RenameMode::Replace | RenameMode::Whiteout => self.keep_data(&to, new)?,
            _ => None,
        };
        let owns = [(&from, old), (&to, new)]
            .map(|(dir, name)| self.news.own(&self.names, &dir.inode, name, events));
        let renamed = self
            .names
            .rename(&from.dentry, old, &to.dentry, new, mode, None);
        for dir in [&from, &to] {
            self.names_changed(dir.inode.ino());
        }
        renamed?;
        owns.into_iter().for_each(Own::done);
        drop(kept);
        let moved = [Some((&to, new)), exchanged.then_some((&from, old))];
        for (dir, name) in moved.into_iter().flatten().filter(|(dir, _)| !dir.told) {
            self.news.forget_moved(&self.names, &dir.dentry, name);
        }
        if mode == RenameMode::Whiteout {
            self.give_whiteout(ctx, &from, old);
        }
        Ok(())
    }

    /// Gives the whiteout that a rename left to the caller, as far as this process may.
    fn give_whiteout(&self, ctx: &OpContext, within: &Within, name: &OsStr) {
        let set = SetAttr {
            uid: Some(ctx.uid),
            gid: Some(ctx.gid),
            ..SetAttr::default()
        };
        let made = self.names.lookup_name(&within.dentry, name);
        let given = made.and_then(|made| self.fs().setattr(ctx, &made.inode, &set));
        if let Err(errno) = given {
            tracing::debug!(?name, %errno, "a whiteout stays this process's");
        }
    }

    pub(crate) fn open_flags(&self) -> FopenFlags {
        // Relaxed: see the field.
        match self.kernel_keeps_all.load(Ordering::Relaxed) {
            true => FopenFlags::FOPEN_KEEP_CACHE,
            false => FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES,
        }
    }
}

/// Whether this attribute is an access control list.
pub(crate) fn is_acl(name: &OsStr) -> bool {
    name == "system.posix_acl_access" || name == "system.posix_acl_default"
}

/// Names of attributes in the kernel's form. Only root may read `trusted.*`, and the kernel shows
/// all names that it gets.
pub(crate) fn list_of_xattrs(names: &[OsString], is_root: bool) -> Vec<u8> {
    let mut list = Vec::new();
    for name in names.iter().map(|name| name.as_bytes()) {
        if is_root || !name.starts_with(b"trusted.") {
            list.extend_from_slice(name);
            list.push(0);
        }
    }
    list
}

/// A size of 0 queries the length.
pub(crate) fn answer_xattr(value: &[u8], size: u32, reply: fuser::ReplyXattr) {
    if size == 0 {
        reply.size(value.len() as u32);
    } else if value.len() > size as usize {
        reply.error(fuser::Errno::ERANGE);
    } else {
        reply.data(value);
    }
}
