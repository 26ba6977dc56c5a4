//! The flusher: one thread per file system that writes dirty files back.
//!
//! # Model
//!
//! It works when the background limit is passed, when memory is short, and when data has been
//! dirty for long enough. It goes in turns over the dirty files, the old ones first; a round does not visit
//! files that need nothing. A turn writes what the store takes in a tenth of a second: neither another file
//! nor a caller that makes this one durable waits for long. A round ends when nothing old is left that can be written. What is
//! written for room alone is what is above the background limit, or [`Limits::piece`](crate::dirty::Limits::piece) if that is more, and first what is
//! not stored to again (decisions 81 and 92).
//!
//! The flushes of files that had their turns come together once these have written as much as fills a turn: a store
//! may need one operation for all of them. A file whose old data takes more than one turn is flushed at the end of its pass, or when
//! [`Limits::flush_after`](crate::dirty::Limits::flush_after) pages wait for a flush.

use foliocache_sync::Arc;
use foliocache_sync::atomic::Ordering;
use foliocache_sync::time::{Duration, monotonic_ns};
use foliocache_sys::Errno;

use crate::counters::Count;
use crate::dirty::{SHORTEST_TURN, flush_due};
use crate::records::{AddressSpace, BackingDevInfo};
use crate::slab::SlabArc;

const NAME: &str = "foliocache-flush";

/// Rest of the thread after a panic of the store's code.
const PANIC_PAUSE: Duration = Duration::from_secs(1);

/// Most files whose flushes come together.
const MOST_TOGETHER: usize = 1000;

/// Fewest files for which the store is asked to flush them in one operation. That may wait for data of others, too.
const FEWEST_TOGETHER: usize = 8;

impl BackingDevInfo {
    pub(crate) fn start_flusher(self: &Arc<Self>) -> Result<(), Errno> {
        let panics = self.mm().panics();
        self.flusher.start(NAME, None, panics, self, |bdi, memory| {
            let round = bdi.mm().panics().catch(NAME, || bdi.flush_round(memory));
            // After a panic of the store's code the data is dirty still, and the next round tries again.
            round.unwrap_or_else(|| {
                bdi.set_error(Some(Errno::EIO));
                Some(PANIC_PAUSE)
            })
        })
    }

    /// Goes through the dirty files as often as it has to; returns how long to sleep, `None` if there is
    /// nothing to wait for.
    fn flush_round(&self, memory: bool) -> Option<Duration> {
        let expire = self.mm().config.dirty_expire;
        if let Some(file) = self.first_dirty_file() {
            // Others use the store, too.
            self.look_at_space(&file);
        }
        let mut progress = true;
        while progress {
            self.answer_asked();
            progress = self.write_closed();
            progress |= self.write_handed();
            // Old data goes first, whatever else there is to do.
            for old in [true, false] {
                progress |= self.give_turns(memory, old);
            }
        }
        // Old enough, a retry that is due, or a request: whichever comes first.
        let period =
            (!self.flusher_may_rest()).then(|| (expire / 5).max(Duration::from_millis(50)));
        let due = [period, self.closed_due(), self.answer_asked()];
        due.into_iter().flatten().min()
    }

    /// Pages to write in a turn for room alone.
    fn excess(&self) -> u64 {
        let limits = self.dirty_limits();
        let over = self.nr_to_write().saturating_sub(limits.background);
        over.max(limits.piece()).max(SHORTEST_TURN)
    }

