//! The service, through an operator as programs use it.

use foliocache::Cache;
use futures_util::TryStreamExt;
use opendal::{EntryMode, ErrorKind, Operator};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

fn service(memory: &str) -> (Cache, Operator, TempDir) {
    let source = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let cache = Cache::builder().memory(memory).build().unwrap();
    let directory = cache.directory(source.path()).unwrap();
    let operator = foliocache_opendal::operator(directory).unwrap();
    (cache, operator, source)
}

fn pattern(seed: u64, len: u64) -> Vec<u8> {
    let byte =
        |at: u64| ((at + seed * 0x9e37_79b9).wrapping_mul(0xff51_afd7_ed55_8ccd) >> 56) as u8;
    (0..len).map(byte).collect()
}

fn files(path: &Path) -> usize {
    fs::read_dir(path).unwrap().count()
}

#[tokio::test]
async fn a_write_is_read_and_is_in_the_source() {
    let (_cache, operator, source) = service("16M");
    let bytes = pattern(1, 3_000_000);
    let metadata = operator.write("a/b/c", bytes.clone()).await.unwrap();
    assert_eq!(metadata.content_length(), 3_000_000);
    assert_eq!(operator.read("a/b/c").await.unwrap().to_vec(), bytes);
    assert_eq!(fs::read(source.path().join("a/b/c")).unwrap(), bytes);
    for range in [0..1, 4_095..4_097, 1_000_000..2_999_999] {
        let read = operator
            .read_with("a/b/c")
            .range(range.clone())
            .await
            .unwrap();
        assert_eq!(
            read.to_vec(),
            bytes[range.start as usize..range.end as usize]
        );
    }
    let read = operator
        .read_with("a/b/c")
        .range(2_999_990..)
        .await
        .unwrap();
    assert_eq!(read.to_vec(), bytes[2_999_990..]);
    let past = operator
        .read_with("a/b/c")
        .range(2_999_999..3_000_001)
        .await;
    assert_eq!(past.unwrap_err().kind(), ErrorKind::RangeNotSatisfied);
    assert_eq!(files(&source.path().join("a/b")), 1);
}

#[tokio::test]
async fn more_than_the_cache_has_is_read_within_the_bound() {
    let (cache, operator, _source) = service("16M");
    let bytes = pattern(2, 40 << 20);
    operator.write("large", bytes.clone()).await.unwrap();
    let reader = operator.reader("large").await.unwrap();
    let mut stream = reader.into_bytes_stream(..).await.unwrap();
    let mut at = 0;
    while let Some(piece) = stream.try_next().await.unwrap() {
        assert!(piece == bytes[at..at + piece.len()], "{at}");
        at += piece.len();
        let memory = cache.stats().unwrap().memory;
        assert!(memory.total_bytes() <= memory.limit_bytes, "{memory:?}");
    }
    assert_eq!(at, bytes.len());
}

#[tokio::test]
async fn a_reader_has_the_old_content_or_the_new_one() {
    let (_cache, operator, source) = service("16M");
    let (old, new) = (pattern(1, 500_000), pattern(2, 700_000));
    operator.write("file", old.clone()).await.unwrap();
    let mut writer = operator.writer("file").await.unwrap();
    writer.write(new[..300_000].to_vec()).await.unwrap();
    assert_eq!(operator.read("file").await.unwrap().to_vec(), old);
    writer.write(new[300_000..].to_vec()).await.unwrap();
    assert_eq!(operator.read("file").await.unwrap().to_vec(), old);
    let listed: Vec<_> = operator.list("/").await.unwrap();
    let listed: Vec<_> = listed.iter().map(|entry| entry.path()).collect();
    assert_eq!(listed, ["/", "file"], "hidden files");
    writer.close().await.unwrap();
    assert_eq!(operator.read("file").await.unwrap().to_vec(), new);
    assert_eq!(files(source.path()), 1);
}

#[tokio::test]
async fn a_writer_that_is_aborted_or_dropped_leaves_nothing() {
    let (_cache, operator, source) = service("16M");
    let mut writer = operator.writer("file").await.unwrap();
    writer.write("half").await.unwrap();
    writer.abort().await.unwrap();
    let mut writer = operator.writer("file").await.unwrap();
    writer.write("half").await.unwrap();
    drop(writer);
    assert!(!operator.exists("file").await.unwrap());
    assert_eq!(files(source.path()), 0);
}

#[tokio::test]
async fn appends_go_to_the_end_and_an_existing_path_is_not_replaced_if_that_is_asked_for() {
    let (_cache, operator, _source) = service("16M");
    for word in ["one ", "two ", "three"] {
        operator.write_with("log", word).append(true).await.unwrap();
    }
    assert_eq!(
        operator.read("log").await.unwrap().to_vec(),
        b"one two three"
    );
    let refused = operator.write_with("log", "x").if_not_exists(true).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConditionNotMatch);
    assert_eq!(
        operator.read("log").await.unwrap().to_vec(),
        b"one two three"
    );
    operator
        .write_with("new", "x")
        .if_not_exists(true)
        .await
        .unwrap();
    assert_eq!(operator.list("/").await.unwrap().len(), 3);
    operator.write("empty", "").await.unwrap();
    assert_eq!(operator.stat("empty").await.unwrap().content_length(), 0);
    assert!(operator.read("empty").await.unwrap().is_empty());
}

