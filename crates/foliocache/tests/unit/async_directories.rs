//! Async directories: look-ups that are ready at the first poll, and calls that workers run.
//!
//! # Safety
//!
//! A lease is taken on an open descriptor, and a signal ignored.
#![allow(unsafe_code)]

use crate::common::executor::{at_once, block_on, give_up_after, on_every_executor, poll_once};
use crate::common::{Disk, pattern};
use foliocache::{
    AsyncDirectory, AsyncFile, Credentials, Directory, Errno, Error, FileKind, FileTimes,
    Permissions, RenameMode, Result,
};
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeSet;
use std::fs;
use std::future::Future;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::{Arc, mpsc};
use std::time::{Duration, SystemTime};

fn on_disk(mib: u64) -> (Disk, AsyncDirectory) {
    let disk = Disk::new(mib);
    let dir = disk.dir.clone().into_async().unwrap();
    (disk, dir)
}

async fn names(dir: &AsyncDirectory, path: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for entry in dir.read_dir(path).await.unwrap() {
        let name = entry.file_name().to_str().unwrap().to_owned();
        assert!(names.insert(name), "seen twice");
    }
    names
}

/// A new file for async calls, or an old one that is cut to nothing.
async fn create(dir: &AsyncDirectory, name: &'static str) -> AsyncFile {
    let create = dir.run(move |dir| dir.create(name)?.into_async());
    create.await.unwrap()
}

/// The output of a future that must be ready at its first poll, without a worker.
fn known<F: Future>(dir: &AsyncDirectory, future: F) -> F::Output {
    let requests = || dir.worker_stats().unwrap().requests;
    let before = requests();
    let output = at_once(future);
    assert_eq!(requests(), before, "a worker had a part in it");
    output
}

#[test]
fn names_are_changed_and_seen_on_every_executor() {
    let disk = Arc::new(Disk::new(16));
    let memory = disk.cache.memfs().unwrap();
    for top in [disk.dir.clone(), memory] {
        on_every_executor(|name| {
            let top = top.clone();
            async move {
                top.create_dir(name).unwrap();
                let dir = top.open_dir(name).unwrap().into_async().unwrap();
                let file = create(&dir, "new").await;
                file.append_all("some bytes").await.unwrap();
                file.sync_all().await.unwrap();
                assert_eq!(file.metadata().await.unwrap().len(), 10);
                file.close().await.unwrap();
                dir.run(|dir| dir.rename("new", "old")).await.unwrap();
                assert_eq!(dir.metadata("old").await.unwrap().len(), 10);
                assert!(!dir.exists("new").await.unwrap());
                let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
                let link = dir.run(move |dir| {
                    dir.create_dir("d")?;
                    dir.create_dir_all("d/e/f")?;
                    dir.hard_link("old", "d/other")?;
                    dir.symlink("d/other", "link")?;
                    dir.set_permissions("old", Permissions::from_mode(0o640))?;
                    dir.set_times("old", FileTimes::new().set_modified(time))?;
                    dir.read_link("link")
                });
                assert_eq!(link.await.unwrap().to_str(), Some("d/other"));
                let linked = dir.metadata("link").await.unwrap();
                assert_eq!((linked.len(), linked.nlink()), (10, 2));
                assert!(dir.symlink_metadata("link").await.unwrap().is_symlink());
                let old = dir.metadata("d/other").await.unwrap();
                assert_eq!(
                    (old.mode() & 0o7777, old.modified().unwrap()),
                    (0o640, time)
                );
                let below = dir.open_dir("d").await.unwrap();
                let target = below.blocking().clone();
                let moved = dir.run(move |dir| dir.rename_to("old", &target, "moved"));
                moved.await.unwrap();
                let exchanged =
                    below.run(|below| below.rename_with("moved", "e", RenameMode::Exchange));
                exchanged.await.unwrap();
                assert_eq!(
                    names(&dir, "d").await,
                    ["e", "moved", "other"].map(String::from).into()
                );
                let mut buf = [0; 4];
                let file = below.open("e").await.unwrap();
                file.read_exact_at(&mut buf, 5).await.unwrap();
                assert_eq!(&buf, b"byte");
                let full = below.run(|below| {
                    below.sync()?;
                    below.remove_file("other")?;
                    below.remove_dir("moved")
                });
                assert_eq!(full.await.unwrap_err().errno(), Errno::ENOTEMPTY);
                let there = dir.run(|dir| {
                    dir.remove_dir_all("d")?;
                    dir.create_new("link").map(drop)
                });
                assert_eq!(there.await.unwrap_err().errno(), Errno::EEXIST);
                let log = dir.run(|dir| dir.append("log")?.into_async());
                log.await.unwrap().append_all("x").await.unwrap();
                dir.run(Directory::sync).await.unwrap();
                assert_eq!(
                    names(&dir, ".").await,
                    ["link", "log"].map(String::from).into()
                );
            }
        });
    }
}

