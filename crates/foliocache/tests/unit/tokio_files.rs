//! Async files as tokio's readers and writers.

use crate::common::executor::{Unpark, at_once, block_on, give_up_after, poll_once};
use crate::common::{Disk, PAGE, cache, pattern};
use foliocache::{Advice, AsyncFile, Cache, Errno, TokioFile};
use foliocache_sim::{Effect, Faults, FaultyBackend, Image, OpSet, Rule};
use std::io::{IoSlice, SeekFrom};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{
    AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncSeekExt, AsyncWrite, AsyncWriteExt, BufReader,
    BufWriter, ReadBuf,
};

const PATIENCE: Duration = Duration::from_secs(60);

fn on_disk(name: &str, mib: u64) -> (Disk, TokioFile) {
    let disk = Disk::new(mib);
    let file = disk.dir.create(name).unwrap().into_async().unwrap();
    (disk, file.into_tokio())
}

fn on_tokio<F: Future>(future: F) -> F::Output {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).build().unwrap().block_on(future)
}

/// A file of `bytes` on a store with these faults.
fn over(faults: &Faults, bytes: &[u8]) -> (Cache, Arc<FaultyBackend>, AsyncFile) {
    let cache = cache(16);
    let mut image = Image::new();
    image.write(0, bytes);
    let store = FaultyBackend::from_image("store", faults, image);
    let mut files = cache
        .open_store(store.clone(), bytes.len() as u64, 1)
        .unwrap();
    (cache, store, files.pop().unwrap().into_async().unwrap())
}

#[test]
fn files_are_copied() {
    // More than the cache holds.
    let (disk, mut from) = on_disk("from", 16);
    let bytes = pattern(1, 24 << 20);
    std::fs::write(disk.in_source("from"), &bytes).unwrap();
    on_tokio(async {
        from = disk
            .dir
            .open("from")
            .unwrap()
            .into_async()
            .unwrap()
            .into_tokio();
        let mut to = disk
            .dir
            .create("to")
            .unwrap()
            .into_async()
            .unwrap()
            .into_tokio();
        let copied = tokio::io::copy(&mut from, &mut to).await.unwrap();
        assert_eq!(copied, bytes.len() as u64);
        to.shutdown().await.unwrap();
        assert_eq!((from.position(), to.position()), (copied, copied));
        to.sync_all().await.unwrap();
    });
    assert!(std::fs::read(disk.in_source("to")).unwrap() == bytes);
}

#[test]
fn lines_are_read_as_those_of_std() {
    let text: String = (0..20_000).map(|at| format!("line {at}\n")).collect();
    let (_disk, mut file) = on_disk("text", 16);
    on_tokio(async {
        file.write_all(text.as_bytes()).await.unwrap();
        file.sync_data().await.unwrap();
        let advise = file.get_ref().run(|file| file.advise(Advice::DontNeed, ..));
        advise.await.unwrap();
        file.rewind().await.unwrap();
        let mut lines = BufReader::new(file).lines();
        for expected in text.lines() {
            assert_eq!(lines.next_line().await.unwrap().as_deref(), Some(expected));
        }
        assert_eq!(lines.next_line().await.unwrap(), None);
    });
}

#[test]
fn halves_of_a_file_share_its_position() {
    let (_disk, file) = on_disk("f", 16);
    on_tokio(async {
        file.get_ref().write_all_at(b"0123456789", 0).await.unwrap();
        let (mut reader, mut writer) = tokio::io::split(file);
        let mut buf = [0; 3];
        reader.read_exact(&mut buf).await.unwrap();
        assert_eq!(&buf, b"012");
        writer.write_all(b"xy").await.unwrap();
        reader.read_exact(&mut buf).await.unwrap();
        assert_eq!(&buf, b"567");
        let file = reader.unsplit(writer);
        assert_eq!(file.position(), 8);
        let file = file.into_inner();
        let mut all = [0; 10];
        file.read_exact_at(&mut all, 0).await.unwrap();
        assert_eq!(&all, b"012xy56789");
        // Each has its own.
        let (mut one, mut two) = (file.clone().into_tokio(), file.into_tokio());
        assert_eq!(one.read_u8().await.unwrap(), b'0');
        assert_eq!(two.read_u8().await.unwrap(), b'0');
    });
}

