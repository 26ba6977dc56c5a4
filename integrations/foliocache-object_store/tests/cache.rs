//! The cache beside a store in memory that counts what it is asked, and is changed behind the cache's back.

use bytes::Bytes;
use foliocache::Cache;
use foliocache_object_store::CachedStore;
use futures_util::{StreamExt, TryStreamExt, stream::BoxStream};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetRange, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use tempfile::TempDir;

const KIB: u64 = 1024;
const CHUNK: u64 = 64 * KIB;

/// A store in memory that counts.
#[derive(Debug, Default)]
struct Counting {
    memory: InMemory,
    heads: AtomicU64,
    gets: AtomicU64,
    /// Gives no ETags.
    is_anonymous: AtomicBool,
    fails: AtomicBool,
    /// Replaces an object just before the next GET of bytes.
    replace: std::sync::Mutex<Option<(Path, Bytes)>>,
    /// GETs of bytes wait as long as somebody holds it.
    gate: tokio::sync::RwLock<()>,
}

impl Counting {
    fn heads(&self) -> u64 {
        self.heads.load(SeqCst)
    }

    fn gets(&self) -> u64 {
        self.gets.load(SeqCst)
    }
}

impl fmt::Display for Counting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Counting")
    }
}

#[async_trait::async_trait]
impl ObjectStore for Counting {
    async fn put_opts(&self, at: &Path, payload: PutPayload, how: PutOptions) -> Result<PutResult> {
        self.memory.put_opts(at, payload, how).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        how: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.memory.put_multipart_opts(at, how).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        let counter = if options.head {
            &self.heads
        } else {
            &self.gets
        };
        counter.fetch_add(1, SeqCst);
        if !options.head {
            drop(self.gate.read().await);
            let replace = self.replace.lock().unwrap().take();
            if let Some((path, bytes)) = replace {
                self.memory.put(&path, bytes.into()).await?;
            }
        }
        if self.fails.load(SeqCst) {
            return Err(Error::Generic {
                store: "Counting",
                source: "it fails".into(),
            });
        }
        let mut got = self.memory.get_opts(at, options).await?;
        if self.is_anonymous.load(SeqCst) {
            got.meta.e_tag = None;
        }
        Ok(got)
    }

    fn delete_stream(
        &self,
        at: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.memory.delete_stream(at)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.memory.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.memory.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, how: CopyOptions) -> Result<()> {
        self.memory.copy_opts(from, to, how).await
    }
}

type Store = CachedStore<Arc<Counting>>;

struct Fixture {
    store: Store,
    inner: Arc<Counting>,
    cache: Cache,
    scratch: TempDir,
}

fn fixture(capacity: u64) -> Fixture {
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let cache = Cache::builder().memory("16M").build().unwrap();
    let inner = Arc::new(Counting::default());
    let directory = cache.directory(scratch.path()).unwrap();
    let store = CachedStore::new(Arc::clone(&inner), directory, capacity).unwrap();
    Fixture {
        store: store.chunk_size(CHUNK),
        inner,
        cache,
        scratch,
    }
}

impl Fixture {
    /// Chunks on the disk.
    fn files(&self) -> usize {
        std::fs::read_dir(self.scratch.path()).unwrap().count()
    }
}

fn pattern(seed: u64, len: u64) -> Bytes {
    let byte =
        |at: u64| ((at + seed * 0x9e37_79b9).wrapping_mul(0xff51_afd7_ed55_8ccd) >> 56) as u8;
    (0..len).map(byte).collect()
}

fn path(name: &str) -> Path {
    Path::from(name)
}

