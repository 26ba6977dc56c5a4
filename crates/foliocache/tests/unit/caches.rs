//! Caches as wholes: several of them, their bound, their end.

use crate::common::{Disk, PAGE, cache, on_disk, pattern};
use foliocache::{Cache, Credentials, DirectoryOptions, Errno, Error, FileTimes, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

#[test]
fn two_caches_share_nothing() {
    let (one, two) = (Disk::new(16), Disk::new(32));
    for (disk, seed) in [(&one, 1), (&two, 2)] {
        let file = disk.dir.create("f").unwrap();
        file.write_all_at(&pattern(seed, 100 * PAGE), 0).unwrap();
    }
    let both = |look: fn(&Disk) -> u64| (look(&one), look(&two));
    assert_eq!(
        both(|disk| disk.cache.stats().unwrap().files.resident_pages),
        (100, 100)
    );
    assert_eq!(
        both(|disk| disk.cache.stats().unwrap().memory.limit_bytes),
        (16 << 20, 32 << 20)
    );
    one.cache.close().unwrap();
    drop(one.dir);
    assert!(std::fs::read(one.source.path().join("f")).unwrap() == pattern(1, 100 * PAGE));
    let mut back = vec![0; 100 * PAGE];
    two.dir
        .open("f")
        .unwrap()
        .read_exact_at(&mut back, 0)
        .unwrap();
    assert!(back == pattern(2, 100 * PAGE));
}

#[test]
fn the_same_directory_is_one_file_system() {
    let disk = Disk::new(16);
    let file = disk.dir.create("f").unwrap();
    file.write_all_at(b"dirty", 0).unwrap();
    let again = disk.cache.directory(disk.source.path().join(".")).unwrap();
    let mut buf = [0; 5];
    again.open("f").unwrap().read_exact_at(&mut buf, 0).unwrap();
    assert_eq!(&buf, b"dirty");
    disk.dir.create_dir("below").unwrap();
    let error = disk.cache.directory("/").unwrap_err();
    assert!(matches!(error, Error::Overlap { .. }), "{error}");
    assert_eq!(error.errno(), Errno::EBUSY);
    let other = on_disk();
    disk.cache.directory(other.path()).unwrap();
    let error = disk.cache.directory(disk.source.path().join("f"));
    assert_eq!(error.unwrap_err().errno(), Errno::ENOTDIR);
    let error = disk.cache.directory("/no/such").unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot use as a directory /no/such: ENOENT: No such file or directory"
    );
}

#[test]
fn a_directory_below_one_in_use_shares_its_files() {
    let disk = Disk::new(16);
    disk.dir.create_dir_all("a/b").unwrap();
    let file = disk.dir.create("a/b/f").unwrap();
    file.write_all_at(b"dirty", 0).unwrap();
    let link = disk.in_source("link");
    std::os::unix::fs::symlink("a/b", &link).unwrap();
    for path in [disk.in_source("a/b"), disk.in_source("a/../a/b/."), link] {
        let below = disk.cache.directory(path).unwrap();
        assert_eq!(below.read("f").unwrap(), b"dirty");
        assert!(matches!(below.open("../b/f"), Err(Error::Escape { .. })));
        assert_eq!(below.path(), disk.in_source("a/b"));
    }
    let read_only = DirectoryOptions::new().read_only(true);
    let below = disk.cache.directory_with(disk.in_source("a"), read_only);
    let error = below.unwrap().create("new").unwrap_err();
    assert_eq!(error.errno(), Errno::EROFS);
    assert_eq!(disk.cache.stats().unwrap().files.resident_pages, 1);
}

/// Each would undo the other's durable changes.
#[test]
fn two_caches_do_not_write_to_one_directory() {
    let disk = Disk::new(16);
    let source = disk.source.path().to_owned();
    let other = cache(16);
    let error = other.directory(&source).unwrap_err();
    assert_eq!(error.errno(), Errno::EBUSY);
    let says = format!("{} is open for writing in another cache", source.display());
    assert!(error.to_string().starts_with(&says), "{error}");
    // Reading does no harm.
    let options = DirectoryOptions::new().read_only(true);
    let reader = other.directory_with(&source, options).unwrap();
    disk.dir.create("f").unwrap();
    reader.open("f").unwrap();
    other.directory(&source).unwrap_err();
    let options = DirectoryOptions::new().ignore_lock(true);
    cache(16).directory_with(&source, options).unwrap();
    // The cache goes with its last reference.
    let file = disk.dir.open("f").unwrap();
    drop((disk.cache, disk.dir));
    other.directory(&source).unwrap_err();
    drop(file);
    other.directory(&source).unwrap();
}

