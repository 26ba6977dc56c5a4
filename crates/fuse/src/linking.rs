//! Names of listings that the kernel may not have entered yet.
//!
//! # Model
//!
//! The kernel enters the names of a `READDIRPLUS` reply when the reply arrives, whatever it has learned of them since the reply
//! was made. So a program could open the file that others had just put under a name, and find the old file there again
//! a moment later:
//!
//! ```text
//!   listing   v is file 5 ──────────────────── reply ─────────▶ the kernel enters v: file 5
//!   others           v becomes file 6
//!   look-up                     v is file 6 ──▶ a program reads file 6
//! ```
//!
//! If another answer has overtaken a listing, the listing gives the name without belief: the kernel asks before it uses it.
//! Otherwise the name is *pending* until the kernel has entered it. That is sure when the thread that listed asks for more,
//! when the kernel changes a name in the directory, which it keeps locked while it lists, or after [`TTL`].
//!
//! A look-up may find another file than a pending name leads to. Then a thread tells the kernel that the name is stale. This waits for
//! the directory's lock, and so for the listing. The look-up itself may hold that lock, or the listing may wait for
//! the look-up. So the look-up waits no longer than [`PATIENCE`]; after that its answer is the pending file, without belief, as if
//! it had come before the change. Another listing gives that answer at once.
//!
//! The names take some 50 KiB at most, which are not charged.
//!
//! # Invariants
//!
//! 1. A pending name was looked up after the last different answer about it.
//! 2. While a name is pending, all answers about it are the same file.
//! 3. An answer without belief is never newer than the pending name.
//!
//! # Locking
//!
//! `state` is a leaf. The kernel is told with no lock held, by a thread that serves no requests.

use crate::device::Device;
use crate::entry::TTL;
use foliocache_sync::Condvar;
use foliocache_sync::rank::LeafMutex;
use foliocache_sync::time::{Duration, Instant};
use foliocache_vfs::Inode;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::hash::{DefaultHasher, Hash, Hasher};

/// How long a look-up waits for the kernel to enter a pending name.
const PATIENCE: Duration = Duration::from_millis(20);

/// Listings with pending names, most. Further ones give their names without belief.
const LISTINGS: usize = 64;

/// Counts of answers, which names share by their hash.
const COUNTS: usize = 256;

/// A name that no directory has: the kernel waits for a directory's lock before it finds that out.
const NO_NAME: &str = "\u{1}";

/// A file as the kernel knows it: number and generation. A name that is not there leads to none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeId {
    pub(crate) ino: u64,
    pub(crate) generation: u64,
}

impl NodeId {
    pub(crate) fn of(inode: &Inode) -> NodeId {
        NodeId {
            ino: inode.ino(),
            generation: inode.generation(),
        }
    }
}

/// A directory and a name in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u64);

impl Place {
    pub(crate) fn new(dir: u64, name: &OsStr) -> Place {
        let mut hasher = DefaultHasher::new();
        (dir, name).hash(&mut hasher);
        Place(hasher.finish())
    }

    fn slot(self) -> usize {
        self.0 as usize % COUNTS
    }
}

/// A reply to `READDIRPLUS`.
struct Listing {
    number: u64,
    dir: u64,
    /// The thread that asked, as the kernel calls it; 0 if the kernel does not say.
    thread: u32,
    since: Instant,
    names: Vec<(Place, NodeId)>,
}

impl Listing {
    /// A thread that asks for no more has entered the names long before this ends.
    fn may_be_pending(&self) -> bool {
        self.since.elapsed() < TTL
    }
}

/// Answers about the names of one hash.
#[derive(Clone, Copy, Default)]
pub(crate) struct Answers {
    given: u32,
    /// Those that differed from the one before.
    changed: u32,
    last: Option<(Place, Option<NodeId>)>,
}

