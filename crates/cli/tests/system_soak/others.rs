//! Changes by others: files and names that are changed beside the cache, and must be seen through it, and the reverse.

use crate::place::Place;
use crate::work::{Context, Done, Worker, same};
use foliocache_sim::Fill;
use std::fs;
use std::io::Write;
use std::time::Duration;

/// Promised is within some 10 ms; a busy machine may take longer.
const SOON: Duration = Duration::from_secs(20);

/// Files that are changed.
const FILES: u64 = 6;

/// Works in the directory `folder`, which it makes and removes.
pub(crate) fn work(worker: &mut Worker<'_>, place: &dyn Place, folder: &str) -> Done {
    let Some(source) = place.source(folder) else {
        return Ok(());
    };
    place.create_dir(folder)?;
    let what =
        ["change by others", "change by others under a mount"][usize::from(place.is_mount())];
    while worker.goes_on() {
        let name = format!("f{}", worker.rng.below(FILES));
        let (path, beside) = (format!("{folder}/{name}"), source.join(&name));
        let (fill, len) = (
            Fill(worker.rng.next_u64()),
            worker.rng.below(60_000) as usize,
        );
        let bytes = fill.bytes(0, len);
        let about = || format!("change {} beside the cache", beside.display());
        match worker.rng.below(5) {
            // In place.
            0 | 1 => {
                fs::write(&beside, &bytes).context(about)?;
                seen(worker, place, &path, &bytes)?;
            }
            // By a new file of the same name.
            2 => {
                let temporary = source.join("temporary");
                fs::write(&temporary, &bytes).context(about)?;
                fs::rename(&temporary, &beside).context(about)?;
                seen(worker, place, &path, &bytes)?;
            }
            // At the end, after the cache has read the file.
            3 => {
                let mut all = fs::read(&beside).unwrap_or_default();
                if !all.is_empty() {
                    seen(worker, place, &path, &all)?;
                }
                let appending = fs::OpenOptions::new()
                    .append(true)
                    .create(true)
                    .open(&beside);
                let part = &bytes[..bytes.len().min(8000)];
                appending
                    .and_then(|mut file| file.write_all(part))
                    .context(about)?;
                all.extend(part);
                seen(worker, place, &path, &all)?;
            }
            // Its name.
            _ => {
                let there = beside.exists();
                match there {
                    true => fs::remove_file(&beside),
                    false => fs::write(&beside, &bytes),
                }
                .context(about)?;
                worker.wait_for(&format!("{path} to come or go"), SOON, || {
                    let listed = place.list(folder)?.contains(&name);
                    Ok(listed != there && place.kind(&path).is_err() == there)
                })?;
            }
        }
        worker.did(what, len);
        // The reverse: data written and synced here is there.
        if worker.rng.one_in(1, 3) {
            let fill = Fill(worker.rng.next_u64());
            let bytes = fill.bytes(0, worker.rng.below(40_000) as usize);
            place.write(&path, &bytes)?;
            place.open(&path)?.sync(true, &mut worker.rng)?;
            let found = fs::read(&beside).context(|| format!("read {}", beside.display()))?;
            same(&found, &bytes, || {
                format!("{} after a sync", beside.display())
            })?;
        }
    }
    place.remove_dir_all(folder)
}

/// Waits until the cache shows the writes of others.
fn seen(worker: &Worker<'_>, place: &dyn Place, path: &str, bytes: &[u8]) -> Done {
    let what = format!("a change of {path} by others to be seen");
    worker.wait_for(&what, SOON, || {
        // A moment ago the file may not have existed.
        Ok(place.read(path).is_ok_and(|found| found == bytes))
    })
}
