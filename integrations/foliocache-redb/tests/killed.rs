//! A process that commits is killed again and again: what was durable is there, nothing of a later transaction is.
//!
//! # Model
//!
//! Transaction `n` does what follows from `n`. So its database is known from the number of the last one alone.

use foliocache::Cache;
use foliocache_redb::FolioBackend;
use redb::{
    Builder, Database, Durability, ReadableDatabase, ReadableTable, ReadableTableMetadata,
    TableDefinition,
};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The number of the last transaction, at key 0.
const LAST: TableDefinition<u64, u64> = TableDefinition::new("last");
const DATA: TableDefinition<u64, &[u8]> = TableDefinition::new("data");

const ROUNDS: u64 = 20;
/// A slow machine has fewer rounds.
const ENOUGH: u64 = 6;
const AT_MOST: Duration = Duration::from_secs(20);
const KEYS: u64 = 3_000;
/// Where the process that is killed finds the database.
const CHILD: &str = "FOLIOCACHE_REDB_KILLED";

/// Numbers that follow from a seed (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}

/// A key with its new value, or without.
type Change = (u64, Option<Vec<u8>>);

/// What a transaction does, and whether it is durable.
fn transaction(number: u64) -> (Vec<Change>, bool) {
    let mut numbers = Numbers(number);
    let is_durable = numbers.below(3) > 0;
    // Some are large: more than the cache may have dirty.
    let changes = match numbers.below(16) {
        0 => numbers.below(1_000),
        _ => 1 + numbers.below(60),
    };
    let change = |_| {
        let key = numbers.below(KEYS);
        let len = numbers.below(9_000) as usize;
        let value = (numbers.below(8) > 0).then(|| vec![number as u8; len]);
        (key, value)
    };
    ((0..changes).map(change).collect(), is_durable)
}

fn open(path: &Path) -> (Cache, Database) {
    let cache = Cache::builder().memory("16M").build().unwrap();
    let backend = FolioBackend::create(&cache, path).unwrap();
    let mut builder = Builder::new();
    builder.set_cache_size(1 << 20);
    (cache, builder.create_with_backend(backend).unwrap())
}

/// 0 if there was none.
fn last(db: &Database) -> u64 {
    let transaction = db.begin_read().unwrap();
    let Ok(table) = transaction.open_table(LAST) else {
        return 0;
    };
    table.get(0).unwrap().map_or(0, |last| last.value())
}

/// Commits until it is killed, and tells of each step.
fn commit(path: &Path) {
    let (_cache, db) = open(path);
    for number in last(&db) + 1.. {
        let (changes, is_durable) = transaction(number);
        println!("\nbegun {number}");
        let mut write = db.begin_write().unwrap();
        if !is_durable {
            write.set_durability(Durability::None).unwrap();
        }
        write.open_table(LAST).unwrap().insert(0, number).unwrap();
        let mut data = write.open_table(DATA).unwrap();
        for (key, value) in changes {
            match value {
                Some(value) => drop(data.insert(key, value.as_slice()).unwrap()),
                None => drop(data.remove(key).unwrap()),
            }
        }
        drop(data);
        write.commit().unwrap();
        if is_durable {
            println!("\ndurable {number}");
        }
    }
}

/// The process that is killed, and what it told.
struct Victim {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    begun: u64,
    durable: u64,
}

impl Victim {
    fn start(path: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_killed_process_loses_no_durable_transaction"])
            .arg("--nocapture")
            .env(CHILD, path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self {
            child,
            lines,
            begun: 0,
            durable: 0,
        }
    }

    /// Whether there was a line.
    fn hear(&mut self) -> bool {
        // The last line may end anywhere.
        let Some(Ok(line)) = self.lines.next() else {
            return false;
        };
        let number = |told: &str| told.parse::<u64>().unwrap_or(0);
        if let Some(told) = line.strip_prefix("begun ") {
            self.begun = self.begun.max(number(told));
        } else if let Some(told) = line.strip_prefix("durable ") {
            self.durable = self.durable.max(number(told));
        }
        true
    }

    fn kill(mut self) -> (u64, u64) {
        self.child.kill().unwrap();
        while self.hear() {}
        let status = self.child.wait().unwrap();
        assert_eq!(status.code(), None, "it ended by itself: {status}");
        (self.begun, self.durable)
    }
}

#[test]
fn a_killed_process_loses_no_durable_transaction() {
    if let Some(path) = std::env::var_os(CHILD) {
        return commit(Path::new(&path));
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = seed.as_nanos() as u64;
    println!("seed {seed}");
    let mut numbers = Numbers(seed);
    let mut known = BTreeMap::new();
    let mut before = 0;
    let start = Instant::now();
    for round in 0..ROUNDS {
        if round >= ENOUGH && start.elapsed() > AT_MOST {
            println!("{round} rounds were enough");
            break;
        }
        let mut victim = Victim::start(&path);
        // Some are killed while they open the database.
        let transactions = numbers.below(8) * numbers.below(8);
        while transactions > 0 && victim.begun < before + transactions {
            assert!(victim.hear(), "round {round}: it ended by itself");
        }
        // Anywhere in a transaction.
        std::thread::sleep(Duration::from_micros(numbers.below(30_000)));
        let (begun, durable) = victim.kill();

        let (cache, mut db) = open(&path);
        assert!(db.check_integrity().unwrap(), "round {round}");
        let found = last(&db);
        assert!(
            found >= durable.max(before) && found <= begun.max(before),
            "round {round}: {found} was the last; {durable} was durable, {begun} begun"
        );
        assert!(
            found == 0 || transaction(found).1,
            "round {round}: {found} was not durable, nor anything after it"
        );
        for number in before + 1..=found {
            for (key, value) in transaction(number).0 {
                match value {
                    Some(value) => _ = known.insert(key, value),
                    None => _ = known.remove(&key),
                }
            }
        }
        if found > 0 {
            let read = db.begin_read().unwrap();
            let data = read.open_table(DATA).unwrap();
            assert_eq!(data.len().unwrap(), known.len() as u64, "round {round}");
            for (entry, (key, value)) in data.iter().unwrap().zip(&known) {
                let (found, bytes) = entry.unwrap();
                assert_eq!(found.value(), *key, "round {round}");
                assert!(
                    bytes.value() == value.as_slice(),
                    "round {round}: key {key}"
                );
            }
        }
        before = found;
        drop(db);
        cache.close().unwrap();
    }
    println!("{before} transactions, {} keys", known.len());
}
