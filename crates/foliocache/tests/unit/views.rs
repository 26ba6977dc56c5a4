//! Views, as a user of the library has them.

use crate::common::executor::{block_on, poll_once};
use crate::common::{Disk, PAGE, pattern};
use bytes::Bytes;
use foliocache::{Errno, View};
use std::ops::ControlFlow;
use std::task::Poll;

const SIZE: usize = 4 << 20;

/// A file of [`SIZE`] bytes that is not cached, and the bytes.
fn cold(disk: &Disk) -> Vec<u8> {
    let bytes = pattern(1, SIZE);
    std::fs::write(disk.in_source("f"), &bytes).unwrap();
    bytes
}

#[test]
fn views_of_a_range_one_after_the_other_are_the_file() {
    let disk = Disk::new(32);
    let bytes = cold(&disk);
    let file = disk.dir.open("f").unwrap();
    let (mut views, mut at) = (Vec::new(), 0);
    loop {
        let view = file.view(at..).unwrap();
        if view.is_empty() {
            break;
        }
        assert!(view.len() <= 2 << 20 && !view.is_copy());
        at += view.len() as u64;
        views.push(Bytes::from_owner(view));
    }
    assert_eq!(at as usize, SIZE);
    assert!(views.concat() == bytes);
    let small = file.view(10..20).unwrap();
    assert_eq!(*small, bytes[10..20]);
    assert!(file.view(20..20).unwrap().is_empty());
    let most = disk.cache.holders(1000).unwrap();
    assert!(most.len() <= views.len());
    assert!(
        most.iter()
            .all(|holder| holder.file.ends_with("/f") && holder.views > 0),
        "{most:?}"
    );
    drop((file, disk));
    // The cache and its directory are gone.
    assert!(views.concat() == bytes);
    assert_eq!(*small, bytes[10..20]);
}

#[test]
fn async_views_are_ready_at_once_or_wait_for_the_store() {
    let disk = Disk::new(32);
    let bytes = cold(&disk);
    let file = disk.dir.open("f").unwrap().into_async().unwrap();
    let first = block_on(file.view(5..10_000)).unwrap();
    assert_eq!(*first, bytes[5..5 + first.len()]);
    let mut again = Box::pin(file.view(5..100));
    match poll_once(again.as_mut()) {
        Poll::Ready(view) => assert_eq!(*view.unwrap(), bytes[5..100]),
        Poll::Pending => panic!("it is in the cache"),
    }
    let end = block_on(file.view(SIZE as u64..)).unwrap();
    assert!(end.is_empty());
    let tasks = (0..16).map(|task| (SIZE / 16 * task) as u64);
    let read = tasks.clone().map(|pos| file.view(pos..pos + PAGE as u64));
    for (pos, view) in tasks.zip(read) {
        let view: View = block_on(view).unwrap();
        assert_eq!(*view, bytes[pos as usize..pos as usize + view.len()]);
    }
}

#[test]
fn a_view_needs_a_handle_for_reading() {
    let disk = Disk::new(16);
    cold(&disk);
    let file = disk.dir.open_options().write(true).open("f").unwrap();
    assert_eq!(file.view(..10).unwrap_err().errno(), Errno::EBADF);
}

#[test]
fn a_value_is_kept_while_its_key_is_overwritten() {
    let disk = Disk::new(16);
    let file = disk.dir.create("f").unwrap();
    file.write_all_at(&[0; 8192], 0).unwrap();
    let views: Vec<View> = (0..50_u8)
        .map(|round| {
            file.write_all_at(&[round; 100], 4000).unwrap();
            if round % 10 == 0 {
                file.sync_data().unwrap();
            }
            file.view(4000..4050).unwrap()
        })
        .collect();
    let wrong = views.iter().enumerate().try_for_each(|(round, view)| {
        match view.iter().all(|&byte| usize::from(byte) == round) {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(round),
        }
    });
    assert_eq!(wrong, ControlFlow::Continue(()));
    let stats = disk.cache.stats().unwrap();
    assert!(stats.folios_replaced >= 49, "{stats:?}");
    drop(views);
    assert_eq!(disk.cache.stats().unwrap().unreclaimable.viewed_pages, 0);
}

/// In a file system in memory a large folio may hold a hole, whose bytes are nowhere.
#[test]
fn a_view_of_a_hole_in_a_large_folio_in_memory_is_a_copy_and_does_not_wait() {
    const GRAIN: usize = 32 << 10;
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let cache = foliocache::Cache::builder().memory("64M").build().unwrap();
        let file = cache.memfs().unwrap().create("f").unwrap();
        // Appends in a row make large folios, whose last grains hold nothing yet.
        let mut written = 0;
        while written < 20 * GRAIN {
            file.append_all(&pattern(3, 5000)).unwrap();
            written += 5000;
        }
        let end = written.next_multiple_of(1 << 20);
        file.set_len(end as u64).unwrap();
        let stats = file.stats().unwrap();
        assert!(
            stats.resident_pages as usize * PAGE > written + GRAIN,
            "the last folio has no hole: {stats:?}"
        );
        let mut copies = 0;
        for pos in (written..end).step_by(PAGE) {
            let view = file.view(pos as u64..(pos + 100) as u64).unwrap();
            assert!(view.iter().all(|&byte| byte == 0), "at {pos}");
            copies += u32::from(view.is_copy());
        }
        send.send(copies).unwrap();
    });
    // Not a join: where it hangs it does so for ever.
    let copies = receive.recv_timeout(std::time::Duration::from_secs(60));
    assert!(copies.expect("a view does not return") > 0);
}
