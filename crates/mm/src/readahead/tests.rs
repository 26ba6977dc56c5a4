//! Readahead against a model of a cache: traces go in, misses, sizes of reads and waste come out.

mod sim;

use proptest::prelude::*;
use sim::Model;

use super::*;
use crate::frames::Frames;

/// A generator that needs no crate: what the traces call random.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }

    /// Of `n` pages, the first far more often than the last.
    fn zipf(&mut self, n: u64) -> u64 {
        let uniform = self.below(1 << 40) as f64 / (1u64 << 40) as f64;
        ((n as f64).powf(uniform) - 1.0) as u64
    }
}

#[test]
fn a_sequential_reader_misses_once() {
    let mut model = Model::new(100_000);
    let handle = ReadaheadState::new();
    for page in 0..100_000 {
        model.read(&handle, page, 1);
    }
    assert_eq!(model.misses, 1);
    assert_eq!(model.pages_read(), 100_000, "every page was read once");
    assert_eq!(model.unused(), 0);
    assert_eq!(model.budget.leased(), 0);
}

#[test]
fn sequential_windows_double_up_to_the_largest() {
    let mut model = Model::new(100_000);
    let handle = ReadaheadState::new();
    for page in 0..20_000 {
        model.read(&handle, page, 1);
    }
    let sizes: Vec<u64> = model.ios.iter().map(|io| io.pages).take(12).collect();
    assert_eq!(
        sizes,
        [16, 32, 48, 96, 192, 384, 1024, 1024, 1024, 1024, 1024, 1024]
    );
}

#[test]
fn a_stream_settles_to_large_aligned_folios() {
    for first in [0, 1, 37, 1000] {
        let mut model = Model::new(200_000);
        let handle = ReadaheadState::new();
        for page in first..100_000 {
            model.read(&handle, page, 1);
        }
        let settled = &model.ios[20..40];
        assert!(
            settled
                .iter()
                .all(|io| io.order == 8 && io.start % 256 == 0),
            "from {first}: {settled:?}"
        );
    }
}

#[test]
fn a_reader_as_fast_as_the_device_waits_for_the_first_windows_alone() {
    let mut model = Model::new(100_000);
    let handle = ReadaheadState::new();
    for page in 0..5_000 {
        model.read(&handle, page, 1);
    }
    let warm = model.waits;
    for page in 5_000..100_000 {
        model.read(&handle, page, 1);
    }
    assert!(model.waits - warm < 100, "{} waits", model.waits - warm);
}

#[test]
fn sixteen_streams_of_one_handle_are_read_in_large_windows() {
    for request in [1, 4, 16, 64] {
        let mut model = Model::new(16 * 8192);
        let handle = ReadaheadState::new();
        for at in (0..8192).step_by(request as usize) {
            for stream in 0..16 {
                model.read(&handle, stream * 8192 + at, request);
            }
        }
        assert!(model.misses <= 16 * 3, "{} misses", model.misses);
        assert!(model.median_io() >= 64, "median of {}", model.median_io());
        assert_eq!(model.pages_read(), 16 * 8192);
        assert!(model.most_leased <= 8192);
    }
}

#[test]
fn sixteen_handles_share_the_budget_evenly() {
    let mut model = Model::with_budget(16 * 8192, 4096);
    let handles: Vec<_> = (0..16).map(|_| ReadaheadState::new()).collect();
    for at in 0..8192 {
        for (stream, handle) in handles.iter().enumerate() {
            model.read(handle, stream as u64 * 8192 + at, 1);
        }
    }
    assert!(model.misses <= 16 * 3, "{} misses", model.misses);
    assert!(model.median_io() >= 32, "median of {}", model.median_io());
    assert!(model.most_leased <= 4096, "{} leased", model.most_leased);
    drop(handles);
    assert_eq!(model.budget.leased(), 0);
}

#[test]
fn backward_misses_become_a_stream() {
    for request in [1, 4, 32] {
        let mut model = Model::new(32_768);
        let handle = ReadaheadState::new();
        for step in 1..=(32_768 / request) {
            model.read(&handle, 32_768 - step * request, request);
        }
        assert!(model.misses <= 4, "{} misses", model.misses);
        assert_eq!(model.pages_read(), 32_768);
        assert!(model.median_io() >= 256, "median of {}", model.median_io());
        assert_eq!(model.budget.leased(), 0);
    }
}

