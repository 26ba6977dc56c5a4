//! Unit tests of [`FuseConn`](crate::conn::FuseConn).

use crate::buffers::Buffers;
use crate::conn::FuseConn;
use crate::data::{ReadRequest, WriteRequest};
use crate::handles::{FileId, Handles, NO_HANDLE};
use crate::kernel_pages::KernelPages;
use crate::linking::Linking;
use crate::listed::Listed;
use crate::news::News;
use crate::nodes::Nodes;
use crate::options::KernelCache;
use crate::prune::Pruner;
use crate::shown::Shown;
use crate::stats::Counters;
use crate::unopened::Unopened;
use foliocache_fs::{DirFs, DirFsOptions, MemFs};
use foliocache_mm::{MetadataCharge, Mm, MmConfig};
use foliocache_sync::Arc;
use foliocache_sync::atomic::{AtomicBool, Ordering};
use foliocache_sync::background::Panics;
use foliocache_sync::rank::{self, How, Rank};
use foliocache_sys::Errno;
use foliocache_vfs::{
    DirEntry, FileSystem, New, OpContext, OpenDirectory, OpenFlags, ROOT_INO, Remove, SetAttr,
    SuperBlock,
};
use fuser::{FileHandle as Fh, INodeNo, WriteFlags};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

fn conn() -> FuseConn {
    let mm = mm();
    let fs = Arc::new(MemFs::new(&mm).unwrap());
    conn_to(fs, &mm)
}

fn mm() -> Arc<Mm> {
    Mm::new(MmConfig::new(64 << 20)).unwrap()
}

fn conn_to(fs: Arc<dyn FileSystem>, mm: &Arc<Mm>) -> FuseConn {
    let counters = Arc::new(Counters::default());
    let pruner = Arc::new(Pruner::new(counters.clone()));
    let listed = Arc::new(Listed::default());
    let linking = Arc::new(Linking::new());
    let nodes = Arc::new(Nodes::new(counters.clone()));
    FuseConn {
        names: Arc::new(SuperBlock::new(fs, mm)),
        nodes: nodes.clone(),
        pruner,
        files: Handles::new(),
        directories: Handles::new(),
        listed: listed.clone(),
        linking: linking.clone(),
        stale: Arc::default(),
        buffers: Buffers::new(4),
        counters,
        panics: Arc::new(Panics::new(|_, _| {})),
        kernel_pages: Arc::new(KernelPages::default()),
        news: Arc::new(News::new(listed, linking).unwrap()),
        unopened: Arc::new(Unopened::new(nodes)),
        kernel_cache: KernelCache::default(),
        shown: Shown::default(),
        kernel_opens: false,
        writes_at_close: false,
        kernel_keeps_all: AtomicBool::default(),
        kernel_can_list: AtomicBool::default(),
    }
}

/// A file that the kernel opened.
fn opened(fh: u64) -> FileId {
    FileId { ino: 0, fh }
}

fn create(conn: &FuseConn, name: &str) -> u64 {
    let (root, flags) = (conn.fs().root(), OpenFlags::READ_WRITE);
    let file = conn
        .fs()
        .create(&OpContext::ROOT, &root, name.as_ref(), 0o644, flags)
        .unwrap();
    conn.insert_file(file, conn.charge_handle().unwrap(), 0).0
}

fn write(
    conn: &FuseConn,
    (fh, pos): (u64, u64),
    data: &[u8],
    how: WriteFlags,
    flags: i32,
) -> Result<u32, Errno> {
    let request = WriteRequest {
        file: opened(fh),
        pos,
        how,
        flags,
        ctx: OpContext::ROOT,
    };
    conn.do_write(&request, data)
}

fn contents(conn: &FuseConn, fh: u64) -> Vec<u8> {
    let file = &conn.files.get(fh).unwrap().file;
    let mut bytes = vec![0; file.size() as usize];
    let n = file.read_at(&mut bytes, 0).unwrap();
    bytes.truncate(n);
    bytes
}

