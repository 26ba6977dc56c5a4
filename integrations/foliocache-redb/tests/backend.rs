//! What redb needs of the backend, and who is kept out by its locks.

use foliocache::{Cache, Directory, Errno, Error, FileOptions};
use foliocache_redb::{FolioBackend, cause};
use proptest::prelude::*;
use redb::backends::{FileBackend, InMemoryBackend};
use redb::{
    Builder, ConcurrencyMode, Database, DatabaseError, Durability, ReadableDatabase,
    StorageBackend, TableDefinition,
};
use std::fs;
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const TABLE: TableDefinition<u64, &[u8]> = TableDefinition::new("table");

/// A cache, and a path for a database on disk.
struct Bed {
    cache: Cache,
    path: PathBuf,
    folder: TempDir,
}

fn cache() -> Cache {
    Cache::builder().memory("16M").build().unwrap()
}

impl Bed {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self {
            cache: cache(),
            path: folder.path().join("db"),
            folder,
        }
    }

    fn backend(&self) -> FolioBackend {
        FolioBackend::create(&self.cache, &self.path).unwrap()
    }

    fn database(&self) -> Database {
        builder().create_with_backend(self.backend()).unwrap()
    }

    fn directory(&self) -> Directory {
        self.cache.directory(self.folder.path()).unwrap()
    }
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(1 << 20);
    builder
}

fn put(db: &Database, key: u64, value: &[u8]) {
    let transaction = db.begin_write().unwrap();
    let mut table = transaction.open_table(TABLE).unwrap();
    table.insert(key, value).unwrap();
    drop(table);
    transaction.commit().unwrap();
}

fn get(db: &impl ReadableDatabase, key: u64) -> Option<Vec<u8>> {
    let table = db.begin_read().unwrap().open_table(TABLE).unwrap();
    table.get(key).unwrap().map(|value| value.value().to_vec())
}

fn is_already_open<T>(opened: Result<T, DatabaseError>) -> bool {
    matches!(opened, Err(DatabaseError::DatabaseAlreadyOpen))
}

fn open_beside(path: &Path) -> fs::File {
    let mut options = fs::File::options();
    options.read(true).write(true).open(path).unwrap()
}

/// The error of the cache.
fn caused(error: &io::Error) -> &Error {
    cause(error).unwrap_or_else(|| panic!("{error:?} keeps no cause"))
}

#[test]
fn a_database_of_the_cache_is_one_without_it() {
    let bed = Bed::new();
    let db = bed.database();
    put(&db, 1, b"one");
    drop(db);
    let mut db = Database::open(&bed.path).unwrap();
    assert_eq!(get(&db, 1).unwrap(), b"one");
    put(&db, 2, b"two");
    assert!(db.check_integrity().unwrap());
    drop(db);
    let backend = FolioBackend::open(&bed.cache, &bed.path).unwrap();
    let db = builder().create_with_backend(backend).unwrap();
    assert_eq!(get(&db, 1).unwrap(), b"one");
    assert_eq!(get(&db, 2).unwrap(), b"two");
}

#[test]
fn a_commit_is_in_the_file_before_the_database_is_closed() {
    let bed = Bed::new();
    let db = bed.database();
    put(&db, 1, b"one");
    let copy = bed.folder.path().join("copy");
    fs::copy(&bed.path, &copy).unwrap();
    let copied = Database::open(copy).unwrap();
    assert_eq!(get(&copied, 1).unwrap(), b"one");
}

#[test]
fn a_database_in_a_directory_of_the_cache() {
    let bed = Bed::new();
    let directory = bed.directory();
    let backend = FolioBackend::create_in(&directory, "db").unwrap();
    let db = builder().create_with_backend(backend).unwrap();
    put(&db, 1, b"one");
    drop(db);
    // The file of the directory, found by its path.
    let backend = FolioBackend::open(&bed.cache, &bed.path).unwrap();
    let db = builder().create_with_backend(backend).unwrap();
    assert_eq!(get(&db, 1).unwrap(), b"one");
}