#[test]
fn strided_readers_are_read_ahead_of_without_the_gaps() {
    for (stride, len) in [(7, 1), (64, 4), (1000, 256), (-9, 2), (-300, 16)] {
        let mut model = Model::new(1_000_000);
        let handle = ReadaheadState::new();
        let base = if stride < 0 { 900_000 } else { 0 };
        let nr_elements = 500;
        for element in 0..nr_elements {
            model.read(&handle, (base + element * stride) as u64, len);
        }
        assert!(model.misses <= 6, "stride {stride}: {}", model.misses);
        let used = nr_elements as u64 * len;
        assert!(
            model.pages_read() <= used + 96 * len,
            "stride {stride}: {} read, {used} used",
            model.pages_read()
        );
    }
}

#[test]
fn two_strided_readers_through_one_handle_are_told_apart() {
    let mut model = Model::new(1_000_000);
    let handle = ReadaheadState::new();
    for element in 0..500 {
        model.read(&handle, element * 50, 2);
        model.read(&handle, 500_000 + element * 31, 2);
    }
    assert!(model.misses <= 12, "{} misses", model.misses);
}

#[test]
fn random_reads_waste_next_to_nothing() {
    for (file_pages, capacity) in [(4_000, 1_000), (100_000, 10_000), (1_000_000, 10_000)] {
        for zipf in [false, true] {
            for request in [1, 4] {
                let mut model = Model::new(file_pages);
                model.capacity = capacity;
                let handle = ReadaheadState::new();
                let mut rng = Rng(0x9e37_79b9_7f4a_7c15);
                for _ in 0..30_000 {
                    let page = if zipf {
                        rng.zipf(file_pages)
                    } else {
                        rng.below(file_pages)
                    };
                    model.read(&handle, page / request * request, request);
                }
                let (read, unused) = (model.pages_read(), model.unused());
                println!("{file_pages} zipf {zipf} by {request}: {unused} of {read} unused");
                assert!(
                    unused * 25 <= read,
                    "{file_pages} pages, zipf {zipf}, by {request}: {unused} of {read} unused"
                );
            }
        }
    }
}

#[test]
fn advice_of_random_access_turns_readahead_off() {
    let mut model = Model::new(10_000);
    let handle = ReadaheadState::new();
    handle.advise(Access::Random);
    for page in 0..100 {
        model.read(&handle, page, 1);
    }
    assert_eq!((model.misses, model.pages_read()), (100, 100));
}

#[test]
fn advice_of_sequential_access_starts_with_the_largest_window() {
    let mut model = Model::new(10_000);
    let handle = ReadaheadState::new();
    handle.advise(Access::Sequential);
    model.read(&handle, 5_000, 1);
    assert!(model.pages_read() >= 768, "{}", model.pages_read());
}

#[test]
fn a_shared_handle_serves_two_readers() {
    let mut model = Model::new(100_000);
    let handle = ReadaheadState::new();
    for at in 0..20_000 {
        model.read(&handle, at, 1);
        model.read(&handle, 50_000 + at, 1);
    }
    assert!(model.misses <= 6, "{} misses", model.misses);
    assert!(model.median_io() >= 256);
}

#[test]
fn streams_go_on_among_random_reads() {
    let mut model = Model::new(1_000_000);
    let handle = ReadaheadState::new();
    let mut rng = Rng(7);
    let mut random = 0;
    for at in 0..10_000 {
        model.read(&handle, at, 1);
        model.read(&handle, 200_000 + at, 1);
        for _ in 0..3 {
            model.read(&handle, 400_000 + rng.below(600_000), 1);
            random += 1;
        }
    }
    assert!(model.misses <= random + 10, "{} misses", model.misses);
}

#[test]
fn reading_again_what_is_cached_reads_nothing() {
    let mut model = Model::new(5_000);
    let handle = ReadaheadState::new();
    for page in 0..5_000 {
        model.read(&handle, page, 1);
    }
    let before = model.ios.len();
    for page in 0..5_000 {
        model.read(&handle, page, 1);
    }
    assert_eq!(model.ios.len(), before);
}

#[test]
fn a_second_handle_on_the_same_pages_reads_nothing_twice() {
    let mut model = Model::new(50_000);
    let [leader, follower] = [ReadaheadState::new(), ReadaheadState::new()];
    for at in 0..25_000 {
        // They change places.
        let (first, second) = if at / 500 % 2 == 0 {
            (&leader, &follower)
        } else {
            (&follower, &leader)
        };
        model.read(first, at, 1);
        model.read(second, at, 1);
    }
    assert!(model.misses <= 3, "{} misses", model.misses);
    assert!(model.pages_read() <= 25_000 + 4 * 1024);
}

