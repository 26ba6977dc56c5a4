//! Writes at random places of a file reach the source at one sync, byte for byte: by a ring and without, past the kernel's
//! cache and through it, in a directory that others may change and in one that they may not.

use crate::common::{PAGE, cache, on_disk};
use foliocache::{DirectoryOptions, Error};
use foliocache_sim::Rng;
use std::fs;
use std::os::unix::fs::FileExt;

/// The last page is not whole.
const LEN: usize = 1_000 * PAGE - 1_234;

fn ways() -> Vec<(&'static str, DirectoryOptions)> {
    let new = DirectoryOptions::new;
    vec![
        ("by default", new()),
        ("exclusive", new().exclusive(true)),
        ("not watched", new().watch(false)),
        ("without a ring", new().io_uring(false)),
        ("through the kernel's cache", new().direct(false)),
    ]
}

/// Whole pages, parts of pages, the tail of the file, and pages that adjoin; a descriptor that others write by changes other
/// pages meanwhile.
#[test]
fn what_was_written_here_and_there_is_in_the_source() -> Result<(), Error> {
    for (way, options) in ways() {
        let source = on_disk();
        let path = source.path().join("file");
        let mut rng = Rng::new(7);
        let mut expected: Vec<u8> = (0..LEN).map(|_| rng.next_u64() as u8).collect();
        fs::write(&path, &expected).expect("a file");
        // Pages from here on are changed by others.
        let theirs = LEN - 100 * PAGE;
        let beside = fs::File::options().write(true).open(&path).expect("a file");
        let shared = way != "exclusive";
        let cache = cache(64);
        let dir = cache.directory_with(source.path(), options)?;
        let file = dir.open_options().read(true).write(true).open("file")?;
        for round in 0..6 {
            for _ in 0..600 {
                let at = rng.below(theirs as u64) as usize;
                let (at, len) = match rng.below(3) {
                    0 => (at / PAGE * PAGE, PAGE),
                    1 => (at, 1 + rng.below(3 * PAGE as u64) as usize),
                    _ => (at, 1 + rng.below(100) as usize),
                };
                let len = len.min(theirs - at);
                let bytes: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
                file.write_all_at(&bytes, at as u64)?;
                expected[at..at + len].copy_from_slice(&bytes);
            }
            if shared {
                let at = theirs + rng.below(99 * PAGE as u64) as usize;
                beside.write_all_at(&[round; 50], at as u64).expect("write");
                expected[at..at + 50].fill(round);
            }
            // The end of the file is in a block that is not whole.
            file.write_all_at(&[round; 10], LEN as u64 - 10)?;
            expected[LEN - 10..].fill(round);
            file.sync_data()?;
            let found = fs::read(&path).expect("the source");
            let differs = found.iter().zip(&expected).position(|(a, b)| a != b);
            assert_eq!((differs, found.len()), (None, LEN), "{way}, round {round}");
        }
        drop(file);
        let file = dir.open("file")?;
        let mut found = vec![0; LEN];
        file.read_exact_at(&mut found, 0)?;
        assert!(found == expected, "{way}");
    }
    Ok(())
}
