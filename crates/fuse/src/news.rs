//! Tells the kernel of changes, so that it may believe answers for long.
//!
//! # Model
//!
//! ```text
//!  others ──▶ inotify ──▶ SuperBlock::read_news ──▶ changed ──▶ told ──▶ this thread ──▶ kernel
//!  the library, in this process ─────────────────────▲
//! ```
//!
//! An answer about a name holds for [`LONG`](crate::entry::LONG) if its directory was watched before the file
//! system was asked: the kernel is told of each later change. The thread sleeps until events arrive, waits for
//! [`GATHER`] and reads them all, so that a program with many changes does not wake it for each.
//!
//! The kernel knows the changes that came through it, but the watches report those too. If the kernel were told of
//! a name that it has just made, it would look the name up again, at the price of a request, and the file of a
//! running program would drop out of the tree. So the events that an operation of the mount causes are *expected*
//! ([`Own`]), and only further ones are passed on. An operation's events are in the queue when it returns; the
//! expectation ends with the first reading of the queue that begins later.
//!
//! Changes in an unwatched directory cause no events. There the kernel is told to forget the two things that it
//! would still believe: a listing, which it keeps until the directory's mtime changes, and a name that it moved
//! there, which keeps its long lifetime.
//!
//! # Invariants
//!
//! 1. The kernel is told after the data in memory was doubted, so an answer that the kernel then
//!    asks for is fresh.
//! 2. An answer that is under way when the kernel is told does not last. *Names:* the kernel waits for the requests
//!    in the directory, except revalidations of a directory that it knows. Such an answer compares the counts just
//!    before it is sent; if they changed, its name holds for a short time only. *Attributes:* the kernel drops
//!    attributes that were requested before it was told. If it does not know the inode yet, it is told of the
//!    inode's name, if known; that call waits for the answer. It is told of the inode until it knows it or has
//!    forgotten it. If the inode was not among the nodes yet, the answer itself finds that the counts changed, and
//!    has the kernel told.
//! 3. After lost events the kernel is told of all names and inodes that it knows, and of those
//!    whose answers are under way.
//!
//! # Locking
//!
//! `state` is a leaf. The kernel is told with no lock held, by a thread that serves no requests, because it waits
//! for requests in the directory.
//!
//! # Memory ordering
//!
//! `telling` is stored with `Release` once this is an observer, and loaded with `Acquire` before a directory is
//! watched: later events reach this observer.
//!
//! `losses` and `of_files` are `Relaxed`. An answer reads them after it added its inode to the nodes, and the
//! kernel is told after they were counted. Both take the lock of the node's shard in between: the second one sees
//! the actions of the first.

use crate::device::Device;
use crate::linking::Linking;
use crate::listed::Listed;
use crate::nodes::Nodes;
use foliocache_sync::Arc;
use foliocache_sync::atomic::{AtomicBool, AtomicU32, Ordering};
use foliocache_sync::rank::LeafMutex;
use foliocache_sync::time::{Duration, sleep};
use foliocache_sys::Errno;
use foliocache_sys::clock::coarse_monotonic_ms;
use foliocache_sys::event::Event;
use foliocache_vfs::dcache::DentryRef;
use foliocache_vfs::{Inode, Observer, SlabArc, SuperBlock, Told};
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::ptr;

/// How long events gather before they are read.
const GATHER: Duration = Duration::from_millis(8);

/// A directory's inode number, and a name in it.
type Place = (u64, OsString);

/// Changes of a name by operations of the mount, and the events of them that were seen.
#[derive(Default)]
struct Expected {
    running: u32,
    events: u32,
    seen: u32,
    /// When the last one ended.
    ended: u64,
}

/// News for the kernel.
#[derive(Default)]
struct Untold {
    /// Names to tell; the value is true for directories.
    names: HashMap<Place, bool>,
    /// Inodes to tell, with a name of each.
    inodes: HashMap<u64, Option<Place>>,
    /// Directories whose listings the kernel is to drop.
    listings: HashSet<u64>,
    lost: bool,
}

