//! Indexes on the library: the answers are those of tantivy's own directories, and the bound is kept.

mod common;

use common::{answers, directory, document, ids, schema};
use foliocache::Cache;
use foliocache_tantivy::FoliocacheDirectory;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use tantivy::directory::{MmapDirectory, RamDirectory};
use tantivy::indexer::NoMergePolicy;
use tantivy::{Directory, Index, IndexReader, IndexSettings, IndexWriter, ReloadPolicy, Term};

const QUERIES: [&str; 7] = [
    "w1",
    "w900",
    "only77",
    "\"w0 w1\"",
    "w3 AND w5",
    "w7 OR w4000 OR only300",
    "missing",
];

/// More than a small index has.
const ALL: usize = 10_000;

fn create(directory: impl Into<Box<dyn Directory>>) -> Index {
    Index::create(directory, schema(), IndexSettings::default()).unwrap()
}

/// Says which query has another answer, and not all the answers.
fn same<T: PartialEq>(ours: &[T], theirs: &[T]) {
    assert_eq!(ours.len(), theirs.len());
    for (query, (ours, theirs)) in QUERIES.iter().zip(ours.iter().zip(theirs)) {
        assert!(ours == theirs, "{query}");
    }
}

fn writer(index: &Index) -> IndexWriter {
    index.writer_with_num_threads(1, 20_000_000).unwrap()
}

/// Commits, deletes, merges, collects garbage; the same on each call.
fn build(index: &Index) {
    let (schema, mut writer) = (index.schema(), writer(index));
    writer.set_merge_policy(Box::new(NoMergePolicy));
    let id = schema.get_field("id").unwrap();
    for commit in 0..6 {
        // From then on the statistics that scores are made of do not depend on which segments there are.
        if commit == 4 {
            let segments = index.searchable_segment_ids().unwrap();
            assert_eq!(segments.len(), 4);
            writer.merge(&segments).wait().unwrap();
            writer.garbage_collect_files().wait().unwrap();
        }
        for number in commit * 500..(commit + 1) * 500 {
            writer.add_document(document(&schema, number)).unwrap();
        }
        if commit < 4 {
            writer.delete_term(Term::from_field_u64(id, commit * 400));
        }
        writer.commit().unwrap();
    }
    assert_eq!(index.searchable_segment_ids().unwrap().len(), 3);
    writer.wait_merging_threads().unwrap();
}

#[test]
fn an_index_answers_as_in_memory_and_as_through_mmap() {
    let (cache, directory, source) = directory(32);
    let (ours, memory) = (create(directory), create(RamDirectory::create()));
    build(&ours);
    build(&memory);
    assert_eq!(ids(&ours), ids(&memory));
    assert_eq!(ids(&ours).len(), 6 * 500 - 4);
    let expected = answers(&memory, &QUERIES, ALL);
    assert!(expected[0].0 > 100 && expected[2].0 == 1 && expected[6].0 == 0);
    same(&answers(&ours, &QUERIES, ALL), &expected);
    assert!(ours.validate_checksum().unwrap().is_empty());

    // What is on the disk is an index like any other.
    let mmap = Index::open(MmapDirectory::open(source.path()).unwrap()).unwrap();
    same(&answers(&mmap, &QUERIES, ALL), &expected);
    assert!(mmap.validate_checksum().unwrap().is_empty());
    drop((ours, mmap, cache));

    // And the reverse.
    let cache = common::cache(32);
    let again = FoliocacheDirectory::open(&cache, source.path()).unwrap();
    let again = Index::open(again).unwrap();
    same(&answers(&again, &QUERIES, ALL), &expected);
    // Garbage is gone: what is left belongs to the index or is a lock.
    let managed = again.directory().list_managed_files();
    for entry in std::fs::read_dir(source.path()).unwrap() {
        let name = entry.unwrap().file_name();
        let is_lock = name.to_string_lossy().ends_with(".lock");
        let is_list = name == ".managed.json";
        assert!(
            is_lock || is_list || managed.contains(std::path::Path::new(&name)),
            "{name:?}"
        );
    }
}

#[test]
fn every_read_may_be_mapped() {
    let (_cache, directory, _source) = directory(32);
    let directory = directory.map_from(0);
    let (ours, memory) = (create(directory.clone()), create(RamDirectory::create()));
    build(&ours);
    build(&memory);
    same(
        &answers(&ours, &QUERIES, ALL),
        &answers(&memory, &QUERIES, ALL),
    );
    let stats = directory.read_stats();
    assert!(stats.mapped > 100, "{stats:?}");
    assert_eq!((stats.views, stats.copies, stats.heap_copies), (0, 0, 0));
}