/// Its data may still be on its way when the first is long gone.
#[test]
fn a_cache_that_ignored_the_lock_keeps_others_out_after_the_first_is_gone() {
    let disk = Disk::new(16);
    let source = disk.source.path().to_owned();
    let [second, third] = [cache(16), cache(16)];
    let read_only = DirectoryOptions::new().read_only(true);
    let force = DirectoryOptions::new().ignore_lock(true);
    // Opening a directory for writing counts, even if it was first opened read-only.
    let reader = second.directory_with(&source, read_only).unwrap();
    let writer = second.directory_with(&source, force.clone()).unwrap();
    writer
        .create("f")
        .unwrap()
        .write_all_at(b"late", 0)
        .unwrap();
    third.directory(&source).unwrap_err();
    drop((disk.cache, disk.dir));
    let error = third.directory(&source).unwrap_err();
    assert_eq!(error.errno(), Errno::EBUSY);
    drop((reader, writer, second));
    third.directory(&source).unwrap();
    // By force and first: the next finds it locked.
    drop(third);
    let first = cache(16);
    first.directory_with(&source, force).unwrap();
    cache(16).directory(&source).unwrap_err();
}

#[test]
fn pages_stay_cached_while_the_directory_has_no_handle() {
    let (cache, source) = (cache(16), on_disk());
    std::fs::write(source.path().join("f"), pattern(1, 20 * PAGE)).unwrap();
    let mut buf = vec![0; 20 * PAGE];
    let dir = cache.directory(source.path()).unwrap();
    dir.open("f").unwrap().read_exact_at(&mut buf, 0).unwrap();
    drop(dir);
    let misses = cache.stats().unwrap().files.missed_pages;
    let dir = cache.directory(source.path()).unwrap();
    dir.open("f").unwrap().read_exact_at(&mut buf, 0).unwrap();
    assert_eq!(cache.stats().unwrap().files.missed_pages, misses);
}

#[test]
fn settings_that_make_no_sense() {
    for (builder, says) in [
        (Cache::builder().memory("lots"), "is no size"),
        (Cache::builder().memory("64K"), "too small"),
        (Cache::builder().memory("100T"), "larger than"),
        (Cache::builder().dirty_percent(5), "dirty limits"),
        (Cache::builder().dirty_background_percent(0), "dirty limits"),
    ] {
        let error = builder.build().unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
        assert_eq!(error.errno(), Errno::EINVAL);
    }
}