#[test]
fn known_names_and_files_are_ready_at_the_first_poll() {
    let (disk, dir) = on_disk(16);
    fs::create_dir(disk.in_source("d")).unwrap();
    let bytes = pattern(1, 10_000);
    fs::write(disk.in_source("d/f"), &bytes).unwrap();
    for at in 0..200 {
        fs::write(disk.in_source(&format!("d/{at}")), "").unwrap();
    }
    fs::create_dir(disk.in_source("large")).unwrap();
    for at in 0..300 {
        fs::write(disk.in_source(&format!("large/{at}")), "").unwrap();
    }
    // Nothing of it is known yet.
    block_on(dir.metadata("d/f")).unwrap();
    assert_eq!(dir.worker_stats().unwrap().requests, 1);
    assert!(dir.blocking().stats().unwrap().unwrap().watches > 0);
    let file = block_on(dir.open("d/f")).unwrap();
    let mut back = vec![0; bytes.len()];
    block_on(file.read_exact_at(&mut back, 0)).unwrap();
    drop(file);
    let all = block_on(names(&dir, "d"));
    assert_eq!(all.len(), 201);
    assert_eq!(block_on(names(&dir, "large")).len(), 300);

    // Events since then, including those of our own open, cost one more query.
    block_on(dir.metadata("d/f")).unwrap();
    block_on(dir.metadata("d")).unwrap();
    drop(block_on(dir.open("d/f")).unwrap());
    assert_eq!(known(&dir, dir.metadata("d/f")).unwrap().len(), 10_000);
    assert!(known(&dir, dir.exists("d/f")).unwrap());
    assert!(known(&dir, dir.symlink_metadata("d")).unwrap().is_dir());
    let below = known(&dir, dir.open_dir("d")).unwrap();
    let file = known(&dir, below.open("f")).unwrap();
    known(&dir, file.read_exact_at(&mut back, 0)).unwrap();
    assert!(back == bytes);
    assert_eq!(known(&dir, file.metadata()).unwrap().len(), 10_000);
    assert_eq!(known(&dir, names(&dir, "d")), all);
    // A poll copies no more than a batch of names.
    let before = dir.worker_stats().unwrap().requests;
    assert_eq!(block_on(names(&dir, "large")).len(), 300);
    assert_eq!(dir.worker_stats().unwrap().requests, before + 1);
    assert_eq!(
        known(&dir, dir.open("d")).unwrap_err().errno(),
        Errno::EISDIR
    );
    assert_eq!(
        known(&dir, dir.open_dir("d/f")).unwrap_err().errno(),
        Errno::ENOTDIR
    );
}

#[test]
fn async_calls_see_changes_by_others() {
    let (disk, dir) = on_disk(16);
    fs::write(disk.in_source("f"), "old").unwrap();
    block_on(async {
        let mut buf = [0; 3];
        dir.open("f")
            .await
            .unwrap()
            .read_exact_at(&mut buf, 0)
            .await
            .unwrap();
        drop(dir.open("f").await.unwrap());
        assert_eq!(names(&dir, ".").await.len(), 1);
        fs::write(disk.in_source("f"), "new bytes").unwrap();
        fs::write(disk.in_source("g"), "").unwrap();
        // Longer than the news count as fresh.
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(dir.metadata("f").await.unwrap().len(), 9);
        let file = dir.open("f").await.unwrap();
        file.read_exact_at(&mut buf, 0).await.unwrap();
        assert_eq!(&buf, b"new");
        assert_eq!(names(&dir, ".").await.len(), 2);
    });
}

#[test]
fn credentials_are_checked_at_the_first_poll_too() {
    let (disk, dir) = on_disk(16);
    fs::write(disk.in_source("f"), "secret").unwrap();
    block_on(async {
        let set = dir.run(|dir| {
            dir.set_permissions("f", Permissions::from_mode(0o600))?;
            dir.set_permissions(".", Permissions::from_mode(0o711))
        });
        set.await.unwrap();
        let mut buf = [0; 6];
        dir.open("f")
            .await
            .unwrap()
            .read_exact_at(&mut buf, 0)
            .await
            .unwrap();
        names(&dir, ".").await;
    });
    let guest = disk.dir.with_credentials(Credentials::new(1000, 1000, &[]));
    let guest = guest.into_async().unwrap();
    for _ in 0..3 {
        assert_eq!(
            block_on(guest.open("f")).unwrap_err().errno(),
            Errno::EACCES
        );
        assert_eq!(
            block_on(guest.read_dir(".")).unwrap_err().errno(),
            Errno::EACCES
        );
        assert_eq!(block_on(guest.metadata("f")).unwrap().len(), 6);
    }
    assert_eq!(at_once(guest.open("f")).unwrap_err().errno(), Errno::EACCES);
    assert_eq!(
        at_once(guest.read_dir(".")).unwrap_err().errno(),
        Errno::EACCES
    );
}

