//! A forked child's calls on its parent's cache: each one fails with `ECHILD`.
//!
//! # Safety
//!
//! The child runs in a copy of a process with threads. It allocates (which glibc allows), touches
//! the handles under test, and leaves by `_exit`.
#![allow(unsafe_code)]

mod common;

use common::executor::{block_on, poll_once};
use common::{Disk, cache, is_alone, run_alone};
use foliocache::{
    Advice, AsyncFile, Errno, File, FileOptions, FileTimes, LockKind, PinMode, ReadBatch, Result,
    Walk,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A fork of a test harness would copy the state of all running tests, so it happens in a separate
/// process.
#[test]
fn in_a_child_every_call_gives_echild() {
    let said = run_alone("use_after_fork");
    assert!(said.contains("the child was told"), "{said}");
}

fn child<T>(what: &str, result: Result<T>) {
    match result {
        Ok(_) => panic!("{what} went through in a child"),
        Err(error) => assert_eq!(error.errno(), Errno::ECHILD, "{what}: {error}"),
    }
}

#[test]
fn use_after_fork() {
    if !is_alone() {
        return;
    }
    let disk = Disk::new(16);
    let memory = disk.cache.memfs().unwrap();
    let files = [disk.dir.create("f").unwrap(), memory.create("f").unwrap()];
    for file in &files {
        file.write_all_at(b"the parent's", 0).unwrap();
    }
    let elsewhere = common::on_disk();
    let single = elsewhere.path().join("f");
    let mut options = FileOptions::new();
    options.read(true).write(true).create(true);
    let alone = disk.cache.file(&single, &options).unwrap();
    alone.write_all_at(b"alone", 0).unwrap();
    disk.dir.remove_file("none").unwrap_err();
    let asynchronous = disk.dir.open("f").unwrap().into_async().unwrap();
    let names = disk.dir.clone().into_async().unwrap();
    let late = disk.dir.open("f").unwrap();
    let [pin, pin_to_drop] = [0, 1].map(|_| files[0].pin(.., PinMode::WRITE.long_term()).unwrap());
    let calls = Arc::new(AtomicU32::new(0));
    let called = Arc::clone(&calls);
    let on_revoke = move |_| _ = called.fetch_add(1, Ordering::Relaxed);
    let revocable = files[0].pin_revocable(.., PinMode::READ, on_revoke);
    let revocable = revocable.unwrap();
    // Started by the parent; no thread finishes it in the child.
    let mut begun = Box::pin(asynchronous.sync_data());
    let _ = poll_once(begun.as_mut());
    let listing = disk.dir.read_dir(".").unwrap();
    memory.create_dir("d").unwrap();
    let walk = memory.walk(".");
    let mut walks = [walk.clone().ordered(true), walk.threads(2)].map(Walk::into_iter);
    for walk in &mut walks {
        walk.next().unwrap().unwrap();
    }
    let view = files[1].view(..).unwrap();
    assert!(!view.is_copy());
    let long = memory.create("long").unwrap();
    long.write_all_at(&[7; 1 << 20], 0).unwrap();
    let copy = long.view_exact(..).unwrap();
    assert!(copy.is_copy());
    files[0].lock().unwrap();
    // SAFETY: see the module's header.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // A child that hangs is a failure too.
        // SAFETY: always allowed.
        unsafe { libc::alarm(30) };
        let told = catch_unwind(AssertUnwindSafe(|| {
            let mut buf = [0; 4];
            for file in &files {
                child("read_at", file.read_at(&mut buf, 0));
                let mut requests = [file.read_request(&mut buf, 0)];
                child("read_batch", File::read_batch(&mut requests));
                child("write_at", file.write_at(&buf, 0));
                child("append", file.append(&buf));
                let error = std::io::Read::read(&mut &*file, &mut buf).unwrap_err();
                assert_eq!(error.raw_os_error(), Some(libc::ECHILD));
                child("try_clone", file.try_clone());
                child("sync_range", file.sync_range(..));
                child("seek_data", file.seek_data(0));
                child("lock", file.lock());
                child("unlock", file.unlock());
                child("lock_range", file.lock_range(.., LockKind::Shared));
                child("unlock_range", file.unlock_range(..));
                child("revalidate", file.revalidate());
                child("write_out", file.write_out());
                child("read_full_at", file.read_full_at(&mut buf, 0));
                let mut batch = ReadBatch::new();
                let read = file.read_batch_into(&[(0, 4)], &mut buf, &mut batch);
                child("read_batch_into", read);
                assert_eq!(file.len(), 12);
                child("set_times", file.set_times(FileTimes::new()));
                child("get_xattr", file.get_xattr("user.a"));
                child("list_xattrs", file.list_xattrs());
                child("sync_data", file.sync_data());
                child("sync_all", file.sync_all());
                child("set_len", file.set_len(1));
                child("punch_hole", file.punch_hole(0, 1));
                child("pin", file.pin(.., PinMode::READ));
                let revocable = file.pin_revocable(.., PinMode::READ, |_| ());
                child("pin_revocable", revocable);
                child("pinned", file.pinned());
                child("allocate", file.allocate(0, 1));
                child("advise", file.advise(Advice::WillNeed, ..));
                child("metadata", file.metadata());
                child("stats", file.stats());
                child("view", file.view(..));
                child("exact view", file.view_exact(..));
                child("views", file.views(&[0..1, 3..4]));
                child("failed_ranges", file.failed_ranges());
                child("discard_failed", file.discard_failed());
            }
            child("read_at", block_on(asynchronous.read_at(&mut buf, 0)));
            let mut requests = [asynchronous.read_request(&mut buf, 0)];
            let read = AsyncFile::read_batch(&mut requests);
            child("read_batch", block_on(read));
            child("write_at", block_on(asynchronous.write_at(&buf, 0)));
            child("append", block_on(asynchronous.append(&buf)));
            child("sync_all", block_on(asynchronous.sync_all()));
            child("run", block_on(asynchronous.run(|file| file.set_len(1))));
            child("append_all", block_on(asynchronous.append_all("x")));
            child("metadata", block_on(asynchronous.metadata()));
            child("close", block_on(asynchronous.clone().close()));
            child("async metadata", block_on(names.metadata("f")));
            child("async open", block_on(names.open("f")));
            child("async read_dir", block_on(names.read_dir(".")));
            child("run", block_on(names.run(|dir| dir.rename("f", "g"))));
            child("worker_stats", asynchronous.worker_stats());
            child("into_async", late.into_async());
            drop(begun);
            drop(asynchronous.clone());
            for dir in [&disk.dir, &memory] {
                child("open", dir.open("f"));
                child("create", dir.create("g"));
                child("open_dir", dir.open_dir("."));
                child("create_dir", dir.create_dir("d"));
                child("remove_file", dir.remove_file("f"));
                child("rename", dir.rename("f", "g"));
                child("metadata", dir.metadata("f"));
                child("read_dir", dir.read_dir("."));
                child("sync", dir.sync());
                child("stats", dir.stats());
            }
            for entry in listing {
                child("read_dir", entry);
            }
            for mut walk in walks {
                child("walk", walk.find(Result::is_err).expect("what is in `d`"));
            }
            child("directory", disk.cache.directory("/"));
            child("file", disk.cache.file(&single, &options));
            let adopted = std::fs::File::open(&single).unwrap();
            child("adopt", disk.cache.adopt(adopted));
            child("sync_all", alone.sync_all());
            drop(alone);
            child("memfs", disk.cache.memfs());
            child("set_memory", disk.cache.set_memory("32M"));
            child("stats", disk.cache.stats());
            child("sync", disk.cache.sync());
            println!("{:?} {:?} {:?}", disk.cache, disk.dir, files[0]);
            let refused = disk.cache.clone().close().unwrap_err();
            assert_eq!(refused.errno(), Errno::ECHILD);
            child("holders", disk.cache.holders(1));
            assert_eq!(pin.parts().count(), 0, "the memory is not there");
            drop((pin, pin_to_drop, revocable));
            assert!(copy.iter().all(|&byte| byte == 7), "the heap is there");
            drop((
                view, copy, long, files, memory, disk.dir, refused, disk.cache,
            ));
        }));
        // The directory itself is the parent's to remove.
        std::mem::forget((disk.source, elsewhere));
        // SAFETY: always allowed.
        unsafe { libc::_exit(i32::from(told.is_err())) };
    }
    assert!(pid > 0);
    let mut status = 0;
    // SAFETY: `status` is ours.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status), "{status:#x}");
    assert_eq!(libc::WEXITSTATUS(status), 0);
    assert_eq!(*view, *b"the parent's");
    println!("the child was told");
    let beside = std::fs::File::open(disk.in_source("f")).unwrap();
    beside.try_lock().expect_err("the parent's lock is there");
    // Nothing of the parent's is gone.
    for file in &files {
        let mut buf = [0; 12];
        file.read_exact_at(&mut buf, 0).unwrap();
        assert_eq!(&buf, b"the parent's");
        file.sync_all().unwrap();
    }
    assert_eq!(std::fs::read(disk.in_source("f")).unwrap(), b"the parent's");
    assert_eq!(pin.parts().count(), 1);
    assert_eq!(disk.cache.stats().unwrap().unreclaimable.pinned_pages, 1);
    drop((pin, pin_to_drop));
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    assert_eq!(
        Arc::strong_count(&calls),
        2,
        "the parent's callback is there"
    );
    drop(revocable);
    assert_eq!(Arc::strong_count(&calls), 1);
    assert_eq!(disk.cache.stats().unwrap().unreclaimable.pinned_pages, 0);
    // The lock on the source too. It ends with the parent's cache, even if a copy of its descriptor
    // exists.
    let other = cache(16);
    other.directory(disk.source.path()).unwrap_err();
    other.file(&single, &options).unwrap_err();
    // SAFETY: see the module's header.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        loop {
            // SAFETY: always allowed.
            unsafe { libc::pause() };
        }
    }
    assert!(pid > 0);
    drop(begun);
    drop(alone);
    let single = other.file(&single, &options);
    drop((files, asynchronous, names, late, walks, listing, disk.dir));
    disk.cache.close().unwrap();
    let unlocked = beside.try_lock();
    let ours = other.directory(disk.source.path());
    // SAFETY: a child of ours that was not waited for yet.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    // SAFETY: `status` is ours.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    ours.unwrap();
    let mut bytes = [0; 5];
    single.unwrap().read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"alone");
    unlocked.unwrap();
}