#[derive(Default)]
struct State {
    own: HashMap<Place, Expected>,
    untold: Untold,
    /// The thread is awake and about to read the state.
    awake: bool,
    stopped: bool,
}

/// The changes that the kernel of one mount is to be told of.
pub(crate) struct News {
    state: LeafMutex<State>,
    wake: Event,
    telling: AtomicBool,
    /// How often events were lost.
    losses: AtomicU32,
    /// How often this process changed a file, or opened it for writing, other than through the
    /// mount.
    of_files: AtomicU32,
    listed: Arc<Listed>,
    linking: Arc<Linking>,
}

thread_local! {
    /// The mount whose request this thread serves.
    static SERVES: Cell<*const News> = const { Cell::new(ptr::null()) };
}

/// Restores the previous value, after a panic too.
struct Serves(*const News);

impl Drop for Serves {
    fn drop(&mut self) {
        SERVES.set(self.0);
    }
}

/// The counts of doubts of a directory, of lost events, and of changes reported for files alone.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct ToldSoFar {
    pub(crate) doubts: u32,
    losses: u32,
    of_files: u32,
}

impl ToldSoFar {
    /// The counts of events that may have changed a name.
    pub(crate) fn of_names(self) -> (u32, u32) {
        (self.doubts, self.losses)
    }
}

/// A change of a name by a request, while it is under way.
pub(crate) struct Own<'a> {
    news: &'a News,
    place: Option<Place>,
    events: u32,
    done: bool,
}

impl Own<'_> {
    /// The change was made.
    pub(crate) fn done(mut self) {
        self.done = true;
    }
}

impl Drop for Own<'_> {
    fn drop(&mut self) {
        let Some(place) = self.place.take() else {
            return;
        };
        let mut state = self.news.state.lock();
        let Some(own) = state.own.get_mut(&place) else {
            return;
        };
        own.running -= 1;
        own.ended = coarse_monotonic_ms();
        if !self.done {
            own.events -= self.events;
            if own.seen > own.events {
                own.seen = own.events;
                self.news.push(&mut state, |untold| {
                    untold.names.insert(place, false);
                });
            }
        }
    }
}

impl News {
    /// Nothing to tell yet. `listed` is told of name changes too.
    ///
    /// # Errors
    /// Those of [`Event::new`].
    pub(crate) fn new(listed: Arc<Listed>, linking: Arc<Linking>) -> Result<News, Errno> {
        Ok(News {
            state: LeafMutex::default(),
            wake: Event::new()?,
            telling: AtomicBool::new(false),
            losses: AtomicU32::new(0),
            of_files: AtomicU32::new(0),
            listed,
            linking,
        })
    }

    /// From now on the kernel is told.
    pub(crate) fn can_tell(&self) {
        // Release: see the module's header.
        self.telling.store(true, Ordering::Release);
    }

    /// Whether the kernel is told of anything.
    pub(crate) fn is_telling(&self) -> bool {
        // Acquire: see the module's header.
        self.telling.load(Ordering::Acquire)
    }

    /// Whether the kernel is told of changes in a directory from now on.
    pub(crate) fn tells_of(&self, names: &SuperBlock, dir: &SlabArc<Inode>) -> bool {
        self.is_telling() && names.is_watched(dir)
    }

    /// Runs a request of this mount.
    pub(crate) fn serving<R>(&self, run: impl FnOnce() -> R) -> R {
        let _serves = Serves(SERVES.replace(self));
        run()
    }

