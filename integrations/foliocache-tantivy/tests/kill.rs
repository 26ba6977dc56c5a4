//! A writer is killed again and again: what it had committed is there.

mod common;

use common::{document, ids, schema};
use foliocache_tantivy::FoliocacheDirectory;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use tantivy::directory::MmapDirectory;
use tantivy::{Index, IndexWriter};

/// Where the writer finds its index. It is set in the process that is to be killed.
const INDEX: &str = "FOLIOCACHE_TANTIVY_INDEX";

/// The kills.
const ROUNDS: u64 = 8;

/// Commits two documents at a time, and says how many documents there are after each commit.
#[test]
fn write_until_killed() {
    let Some(path) = std::env::var_os(INDEX) else {
        return;
    };
    let cache = common::cache(16);
    let directory = FoliocacheDirectory::open(&cache, Path::new(&path)).unwrap();
    let index = Index::open_or_create(directory, schema()).unwrap();
    let mut documents = ids(&index).len() as u64;
    let mut writer: IndexWriter = index.writer_with_num_threads(1, 15_000_000).unwrap();
    let mut out = std::io::stdout().lock();
    loop {
        for _ in 0..2 {
            let document = document(&index.schema(), documents);
            writer.add_document(document).unwrap();
            documents += 1;
        }
        writer.commit().unwrap();
        writeln!(out, "committed {documents}").unwrap();
        out.flush().unwrap();
    }
}

#[test]
fn what_was_committed_survives_kills() {
    let source = common::on_disk();
    let mut committed = 0;
    for round in 0..ROUNDS {
        let mut writer = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "write_until_killed", "--nocapture"])
            .env(INDEX, source.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(writer.stdout.take().unwrap()).lines();
        let commits = |line: std::io::Result<String>| {
            let line = line.ok()?;
            line.split_once("committed ")?.1.parse::<u64>().ok()
        };
        // Enough for merges. The kill comes at some moment after it.
        let enough = 3 + round * 5 % 9;
        for number in said.by_ref().filter_map(commits).take(enough as usize) {
            committed = number;
        }
        std::thread::sleep(std::time::Duration::from_micros(round * 3_701 % 20_000));
        writer.kill().unwrap();
        assert!(
            writer.wait().unwrap().code().is_none(),
            "it ended by itself"
        );
        for number in said.filter_map(commits) {
            committed = number;
        }

        // By tantivy's own directory, and by ours.
        let mmap = Index::open(MmapDirectory::open(source.path()).unwrap()).unwrap();
        check(&mmap, committed);
        let cache = common::cache(16);
        // Read-only, so that the next writer finds the directory free whatever a reader's threads still hold.
        let directory = FoliocacheDirectory::open_read_only(&cache, source.path()).unwrap();
        check(&Index::open(directory).unwrap(), committed);
    }
    assert!(committed >= ROUNDS * 2 * 3);
}

/// Every committed document is there, perhaps with those of a commit that was under way, and nothing else.
fn check(index: &Index, committed: u64) {
    let damaged = index.validate_checksum().unwrap();
    assert!(damaged.is_empty(), "{damaged:?}");
    let there = ids(index);
    assert_eq!(there, (0..there.len() as u64).collect::<Vec<_>>());
    let extra = there.len() as u64 - committed;
    assert!(extra == 0 || extra == 2, "{} of {committed}", there.len());
}