    /// Gives one turn to each file that has been dirty for long enough (`old`), or to younger ones for as
    /// long as there is a reason to write them. Returns whether it should be tried again.
    fn give_turns(&self, memory: bool, old: bool) -> bool {
        let expire = self.mm().config.dirty_expire;
        let age = |since| Duration::from_nanos(monotonic_ns().saturating_sub(since));
        // Relaxed, also below: only the flusher uses it.
        if old && age(self.oldest_dirty.load(Ordering::Relaxed)) < expire {
            return false;
        }
        let mut oldest = monotonic_ns();
        let mut again = false;
        let mut written = Vec::new();
        for _ in 0..self.nr_dirty_files() {
            let over = self.nr_to_write() > self.dirty_limits().background;
            if !old && !memory && !over {
                break;
            }
            let Some((file, since)) = self.next_dirty_file() else {
                break;
            };
            oldest = oldest.min(since);
            if (age(since) >= expire) != old {
                continue;
            }
            let failed = || file.counts.get(Count::Failed) > 0;
            let flush = |ended: bool| {
                let unstable = self.counts.get(Count::Unstable);
                let limits = self.dirty_limits();
                // Old data has a flush at the end, not one a turn. A file with failed data may never come to its end.
                let is_done =
                    old && (ended || failed()) && !foliocache_sync::planted!(old_data_not_flushed);
                memory || is_done || flush_due(limits, unstable, self.nr_to_write())
            };
            self.answer_asked();
            let measured = over.then(|| self.measure_pass());
            let turn = self.turn();
            let early = !memory && !old;
            let budget = if early { self.excess().min(turn) } else { turn };
            let (mut worked, flush) = file.background_writeback(budget, early, flush);
            // Old data is written in one go. A file with failed data is old until that is written, and gets a turn a round.
            let goes_on = over || (old && !failed());
            if flush {
                written.push(file);
            }
            let full = written.len() >= MOST_TOGETHER || self.counts.get(Count::Unstable) >= turn;
            if full && !written.is_empty() {
                worked = flush_all(&mut written);
            }
            drop(measured);
            again |= worked && goes_on && !memory;
        }
        if !written.is_empty() {
            let over = self.nr_to_write() > self.dirty_limits().background;
            again |= flush_all(&mut written) && over && !memory;
        }
        if old {
            // Each file was visited. Those queued meanwhile are younger.
            self.oldest_dirty.store(oldest, Ordering::Relaxed);
        }
        again
    }
}