    /// A request is about to change a name, which causes this many events.
    pub(crate) fn own(
        &self,
        names: &SuperBlock,
        dir: &SlabArc<Inode>,
        name: &OsStr,
        events: u32,
    ) -> Own<'_> {
        let told = self.tells_of(names, dir);
        let place = told.then(|| (dir.ino(), name.to_owned()));
        if let Some(place) = &place {
            let mut state = self.state.lock();
            let own = state.own.entry(place.clone()).or_default();
            own.running += 1;
            own.events += events;
        }
        Own {
            news: self,
            place,
            events,
            done: false,
        }
    }

    fn push(&self, state: &mut State, change: impl FnOnce(&mut Untold)) {
        if state.stopped {
            return;
        }
        change(&mut state.untold);
        if !std::mem::replace(&mut state.awake, true) {
            self.wake.set();
        }
    }

    /// As [`News::told_so_far`], before a request asks about the directory.
    pub(crate) fn told_before(&self, names: &SuperBlock, dir: &Inode) -> ToldSoFar {
        // This waits for a reading of events that is under way: it may have counted a doubt of the directory
        // without having doubted its children yet. Counting here, before the request, also keeps the mount's own
        // changes out of the difference.
        names.read_news();
        self.told_so_far(dir)
    }

    /// The counts of changes so far in a directory.
    pub(crate) fn told_so_far(&self, dir: &Inode) -> ToldSoFar {
        ToldSoFar {
            doubts: dir.attributes().doubts(),
            // Relaxed, both: see the module's header.
            losses: self.losses.load(Ordering::Relaxed),
            of_files: self.of_files.load(Ordering::Relaxed),
        }
    }

    /// Has the kernel ask for this inode's attributes again.
    pub(crate) fn forget_attributes(&self, ino: u64) {
        self.push(&mut self.state.lock(), |untold| {
            untold.inodes.entry(ino).or_default();
        });
    }

    /// The kernel has read all of a directory whose changes are not reported: have it read the directory again at
    /// the next listing. It has stored the names before it asks for the end, so this works even if it is told
    /// before the last answer.
    pub(crate) fn forget_listing(&self, dir: u64) {
        self.push(&mut self.state.lock(), |untold| {
            untold.listings.insert(dir);
        });
    }

    /// The kernel moves a name to a directory whose changes are not reported, and keeps the lifetime of the name:
    /// have it ask for name and attributes again. It holds the directory's lock until the name is moved, so it is
    /// told after that.
    pub(crate) fn forget_moved(&self, names: &SuperBlock, dir: &DentryRef<Inode>, name: &OsStr) {
        let Some(within) = dir.inode().filter(|_| self.is_telling()) else {
            return;
        };
        let moved = names.lookup_name(dir, name);
        let place = (within.ino(), name.to_owned());
        self.push(&mut self.state.lock(), |untold| {
            if let Ok(moved) = &moved {
                untold.inodes.insert(moved.inode.ino(), Some(place.clone()));
            }
            untold.names.insert(place, true);
        });
    }

    /// From now on the kernel is not told, and answers hold for a short time.
    pub(crate) fn stop(&self) {
        // Release: see the module's header.
        self.telling.store(false, Ordering::Release);
        let mut state = self.state.lock();
        state.stopped = true;
        let untold = std::mem::take(&mut state.untold);
        drop(state);
        drop(untold);
        self.wake.set();
    }

    /// The thread's work, until [`stop`](Self::stop).
    pub(crate) fn run(&self, names: &SuperBlock, nodes: &Nodes, device: &Device) {
        loop {
            self.wake.wait(names.news_fd());
            let mut state = self.state.lock();
            if state.stopped {
                return;
            }
            state.awake = true;
            drop(state);
            sleep(GATHER);
            names.read_news();
            let told = {
                let mut state = self.state.lock();
                state.awake = false;
                std::mem::take(&mut state.untold)
            };
            for ino in tell(told, nodes, &self.linking, device) {
                self.forget_attributes(ino);
            }
        }
    }
}

/// Whether the kernel knows the inode or name. Other errors are logged and ignored.
fn is_known(done: io::Result<()>) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound};
    let Err(error) = done else {
        return true;
    };
    // A file may have got the number of a directory that is gone.
    let is_known = !matches!(error.kind(), NotFound | NotADirectory);
    if is_known {
        // Most likely the mount is ending.
        tracing::debug!(%error, "the kernel could not be told of a change");
    }
    is_known
}