#[tokio::test]
async fn what_was_read_once_is_not_fetched_again() {
    let f = fixture(1 << 30);
    let bytes = pattern(1, 5 * CHUNK + 777);
    let at = path("a/b");
    f.inner.memory.put(&at, bytes.clone().into()).await.unwrap();
    let got = f.store.get(&at).await.unwrap();
    assert_eq!(got.meta.size, bytes.len() as u64);
    assert_eq!(got.bytes().await.unwrap(), bytes);
    assert_eq!((f.inner.heads(), f.inner.gets()), (1, 6));
    for range in [
        0..1,
        0..CHUNK,
        CHUNK - 1..CHUNK + 1,
        3 * CHUNK + 5..5 * CHUNK + 777,
    ] {
        let got = f.store.get_range(&at, range.clone()).await.unwrap();
        assert_eq!(got, bytes.slice(range.start as usize..range.end as usize));
    }
    assert_eq!(
        f.store.get(&at).await.unwrap().bytes().await.unwrap(),
        bytes
    );
    // Each read asked whether the object is the same, and for nothing else.
    assert_eq!((f.inner.heads(), f.inner.gets()), (6, 6));
    let stats = f.store.stats();
    assert_eq!((stats.misses, stats.chunks, stats.evicted), (6, 6, 0));
    assert_eq!(stats.bytes, bytes.len() as u64);
}

#[tokio::test]
async fn a_range_fetches_its_chunks_alone() {
    let f = fixture(1 << 30);
    let bytes = pattern(2, 40 * CHUNK);
    let at = path("large");
    f.inner.memory.put(&at, bytes.clone().into()).await.unwrap();
    let range = 7 * CHUNK + 10..9 * CHUNK + 1;
    let got = f.store.get_range(&at, range.clone()).await.unwrap();
    assert_eq!(got, bytes.slice(range.start as usize..range.end as usize));
    assert_eq!(f.inner.gets(), 3);
    let footer = GetOptions::new().with_range(Some(GetRange::Suffix(8)));
    let got = f.store.get_opts(&at, footer).await.unwrap();
    assert_eq!(got.range, 40 * CHUNK - 8..40 * CHUNK);
    assert_eq!(got.bytes().await.unwrap(), bytes.slice(bytes.len() - 8..));
    assert_eq!(f.inner.gets(), 4);
    let ranges = [5..9, 8 * CHUNK..8 * CHUNK + 3, 39 * CHUNK..40 * CHUNK + 100];
    let got = f.store.get_ranges(&at, &ranges).await.unwrap();
    assert_eq!(got, f.inner.memory.get_ranges(&at, &ranges).await.unwrap());
    assert_eq!((f.inner.heads(), f.inner.gets()), (3, 5));
}

#[tokio::test]
async fn an_object_replaced_by_others_is_seen_by_the_next_read() {
    let f = fixture(1 << 30);
    let at = path("object");
    for round in 0..10 {
        let bytes = pattern(round, CHUNK + 1000 + round % 3);
        f.inner.memory.put(&at, bytes.clone().into()).await.unwrap();
        for _ in 0..2 {
            assert_eq!(
                f.store.get(&at).await.unwrap().bytes().await.unwrap(),
                bytes
            );
        }
    }
    assert_eq!(f.inner.gets(), 20);
    // The files of old versions are gone.
    assert_eq!(f.files(), 2);
    f.inner.memory.delete(&at).await.unwrap();
    let gone = f.store.get(&at).await.unwrap_err();
    assert!(matches!(gone, Error::NotFound { .. }), "{gone}");
    assert_eq!(f.store.stats().bytes, 0);
}

#[tokio::test]
async fn an_object_replaced_within_a_read_begins_it_anew() {
    let f = fixture(1 << 30);
    let at = path("object");
    let (old, new) = (pattern(1, 2 * CHUNK), pattern(2, 2 * CHUNK));
    f.inner.memory.put(&at, old.into()).await.unwrap();
    *f.inner.replace.lock().unwrap() = Some((at.clone(), new.clone()));
    assert_eq!(f.store.get(&at).await.unwrap().bytes().await.unwrap(), new);
    let newer = pattern(3, 2 * CHUNK);
    f.inner.memory.put(&at, new.into()).await.unwrap();
    *f.inner.replace.lock().unwrap() = Some((at.clone(), newer.clone()));
    let got = f
        .store
        .get_ranges(&at, &[0..9, CHUNK..CHUNK + 9])
        .await
        .unwrap();
    assert_eq!(
        got,
        [
            newer.slice(..9),
            newer.slice(CHUNK as usize..CHUNK as usize + 9)
        ]
    );
}

