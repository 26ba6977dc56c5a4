//! Sums up the logs in a folder. `port_before.rs` does it with `std::fs`, `port_after.rs` with foliocache.

use std::collections::BTreeMap;
use std::env;
use std::error::Error;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;

/// Counts the lines of a log by their first word, the level; returns the number of lines.
fn count(log: impl Read, levels: &mut BTreeMap<String, u64>) -> io::Result<u64> {
    let mut lines = 0;
    for line in BufReader::new(log).lines() {
        let line = line?;
        let level = line.split_whitespace().next().unwrap_or("(none)");
        *levels.entry(level.to_owned()).or_default() += 1;
        lines += 1;
    }
    Ok(lines)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arg = env::args_os().nth(1).ok_or("which folder?")?;
    let folder = std::path::PathBuf::from(arg);
    let (mut logs, mut levels) = (BTreeMap::new(), BTreeMap::new());
    for entry in fs::read_dir(&folder)? {
        let entry = entry?;
        let (path, metadata) = (entry.path(), entry.metadata()?);
        if !metadata.is_file() || path.extension().is_none_or(|kind| kind != "log") {
            continue;
        }
        let mut log = File::open(&path)?;
        let lines = count(&mut log, &mut levels)?;
        // Was the log cut off?
        let mut last = [b'\n'];
        if metadata.len() > 0 {
            log.seek(SeekFrom::End(-1))?;
            log.read_exact(&mut last)?;
        }
        let (bytes, time) = (metadata.size(), metadata.modified()?);
        let whole = last == *b"\n";
        logs.insert(entry.file_name(), (bytes, time, lines, whole));
    }
    let mut summary = BufWriter::new(File::create(folder.join("summary"))?);
    for (name, facts) in &logs {
        writeln!(summary, "{name:?}: {facts:?}")?;
    }
    writeln!(summary, "{levels:?}")?;
    summary.into_inner()?.sync_all()?;
    println!("{} logs, {} levels", logs.len(), levels.len());
    Ok(())
}
