//! Files for which the kernel reports writes by others.
//!
//! # Model
//!
//! A file that is made durable again and again while it is open for writing, as a log is, is *marked* until its last writer
//! closes it. For a marked file the source need not be asked whether a change was ours: the queue is read, and says
//! whether another process wrote. So its times are not set and looked at with each flush. Writes of this process past the cache differ
//! from ours by their time: the queue is read before each change of ours, and after it.
//!
//! The kernel does not report stores through a mapping, and asynchronous I/O of others (`io_submit`).
//!
//! A report is an event of the file's [`Coherence`](crate::coherence::Coherence), which draws the conclusion.
//!
//! # Invariants
//!
//! 1. A file has one [`MarkedFile`] at most, in `files` as long as it is there.
//! 2. Events that were read from the queue are counted before the lock is let go. So a thread that finds the queue empty finds everything
//!    counted.
//!
//! # Locking
//!
//! The lock of `queue` is a leaf. Calls that it is held over do not wait.

use foliocache_mm::{MetadataCharge, Mm};
use foliocache_sync::Arc;
use foliocache_sync::rank::{LeafMutex, RankedMutexGuard};
use foliocache_sys::Errno;
use foliocache_sys::fanotify::{Event, Fanotify, FileHandle};
use foliocache_sys::fd::{AsFd, OwnedFd};
use std::collections::HashMap;

/// The memory that the kernel takes for a watch or a mark, about, and for the inode that it keeps.
pub(super) const WATCH_BYTES: u64 = 1536;

/// The marked files of a file system.
pub(super) struct Writers {
    queue: LeafMutex<Queue>,
    mm: Arc<Mm>,
    /// The device of the source: handles of another one's files may be the same.
    dev: u64,
}

#[derive(Default)]
struct Queue {
    /// Made with the first mark.
    fanotify: Option<Fanotify>,
    files: HashMap<FileHandle, Told>,
}

/// The events of a file.
#[derive(Clone, Copy, Default)]
struct Told {
    /// How often others wrote to it, or this process past the cache.
    others: u64,
    /// Changes of ours that are under way, and one while the file is being marked.
    ours: u32,
}

impl Queue {
    /// Counts what is in the queue.
    fn read(&mut self) {
        let Queue { fanotify, files } = self;
        if let Some(fanotify) = fanotify {
            let mut lost = false;
            let read = fanotify.read(|event| match event {
                Event::Overflow => lost = true,
                Event::Written { file, by_us } => match files.get_mut(file) {
                    Some(told) if by_us && told.ours > 0 => {}
                    Some(told) => told.others += 1,
                    // Of a file whose mark has ended, or the kernel calls it otherwise in events.
                    None => lost |= !by_us,
                },
            });
            if lost || read.is_err() {
                files.values_mut().for_each(|told| told.others += 1);
            }
        }
    }
}

impl Writers {
    pub(super) fn new(mm: &Arc<Mm>, dev: u64) -> Writers {
        Writers {
            queue: LeafMutex::default(),
            mm: mm.clone(),
            dev,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.queue.lock().files.len()
    }

    /// The charge for the marks.
    pub(super) fn bytes(&self) -> u64 {
        self.len() as u64 * WATCH_BYTES
    }

    /// Marks the file that `fd` is open for, on device `dev`. A write of this process is taken for ours until
    /// [`MarkedFile::end_change`].
    ///
    /// # Errors
    /// `EEXIST` if it is marked, `EAGAIN` if the bound has no room for the mark now, those of [`Fanotify::new`] and
    /// [`Fanotify::mark`].
    pub(super) fn mark(self: &Arc<Self>, fd: &Arc<OwnedFd>, dev: u64) -> Result<MarkedFile, Errno> {
        if dev != self.dev {
            return Err(Errno::EOPNOTSUPP);
        }
        self.mm.check_fork()?;
        let charge = MetadataCharge::at_once(&self.mm, WATCH_BYTES)?;
        let mut queue = self.queue.lock();
        let fanotify = match queue.fanotify.take() {
            Some(fanotify) => fanotify,
            None => Fanotify::new()?,
        };
        let handle = queue.fanotify.insert(fanotify).mark(fd.as_fd())?;
        if queue.files.contains_key(&handle) {
            return Err(Errno::EEXIST);
        }
        let told = Told { others: 0, ours: 1 };
        queue.files.insert(handle.clone(), told);
        Ok(MarkedFile {
            writers: self.clone(),
            handle,
            fd: fd.clone(),
            _charge: charge,
        })
    }
}

/// A file whose writers the kernel reports. The drop ends that.
pub(super) struct MarkedFile {
    writers: Arc<Writers>,
    handle: FileHandle,
    fd: Arc<OwnedFd>,
    _charge: MetadataCharge,
}

impl MarkedFile {
    /// How often others were told to have written, by now. Does not wait.
    ///
    /// Context: `io` not held.
    pub(super) fn written_by_others(&self) -> u64 {
        self.told(|_| ()).others
    }

    /// Reads the queue, and has `change` change what is known of this file; what that is then.
    fn told(&self, change: impl FnOnce(&mut Told)) -> Told {
        let mut queue = self.writers.queue.lock();
        // A child's events are the parent's to read.
        if self.writers.mm.check_fork().is_ok() {
            queue.read();
        }
        let told = queue.files.get_mut(&self.handle);
        told.map_or_else(Told::default, |told| {
            change(told);
            *told
        })
    }

    fn unmark(&self, queue: &RankedMutexGuard<'_, Queue>) {
        if let Some(fanotify) = &queue.fanotify
            && self.writers.mm.check_fork().is_ok()
        {
            fanotify.unmark(self.fd.as_fd());
        }
    }

    /// Ends the reports. Returns how often others had written by now.
    ///
    /// Context: `io` not held.
    pub(super) fn end(&self) -> u64 {
        self.unmark(&self.writers.queue.lock());
        self.written_by_others()
    }

    /// The file gets the mark, while `under_way` changes of ours are.
    ///
    /// Context: `io` held.
    pub(super) fn count_under_way(&self, under_way: u32) {
        if let Some(told) = self.writers.queue.lock().files.get_mut(&self.handle) {
            told.ours += under_way;
        }
    }

    /// A change of ours begins. Context: `io` not held.
    pub(super) fn begin_change(&self) {
        self.told(|told| told.ours += 1);
    }

    /// A change of ours is over, or the marking. Context: `io` not held.
    pub(super) fn end_change(&self) {
        self.told(|told| told.ours -= 1);
    }
}

impl Drop for MarkedFile {
    fn drop(&mut self) {
        let mut queue = self.writers.queue.lock();
        self.unmark(&queue);
        queue.files.remove(&self.handle);
    }
}
