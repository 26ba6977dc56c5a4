//! Writes to a file: the kernel distinguishes this process's from those of others.
//!
//! # Model
//!
//! One queue, and a mark on the inode of each file. An event is in the queue before the write that caused it
//! returns, whichever name the writer used, and says whether this process wrote. A mark costs only the writers of
//! that file. The queue wakes no thread: a caller reads it before it relies on the answer.
//!
//! Stores through a mapping, and asynchronous I/O (`io_submit`), cause no event. Needs no privilege
//! from Linux 5.13 on.
//!
//! # Differences from Linux
//!
//! No other events are requested.
//!
//! # Safety
//!
//! Each call gets a descriptor that is open, and memory that the caller owns.
#![allow(unsafe_code)]

use crate::Errno;
use crate::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io;
use std::borrow::Borrow;
use std::os::fd::{AsRawFd, FromRawFd};
use std::{process, ptr};

/// Bytes of events that are read at once.
const BUFFER: usize = 4 << 10;
/// Bytes of an event before the file's handle.
const EVENT: usize = 24;
/// Bytes from there to the file's handle.
const INFO: usize = 12;
/// Bytes of a handle before those that the file system chose.
const HANDLE: usize = 8;
const MAX_HANDLE: usize = HANDLE + libc::MAX_HANDLE_SZ as usize;
/// Bytes of the longest event.
const LONGEST: usize = EVENT + INFO + MAX_HANDLE;

/// A file among those of one file system.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FileHandle(Box<[u8]>);

/// An event of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A file was written to, or cut: once for each process that did since the queue was read, in no order.
    Written {
        /// The bytes of its [`FileHandle`].
        file: &'a [u8],
        /// By this process.
        by_us: bool,
    },
    /// Events were lost.
    Overflow,
}

impl Borrow<[u8]> for FileHandle {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

/// A queue of events.
#[derive(Debug)]
pub struct Fanotify {
    fd: OwnedFd,
    /// The process that it was made in.
    pid: u32,
}

impl Fanotify {
    /// An empty queue. Costs a descriptor.
    ///
    /// # Errors
    /// `EMFILE` if the user has too many queues or the process too many descriptors, `EPERM` without privilege before Linux
    /// 5.13, `ENOSYS`, `ENOMEM`.
    pub fn new() -> Result<Fanotify, Errno> {
        let flags =
            libc::FAN_CLASS_NOTIF | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK | libc::FAN_REPORT_FID;
        // SAFETY: takes two numbers.
        let fd = unsafe { libc::fanotify_init(flags, libc::O_RDONLY as libc::c_uint) };
        let fd = Errno::result(fd)?;
        Ok(Fanotify {
            // SAFETY: a new descriptor, which has no other owner.
            fd: unsafe { OwnedFd::from_raw_fd(fd) },
            pid: process::id(),
        })
    }

    /// Marks a file: from now on writes to it are events. Returns the handle that events name the
    /// file by.
    ///
    /// # Errors
    /// `EACCES` for a file that may not be read, `ENOSPC` if the user has no mark left, `EOPNOTSUPP`, `ENODEV` or `EXDEV` for a
    /// file system without handles, `ENOMEM`.
    pub fn mark(&self, file: BorrowedFd<'_>) -> Result<FileHandle, Errno> {
        let handle = handle(file)?;
        self.change(file, libc::FAN_MARK_ADD)?;
        Ok(handle)
    }

    /// Removes a mark. Events that are in the queue stay there.
    pub fn unmark(&self, file: BorrowedFd<'_>) {
        // A file that has none.
        let _ = self.change(file, libc::FAN_MARK_REMOVE);
    }

    fn change(&self, file: BorrowedFd<'_>, how: libc::c_uint) -> Result<(), Errno> {
        let (queue, file) = (self.fd.as_raw_fd(), file.as_raw_fd());
        // SAFETY: two open descriptors; without a path the mark is on the second.
        let marked =
            unsafe { libc::fanotify_mark(queue, how, libc::FAN_MODIFY, file, ptr::null()) };
        Errno::result(marked).map(drop)
    }