#[test]
fn calls_on_cached_data_are_ready_at_the_first_poll() {
    let (_disk, mut file) = on_disk("f", 16);
    let bytes = pattern(2, 64 * PAGE);
    assert_eq!(at_once(file.write(&bytes)).unwrap(), bytes.len());
    at_once(file.flush()).unwrap();
    assert_eq!(
        at_once(file.seek(SeekFrom::End(-100))).unwrap(),
        bytes.len() as u64 - 100
    );
    let mut back = vec![0; 200];
    assert_eq!(at_once(file.read(&mut back)).unwrap(), 100);
    assert!(back[..100] == bytes[bytes.len() - 100..]);
    assert_eq!(at_once(file.read(&mut back)).unwrap(), 0);
    let bufs = [&b"one"[..], &b""[..], &b"two"[..]].map(IoSlice::new);
    assert_eq!(at_once(file.seek(SeekFrom::Start(5))).unwrap(), 5);
    assert_eq!(at_once(file.write_vectored(&bufs)).unwrap(), 6);
    assert_eq!(at_once(file.seek(SeekFrom::Current(-6))).unwrap(), 5);
    at_once(file.read_exact(&mut back[..6])).unwrap();
    assert_eq!(&back[..6], b"onetwo");
    at_once(file.shutdown()).unwrap();
    // As after a close, the data is discarded.
    assert_eq!(at_once(file.write(b"more")).unwrap(), 4);
    assert_eq!(file.get_ref().worker_stats().unwrap().requests, 0);
}

#[test]
fn seeks_go_past_the_end() {
    let (_disk, mut file) = on_disk("f", 16);
    block_on(async {
        file.write_all(b"begin").await.unwrap();
        assert_eq!(file.seek(SeekFrom::End(10_000)).await.unwrap(), 10_005);
        let mut buf = [1; 10];
        assert_eq!(file.read(&mut buf).await.unwrap(), 0);
        assert_eq!(file.get_ref().len(), 5, "it takes a write");
        file.write_all(b"end").await.unwrap();
        assert_eq!(file.get_ref().len(), 10_008);
        file.seek(SeekFrom::Start(10_000)).await.unwrap();
        assert_eq!(file.read(&mut buf).await.unwrap(), 8);
        assert_eq!(&buf[..8], b"\0\0\0\0\0end");
        for bad in [
            SeekFrom::Current(-10_009),
            SeekFrom::End(-10_009),
            SeekFrom::Start(u64::MAX),
        ] {
            let error = file.seek(bad).await.unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        }
        assert_eq!(file.stream_position().await.unwrap(), 10_008);
        let far = i64::MAX as u64;
        assert_eq!(file.seek(SeekFrom::Start(far)).await.unwrap(), far);
        assert_eq!(file.read(&mut buf).await.unwrap(), 0);
        assert!(file.write(b"x").await.is_err());
    });
}