#[test]
fn readers_of_the_same_pages_in_turns_are_one_stream() {
    let mut model = Model::new(50_000);
    let handles: Vec<_> = (0..8).map(|_| ReadaheadState::new()).collect();
    let mut at = [0; 8];
    let mut rng = Rng(11);
    while at.iter().any(|&at| at < 20_000) {
        let who = rng.below(8) as usize;
        model.read(&handles[who], at[who], 4);
        at[who] += 4;
    }
    assert!(model.misses <= 20, "{} misses", model.misses);
    assert!(model.median_io() >= 64, "median of {}", model.median_io());
}

#[test]
fn pressure_shrinks_the_windows_of_a_running_stream() {
    let mut model = Model::new(100_000);
    let handle = ReadaheadState::new();
    for page in 0..20_000 {
        model.read(&handle, page, 1);
    }
    model.max = 16;
    let before = model.ios.len();
    for page in 20_000..40_000 {
        model.read(&handle, page, 1);
    }
    assert!(model.ios[before..].iter().all(|io| io.pages <= 16));
    model.max = 1024;
    for page in 40_000..60_000 {
        model.read(&handle, page, 1);
    }
    assert_eq!(model.ios.last().map(|io| io.pages), Some(1024));
    assert_eq!(model.misses, 1);
}

#[test]
fn an_exhausted_budget_stops_readahead_and_not_the_reader() {
    let mut model = Model::with_budget(10_000, 0);
    let handle = ReadaheadState::new();
    for page in (0..1_000).step_by(4) {
        model.read(&handle, page, 4);
    }
    assert_eq!((model.misses, model.pages_read()), (250, 1_000));
}

#[test]
fn handles_left_after_their_first_page_do_not_use_the_budget_up() {
    let mut model = Model::with_budget(1_000_000, 1_024);
    let left: Vec<_> = (0..500).map(|_| ReadaheadState::new()).collect();
    for (at, handle) in left.iter().enumerate() {
        handle.advise(Access::Sequential);
        model.read(handle, at as u64 * 1_000, 1);
    }
    let handle = ReadaheadState::new();
    for page in 600_000..700_000 {
        model.read(&handle, page, 1);
    }
    assert!(
        model.ios.iter().rev().take(20).all(|io| io.pages >= 128),
        "{:?}",
        model.ios.last()
    );
    assert!(model.most_leased <= 1_024);
    drop((left, handle));
    assert_eq!(model.budget.leased(), 0);
}

#[test]
fn a_store_without_a_background_is_read_when_it_is_missed() {
    for now_max in [WAIT_MAX, COPY_MAX] {
        let mut model = Model::new(20_000);
        (model.background, model.now_max) = (false, now_max);
        let handle = ReadaheadState::new();
        for page in 0..20_000 {
            model.read(&handle, page, 1);
            let ahead = model.pages_read() - page;
            assert!(ahead <= now_max + 1, "{ahead} pages ahead at {page}");
        }
        assert_eq!(model.pages_read(), 20_000);
        let ios = model.ios.len() as u64;
        assert!(ios < 20_000 / now_max + 10, "{ios}");
    }
}

#[test]
fn a_stream_goes_on_where_memory_ended() {
    for (background, room) in [(true, 31), (true, 200), (false, 31), (false, 5)] {
        let mut model = Model::new(20_000);
        (model.background, model.room) = (background, room);
        let handle = ReadaheadState::new();
        for page in 0..20_000 {
            model.read(&handle, page, 1);
            // As if another reader came between.
            handle.note_read(0..1);
        }
        assert_eq!(model.pages_read(), 20_000, "every page was read once");
        assert!(model.ios.iter().all(|io| io.pages <= room));
        let most = if background { 2 } else { 2 * 20_000 / room };
        assert!(
            model.misses <= most,
            "{background} {room}: {}",
            model.misses
        );
    }
}

#[test]
fn a_handle_taken_to_another_cache_starts_over() {
    let handle = ReadaheadState::new();
    let mut models = [Model::new(1_000), Model::new(1_000)];
    for model in &mut models {
        for page in 0..100 {
            model.read(&handle, page, 1);
        }
    }
    assert_eq!(models[0].budget.leased(), 0);
    drop(handle);
    assert_eq!(models[1].budget.leased(), 0);
}

#[test]
fn a_file_of_a_few_pages_is_read_to_its_end_and_no_further() {
    for file_pages in 1..40 {
        let mut model = Model::new(file_pages);
        let handle = ReadaheadState::new();
        for page in 0..file_pages {
            model.read(&handle, page, 1);
        }
        assert_eq!(model.pages_read(), file_pages);
        assert!(model.misses <= 1 + u64::from(file_pages > 16));
        assert_eq!(model.budget.leased(), 0, "{file_pages}");
    }
}