impl Answers {
    /// Whether an answer since `before` contradicts this one.
    fn contradict(&self, before: Answers, place: Place, node: NodeId) -> bool {
        let same = self.last == Some((place, Some(node)));
        self.changed != before.changed || self.given != before.given && !same
    }
}

struct State {
    listings: Vec<Listing>,
    next: u64,
    answers: [Answers; COUNTS],
    /// Directories and names that the kernel is to be told are stale.
    stale: HashSet<(u64, OsString)>,
    stopped: bool,
}

impl State {
    /// Notes an answer about a name.
    fn note(&mut self, place: Place, node: Option<NodeId>) {
        let answers = &mut self.answers[place.slot()];
        answers.given = answers.given.wrapping_add(1);
        if answers.last != Some((place, node)) {
            answers.last = Some((place, node));
            answers.changed = answers.changed.wrapping_add(1);
        }
    }

    /// The file that a pending name leads to, if not `found`.
    fn other(&self, place: Place, found: Option<NodeId>) -> Option<NodeId> {
        let other = |&&(at, node): &&(Place, NodeId)| at == place && Some(node) != found;
        let mut listings = self.listings.iter();
        listings.find_map(|listing| {
            let (_, node) = listing.names.iter().find(other)?;
            listing.may_be_pending().then_some(*node)
        })
    }
}

/// See the module's header.
pub(crate) struct Linking {
    state: LeafMutex<State>,
    /// There are stale names, or it stopped.
    wake: Condvar,
    /// Names are no longer pending.
    entered: Condvar,
}

/// The answer of a listing for a name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Tell {
    /// The kernel may believe what was found.
    Believed,
    /// The file that was found, without belief.
    Unbelieved,
    /// This file, without belief.
    Instead(NodeId),
}

/// A listing whose reply is not sent yet.
pub(crate) struct Telling<'a> {
    linking: &'a Linking,
    dir: u64,
    thread: u32,
    number: u64,
    sent: bool,
}

impl Telling<'_> {
    /// The thread that asked.
    pub(crate) fn thread(&self) -> u32 {
        self.thread
    }

    /// A name in the directory that is listed.
    pub(crate) fn place(&self, name: &OsStr) -> Place {
        Place::new(self.dir, name)
    }

    /// The answers about a name, before it is looked up.
    pub(crate) fn answers(&self, place: Place) -> Answers {
        self.linking.state.lock().answers[place.slot()]
    }

    /// The reply is to tell a name. `before`: the [answers](Telling::answers) before it was looked up.
    pub(crate) fn tell(&self, place: Place, node: NodeId, before: Answers) -> Tell {
        let mut state = self.linking.state.lock();
        if let Some(other) = state.other(place, Some(node)) {
            return Tell::Instead(other);
        }
        let overtaken =
            state.answers[place.slot()].contradict(before, place, node) && !is_planted();
        // Listings that are made at the same time are overtaken by this one, also if it is not believed.
        state.note(place, Some(node));
        let number = self.number;
        let listing = state.listings.iter_mut().find(|it| it.number == number);
        match listing {
            Some(listing) if !overtaken => {
                listing.names.push((place, node));
                Tell::Believed
            }
            _ => Tell::Unbelieved,
        }
    }

    /// The reply was sent.
    pub(crate) fn sent(mut self) {
        self.sent = true;
    }
}

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        if !self.sent {
            self.linking.remove(|listing| listing.number == self.number);
        }
    }
}

fn is_planted() -> bool {
    foliocache_sync::planted!(listings_overtake_look_ups)
}

impl Linking {
    /// No names yet.
    pub(crate) fn new() -> Linking {
        Linking {
            state: LeafMutex::new(State {
                listings: Vec::new(),
                next: 0,
                answers: [Answers::default(); COUNTS],
                stale: HashSet::new(),
                stopped: false,
            }),
            wake: Condvar::new(),
            entered: Condvar::new(),
        }
    }

