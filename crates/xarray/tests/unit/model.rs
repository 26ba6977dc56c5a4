//! The index against a `BTreeMap`, by random operations.

use proptest::collection::vec;
use proptest::prelude::any;
use proptest::test_runner::{Config, TestRunner};

/// How much more than in an ordinary run.
fn stress() -> u32 {
    std::env::var("FOLIOCACHE_STRESS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(1)
}

#[test]
fn agrees_with_a_btreemap() {
    let mut runner = TestRunner::new(Config {
        cases: 200 * stress(),
        failure_persistence: None,
        ..Config::default()
    });
    runner
        .run(&vec(any::<u8>(), 0..4096), |bytes| {
            crate::common::run(&bytes);
            Ok(())
        })
        .unwrap();
}

#[test]
fn seeded_runs_agree_with_a_btreemap() {
    for seed in 0..40 * u64::from(stress()) {
        // splitmix64
        let mut state = seed;
        let bytes: Vec<u8> = (0..20_000)
            .map(|_| {
                state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
                (z >> 56) as u8
            })
            .collect();
        crate::common::run(&bytes);
    }
}