/// Looks at the memory of the cache as long as `act` runs.
fn within_the_bound<T>(cache: &Cache, act: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let look = scope.spawn(|| {
            while !over.load(SeqCst) {
                let memory = cache.stats().unwrap().memory;
                assert!(memory.total_bytes() <= memory.limit_bytes, "{memory:?}");
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
        over.store(true, SeqCst);
        look.join().unwrap();
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[test]
fn an_index_larger_than_the_bound_is_built_merged_and_searched_within_it() {
    let (cache, directory, source) = directory(16);
    let index = create(directory.clone());
    const DOCUMENTS: u64 = 40_000;
    within_the_bound(&cache, || {
        let (schema, mut writer) = (index.schema(), writer(&index));
        writer.set_merge_policy(Box::new(NoMergePolicy));
        for number in 0..DOCUMENTS {
            writer.add_document(document(&schema, number)).unwrap();
            if number % 10_000 == 9_999 {
                writer.commit().unwrap();
            }
        }
        // The documents of a segment are read whole.
        let segments = index.searchable_segment_ids().unwrap();
        writer.merge(&segments).wait().unwrap();
        writer.garbage_collect_files().wait().unwrap();
        writer.wait_merging_threads().unwrap();
        assert_eq!(ids(&index), (0..DOCUMENTS).collect::<Vec<_>>());
    });
    let on_disk: u64 = std::fs::read_dir(source.path())
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    let bound = cache.stats().unwrap().memory.limit_bytes;
    assert!(
        on_disk > bound * 5 / 4,
        "the index has {on_disk} bytes only"
    );
    let ours = within_the_bound(&cache, || answers(&index, &QUERIES, 20));
    let mmap = Index::open(MmapDirectory::open(source.path()).unwrap()).unwrap();
    same(&ours, &answers(&mmap, &QUERIES, 20));
    let stats = directory.read_stats();
    assert!(stats.views > 0 && stats.mapped > 0, "{stats:?}");
    assert_eq!(stats.heap_copies, 0, "{stats:?}");
}

/// A searcher with a cache of its own, as another process would have it.
#[test]
fn a_reader_with_another_cache_follows_the_writer() {
    let (_cache, directory, source) = directory(16);
    let index = create(directory);
    let (schema, mut writer) = (index.schema(), writer(&index));
    let policy = tantivy::indexer::LogMergePolicy::default();
    writer.set_merge_policy(Box::new(policy));
    writer.add_document(document(&schema, 0)).unwrap();
    writer.commit().unwrap();

    let other = common::cache(16);
    let other = FoliocacheDirectory::open_read_only(&other, source.path()).unwrap();
    let other = Index::open(other).unwrap();
    let reader: IndexReader = other
        .reader_builder()
        .reload_policy(ReloadPolicy::Manual)
        .try_into()
        .unwrap();
    for number in 1..40 {
        let old = reader.searcher();
        writer.add_document(document(&schema, number)).unwrap();
        writer.commit().unwrap();
        reader.reload().unwrap();
        assert_eq!(reader.searcher().num_docs(), number + 1);
        writer.garbage_collect_files().wait().unwrap();
        // Its files may be gone by now. It has them.
        assert_eq!(old.num_docs(), number);
        for segment in old.segment_readers() {
            let store = segment.get_store_reader(0).unwrap();
            let documents = store
                .iter::<tantivy::TantivyDocument>(None)
                .map(Result::unwrap);
            assert_eq!(documents.count(), segment.max_doc() as usize);
        }
    }
    assert!(
        reader.searcher().segment_readers().len() < 40,
        "nothing was merged"
    );
}

#[test]
fn a_reader_reloads_on_commit() {
    let (_cache, directory, _source) = directory(16);
    let index = create(directory);
    let reader: IndexReader = index
        .reader_builder()
        .reload_policy(ReloadPolicy::OnCommitWithDelay)
        .try_into()
        .unwrap();
    let (schema, mut writer) = (index.schema(), writer(&index));
    for number in 0..5 {
        writer.add_document(document(&schema, number)).unwrap();
        writer.commit().unwrap();
        common::wait_until("the commit is seen", || {
            reader.searcher().num_docs() == number + 1
        });
    }
}

#[test]
fn one_writer_at_a_time() {
    let (_cache, directory, _source) = directory(16);
    let index = create(directory);
    let first = writer(&index);
    assert!(
        index
            .writer_with_num_threads::<tantivy::TantivyDocument>(1, 20_000_000)
            .is_err()
    );
    drop(first);
    let _second = writer(&index);
}