#[test]
fn a_large_directory_is_read_in_pieces_by_workers() {
    let (disk, dir) = on_disk(16);
    for at in 0..1000 {
        fs::write(disk.in_source(&format!("{at}")), "").unwrap();
    }
    let seen = block_on(async {
        let mut seen = BTreeSet::new();
        let mut entries = dir.run(|dir| dir.read_dir(".")).await?;
        loop {
            let next = dir.run(move |_| {
                let piece = entries.by_ref().take(300).collect::<Result<Vec<_>>>()?;
                Ok((piece, entries))
            });
            let (piece, rest) = next.await?;
            if piece.is_empty() {
                break Ok::<_, Error>(seen);
            }
            for entry in piece {
                assert_eq!(entry.file_type()?, FileKind::Regular);
                assert!(seen.insert(entry.file_name()));
            }
            entries = rest;
        }
    });
    assert_eq!(seen.unwrap().len(), 1000);
    assert_eq!(dir.worker_stats().unwrap().requests, 6);
}

#[test]
fn a_call_that_no_worker_had_begun_is_not_run() {
    let (disk, dir) = on_disk(16);
    let (begun, is_begun) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let mut first = Box::pin(dir.run(move |_| {
        begun.send(()).unwrap();
        ended.recv().unwrap();
        Ok(())
    }));
    assert!(poll_once(first.as_mut()).is_pending());
    is_begun.recv_timeout(Duration::from_secs(60)).unwrap();
    // A call that was begun is finished, and the next one waits for it.
    drop(first);
    let mut never = Box::pin(dir.run(|dir| dir.create_dir("never")));
    assert!(poll_once(never.as_mut()).is_pending());
    drop(never);
    let mut next = Box::pin(dir.run(|dir| dir.create_dir("next")));
    assert!(poll_once(next.as_mut()).is_pending());
    assert!(!disk.in_source("next").exists());
    end.send(()).unwrap();
    block_on(next).unwrap();
    assert!(!disk.in_source("never").exists());
}

#[test]
fn a_call_that_panics_is_an_error() {
    let (disk, dir) = on_disk(16);
    let file = block_on(create(&dir, "f"));
    let panicked = block_on(dir.run(|_| -> Result<()> { panic!("on purpose") }));
    assert_eq!(panicked.unwrap_err().errno(), Errno::EIO);
    let panicked = block_on(file.run(|_| -> Result<()> { panic!("on purpose") }));
    assert_eq!(panicked.unwrap_err().errno(), Errno::EIO);
    block_on(dir.run(|dir| dir.create_dir("d"))).unwrap();
    assert!(disk.in_source("d").exists());
}

/// The same call, blocking and async, must be refused with the same words.
fn same<A: std::fmt::Debug, B: std::fmt::Debug>(
    errno: Errno,
    blocking: Result<A>,
    future: impl Future<Output = Result<B>>,
) {
    let (blocking, future) = (blocking.unwrap_err(), block_on(future).unwrap_err());
    assert_eq!(blocking.errno(), errno, "{blocking}");
    assert_eq!(blocking.to_string(), future.to_string());
}

#[test]
fn refusals_are_those_of_the_blocking_calls() {
    let (disk, dir) = on_disk(16);
    let d = &disk.dir;
    fs::write(disk.in_source("f"), "").unwrap();
    for _ in 0..2 {
        same(Errno::ENOENT, d.open("no"), dir.open("no"));
        same(Errno::ENOENT, d.metadata("no"), dir.metadata("no"));
        same(Errno::ENOENT, d.read_dir("no"), dir.read_dir("no"));
        same(Errno::ENOTDIR, d.read_dir("f"), dir.read_dir("f"));
        same(Errno::ENOTDIR, d.open_dir("f"), dir.open_dir("f"));
        same(
            Errno::EEXIST,
            d.create_dir("f"),
            dir.run(|dir| dir.create_dir("f")),
        );
        same(
            Errno::EXDEV,
            d.remove_file("../f"),
            dir.run(|dir| dir.remove_file("../f")),
        );
    }
}

/// Keeps others from opening a file of the source: a lease, which the kernel asks for back and waits for.
struct Leased(fs::File);

