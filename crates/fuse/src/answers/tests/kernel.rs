//! A kernel with one inode, and programs that list, open, query and change it at the same time, in orders of chance.
//!
//! # Model
//!
//! The inode has numbered states; others, or a program, make the next one. A directory has two names of it, so that a listing tells the
//! kernel of it twice. The kernel enters attributes as it does: not if it has entered others of the inode since the request began,
//! except those of a change. It may forget the inode while no program has it open; it believes no answer that introduces an inode if it
//! has forgotten one since the request began.

use crate::answers::*;
use foliocache_sim::Rng;

/// Steps of a schedule.
const STEPS: u32 = 400;

/// Attributes in an answer: the state, and whether they are believed.
type Told = (u32, bool);

/// The kernel's counts of attributes entered and of inodes forgotten, when it sends a request.
type Counts = (u64, u64);

/// What the mount does with an answer.
#[derive(Clone, Copy)]
enum Answer {
    /// They are looked up since this moment.
    Began(Asked),
    /// They were found.
    Found(Asked, u32),
    /// It waits until the kernel knows that earlier ones are stale.
    Waits(u32),
    Sent(Told),
}

/// A program that lists again and again.
enum Lister {
    Idle,
    /// The entries in the reply, and the one that is being made.
    Asked(Counts, Vec<Told>, Option<Answer>),
    /// The reply is on its way.
    Sent(Counts, Vec<Told>),
}

/// A program that opens the file, queries its attributes, perhaps changes it, and closes it.
#[derive(Clone, Copy)]
enum Opener {
    Closed,
    LooksUp(Counts, Option<Answer>),
    Open,
    Queries(Counts, Option<Answer>),
    /// It changes the attributes, and gets this state.
    Changes(Option<u32>),
}

#[derive(Clone, Copy)]
struct Cached {
    version: u64,
    told: Told,
}

#[derive(Default)]
struct Kernel {
    /// The state of the file in the source.
    truth: u32,
    version: u64,
    forgotten: u64,
    inode: Option<Cached>,
    answered: Answered,
    changes: Changes,
    /// Answers may be believed.
    is_told: bool,
    /// Programs that have the file open, and answers about the inode that are not entered.
    users: u32,
    on_their_way: u32,
}

impl Kernel {
    fn set(&mut self, told: Told) {
        self.version += 1;
        let version = self.version;
        self.inode = Some(Cached { version, told });
    }

    fn counts(&self) -> Counts {
        (self.version, self.forgotten)
    }

    fn enter(&mut self, (state, believed): Told, (version, forgotten): Counts) {
        match &self.inode {
            Some(inode) if inode.version > version => {}
            Some(_) => self.set((state, believed)),
            None => self.set((state, believed && forgotten == self.forgotten)),
        }
    }

    /// One step of an answer. There is none if it would have to wait and not `is_first`.
    fn answer(&mut self, thread: u32, answer: Option<Answer>, is_first: bool) -> Option<Answer> {
        let Some(answer) = answer else {
            return Some(Answer::Began(Asked {
                began: self.changes.now(),
                thread,
                is_first,
            }));
        };
        Some(match answer {
            Answer::Began(began) => Answer::Found(began, self.truth),
            Answer::Found(began, state) => {
                match self
                    .answered
                    .next(&self.changes, Print(state), self.is_told, began)
                {
                    Some(believed) => Answer::Sent((state, believed)),
                    None if is_first => Answer::Waits(state),
                    None => return None,
                }
            }
            // The thread of `Stale`. It tries again if the kernel does not know the inode.
            Answer::Waits(state) => match self.inode {
                Some(Cached {
                    told: (known, _), ..
                }) => {
                    self.set((known, false));
                    self.answered.unbelieved(&self.changes, Print(state));
                    Answer::Sent((state, false))
                }
                None => answer,
            },
            Answer::Sent(_) => answer,
        })
    }

