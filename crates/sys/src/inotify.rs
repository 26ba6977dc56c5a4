//! Changes in directories, as the kernel reports them.
//!
//! # Model
//!
//! One queue, and a watch for each directory. An event is in the queue before the call that caused it returns,
//! whichever process called. The queue wakes no thread: it is read from time to time, which costs writers of
//! watched files half as much as a reader that sleeps on it.
//!
//! # Differences from Linux
//!
//! None. `docs/guide/sharing.md` lists the changes that cause no event.

use crate::Errno;
use crate::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;

/// Bytes of events that are read at once.
const BUFFER: usize = 16 << 10;

/// A queue of events.
#[derive(Debug)]
pub struct Inotify(OwnedFd);

/// A kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A name was made, or moved from the directory.
    Name,
    /// A name was removed, or a file was moved to it, maybe in the place of another.
    NameLost,
    /// Mode, owner, times or another attribute, of the name or of the directory itself.
    Attributes,
    /// A file was written to, truncated, or closed after it was open for writing.
    Content,
    /// The watch is no more: the directory was removed.
    Ended,
    /// Events were lost, or the file system is unmounted.
    Overflow,
}

/// An event of one watch.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// The number of the watch.
    pub watch: i32,
    /// The kind of the change.
    pub kind: EventKind,
    /// To which name; `None` to the directory itself.
    pub name: Option<&'a OsStr>,
}

impl Inotify {
    /// An empty queue. Costs a descriptor.
    ///
    /// # Errors
    /// `EMFILE` if the user has too many queues or the process too many descriptors, `ENFILE`, `ENOMEM`, `ENOSYS`.
    pub fn new() -> Result<Inotify, Errno> {
        let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        Ok(Inotify(fd))
    }

    /// Watches a directory, which may be open for its path alone. Returns the number of its watch: the same one for
    /// a directory that is watched already, and none that was used before.
    ///
    /// # Errors
    /// `ENOSPC` if the user has no watch left, `ENOENT` without `/proc`, `ENOTDIR`, `EACCES` for a directory that may
    /// not be read, `ENOMEM`.
    pub fn watch(&self, dir: BorrowedFd<'_>) -> Result<i32, Errno> {
        let what = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVE
            | WatchFlags::ATTRIB
            | WatchFlags::MODIFY
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::ONLYDIR;
        let path = format!("/proc/self/fd/{}", dir.as_raw_fd());
        Ok(inotify::add_watch(&self.0, path, what)?)
    }

    /// Ends a watch. One that has ended already is left alone.
    pub fn remove(&self, watch: i32) {
        let _ = inotify::remove_watch(&self.0, watch);
    }

    /// The descriptor, readable when there are events.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Hands over all events that are in the queue by now. Does not wait.
    ///
    /// # Errors
    /// `ENOMEM`; then events may be lost.
    pub fn read(&self, mut each: impl FnMut(Event<'_>)) -> Result<(), Errno> {
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut events = Reader::new(self.0.as_fd(), &mut buffer);
        loop {
            let event = match events.next() {
                Ok(event) => event,
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            each(Event {
                watch: event.wd(),
                kind: kind(event.events()),
                name: event
                    .file_name()
                    .map(|name| OsStr::from_bytes(name.to_bytes())),
            });
        }
    }
}

fn kind(events: ReadFlags) -> EventKind {
    if events.intersects(ReadFlags::QUEUE_OVERFLOW | ReadFlags::UNMOUNT) {
        EventKind::Overflow
    } else if events.contains(ReadFlags::IGNORED) {
        EventKind::Ended
    } else if events.intersects(ReadFlags::ATTRIB) {
        EventKind::Attributes
    } else if events.intersects(ReadFlags::MODIFY | ReadFlags::CLOSE_WRITE) {
        EventKind::Content
    } else if events.intersects(ReadFlags::DELETE | ReadFlags::MOVED_TO) {
        EventKind::NameLost
    } else {
        EventKind::Name
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;
    use std::fs::{self, File};
    use std::time::{Duration, Instant};

    fn events(queue: &Inotify) -> Vec<(EventKind, Option<OsString>)> {
        let mut events = Vec::new();
        queue
            .read(|event| events.push((event.kind, event.name.map(OsStr::to_owned))))
            .expect("a queue");
        events
    }

    #[test]
    fn changes_in_a_directory_are_reported() {
        let dir = tempfile::tempdir().expect("a directory");
        let opened = rustix::fs::open(
            dir.path(),
            rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY,
            rustix::fs::Mode::empty(),
        );
        let opened = opened.expect("a descriptor");
        let queue = Inotify::new().expect("a queue");
        let watch = queue.watch(opened.as_fd()).expect("a watch");
        assert_eq!(queue.watch(opened.as_fd()), Ok(watch));
        assert_eq!(events(&queue), []);

        let name = || Some(OsString::from("a"));
        File::create(dir.path().join("a")).expect("a file");
        assert_eq!(
            events(&queue),
            [(EventKind::Name, name()), (EventKind::Content, name())]
        );
        fs::write(dir.path().join("a"), "x").expect("written");
        assert!(events(&queue).contains(&(EventKind::Content, name())));
        let mut mode = fs::metadata(dir.path().join("a"))
            .expect("it")
            .permissions();
        mode.set_readonly(true);
        fs::set_permissions(dir.path().join("a"), mode).expect("a mode");
        assert_eq!(events(&queue), [(EventKind::Attributes, name())]);
        fs::rename(dir.path().join("a"), dir.path().join("b")).expect("moved");
        assert_eq!(events(&queue).len(), 2);

        fs::remove_file(dir.path().join("b")).expect("removed");
        fs::remove_dir(dir.path()).expect("removed");
        drop(opened);
        // A child that another test has forked may still have the descriptor, and with it the directory.
        let begin = Instant::now();
        while !events(&queue).contains(&(EventKind::Ended, None)) {
            assert!(
                begin.elapsed() < Duration::from_secs(60),
                "the watch has not ended"
            );
            std::thread::yield_now();
        }
        queue.remove(watch);
    }
}