#[test]
fn a_panic_is_an_error_and_the_next_operation_works() {
    let conn = conn();
    let done = conn.attempt::<()>("test", || panic!("a bug"));
    assert_eq!(done.unwrap_err().code(), Errno::EIO.raw());
    let done = conn.attempt::<()>("test", || Err(Errno::ENOENT));
    assert_eq!(done.unwrap_err().code(), Errno::ENOENT.raw());
    assert_eq!(conn.attempt("test", || Ok(5)).unwrap(), 5);
    let stats = conn.counters.snapshot();
    assert_eq!((stats.requests, stats.errors), (3, 1));
    assert_eq!(conn.panics.count(), 1);
}

#[test]
fn appending_is_said_with_each_write_and_never_by_the_kernels_cache() {
    const O_APPEND: i32 = 0o2000;
    let conn = conn();
    let fh = create(&conn, "f");
    let write = |pos, data: &[u8], how, flags| write(&conn, (fh, pos), data, how, flags).unwrap();
    let (plain, cache) = (WriteFlags::empty(), WriteFlags::FUSE_WRITE_CACHE);
    assert_eq!(write(0, b"one", plain, 0), 3);
    assert_eq!(write(0, b"two", plain, O_APPEND), 3);
    assert_eq!(write(0, b"ONE", cache, O_APPEND), 3);
    assert_eq!(contents(&conn, fh), b"ONEtwo");
}

