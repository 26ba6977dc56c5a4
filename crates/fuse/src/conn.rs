//! What the operations have in common: inodes, entries, handles, and what becomes of a panic.
//!
//! # Model
//!
//! The kernel names inodes by their number; what it knows is in [`nodes`](crate::nodes).
//!
//! What the kernel may believe of names and attributes, and for how long, is [`TTL`]. All changes
//! made through the mount reach the kernel's copies at once, because they pass through it; only
//! what changes in the source behind our back may be seen that much later.

use crate::buffers::Buffers;
use crate::convert;
use crate::handles::{DirHandle, FileHandle, HANDLE_BYTES, Handles};
use crate::kernel_pages::KernelPages;
use crate::nodes::Nodes;
use crate::prune::Pruner;
use crate::stats::{Counters, add};
use foliocache_mm::MetadataCharge;
use foliocache_sync::Arc;
use foliocache_sync::atomic::{AtomicBool, Ordering};
use foliocache_sync::background::Panics;
use foliocache_sys::Errno;
use foliocache_vfs::dcache::DentryRef;
use foliocache_vfs::{DirEntryBuf, FileSystem, Inode, Named, OpContext, SlabArc, SuperBlock};
use fuser::{FileAttr, FopenFlags, Generation, INodeNo, Request};
use std::ffi::OsStr;
use std::time::Duration;

/// How long the kernel may believe a name or an attribute without asking again.
pub(crate) const TTL: Duration = Duration::from_secs(1);

/// Bytes that an entry with attributes takes in a reply, without its name.
const DIRENTPLUS_BYTES: usize = 152;
/// Bytes of entries looked up together. The size of a reply is not told; this is the least usual.
const BATCH_BYTES: usize = 4096;

/// Sends `Ok` on with `$ok`, an error with `reply.error`.
macro_rules! answer {
    ($reply:ident, $done:expr, $value:pat => $ok:expr) => {
        match $done {
            Ok($value) => $ok,
            Err(error) => $reply.error(error),
        }
    };
}
pub(crate) use answer;

/// What the requests of one mount share.
#[doc(alias = "fuse_conn")]
pub(crate) struct FuseConn {
    pub(crate) names: Arc<SuperBlock>,
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) pruner: Arc<Pruner>,
    pub(crate) files: Handles<FileHandle>,
    pub(crate) directories: Handles<DirHandle>,
    pub(crate) buffers: Buffers,
    pub(crate) counters: Arc<Counters>,
    pub(crate) panics: Arc<Panics>,
    pub(crate) kernel_pages: Arc<KernelPages>,
    /// The kernel keeps everything, see [`KernelCache::All`](crate::KernelCache::All). `Relaxed`: set
    /// before the threads are started that serve what opens a file.
    pub(crate) kernel_keeps_all: AtomicBool,
}

/// On whose behalf a request is made. What is created has a umask, which is left to the file system,
/// because in a directory with a default access control list it does not count.
pub(crate) fn context(req: &Request, umask: u32) -> OpContext {
    OpContext {
        uid: req.uid(),
        gid: req.gid(),
        pid: req.pid(),
        umask,
    }
}

/// An entry as the kernel wants it: attributes and generation.
pub(crate) type Entry = (FileAttr, Generation);

