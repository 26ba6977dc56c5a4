//! Several threads at once, each with private names, so that its results are determined; others read everything
//! meanwhile.

use crate::common::tmpfs;
use crate::steps::{At, Paths, Random, Step, at, step};
use crate::world::{Held, Ours, World};
use foliocache_sys::Errno;
use foliocache_vfs::{Namei, OpContext};
use std::ffi::{OsStr, OsString};
use std::sync::atomic::{AtomicBool, Ordering};

const THREADS: usize = 3;
const STEPS: usize = 2500;
const WORDS: [&str; 4] = ["a", "b", "c", "d"];

/// Paths in a thread's own subtree, and its names in the directory that all share. Symbolic links lead
/// nowhere else.
struct Own(usize);

impl Own {
    fn words(random: &mut Random, most: usize) -> String {
        let words: Vec<&str> = (0..=random.below(most))
            .map(|_| WORDS[random.below(WORDS.len())])
            .collect();
        words.join("/")
    }
}

impl Paths for Own {
    /// Through a link in the shared directory a thread might make a name that is not its own.
    const FOLLOW_TO_MAKE: bool = false;

    fn path(&mut self, random: &mut Random) -> At {
        let words = Self::words(random, 3);
        at(&match random.one_in(3) {
            true => format!("shared/{}_{words}", self.0),
            false => format!("own{}/{words}", self.0),
        })
    }

    fn target(&mut self, random: &mut Random) -> OsString {
        Self::words(random, 2).into()
    }
}

/// Reads everything until told to stop; an impossible result is an error.
fn look(world: &World, seed: u64, stop: &AtomicBool) -> Result<u64, String> {
    let mut random = Random::new(seed);
    let mut found = 0;
    // Relaxed: nothing else is read by it.
    while !stop.load(Ordering::Relaxed) {
        let thread = random.below(THREADS);
        let At { path, .. } = Own(thread).path(&mut random);
        let path = path.into_string().expect("text");
        let path = match random.below(6) {
            0 => "shared".to_owned(),
            1 => format!("{path}/../a"),
            2 => format!("own{thread}"),
            _ => path,
        };
        let namei = Namei {
            names: &world.names,
            start: world.names.root(),
            beneath: random.one_in(2),
            ctx: OpContext::ROOT,
            credentials: None,
        };
        let (follow, name) = (random.one_in(2), OsStr::new(&path));
        let seen = match random.below(3) {
            0 => namei.stat(name, follow).map(drop),
            1 => namei.lookup(name, follow).map(drop),
            // A name that goes and comes meanwhile may be read twice.
            _ => namei.inode(name, follow).and_then(|inode| {
                let directory = world.names.fs().opendir(&inode)?;
                Ok(directory.read_all().map(drop)?)
            }),
        };
        match seen.map_err(|error| error.errno()) {
            Ok(()) => found += 1,
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => {}
            Err(error) => return Err(format!("{path}: {error:?}")),
        }
    }
    Ok(found)
}

fn several_threads(ours: Ours, seed: u64) {
    let Some(tmpfs) = tmpfs() else { return };
    let world = World::new(ours, tmpfs);
    let make = |path: String| {
        let made = world.step(&mut Held::default(), &Step::Mkdir(at(&path), 0o777));
        made.expect("the same");
    };
    make("shared".to_owned());
    (0..THREADS).for_each(|thread| make(format!("own{thread}")));
    let (world, stop) = (&world, AtomicBool::new(false));
    let stop = &stop;
    std::thread::scope(|scope| {
        let work = |thread: usize| {
            move || {
                let mut random = Random::new(seed * 100 + thread as u64);
                let mut held = Held::default();
                for i in 0..STEPS {
                    let step = match step(&mut random, &mut Own(thread)) {
                        // A held place may have moved; holding is for a single thread.
                        Step::Hold(_, at) => Step::Stat { at, follow: false },
                        step => step,
                    };
                    if let Err(how) = world.step(&mut held, &step) {
                        return Err(format!(
                            "seed {seed}, step {i} of {thread}: {step:?}: {how}"
                        ));
                    }
                }
                Ok(())
            }
        };
        let workers: Vec<_> = (0..THREADS).map(|i| scope.spawn(work(i))).collect();
        let lookers: Vec<_> = (0..2)
            .map(|i| scope.spawn(move || look(world, seed * 1000 + i, stop)))
            .collect();
        let done: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        // Relaxed: see `look`.
        stop.store(true, Ordering::Relaxed);
        for looker in lookers {
            let found = looker.join().expect("no panic");
            assert!(found.expect("only what is legal") > 100, "seed {seed}");
        }
        for done in done {
            done.expect("no panic")
                .unwrap_or_else(|how| panic!("{how}"));
        }
    });
    let compared = world.compare_trees();
    assert!(compared.unwrap_or_else(|how| panic!("seed {seed}: {how}")) > 10);
}

#[test]
fn several_threads_in_memory() {
    (1..4).for_each(|seed| several_threads(Ours::MemFs, seed));
}

#[test]
fn several_threads_over_a_directory() {
    (1..3).for_each(|seed| several_threads(Ours::DirFs, seed));
}

#[test]
fn several_threads_over_a_doubted_directory() {
    several_threads(Ours::DirFsDoubted, 1);
}
