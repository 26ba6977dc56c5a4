//! A kernel with one directory and one name in it, and programs that list and open at the same time, in orders of chance.
//!
//! # Model
//!
//! The name leads to numbered files; others put the next one in its place. A listing and a look-up without a dentry hold the
//! directory's lock while they are under way. A look-up without a dentry is the only one of its name: a listing waits for it
//! before it enters the name. A look-up of a dentry that is not believed holds nothing, and the dentry may have left the
//! tree before its answer comes.

use crate::linking::*;
use foliocache_sim::Rng;

const NAME: &str = "v";

const DIR: u64 = 1;

/// Steps of a schedule.
const STEPS: u32 = 400;

/// A program that lists again and again.
enum Lister<'a> {
    Idle,
    Asked(Telling<'a>),
    /// The answers before, and the file that was found.
    Found(Telling<'a>, Answers, u64),
    /// The reply is on its way: a file, and whether it may be believed.
    Sent(u64, bool),
}

/// A program that opens the file again and again.
#[derive(Clone, Copy)]
enum Opener {
    Idle,
    /// It looks the name up: of a dentry that is not believed, or without one.
    Asked(Option<usize>),
    /// This file was found.
    Found(Option<usize>, u64),
    /// The answer is on its way.
    Answered(Option<usize>, u64, bool),
}

#[derive(Default)]
struct Kernel {
    /// The file that has the name in the source.
    truth: u64,
    /// Files that dentries lead to, and whether that is believed.
    dentries: Vec<(u64, bool)>,
    /// The dentry that a walk finds.
    hashed: Option<usize>,
    /// A look-up without a dentry is under way.
    in_lookup: bool,
    /// Requests that hold the directory's lock.
    holders: u32,
}

fn node(file: u64) -> NodeId {
    let (ino, generation) = (file, 1);
    NodeId { ino, generation }
}

impl Kernel {
    fn enter(&mut self, file: u64, believed: bool) {
        match self.hashed.map(|at| &mut self.dentries[at]) {
            Some((same, belief)) if *same == file => *belief = believed,
            _ => {
                self.hashed = Some(self.dentries.len());
                self.dentries.push((file, believed));
            }
        }
    }

    fn list<'a>(&mut self, linking: &'a Linking, lister: Lister<'a>, thread: u32) -> Lister<'a> {
        let place = Place::new(DIR, NAME.as_ref());
        match lister {
            Lister::Idle => {
                self.holders += 1;
                Lister::Asked(linking.begin(DIR, thread))
            }
            Lister::Asked(telling) => {
                let before = telling.answers(place);
                Lister::Found(telling, before, self.truth)
            }
            Lister::Found(telling, before, found) => {
                let (file, believed) = match telling.tell(place, node(found), before) {
                    Tell::Believed => (found, true),
                    Tell::Unbelieved => (found, false),
                    Tell::Instead(other) => (other.ino, false),
                };
                telling.sent();
                Lister::Sent(file, believed)
            }
            Lister::Sent(..) if self.in_lookup => lister,
            Lister::Sent(file, believed) => {
                self.enter(file, believed);
                self.holders -= 1;
                Lister::Idle
            }
        }
    }

    /// Returns the file that was opened, too.
    fn open(&mut self, linking: &Linking, opener: Opener, rng: &mut Rng) -> (Opener, Option<u64>) {
        let next = match opener {
            Opener::Idle => match self.hashed {
                Some(at) if self.dentries[at].1 => return (opener, Some(self.dentries[at].0)),
                None if self.in_lookup => opener,
                dentry => {
                    if dentry.is_none() {
                        self.in_lookup = true;
                        self.holders += 1;
                    }
                    Opener::Asked(dentry)
                }
            },
            Opener::Asked(dentry) => Opener::Found(dentry, self.truth),
            Opener::Found(dentry, found) => {
                let (name, none) = (NAME.as_ref(), Duration::ZERO);
                match linking.answer_within(none, DIR, name, Some(node(found))) {
                    None => Opener::Answered(dentry, found, true),
                    // It waits on.
                    Some(_) if rng.one_in(3, 4) => opener,
                    Some(other) => Opener::Answered(dentry, other.ino, false),
                }
            }
            Opener::Answered(None, file, believed) => {
                self.in_lookup = false;
                self.holders -= 1;
                self.enter(file, believed);
                return (Opener::Idle, Some(file));
            }
            Opener::Answered(Some(at), file, believed) => {
                if self.dentries[at].0 == file {
                    self.dentries[at].1 = believed;
                    return (Opener::Idle, Some(file));
                }
                self.hashed = self.hashed.filter(|&hashed| hashed != at);
                Opener::Idle
            }
        };
        (next, None)
    }

    /// The thread that tells of stale names, or the one that tells of news: waits for the lock.
    fn tell(&mut self, linking: &Linking, began: &mut Option<u64>, is_news: bool) {
        let Some(before) = *began else {
            let wanted = !std::mem::take(&mut linking.state.lock().stale).is_empty();
            if wanted || is_news {
                *began = Some(linking.state.lock().next);
            }
            return;
        };
        if self.holders > 0 {
            return;
        }
        *began = None;
        match is_news {
            true => self.hashed = None,
            false => {
                if let Some(at) = self.hashed {
                    self.dentries[at].1 = false;
                }
            }
        }
        linking.remove(|listing| listing.dir == DIR && listing.number < before);
    }
}

/// # Errors
/// A program saw an older file after a newer one.
fn play(seed: u64) -> Result<(), String> {
    let (linking, rng) = (Linking::new(), &mut Rng::new(seed));
    let mut kernel = Kernel::default();
    let mut listers = [const { Lister::Idle }; 2];
    let mut openers = [(Opener::Idle, 0); 3];
    let mut began = None;
    for _ in 0..STEPS {
        match rng.below(16) {
            0 => kernel.truth += 1,
            1..=2 => kernel.tell(&linking, &mut began, rng.one_in(1, 4)),
            3..=8 => {
                let number = rng.below(2) as usize;
                let lister = std::mem::replace(&mut listers[number], Lister::Idle);
                listers[number] = kernel.list(&linking, lister, 7 + number as u32);
            }
            _ => {
                let (opener, newest) = &mut openers[rng.below(3) as usize];
                let (next, seen) = kernel.open(&linking, *opener, rng);
                *opener = next;
                let seen = seen.unwrap_or(*newest);
                if seen < *newest {
                    return Err(format!("seed {seed}: file {seen} after {newest}"));
                }
                *newest = seen;
            }
        }
    }
    Ok(())
}

#[test]
fn no_program_sees_an_older_file_after_a_newer_one() {
    (0..20_000).try_for_each(play).unwrap();
}
