//! Async directories: what is known at the first poll, and all else through workers.
//!
//! # Safety
//!
//! A lease is taken on an open descriptor, and a signal ignored.
#![allow(unsafe_code)]

use crate::common::executor::{at_once, block_on, give_up_after, on_every_executor, poll_once};
use crate::common::{Disk, pattern};
use foliocache::{
    AsyncDirectory, Credentials, Errno, FileKind, FileTimes, Permissions, RenameMode, Result,
};
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeSet;
use std::fs;
use std::future::Future;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

fn on_disk(mib: u64) -> (Disk, AsyncDirectory) {
    let disk = Disk::new(mib);
    let dir = disk.dir.clone().into_async().unwrap();
    (disk, dir)
}

async fn names(dir: &AsyncDirectory, path: &str) -> BTreeSet<String> {
    let mut entries = dir.read_dir(path).await.unwrap();
    let mut names = BTreeSet::new();
    while let Some(entry) = entries.next_entry().await.unwrap() {
        let name = entry.file_name().to_str().unwrap().to_owned();
        assert!(names.insert(name), "seen twice");
    }
    names
}

/// What a future comes to that must be ready at its first poll, without a worker.
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
                let file = dir.create("new").await.unwrap();
                file.append_all("some bytes").await.unwrap();
                file.sync_all().await.unwrap();
                assert_eq!(file.metadata().await.unwrap().len(), 10);
                file.close().await.unwrap();
                dir.rename("new", "old").await.unwrap();
                assert_eq!(dir.metadata("old").await.unwrap().len(), 10);
                assert!(!dir.exists("new").await.unwrap());
                dir.create_dir("d").await.unwrap();
                dir.create_dir_all("d/e/f").await.unwrap();
                dir.hard_link("old", "d/other").await.unwrap();
                dir.symlink("d/other", "link").await.unwrap();
                assert_eq!(
                    dir.read_link("link").await.unwrap().to_str(),
                    Some("d/other")
                );
                let linked = dir.metadata("link").await.unwrap();
                assert_eq!((linked.len(), linked.nlink()), (10, 2));
                assert!(dir.symlink_metadata("link").await.unwrap().is_symlink());
                dir.set_permissions("old", Permissions::from_mode(0o640))
                    .await
                    .unwrap();
                let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
                dir.set_times("old", FileTimes::new().set_modified(time))
                    .await
                    .unwrap();
                let old = dir.metadata("d/other").await.unwrap();
                assert_eq!(
                    (old.mode() & 0o7777, old.modified().unwrap()),
                    (0o640, time)
                );
                let below = dir.open_dir("d").await.unwrap();
                dir.rename_to("old", &below, "moved").await.unwrap();
                below
                    .rename_with("moved", "e", RenameMode::Exchange)
                    .await
                    .unwrap();
                assert_eq!(
                    names(&dir, "d").await,
                    ["e", "moved", "other"].map(String::from).into()
                );
                let mut buf = [0; 4];
                below
                    .open("e")
                    .await
                    .unwrap()
                    .read_exact_at(&mut buf, 5)
                    .await
                    .unwrap();
                assert_eq!(&buf, b"byte");
                below.sync().await.unwrap();
                below.remove_file("other").await.unwrap();
                let full = below.remove_dir("moved").await.unwrap_err();
                assert_eq!(full.errno(), Errno::ENOTEMPTY);
                dir.remove_dir_all("d").await.unwrap();
                let there = dir.create_new("link").await.unwrap_err();
                assert_eq!(there.errno(), Errno::EEXIST);
                let log = dir.append("log").await.unwrap();
                log.append_all("x").await.unwrap();
                dir.sync().await.unwrap();
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
    for at in 0..600 {
        fs::write(disk.in_source(&format!("d/{at}")), "").unwrap();
    }
    // Nothing of it is known yet.
    block_on(dir.metadata("d/f")).unwrap();
    assert_eq!(dir.worker_stats().unwrap().requests, 1);
    assert!(dir.stats().unwrap().unwrap().watches > 0);
    let file = block_on(dir.open("d/f")).unwrap();
    let mut back = vec![0; bytes.len()];
    block_on(file.read_exact_at(&mut back, 0)).unwrap();
    drop(file);
    let all = block_on(names(&dir, "d"));
    assert_eq!(all.len(), 601);

    // What the kernel told meanwhile, of our own opening too, costs one more question.
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
        dir.set_permissions("f", Permissions::from_mode(0o600))
            .await
            .unwrap();
        dir.set_permissions(".", Permissions::from_mode(0o711))
            .await
            .unwrap();
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
fn no_entry_is_lost_with_a_future() {
    let (disk, dir) = on_disk(16);
    for at in 0..1000 {
        fs::write(disk.in_source(&format!("{at}")), "").unwrap();
    }
    let mut entries = block_on(dir.read_dir(".")).unwrap();
    let mut seen = BTreeSet::new();
    loop {
        match give_up_after(1, entries.next_entry()) {
            Some(Ok(Some(entry))) => {
                assert_eq!(entry.file_type().unwrap(), FileKind::Regular);
                assert!(seen.insert(entry.file_name()));
            }
            Some(end) => break assert!(end.unwrap().is_none()),
            None => std::thread::yield_now(),
        }
    }
    assert_eq!(seen.len(), 1000);
    assert!(
        dir.worker_stats().unwrap().requests >= 4,
        "a worker reads each batch"
    );
    assert!(block_on(entries.next_entry()).unwrap().is_none());
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
        same(Errno::EEXIST, d.create_dir("f"), dir.create_dir("f"));
        same(Errno::ENOENT, d.remove_file("no"), dir.remove_file("no"));
        same(Errno::ENOENT, d.rename("no", "g"), dir.rename("no", "g"));
        same(Errno::EXDEV, d.remove_file("../f"), dir.remove_file("../f"));
        same(
            Errno::EINVAL,
            d.open_options().open("f"),
            dir.open_options().open("f"),
        );
        same(
            Errno::EINVAL,
            d.open_options().read(true).truncate(true).open("f"),
            dir.open_options().read(true).truncate(true).open("f"),
        );
    }
}

