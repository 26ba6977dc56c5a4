//! Operations on names beside the kernel's: the same steps run on a file system of ours and on a tmpfs directory,
//! and results, errors and the final trees are compared.

#[path = "../common/mod.rs"]
mod common;
mod races;
mod steps;
mod threads;
mod world;

use common::tmpfs;
use foliocache_vfs::RenameMode;
use steps::{Anywhere, At, Random, Step, at, from, step};
use world::{Held, Ours, World};

/// Runs steps from nothing; the first that differs, and how.
fn run(ours: Ours, steps: &[Step]) -> Result<(), (usize, String)> {
    let Some(tmpfs) = tmpfs() else { return Ok(()) };
    let world = World::new(ours, tmpfs);
    let mut held = Held::default();
    for (i, step) in steps.iter().enumerate() {
        world.step(&mut held, step).map_err(|how| (i, how))?;
        if i % 512 == 511 {
            world.compare_trees().map_err(|how| (i, how))?;
        }
    }
    match world.compare_trees() {
        Ok(_) => Ok(()),
        Err(how) => Err((steps.len().saturating_sub(1), how)),
    }
}

/// The fewest steps that still differ, as far as leaving some out finds them.
fn shrunk(ours: Ours, mut steps: Vec<Step>) -> Vec<Step> {
    let mut chunk = steps.len() / 2;
    while chunk > 0 {
        let mut from = 0;
        while from < steps.len() {
            let mut fewer = steps.clone();
            fewer.drain(from..(from + chunk).min(steps.len()));
            match run(ours, &fewer) {
                Err((last, _)) => {
                    fewer.truncate(last + 1);
                    steps = fewer;
                }
                Ok(()) => from += chunk,
            }
        }
        chunk /= 2;
    }
    steps
}

/// `FOLIOCACHE_SEEDS` adds this many seeds.
fn random_steps(ours: Ours, seeds: std::ops::Range<u64>) {
    let more = std::env::var("FOLIOCACHE_SEEDS").map_or(0, |n| n.parse().expect("a number"));
    for seed in seeds.start..seeds.end + more {
        let mut random = Random::new(seed);
        let steps: Vec<Step> = (0..3000)
            .map(|_| step(&mut random, &mut Anywhere))
            .collect();
        if let Err((last, how)) = run(ours, &steps) {
            let few = shrunk(ours, steps[..=last].to_vec());
            let now = run(ours, &few);
            panic!("seed {seed}, step {last}: {how}\n{few:?}\n{now:?}");
        }
    }
}

#[test]
fn random_steps_in_memory() {
    random_steps(Ours::MemFs, 1..7);
}

#[test]
fn random_steps_over_a_directory() {
    random_steps(Ours::DirFs, 11..15);
}

#[test]
fn random_steps_over_a_doubted_directory() {
    random_steps(Ours::DirFsDoubted, 21..23);
}

/// Runs steps that once differed.
fn once_found(steps: &[Step]) {
    for ours in [Ours::MemFs, Ours::DirFs, Ours::DirFsDoubted] {
        if let Err(how) = run(ours, steps) {
            panic!("{ours:?}: {how:?}");
        }
    }
}

fn open(path: &str, exclusive: bool) -> Step {
    Step::Open {
        at: at(path),
        create: true,
        exclusive,
        truncate: false,
        follow: true,
    }
}

fn rename(from: At, to: At, mode: RenameMode) -> Step {
    Step::Rename { from, to, mode }
}

#[test]
fn a_directory_that_is_held_moves_along_although_its_name_is_not_cached() {
    for mode in [RenameMode::Replace, RenameMode::Exchange] {
        once_found(&[
            Step::Mkdir(at("d"), 0o755),
            Step::Mkdir(at("to"), 0o755),
            Step::Mkdir(at("to/d"), 0o755),
            open("to/beside", true),
            Step::Hold(0, at("d")),
            Step::Hold(1, at("to/d")),
            // It fails, and once made the cache forget the name.
            rename(at("missing"), at("d"), RenameMode::Replace),
            rename(at("missing"), at("to/d"), RenameMode::Replace),
            rename(at("d"), at("to/d"), mode),
            Step::Stat {
                at: from(0, "../beside"),
                follow: true,
            },
            Step::Stat {
                at: from(1, "../to"),
                follow: true,
            },
        ]);
    }
}

#[test]
fn a_link_of_a_directory_first_checks_the_new_name() {
    let link = |to| Step::Link {
        from: at("d"),
        follow: false,
        to: at(to),
    };
    let dir = Step::Mkdir(at("d"), 0o755);
    once_found(&[dir, link("d"), link("e"), link("d/."), link("e/")]);
}

#[test]
fn a_rename_first_checks_the_moved_file() {
    let long = "n".repeat(256);
    let modes = [
        RenameMode::Replace,
        RenameMode::NoReplace,
        RenameMode::Exchange,
    ];
    let moves = modes.iter().flat_map(|&mode| {
        let to = |path: &str| rename(at("missing"), at(path), mode);
        [to(&long), to("d"), to("."), to("d/."), to("missing/x")]
    });
    let steps: Vec<Step> = [Step::Mkdir(at("d"), 0o755)]
        .into_iter()
        .chain(moves)
        .collect();
    once_found(&steps);
}

#[test]
fn a_removed_directory_has_no_names_of_any_length() {
    let long = "n".repeat(256);
    let gone = |path: &str| from(0, path);
    once_found(&[
        Step::Mkdir(at("d"), 0o755),
        Step::Hold(0, at("d")),
        Step::Rmdir(at("d")),
        Step::Mkdir(gone(&long), 0o755),
        Step::Unlink(gone(&long)),
        Step::Rmdir(gone(&long)),
        Step::Symlink("x".into(), gone(&long)),
        Step::Readdir(gone(".")),
        Step::Stat {
            at: gone(&format!("{long}/x")),
            follow: true,
        },
        rename(gone(&long), at("x"), RenameMode::Replace),
        rename(gone("x"), gone(&long), RenameMode::Replace),
        Step::StatHeld(0),
    ]);
}

#[test]
fn slashes_and_dots_at_the_end() {
    let steps = ["d/", "d/.", "d/./", "d/..", "f/", "f/.", "l/", "x/", "x/."]
        .into_iter()
        .flat_map(|path| {
            [
                open(path, true),
                open(path, false),
                Step::Mkdir(at(path), 0o755),
                Step::Fifo(at(path), 0o644),
                Step::Unlink(at(path)),
                Step::Rmdir(at(path)),
                rename(at(path), at("y"), RenameMode::Replace),
                rename(at("f"), at(path), RenameMode::Replace),
                rename(at("f"), at(path), RenameMode::Exchange),
                rename(at("f"), at(path), RenameMode::NoReplace),
            ]
        });
    let mut all = vec![
        Step::Mkdir(at("d"), 0o755),
        Step::Mkdir(at("d/e"), 0o755),
        open("f", true),
        Step::Symlink("d".into(), at("l")),
    ];
    all.extend(steps);
    once_found(&all);
}
