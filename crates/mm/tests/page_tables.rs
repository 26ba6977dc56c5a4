//! The page tables of mapped files that are far larger than the bound are inside it, and given back for others.
#![allow(missing_docs)]

mod common;

use common::assert_empty;
use foliocache_mm::{
    AddressSpace, AddressSpaceOperations, BackingDevInfo, BdiKind, FaultMode, IoSegment, Mm,
    MmConfig, PAGE_SIZE, Vma, VmaAccess,
};
use foliocache_sys::Errno;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

const PAGE: u64 = PAGE_SIZE as u64;
const THREADS: u64 = 3;

/// Each page begins with its number, but for what was written.
#[derive(Debug, Default)]
struct Numbers(Mutex<HashMap<u64, Box<[u8]>>>);

impl AddressSpaceOperations for Numbers {
    fn read_folios(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        let (written, mut done) = (self.0.lock().unwrap(), 0);
        for segment in segments {
            for at in (0..segment.len()).step_by(PAGE_SIZE) {
                let page = (pos + done as u64) / PAGE;
                match written.get(&page) {
                    Some(bytes) => segment.copy_from(at, bytes),
                    None => {
                        segment.zero(at, PAGE_SIZE);
                        segment.copy_from(at, &page.to_le_bytes());
                    }
                }
                done += PAGE_SIZE;
            }
        }
        Ok(done)
    }

    fn writepages(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        let (mut written, mut done) = (self.0.lock().unwrap(), 0);
        for segment in segments {
            for at in (0..segment.len()).step_by(PAGE_SIZE) {
                let mut bytes = vec![0; PAGE_SIZE];
                segment.copy_to(at, &mut bytes);
                written.insert((pos + done as u64) / PAGE, bytes.into());
                done += PAGE_SIZE;
            }
        }
        Ok(done)
    }

    fn flush(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn truncate(&self, _: u64) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn punch_hole(&self, _: u64, _: u64) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn describe(&self) -> String {
        "numbered pages".into()
    }
}

/// Bytes of page tables that the process has.
fn page_tables() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPTE:"));
    let kib: u64 = line
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    kib << 10
}

/// Loads at random places, and stores to pages that are this thread's.
fn use_at_random(vma: &Vma, mm: &Mm, thread: u64, pages: u64, before: u64) {
    let (mut at, mut stored) = (thread + 1, HashMap::new());
    for round in 0..12_000_u64 {
        at = (at.wrapping_mul(6364136223846793005)).wrapping_add(1442695040888963407);
        let page = (at >> 33) % (pages / THREADS) * THREADS + thread;
        let first = vma.address().wrapping_add((page * PAGE) as usize);
        let first = first.cast::<u64>();
        // SAFETY: inside the mapping, which is for stores; nobody else uses this page.
        let found = unsafe { first.read_volatile() };
        assert_eq!(found, stored.get(&page).copied().unwrap_or(page));
        if round % 8 == 0 {
            // SAFETY: as above.
            unsafe { first.write_volatile(round) };
            stored.insert(page, round);
        }
        if round % 1000 == 0 {
            let (usage, tables) = (mm.usage(), page_tables().saturating_sub(before));
            assert!(usage.total_bytes() <= usage.limit_bytes, "{usage:?}");
            let most = usage.metadata_bytes.max(1 << 20);
            assert!(tables <= most, "{tables} bytes of page tables, {usage:?}");
        }
    }
}

/// Both modes in one test, since page tables are the process's.
#[test]
fn random_accesses_to_a_file_of_two_thousand_times_the_bound_keep_their_page_tables_within_it() {
    for mode in [FaultMode::Thread, FaultMode::Inline] {
        let mut config = MmConfig::new(32 << 20);
        config.fault_mode = mode;
        let mm = Mm::new(config).expect("a cache");
        let bdi = BackingDevInfo::new(&mm, "test", BdiKind::Storage).expect("a file system");
        let pages = (64 << 30) / PAGE;
        let file = AddressSpace::new(&bdi, Arc::new(Numbers::default()), pages * PAGE);
        let vma = file
            .map(0, (pages * PAGE) as usize, VmaAccess::ReadWrite)
            .expect("a mapping");
        let before = page_tables();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (vma, mm) = (&vma, &mm);
                scope.spawn(move || use_at_random(vma, mm, thread, pages, before));
            }
        });
        file.sync().expect("sync");
        drop((vma, file));
        assert_empty(&mm);
        // The tables go soon after.
        let start = Instant::now();
        while page_tables().saturating_sub(before) > 1 << 20 {
            assert!(
                start.elapsed().as_secs() < 10,
                "{} from {before}",
                page_tables()
            );
            std::thread::yield_now();
        }
    }
}
