//! Two writers append records to one log, each synced, and the log is rotated by renames.

use crate::place::Place;
use crate::work::{Context, Done, Worker, same};
use foliocache_sim::{Fill, Rng};
use std::fs;
use std::thread;

/// Writers of one log.
const WRITERS: u64 = 2;

/// Records that each writer appends before the log is rotated.
const RECORDS: u64 = 24;

/// Bytes before the data of a record: writer, number, length.
const HEADER: usize = 24;

fn record(seed: u64, writer: u64, number: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed ^ (writer << 32) ^ number);
    let len = rng.between(1, 2000);
    let mut record = Vec::new();
    for word in [writer, number, len] {
        record.extend(word.to_le_bytes());
    }
    record.extend(Fill(rng.next_u64()).bytes(0, len as usize));
    record
}

/// Works in the directory `folder`, which it makes and removes.
pub(crate) fn work(worker: &mut Worker<'_>, place: &dyn Place, folder: &str) -> Done {
    place.create_dir(folder)?;
    let (log, old) = (format!("{folder}/log"), format!("{folder}/log.1"));
    let mut rotated: Option<u64> = None;
    while worker.goes_on() {
        let seed = worker.rng.next_u64();
        let written = thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let part = worker.run.worker(format!("{} {writer}", worker.name), seed);
                    let log = &log;
                    scope.spawn(move || write(part, place, log, seed, writer))
                })
                .collect();
            writers
                .into_iter()
                .map(|writer| writer.join().map_err(|_| "a writer panicked".to_owned())?)
                .collect::<Done<Vec<u64>>>()
        })?;
        check(&place.read(&log)?, seed, &written, &log)?;
        if let Some(source) = place.source(&log) {
            let bytes = fs::read(&source).context(|| format!("read {}", source.display()))?;
            check(&bytes, seed, &written, &source.display().to_string())?;
        }
        // The previous one is unchanged.
        if let Some(before) = rotated {
            let bytes = place.read(&old)?;
            let mut first = (0..WRITERS).map(|writer| record(before, writer, 0));
            let is_first = |record: Vec<u8>| bytes.starts_with(&record);
            if written.iter().all(|&n| n == RECORDS) && !first.any(is_first) {
                return Err(format!(
                    "{old} does not begin with the record that it began with"
                ));
            }
        }
        place.rename(&log, &old)?;
        place.sync_dir(folder)?;
        worker.did(
            if place.is_mount() {
                "log rotated on a mount"
            } else {
                "log rotated"
            },
            0,
        );
        rotated = written.iter().all(|&n| n == RECORDS).then_some(seed);
    }
    place.remove_dir_all(folder)
}

/// Appends records until the log is full; returns how many.
fn write(
    mut worker: Worker<'_>,
    place: &dyn Place,
    log: &str,
    seed: u64,
    writer: u64,
) -> Done<u64> {
    let mut handle = place.open(log)?;
    for number in 0..RECORDS {
        if !worker.goes_on() {
            return Ok(number);
        }
        let bytes = record(seed, writer, number);
        handle.append(&bytes, &mut worker.rng)?;
        handle.sync(true, &mut worker.rng)?;
        let what = ["log record", "log record on a mount"][usize::from(place.is_mount())];
        worker.did(what, bytes.len());
    }
    Ok(RECORDS)
}

/// All records are there, each writer's in order, and nothing else.
fn check(mut bytes: &[u8], seed: u64, written: &[u64], name: &str) -> Done {
    let mut next = vec![0; written.len()];
    while !bytes.is_empty() {
        let word = |i: usize| bytes.get(i * 8..).and_then(|b| b.first_chunk()).copied();
        let writer = word(0).map_or(u64::MAX, u64::from_le_bytes);
        let Some(number) = next.get_mut(writer as usize) else {
            return Err(format!(
                "{name}: {} bytes before the end begins no record",
                bytes.len()
            ));
        };
        let expected = record(seed, writer, *number);
        let found = &bytes[..bytes.len().min(expected.len().max(HEADER))];
        same(found, &expected, || {
            format!("{name}: record {number} of writer {writer}")
        })?;
        *number += 1;
        bytes = &bytes[expected.len()..];
    }
    match next == written {
        true => Ok(()),
        false => Err(format!("{name} has {next:?} records, expected {written:?}")),
    }
}