#[test]
fn a_read_that_was_given_up_loses_no_byte() {
    let faults = Faults::new(1);
    let bytes = pattern(3, 64 * PAGE);
    let (_cache, _store, file) = over(&faults, &bytes);
    file.blocking().advise(Advice::Random, ..).unwrap();
    let mut file = file.into_tokio();
    faults.add(Rule::new(
        OpSet::READ,
        Effect::Delay(Duration::from_millis(1)),
    ));
    let (mut seen, mut given_up) = (Vec::<u8>::new(), 0);
    // Read with buffers of all sizes, each poll by a new future.
    for len in (1..).map(|at| at * 977 % 5000 + 1) {
        let mut buf = vec![0; len];
        match give_up_after(1, file.read(&mut buf)) {
            Some(n) => match n.unwrap() {
                0 => break,
                n => seen.extend(&buf[..n]),
            },
            None => {
                given_up += 1;
                assert_eq!(file.position(), seen.len() as u64);
                assert!(buf.iter().all(|&byte| byte == 0), "it has no other user");
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }
    assert!(seen == bytes);
    assert!(given_up > 10, "{given_up}");
}

#[test]
fn a_seek_gives_a_read_up() {
    let faults = Faults::new(2);
    let bytes = pattern(4, 64 * PAGE);
    let (_cache, _store, file) = over(&faults, &bytes);
    file.blocking().advise(Advice::Random, ..).unwrap();
    let mut file = file.into_tokio();
    faults.add(Rule::new(OpSet::READ, Effect::Hang).times(1));
    let mut buf = [0; 10];
    assert!(give_up_after(1, file.read(&mut buf)).is_none());
    assert!(faults.wait_hung(1, PATIENCE));
    assert_eq!(
        at_once(file.seek(SeekFrom::Start(20 * PAGE as u64))).unwrap(),
        20 * PAGE as u64
    );
    block_on(file.read_exact(&mut buf)).unwrap();
    assert_eq!(buf, bytes[20 * PAGE..][..10]);
    faults.heal();
}

/// A file whose first writes of a part of a page hang.
fn before_writes_that_hang(faults: &Faults) -> (Cache, Arc<FaultyBackend>, TokioFile) {
    let (cache, store, file) = over(faults, &[7; 8 * PAGE]);
    faults.add(Rule::new(OpSet::READ, Effect::Hang));
    (cache, store, file.into_tokio())
}

#[test]
fn an_accepted_write_is_done_before_any_later_call() {
    let faults = Faults::new(3);
    let (_cache, _store, mut file) = before_writes_that_hang(&faults);
    // Accepted: a worker has it.
    assert_eq!(at_once(file.write(b"accepted")).unwrap(), 8);
    assert!(faults.wait_hung(1, PATIENCE));
    assert_eq!(file.position(), 8);
    assert!(give_up_after(1, file.flush()).is_none());
    let mut buf = [0; 10];
    assert!(give_up_after(1, file.read(&mut buf)).is_none());
    assert!(give_up_after(1, file.write(b"never")).is_none());
    assert!(give_up_after(1, file.seek(SeekFrom::Current(-8))).is_none());
    let other = file.get_ref().clone();
    let mut write = Box::pin(other.write_at(b"ACC", 0));
    assert!(poll_once(write.as_mut()).is_pending());
    faults.heal();
    assert_eq!(block_on(write).unwrap(), 3);
    block_on(file.flush()).unwrap();
    assert_eq!(file.position(), 8, "none of them moved it");
    block_on(file.rewind()).unwrap();
    block_on(file.read_exact(&mut buf)).unwrap();
    assert_eq!(&buf, b"ACCepted\x07\x07");
}

#[test]
fn a_write_that_is_pending_has_written_nothing() {
    let faults = Faults::new(4);
    let (_cache, _store, mut file) = before_writes_that_hang(&faults);
    assert_eq!(at_once(file.write(b"first")).unwrap(), 5);
    assert!(faults.wait_hung(1, PATIENCE));
    assert!(give_up_after(1, file.write(b"WRONG")).is_none());
    faults.heal();
    block_on(file.write_all(b"right")).unwrap();
    block_on(file.rewind()).unwrap();
    let mut buf = [0; 11];
    block_on(file.read_exact(&mut buf)).unwrap();
    assert_eq!(&buf, b"firstright\x07");
}

#[test]
fn a_writer_that_waits_for_a_buffer_delays_no_other() {
    const LEN: usize = 60_000;
    let (cache, faults) = (cache(16), Faults::new(5));
    let mut image = Image::new();
    image.write(0, &[7; 256 * PAGE]);
    let store = FaultyBackend::from_image("store", &faults, image);
    let files = cache.open_store(store, 256 * PAGE as u64, 5).unwrap();
    let mut files = files.into_iter().map(|file| file.into_async().unwrap());
    faults.add(Rule::new(OpSet::READ, Effect::Hang));
    let pos = |at: u64| at * 20 * PAGE as u64 + 1;
    let mut writers: Vec<_> = (0..4)
        .map(|at| {
            let mut writer = files.next().unwrap().into_tokio();
            block_on(writer.seek(SeekFrom::Start(pos(at)))).unwrap();
            writer
        })
        .collect();
    // Three of them have all the buffers.
    for writer in &mut writers[..3] {
        assert_eq!(at_once(writer.write(&[1; LEN])).unwrap(), LEN);
    }
    let (unpark, bytes) = (Unpark::of_this_thread(), [1; LEN]);
    let waker = Waker::from(Arc::clone(&unpark));
    {
        let mut write = pin!(writers[3].write(&bytes));
        let polled = write.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
    }
    // It may never be polled again.
    let file = files.next().unwrap();
    let mut write = Box::pin(file.write_at(&bytes, pos(4)));
    assert!(poll_once(write.as_mut()).is_pending());
    faults.heal();
    assert_eq!(block_on(write).unwrap(), LEN);
    unpark.wait();
    block_on(writers[3].write_all(&bytes)).unwrap();
    for writer in &mut writers {
        block_on(writer.flush()).unwrap();
    }
    let mut back = vec![0; 120 * PAGE];
    block_on(file.read_exact_at(&mut back, 0)).unwrap();
    assert_eq!(back.iter().filter(|&&byte| byte == 1).count(), 5 * LEN);
    assert_eq!(file.worker_stats().unwrap().buffered_bytes, 0);
}

#[test]
fn a_failure_of_accepted_bytes_is_reported_once() {
    for by_flush in [true, false] {
        let faults = Faults::new(6);
        let (_cache, _store, mut file) = before_writes_that_hang(&faults);
        assert_eq!(at_once(file.write(b"accepted")).unwrap(), 8);
        assert!(faults.wait_hung(1, PATIENCE));
        faults.release(Err(Errno::EIO));
        let error = match by_flush {
            true => block_on(file.flush()).unwrap_err(),
            false => block_on(file.write(b"next")).unwrap_err(),
        };
        assert_eq!(error.raw_os_error(), Some(Errno::EIO.raw()), "{error}");
        block_on(file.flush()).unwrap();
        faults.heal();
    }
}

#[test]
fn an_accepted_write_reaches_the_store_after_its_file_is_dropped() {
    let faults = Faults::new(7);
    let (cache, store, mut file) = before_writes_that_hang(&faults);
    assert_eq!(at_once(file.write(b"accepted")).unwrap(), 8);
    assert!(faults.wait_hung(1, PATIENCE));
    // A sync by another way covers it.
    let other = file.get_ref().clone();
    drop(file);
    let mut sync = Box::pin(other.sync_data());
    assert!(poll_once(sync.as_mut()).is_pending());
    faults.heal();
    block_on(sync).unwrap();
    assert_eq!(store.durable().read_vec(0, 8), b"accepted");
    drop(cache);
}

#[test]
fn writes_through_a_file_open_for_appending_go_to_its_end() {
    let disk = Disk::new(16);
    on_tokio(async {
        let open = || {
            disk.dir
                .append("log")
                .unwrap()
                .into_async()
                .unwrap()
                .into_tokio()
        };
        let (mut one, mut two) = (open(), open());
        one.write_all(b"one").await.unwrap();
        two.write_all(b"two").await.unwrap();
        assert_eq!((one.position(), two.position()), (3, 6));
        one.seek(SeekFrom::Start(0)).await.unwrap();
        one.write_all(b"three").await.unwrap();
        assert_eq!(one.position(), 11);
        one.sync_data().await.unwrap();
    });
    assert_eq!(
        std::fs::read(disk.in_source("log")).unwrap(),
        b"onetwothree"
    );
}

#[test]
fn a_buffered_writer_writes_more_than_the_cache_holds() {
    let (disk, file) = on_disk("f", 8);
    let bytes = pattern(9, 20 << 20);
    on_tokio(async {
        let mut writer = BufWriter::with_capacity(100_000, file);
        for piece in bytes.chunks(12_345) {
            writer.write_all(piece).await.unwrap();
        }
        writer.shutdown().await.unwrap();
        let mut file = writer.into_inner();
        file.sync_data().await.unwrap();
        file.rewind().await.unwrap();
        let mut back = Vec::new();
        file.read_to_end(&mut back).await.unwrap();
        assert!(back == bytes);
    });
    assert!(std::fs::read(disk.in_source("f")).unwrap() == bytes);
}

#[test]
fn errors_keep_their_number() {
    let (disk, _) = on_disk("f", 16);
    let mut file = disk
        .dir
        .open("f")
        .unwrap()
        .into_async()
        .unwrap()
        .into_tokio();
    block_on(file.seek(SeekFrom::Start(7))).unwrap();
    let error = block_on(file.write(b"abc")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::EBADF.raw()), "{error}");
    let write_only = disk.dir.open_options().write(true).open("f").unwrap();
    let mut file = write_only.into_async().unwrap().into_tokio();
    assert!(block_on(file.read(&mut [0; 4])).is_err());
}

#[test]
fn a_read_into_a_filled_buffer_reads_nothing() {
    let (_disk, mut file) = on_disk("f", 16);
    block_on(file.write_all(b"bytes")).unwrap();
    block_on(file.rewind()).unwrap();
    let mut none = ReadBuf::new(&mut []);
    let context = &mut Context::from_waker(Waker::noop());
    assert!(matches!(
        pin!(&mut file).poll_read(context, &mut none),
        Poll::Ready(Ok(()))
    ));
    let mut space = [0; 8];
    let mut buf = ReadBuf::new(&mut space);
    buf.put_slice(b"abc");
    assert!(matches!(
        pin!(&mut file).poll_read(context, &mut buf),
        Poll::Ready(Ok(()))
    ));
    assert_eq!(buf.filled(), b"abcbytes");
    assert!(Pin::new(&mut file).is_write_vectored());
    fn both<T: Send + Sync + Unpin>(_: &T) {}
    both(&file);
}