    fn remove(&self, is_entered: impl Fn(&Listing) -> bool) {
        self.state.lock().listings.retain(|it| !is_entered(it));
        self.entered.notify_all();
    }

    /// A thread goes on to list: what it was told before is entered.
    pub(crate) fn asks_again(&self, thread: u32) {
        self.remove(|listing| listing.thread == thread && thread != 0);
    }

    /// A thread asks for a listing with attributes.
    pub(crate) fn begin(&self, dir: u64, thread: u32) -> Telling<'_> {
        self.asks_again(thread);
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        let since = Instant::now();
        if state.listings.len() == LISTINGS {
            state.listings.retain(Listing::may_be_pending);
        }
        if state.listings.len() < LISTINGS {
            state.listings.push(Listing {
                number,
                dir,
                thread,
                since,
                names: Vec::new(),
            });
        }
        drop(state);
        Telling {
            linking: self,
            dir,
            thread,
            number,
            sent: false,
        }
    }

    /// The kernel changes a name in a directory: what it was told of it before is entered.
    pub(crate) fn is_locked(&self, dir: u64) {
        self.remove(|listing| listing.dir == dir);
    }

    /// A look-up is about to be answered. Returns what to answer instead of `found`.
    ///
    /// Context: waits for [`PATIENCE`] if a pending name leads elsewhere.
    pub(crate) fn answer(&self, dir: u64, name: &OsStr, found: Option<NodeId>) -> Option<NodeId> {
        self.answer_within(PATIENCE, dir, name, found)
    }

    fn answer_within(
        &self,
        patience: Duration,
        dir: u64,
        name: &OsStr,
        found: Option<NodeId>,
    ) -> Option<NodeId> {
        let place = Place::new(dir, name);
        let mut state = self.state.lock();
        let mut until = None;
        loop {
            let Some(other) = state.other(place, found).filter(|_| !is_planted()) else {
                state.note(place, found);
                return None;
            };
            let now = Instant::now();
            let until = *until.get_or_insert(now + patience);
            if now >= until {
                return Some(other);
            }
            state.stale.insert((dir, name.to_owned()));
            self.wake.notify_one();
            state = self.entered.wait_timeout_ranked(state, until - now).0;
        }
    }

    /// Runs what waits for the directory's lock: the kernel has then entered what is pending now.
    pub(crate) fn waiting_for<R>(&self, dir: u64, lock: impl FnOnce() -> R) -> R {
        let before = self.state.lock().next;
        let done = lock();
        self.remove(|listing| listing.dir == dir && listing.number < before);
        done
    }

    /// Tells the kernel that a name is stale.
    ///
    /// Context: blocks for requests in the directory.
    fn tell_stale(&self, dir: u64, name: &OsStr, device: &Device) {
        // An error means that the kernel does not know the name, or that the mount ends.
        let _ = self.waiting_for(dir, || device.forget_name(dir, name, true));
    }

    /// Waits until the kernel has entered all names that are pending now.
    ///
    /// Context: blocks for requests in their directories.
    pub(crate) fn wait(&self, device: &Device) {
        let state = self.state.lock();
        let dirs: HashSet<u64> = state.listings.iter().map(|listing| listing.dir).collect();
        drop(state);
        for dir in dirs {
            self.tell_stale(dir, OsStr::new(NO_NAME), device);
        }
    }

    /// The thread's work, until [`stop`](Self::stop).
    pub(crate) fn run(&self, device: &Device) {
        let mut state = self.state.lock();
        while !state.stopped {
            let stale = std::mem::take(&mut state.stale);
            if stale.is_empty() {
                state = self.wake.wait_ranked(state);
                continue;
            }
            drop(state);
            for (dir, name) in stale {
                self.tell_stale(dir, &name, device);
            }
            state = self.state.lock();
        }
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.state.lock().stopped = true;
        self.wake.notify_one();
    }
}

#[cfg(test)]
mod tests;