#[tokio::test]
async fn paths_are_listed_moved_and_removed() {
    let (_cache, operator, source) = service("16M");
    for path in ["a/1", "a/2", "a/deep/3", "b"] {
        operator.write(path, path).await.unwrap();
    }
    operator.create_dir("a/none/").await.unwrap();
    let list = async |path: &str, recursive: bool| {
        let entries = operator.list_with(path).recursive(recursive).await.unwrap();
        let mut paths: Vec<_> = entries
            .iter()
            .map(|entry| entry.path().to_owned())
            .collect();
        paths.sort();
        paths
    };
    assert_eq!(
        list("a/", false).await,
        ["a/", "a/1", "a/2", "a/deep/", "a/none/"]
    );
    assert_eq!(
        list("a/", true).await,
        ["a/", "a/1", "a/2", "a/deep/", "a/deep/3", "a/none/"]
    );
    assert_eq!(list("a/d", false).await, ["a/deep/"]);
    assert!(list("missing/", false).await.is_empty());
    assert_eq!(operator.stat("a/").await.unwrap().mode(), EntryMode::DIR);
    assert_eq!(operator.stat("a/1").await.unwrap().mode(), EntryMode::FILE);
    assert!(
        operator
            .stat("a/1")
            .await
            .unwrap()
            .last_modified()
            .is_some()
    );

    operator.rename("a/1", "c/moved").await.unwrap();
    assert_eq!(operator.read("c/moved").await.unwrap().to_vec(), b"a/1");
    assert!(!operator.exists("a/1").await.unwrap());
    let missing = operator.rename("a/1", "d/moved").await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert!(!source.path().join("d").exists());

    operator.delete("a/2").await.unwrap();
    operator.delete("a/2").await.unwrap(); // it is gone already
    operator.delete("a/none/").await.unwrap();
    operator.delete_with("a/").recursive(true).await.unwrap();
    assert_eq!(list("/", false).await, ["/", "b", "c/"]);
}

#[tokio::test]
async fn a_copy_or_rename_replaces_nothing_if_it_may_not() {
    let (_cache, operator, source) = service("16M");
    let bytes = pattern(3, 5_000_000);
    operator.write("from", bytes.clone()).await.unwrap();
    operator.write("there", "old").await.unwrap();

    let copied = operator
        .copy_with("from", "there")
        .if_not_exists(true)
        .await;
    assert_eq!(copied.unwrap_err().kind(), ErrorKind::ConditionNotMatch);
    let renamed = operator
        .rename_with("from", "there")
        .if_not_exists(true)
        .await;
    assert_eq!(renamed.unwrap_err().kind(), ErrorKind::ConditionNotMatch);
    assert_eq!(operator.read("there").await.unwrap().to_vec(), b"old");
    assert_eq!(files(source.path()), 2, "a copy that failed left a file");

    operator
        .copy_with("from", "new")
        .if_not_exists(true)
        .await
        .unwrap();
    assert_eq!(operator.read("new").await.unwrap().to_vec(), bytes);
    operator.copy("from", "deep/below/there").await.unwrap();
    assert_eq!(
        fs::read(source.path().join("deep/below/there")).unwrap(),
        bytes
    );
    operator
        .rename_with("from", "moved")
        .if_not_exists(true)
        .await
        .unwrap();
    assert!(!operator.exists("from").await.unwrap());
    let missing = operator.copy("from", "nothing/there").await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert!(!source.path().join("nothing").exists());
}

#[tokio::test]
async fn bytes_that_are_kept_are_no_copies_and_stay_as_they_were() {
    let (cache, operator, _source) = service("16M");
    let bytes = pattern(4, 2 << 20);
    operator.write("file", bytes.clone()).await.unwrap();
    let kept = operator.read("file").await.unwrap();
    assert_eq!(cache.stats().unwrap().views_copied, 0);
    // All else leaves the cache meanwhile.
    operator.write("file", "new").await.unwrap();
    operator.write("large", pattern(5, 40 << 20)).await.unwrap();
    assert!(operator.read("large").await.unwrap().to_vec() == pattern(5, 40 << 20));
    assert!(kept.to_vec() == bytes);
    assert_eq!(operator.read("file").await.unwrap().to_vec(), b"new");
}

#[tokio::test]
async fn errors_have_their_kind_and_their_cause() {
    let (_cache, operator, source) = service("16M");
    let missing = operator.read("missing").await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    let missing = operator.stat("missing").await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    fs::create_dir(source.path().join("directory")).unwrap();
    fs::write(source.path().join("file"), b"x").unwrap();
    let full = operator.delete("full/").await;
    assert!(full.is_ok(), "it is missing");
    operator.write("full/file", "x").await.unwrap();
    let full = operator.delete("full/").await.unwrap_err();
    assert_eq!(full.kind(), ErrorKind::Conflict, "{full}");
    let not_there = operator.stat("file/").await.unwrap_err();
    assert_eq!(not_there.kind(), ErrorKind::NotFound);
    let below = operator.read("file/below").await.unwrap_err();
    assert_eq!(below.kind(), ErrorKind::NotADirectory);
    std::os::unix::fs::symlink("/etc", source.path().join("out")).unwrap();
    let escape = operator.read("out/passwd").await.unwrap_err();
    assert_eq!(escape.kind(), ErrorKind::PermissionDenied, "{escape}");
    assert!(escape.to_string().contains("leads out of"), "{escape}");
}

#[tokio::test]
async fn changes_of_other_programs_are_seen() {
    let (_cache, operator, source) = service("16M");
    operator.write("file", "ours").await.unwrap();
    fs::write(source.path().join("new"), b"theirs").unwrap();
    fs::rename(source.path().join("new"), source.path().join("file")).unwrap();
    // Within some ten milliseconds.
    for _ in 0..1000 {
        if operator.read("file").await.unwrap().to_vec() == b"theirs" {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    panic!("it is not seen");
}
