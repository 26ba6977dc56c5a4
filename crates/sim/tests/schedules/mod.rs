//! The meaning of a seed.

pub(crate) mod files;
pub(crate) mod names;

use foliocache_mm::{BackingDevInfo, Mm};
use foliocache_sim::{Effect, Faults, Lost, OpSet, Rng, Rule, When};
use foliocache_sync::time::Duration;
use foliocache_sync::{Arc, thread};
use foliocache_sys::Errno;

pub(crate) const PAGE: u64 = foliocache_mm::PAGE_SIZE as u64;
pub(crate) const MIB: u64 = 1 << 20;

pub(crate) fn ms(rng: &mut Rng, most: u64) -> Duration {
    Duration::from_micros(rng.below(most * 1000))
}

/// Each operation of the store takes a while, and some longer than others: so they end in another order than they began.
pub(crate) fn delay(faults: &Faults, rng: &mut Rng) {
    for (part, most) in [(30, 1), (10, 20), (2, 1000)] {
        let rule = Rule::new(OpSet::ALL, Effect::Delay(ms(rng, most)));
        faults.add(rule.when(When::Chance { part, whole: 100 }));
    }
}

/// Operations fail, tear, stop short, and lose data that they should make durable.
pub(crate) fn fail(faults: &Faults, rng: &mut Rng) {
    let some = |part| When::Chance { part, whole: 100 };
    let lost = [Lost::Nothing, Lost::Data, Lost::DataAndLive][rng.below(3) as usize];
    for (on, effect, part) in [
        (OpSet::WRITE, Effect::Fail(Errno::EIO), 6),
        (OpSet::WRITE, Effect::Torn(Errno::ENOSPC), 6),
        (OpSet::WRITE, Effect::Short, 10),
        (OpSet::READ, Effect::Fail(Errno::EIO), 5),
        (OpSet::WRITE_INODE, Effect::Fail(Errno::EIO), 5),
        (OpSet::FLUSH, Effect::Lose(Errno::EIO, lost), 25),
    ] {
        faults.add(Rule::new(on, effect).when(some(part)));
    }
}

/// Has operations hang for a while, again and again, and fail or go on then.
pub(crate) fn hang(faults: &Faults, rng: &mut Rng, errors: bool) {
    for _ in 0..rng.between(1, 3) {
        thread_sleep(rng, 200);
        let on = OpSet::READ | OpSet::WRITE | OpSet::FLUSH;
        let nth = When::Nth(rng.between(1, 4));
        let rule = faults.add(Rule::new(on, Effect::Hang).when(nth).times(1));
        thread_sleep(rng, 4000);
        faults.remove(rule);
        let fails = errors && rng.one_in(1, 2);
        faults.release(if fails { Err(Errno::EIO) } else { Ok(()) });
    }
}

pub(crate) fn thread_sleep(rng: &mut Rng, most: u64) {
    foliocache_sync::time::sleep(ms(rng, most));
}

pub(crate) fn join(threads: Vec<thread::JoinHandle<()>>) {
    for thread in threads {
        thread.join().unwrap();
    }
}

/// Ends the file systems, and looks whether anything of the cache is left in use.
pub(crate) fn end(mm: Arc<Mm>, bdis: Vec<Arc<BackingDevInfo>>) {
    for bdi in bdis {
        bdi.stop();
    }
    // The frames of mapped files, which the reclaimer comes to later.
    mm.punch();
    let usage = mm.usage();
    assert_eq!(
        (usage.in_use_pages, usage.reserved_pages, usage.waiters),
        (0, 0, 0),
        "{usage:?}"
    );
    let stats = mm.stats();
    let files = stats.files;
    assert_eq!(
        (stats.known_files, files.resident_pages, files.dirty_pages),
        (0, 0, 0)
    );
    assert_eq!(
        (
            files.writeback_pages,
            files.unstable_pages,
            files.failed_pages
        ),
        (0, 0, 0)
    );
    assert_eq!(
        (stats.background_panics, stats.readahead_leased_pages),
        (0, 0)
    );
}
