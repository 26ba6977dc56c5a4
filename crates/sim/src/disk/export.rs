//! A disk as the only file of a small FUSE file system.
//!
//! # Model
//!
//! A loop device over the file turns a read, a write, a flush and a discard of the block layer into a FUSE
//! `READ`, `WRITE`, `FSYNC` and `FALLOCATE`. The file is opened for direct I/O and there is no writeback cache, so each
//! write is in the log when the block layer hears that it is done, and a flush comes after the writes that
//! it covers.
//!
//! An operation that no rule of faults can touch is done by the thread that reads requests. While there are
//! rules, each operation gets a thread, so that one that hangs holds up no other.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use foliocache_sync::Mutex;
use foliocache_sys::Errno;
use fuser::{
    Config, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyWrite, Request, WriteFlags,
};

use super::log::{Entry, Log};
use crate::faults::Outcome;
use crate::{Faults, OpKind};

/// The name of the file.
pub(super) const NAME: &str = "disk";

/// Most bytes of one request; the kernel allows no more.
const MAX_REQUEST: u32 = 1 << 20;

/// The file, by the numbers that FUSE has for it and for its directory.
const FILE: INodeNo = INodeNo(2);

const FOREVER: Duration = Duration::from_secs(1 << 20);

/// Modes of `fallocate`.
const PUNCH_HOLE: i32 = 2;
const ZERO_RANGE: i32 = 16;

/// One disk: its log and its plan of faults.
#[derive(Debug)]
pub(super) struct Drive {
    pub(super) size: u64,
    pub(super) log: Mutex<Log>,
    pub(super) faults: Faults,
}

impl Drive {
    /// Runs one operation under the plan of faults.
    fn run(
        &self,
        kind: OpKind,
        pos: u64,
        len: u64,
        body: impl FnOnce(&mut Log, Outcome) -> Result<u64, Errno>,
    ) -> Result<u64, Errno> {
        self.faults.run(kind, pos, len, |outcome| match outcome {
            Outcome::Fails(errno) => Err(errno),
            outcome => body(&mut self.log.lock(), outcome),
        })
    }

    fn read(&self, pos: u64, len: u32) -> Result<Vec<u8>, Errno> {
        let len = u64::from(len).min(self.size.saturating_sub(pos));
        let mut bytes = vec![0; len as usize];
        let done = self.run(OpKind::Read, pos, len, |log, outcome| match outcome {
            Outcome::Torn(errno, _) | Outcome::Loses(errno, _) => Err(errno),
            Outcome::Short(most) => {
                log.live().read(pos, &mut bytes[..most as usize]);
                Ok(most)
            }
            _ => {
                log.live().read(pos, &mut bytes);
                Ok(len)
            }
        })?;
        bytes.truncate(done as usize);
        Ok(bytes)
    }

    fn write(&self, pos: u64, data: &[u8]) -> Result<u64, Errno> {
        let len = data.len() as u64;
        if pos.saturating_add(len) > self.size {
            return Err(Errno::EFBIG);
        }
        self.run(OpKind::Write, pos, len, |log, outcome| {
            let take = match outcome {
                Outcome::Lies => {
                    log.push(Entry::Nothing);
                    return Ok(len);
                }
                Outcome::Torn(errno, seed) => {
                    log.push_torn(pos, data, seed);
                    return Err(errno);
                }
                Outcome::Loses(errno, _) => return Err(errno),
                Outcome::Short(most) => most,
                _ => len,
            };
            let data = data[..take as usize].into();
            log.push(Entry::Write { pos, data });
            Ok(take)
        })
    }

    fn zero(&self, pos: u64, len: u64) -> Result<u64, Errno> {
        let len = len.min(self.size.saturating_sub(pos));
        self.run(OpKind::PunchHole, pos, len, |log, outcome| match outcome {
            Outcome::Torn(errno, _) | Outcome::Loses(errno, _) => Err(errno),
            Outcome::Lies => Ok(len),
            _ => {
                log.push(Entry::Zero { pos, len });
                Ok(len)
            }
        })
    }

    fn flush(&self) -> Result<u64, Errno> {
        self.run(OpKind::Flush, 0, 0, |log, outcome| match outcome {
            Outcome::Torn(errno, _) => Err(errno),
            Outcome::Loses(errno, lost) => {
                log.lose(lost);
                Err(errno)
            }
            Outcome::Lies => {
                log.push(Entry::Nothing);
                Ok(0)
            }
            _ => {
                log.push(Entry::Flush);
                Ok(0)
            }
        })
    }
}

/// The file system around a disk.
#[derive(Debug)]
pub(super) struct Export(pub(super) Arc<Drive>);

impl Export {
    /// The options of the mount.
    pub(super) fn config() -> Config {
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName("foliocache-disk".to_owned()),
            MountOption::NoExec,
            MountOption::NoAtime,
        ];
        config
    }

    /// Runs `work` here, or in a thread if it may have to wait.
    fn run(&self, work: impl FnOnce(&Drive) + Send + 'static) {
        if !self.0.faults.has_rules() {
            return work(&self.0);
        }
        let drive = Arc::clone(&self.0);
        std::thread::spawn(move || work(&drive));
    }

    fn attributes(&self, ino: INodeNo) -> FileAttr {
        let (kind, perm, size) = match ino {
            FILE => (FileType::RegularFile, 0o600, self.0.size),
            _ => (FileType::Directory, 0o700, 0),
        };
        let time = SystemTime::UNIX_EPOCH;
        FileAttr {
            ino,
            size,
            blocks: size / 512,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

fn code(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno.raw())
}

impl Filesystem for Export {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Older kernels lack it, and work without it.
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        let _ = config.add_capabilities(InitFlags::FUSE_MAX_PAGES);
        let _ = config.set_max_write(MAX_REQUEST);
        let _ = config.set_max_background(64);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == INodeNo::ROOT && name == NAME {
            reply.entry(&FOREVER, &self.attributes(FILE), Generation(0));
        } else {
            reply.error(fuser::Errno::ENOENT);
        }
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&FOREVER, &self.attributes(ino));
    }

    fn open(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        reply.opened(FileHandle(0), flags);
    }

    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.run(move |drive| match drive.read(offset, size) {
            Ok(bytes) => reply.data(&bytes),
            Err(errno) => reply.error(code(errno)),
        });
    }

    fn write(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let data: Arc<[u8]> = data.into();
        self.run(move |drive| match drive.write(offset, &data) {
            Ok(bytes) => reply.written(bytes as u32),
            Err(errno) => reply.error(code(errno)),
        });
    }

    fn fsync(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.run(move |drive| answer(drive.flush(), reply));
    }

    fn fallocate(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        if mode & (PUNCH_HOLE | ZERO_RANGE) == 0 {
            return reply.error(fuser::Errno::EOPNOTSUPP);
        }
        self.run(move |drive| answer(drive.zero(offset, length), reply));
    }

    fn flush(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }
}

fn answer(result: Result<u64, Errno>, reply: ReplyEmpty) {
    match result {
        Ok(_) => reply.ok(),
        Err(errno) => reply.error(code(errno)),
    }
}
