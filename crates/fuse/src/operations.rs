//! Each kernel request, as one call of the file system and one answer.
//!
//! # Model
//!
//! Nothing is decided here: arguments are converted for the file system, results for the kernel.
//! Operations that need more are in `conn` and `data`.

use crate::conn::{answer, answer_xattr, context, is_acl, list_of_xattrs};
use crate::convert;
use crate::data::{O_DIRECT, ReadRequest, WriteRequest};
use crate::handles::{FileId, NO_HANDLE};
use crate::options::KernelCache;
use crate::service::{Lane, MAX_BACKGROUND, Server};
use foliocache_sync::atomic::Ordering;
use foliocache_sys::Errno;
use foliocache_vfs::{
    Device, New, OpenFlags, PERMISSION_BITS, Remove, RenameMode, SetAttr, XattrMode,
};
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, FileHandle as Fh, Filesystem, FopenFlags, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags as RawFlags, RenameFlags, Request, TimeOrNow, WriteFlags,
};
use fuser::{
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
};
use std::ffi::OsStr;
use std::path::Path;
use std::time::SystemTime;

const O_EXCL: i32 = 0o200;

impl Filesystem for Server {
    /// The kernel sends no more requests, so it need not be told either.
    fn destroy(&mut self) {
        self.conn.news.stop();
    }

    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Not FUSE_ATOMIC_O_TRUNC: an open could truncate a file before the kernel refuses it, for
        // instance a running program's file.
        let optional = [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_AUTO_INVAL_DATA,
            // Without it the kernel may ask for `security.capability` at each write, and for
            // attributes before each change of owner.
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            // An inode's target never changes.
            InitFlags::FUSE_CACHE_SYMLINKS,
            // A forgotten inode cannot be found by its number, so the kernel makes no file handles.
            InitFlags::FUSE_NO_EXPORT_SUPPORT,
            // Permission checks use access control lists, and umasks come to us.
            InitFlags::FUSE_POSIX_ACL,
            InitFlags::FUSE_DONT_MASK,
        ];
        for flag in optional {
            if config.add_capabilities(flag).is_err() {
                tracing::debug!(?flag, "not offered by this kernel");
            }
        }
        let lists = config.add_capabilities(InitFlags::FUSE_NO_OPENDIR_SUPPORT);
        // Relaxed: see the field.
        let can_list = &self.conn.kernel_can_list;
        can_list.store(lists.is_ok(), Ordering::Relaxed);
        if self.conn.kernel_cache == KernelCache::Mapped
            && let Err(_) = config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP)
        {
            // Relaxed: see the field.
            self.conn.kernel_keeps_all.store(true, Ordering::Relaxed);
            tracing::warn!("this kernel maps files only through its own cache: data is held twice");
        }
        // Both fail only for values out of range.
        let _ = config.set_max_write(crate::buffers::MAX_REQUEST);
        let _ = config.set_max_background(MAX_BACKGROUND);
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (name, thread) = (name.to_owned(), req.pid());
        self.serve_entry(Lane::Names, "lookup", reply, move |conn| {
            let within = conn.within(conn.directory_to_tell_of(parent)?)?;
            conn.lookup(&within, &name, thread)
        });
    }

    fn forget(&self, _: &Request, ino: INodeNo, nlookup: u64) {
        let done = self
            .conn
            .attempt("forget", || Ok(self.conn.forget(ino.0, nlookup)));
        // The last look-up may belong to a file whose end waits for the store.
        if let Ok(Some(node)) = done {
            self.serve(Lane::Io, move |conn| {
                conn.unopened.end(ino.0);
                node.put(&conn.names);
            });
        }
    }

    fn getattr(&self, req: &Request, ino: INodeNo, _: Option<Fh>, reply: ReplyAttr) {
        let thread = req.pid();
        self.serve(Lane::Names, move |conn| {
            let done = conn.attempt("getattr", || conn.attributes_of(ino, thread));
            answer!(reply, done, (attr, ttl) => reply.attr(&ttl, &attr));
        });
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<Fh>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let ctx = context(req, 0);
        self.serve(Lane::Io, move |conn| {
            let done = conn.attempt("setattr", || {
                let set = SetAttr {
                    mode: mode.map(|mode| conn.shown.mode_to_set(mode & PERMISSION_BITS)),
                    uid,
                    gid,
                    size,
                    atime: atime.map(convert::set_time),
                    mtime: mtime.map(convert::set_time),
                };
                conn.set_attributes(&ctx, ino, &set)
            });
            answer!(reply, done, (attr, ttl) => reply.attr(&ttl, &attr));
        });
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        self.serve(Lane::Names, move |conn| {
            let done = conn.attempt("readlink", || conn.fs().readlink(&conn.inode(ino)?));
            answer!(reply, done, target => reply.data(target.as_encoded_bytes()));
        });
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let (name, ctx) = (name.to_owned(), context(req, umask));
        self.serve_entry(Lane::Io, "mknod", reply, move |conn| {
            let (kind, rdev) = (convert::kind_of_mode(mode), Device::from_raw(rdev.into()));
            let mode = mode & PERMISSION_BITS;
            conn.make_object(&ctx, parent, &name, New::Node { kind, mode, rdev })
        });
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let (name, ctx) = (name.to_owned(), context(req, umask));
        self.serve_entry(Lane::Io, "mkdir", reply, move |conn| {
            let mode = mode & PERMISSION_BITS;
            conn.make_object(&ctx, parent, &name, New::Directory { mode })
        });
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_owned();
        self.serve_empty(Lane::Io, "unlink", reply, move |conn| {
            conn.remove(parent, &name, Remove::File)
        });
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_owned();
        self.serve_empty(Lane::Io, "rmdir", reply, move |conn| {
            conn.remove(parent, &name, Remove::Directory)
        });
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, to: &Path, reply: ReplyEntry) {
        let (name, to) = (name.to_owned(), to.as_os_str().to_owned());
        let ctx = context(req, 0);
        self.serve_entry(Lane::Io, "symlink", reply, move |conn| {
            conn.make_object(&ctx, parent, &name, New::Symlink(&to))
        });
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let ctx = context(req, 0);
        let (name, newname) = (name.to_owned(), newname.to_owned());
        self.serve_empty(Lane::Io, "rename", reply, move |conn| {
            let mode = if flags.is_empty() {
                RenameMode::Replace
            } else if flags == RenameFlags::RENAME_NOREPLACE {
                RenameMode::NoReplace
            } else if flags == RenameFlags::RENAME_EXCHANGE {
                RenameMode::Exchange
            } else if flags == RenameFlags::RENAME_WHITEOUT {
                RenameMode::Whiteout
            } else {
                return Err(Errno::EINVAL);
            };
            conn.rename(&ctx, (parent, &name), (newparent, &newname), mode)
        });
    }

    fn link(&self, _: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.to_owned();
        self.serve_entry(Lane::Io, "link", reply, move |conn| {
            let inode = conn.inode(ino)?;
            conn.make(parent, &name, false, |dir| {
                conn.names.link(&inode, dir, &name, None)
            })
        });
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: RawFlags, reply: ReplyOpen) {
        if self.conn.kernel_opens {
            // From now on the kernel opens files without a request.
            return reply.error(fuser::Errno::ENOSYS);
        }
        let ctx = context(req, 0);
        self.serve(Lane::Io, move |conn| {
            let done = conn.attempt("open", || {
                let charge = conn.charge_handle()?;
                let file = conn.open(&ctx, ino, OpenFlags::from_raw(flags.0))?;
                Ok(conn.insert_file(file, charge, flags.0))
            });
            answer!(reply, done, fh => reply.opened(fh, conn.open_flags()));
        });
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (name, ctx) = (name.to_owned(), context(req, umask));
        self.serve(Lane::Io, move |conn| {
            let done = conn.attempt("create", || {
                let charge = conn.charge_handle()?;
                let mode = mode & PERMISSION_BITS;
                let exclusive = flags & O_EXCL != 0;
                let how = conn.flags_of_created(OpenFlags::from_raw(flags));
                let mut opened = None;
                let entry = conn.make(parent, &name, true, |dir| {
                    let created = conn.names.create(&ctx, dir, &name, mode, how, None);
                    let (file, dentry) = match created {
                        // The kernel found no such name, so it has checked the directory alone. `ESTALE` makes it
                        // look the name up again and open the file as `open` does: it checks the mode, follows a
                        // link, refuses a directory and truncates the file if it may.
                        Err(Errno::EEXIST) if !exclusive => return Err(Errno::ESTALE),
                        created => created?,
                    };
                    opened = Some(file);
                    Ok(dentry)
                })?;
                let file = opened.ok_or(Errno::EIO)?;
                Ok((entry, conn.insert_file(file, charge, flags)))
            });
            answer!(reply, done, (entry, fh) => {
                // The answer has one time for both, and the shorter one would cost a look-up of each new file that
                // is used again. The kernel asks for the attributes after its own changes, and is told of others'
                // changes, except stores into mappings and changes by another name.
                let ttl = entry.name_ttl;
                reply.created(&ttl, &entry.attr, entry.generation, fh, conn.open_flags());
            });
        });
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: Fh,
        offset: u64,
        size: u32,
        flags: RawFlags,
        lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let request = ReadRequest {
            file: FileId::new(ino, fh),
            pos: offset,
            size,
            // A read for a program names a lock owner; one of the kernel's cache does not.
            from_cache: lock_owner.is_none(),
            uncached: flags.0 & O_DIRECT != 0,
        };
        self.read(request, reply);
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: Fh,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: RawFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let request = WriteRequest {
            file: FileId::new(ino, fh),
            pos: offset,
            how: write_flags,
            flags: flags.0,
            ctx: context(req, 0),
        };
        self.write(request, data, reply);
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        fh: Fh,
        _: RawFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.serve_empty(Lane::Io, "release", reply, move |conn| {
            conn.do_release(fh.0);
            Ok(())
        });
    }

    fn flush(&self, _: &Request, ino: INodeNo, fh: Fh, _: LockOwner, reply: ReplyEmpty) {
        if !self.conn.writes_at_close {
            // From now on the kernel closes files without a request.
            return reply.error(fuser::Errno::ENOSYS);
        }
        let file = FileId::new(ino, fh);
        self.serve_empty(Lane::Io, "flush", reply, move |conn| conn.do_flush(file));
    }

    fn fsync(&self, _: &Request, ino: INodeNo, fh: Fh, datasync: bool, reply: ReplyEmpty) {
        let file = FileId::new(ino, fh);
        self.serve_empty(Lane::Io, "fsync", reply, move |conn| {
            let handle = conn.file(file, false)?;
            if datasync {
                handle.file.fdatasync()
            } else {
                handle.file.fsync()
            }
        });
    }

    fn opendir(&self, _: &Request, ino: INodeNo, _: RawFlags, reply: ReplyOpen) {
        if self.conn.kernel_lists() {
            return reply.error(fuser::Errno::ENOSYS);
        }
        self.serve(Lane::Names, move |conn| {
            let done = conn.attempt("opendir", || {
                Ok(Fh(conn.directories.insert(conn.open_directory(ino)?)))
            });
            answer!(reply, done, fh => reply.opened(fh, FopenFlags::empty()));
        });
    }

    fn readdir(&self, req: &Request, ino: INodeNo, fh: Fh, offset: u64, mut reply: ReplyDirectory) {
        self.conn.linking.asks_again(req.pid());
        self.serve(Lane::Names, move |conn| {
            let done = conn.attempt("readdir", || {
                conn.list((ino, fh), offset, |handle, at| {
                    let read = handle.directory.read(*at, &mut |entry| {
                        let (ino, kind) = (INodeNo(entry.ino), convert::file_type(entry.kind));
                        let full = reply.add(ino, entry.next_offset, kind, entry.name);
                        if !full {
                            *at = entry.next_offset;
                        }
                        !full
                    });
                    match read {
                        // The next reply starts with the error.
                        Err(_) if *at != offset => Ok(()),
                        read => read,
                    }
                })
            });
            answer!(reply, done, () => reply.ok());
        });
    }

    fn readdirplus(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: Fh,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let thread = req.pid();
        self.serve(Lane::Names, move |conn| {
            let telling = conn.linking.begin(ino.0, thread);
            let done = conn.attempt("readdirplus", || {
                conn.pruner.wait_for_room(&conn.names);
                conn.list((ino, fh), offset, |handle, at| {
                    conn.fill_plus(handle, at, &telling, &mut reply)
                })
            });
            answer!(reply, done, () => {
                reply.ok();
                telling.sent();
            });
        });
    }

    fn releasedir(&self, _: &Request, _: INodeNo, fh: Fh, _: RawFlags, reply: ReplyEmpty) {
        self.serve_empty(Lane::Names, "releasedir", reply, move |conn| {
            drop(conn.directories.remove(fh.0));
            Ok(())
        });
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, fh: Fh, _: bool, reply: ReplyEmpty) {
        self.serve_empty(Lane::Io, "fsyncdir", reply, move |conn| match fh.0 {
            NO_HANDLE => conn.open_directory(ino)?.directory.fsync(),
            number => conn.directories.get(number)?.directory.fsync(),
        });
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        self.serve(Lane::Names, move |conn| {
            let done = conn.attempt("statfs", || conn.fs().statfs());
            answer!(reply, done, stat => reply.statfs(
                stat.blocks,
                stat.blocks_free,
                stat.blocks_available,
                stat.files,
                stat.files_free,
                stat.block_size,
                stat.max_name,
                stat.block_size,
            ));
        });
    }

    fn setxattr(
        &self,
        _: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let (name, value) = (name.to_owned(), value.to_vec());
        self.serve_empty(Lane::Io, "setxattr", reply, move |conn| {
            let mode = match flags {
                0 => XattrMode::Set,
                1 => XattrMode::Create,
                2 => XattrMode::Replace,
                _ => return Err(Errno::EINVAL),
            };
            conn.fs()
                .setxattr(&conn.inode(ino)?, &name, Some(&value), mode)
        });
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let name = name.to_owned();
        self.serve(Lane::Names, move |conn| {
            let done = conn.attempt("getxattr", || {
                if conn.shown.hides_lists() && is_acl(&name) {
                    return Err(Errno::ENODATA);
                }
                match conn.fs().getxattr(&conn.inode(ino)?, &name) {
                    // The kernel asks when it checks permissions: a file system without lists has
                    // none to apply.
                    Err(Errno::EOPNOTSUPP) if is_acl(&name) => Err(Errno::ENODATA),
                    // While SELinux is on the kernel answers by itself. `ls` asks this for each file until it hears
                    // that there are no labels. A policy may ask it of the root at mount time, to learn whether
                    // there are labels at all.
                    Err(Errno::ENODATA) if name == "security.selinux" && ino != INodeNo::ROOT => {
                        Err(Errno::EOPNOTSUPP)
                    }
                    done => done,
                }
            });
            answer!(reply, done, value => answer_xattr(&value, size, reply));
        });
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let is_root = req.uid() == 0;
        self.serve(Lane::Names, move |conn| {
            let done = conn.attempt("listxattr", || {
                let names = conn.fs().listxattr(&conn.inode(ino)?)?;
                Ok(list_of_xattrs(&names, is_root))
            });
            answer!(reply, done, list => answer_xattr(&list, size, reply));
        });
    }

    fn removexattr(&self, _: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_owned();
        self.serve_empty(Lane::Io, "removexattr", reply, move |conn| {
            conn.fs()
                .setxattr(&conn.inode(ino)?, &name, None, XattrMode::Set)
        });
    }

    fn fallocate(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: Fh,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let ctx = context(req, 0);
        self.serve_empty(Lane::Io, "fallocate", reply, move |conn| {
            conn.do_fallocate(&ctx, FileId::new(ino, fh), offset, length, mode)
        });
    }

    fn lseek(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: Fh,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        self.serve(Lane::Io, move |conn| {
            let file = FileId::new(ino, fh);
            let done = conn.attempt("lseek", || conn.do_lseek(file, offset, whence));
            answer!(reply, done, found => reply.offset(found));
        });
    }

    fn copy_file_range(
        &self,
        req: &Request,
        ino_in: INodeNo,
        fh_in: Fh,
        offset_in: u64,
        ino_out: INodeNo,
        fh_out: Fh,
        offset_out: u64,
        len: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let ctx = context(req, 0);
        self.serve(Lane::Io, move |conn| {
            let from = (FileId::new(ino_in, fh_in), offset_in);
            let to = (FileId::new(ino_out, fh_out), offset_out);
            let done = conn.attempt("copy_file_range", || conn.do_copy(&ctx, from, to, len));
            answer!(reply, done, n => reply.written(n));
        });
    }
}
