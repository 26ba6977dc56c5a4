//! Each request of the kernel, as one call of the file system and one answer.
//!
//! # Model
//!
//! Nothing is decided here: arguments are turned into those of the file system, results into what
//! the kernel is told. What needs more than that is in `front` and `data`.

use crate::convert;
use crate::front::{Front, TTL, context, creation_context};
use crate::handles::DirHandle;
use crate::mount::KernelCache;
use foliocache_sys::Errno;
use foliocache_vfs::{Device, OpenFlags, PERMISSION_BITS, RenameMode, SetAttr, XattrMode};
use fuser::{
    FileHandle as Fh, FopenFlags, INodeNo, InitFlags, KernelConfig, LockOwner, RenameFlags,
    Request, TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::path::Path;
use std::time::SystemTime;

const O_EXCL: i32 = 0o200;
const O_APPEND: i32 = 0o2000;

/// Sends `Ok` on with `$ok`, an error with `reply.error`.
macro_rules! answer {
    ($reply:ident, $done:expr, $value:pat => $ok:expr) => {
        match $done {
            Ok($value) => $ok,
            Err(error) => $reply.error(error),
        }
    };
}

impl fuser::Filesystem for Front {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Not FUSE_ATOMIC_O_TRUNC: files would be cut by an open that the kernel refuses only
        // afterwards, such as that of a program that runs.
        let optional = [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_AUTO_INVAL_DATA,
            // Access control lists count where permissions are checked, and umasks come to us.
            InitFlags::FUSE_POSIX_ACL,
            InitFlags::FUSE_DONT_MASK,
        ];
        for flag in optional {
            if config.add_capabilities(flag).is_err() {
                tracing::debug!(?flag, "not offered by this kernel");
            }
        }
        if config
            .add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP)
            .is_err()
            && self.kernel_cache == KernelCache::Mapped
        {
            tracing::warn!("this kernel maps files only through its own cache: data is held twice");
            self.kernel_cache = KernelCache::All;
        }
        // Both only fail for values out of range, which these are not.
        let _ = config.set_max_write(crate::mount::MAX_REQUEST);
        let _ = config.set_max_background(64);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: fuser::ReplyEntry) {
        let done = self.attempt("lookup", || {
            let dir = self.directory_to_tell_of(parent)?;
            self.entry(&self.names.lookup_name(&dir, name)?)
        });
        answer!(reply, done, (attr, generation) => reply.entry(&TTL, &attr, generation));
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        let _ = self.attempt("forget", || {
            self.nodes.forget(&self.names, ino.0, nlookup);
            Ok(())
        });
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<Fh>, reply: fuser::ReplyAttr) {
        let done = self.attempt("getattr", || self.fs().getattr(&self.inode(ino)?));
        answer!(reply, done, attr => reply.attr(&TTL, &convert::attr(&attr)));
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
        _ctime: Option<SystemTime>,
        _fh: Option<Fh>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: fuser::ReplyAttr,
    ) {
        let done = self.attempt("setattr", || {
            let set = SetAttr {
                mode: mode.map(|mode| mode & PERMISSION_BITS),
                uid,
                gid,
                size,
                atime: atime.map(convert::set_time),
                mtime: mtime.map(convert::set_time),
            };
            self.fs().setattr(&context(req), &self.inode(ino)?, &set)
        });
        answer!(reply, done, attr => reply.attr(&TTL, &convert::attr(&attr)));
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: fuser::ReplyData) {
        let done = self.attempt("readlink", || self.fs().readlink(&self.inode(ino)?));
        answer!(reply, done, target => reply.data(target.as_encoded_bytes()));
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: fuser::ReplyEntry,
    ) {
        let done = self.attempt("mknod", || {
            let dir = self.directory_to_tell_of(parent)?;
            let (kind, rdev) = (convert::kind_of_mode(mode), Device::from_raw(rdev.into()));
            let mode = mode & PERMISSION_BITS;
            let ctx = creation_context(req, umask);
            let names = &self.names;
            self.entry_of(names.mknod(&ctx, &dir, name, kind, mode, rdev, None)?)
        });
        answer!(reply, done, (attr, generation) => reply.entry(&TTL, &attr, generation));
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: fuser::ReplyEntry,
    ) {
        let done = self.attempt("mkdir", || {
            let dir = self.directory_to_tell_of(parent)?;
            let mode = mode & PERMISSION_BITS;
            let ctx = creation_context(req, umask);
            self.entry_of(self.names.mkdir(&ctx, &dir, name, mode, None)?)
        });
        answer!(reply, done, (attr, generation) => reply.entry(&TTL, &attr, generation));
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: fuser::ReplyEmpty) {
        let done = self.attempt("unlink", || {
            self.names.unlink(&self.directory(parent)?, name, None)
        });
        answer!(reply, done, () => reply.ok());
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: fuser::ReplyEmpty) {
        let done = self.attempt("rmdir", || {
            self.names.rmdir(&self.directory(parent)?, name, None)
        });
        answer!(reply, done, () => reply.ok());
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        link_name: &OsStr,
        target: &Path,
        reply: fuser::ReplyEntry,
    ) {
        let done = self.attempt("symlink", || {
            let (ctx, dir) = (context(req), self.directory_to_tell_of(parent)?);
            let target = target.as_os_str();
            self.entry_of(self.names.symlink(&ctx, &dir, link_name, target, None)?)
        });
        answer!(reply, done, (attr, generation) => reply.entry(&TTL, &attr, generation));
    }

    fn rename(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: fuser::ReplyEmpty,
    ) {
        let done = self.attempt("rename", || {
            let mode = if flags.is_empty() {
                RenameMode::Replace
            } else if flags == RenameFlags::RENAME_NOREPLACE {
                RenameMode::NoReplace
            } else if flags == RenameFlags::RENAME_EXCHANGE {
                RenameMode::Exchange
            } else {
                return Err(Errno::EINVAL);
            };
            let (from, to) = (self.directory(parent)?, self.directory(newparent)?);
            self.names.rename(&from, name, &to, newname, mode, None)
        });
        answer!(reply, done, () => reply.ok());
    }

    fn link(
        &self,
        _req: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: fuser::ReplyEntry,
    ) {
        let done = self.attempt("link", || {
            let (inode, dir) = (self.inode(ino)?, self.directory(newparent)?);
            self.entry_of(self.names.link(&inode, &dir, newname, None)?)
        });
        answer!(reply, done, (attr, generation) => reply.entry(&TTL, &attr, generation));
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: fuser::OpenFlags, reply: fuser::ReplyOpen) {
        let done = self.attempt("open", || {
            // An open file takes memory, too.
            self.pruner.wait_for_room(&self.names);
            let inode = self.inode(ino)?;
            // Whether a write appends is said with each write, because it can be changed.
            let flags = OpenFlags::from_raw(flags.0 & !O_APPEND);
            let file = self.fs().open(&context(req), &inode, flags)?;
            Ok(self.insert_file(file))
        });
        answer!(reply, done, fh => reply.opened(fh, self.open_flags()));
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: fuser::ReplyCreate,
    ) {
        let done = self.attempt("create", || {
            let dir = self.directory_to_tell_of(parent)?;
            let mode = mode & PERMISSION_BITS;
            let exclusive = flags & O_EXCL != 0;
            let flags = OpenFlags::from_raw(flags & !O_APPEND);
            let ctx = creation_context(req, umask);
            let created = self.names.create(&ctx, &dir, name, mode, flags, true, None);
            let (file, dentry) = match created {
                // The kernel found no such name, so it has checked the directory alone. `ESTALE`
                // makes it look the name up again and open the file as `open` does: it checks the
                // mode, follows a link, refuses a directory and cuts the file where it may.
                Err(Errno::EEXIST) if !exclusive => return Err(Errno::ESTALE),
                created => created?,
            };
            Ok((self.entry_of(dentry)?, self.insert_file(file)))
        });
        answer!(reply, done, ((attr, generation), fh) => {
            reply.created(&TTL, &attr, generation, fh, self.open_flags());
        });
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: Fh,
        offset: u64,
        size: u32,
        _flags: fuser::OpenFlags,
        lock_owner: Option<LockOwner>,
        reply: fuser::ReplyData,
    ) {
        // A read on somebody's behalf names the owner of the locks; the kernel's cache has none.
        self.do_read(fh.0, offset, size, lock_owner.is_none(), reply);
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: Fh,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: fuser::OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: fuser::ReplyWrite,
    ) {
        let done = self.attempt("write", || {
            self.do_write(fh.0, offset, data, write_flags, flags.0)
        });
        answer!(reply, done, n => reply.written(n));
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: Fh,
        _flags: fuser::OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: fuser::ReplyEmpty,
    ) {
        let done = self.attempt("release", || {
            self.do_release(fh.0);
            Ok(())
        });
        answer!(reply, done, () => reply.ok());
    }

    fn fsync(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: Fh,
        datasync: bool,
        reply: fuser::ReplyEmpty,
    ) {
        let done = self.attempt("fsync", || {
            let handle = self.files.get(fh.0)?;
            if datasync {
                handle.file.fdatasync()
            } else {
                handle.file.fsync()
            }
        });
        answer!(reply, done, () => reply.ok());
    }

    fn opendir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _flags: fuser::OpenFlags,
        reply: fuser::ReplyOpen,
    ) {
        let done = self.attempt("opendir", || {
            let dentry = self.directory(ino)?;
            let directory = self.fs().opendir(&self.inode(ino)?)?;
            Ok(Fh(self.directories.insert(DirHandle { dentry, directory })))
        });
        answer!(reply, done, fh => reply.opened(fh, FopenFlags::empty()));
    }

    fn readdir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: Fh,
        offset: u64,
        mut reply: fuser::ReplyDirectory,
    ) {
        let done = self.attempt("readdir", || {
            let handle = self.directories.get(fh.0)?;
            handle.directory.read(offset, &mut |entry| {
                let kind = convert::file_type(entry.kind);
                !reply.add(INodeNo(entry.ino), entry.next_offset, kind, entry.name)
            })
        });
        answer!(reply, done, () => reply.ok());
    }

    fn readdirplus(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: Fh,
        offset: u64,
        mut reply: fuser::ReplyDirectoryPlus,
    ) {
        let done = self.attempt("readdirplus", || {
            self.pruner.wait_for_room(&self.names);
            let handle = self.directories.get(fh.0)?;
            self.fill_plus(&handle, offset, &mut reply)
        });
        answer!(reply, done, () => reply.ok());
    }

    fn releasedir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: Fh,
        _flags: fuser::OpenFlags,
        reply: fuser::ReplyEmpty,
    ) {
        let done = self.attempt("releasedir", || {
            drop(self.directories.remove(fh.0));
            Ok(())
        });
        answer!(reply, done, () => reply.ok());
    }

    fn fsyncdir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: Fh,
        _datasync: bool,
        reply: fuser::ReplyEmpty,
    ) {
        let done = self.attempt("fsyncdir", || self.directories.get(fh.0)?.directory.fsync());
        answer!(reply, done, () => reply.ok());
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: fuser::ReplyStatfs) {
        let done = self.attempt("statfs", || self.fs().statfs());
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
    }

    fn setxattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: fuser::ReplyEmpty,
    ) {
        let done = self.attempt("setxattr", || {
            let mode = match flags {
                0 => XattrMode::Set,
                1 => XattrMode::Create,
                2 => XattrMode::Replace,
                _ => return Err(Errno::EINVAL),
            };
            self.fs().setxattr(&self.inode(ino)?, name, value, mode)
        });
        answer!(reply, done, () => reply.ok());
    }

    fn getxattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        name: &OsStr,
        size: u32,
        reply: fuser::ReplyXattr,
    ) {
        let done = self.attempt("getxattr", || {
            match self.fs().getxattr(&self.inode(ino)?, name) {
                // The kernel asks when it checks permissions: where there are no lists, none counts.
                Err(Errno::EOPNOTSUPP) if is_acl(name) => Err(Errno::ENODATA),
                done => done,
            }
        });
        answer!(reply, done, value => answer_xattr(&value, size, reply));
    }

    fn listxattr(&self, _req: &Request, ino: INodeNo, size: u32, reply: fuser::ReplyXattr) {
        let done = self.attempt("listxattr", || {
            let mut list = Vec::new();
            for name in self.fs().listxattr(&self.inode(ino)?)? {
                list.extend_from_slice(name.as_encoded_bytes());
                list.push(0);
            }
            Ok(list)
        });
        answer!(reply, done, list => answer_xattr(&list, size, reply));
    }

    fn removexattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, reply: fuser::ReplyEmpty) {
        let done = self.attempt("removexattr", || {
            self.fs().removexattr(&self.inode(ino)?, name)
        });
        answer!(reply, done, () => reply.ok());
    }

    fn fallocate(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: Fh,
        offset: u64,
        length: u64,
        mode: i32,
        reply: fuser::ReplyEmpty,
    ) {
        let done = self.attempt("fallocate", || {
            self.do_fallocate(fh.0, offset, length, mode)
        });
        answer!(reply, done, () => reply.ok());
    }

    fn lseek(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: Fh,
        offset: i64,
        whence: i32,
        reply: fuser::ReplyLseek,
    ) {
        let done = self.attempt("lseek", || self.do_lseek(fh.0, offset, whence));
        answer!(reply, done, found => reply.offset(found));
    }

    fn copy_file_range(
        &self,
        _req: &Request,
        _ino_in: INodeNo,
        fh_in: Fh,
        offset_in: u64,
        _ino_out: INodeNo,
        fh_out: Fh,
        offset_out: u64,
        len: u64,
        _flags: fuser::CopyFileRangeFlags,
        reply: fuser::ReplyWrite,
    ) {
        let done = self.attempt("copy_file_range", || {
            self.do_copy((fh_in.0, offset_in), (fh_out.0, offset_out), len)
        });
        answer!(reply, done, n => reply.written(n));
    }
}

/// Whether this attribute is an access control list.
fn is_acl(name: &OsStr) -> bool {
    name == "system.posix_acl_access" || name == "system.posix_acl_default"
}

/// Size 0 asks for the size alone.
fn answer_xattr(value: &[u8], size: u32, reply: fuser::ReplyXattr) {
    if size == 0 {
        reply.size(value.len() as u32);
    } else if value.len() > size as usize {
        reply.error(fuser::Errno::ERANGE);
    } else {
        reply.data(value);
    }
}