#[tokio::test]
async fn bytes_of_two_versions_are_never_mixed() {
    let f = fixture(1 << 30);
    let at = path("object");
    let (old, new) = (pattern(1, 20 * CHUNK), pattern(2, 20 * CHUNK));
    f.inner.memory.put(&at, old.clone().into()).await.unwrap();
    let mut stream = f.store.get(&at).await.unwrap().into_stream();
    let first = stream.next().await.unwrap().unwrap();
    assert_eq!(first, old.slice(..first.len()));
    f.inner.memory.put(&at, new.clone().into()).await.unwrap();
    let mut had = first.to_vec();
    let error = loop {
        match stream.next().await.expect("it cannot have all of it") {
            Ok(bytes) => had.extend_from_slice(&bytes),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Precondition { .. }), "{error}");
    assert_eq!(had, old[..had.len()]);
    assert_eq!(f.store.get(&at).await.unwrap().bytes().await.unwrap(), new);
}

#[tokio::test]
async fn believed_objects_are_not_asked_for() {
    let f = fixture(1 << 30);
    let store = f.store.clone().revalidate_after(Duration::MAX);
    let (at, bytes) = (path("immutable"), pattern(1, 3 * CHUNK));
    f.inner.memory.put(&at, bytes.clone().into()).await.unwrap();
    for _ in 0..5 {
        assert_eq!(store.get(&at).await.unwrap().bytes().await.unwrap(), bytes);
        assert_eq!(store.head(&at).await.unwrap().size, 3 * CHUNK);
    }
    assert_eq!((f.inner.heads(), f.inner.gets()), (1, 3));
    // Changes through the store, or a clone, are known.
    let new = pattern(2, CHUNK);
    f.store.put(&at, new.clone().into()).await.unwrap();
    assert_eq!(store.get(&at).await.unwrap().bytes().await.unwrap(), new);
    let mut upload = f.store.put_multipart(&at).await.unwrap();
    upload.put_part(bytes.clone().into()).await.unwrap();
    assert_eq!(store.get(&at).await.unwrap().bytes().await.unwrap(), new);
    upload.complete().await.unwrap();
    assert_eq!(store.get(&at).await.unwrap().bytes().await.unwrap(), bytes);
    f.store
        .put(&path("other"), new.clone().into())
        .await
        .unwrap();
    f.store.copy(&path("other"), &at).await.unwrap();
    assert_eq!(store.get(&at).await.unwrap().bytes().await.unwrap(), new);
    f.store.rename(&at, &path("moved")).await.unwrap();
    assert!(matches!(store.get(&at).await, Err(Error::NotFound { .. })));
    assert_eq!(
        store
            .get(&path("moved"))
            .await
            .unwrap()
            .bytes()
            .await
            .unwrap(),
        new
    );
    f.store.delete(&path("moved")).await.unwrap();
    assert!(matches!(
        store.get(&path("moved")).await,
        Err(Error::NotFound { .. })
    ));
    // What was believed wrongly is found out by the first chunk that is missing.
    f.inner.memory.put(&at, bytes.clone().into()).await.unwrap();
    store.get_range(&at, 0..10).await.unwrap();
    f.inner
        .memory
        .put(&at, pattern(9, 3 * CHUNK).into())
        .await
        .unwrap();
    let got = store.get_range(&at, CHUNK..CHUNK + 10).await.unwrap();
    assert_eq!(
        got,
        pattern(9, 3 * CHUNK).slice(CHUNK as usize..CHUNK as usize + 10)
    );
}