/// Flushes files that were written; whether none failed. The error stays with the file.
pub(super) fn flush_all(files: &mut Vec<SlabArc<AddressSpace>>) -> bool {
    if files.len() >= FEWEST_TOGETHER {
        files[0].ask_store(|ops| ops.flush_together());
    }
    let failed = files.drain(..).filter(|file| file.flush_written().is_err());
    failed.count() == 0
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::dirty::turn;
    use crate::folio::flag;
    use crate::iocb::Iocb;
    use crate::iov::IovIter;
    use crate::records::BdiKind;
    use crate::records::{Mm, MmConfig};
    use crate::slab::SlabWeak;
    use crate::test_store::Sink;
    use crate::types::PageIndex;
    use foliocache_sync::atomic::AtomicU64;

    const BOUND: u64 = 64 << 20;

    /// A file system with `files` files of a dirty page each, whose flusher runs only when a test has it run.
    fn dirty(files: usize, expire: Duration) -> (Arc<BackingDevInfo>, Vec<SlabArc<AddressSpace>>) {
        dirty_within(BOUND, files, expire)
    }

    fn dirty_within(
        bound: u64,
        files: usize,
        expire: Duration,
    ) -> (Arc<BackingDevInfo>, Vec<SlabArc<AddressSpace>>) {
        let mut config = MmConfig::new(bound);
        config.dirty_expire = expire;
        config.external_pressure = false;
        let mm = Mm::new(config).unwrap();
        let bdi = BackingDevInfo::new(&mm, "test", BdiKind::Storage).unwrap();
        bdi.stop();
        let files = (0..files).map(|_| {
            let file = AddressSpace::new(&bdi, Arc::new(Sink::default()), 0);
            file.write(&mut Iocb::at(0), &mut IovIter::source(b"dirty"))
                .unwrap();
            file
        });
        let files = files.collect();
        (bdi, files)
    }

    #[test]
    fn a_round_with_nothing_to_do_visits_no_file() {
        let turns = |files| {
            let (bdi, _files) = dirty(files, Duration::from_secs(3600));
            // The first one finds out how old they are.
            bdi.flush_round(false);
            let before = bdi.dirty_files.lock().last;
            bdi.flush_round(false);
            assert_eq!(bdi.nr_dirty_files(), files);
            let turns = bdi.dirty_files.lock().last - before;
            bdi.discard_all();
            turns
        };
        assert_eq!(turns(1000), 0);
        assert_eq!(turns(10), 0);
    }

    #[test]
    fn files_are_written_when_they_are_old_or_memory_is_short() {
        let (bdi, files) = dirty(100, Duration::from_millis(20));
        bdi.flush_round(false);
        while bdi.nr_dirty_files() > 0 {
            foliocache_sync::time::sleep(Duration::from_millis(5));
            bdi.flush_round(false);
        }
        files[7]
            .write(&mut Iocb::at(0), &mut IovIter::source(b"again"))
            .unwrap();
        bdi.flush_round(true);
        assert_eq!(bdi.nr_dirty_files(), 0);
    }

    #[test]
    fn a_round_writes_all_that_is_old() {
        let (bdi, _) = dirty_within(8 * BOUND, 0, Duration::from_millis(20));
        let file = AddressSpace::new(&bdi, Arc::new(Sink::default()), 0);
        // More than two turns, and less than the flusher begins at.
        let pages = bdi.dirty_limits().background / 10 * 9;
        assert!(pages > 2 * turn(u64::MAX));
        for page in 0..pages {
            let mut at = Iocb::at(page * 4096);
            file.write(&mut at, &mut IovIter::source(b"dirty")).unwrap();
        }
        assert_eq!(bdi.nr_to_write(), pages);
        foliocache_sync::time::sleep(Duration::from_millis(30));
        bdi.flush_round(false);
        assert_eq!(bdi.nr_to_write(), 0);
    }

    #[test]
    fn the_old_data_of_a_file_is_flushed_once() {
        let (bdi, _) = dirty_within(8 * BOUND, 0, Duration::from_millis(20));
        let flushes = Arc::new(AtomicU64::new(0));
        let count = {
            let flushes = flushes.clone();
            // Relaxed: one thread.
            move || _ = flushes.fetch_add(1, Ordering::Relaxed)
        };
        let sink = Sink {
            on_flush: Some(Box::new(count)),
            ..Sink::default()
        };
        let file = AddressSpace::new(&bdi, Arc::new(sink), 0);
        // More than a turn.
        let pages = bdi.dirty_limits().flush_after() / 10 * 9;
        assert!(pages > turn(u64::MAX));
        for page in 0..pages {
            let mut at = Iocb::at(page * 4096);
            file.write(&mut at, &mut IovIter::source(b"dirty")).unwrap();
        }
        foliocache_sync::time::sleep(Duration::from_millis(30));
        bdi.flush_round(false);
        assert_eq!(bdi.nr_to_write(), 0);
        // Relaxed: as above.
        assert_eq!(flushes.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn data_that_turns_for_room_pass_over_keeps_its_age() {
        let (bdi, _) = dirty(0, Duration::from_secs(3600));
        let file = AddressSpace::new(&bdi, Arc::new(Sink::default()), 0);
        let write = |page: u64| {
            let mut at = Iocb::at(page * 4096);
            file.write(&mut at, &mut IovIter::source(b"dirty")).unwrap();
            if bdi.nr_to_write() > bdi.dirty_limits().background {
                bdi.flush_round(false);
            }
        };
        let hot_is_dirty = || {
            let folio = file.lock_folio(PageIndex(0)).expect("it is cached");
            folio.state.load().has(flag::DIRTY)
        };
        // More than may ever be dirty, so that the flusher goes through the file again and again.
        let pages = BOUND / 4096 / 10 * 9;
        write(0);
        // When the hot page became dirty, or a little later.
        let mut became = None;
        let mut passed_over = 0;
        for at in 0..4 * pages {
            for page in [1 + at % pages, 0, 0] {
                write(page);
                match hot_is_dirty() {
                    true => _ = became.get_or_insert_with(monotonic_ns),
                    false => became = None,
                }
            }
            if let Some(became) = became {
                let (_, since) = bdi.next_dirty_file().expect("it is dirty");
                assert!(since <= became, "{at}");
                passed_over += 1;
            }
        }
        assert!(passed_over > 2 * pages, "{passed_over}");
        bdi.discard_all();
    }

    /// Each write of the stream hands over its next page.
    #[test]
    fn an_old_file_is_written_beside_one_that_hands_over_more_all_the_time() {
        const STREAM_PAGES: u64 = 500;
        let (bdi, _) = dirty(0, Duration::from_millis(20));
        let file = |on_write: Box<dyn Fn() + Send + Sync>| {
            let on_write = Some(on_write);
            let sink = Sink {
                on_write,
                ..Sink::default()
            };
            AddressSpace::new(&bdi, Arc::new(sink), 0)
        };
        let next = Arc::new(AtomicU64::new(0));
        // The value of `next` when the other file was written.
        let other_at = Arc::new(AtomicU64::new(0));
        let stream = Arc::new(foliocache_sync::Mutex::new(None::<SlabWeak<AddressSpace>>));
        let hand_over = {
            let (next, stream) = (next.clone(), stream.clone());
            move || {
                // Relaxed, here and below: one thread.
                let next = next.fetch_add(1, Ordering::Relaxed) + 1;
                let file = stream.lock().as_ref().and_then(SlabWeak::upgrade);
                let file = file.filter(|_| next < STREAM_PAGES);
                if let Some(file) = file {
                    file.bdi().hand_over(&file, next..next + 1);
                }
            }
        };
        let note = {
            let (next, other_at) = (next.clone(), other_at.clone());
            // Relaxed: as above.
            move || other_at.store(next.load(Ordering::Relaxed), Ordering::Relaxed)
        };
        let (written, other) = (file(Box::new(hand_over)), file(Box::new(note)));
        *stream.lock() = Some(SlabArc::downgrade(&written));
        let write = |file: &AddressSpace, page: u64| {
            let mut at = Iocb::at(page * 4096);
            file.write(&mut at, &mut IovIter::source(b"dirty")).unwrap();
        };
        write(&other, 0);
        foliocache_sync::time::sleep(Duration::from_millis(30));
        for page in 0..STREAM_PAGES {
            write(&written, page);
        }
        bdi.hand_over(&written, 0..1);
        bdi.flush_round(false);
        // Relaxed: as above.
        let at = other_at.load(Ordering::Relaxed);
        assert!(at < STREAM_PAGES / 2, "{at}");
    }

    #[test]
    fn data_that_is_dirtied_again_and_again_is_written_later() {
        let (bdi, _) = dirty(0, Duration::from_secs(3600));
        let file = AddressSpace::new(&bdi, Arc::new(Sink::default()), 0);
        let limits = bdi.dirty_limits();
        let configured = limits.background;
        // Each page of a pass is dirtied once.
        let write = |pages: std::ops::Range<u64>| {
            for page in pages {
                let mut at = Iocb::at(page * 4096);
                file.write(&mut at, &mut IovIter::source(b"dirty")).unwrap();
                if bdi.nr_to_write() > bdi.dirty_limits().background {
                    bdi.flush_round(false);
                }
            }
            // Relaxed: one thread.
            file.counters.written.load(Ordering::Relaxed)
        };
        // More than may be dirty before the flusher begins, and less than may be dirty at all.
        let pages = configured * 2;
        let first = write(0..pages);
        assert!(first > 0);
        for _ in 0..40 {
            write(0..pages);
        }
        let now = bdi.dirty_limits();
        assert!(
            now.background >= pages && now.limit > limits.limit,
            "{now:?}"
        );
        let before = write(0..pages);
        assert_eq!(write(0..pages), before, "nothing is written in vain");
        write(pages..pages * 20);
        assert_eq!(bdi.dirty_limits(), limits);
        bdi.discard_all();
    }

    /// As a database does that loads an index: most stores go to a part of the file that lies all over it, the others anywhere.
    #[test]
    fn a_loaded_index_is_written_little_more_than_once() {
        const HOT: u64 = (20 << 20) / 4096;
        let (bdi, _) = dirty(0, Duration::from_secs(3600));
        let file = AddressSpace::new(&bdi, Arc::new(Sink::default()), 0);
        let pages = HOT * 27 / 4;
        let mut random = 1_u64;
        let mut below = |most: u64| {
            random = (random.wrapping_mul(6_364_136_223_846_793_005)).wrapping_add(1);
            (random >> 33) % most
        };
        let mut stored_to = vec![false; pages as usize];
        for _ in 0..200_000 {
            let page = match below(100) {
                0..4 => below(pages),
                _ => below(HOT) * 27 / 4,
            };
            stored_to[page as usize] = true;
            let mut at = Iocb::at(page * 4096);
            file.write(&mut at, &mut IovIter::source(b"dirty")).unwrap();
            if bdi.nr_to_write() > bdi.dirty_limits().background {
                bdi.flush_round(false);
            }
        }
        // Relaxed: one thread.
        let written = file.counters.written.load(Ordering::Relaxed) / 4096;
        let all = written + bdi.counts.get(Count::Dirty);
        let once = stored_to.iter().filter(|&&stored_to| stored_to).count() as u64;
        assert!(all * 10 <= once * 13, "{all} pages of {once}");
        bdi.discard_all();
    }

    #[test]
    fn a_turn_for_room_writes_what_is_stored_to_again_last() {
        let (bdi, _) = dirty(0, Duration::from_secs(3600));
        let file = AddressSpace::new(&bdi, Arc::new(Sink::default()), 0);
        for page in (0..100).chain(0..50) {
            let mut at = Iocb::at(page * 4096);
            file.write(&mut at, &mut IovIter::source(b"dirty")).unwrap();
        }
        let dirty = || bdi.counts.get(Count::Dirty);
        let is_dirty = |page: u64| {
            let folio = file.lock_folio(PageIndex(page)).expect("it is cached");
            folio.state.load().has(flag::DIRTY)
        };
        let turn = |pages| file.background_writeback(pages, true, |_| false);
        assert_eq!(turn(20), (true, false));
        assert!(dirty() == 80 && (0..50).all(is_dirty));
        // They were passed over on the way.
        assert_eq!(turn(20), (true, false));
        assert_eq!(turn(60), (true, false));
        assert_eq!(dirty(), 0);
        bdi.discard_all();
    }
}
