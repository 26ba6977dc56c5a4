//! What others change in a store of a page that was written to in part stays theirs.

use crate::common::{Store, file, read, storage, write};
use foliocache_mm::{AddressSpace, Iocb, PAGE_SIZE, ReadaheadState, SlabArc, Vma, VmaAccess};
use proptest::prelude::*;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A file of `size` zeros that is cached, or not.
fn shared(mib: u64, size: usize, cached: bool) -> (Arc<Store>, SlabArc<AddressSpace>) {
    let (_mm, bdi) = storage(mib);
    let store = Store::with(&vec![0; size]);
    store.written_by_others.store(true, Ordering::Relaxed);
    let file = file(&bdi, &store);
    if cached {
        read(&file, 0, size);
    }
    (store, file)
}

#[allow(unsafe_code)]
fn load(vma: &Vma, at: usize) -> u8 {
    assert!(at < vma.len());
    // SAFETY: inside the mapping.
    unsafe { vma.address().wrapping_add(at).read_volatile() }
}

#[allow(unsafe_code)]
fn store(vma: &Vma, at: usize, byte: u8) {
    assert!(at < vma.len());
    // SAFETY: inside the mapping, which is for stores, and of which no reference exists.
    unsafe { vma.address().wrapping_add(at).write_volatile(byte) }
}

#[test]
fn only_what_was_written_goes_to_a_store_that_others_changed() {
    for told in [true, false] {
        let (backing, file) = shared(16, 100, true);
        backing.written_by_others.store(told, Ordering::Relaxed);
        write(&file, 10, b"ours");
        write(&file, 40, b"ours");
        backing.bytes.lock().unwrap().fill(b'T');
        file.sync().unwrap();
        let content = backing.content();
        let theirs = |bytes: Range<usize>| content[bytes].iter().all(|&byte| byte == b'T');
        assert_eq!(
            (&content[10..14], &content[40..44]),
            (&b"ours"[..], &b"ours"[..])
        );
        assert_eq!((theirs(0..10), theirs(44..100)), (told, told));
    }
}

/// A page that was written to in part is stored to by a program that has mapped it, before and after a load.
#[test]
fn a_store_through_a_mapping_may_be_anywhere_in_its_page() {
    for loaded in [false, true] {
        let (backing, file) = shared(16, PAGE_SIZE, true);
        write(&file, 10, b"ours");
        let vma = file
            .map(0, PAGE_SIZE, VmaAccess::ReadWrite)
            .expect("mapped");
        if loaded {
            assert_eq!(load(&vma, 10), b'o');
        }
        store(&vma, 2000, b'S');
        file.sync().unwrap();
        assert_eq!(backing.content()[2000], b'S', "{loaded}");
        // What is written back is protected, and noticed again.
        write(&file, 20, b"ours");
        if loaded {
            assert_eq!(load(&vma, 10), b'o');
        }
        store(&vma, 3000, b'S');
        file.sync().unwrap();
        assert_eq!(backing.content()[3000], b'S', "{loaded}");
    }
}

/// A view keeps the old frames, and what is written afterwards is in new ones.
#[test]
fn a_page_with_views_is_written_in_part_all_the_same() {
    for pages in [1, 8] {
        let size = pages * PAGE_SIZE;
        let (backing, file) = shared(16, size, true);
        let last = size - 100;
        write(&file, last as u64, b"ours");
        let view = file
            .view(&ReadaheadState::new(), &mut Iocb::at(0), size)
            .expect("a view");
        backing.bytes.lock().unwrap().fill(b'T');
        write(&file, last as u64 + 10, b"ours");
        file.sync().unwrap();
        let content = backing.content();
        assert_eq!(&content[last..last + 4], b"ours");
        assert_eq!(&content[last + 10..last + 15], b"oursT");
        assert!(content[..last].iter().all(|&byte| byte == b'T'), "{pages}");
        drop(view);
    }
}

/// The kernel or a device may store anywhere in what is held for I/O, and nobody notices.
#[test]
fn a_page_locked_for_io_is_written_whole() {
    let (backing, file) = shared(16, PAGE_SIZE, true);
    write(&file, 10, b"ours");
    let vma = file
        .map(0, PAGE_SIZE, VmaAccess::ReadWrite)
        .expect("mapped");
    let held = vma.lock_for_io(0..PAGE_SIZE).expect("locked");
    write(&file, 20, b"ours");
    store(&vma, 2000, b'S');
    file.sync().unwrap();
    assert_eq!(backing.content()[2000], b'S');
    store(&vma, 3000, b'S');
    drop(held);
    file.sync().unwrap();
    assert_eq!(backing.content()[3000], b'S');
}