/// Keeps others from opening a file of the source: a lease, which the kernel asks for back and waits for.
struct Leased(fs::File);

impl Leased {
    fn new(path: &std::path::Path) -> Leased {
        // The kernel tells of somebody who wants it by a signal that would end the process.
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
    let mut cut = Box::pin(dir.create("f"));
    assert!(poll_once(cut.as_mut()).is_pending());
    wait_until(|| dir.worker_stats().unwrap().running == 1);
    std::thread::sleep(Duration::from_millis(20));
    drop(cut);
    let mut rename = Box::pin(dir.rename("f", "g"));
    assert!(poll_once(rename.as_mut()).is_pending());
    std::thread::sleep(Duration::from_millis(20));
    assert!(disk.in_source("f").exists(), "it waits for the one before");
    leased.end();
    block_on(rename).unwrap();
    block_on(dir.sync()).unwrap();
    assert_eq!(fs::read(disk.in_source("g")).unwrap(), b"");
    assert!(!disk.in_source("f").exists());
}

#[test]
fn a_file_is_closed_by_a_worker() {
    let (disk, dir) = on_disk(16);
    let file = block_on(dir.create("f")).unwrap();
    block_on(file.append_all("bytes")).unwrap();
    let clone = file.clone();
    let before = dir.worker_stats().unwrap().requests;
    at_once(file.close()).unwrap();
    assert_eq!(dir.worker_stats().unwrap().requests, before, "one is left");
    block_on(clone.close()).unwrap();
    assert_eq!(dir.worker_stats().unwrap().requests, before + 1);
    // A small new file is in the source when it is closed.
    assert_eq!(fs::read(disk.in_source("f")).unwrap(), b"bytes");
    // Also if nobody waits for it.
    let file = block_on(dir.create("g")).unwrap();
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
    send(&dir.create("f"));
    send(&dir.metadata("f"));
    send(&dir.rename("f", "g"));
    send(&dir.rename_to("f", &dir, "g"));
    send(&dir.remove_file("f"));
    send(&dir.sync());
    send(&dir.open_options().read(true).open("f"));
    send(&async {
        let mut entries = dir.read_dir(".").await.unwrap();
        entries.next_entry().await.unwrap();
    });
}