impl Leased {
    fn new(path: &std::path::Path) -> Leased {
        // The kernel signals another opener by SIGIO, which would end the process.
        // SAFETY: no handler is installed.
        unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
        let file = rustix::fs::open(path, OFlags::RDWR, Mode::empty()).unwrap();
        let file = fs::File::from(file);
        // SAFETY: the descriptor is open.
        let leased = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) };
        assert_eq!(leased, 0, "{}", std::io::Error::last_os_error());
        Leased(file)
    }

    fn end(self) {
        // SAFETY: the descriptor is open.
        let ended = unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
        assert_eq!(ended, 0);
    }
}

fn wait_until(mut condition: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_source_that_hangs_blocks_no_executor() {
    let (disk, dir) = on_disk(16);
    fs::write(disk.in_source("slow"), "slow").unwrap();
    fs::write(disk.in_source("other"), "other").unwrap();
    let mut buf = [0; 5];
    block_on(async {
        dir.open("other")
            .await
            .unwrap()
            .read_exact_at(&mut buf, 0)
            .await
            .unwrap();
        drop(dir.open("other").await.unwrap());
        dir.metadata("slow").await.unwrap();
        names(&dir, ".").await;
    });
    let leased = Leased::new(&disk.in_source("slow"));
    let mut open = Box::pin(dir.open("slow"));
    assert!(poll_once(open.as_mut()).is_pending());
    wait_until(|| dir.worker_stats().unwrap().running == 1);
    std::thread::sleep(Duration::from_millis(20));
    assert!(poll_once(open.as_mut()).is_pending(), "it hangs");
    // The file itself is looked at and opened once more, and others are used.
    let mut again = Box::pin(dir.open("slow"));
    assert!(poll_once(again.as_mut()).is_pending());
    at_once(dir.metadata("slow")).unwrap();
    let other = at_once(dir.open("other")).unwrap();
    at_once(other.read_exact_at(&mut buf, 0)).unwrap();
    assert_eq!(at_once(names(&dir, ".")).len(), 2);
    leased.end();
    for open in [open, again] {
        block_on(block_on(open).unwrap().read_exact_at(&mut buf[..4], 0)).unwrap();
        assert_eq!(&buf[..4], b"slow");
    }
}

#[test]
fn a_change_that_was_given_up_comes_before_newer_ones() {
    let (disk, dir) = on_disk(16);
    fs::write(disk.in_source("f"), "bytes").unwrap();
    let leased = Leased::new(&disk.in_source("f"));
    let mut cut = Box::pin(create(&dir, "f"));
    assert!(poll_once(cut.as_mut()).is_pending());
    wait_until(|| dir.worker_stats().unwrap().running == 1);
    std::thread::sleep(Duration::from_millis(20));
    drop(cut);
    let mut rename = Box::pin(dir.run(|dir| dir.rename("f", "g")));
    assert!(poll_once(rename.as_mut()).is_pending());
    std::thread::sleep(Duration::from_millis(20));
    assert!(disk.in_source("f").exists(), "it waits for the one before");
    leased.end();
    block_on(rename).unwrap();
    block_on(dir.run(Directory::sync)).unwrap();
    assert_eq!(fs::read(disk.in_source("g")).unwrap(), b"");
    assert!(!disk.in_source("f").exists());
}

#[test]
fn a_file_is_closed_by_a_worker() {
    let (disk, dir) = on_disk(16);
    let file = block_on(create(&dir, "f"));
    block_on(file.append_all("bytes")).unwrap();
    let clone = file.clone();
    let before = dir.worker_stats().unwrap().requests;
    at_once(file.close()).unwrap();
    assert_eq!(dir.worker_stats().unwrap().requests, before, "one is left");
    block_on(clone.close()).unwrap();
    assert_eq!(dir.worker_stats().unwrap().requests, before + 1);
    // A small new file is in the source when it is closed.
    assert_eq!(fs::read(disk.in_source("f")).unwrap(), b"bytes");
    // Also if its future is dropped.
    let file = block_on(create(&dir, "g"));
    block_on(file.append_all("bytes")).unwrap();
    let _ = give_up_after(1, file.close());
    wait_until(|| fs::read(disk.in_source("g")).unwrap() == b"bytes");
}

#[test]
fn futures_of_directories_may_move_between_threads() {
    fn send<T: Send>(_: &T) {}
    fn shared<T: Send + Sync + Clone + 'static>(_: &T) {}
    let (_disk, dir) = on_disk(16);
    shared(&dir);
    send(&dir.open("f"));
    send(&dir.run(|dir| dir.create("f")?.into_async()));
    send(&dir.metadata("f"));
    send(&dir.read_dir("."));
}