    fn list(&mut self, lister: Lister, thread: u32) -> Lister {
        match lister {
            Lister::Idle => Lister::Asked(self.counts(), Vec::new(), None),
            Lister::Asked(asked, mut reply, entry) => {
                match self.answer(thread, entry, reply.is_empty()) {
                    None => Lister::Sent(asked, reply),
                    Some(Answer::Sent(told)) => {
                        reply.push(told);
                        self.on_their_way += 1;
                        match reply.len() {
                            2 => Lister::Sent(asked, reply),
                            _ => Lister::Asked(asked, reply, None),
                        }
                    }
                    entry => Lister::Asked(asked, reply, entry),
                }
            }
            Lister::Sent(asked, reply) => {
                for told in reply {
                    self.on_their_way -= 1;
                    self.enter(told, asked);
                }
                Lister::Idle
            }
        }
    }

    /// Returns the state that the program saw, too.
    fn open(&mut self, opener: Opener, thread: u32, rng: &mut Rng) -> (Opener, Option<u32>) {
        let next = match opener {
            // The name may be known from a listing.
            Opener::Closed if self.inode.is_some() && rng.one_in(1, 2) => {
                self.users += 1;
                Opener::Open
            }
            Opener::Closed => Opener::LooksUp(self.counts(), None),
            Opener::LooksUp(asked, Some(Answer::Sent(told))) => {
                self.on_their_way -= 1;
                self.users += 1;
                self.enter(told, asked);
                return (Opener::Open, Some(told.0));
            }
            Opener::LooksUp(asked, answer) => {
                let answer = self.answer(thread, answer, true);
                self.on_their_way += u32::from(matches!(answer, Some(Answer::Sent(_))));
                Opener::LooksUp(asked, answer)
            }
            Opener::Open if rng.one_in(1, 4) => {
                self.users -= 1;
                Opener::Closed
            }
            Opener::Open if rng.one_in(1, 8) => Opener::Changes(None),
            Opener::Open => match self.inode {
                Some(Cached {
                    told: (state, true),
                    ..
                }) => return (opener, Some(state)),
                _ => Opener::Queries(self.counts(), None),
            },
            Opener::Queries(asked, Some(Answer::Sent(told))) => {
                self.enter(told, asked);
                return (Opener::Open, Some(told.0));
            }
            Opener::Queries(asked, answer) => {
                Opener::Queries(asked, self.answer(thread, answer, true))
            }
            Opener::Changes(None) => {
                self.truth += 1;
                Opener::Changes(Some(self.truth))
            }
            Opener::Changes(Some(state)) => {
                self.set((state, false));
                return (Opener::Open, Some(state));
            }
        };
        (next, None)
    }

    fn forget(&mut self) {
        if self.users == 0 {
            self.inode = None;
            self.forgotten += 1;
            if self.on_their_way == 0 {
                self.answered = Answered::default();
            }
        }
    }
}

/// # Errors
/// A program saw an older state after a newer one.
fn play(seed: u64) -> Result<(), String> {
    let rng = &mut Rng::new(seed);
    let mut kernel = Kernel {
        is_told: true,
        ..Kernel::default()
    };
    let mut listers = [const { Lister::Idle }; 2];
    let mut openers = [(Opener::Closed, 0); 3];
    for _ in 0..STEPS {
        match rng.below(16) {
            0 => {
                kernel.truth += 1;
                kernel.is_told = !rng.one_in(1, 4);
            }
            1 => kernel.forget(),
            2..=7 => {
                let number = rng.below(2) as usize;
                let lister = std::mem::replace(&mut listers[number], Lister::Idle);
                listers[number] = kernel.list(lister, 1 + number as u32);
            }
            _ => {
                let number = rng.below(3) as usize;
                let (opener, newest) = &mut openers[number];
                let (next, seen) = kernel.open(*opener, 3 + number as u32, rng);
                *opener = next;
                let seen = seen.unwrap_or(*newest);
                if seen < *newest {
                    return Err(format!("seed {seed}: state {seen} after {newest}"));
                }
                *newest = seen;
            }
        }
    }
    Ok(())
}

#[test]
fn no_program_sees_older_attributes_after_newer_ones() {
    (0..20_000).try_for_each(play).unwrap();
}