#[tokio::test]
async fn preconditions_and_ranges_end_as_in_the_inner_store() {
    let f = fixture(1 << 30);
    let (at, bytes) = (path("object"), pattern(1, 1000));
    let put = f.inner.memory.put(&at, bytes.into()).await.unwrap();
    let (e_tag, other) = (put.e_tag.unwrap(), "\"other\"".to_owned());
    let options = [
        GetOptions::new().with_if_match(Some(e_tag.clone())),
        GetOptions::new().with_if_match(Some(other.clone())),
        GetOptions::new().with_if_none_match(Some(e_tag)),
        GetOptions::new().with_if_none_match(Some(other)),
        GetOptions::new().with_range(Some(0..5000)),
        GetOptions::new().with_range(Some(1000..1001)),
        GetOptions::new().with_range(Some(5..5)),
        GetOptions::new().with_range(Some(GetRange::Offset(999))),
        GetOptions::new().with_range(Some(GetRange::Offset(1000))),
        GetOptions::new().with_range(Some(GetRange::Suffix(0))),
        GetOptions::new().with_range(Some(GetRange::Suffix(4000))),
        GetOptions::new().with_head(true),
    ];
    for options in options {
        let ours = f.store.get_opts(&at, options.clone()).await;
        let theirs = f.inner.memory.get_opts(&at, options.clone()).await;
        match (ours, theirs) {
            (Ok(ours), Ok(theirs)) => {
                assert_eq!((&ours.meta, &ours.range), (&theirs.meta, &theirs.range));
                // A store in memory gives the bytes to those who ask for none, too.
                if !options.head {
                    assert_eq!(ours.bytes().await.unwrap(), theirs.bytes().await.unwrap());
                }
            }
            (Err(ours), Err(theirs)) => {
                let kinds = [&ours, &theirs].map(std::mem::discriminant);
                assert_eq!(kinds[0], kinds[1], "{options:?}: {ours}, {theirs}");
            }
            (ours, theirs) => panic!("{options:?}: {ours:?}, {theirs:?}"),
        }
    }
    f.inner.memory.put(&at, Bytes::new().into()).await.unwrap();
    assert!(
        f.store
            .get(&at)
            .await
            .unwrap()
            .bytes()
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn objects_without_an_e_tag_are_passed_through() {
    let f = fixture(1 << 30);
    f.inner.is_anonymous.store(true, SeqCst);
    let at = path("object");
    for round in 0..3 {
        let bytes = pattern(round, 1000);
        f.inner.memory.put(&at, bytes.clone().into()).await.unwrap();
        assert_eq!(
            f.store.get(&at).await.unwrap().bytes().await.unwrap(),
            bytes
        );
        let got = f.store.get_ranges(&at, &[3..9, 20..30]).await.unwrap();
        assert_eq!(got, [bytes.slice(3..9), bytes.slice(20..30)]);
    }
    assert_eq!((f.files(), f.store.stats().misses), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_readers_of_a_chunk_fetch_it_once() {
    let f = fixture(1 << 30);
    let (at, bytes) = (path("object"), pattern(1, CHUNK));
    f.inner.memory.put(&at, bytes.clone().into()).await.unwrap();
    let readers = (0..20).map(|_| {
        let (store, at) = (f.store.clone(), at.clone());
        tokio::spawn(async move { store.get_range(&at, 10..CHUNK).await.unwrap() })
    });
    for reader in readers.collect::<Vec<_>>() {
        assert_eq!(reader.await.unwrap(), bytes.slice(10..));
    }
    assert_eq!(f.inner.gets(), 1);
}

#[tokio::test]
async fn a_read_that_was_given_up_leaves_nothing_behind_and_is_taken_over() {
    let f = fixture(1 << 30);
    let (at, bytes) = (path("object"), pattern(1, CHUNK));
    f.inner.memory.put(&at, bytes.clone().into()).await.unwrap();
    let gate = f.inner.gate.write().await;
    let mut first = Box::pin(f.store.get_range(&at, 0..10));
    let soon = tokio::time::timeout(Duration::from_millis(20), &mut first).await;
    assert!(soon.is_err());
    drop(first);
    assert_eq!(f.store.stats().chunks, 0);
    drop(gate);
    assert_eq!(
        f.store.get_range(&at, 0..10).await.unwrap(),
        bytes.slice(..10)
    );
    assert_eq!(f.files(), 1);
}

#[tokio::test]
async fn a_failing_store_is_an_error_and_no_state() {
    let f = fixture(1 << 30);
    let (at, bytes) = (path("object"), pattern(1, CHUNK));
    f.inner.memory.put(&at, bytes.clone().into()).await.unwrap();
    let store = f.store.clone().revalidate_after(Duration::MAX);
    store.get_range(&at, 0..1).await.unwrap();
    f.inner.fails.store(true, SeqCst);
    // It is there, and believed.
    assert_eq!(
        store.get_range(&at, 0..10).await.unwrap(),
        bytes.slice(..10)
    );
    let error = f.store.get_range(&at, 0..10).await.unwrap_err();
    assert!(matches!(error, Error::Generic { .. }), "{error}");
    let error = store.get(&path("missing")).await.unwrap_err();
    assert!(matches!(error, Error::Generic { .. }), "{error}");
    f.inner.fails.store(false, SeqCst);
    assert_eq!(
        f.store.get_range(&at, 0..10).await.unwrap(),
        bytes.slice(..10)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_disk_and_the_memory_are_bounded() {
    // 24 MiB of objects, 8 MiB of disk for them.
    let f = fixture(8 << 20);
    let objects: Vec<_> = (0..12u64).map(|seed| pattern(seed, 2 << 20)).collect();
    for (number, bytes) in objects.iter().enumerate() {
        let at = path(&format!("object-{number}"));
        f.inner.memory.put(&at, bytes.clone().into()).await.unwrap();
    }
    let mut draw = 1u64;
    for _ in 0..600 {
        draw = draw
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        let (number, start) = ((draw >> 33) % 12, (draw >> 40) % ((2 << 20) - 1));
        let range = start..(start + (draw >> 20) % (3 * CHUNK) + 1).min(2 << 20);
        let at = path(&format!("object-{number}"));
        let got = f.store.get_range(&at, range.clone()).await.unwrap();
        let range: Range<usize> = range.start as usize..range.end as usize;
        assert!(
            got == objects[number as usize].slice(range.clone()),
            "{number}, {range:?}"
        );
        let memory = f.cache.stats().unwrap().memory;
        assert!(memory.total_bytes() <= memory.limit_bytes, "{memory:?}");
        assert!(f.store.stats().bytes <= 8 << 20);
    }
    let stats = f.store.stats();
    assert!(stats.hits > 100 && stats.evicted > 100, "{stats:?}");
    assert_eq!(stats.local_failures, 0, "{stats:?}");
    assert_eq!(f.files() as u64, stats.chunks);
}

#[tokio::test]
async fn a_chunk_that_is_lost_or_cut_on_the_disk_is_fetched_again() {
    let f = fixture(1 << 30);
    let (at, bytes) = (path("object"), pattern(1, 3 * CHUNK));
    f.inner.memory.put(&at, bytes.clone().into()).await.unwrap();
    f.store.get(&at).await.unwrap().bytes().await.unwrap();
    f.cache.sync().unwrap();
    for (number, entry) in std::fs::read_dir(f.scratch.path()).unwrap().enumerate() {
        let file = entry.unwrap().path();
        match number {
            0 => std::fs::remove_file(file).unwrap(),
            _ => std::fs::write(file, b"").unwrap(),
        }
    }
    // The cache notices within some ten milliseconds.
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(
        f.store.get(&at).await.unwrap().bytes().await.unwrap(),
        bytes
    );
    assert_eq!(f.inner.gets(), 6);
    assert!(f.store.stats().local_failures > 0);
}

#[tokio::test]
async fn a_cache_begins_empty_and_leaves_other_files_alone() {
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for name in ["17.chunk", "my.chunk", "notes"] {
        std::fs::write(scratch.path().join(name), b"old").unwrap();
    }
    let cache = Cache::builder().memory("16M").build().unwrap();
    let directory = cache.directory(scratch.path()).unwrap();
    let _store = CachedStore::new(InMemory::new(), directory, 1 << 20).unwrap();
    let left = std::fs::read_dir(scratch.path()).unwrap();
    let mut left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["my.chunk", "notes"]);
}

#[tokio::test]
async fn lists_are_those_of_the_inner_store() {
    let f = fixture(1 << 30);
    for name in ["a/1", "a/2", "b"] {
        f.store.put(&path(name), "x".into()).await.unwrap();
    }
    let listed: Vec<_> = f.store.list(Some(&path("a"))).try_collect().await.unwrap();
    assert_eq!(listed.len(), 2);
    let listed = f.store.list_with_delimiter(None).await.unwrap();
    assert_eq!(
        (listed.common_prefixes, listed.objects.len()),
        (vec![path("a")], 1)
    );
    assert_eq!(f.store.to_string(), "CachedStore(Counting)");
}