#[test]
fn copies_go_through_the_cache_and_end_with_the_file() {
    let conn = conn();
    let (from, to) = (create(&conn, "from"), create(&conn, "to"));
    let ctx = &OpContext::ROOT;
    let copy = |pos, pos_to, len| conn.do_copy(ctx, (opened(from), pos), (opened(to), pos_to), len);
    let data: Vec<u8> = (0..3_000_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
    write(&conn, (from, 0), &data, WriteFlags::empty(), 0).unwrap();
    let n = copy(1000, 5, 10 << 20).unwrap();
    assert_eq!(n as usize, data.len() - 1000);
    assert_eq!(contents(&conn, to)[5..], data[1000..]);
    assert_eq!(copy(4_000_000, 0, 10).unwrap(), 0);
}

#[test]
fn a_copy_by_a_user_takes_set_id_bits_away() {
    let conn = conn();
    let (from, to) = (create(&conn, "from"), create(&conn, "to"));
    write(&conn, (from, 0), b"bytes", WriteFlags::empty(), 0).unwrap();
    let target = conn.files.get(to).unwrap();
    let inode = target.file.inode();
    let set = SetAttr {
        mode: Some(0o4755),
        ..SetAttr::default()
    };
    conn.fs().setattr(&OpContext::ROOT, inode, &set).unwrap();
    for (uid, mode) in [(0, 0o4755), (1000, 0o755)] {
        let ctx = OpContext {
            uid,
            ..OpContext::ROOT
        };
        conn.do_copy(&ctx, (opened(from), 0), (opened(to), 0), 5)
            .unwrap();
        assert_eq!(conn.fs().getattr(inode).unwrap().mode & 0o7777, mode);
    }
}

#[test]
fn space_and_holes() {
    let conn = conn();
    let fh = create(&conn, "f");
    write(&conn, (fh, 0), &[1; 20_000], WriteFlags::empty(), 0).unwrap();
    conn.do_fallocate(&OpContext::ROOT, opened(fh), 4096, 4096, 3)
        .unwrap();
    assert!(
        contents(&conn, fh)[4096..8192]
            .iter()
            .all(|&byte| byte == 0)
    );
    conn.do_fallocate(&OpContext::ROOT, opened(fh), 15_000, 15_000, 0x10)
        .unwrap();
    assert_eq!(contents(&conn, fh).len(), 30_000);
    assert!(contents(&conn, fh)[15_000..].iter().all(|&byte| byte == 0));
    write(&conn, (fh, 29_000), &[1; 1000], WriteFlags::empty(), 0).unwrap();
    conn.do_fallocate(&OpContext::ROOT, opened(fh), 29_000, 2000, 0x11)
        .unwrap();
    assert_eq!(contents(&conn, fh).len(), 30_000);
    assert!(contents(&conn, fh)[29_000..].iter().all(|&byte| byte == 0));
    assert_eq!(
        conn.do_fallocate(&OpContext::ROOT, opened(fh), 0, 4096, 0x20),
        Err(Errno::EOPNOTSUPP)
    );
    assert_eq!(conn.do_lseek(opened(fh), 0, 9), Err(Errno::EINVAL));
    assert_eq!(conn.do_lseek(opened(fh), 30_000, 3), Err(Errno::ENXIO));
}

#[test]
fn handles_end_with_their_release() {
    let conn = conn();
    let fh = create(&conn, "f");
    // Relaxed: one thread.
    conn.files
        .get(fh)
        .unwrap()
        .mapped
        .store(true, Ordering::Relaxed);
    conn.do_release(fh);
    conn.do_release(fh);
    let done = write(&conn, (fh, 0), b"x", WriteFlags::empty(), 0);
    assert_eq!(done, Err(Errno::EBADF));
}

#[test]
fn the_last_handle_of_a_mapped_file_drops_its_pages() {
    let conn = conn();
    let numbers = told_of(&conn, 3);
    let (one, two, three) = (numbers[0], numbers[1], numbers[2]);
    for ino in [one, one, two, three, three] {
        conn.nodes.opened(ino);
    }
    assert!(!conn.nodes.closed(one, true), "it is open elsewhere");
    assert!(conn.nodes.closed(two, true));
    assert!(conn.nodes.closed(one, false));
    assert!(!conn.nodes.closed(three, false));
    assert!(!conn.nodes.closed(three, false), "it was not mapped");
    conn.nodes.opened(one);
    assert!(
        !conn.nodes.closed(one, false),
        "it was mapped before, not since"
    );
}

#[test]
fn reads_are_answered_alike_lent_or_copied() {
    let conn = conn();
    let fh = create(&conn, "file");
    let bytes: Vec<u8> = (0..300_000_u32).map(|n| ((n * 7) >> 3) as u8).collect();
    let no_flags = WriteFlags::empty();
    write(&conn, (fh, 0), &bytes, no_flags, 0).unwrap();
    let read = |fh, pos: usize, size: u32| {
        let mut answer = None;
        let reply = |done: Result<&[u8], fuser::Errno>| {
            answer = Some(done.map(<[u8]>::to_vec).map_err(|error| error.code()));
        };
        let request = ReadRequest {
            file: opened(fh),
            pos: pos as u64,
            size,
            from_cache: false,
            uncached: false,
        };
        conn.read(&request, reply);
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
    let stats = conn.counters.snapshot();
    assert!(stats.in_place_bytes <= stats.read_bytes, "{stats:?}");
}

#[test]
fn nodes_and_handles_are_charged_as_long_as_they_have_memory() {
    let conn = conn();
    let mm = conn.names.mm().clone();
    let before = mm.usage().metadata_bytes;
    let numbers = told_of(&conn, 10_000);
    let (taken, slabs) = (
        mm.usage().metadata_bytes - before,
        mm.usage().metadata_bytes,
    );
    for ino in &numbers {
        drop(conn.forget(*ino, 1));
    }
    let given_back = slabs - mm.usage().metadata_bytes;
    assert!(
        given_back > 10_000 * 50 && given_back < taken,
        "{given_back}"
    );
    let fh = create(&conn, "open");
    let with = mm.usage().metadata_bytes;
    conn.do_release(fh);
    let handle = with - mm.usage().metadata_bytes;
    assert!((500..2000).contains(&handle), "{handle}");
    // Names that the kernel is told of again find room by themselves.
    for at in 0..10_000 {
        let name = format!("f{at}");
        look_up(&conn, &name);
        drop(conn.forget(numbers[at / 2], 1));
    }
    assert_eq!(conn.nodes.len(), 5_000);
    for ino in &numbers {
        assert_eq!(conn.inode(INodeNo(*ino)).is_ok(), *ino >= numbers[5_000]);
    }
}

fn look_up(conn: &FuseConn, name: &str) {
    let root = conn.within(conn.names.root().clone()).unwrap();
    conn.lookup(&root, name.as_ref(), 0).unwrap();
}

/// Makes files and tells the kernel of them; returns their numbers.
fn told_of(conn: &FuseConn, nr: usize) -> Vec<u64> {
    conn.nodes.keep_names();
    let tell = |at: usize| {
        let name = format!("f{at}");
        let entry = conn.make(INodeNo(ROOT_INO), name.as_ref(), true, |root| {
            let (flags, name) = (OpenFlags::READ_WRITE, name.as_ref());
            let created = conn
                .names
                .create(&OpContext::ROOT, root, name, 0o644, flags, None);
            created.map(|(_, dentry)| dentry)
        });
        entry.unwrap().attr.ino.0
    };
    (0..nr).map(tell).collect()
}

#[test]
fn the_kernel_is_asked_to_forget_nodes_unused_since_the_last_pass() {
    let conn = conn();
    let numbers = told_of(&conn, 100);
    for ino in &numbers[..50] {
        conn.inode(INodeNo(*ino)).unwrap();
    }
    let all_chosen = || {
        let (mut all, mut seen) = (Vec::new(), 0);
        while seen < conn.nodes.len() {
            let (chosen, passed) = conn.nodes.choose(1000);
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
    assert_eq!(conn.nodes.choose(7).0.len(), 7);
}

#[test]
fn a_node_looked_up_during_a_forget_request_lives_until_its_count_is_zero() {
    let conn = conn();
    let numbers = told_of(&conn, 20);
    assert_eq!(conn.nodes.choose(1000).0.len(), 20);
    look_up(&conn, "f3");
    for ino in &numbers {
        drop(conn.forget(*ino, 1));
        drop(conn.forget(*ino + 1_000_000, 1));
    }
    let stats = conn.counters.snapshot();
    assert_eq!((stats.lookups, stats.forgotten_on_request), (1, 19));
    assert_eq!(conn.nodes.len(), 1);
    conn.inode(INodeNo(numbers[3])).unwrap();
    assert_eq!(conn.inode(INodeNo(numbers[4])).err(), Some(Errno::ESTALE));
    // It has not been asked for since.
    drop(conn.forget(numbers[3], 1));
    let stats = conn.counters.snapshot();
    assert_eq!((stats.lookups, stats.forgotten_on_request), (0, 19));
}

/// A directory of 50 files in a private folder, which has been listed.
struct Listing {
    conn: FuseConn,
    folder: PathBuf,
}

impl Listing {
    fn new(name: &str) -> Listing {
        let name = format!("foliocache-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(folder.join("d")).unwrap();
        for nr in 0..50 {
            fs::write(folder.join(format!("d/old{nr}")), "").unwrap();
        }
        let mut options = DirFsOptions::default();
        options.exclusive = true;
        let mm = mm();
        let fs = Arc::new(DirFs::open(&mm, &folder, options).unwrap());
        let conn = conn_to(fs, &mm);
        conn.nodes.keep_names();
        Listing { conn, folder }
    }

    /// The directory; the kernel knows it and has listed it.
    fn directory(&self) -> INodeNo {
        let root = self.conn.within(self.conn.names.root().clone()).unwrap();
        let dir = self.conn.lookup(&root, "d".as_ref(), 0).unwrap().attr.ino;
        self.read(dir, 0, u64::MAX);
        dir
    }

    /// Reads it without an `OPENDIR`, up to `ends` or the end; returns the names and the position.
    fn read(&self, dir: INodeNo, offset: u64, ends: u64) -> (BTreeSet<OsString>, u64) {
        let (mut names, mut end) = (BTreeSet::new(), offset);
        let read = |handle: &crate::handles::DirHandle, at: &mut u64| {
            handle.directory.read(offset, &mut |entry| {
                let more = *at != ends && names.len() < 40;
                if more {
                    names.insert(entry.name.to_owned());
                    *at = entry.next_offset;
                }
                more
            })?;
            end = *at;
            Ok(())
        };
        self.conn.list((dir, Fh(NO_HANDLE)), offset, read).unwrap();
        (names, end)
    }

    fn read_all(&self, dir: INodeNo, first_ends: u64) -> BTreeSet<OsString> {
        let (mut all, mut at) = self.read(dir, 0, first_ends);
        loop {
            let (names, end) = self.read(dir, at, u64::MAX);
            if names.is_empty() {
                return all;
            }
            all.extend(names);
            at = end;
        }
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn name_made_before_a_directory_is_read_again_is_listed() {
    let listing = Listing::new("listed");
    let (conn, dir) = (&listing.conn, listing.directory());
    listing.read_all(dir, u64::MAX);
    // A reader reads the first names and stops.
    let mut count = 0;
    let mut tenth = 0;
    let opened = conn.open_directory(dir).unwrap();
    opened
        .directory
        .read(0, &mut |entry| {
            (count, tenth) = (count + 1, entry.next_offset);
            count < 10
        })
        .unwrap();
    listing.read(dir, 0, tenth);
    let make = |name: &str| {
        conn.make(dir, name.as_ref(), true, |dir| {
            let names = &conn.names;
            names.make(
                &OpContext::ROOT,
                dir,
                name.as_ref(),
                New::Directory { mode: 0o755 },
                None,
            )
        })
        .unwrap();
    };
    for nr in 0..20 {
        make(&format!("new{nr}"));
    }
    let seen = listing.read_all(dir, tenth);
    for nr in 0..20 {
        let name = OsString::from(format!("new{nr}"));
        assert!(seen.contains(&name), "{name:?} is not in {seen:?}");
    }
    // A name that was removed before is not listed.
    listing.read(dir, 0, tenth);
    for nr in 0..20 {
        let name = format!("new{nr}");
        conn.remove(dir, name.as_ref(), Remove::Directory).unwrap();
    }
    assert_eq!(listing.read_all(dir, tenth).len(), 52);
}

#[test]
fn directory_that_is_forgotten_on_request_is_closed() {
    let listing = Listing::new("forgotten");
    let (conn, dir) = (&listing.conn, listing.directory());
    assert_eq!(conn.listed.len(), 1);
    // The hand skips nodes that were named since its last pass.
    while conn.nodes.choose(1000).0.is_empty() {}
    assert!(conn.forget(dir.0, 1).is_none(), "the pruner has it");
    assert_eq!(conn.counters.snapshot().forgotten_on_request, 1);
    assert_eq!(conn.listed.len(), 0);
}

#[test]
fn a_reading_is_closed_after_observers_were_told() {
    /// Closing a directory may take locks of the file system.
    struct Closes(Arc<AtomicBool>);
    impl OpenDirectory for Closes {
        fn read(&self, _: u64, _: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<(), Errno> {
            Ok(())
        }
        fn fsync(&self) -> Result<(), Errno> {
            Ok(())
        }
    }
    impl Drop for Closes {
        fn drop(&mut self) {
            rank::might_lock(Rank::Namespace);
            // Relaxed: one thread.
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let (conn, closed) = (conn(), Arc::new(AtomicBool::new(false)));
    let mut handle = conn.open_directory(INodeNo(ROOT_INO)).unwrap();
    handle.directory = Box::new(Closes(closed.clone()));
    let reading = conn.listed.open(ROOT_INO, true, || Ok(handle)).unwrap();
    conn.listed.put(reading, 10);
    let told = rank::acquire(Rank::Observers, How::Ordered);
    conn.listed.names_changed(ROOT_INO);
    assert_eq!(conn.listed.len(), 0);
    // Relaxed, here and below: one thread.
    assert!(!closed.load(Ordering::Relaxed));
    drop(told);
    // The next request closes it.
    assert!(conn.listed.take(ROOT_INO, 10).is_none());
    assert!(closed.load(Ordering::Relaxed));
}

impl Listing {
    /// A mount whose kernel opens files without a request, and a durable file in it without
    /// handles.
    fn with_file(name: &str) -> (Listing, FileId) {
        let mut listing = Listing::new(name);
        listing.conn.kernel_opens = true;
        let (ino, fh) = (listing.written_file("f"), NO_HANDLE);
        let id = FileId { ino, fh };
        listing.conn.file(id, true).unwrap().file.fsync().unwrap();
        listing.conn.unopened.end(ino);
        (listing, id)
    }

    /// Makes a file and writes to it; its number.
    fn written_file(&self, name: &str) -> u64 {
        let (conn, mut made) = (&self.conn, None);
        conn.make(INodeNo(ROOT_INO), name.as_ref(), true, |root| {
            let (flags, names) = (OpenFlags::READ_WRITE, &conn.names);
            let (file, dentry) =
                names.create(&OpContext::ROOT, root, name.as_ref(), 0o644, flags, None)?;
            made = Some(file);
            Ok(dentry)
        })
        .unwrap();
        let file = made.unwrap();
        file.write_at(b"data", 0).unwrap();
        let ino = file.inode().ino();
        conn.insert_file(file, conn.charge_handle().unwrap(), 0);
        ino
    }

    fn remove_file(&self, name: &str) -> Result<(), Errno> {
        let root = INodeNo(ROOT_INO);
        self.conn.remove(root, name.as_ref(), Remove::File)
    }

    fn data_of(&self, id: FileId) -> Vec<u8> {
        let handle = self.conn.file(id, false).unwrap();
        let mut bytes = vec![0; 10];
        let n = handle.file.read_at(&mut bytes, 0).unwrap();
        bytes.truncate(n);
        bytes
    }
}

#[test]
fn data_to_write_outlives_the_last_name_without_memory_to_open_the_file() {
    let (listing, id) = Listing::with_file("no-memory");
    let (conn, mm) = (&listing.conn, listing.conn.names.mm());
    let inode = conn.inode(INodeNo(id.ino)).unwrap();
    conn.file(id, true)
        .unwrap()
        .file
        .write_at(b"DATA", 0)
        .unwrap();
    conn.unopened.end(id.ino);
    let mut all = Vec::new();
    let mut piece = 1 << 20;
    while piece >= 64 {
        match MetadataCharge::before_names(mm, piece, Duration::ZERO) {
            Ok(charge) => all.push(charge),
            Err(_) => piece /= 2,
        }
    }
    assert!(conn.charge_handle().is_err());
    assert!(inode.mapping().unwrap().is_dirty());
    listing.remove_file("f").unwrap();
    drop(all);
    assert_eq!(listing.data_of(id), b"DATA");
}

#[test]
fn handle_that_a_request_uses_is_not_closed() {
    let (listing, id) = Listing::with_file("in-use");
    let (conn, ino) = (&listing.conn, id.ino);
    let used = conn.file(id, true).unwrap();
    let others = |from: u64| {
        for nr in from..from + 100 {
            listing.written_file(&format!("other{nr}"));
        }
    };
    others(0);
    // It loses its name while it is written to.
    listing.remove_file("f").unwrap();
    used.file.write_at(b"DATA", 0).unwrap();
    drop(used);
    others(100);
    assert!(conn.unopened.get(ino, false).is_none());
    assert!(conn.nodes.held(ino).is_some());
    assert_eq!(listing.data_of(id), b"DATA");
    drop(conn.forget(ino, 1));
    assert!(conn.nodes.held(ino).is_none());
}