#[test]
fn memory_shrinks_and_grows_while_the_cache_is_used() {
    let disk = Disk::new(64);
    let file = disk.dir.create("f").unwrap();
    let bytes = pattern(7, 40 << 20);
    file.write_all_at(&bytes, 0).unwrap();
    disk.cache.set_memory("16M").unwrap();
    file.sync_data().unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    loop {
        let memory = disk.cache.stats().unwrap().memory;
        assert_eq!(memory.limit_bytes, 16 << 20);
        if memory.total_bytes() <= memory.limit_bytes {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{memory:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut back = vec![0; bytes.len()];
    file.read_exact_at(&mut back, 0).unwrap();
    assert!(back == bytes);
    let small = disk.cache.stats().unwrap();
    assert!(small.files.evicted_pages > 0);
    assert!(small.memory.total_bytes() <= small.memory.limit_bytes);
    disk.cache.set_memory("64M").unwrap();
    file.read_exact_at(&mut back, 0).unwrap();
    assert!(disk.cache.stats().unwrap().files.resident_pages > small.files.resident_pages);
    file.read_exact_at(&mut back, 0).unwrap();
    assert!(back == bytes);
    let error = disk.cache.set_memory(1_u64).unwrap_err();
    assert_eq!(error.errno(), Errno::EINVAL);
    assert_eq!(disk.cache.stats().unwrap().memory.limit_bytes, 64 << 20);
}

#[test]
fn pressure_from_outside_is_followed_unless_told_otherwise() {
    for follow in [true, false] {
        let builder = Cache::builder().memory("16M");
        let cache = match follow {
            true => builder.build(),
            false => builder.external_pressure(false).build(),
        };
        let pressure = cache.unwrap().stats().unwrap().pressure;
        assert_eq!(pressure.followed, follow);
        assert_eq!(pressure.configured_bytes, 16 << 20);
        assert!(pressure.effective_bytes <= pressure.configured_bytes);
    }
}

#[test]
fn a_full_file_system_in_memory_says_so() {
    let cache = cache(16);
    let dir = cache.memfs().unwrap();
    let file = dir.create("f").unwrap();
    let chunk = vec![1; 1 << 20];
    let full = (0..64).find_map(|at| file.write_all_at(&chunk, at << 20).err());
    let error = full.expect("it is bounded");
    assert_eq!(error.errno(), Errno::ENOSPC);
    assert_eq!(
        std::io::Error::from(error).kind(),
        std::io::ErrorKind::StorageFull
    );
    assert!(file.len() >= 4 << 20);
    file.set_len(0).unwrap();
    file.write_all_at(&chunk, 0).unwrap();
    drop((file, dir));
    assert_eq!(cache.stats().unwrap().files.resident_pages, 0);
}

#[test]
fn sync_makes_everything_durable() {
    let disk = Disk::new(16);
    let other = on_disk();
    let second = disk.cache.directory(other.path()).unwrap();
    disk.dir.create("a").unwrap().write_all_at(b"a", 0).unwrap();
    second.create("b").unwrap().write_all_at(b"b", 0).unwrap();
    disk.cache.sync().unwrap();
    assert_eq!(std::fs::read(disk.in_source("a")).unwrap(), b"a");
    assert_eq!(std::fs::read(other.path().join("b")).unwrap(), b"b");
    let files = disk.cache.stats().unwrap().files;
    assert_eq!((files.dirty_pages, files.unstable_pages), (0, 0));
}

#[test]
fn dropping_a_cache_writes_back() {
    let source = on_disk();
    let cache = cache(16);
    let file = cache.directory(source.path()).unwrap().create("f").unwrap();
    drop(cache);
    // A handle outlives its cache.
    file.write_all_at(b"late", 0).unwrap();
    drop(file);
    assert_eq!(std::fs::read(source.path().join("f")).unwrap(), b"late");
}

#[test]
fn handles_go_on_after_a_close() {
    let disk = Disk::new(16);
    let file = disk.dir.create("f").unwrap();
    file.write_all_at(b"one", 0).unwrap();
    disk.cache.close().unwrap();
    assert_eq!(std::fs::read(disk.source.path().join("f")).unwrap(), b"one");
    file.write_all_at(b"two", 3).unwrap();
    file.sync_all().unwrap();
    assert_eq!(
        std::fs::read(disk.source.path().join("f")).unwrap(),
        b"onetwo"
    );
}

#[test]
fn read_only_is_a_matter_of_each_handle() {
    let read_only = DirectoryOptions::new().read_only(true);
    for read_only_first in [true, false] {
        let source = tempfile::tempdir().unwrap();
        let cache = cache(16);
        let open = |read_only_now: bool| match read_only_now {
            true => cache.directory_with(source.path(), read_only.clone()),
            false => cache.directory(source.path()),
        };
        let first = open(read_only_first).unwrap();
        let second = open(!read_only_first).unwrap();
        let (reader, writer) = match read_only_first {
            true => (first, second),
            false => (second, first),
        };
        writer.create_dir("d").unwrap();
        let file = writer.create("d/f").unwrap();
        file.write_all_at(b"bytes", 0).unwrap();
        // The handles share one file system, and a directory opened from a handle has the handle's
        // mode.
        let below = reader.open_dir("d").unwrap();
        let mut bytes = [0; 5];
        below
            .open("f")
            .unwrap()
            .read_exact_at(&mut bytes, 0)
            .unwrap();
        assert_eq!(&bytes, b"bytes");
        let guest = below.with_credentials(Credentials::new(0, 0, &[]));
        for dir in [&below, &guest] {
            let refused = [
                dir.create("new").map(drop),
                dir.append("f").map(drop),
                dir.open_options().write(true).open("f").map(drop),
                dir.create_dir("new"),
                dir.remove_file("f"),
                dir.rename("f", "g"),
                dir.hard_link("f", "g"),
                dir.symlink("f", "g"),
                dir.set_permissions("f", Permissions::from_mode(0o600)),
                dir.set_times("f", FileTimes::new()),
                writer.rename_to("d/f", dir, "g"),
                dir.rename_to("f", &writer, "g"),
            ];
            for (at, done) in refused.into_iter().enumerate() {
                assert_eq!(done.unwrap_err().errno(), Errno::EROFS, "{at}");
            }
        }
        reader.remove_dir_all("d").unwrap_err();
        assert!(writer.exists("d/f").unwrap());
    }
}

#[test]
fn closing_fits_the_results_of_this_crate() {
    fn use_a_cache() -> foliocache::Result<()> {
        let cache = Cache::builder().memory("16M").build()?;
        cache.memfs()?.create("f")?;
        cache.close()?;
        Ok(())
    }
    use_a_cache().unwrap();
}

/// Every type that a public signature, field or variant of the crate has can be named by its users.
#[test]
fn public_types_can_be_named() {
    fn parts(error: foliocache::Error) -> Option<foliocache::CacheError> {
        match error {
            Error::Memory(error) => Some(error),
            Error::Directory(foliocache::DirectoryError::Mm(error)) => parts(Error::Memory(error)),
            _ => None,
        }
    }
    let error = Cache::builder().memory(1_u64).build().unwrap_err();
    assert!(parts(error).is_some());
    let cache = cache(16);
    let stats: foliocache::CacheStats = cache.stats().unwrap();
    let _: Vec<foliocache::UnsyncedFile> = cache.unsynced_files().unwrap();
    let _: (foliocache::MemoryUsage, foliocache::FileStats) = (stats.memory, stats.files);
    let _: (foliocache::PressureStats, foliocache::ThrottleStats) =
        (stats.pressure, stats.throttle);
    let _: fn(foliocache::DirectoryStats) -> Option<foliocache::EngineStats> = |stats| stats.engine;
    let _: fn(foliocache::DirectoryStats) -> Vec<(foliocache::Fallback, Errno, u64)> =
        |stats| stats.fallbacks;
    let _: fn(
        foliocache::Attr,
    ) -> (
        foliocache::Timespec,
        foliocache::Device,
        foliocache::FileKind,
    ) = |attr| (attr.mtime, attr.rdev, attr.kind);
}
