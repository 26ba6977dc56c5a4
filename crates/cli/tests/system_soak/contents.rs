//! Files of one thread, held against a naive model of them after each read, and against the source after each sync.

use crate::place::Place;
use crate::work::{Context, Done, Worker, same};
use foliocache_sim::{Mix, Operation, ReferenceFile, Workload};
use std::fs;

/// No file becomes larger, in bytes.
pub(crate) const LARGEST: u64 = 512 << 10;

/// No read, write or hole is longer.
const LONGEST: u64 = 96 << 10;

/// Files of one worker.
const FILES: u64 = 3;

/// Operations on one file before the next one's turn.
const TURN: u64 = 40;

struct Modelled {
    path: String,
    model: ReferenceFile,
    workload: Workload,
}

/// Works in the directory `folder`, which it makes and removes.
pub(crate) fn work(worker: &mut Worker<'_>, place: &dyn Place, folder: &str) -> Done {
    place.create_dir(folder)?;
    let mut files: Vec<Modelled> = Vec::new();
    for i in 0..FILES {
        let seed = worker.rng.next_u64();
        files.push(Modelled {
            path: format!("{folder}/file{i}"),
            model: ReferenceFile::new(),
            workload: Workload::new(seed, Mix::general(LARGEST, LONGEST)),
        });
    }
    while worker.goes_on() {
        let file = worker.rng.below(FILES) as usize;
        turn(worker, place, &mut files[file])?;
    }
    for file in &files {
        check_all(place, file)?;
    }
    place.remove_dir_all(folder)
}

/// Opens the file for some operations, and closes it.
fn turn(worker: &mut Worker<'_>, place: &dyn Place, file: &mut Modelled) -> Done {
    let mut handle = place.open(&file.path)?;
    for _ in 0..worker.rng.between(1, TURN) {
        if !worker.goes_on() {
            break;
        }
        if worker.rng.one_in(1, 12) {
            let way = handle.disturb(&mut worker.rng)?;
            worker.did(way, 0);
        }
        let operation = file.workload.next().expect("is endless");
        let rng = &mut worker.rng;
        match operation {
            Operation::Read { pos, len } => {
                let (found, way) = handle.read(pos, len, rng)?;
                let expected = file.model.read(pos, len);
                worker.did(way, found.len());
                same(&found, &expected, || {
                    format!("{way} of {len} bytes at {pos} of {}", file.path)
                })?;
            }
            Operation::Write { pos, len, fill } => {
                let bytes = fill.bytes(pos, len);
                let way = handle.write(pos, &bytes, rng)?;
                worker.did(way, len);
                file.model.write(pos, &bytes);
            }
            Operation::Append { len, fill } => {
                let bytes = fill.bytes(file.model.size(), len);
                handle.append(&bytes, rng)?;
                worker.did(
                    if place.is_mount() {
                        "append on a mount"
                    } else {
                        "append"
                    },
                    len,
                );
                file.model.append(&bytes);
            }
            Operation::Truncate { size } => {
                handle.set_len(size)?;
                worker.did(
                    if place.is_mount() {
                        "truncate on a mount"
                    } else {
                        "truncate"
                    },
                    0,
                );
                file.model.truncate(size);
            }
            Operation::PunchHole { pos, len } => {
                handle.punch(pos, len)?;
                worker.did(
                    if place.is_mount() {
                        "hole on a mount"
                    } else {
                        "hole"
                    },
                    0,
                );
                file.model.apply(&operation);
            }
            Operation::Fsync { datasync } => {
                let way = handle.sync(datasync, rng)?;
                worker.did(way, 0);
                check_source(place, file, way)?;
            }
        }
        let len = handle.len()?;
        if len != file.model.size() {
            let size = file.model.size();
            return Err(format!(
                "{} has {len} bytes after {operation:?}, expected {size}",
                file.path
            ));
        }
    }
    Ok(())
}

/// Synced data is in the source, whole.
fn check_source(place: &dyn Place, file: &Modelled, after: &str) -> Done {
    let Some(source) = place.source(&file.path) else {
        return Ok(());
    };
    let found = fs::read(&source).context(|| format!("read {}", source.display()))?;
    let expected = file.model.read(0, LARGEST as usize);
    same(&found, &expected, || {
        format!("{} after {after}", source.display())
    })
}

/// Through the front door, and beside it after a sync.
fn check_all(place: &dyn Place, file: &Modelled) -> Done {
    let mut handle = place.open(&file.path)?;
    let found = place.read(&file.path)?;
    let expected = file.model.read(0, LARGEST as usize);
    same(&found, &expected, || format!("{} at the end", file.path))?;
    handle.sync(true, &mut foliocache_sim::Rng::new(1))?;
    check_source(place, file, "the last sync")
}