#[test]
fn a_database_in_memory_has_no_locks_and_works() {
    let directory = cache().memfs().unwrap();
    let backend = FolioBackend::create_in(&directory, "db").unwrap();
    let locked = backend.try_lock_range(Bound::Unbounded, Bound::Unbounded);
    assert!(
        matches!(locked, Err(redb::BackendError::Unsupported)),
        "{locked:?}"
    );
    let db = builder().create_with_backend(backend).unwrap();
    put(&db, 1, b"one");
    assert_eq!(get(&db, 1).unwrap(), b"one");
}

#[test]
fn a_missing_file_is_not_opened() {
    let bed = Bed::new();
    let error = FolioBackend::open(&bed.cache, &bed.path).unwrap_err();
    assert_eq!(error.errno(), Errno::ENOENT);
    let error = FolioBackend::open_read_only(&bed.cache, &bed.path).unwrap_err();
    assert_eq!(error.errno(), Errno::ENOENT);
}

#[test]
fn a_second_database_of_one_file_is_refused() {
    let bed = Bed::new();
    let db = bed.database();
    assert!(is_already_open(
        builder().create_with_backend(bed.backend())
    ));
    let other = cache();
    let error = FolioBackend::open(&other, &bed.path).unwrap_err();
    assert_eq!(error.errno(), Errno::EBUSY);
    drop(db);
    // The first cache, still there, has let go of the file.
    let backend = FolioBackend::open(&other, &bed.path).unwrap();
    builder().create_with_backend(backend).unwrap();
}

#[test]
fn redb_without_the_cache_is_kept_out_and_keeps_out() {
    let bed = Bed::new();
    let db = bed.database();
    put(&db, 1, b"one");
    assert!(is_already_open(Database::open(&bed.path)));
    assert!(is_already_open(builder().open_read_only(&bed.path)));
    drop(db);
    let plain = Database::open(&bed.path).unwrap();
    let error = FolioBackend::open(&bed.cache, &bed.path).unwrap_err();
    assert_eq!(error.errno(), Errno::EBUSY);
    let reader = FolioBackend::open_read_only(&bed.cache, &bed.path).unwrap();
    assert!(is_already_open(
        builder().open_read_only_with_backend(reader)
    ));
    drop(plain);
    bed.database();
}

#[test]
fn redb_that_locks_whole_files_is_kept_out_and_keeps_out() {
    let bed = Bed::new();
    let db = bed.database();
    let beside = open_beside(&bed.path);
    assert!(matches!(
        beside.try_lock_shared(),
        Err(fs::TryLockError::WouldBlock)
    ));
    drop(db);
    beside.try_lock().unwrap();
    assert!(is_already_open(
        builder().create_with_backend(bed.backend())
    ));
    beside.unlock().unwrap();
    bed.database();
}

#[test]
fn readers_share_a_file() {
    let bed = Bed::new();
    let db = bed.database();
    put(&db, 1, b"one");
    drop(db);
    let open = |cache: &Cache| {
        let backend = FolioBackend::open_read_only(cache, &bed.path).unwrap();
        builder().open_read_only_with_backend(backend).unwrap()
    };
    let other = cache();
    let readers = [open(&bed.cache), open(&other)];
    let plain = builder().open_read_only(&bed.path).unwrap();
    for reader in &readers {
        assert_eq!(get(reader, 1).unwrap(), b"one");
    }
    assert_eq!(get(&plain, 1).unwrap(), b"one");
    assert!(is_already_open(Database::open(&bed.path)));
}

#[test]
fn close_ends_the_locks_though_handles_are_left() {
    let bed = Bed::new();
    let backend = bed.backend();
    let handle = backend.file().try_clone().unwrap();
    let db = builder().create_with_backend(backend).unwrap();
    put(&db, 1, b"one");
    drop(db);
    let beside = open_beside(&bed.path);
    beside.try_lock().unwrap();
    beside.unlock().unwrap();
    assert!(handle.stats().unwrap().hit_pages > 0);
    bed.database();
}