impl FuseConn {
    /// Runs one operation: counts it, and turns errors and panics into what the kernel is told.
    pub(crate) fn attempt<T>(
        &self,
        name: &'static str,
        run: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, fuser::Errno> {
        add(&self.counters.requests, 1);
        self.catch(name, run)
    }

    /// As [`FuseConn::attempt`], for a part of an operation that is counted already.
    pub(crate) fn catch<T>(
        &self,
        name: &'static str,
        run: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, fuser::Errno> {
        // Nothing of ours is left half-changed by an unwinding operation: the table's locks are
        // not held across calls, and the cache keeps its own invariants.
        match self.panics.catch(name, run) {
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

    /// A directory, to look names up in.
    pub(crate) fn directory(&self, ino: INodeNo) -> Result<DentryRef<Inode>, Errno> {
        self.nodes.dentry(&self.names, ino.0)
    }

    /// A directory in which something will be looked up or made, and told to the kernel: waits a while where memory
    /// is so short that the kernel has to forget something first.
    pub(crate) fn directory_to_tell_of(&self, ino: INodeNo) -> Result<DentryRef<Inode>, Errno> {
        self.pruner.wait_for_room(&self.names);
        self.directory(ino)
    }

    /// Charges the bound for a handle that is about to be opened. Waits a while where memory is short.
    pub(crate) fn charge_handle(&self) -> Result<MetadataCharge, Errno> {
        self.pruner.wait_for_room(&self.names);
        MetadataCharge::before_names(self.names.mm(), HANDLE_BYTES, MetadataCharge::PATIENCE)
    }

    /// Tells the kernel of an inode, which it then may use until it forgets it.
    pub(crate) fn entry(&self, named: &Named) -> Result<Entry, Errno> {
        let attr = self.fs().getattr(&named.inode)?;
        self.nodes.remember(&self.names, named);
        let mut attr = convert::attr(&attr);
        attr.ino = INodeNo(named.inode.ino());
        Ok((attr, Generation(named.inode.generation())))
    }

    /// As [`FuseConn::entry`], for what was just made.
    pub(crate) fn entry_of(&self, dentry: DentryRef<Inode>) -> Result<Entry, Errno> {
        self.entry(&Named::new(dentry)?)
    }

    pub(crate) fn open_flags(&self) -> FopenFlags {
        // Relaxed: see the field.
        match self.kernel_keeps_all.load(Ordering::Relaxed) {
            true => FopenFlags::FOPEN_KEEP_CACHE,
            false => FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES,
        }
    }

    /// Names from `offset` on, as many as fit [`BATCH_BYTES`] with their attributes, `.` and `..`
    /// among them.
    fn names(&self, handle: &DirHandle, offset: u64) -> Result<Vec<DirEntryBuf>, Errno> {
        let mut names = Vec::new();
        let mut bytes = 0;
        handle.directory.read(offset, &mut |entry| {
            bytes += DIRENTPLUS_BYTES + entry.name.len().next_multiple_of(8);
            if bytes > BATCH_BYTES {
                return false;
            }
            names.push(entry.into());
            true
        })?;
        Ok(names)
    }

    /// Fills a reply with entries and their attributes. A name that is gone by the time it is
    /// looked up, or that this process may not look up, is left out; at a name that fails otherwise
    /// the reply ends, and the next begins with the error.
    pub(crate) fn fill_plus(
        &self,
        handle: &DirHandle,
        mut offset: u64,
        reply: &mut fuser::ReplyDirectoryPlus,
    ) -> Result<(), Errno> {
        let mut given = 0;
        loop {
            // A look-up may not be made from within the reading of a directory.
            let names = self.names(handle, offset)?;
            if names.is_empty() {
                return Ok(());
            }
            for name in names {
                offset = name.next_offset;
                let dots = name.name == "." || name.name == "..";
                let ((attr, generation), inode) = if dots {
                    // The kernel takes only number and kind of these, and counts no look-up.
                    let inode = handle.dentry.inode().ok_or(Errno::ESTALE)?;
                    let mut attr = convert::attr(&self.fs().getattr(&inode)?);
                    attr.ino = INodeNo(name.ino);
                    ((attr, Generation(0)), None)
                } else {
                    let found = self
                        .names
                        .lookup_name(&handle.dentry, &name.name)
                        .and_then(|named| Ok((self.entry(&named)?, named.inode)));
                    match found {
                        Ok((entry, inode)) => (entry, Some(inode)),
                        Err(
                            errno @ (Errno::ENOENT | Errno::ESTALE | Errno::EACCES | Errno::EPERM),
                        ) => {
                            tracing::debug!(?name.name, %errno, "left out of a listing");
                            continue;
                        }
                        Err(_) if given > 0 => return Ok(()),
                        Err(errno) => return Err(errno),
                    }
                };
                if reply.add(attr.ino, offset, &name.name, &TTL, &attr, generation) {
                    // It did not fit, so the kernel was not told of it.
                    let gone = inode.and_then(|inode| self.nodes.forget(inode.ino(), 1));
                    if let Some(gone) = gone {
                        gone.put(&self.names);
                    }
                    return Ok(());
                }
                given += 1;
            }
        }
    }
}

/// Whether this attribute is an access control list.
pub(crate) fn is_acl(name: &OsStr) -> bool {
    name == "system.posix_acl_access" || name == "system.posix_acl_default"
}

/// Size 0 asks for the size alone.
pub(crate) fn answer_xattr(value: &[u8], size: u32, reply: fuser::ReplyXattr) {
    if size == 0 {
        reply.size(value.len() as u32);
    } else if value.len() > size as usize {
        reply.error(fuser::Errno::ERANGE);
    } else {
        reply.data(value);
    }
}