#[test]
fn a_seek_begins_a_new_window_and_the_old_one_goes_on() {
    let mut model = Model::new(100_000);
    let handle = ReadaheadState::new();
    for page in 0..2_000 {
        model.read(&handle, page, 1);
    }
    for page in 60_000..62_000 {
        model.read(&handle, page, 1);
    }
    let before = model.misses;
    for page in 2_000..4_000 {
        model.read(&handle, page, 1);
    }
    assert_eq!(model.misses, before, "the first stream was forgotten");
    assert!(before <= 4, "{before} misses");
}

#[test]
fn pages_that_were_lost_are_read_again_in_windows() {
    let mut model = Model::new(100_000);
    let handle = ReadaheadState::new();
    for page in 0..5_000 {
        model.read(&handle, page, 1);
    }
    model.drop_pages(0, 100_000);
    let before = model.misses;
    for page in 5_000..10_000 {
        model.read(&handle, page, 1);
    }
    assert!(model.misses - before <= 2, "{}", model.misses - before);
}

#[test]
fn a_file_whose_readahead_is_wasted_gets_smaller_windows_until_it_is_used() {
    let mut model = Model::new(1_000_000);
    model.capacity = 8_000;
    let handle = ReadaheadState::new();
    for chunk in 0..300 {
        for page in 0..40 {
            model.read(&handle, chunk * 3_001 + page, 1);
        }
    }
    assert!(
        model.feedback.scale(1024) <= 128,
        "{}",
        model.feedback.scale(1024)
    );
    for page in 920_000..960_000 {
        model.read(&handle, page, 1);
    }
    assert_eq!(model.feedback.scale(1024), 1024);
}

#[test]
fn a_large_request_is_read_in_two_pieces_at_once() {
    let mut model = Model::new(100_000);
    let handle = ReadaheadState::new();
    model.read(&handle, 0, 2_048);
    assert_eq!(model.misses, 1, "the rest was on its way");
    let mut random = Model::new(100_000);
    random.read(&ReadaheadState::new(), 70_001, 64);
    assert_eq!(random.pages_read(), 64);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_trace_keeps_windows_in_the_file_and_the_budget_in_balance(
        file_pages in 1u64..5_000,
        cap in 0u64..2_000,
        capacity in 16usize..4_000,
        max in 0u64..600,
        max_order in 0u32..10,
        seed in any::<u64>(),
        ops in proptest::collection::vec(
            (0usize..3, 0u8..6, any::<u64>(), 1u64..80, 1u64..60), 1..60),
    ) {
        let mut model = Model::with_budget(file_pages, cap);
        (model.max, model.max_order, model.capacity) = (max, max_order, capacity);
        model.background = seed % 4 != 0;
        let handles: Vec<_> = (0..3).map(|_| ReadaheadState::new()).collect();
        handles[1].advise(Access::Sequential);
        for (handle, kind, seed, pages, times) in ops {
            let handle = &handles[handle];
            let mut rng = Rng(seed | 1);
            let base = rng.below(file_pages);
            match kind {
                5 => {
                    model.drop_pages(base, base + 100);
                    model.max = rng.below(600);
                    model.budget.set_cap(cap.min(rng.below(2_000)));
                    continue;
                }
                _ => for time in 0..times {
                    let step = match kind {
                        0 => time as i64 * pages as i64,
                        1 => -(time as i64) * pages as i64,
                        2 => time as i64 * 3 * pages as i64,
                        3 => -(time as i64) * 5 * pages as i64,
                        _ => rng.below(file_pages) as i64 - base as i64,
                    };
                    match base.checked_add_signed(step) {
                        Some(page) if page < file_pages => model.read(handle, page, pages),
                        _ => break,
                    }
                },
            }
        }
        prop_assert!(model.most_leased <= cap, "{} of {cap}", model.most_leased);
        drop(handles);
        prop_assert_eq!(model.budget.leased(), 0);
    }
}

#[test]
fn a_stream_starts_also_where_metadata_is_beyond_its_limit() {
    let frames = Arc::new(Frames::new(16 << 20).expect("a frame space"));
    while frames.charge_metadata(64 << 10) {}
    frames.set_limit(4 << 20).expect("a limit");
    assert!(!frames.try_charge_metadata(0), "more is charged than fits");
    let budget = Arc::new(ReadaheadBudget::new(1024, Some(frames)));
    let mut table: Vec<u64> = Vec::new();
    assert!(budget.grow(&mut table, 16));
    table.resize(table.capacity(), 0);
    assert!(
        !budget.grow(&mut table, 16),
        "no room for more than the first"
    );
}