/// Tells the kernel. Returns the inodes that it must be told of once more, because the answers that
/// introduce them are still under way.
fn tell(told: Untold, nodes: &Nodes, linking: &Linking, device: &Device) -> Vec<u64> {
    let mut on_their_way = Vec::new();
    if told.lost {
        // The kernel does not wait for listings when it forgets all names.
        linking.wait(device);
        is_known(device.forget_all_names());
        for ino in nodes.numbers() {
            if !is_known(device.forget_attributes(ino, true)) && nodes.knows(ino) {
                on_their_way.push(ino);
            }
        }
    }
    for dir in told.listings {
        // If it does not know the directory, it has no listing either.
        is_known(device.forget_attributes(dir, true));
    }
    let dirs: HashSet<u64> = told.names.keys().map(|(dir, _)| *dir).collect();
    for ((dir, name), keep) in told.names {
        if foliocache_sync::planted!(kernel_not_told_of_a_name) {
            break;
        }
        is_known(linking.waiting_for(dir, || device.forget_name(dir, &name, keep)));
    }
    for dir in dirs {
        if !is_known(device.forget_attributes(dir, true)) && nodes.knows(dir) {
            on_their_way.push(dir);
        }
    }
    for (ino, place) in told.inodes {
        let ino = ino + u64::from(foliocache_sync::planted!(kernel_told_of_another_inode));
        if is_known(device.forget_attributes(ino, false)) || !nodes.knows(ino) {
            continue;
        }
        if let Some((dir, name)) = place {
            is_known(device.forget_name(dir, &name, true));
            if is_known(device.forget_attributes(ino, false)) {
                continue;
            }
        }
        on_their_way.push(ino);
    }
    on_their_way
}

impl Observer for News {
    fn changed(
        &self,
        Told { dir, name, change }: Told<'_>,
        inode: Option<&SlabArc<Inode>>,
        ours: bool,
    ) {
        if ours && ptr::eq(SERVES.get(), self) {
            return;
        }
        if change.is_of_name() {
            // Before the kernel is told, because it then reads the directory again.
            self.listed.names_changed(dir.ino());
        }
        let mut state = self.state.lock();
        let place = name.map(|name| (dir.ino(), name.to_owned()));
        let Some(place) = place else {
            return self.push(&mut state, |untold| {
                untold.inodes.entry(dir.ino()).or_default();
            });
        };
        if change.is_of_name() {
            if !ours
                && let Some(own) = state.own.get_mut(&place)
                && own.seen < own.events
            {
                own.seen += 1;
                return;
            }
            let keep = inode.is_some_and(|inode| inode.is_directory());
            self.push(&mut state, |untold| {
                untold.names.insert(place.clone(), keep);
            });
        }
        if let Some(inode) = inode {
            self.push(&mut state, |untold| {
                untold.inodes.insert(inode.ino(), Some(place));
            });
        }
    }

    fn directory_is_gone(&self, dir: &Inode, name: &OsStr) {
        // The name was kept when its loss was reported, because the directory could have been
        // moved.
        self.push(&mut self.state.lock(), |untold| {
            untold.names.insert((dir.ino(), name.to_owned()), false);
        });
    }

    fn is_changed(&self, inode: &Inode) {
        if !ptr::eq(SERVES.get(), self) {
            // Relaxed: see the module's header.
            self.of_files.fetch_add(1, Ordering::Relaxed);
            self.forget_attributes(inode.ino());
        }
    }

    fn was_told(&self, began: u64, complete: bool) {
        if !complete {
            self.listed.all_changed();
            // Relaxed: see the module's header.
            self.losses.fetch_add(1, Ordering::Relaxed);
        }
        let mut state = self.state.lock();
        let over = |own: &Expected| own.running == 0 && own.ended < began;
        state.own.retain(|_, own| !over(own));
        if !complete {
            self.push(&mut state, |untold| untold.lost = true);
        }
    }
}