#[test]
fn writers_with_caches_of_their_own_see_each_others_commits() {
    let bed = Bed::new();
    let other = cache();
    let open = |cache: &Cache| {
        let mut options = FileOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .ignore_lock(true);
        let backend = FolioBackend::new(cache.file(&bed.path, &options).unwrap());
        let mut builder = builder();
        builder.set_concurrency_mode(ConcurrencyMode::MultiWriter);
        builder.create_with_backend(backend).unwrap()
    };
    let dbs = [open(&bed.cache), open(&other)];
    for round in 0..40u64 {
        let [writer, reader] = [round % 2, (round + 1) % 2].map(|at| &dbs[at as usize]);
        let value = vec![round as u8; 100 + 200 * round as usize];
        put(writer, round % 7, &value);
        assert_eq!(get(reader, round % 7).unwrap(), value, "round {round}");
    }
    drop(dbs);
    assert!(
        Database::open(&bed.path)
            .unwrap()
            .check_integrity()
            .unwrap()
    );
}

#[test]
fn a_refused_lock_changes_no_lock() {
    let bed = Bed::new();
    let [one, other] = [bed.backend(), bed.backend()];
    let bytes = (Bound::Included(100), Bound::Excluded(200));
    assert!(one.try_lock_range(bytes.0, bytes.1).unwrap());
    assert!(other.query_lock_range(bytes.0, bytes.1).unwrap());
    assert!(
        !other
            .try_lock_range(Bound::Unbounded, Bound::Unbounded)
            .unwrap()
    );
    assert!(!other.try_lock_shared_range(bytes.0, bytes.1).unwrap());
    one.unlock_range(bytes.0, bytes.1).unwrap();
    assert!(other.try_lock_shared_range(bytes.0, bytes.1).unwrap());
    assert!(one.try_lock_shared_range(bytes.0, bytes.1).unwrap());
    one.close().unwrap();
    other.close().unwrap();
    assert!(!one.query_lock_range(bytes.0, bytes.1).unwrap());
}

#[test]
fn ranges_that_no_file_has_are_refused() {
    use Bound::{Excluded, Included, Unbounded};
    let bed = Bed::new();
    let backend = bed.backend();
    for (start, end) in [
        (Included(100), Excluded(100)),
        (Included(101), Included(100)),
        (Unbounded, Excluded(0)),
        (Excluded(u64::MAX), Unbounded),
        (Unbounded, Included(u64::MAX)),
        (Included(1 << 63), Included(1 << 63)),
    ] {
        for result in [
            backend.try_lock_range(start, end).map(drop),
            backend.lock_shared_range(start, end),
            backend.query_lock_range(start, end).map(drop),
            backend.unlock_range(start, end),
        ] {
            let is_invalid = |error: &io::Error| error.kind() == io::ErrorKind::InvalidInput;
            assert!(
                matches!(&result, Err(redb::BackendError::Io(error)) if is_invalid(error)),
                "{start:?} to {end:?}: {result:?}"
            );
        }
    }
}