#[derive(Clone, Debug)]
enum Step {
    Ours(Range<usize>),
    Theirs(Range<usize>),
    Hole(Range<usize>),
    Read(Range<usize>),
    Fail(u32),
    Sync,
}

fn step(size: usize) -> impl Strategy<Value = Step> {
    let small = (0..size, 1..300_usize).prop_map(move |(at, len)| at..(at + len).min(size));
    let large = (0..size, 1..5 * PAGE_SIZE).prop_map(move |(at, len)| at..(at + len).min(size));
    let range = prop_oneof![3 => small, 1 => large].boxed();
    prop_oneof![
        6 => range.clone().prop_map(Step::Ours),
        6 => range.clone().prop_map(Step::Theirs),
        1 => range.clone().prop_map(Step::Hole),
        2 => range.prop_map(Step::Read),
        1 => (1..4_u32).prop_map(Step::Fail),
        3 => Just(Step::Sync),
    ]
}

/// A file, and what is to be in it.
struct World {
    backing: Arc<Store>,
    file: SlabArc<AddressSpace>,
    /// What each of the two wrote last, or found.
    ours: Vec<u8>,
    theirs: Vec<u8>,
    /// What we wrote since all was durable.
    written: Vec<bool>,
    counter: u8,
}

impl World {
    fn new(size: usize, cached: bool) -> World {
        let (backing, file) = shared(16, size, cached);
        World {
            backing,
            file,
            ours: vec![0; size],
            theirs: vec![0; size],
            written: vec![false; size],
            counter: 0,
        }
    }

    fn step(&mut self, step: &Step) {
        self.counter = self.counter % 250 + 1;
        match step.clone() {
            Step::Ours(bytes) => {
                self.ours[bytes.clone()].fill(self.counter);
                self.written[bytes.clone()].fill(true);
                write(&self.file, bytes.start as u64, &self.ours[bytes]);
            }
            // Of the same bytes the last would win.
            Step::Theirs(bytes) => {
                let mut content = self.backing.bytes.lock().unwrap();
                for at in bytes.filter(|&at| !self.written[at]) {
                    content[at] = self.counter;
                    self.theirs[at] = self.counter;
                }
            }
            Step::Hole(bytes) => {
                let (pos, len) = (bytes.start as u64, bytes.len() as u64);
                self.file.punch_hole(pos, len).expect("punched");
                self.ours[bytes.clone()].fill(0);
                self.written[bytes].fill(true);
            }
            Step::Read(bytes) => {
                read(&self.file, bytes.start as u64, bytes.len());
            }
            Step::Fail(times) => self.backing.failing.store(times, Ordering::Relaxed),
            Step::Sync => {
                let _ = self.file.sync();
                self.backing.failing.store(0, Ordering::Relaxed);
                self.file.sync().expect("synced");
                self.check();
            }
        }
    }

    /// All is durable.
    fn check(&mut self) {
        let content = self.backing.content();
        assert_eq!(content.len(), self.ours.len());
        for (page, start) in (0..content.len()).step_by(PAGE_SIZE).enumerate() {
            let bytes = start..(start + PAGE_SIZE).min(content.len());
            let any = self.written[bytes.clone()].contains(&true);
            for at in bytes {
                if self.written[at] {
                    assert_eq!(content[at], self.ours[at], "ours, page {page}, byte {at}");
                } else if !any {
                    assert_eq!(
                        content[at], self.theirs[at],
                        "theirs, page {page}, byte {at}"
                    );
                }
            }
        }
        if content.len() <= PAGE_SIZE {
            // The folio is a page, of which one range is written.
            let first = self.written.iter().position(|&written| written);
            let last = self.written.iter().rposition(|&written| written);
            for (at, &byte) in content.iter().enumerate() {
                if first.is_none_or(|first| at < first) || last.is_none_or(|last| at > last) {
                    assert_eq!(byte, self.theirs[at], "theirs, byte {at}");
                }
            }
        }
        self.file.backing_changed(content.len() as u64, || true);
        assert!(read(&self.file, 0, content.len()) == content);
        (self.ours, self.theirs) = (content.clone(), content);
        self.written.fill(false);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn neither_side_loses_what_it_wrote(
        cached in any::<bool>(),
        steps in prop::collection::vec(step(40 * PAGE_SIZE + 700), 1..40),
    ) {
        let mut world = World::new(40 * PAGE_SIZE + 700, cached);
        steps.iter().chain([&Step::Sync]).for_each(|step| world.step(step));
    }

    #[test]
    fn of_a_page_one_range_is_written(
        cached in any::<bool>(),
        steps in prop::collection::vec(step(3000), 1..30),
    ) {
        let mut world = World::new(3000, cached);
        steps.iter().chain([&Step::Sync]).for_each(|step| world.step(step));
    }
}
