//! Files are used although names and attributes hold all the room that metadata may have.

use crate::common::{Store, assert_empty, file, pattern, read, storage, write};
use foliocache_mm::{GivenUp, Mm, PAGE_SIZE, Shrinker, VmaAccess};
use foliocache_sys::Errno;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread;

/// A cache of metadata of which nothing is in use.
struct Names {
    mm: Arc<Mm>,
    held: AtomicU64,
}

impl Names {
    /// Holds all that there is room for.
    fn fill(mm: &Arc<Mm>) -> Arc<Self> {
        let names = Arc::new(Names {
            mm: Arc::clone(mm),
            held: AtomicU64::new(0),
        });
        let weak: Weak<dyn Shrinker> = Arc::downgrade(&names) as Weak<dyn Shrinker>;
        mm.add_shrinker(weak);
        while mm.try_charge_metadata(64) {
            names.held.fetch_add(64, Ordering::Relaxed);
        }
        names
    }

    /// As who walks through a tree.
    fn take_what_there_is(&self, is_over: &AtomicBool) {
        while !is_over.load(Ordering::Relaxed) {
            if self.mm.charge_cached_metadata(64, &|| false).is_ok() {
                self.held.fetch_add(64, Ordering::Relaxed);
            }
        }
    }
}

impl Shrinker for Names {
    fn bytes(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    fn shrink(&self, bytes: u64) -> GivenUp {
        let given = bytes.next_multiple_of(64).min(self.bytes());
        self.held.fetch_sub(given, Ordering::Relaxed);
        self.mm.uncharge_metadata(given);
        GivenUp {
            bytes: given,
            more: false,
        }
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        let _given = self.shrink(self.bytes());
    }
}

#[test]
fn a_file_is_mapped_and_touched() {
    let (mm, bdi) = storage(16);
    let content = pattern(1, 0, 64 << 20);
    let store = Store::with(&content);
    let file = file(&bdi, &store);
    let names = Names::fill(&mm);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| names.take_what_there_is(&is_over));
        }
        let vma = file.map(0, content.len(), VmaAccess::ReadWrite);
        let vma = vma.unwrap();
        for at in (0..content.len()).step_by(2 << 20) {
            // SAFETY: inside the mapping, which nobody changes.
            let found = unsafe { vma.address().wrapping_add(at).read_volatile() };
            assert_eq!(found, content[at]);
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn pages_far_apart_are_written_and_read() {
    let (mm, bdi) = storage(8);
    let store = Store::with(&[]);
    let file = file(&bdi, &store);
    let names = Names::fill(&mm);
    for n in 0..1000 {
        write(&file, n << 18, &[n as u8; PAGE_SIZE]);
    }
    for n in 0..1000 {
        assert_eq!(read(&file, n << 18, PAGE_SIZE), [n as u8; PAGE_SIZE]);
    }
    drop(names);
    file.truncate(0).unwrap();
    drop(file);
    assert_empty(&mm);
}

/// Room that is made for an address space may be taken by names before it is used.
#[test]
fn files_get_their_address_spaces_while_names_take_what_there_is() {
    let (mm, bdi) = storage(8);
    let store = Store::with(&[]);
    let names = Names::fill(&mm);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| names.take_what_there_is(&is_over));
        }
        let makers: Vec<_> = (0..6)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let make = |_| {
                            let charge = bdi.charge_mapping()?;
                            let file = charge.make(store.clone(), 0);
                            Ok((charge, file))
                        };
                        let made: Result<Vec<_>, Errno> = (0..200).map(make).collect();
                        assert_eq!(made.map(|made| made.len()), Ok(200));
                    }
                })
            })
            .collect();
        for maker in makers {
            maker.join().unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    drop(names);
    assert_empty(&mm);
}