    /// Hands over all events that are in the queue by now. Does not wait.
    ///
    /// # Errors
    /// `ENOMEM`; then events may be lost.
    pub fn read(&self, mut each: impl FnMut(Event<'_>)) -> Result<(), Errno> {
        let mut buffer = [0; BUFFER];
        loop {
            let n = match io::read(&self.fd, &mut buffer) {
                Ok(n) => n,
                Err(io::Errno::AGAIN) => return Ok(()),
                Err(io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let mut events = &buffer[..n];
            while events.len() >= EVENT {
                let len = (number(events) as usize).clamp(EVENT, events.len());
                each(self.event(&events[..len]));
                events = &events[len..];
            }
            // Events that did not fit are still in the queue.
            if n + LONGEST <= BUFFER {
                return Ok(());
            }
        }
    }

    fn event<'a>(&self, event: &'a [u8]) -> Event<'a> {
        let mask = u64::from(number(&event[8..])) | u64::from(number(&event[12..])) << 32;
        if mask & libc::FAN_Q_OVERFLOW != 0 {
            return Event::Overflow;
        }
        let by_us = number(&event[20..]) == self.pid;
        let file = event.get(EVENT + INFO..).and_then(handle_in);
        file.map_or(Event::Overflow, |file| Event::Written { file, by_us })
    }
}

/// The number that begins here.
fn number(bytes: &[u8]) -> u32 {
    let first = bytes.first_chunk().copied();
    u32::from_ne_bytes(first.unwrap_or_default())
}

/// The handle that begins here.
fn handle_in(bytes: &[u8]) -> Option<&[u8]> {
    bytes.get(..HANDLE.checked_add(number(bytes) as usize)?)
}

fn handle(file: BorrowedFd<'_>) -> Result<FileHandle, Errno> {
    #[repr(C, align(8))]
    struct Space([u8; MAX_HANDLE]);
    let mut space = Space([0; MAX_HANDLE]);
    space.0[..4].copy_from_slice(&(libc::MAX_HANDLE_SZ as u32).to_ne_bytes());
    let (mut mount, at) = (0, space.0.as_mut_ptr().cast());
    // SAFETY: the path is an empty string, and `space` as large as it says.
    let got = unsafe {
        libc::name_to_handle_at(
            file.as_fd().as_raw_fd(),
            c"".as_ptr(),
            at,
            &mut mount,
            libc::AT_EMPTY_PATH,
        )
    };
    Errno::result(got)?;
    let handle = handle_in(&space.0).ok_or(Errno::EOVERFLOW)?;
    Ok(FileHandle(handle.into()))
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::fs::{self, File, OpenOptions};
    use std::os::unix::fs::FileExt;
    use std::path::Path;
    use std::process::Command;

    /// A queue; `None` where the machine is known to have none.
    fn queue() -> Option<Fanotify> {
        let missing = std::env::var("FOLIOCACHE_MISSING").unwrap_or_default();
        if missing.split(',').any(|name| name == "fanotify") {
            eprintln!("SKIPPED: there is no fanotify");
            return None;
        }
        Some(Fanotify::new().unwrap())
    }

    fn by_shell(dir: &Path, what: &str) {
        let status = Command::new("sh")
            .current_dir(dir)
            .args(["-c", what])
            .status();
        assert!(status.unwrap().success(), "{what}");
    }

    /// Whether it was written by us, for each event; of one file.
    fn events(queue: &Fanotify, wanted: &FileHandle) -> Vec<bool> {
        let mut all = Vec::new();
        let each = |event: Event<'_>| match event {
            Event::Written { file, by_us } if *file == *wanted.0 => all.push(by_us),
            other => panic!("{other:?}"),
        };
        queue.read(each).unwrap();
        all
    }

    #[test]
    fn writes_by_others_are_told_from_ours_by_any_name_until_the_mark_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "12345678").unwrap();
        fs::write(dir.path().join("other"), "12345678").unwrap();
        fs::hard_link(&path, dir.path().join("link")).unwrap();
        let file: File = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        let Some(queue) = queue() else { return };
        let handle = queue.mark(file.as_fd()).unwrap();
        let events = || events(&queue, &handle);
        assert_eq!(events(), []);

        file.write_at(b"x", 0).unwrap();
        file.write_at(b"x", 1).unwrap();
        assert_eq!(events(), [true]);
        by_shell(
            dir.path(),
            "printf x | dd of=file conv=notrunc 2> /dev/null",
        );
        assert_eq!(events(), [false]);
        by_shell(
            dir.path(),
            "printf x > link; printf x > other; cat file > /dev/null",
        );
        assert_eq!(events(), [false]);
        file.write_at(b"x", 0).unwrap();
        by_shell(dir.path(), "printf x >> file");
        file.write_at(b"x", 0).unwrap();
        let told = events();
        assert!(told.contains(&true) && told.contains(&false));

        queue.unmark(file.as_fd());
        by_shell(dir.path(), "printf x >> file");
        assert_eq!(events(), []);
    }

    #[test]
    fn a_file_without_a_handle_is_refused() {
        let Some(queue) = queue() else { return };
        let file = File::open("/proc/self/status").unwrap();
        assert!(queue.mark(file.as_fd()).is_err());
    }
}
