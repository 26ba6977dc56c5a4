//! Unit tests of the front.

use crate::buffers::Buffers;
use crate::data::{ReadReply, ReadRequest, WriteRequest};
use crate::front::Front;
use crate::handles::Handles;
use crate::kernel_pages::KernelPages;
use crate::nodes::Nodes;
use crate::prune::Pruner;
use crate::stats::Counters;
use foliocache_fs::MemFs;
use foliocache_mm::{Mm, MmConfig};
use foliocache_sync::Arc;
use foliocache_sync::atomic::{AtomicBool, Ordering};
use foliocache_sync::background::Panics;
use foliocache_sys::Errno;
use foliocache_vfs::{OpContext, OpenFlags, SuperBlock};
use fuser::{INodeNo, WriteFlags};

fn front() -> Front {
    let mm = Mm::new(MmConfig::new(64 << 20)).unwrap();
    let fs = Arc::new(MemFs::new(&mm).unwrap());
    let counters = Arc::new(Counters::default());
    let pruner = Arc::new(Pruner::new(counters.clone()));
    Front {
        names: Arc::new(SuperBlock::new(fs, &mm)),
        nodes: Arc::new(Nodes::new(pruner.clone(), counters.clone())),
        pruner,
        files: Handles::new(),
        directories: Handles::new(),
        buffers: Buffers::new(4),
        counters,
        panics: Arc::new(Panics::new(|_, _| {})),
        kernel_pages: Arc::new(KernelPages::default()),
        kernel_keeps_all: AtomicBool::default(),
    }
}

fn create(front: &Front, name: &str) -> u64 {
    let (root, flags) = (front.fs().root(), OpenFlags::READ_WRITE);
    let file = front
        .fs()
        .create(&OpContext::ROOT, &root, name.as_ref(), 0o644, flags, true)
        .unwrap();
    front.insert_file(file).0
}

fn write(
    front: &Front,
    (fh, pos): (u64, u64),
    data: &[u8],
    how: WriteFlags,
    flags: i32,
) -> Result<u32, Errno> {
    let request = WriteRequest {
        fh,
        pos,
        how,
        flags,
    };
    front.do_write(&request, data)
}

fn contents(front: &Front, fh: u64) -> Vec<u8> {
    let file = &front.files.get(fh).unwrap().file;
    let mut bytes = vec![0; file.size() as usize];
    let n = file.read_at(&mut bytes, 0).unwrap();
    bytes.truncate(n);
    bytes
}

#[test]
fn a_panic_is_an_error_and_the_next_operation_works() {
    let front = front();
    let done = front.attempt::<()>("test", || panic!("a bug"));
    assert_eq!(done.unwrap_err().code(), Errno::EIO.raw());
    let done = front.attempt::<()>("test", || Err(Errno::ENOENT));
    assert_eq!(done.unwrap_err().code(), Errno::ENOENT.raw());
    assert_eq!(front.attempt("test", || Ok(5)).unwrap(), 5);
    let stats = front.counters.snapshot();
    assert_eq!((stats.requests, stats.errors), (3, 1));
    assert_eq!(front.panics.count(), 1);
}

#[test]
fn appending_is_said_with_each_write_and_never_by_the_kernels_cache() {
    const O_APPEND: i32 = 0o2000;
    let front = front();
    let fh = create(&front, "f");
    let write = |pos, data: &[u8], how, flags| write(&front, (fh, pos), data, how, flags).unwrap();
    let (plain, cache) = (WriteFlags::empty(), WriteFlags::FUSE_WRITE_CACHE);
    assert_eq!(write(0, b"one", plain, 0), 3);
    assert_eq!(write(0, b"two", plain, O_APPEND), 3);
    assert_eq!(write(0, b"ONE", cache, O_APPEND), 3);
    assert_eq!(contents(&front, fh), b"ONEtwo");
}

#[test]
fn copies_go_through_the_cache_and_end_with_the_file() {
    let front = front();
    let (from, to) = (create(&front, "from"), create(&front, "to"));
    let data: Vec<u8> = (0..3_000_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
    write(&front, (from, 0), &data, WriteFlags::empty(), 0).unwrap();
    let n = front.do_copy((from, 1000), (to, 5), 10 << 20).unwrap();
    assert_eq!(n as usize, data.len() - 1000);
    assert_eq!(contents(&front, to)[5..], data[1000..]);
    assert_eq!(front.do_copy((from, 4_000_000), (to, 0), 10).unwrap(), 0);
}

#[test]
fn space_and_holes() {
    let front = front();
    let fh = create(&front, "f");
    write(&front, (fh, 0), &[1; 20_000], WriteFlags::empty(), 0).unwrap();
    front.do_fallocate(fh, 4096, 4096, 3).unwrap();
    assert!(
        contents(&front, fh)[4096..8192]
            .iter()
            .all(|&byte| byte == 0)
    );
    front.do_fallocate(fh, 15_000, 15_000, 0x10).unwrap();
    assert_eq!(contents(&front, fh).len(), 30_000);
    assert!(contents(&front, fh)[15_000..].iter().all(|&byte| byte == 0));
    write(&front, (fh, 29_000), &[1; 1000], WriteFlags::empty(), 0).unwrap();
    front.do_fallocate(fh, 29_000, 2000, 0x11).unwrap();
    assert_eq!(contents(&front, fh).len(), 30_000);
    assert!(contents(&front, fh)[29_000..].iter().all(|&byte| byte == 0));
    assert_eq!(
        front.do_fallocate(fh, 0, 4096, 0x20),
        Err(Errno::EOPNOTSUPP)
    );
    assert_eq!(front.do_lseek(fh, 0, 9), Err(Errno::EINVAL));
    assert_eq!(front.do_lseek(fh, 30_000, 3), Err(Errno::ENXIO));
}

#[test]
fn handles_end_with_their_release() {
    let front = front();
    let fh = create(&front, "f");
    // Relaxed: one thread.
    front
        .files
        .get(fh)
        .unwrap()
        .mapped
        .store(true, Ordering::Relaxed);
    front.do_release(fh);
    front.do_release(fh);
    let done = write(&front, (fh, 0), b"x", WriteFlags::empty(), 0);
    assert_eq!(done, Err(Errno::EBADF));
}

/// The answer to a read, for [`Front::do_read`].
struct Answer<'a>(&'a mut Option<Result<Vec<u8>, i32>>);