#[test]
fn errors_say_what_was_done_to_which_bytes_of_which_file() {
    let bed = Bed::new();
    let backend = bed.backend();
    backend.write(0, &[1; 100]).unwrap();
    let error = backend.read(50, &mut [0; 100]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    assert!(
        matches!(caused(&error), Error::UnexpectedEof { path, range } if *path == bed.path && *range == (100..150)),
        "{error:?}"
    );
    drop(backend);
    let reader = FolioBackend::open_read_only(&bed.cache, &bed.path).unwrap();
    let error = reader.write(4096, &[1; 10]).unwrap_err();
    assert_eq!(caused(&error).errno(), Errno::EBADF);
    let text = error.to_string();
    let path = bed.path.to_str().unwrap();
    for part in ["cannot write", path, "4096..4106"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn commits_that_are_not_durable_are_seen_and_kept_by_a_clean_end() {
    let bed = Bed::new();
    let db = bed.database();
    put(&db, 1, b"one");
    let mut transaction = db.begin_write().unwrap();
    transaction.set_durability(Durability::None).unwrap();
    transaction
        .open_table(TABLE)
        .unwrap()
        .insert(1, &b"two"[..])
        .unwrap();
    transaction.commit().unwrap();
    assert_eq!(get(&db, 1).unwrap(), b"two");
    drop(db);
    bed.cache.close().unwrap();
    let db = Database::open(&bed.path).unwrap();
    assert_eq!(get(&db, 1).unwrap(), b"two");
}

/// A call of redb.
#[derive(Clone, Debug)]
enum Call {
    Read { offset: u64, len: usize },
    Write { offset: u64, len: usize, byte: u8 },
    SetLen(u64),
    Sync,
    Reopen,
}

fn calls() -> impl Strategy<Value = Call> {
    const END: u64 = 200_000;
    prop_oneof![
        4 => (0..END, 0..20_000usize).prop_map(|(offset, len)| Call::Read { offset, len }),
        4 => (0..END, 1..20_000usize, 1..=255u8)
            .prop_map(|(offset, len, byte)| Call::Write { offset, len, byte }),
        1 => (0..END).prop_map(Call::SetLen),
        1 => Just(Call::Sync),
        1 => Just(Call::Reopen),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// The same calls to this backend, redb's own and redb's in memory have the same results.
    #[test]
    fn calls_have_the_results_of_redbs_own_backends(calls in prop::collection::vec(calls(), 1..60)) {
        let bed = Bed::new();
        let mut ours = bed.backend();
        let plain = tempfile::tempfile().unwrap();
        let plain = FileBackend::new(plain).unwrap();
        let memory = InMemoryBackend::new();
        for call in &calls {
            match *call {
                Call::Read { offset, len } => {
                    let [mut a, mut b] = [vec![0; len], vec![0; len]];
                    let (ours, plain) = (ours.read(offset, &mut a), plain.read(offset, &mut b));
                    prop_assert_eq!(ours.is_ok(), plain.is_ok(), "{:?} {:?}", ours, plain);
                    match (ours, plain) {
                        (Err(ours), Err(plain)) => prop_assert_eq!(ours.kind(), plain.kind()),
                        _ => prop_assert_eq!(a, b),
                    }
                }
                Call::Write { offset, len, byte } => {
                    // In memory it must lie within the length, as redb's do.
                    let end = (offset + len as u64).max(ours.len().unwrap());
                    let backends: [&dyn StorageBackend; 3] = [&ours, &plain, &memory];
                    for backend in backends {
                        if backend.len().unwrap() < end {
                            backend.set_len(end).unwrap();
                        }
                        backend.write(offset, &vec![byte; len]).unwrap();
                    }
                }
                Call::SetLen(len) => {
                    let backends: [&dyn StorageBackend; 3] = [&ours, &plain, &memory];
                    for backend in backends {
                        backend.set_len(len).unwrap();
                    }
                }
                Call::Sync => ours.sync_data().unwrap(),
                Call::Reopen => {
                    ours.close().unwrap();
                    drop(ours);
                    ours = FolioBackend::open(&bed.cache, &bed.path).unwrap();
                }
            }
            let len = ours.len().unwrap();
            prop_assert_eq!(len, plain.len().unwrap());
            prop_assert_eq!(len, memory.len().unwrap());
        }
        let mut all = vec![0; ours.len().unwrap() as usize];
        let mut expected = all.clone();
        ours.read(0, &mut all).unwrap();
        memory.read(0, &mut expected).unwrap();
        prop_assert!(all == expected);
        drop(ours);
        prop_assert!(fs::read(&bed.path).unwrap() == expected, "the last close writes all");
    }
}
