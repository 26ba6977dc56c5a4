//! Locks are had while other threads of this process write to the file without a pause.

use crate::common::Disk;
use foliocache::{File, LockKind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const PAGE: u64 = 4096;

/// Pages of each thread.
const PAGES: u64 = 64;

/// Locks a range repeatedly while three threads write to separate pages, each followed by `then`.
fn lock_beside_writers(then: impl Fn(&File) + Sync) {
    let disk = Disk::new(16);
    let file = disk.dir.create("f").unwrap();
    let reader = disk.dir.open("f").unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for thread in 0..3 {
            let (file, then, done) = (&file, &then, &done);
            scope.spawn(move || {
                for round in 0.. {
                    // Relaxed: it publishes nothing else.
                    if done.load(Ordering::Relaxed) {
                        return;
                    }
                    let page = thread * PAGES + round % PAGES;
                    file.write_all_at(&[round as u8; PAGE as usize], page * PAGE)
                        .unwrap();
                    then(file);
                }
            });
        }
        let had = (0..1_000).try_for_each(|_| {
            reader.lock_range(0..1, LockKind::Shared)?;
            reader.unlock_range(0..1)
        });
        done.store(true, Ordering::Relaxed);
        had.unwrap();
    });
}

#[test]
fn a_lock_is_had_while_others_write_out() {
    lock_beside_writers(|file| file.write_out().unwrap());
}

#[test]
fn a_lock_is_had_while_others_make_durable() {
    lock_beside_writers(|file| file.sync_data().unwrap());
}