impl ReadReply for Answer<'_> {
    fn data(self, bytes: &[u8]) {
        *self.0 = Some(Ok(bytes.to_vec()));
    }

    fn error(self, error: fuser::Errno) {
        *self.0 = Some(Err(error.code()));
    }
}

#[test]
fn reads_are_answered_alike_lent_or_copied() {
    let front = front();
    let fh = create(&front, "file");
    let bytes: Vec<u8> = (0..300_000_u32).map(|n| ((n * 7) >> 3) as u8).collect();
    let no_flags = WriteFlags::empty();
    write(&front, (fh, 0), &bytes, no_flags, 0).unwrap();
    let read = |fh, pos: usize, size: u32| {
        let mut answer = None;
        let request = ReadRequest {
            fh,
            pos: pos as u64,
            size,
            from_cache: false,
        };
        front.read(&request, Answer(&mut answer));
        answer.unwrap()
    };
    for size in [1, 4096, 32 << 10, 100_000, 1 << 20] {
        for pos in [0, 4096, 65_536 + 17, 299_999, 300_000, 400_000] {
            let end = bytes.len().min(pos + size as usize);
            let expected = bytes.get(pos..end).unwrap_or_default();
            assert_eq!(read(fh, pos, size).unwrap(), expected, "{size} at {pos}");
        }
    }
    assert_eq!(read(fh + 1, 0, 1 << 20).unwrap_err(), Errno::EBADF.raw());
    let stats = front.counters.snapshot();
    assert!(stats.bytes_lent <= stats.bytes_read, "{stats:?}");
}

/// Makes files and tells the kernel of them; their numbers.
fn told_of(front: &Front, nr: usize) -> Vec<u64> {
    front.nodes.keep_names();
    let tell = |at: usize| {
        let (root, flags) = (front.names.root(), OpenFlags::READ_WRITE);
        let name = format!("f{at}");
        let (_, dentry) = front
            .names
            .create(
                &OpContext::ROOT,
                root,
                name.as_ref(),
                0o644,
                flags,
                true,
                None,
            )
            .unwrap();
        front.entry_of(dentry).unwrap().0.ino.0
    };
    (0..nr).map(tell).collect()
}

#[test]
fn the_kernel_is_asked_for_what_no_request_named_since_the_last_time() {
    let front = front();
    let numbers = told_of(&front, 100);
    for ino in &numbers[..50] {
        front.inode(INodeNo(*ino)).unwrap();
    }
    let all_chosen = || {
        let (mut all, mut seen) = (Vec::new(), 0);
        while seen < front.nodes.len() {
            let (chosen, passed) = front.nodes.choose(1000);
            all.extend(chosen);
            seen += passed;
        }
        all.sort_unstable();
        all
    };
    let sorted = |numbers: &[u64]| {
        let mut numbers = numbers.to_vec();
        numbers.sort_unstable();
        numbers
    };
    assert_eq!(all_chosen(), sorted(&numbers[50..]));
    assert_eq!(all_chosen(), sorted(&numbers));
    assert_eq!(front.nodes.choose(7).0.len(), 7);
}

#[test]
fn what_is_looked_up_while_it_is_asked_for_stays_as_long_as_its_count_says() {
    let front = front();
    let numbers = told_of(&front, 20);
    assert_eq!(front.nodes.choose(1000).0.len(), 20);
    let again = front.names.lookup_name(front.names.root(), "f3".as_ref());
    front.entry(&again.unwrap()).unwrap();
    for ino in &numbers {
        drop(front.nodes.forget(*ino, 1));
        drop(front.nodes.forget(*ino + 1_000_000, 1));
    }
    let stats = front.counters.snapshot();
    assert_eq!((stats.lookups, stats.forgotten_on_request), (1, 19));
    assert_eq!(front.nodes.len(), 1);
    front.inode(INodeNo(numbers[3])).unwrap();
    assert_eq!(front.inode(INodeNo(numbers[4])).err(), Some(Errno::ESTALE));
    // Nobody asked for it since.
    drop(front.nodes.forget(numbers[3], 1));
    let stats = front.counters.snapshot();
    assert_eq!((stats.lookups, stats.forgotten_on_request), (0, 19));
}
