//! Unit tests of the judge of names.

use std::collections::BTreeMap;

use super::{Found, TreeOp, TreeOracle};
use crate::{Fill, tree::How};

fn create(path: &str) -> TreeOp {
    TreeOp::Create { path: path.into() }
}

fn mkdir(path: &str) -> TreeOp {
    TreeOp::Mkdir { path: path.into() }
}

fn write(path: &str, fill: u64) -> TreeOp {
    TreeOp::Write {
        path: path.into(),
        pos: 0,
        len: 10,
        fill: Fill(fill),
        how: How::Plain,
    }
}

fn rename(from: &str, to: &str) -> TreeOp {
    let (from, to) = (from.into(), to.into());
    TreeOp::Rename { from, to }
}

fn sync_all(path: &str) -> TreeOp {
    TreeOp::SyncAll { path: path.into() }
}

fn sync_dir(path: &str) -> TreeOp {
    TreeOp::SyncDir { path: path.into() }
}

fn oracle(operations: &[TreeOp]) -> TreeOracle {
    let mut oracle = TreeOracle::default();
    for operation in operations {
        oracle.record(operation);
        oracle.acknowledge(operation);
    }
    oracle
}

fn dir<const N: usize>(entries: [(&str, Found); N]) -> Found {
    let entries = entries.map(|(name, found)| (name.to_owned(), found));
    Found::Dir(BTreeMap::from(entries))
}

fn file(fill: u64) -> Found {
    Found::File(Fill(fill).bytes(0, 10))
}

fn empty() -> Found {
    Found::File(Vec::new())
}

#[test]
fn a_new_file_is_there_or_not_until_it_is_synced() {
    let unsynced = oracle(&[create("a"), write("a", 1)]);
    for allowed in [dir([]), dir([("a", empty())]), dir([("a", file(1))])] {
        assert_eq!(unsynced.check(&allowed), Ok(()));
    }
    assert!(unsynced.check(&dir([("a", file(2))])).is_err());
    assert!(unsynced.check(&dir([("b", file(1))])).is_err());
    let synced = oracle(&[create("a"), write("a", 1), sync_all("a")]);
    assert_eq!(synced.check(&dir([("a", file(1))])), Ok(()));
    for lost in [dir([]), dir([("a", empty())])] {
        assert!(synced.check(&lost).is_err());
    }
}

#[test]
fn a_synced_file_brings_its_directories() {
    let path = "d/e/a";
    let made = [mkdir("d"), mkdir("d/e"), create(path), write(path, 1)];
    let synced = oracle(&[&made[..], &[sync_all(path)]].concat());
    let e = dir([("a", file(1))]);
    assert_eq!(synced.check(&dir([("d", dir([("e", e)]))])), Ok(()));
    for lost in [
        dir([]),
        dir([("d", dir([]))]),
        dir([("d", dir([("e", dir([]))]))]),
    ] {
        assert!(synced.check(&lost).is_err());
    }
    // The names of one directory alone.
    let named = oracle(&[&made[..], &[sync_dir("d")]].concat());
    assert_eq!(named.check(&dir([])), Ok(()));
    assert_eq!(named.check(&dir([("d", dir([("e", dir([]))]))])), Ok(()));
    assert!(named.check(&dir([("d", dir([]))])).is_err());
}

#[test]
fn a_renamed_file_has_its_old_name_or_its_new_one() {
    let made = [create("a"), write("a", 1), sync_all("a"), rename("a", "b")];
    let renamed = oracle(&made);
    assert_eq!(renamed.check(&dir([("a", file(1))])), Ok(()));
    assert_eq!(renamed.check(&dir([("b", file(1))])), Ok(()));
    assert!(renamed.check(&dir([])).is_err());
    for sync in [sync_all("b"), sync_dir(".")] {
        let synced = oracle(&[&made[..], &[sync]].concat());
        assert_eq!(synced.check(&dir([("b", file(1))])), Ok(()));
        assert!(synced.check(&dir([("a", file(1))])).is_err());
    }
}

#[test]
fn a_replaced_file_is_the_old_one_or_the_new_one() {
    let made = [
        create("a"),
        write("a", 1),
        sync_all("a"),
        create("n"),
        write("n", 2),
        TreeOp::SyncData { path: "n".into() },
        rename("n", "a"),
    ];
    let replaced = oracle(&made);
    for allowed in [
        dir([("a", file(1))]),
        dir([("a", file(2))]),
        dir([("a", file(1)), ("n", file(2))]),
    ] {
        assert_eq!(replaced.check(&allowed), Ok(()));
    }
    assert!(replaced.check(&dir([])).is_err());
    assert!(replaced.check(&dir([("a", empty())])).is_err());
    let synced = oracle(&[&made[..], &[sync_dir(".")]].concat());
    assert_eq!(synced.check(&dir([("a", file(2))])), Ok(()));
    assert!(synced.check(&dir([("a", file(1))])).is_err());
    assert!(
        synced
            .check(&dir([("a", file(2)), ("n", file(2))]))
            .is_err()
    );
}

#[test]
fn removed_names_are_gone_after_a_sync_of_the_directory() {
    let unlink = TreeOp::Unlink { path: "a".into() };
    let made = [create("a"), write("a", 1), sync_all("a"), unlink];
    let removed = oracle(&made);
    assert_eq!(removed.check(&dir([("a", file(1))])), Ok(()));
    assert_eq!(removed.check(&dir([])), Ok(()));
    let synced = oracle(&[&made[..], &[sync_dir(".")]].concat());
    assert_eq!(synced.check(&dir([])), Ok(()));
    assert!(synced.check(&dir([("a", file(1))])).is_err());
}

#[test]
fn every_name_of_a_linked_file_is_promised() {
    let (existing, new) = ("a".into(), "b".into());
    let link = TreeOp::Link { existing, new };
    let linked = oracle(&[create("a"), write("a", 1), link, sync_all("a")]);
    assert_eq!(linked.check(&dir([("a", file(1)), ("b", file(1))])), Ok(()));
    assert!(linked.check(&dir([("a", file(1))])).is_err());
    assert!(linked.check(&dir([("b", file(1))])).is_err());
}

#[test]
fn an_oracle_promises_the_tree_it_was_made_from() {
    let found = dir([("a", file(1)), ("d", dir([("b", empty())]))]);
    let oracle = TreeOracle::from_found(&found);
    assert_eq!(oracle.check(&found), Ok(()));
    assert!(oracle.check(&dir([("a", file(1))])).is_err());
    assert_eq!(oracle.size("d/b"), Some(0));
    assert_eq!(oracle.directory("d"), Some(1));
}
