//! Transactions that are known from their number: what tests of crashes share.
//!
//! # Model
//!
//! Transaction `n` does what follows from `n`. So a database is known from the number of the last one alone.
#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    reason = "every test file uses a part of it"
)]

use foliocache::Cache;
use foliocache_redb::FolioBackend;
use redb::{
    Builder, Database, Durability, ReadableDatabase, ReadableTable, ReadableTableMetadata,
    TableDefinition,
};
use std::collections::BTreeMap;
use std::path::Path;

/// The number of the last transaction, at key 0.
const LAST: TableDefinition<u64, u64> = TableDefinition::new("last");
const DATA: TableDefinition<u64, &[u8]> = TableDefinition::new("data");

const KEYS: u64 = 3_000;

/// Numbers that follow from a seed (splitmix64).
pub struct Numbers(pub u64);

impl Numbers {
    pub fn below(&mut self, end: u64) -> u64 {
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

pub fn open(path: &Path) -> (Cache, Database) {
    let cache = Cache::builder().memory("16M").build().unwrap();
    let backend = FolioBackend::create(&cache, path).unwrap();
    let mut builder = Builder::new();
    builder.set_cache_size(1 << 20);
    (cache, builder.create_with_backend(backend).unwrap())
}

/// The number of the last transaction; 0 if there was none.
pub fn last(db: &Database) -> u64 {
    let transaction = db.begin_read().unwrap();
    let Ok(table) = transaction.open_table(LAST) else {
        return 0;
    };
    table.get(0).unwrap().map_or(0, |last| last.value())
}

pub fn is_durable(number: u64) -> bool {
    transaction(number).1
}

/// Commits transaction `number`. Returns whether it is durable.
pub fn commit_one(db: &Database, number: u64) -> bool {
    let (changes, is_durable) = transaction(number);
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
    is_durable
}

/// What a database holds after some transactions.
#[derive(Default)]
pub struct Known {
    last: u64,
    data: BTreeMap<u64, Vec<u8>>,
}

impl Known {
    /// Does the transactions up to `last`, which is none that was done before.
    pub fn go_on(&mut self, last: u64) {
        for number in self.last + 1..=last {
            for (key, value) in transaction(number).0 {
                match value {
                    Some(value) => _ = self.data.insert(key, value),
                    None => _ = self.data.remove(&key),
                }
            }
        }
        self.last = last;
    }

    /// Compares; `about` begins the message of a failure.
    pub fn check(&self, db: &Database, about: &str) {
        if self.last == 0 {
            return;
        }
        let read = db.begin_read().unwrap();
        let data = read.open_table(DATA).unwrap();
        assert_eq!(data.len().unwrap(), self.data.len() as u64, "{about}");
        for (entry, (key, value)) in data.iter().unwrap().zip(&self.data) {
            let (found, bytes) = entry.unwrap();
            assert_eq!(found.value(), *key, "{about}");
            assert!(bytes.value() == value.as_slice(), "{about}: key {key}");
        }
    }
}
