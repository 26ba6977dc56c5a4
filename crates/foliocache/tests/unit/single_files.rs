//! Files that are opened without their directories: by paths, or by descriptors.

use crate::common::{cache, on_disk, pattern};
use foliocache::{Cache, DirectoryOptions, Errno, Error, File, FileOptions, LockKind, Result};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, symlink};
use std::path::Path;

fn writable() -> FileOptions {
    let mut options = FileOptions::new();
    options.read(true).write(true).create(true);
    options
}

fn open(cache: &Cache, path: impl AsRef<Path>) -> Result<File> {
    cache.file(path, &writable())
}

fn to_read(cache: &Cache, path: impl AsRef<Path>) -> Result<File> {
    cache.file(path, FileOptions::new().read(true))
}

fn contents(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn a_file_is_opened_by_its_path_alone() {
    let (cache, source) = (cache(16), on_disk());
    let path = source.path().join("f");
    let file = open(&cache, &path).unwrap();
    assert_eq!(file.path(), path);
    file.write_all_at(&pattern(1, 100_000), 0).unwrap();
    file.sync_all().unwrap();
    assert_eq!(fs::read(&path).unwrap(), pattern(1, 100_000));
    file.write_all_at(b"later", 0).unwrap();
    let unsynced = cache.unsynced_files().unwrap();
    let real = path.canonicalize().unwrap();
    assert_eq!(unsynced.len(), 1);
    assert!(
        unsynced[0].file.ends_with(real.to_str().unwrap()),
        "{unsynced:?}"
    );
    assert!(cache.stats().unwrap().files.resident_pages > 0);
    cache.close().unwrap();
    assert_eq!(fs::read(&path).unwrap()[..5], *b"later");
    // Handles outlive the cache.
    file.write_all_at(b"again", 0).unwrap();
    drop(file);
    assert_eq!(fs::read(&path).unwrap()[..5], *b"again");
}

#[test]
fn paths_are_relative_to_the_working_directory() {
    let (cache, here) = (cache(16), std::env::current_dir().unwrap());
    let source = tempfile::tempdir_in(&here).unwrap();
    let relative = source.path().strip_prefix(&here).unwrap().join("f");
    open(&cache, &relative)
        .unwrap()
        .write_all_at(b"here", 0)
        .unwrap();
    assert_eq!(fs::read(source.path().join("f")).unwrap(), b"here");
}

/// Unrelated databases of two processes.
#[test]
fn two_caches_have_files_of_one_directory() {
    let (one, two, source) = (cache(16), cache(16), on_disk());
    let [a, b] = [(&one, "a"), (&two, "b")].map(|(cache, name)| {
        let file = open(cache, source.path().join(name)).unwrap();
        file.write_all_at(name.as_bytes(), 0).unwrap();
        file
    });
    for (file, name) in [(a, "a"), (b, "b")] {
        drop(file);
        assert_eq!(fs::read(source.path().join(name)).unwrap(), name.as_bytes());
    }
}

/// Each would undo the other's durable changes.
#[test]
fn two_caches_do_not_write_to_one_file() {
    let (one, two, source) = (cache(16), cache(16), on_disk());
    let path = source.path().join("f");
    let link = source.path().join("link");
    let first = open(&one, &path).unwrap();
    first.write_all_at(b"first", 0).unwrap();
    fs::hard_link(&path, &link).unwrap();
    for path in [&path, &link] {
        let mut options = writable();
        let error = two.file(path, options.truncate(true)).unwrap_err();
        assert_eq!(error.errno(), Errno::EBUSY);
        let says = format!(
            "{} is open for writing in another cache",
            path.canonicalize().unwrap().display()
        );
        assert!(
            error.to_string().ends_with(&says) || error.to_string().contains(&says),
            "{error}"
        );
    }
    // Nothing was cut. Reading does no harm.
    first.sync_all().unwrap();
    assert_eq!(contents(&to_read(&two, &path).unwrap()), b"first");
    let adopted = fs::File::options()
        .write(true)
        .read(true)
        .open(&path)
        .unwrap();
    assert_eq!(two.adopt(adopted).unwrap_err().errno(), Errno::EBUSY);
    let by_force = two.file(&path, writable().ignore_lock(true)).unwrap();
    let again = first.try_clone().unwrap();
    drop(first);
    drop(again);
    // The one by force is there still.
    assert_eq!(open(&one, &path).unwrap_err().errno(), Errno::EBUSY);
    drop(by_force);
    open(&one, &path).unwrap();
}

/// The last close writes everything back, so that the next holder of the lock finds it.
#[test]
fn a_file_is_free_when_its_last_handle_is_closed() {
    let (one, two, source) = (cache(16), cache(16), on_disk());
    let path = source.path().join("f");
    for round in 0..20 {
        let cache = if round % 2 == 0 { &one } else { &two };
        let file = open(cache, &path).unwrap();
        let len = file.len() as usize;
        assert_eq!(len, round * 1000);
        assert!(contents(&file) == pattern(1, 20_000)[..len]);
        let reader = to_read(cache, &path).unwrap();
        let bytes = &pattern(1, 20_000)[len..len + 1000];
        file.write_all_at(bytes, len as u64).unwrap();
        drop(file);
        drop(reader);
    }
}

#[test]
fn all_paths_of_a_file_lead_to_the_same_pages() {
    let (cache, source) = (cache(16), on_disk());
    let at = |name: &str| source.path().join(name);
    fs::create_dir(at("below")).unwrap();
    let file = open(&cache, at("f")).unwrap();
    file.write_all_at(b"dirty", 0).unwrap();
    fs::hard_link(at("f"), at("below/hard")).unwrap();
    symlink(at("f"), at("absolute")).unwrap();
    symlink("../f", at("below/relative")).unwrap();
    symlink("below", at("to_below")).unwrap();
    for name in [
        "f",
        "below/../f",
        "below/hard",
        "absolute",
        "below/relative",
        "to_below/hard",
    ] {
        let again = open(&cache, at(name)).unwrap();
        assert_eq!(contents(&again), b"dirty", "{name}");
        assert_eq!(
            again.metadata().unwrap().ino(),
            file.metadata().unwrap().ino()
        );
    }
    let std = fs::File::open(at("below/hard")).unwrap();
    assert_eq!(contents(&cache.adopt(std).unwrap()), b"dirty");
    assert_eq!(cache.stats().unwrap().files.resident_pages, 1);
}

#[test]
fn a_directory_is_not_opened_around_a_file_in_use() {
    let (one, two, source) = (cache(16), cache(16), on_disk());
    let below = source.path().join("a/b");
    fs::create_dir_all(&below).unwrap();
    let file = open(&one, below.join("f")).unwrap();
    let reader = to_read(&two, below.join("f")).unwrap();
    for directory in [&below, &source.path().join("a"), source.path()] {
        let error = one.directory(directory).unwrap_err();
        assert!(matches!(error, Error::Overlap { .. }), "{error}");
        // It has a reader.
        let error = two.directory(directory).unwrap_err();
        assert!(matches!(error, Error::Overlap { .. }), "{error}");
        let error = cache(16).directory(directory).unwrap_err();
        assert_eq!(error.errno(), Errno::EBUSY);
        let says = format!(
            "{} is open for writing in another cache",
            directory.display()
        );
        assert!(error.to_string().starts_with(&says), "{error}");
        let read_only = DirectoryOptions::new().read_only(true);
        cache(16).directory_with(directory, read_only).unwrap();
    }
    drop(reader);
    let by_force = DirectoryOptions::new().ignore_lock(true);
    two.directory_with(&below, by_force).unwrap();
    drop(two);
    // One beside it is another.
    fs::create_dir(source.path().join("beside")).unwrap();
    one.directory(source.path().join("beside")).unwrap();
    drop(file);
    one.directory(&below).unwrap();
}

#[test]
fn a_file_below_a_directory_in_use_belongs_to_that() {
    let (one, two, source) = (cache(16), cache(16), on_disk());
    let path = source.path().join("a/f");
    fs::create_dir(source.path().join("a")).unwrap();
    let directory = one.directory(source.path()).unwrap();
    let inside = directory.create("a/f").unwrap();
    inside.write_all_at(b"dirty", 0).unwrap();
    // Another cache is refused, whatever lies between.
    let error = open(&two, &path).unwrap_err();
    assert_eq!(error.errno(), Errno::EBUSY);
    assert!(
        error
            .to_string()
            .starts_with(source.path().to_str().unwrap()),
        "{error}"
    );
    to_read(&two, &path).unwrap();
    let elsewhere = on_disk();
    symlink(&path, elsewhere.path().join("link")).unwrap();
    fs::hard_link(&path, elsewhere.path().join("hard")).unwrap();
    for path in [
        &path,
        &elsewhere.path().join("link"),
        &elsewhere.path().join("hard"),
    ] {
        let file = open(&one, path).unwrap();
        assert_eq!(contents(&file), b"dirty");
        file.write_all_at(b"DIRTY", 0).unwrap();
        assert_eq!(contents(&inside), b"DIRTY");
        file.write_all_at(b"dirty", 0).unwrap();
    }
    open(&one, source.path().join("a/new")).unwrap();
    assert!(directory.exists("a/new").unwrap());
    drop((directory, inside, one));
    open(&two, &path).unwrap();
}

#[test]
fn options_have_the_meaning_of_std() {
    let (cache, source) = (cache(16), on_disk());
    let at = |name: &str| source.path().join(name);
    let errno =
        |name: &str, options: &FileOptions| cache.file(at(name), options).unwrap_err().errno();
    let mut options = FileOptions::new();
    assert_eq!(errno("f", &options), Errno::EINVAL);
    assert_eq!(errno("f", options.read(true)), Errno::ENOENT);
    assert_eq!(errno("f", options.create(true)), Errno::EINVAL);
    let file = cache
        .file(at("f"), options.write(true).mode(0o640))
        .unwrap();
    file.write_all_at(b"0123456789", 0).unwrap();
    assert_eq!(fs::metadata(at("f")).unwrap().mode() & 0o7777, 0o640);
    assert_eq!(errno("f", options.clone().create_new(true)), Errno::EEXIST);
    symlink("nowhere", at("dangling")).unwrap();
    assert_eq!(
        errno("dangling", options.clone().create_new(true)),
        Errno::EEXIST
    );
    symlink("loop", at("loop")).unwrap();
    assert_eq!(errno("loop", &options), Errno::ELOOP);
    assert_eq!(errno("", &options), Errno::EISDIR);
    assert_eq!(errno("new/", &options), Errno::EISDIR);
    assert_eq!(errno("f/", FileOptions::new().read(true)), Errno::ENOTDIR);
    assert_eq!(errno("none/f", &options), Errno::ENOENT);
    assert_eq!(cache.file("", &options).unwrap_err().errno(), Errno::ENOENT);
    assert_eq!(
        cache.file("/", &options).unwrap_err().errno(),
        Errno::EISDIR
    );
    // Made where the link leads.
    cache.file(at("dangling"), &options).unwrap();
    assert!(at("nowhere").exists());
    cache
        .file(at("made"), options.clone().create_new(true))
        .unwrap();
    let appending = cache
        .file(at("f"), FileOptions::new().append(true))
        .unwrap();
    appending.append(b"ab").unwrap();
    assert_eq!(contents(&file), b"0123456789ab");
    let error = appending.read_at(&mut [0], 0).unwrap_err();
    assert_eq!(error.errno(), Errno::EBADF);
    cache.file(at("f"), options.clone().truncate(true)).unwrap();
    assert_eq!(file.len(), 0);
    let said = cache.file(at("none/f"), &options).unwrap_err().to_string();
    assert!(
        said.starts_with(&format!("cannot create {}", at("none/f").display())),
        "{said}"
    );
}

#[test]
fn an_open_file_survives_changes_of_its_path() {
    let (cache, source) = (cache(16), on_disk());
    let at = |name: &str| source.path().join(name);
    fs::create_dir(at("d")).unwrap();
    let file = open(&cache, at("d/f")).unwrap();
    file.write_all_at(b"old", 0).unwrap();
    fs::write(at("d/new"), "new").unwrap();
    fs::rename(at("d/new"), at("d/f")).unwrap();
    let new = open(&cache, at("d/f")).unwrap();
    assert_eq!(
        (contents(&file), contents(&new)),
        (b"old".into(), b"new".into())
    );
    // The directory is another by now.
    fs::rename(at("d"), at("e")).unwrap();
    new.write_all_at(b"NEW", 0).unwrap();
    new.sync_all().unwrap();
    assert_eq!(fs::read(at("e/f")).unwrap(), b"NEW");
    assert_eq!(contents(&open(&cache, at("e/f")).unwrap()), b"NEW");
    fs::create_dir(at("d")).unwrap();
    fs::write(at("d/f"), "third").unwrap();
    assert_eq!(contents(&open(&cache, at("d/f")).unwrap()), b"third");
    fs::remove_dir_all(at("e")).unwrap();
    new.write_all_at(b"gone", 0).unwrap();
    assert_eq!(contents(&new), b"gone");
}

#[test]
fn a_descriptor_is_adopted_with_its_access_mode() {
    let (cache, source) = (cache(16), on_disk());
    let path = source.path().join("f");
    fs::write(&path, "0123").unwrap();
    let adopt = |options: &mut fs::OpenOptions| cache.adopt(options.open(&path).unwrap()).unwrap();
    let reader = adopt(fs::File::options().read(true));
    assert_eq!(contents(&reader), b"0123");
    assert_eq!(reader.write_at(b"x", 0).unwrap_err().errno(), Errno::EBADF);
    let writer = adopt(fs::File::options().write(true));
    assert_eq!(
        writer.read_at(&mut [0], 0).unwrap_err().errno(),
        Errno::EBADF
    );
    writer.write_all_at(b"4", 0).unwrap();
    let appending = adopt(fs::File::options().read(true).append(true));
    (&appending).write_all(b"5").unwrap();
    assert_eq!(contents(&reader), b"41235");
    // It is the file of its path.
    assert_eq!(contents(&open(&cache, &path).unwrap()), b"41235");
    drop((writer, appending, reader));
    assert_eq!(fs::read(&path).unwrap(), b"41235");
    for (refused, says) in [
        (
            fs::File::options()
                .read(true)
                .custom_flags(libc::O_PATH)
                .open(&path),
            "O_PATH",
        ),
        (fs::File::open(source.path()), "regular file"),
        (fs::File::open("/dev/null"), "regular file"),
    ] {
        let error = cache.adopt(refused.unwrap()).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
}

/// A file that was removed, one that never had a name, and one of the memory.
#[test]
fn a_descriptor_without_a_name_is_kept() {
    let (cache, source) = (cache(16), on_disk());
    let path = source.path().join("f");
    let mut both = fs::File::options();
    both.read(true).write(true);
    let removed = both.clone().create_new(true).open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    // Another has its name by now.
    fs::write(&path, "other").unwrap();
    let tmpfile = both
        .clone()
        .custom_flags(libc::O_TMPFILE)
        .open(source.path())
        .unwrap();
    let memfd = rustix::fs::memfd_create("memory", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    for std in [removed, tmpfile, memfd.into()] {
        let (beside, again) = (std.try_clone().unwrap(), std.try_clone().unwrap());
        let file = cache.adopt(std).unwrap();
        file.write_all_at(&pattern(3, 50_000), 0).unwrap();
        let second = cache.adopt(again).unwrap();
        assert!(contents(&second) == pattern(3, 50_000));
        file.sync_data().unwrap();
        file.write_all_at(b"last", 0).unwrap();
        drop((file, second));
        let mut bytes = [0; 4];
        std::os::unix::fs::FileExt::read_exact_at(&beside, &mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"last");
        // The released descriptors are closed; the file itself remains.
        let third = cache.adopt(beside).unwrap();
        assert_eq!(contents(&third)[4..], pattern(3, 50_000)[4..]);
    }
    let open_now = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let deleted = open_now.filter_map(|fd| fs::read_link(fd.path()).ok());
    let source = source.path().canonicalize().unwrap();
    let ours = deleted
        .filter(|path| path.starts_with(&source) && path.to_string_lossy().contains("deleted"));
    assert_eq!(ours.count(), 0, "no descriptor is left");
    assert_eq!(contents(&open(&cache, &path).unwrap()), b"other");
}

/// The locks of programs are other locks.
#[test]
fn programs_lock_the_file_beside_it() {
    use rustix::fs::{FlockOperation, flock};
    let (cache, source) = (cache(16), on_disk());
    let path = source.path().join("f");
    let program = fs::File::create(&path).unwrap();
    flock(&program, FlockOperation::NonBlockingLockExclusive).unwrap();
    let file = open(&cache, &path).unwrap();
    file.write_all_at(b"held", 0).unwrap();
    let other = fs::File::open(&path).unwrap();
    flock(&other, FlockOperation::NonBlockingLockShared).unwrap_err();
    drop(program);
    flock(&other, FlockOperation::NonBlockingLockShared).unwrap();
}

/// The cache's own lock of a file is beyond the range that programs can lock.
#[test]
fn ranges_up_to_the_end_are_locked_beside_the_lock_of_the_cache() -> Result<()> {
    let (cache, source) = (cache(16), on_disk());
    let path = source.path().join("file");
    let (one, two) = (open(&cache, &path)?, open(&cache, &path)?);
    one.lock_range(.., LockKind::Exclusive)?;
    assert!(two.is_range_locked(5.., LockKind::Shared)?);
    one.unlock_range(..)?;
    two.lock_range(7.., LockKind::Exclusive)?;
    Ok(())
}
