//! Unit tests of the judge, with images that it must refuse.

use super::{DurabilityOracle, Violation};
use crate::{Fill, Image, Medium, Mix, Operation, ReferenceFile, Rng, Workload};

const A: Fill = Fill(1);
const B: Fill = Fill(2);
const C: Fill = Fill(3);

fn write(pos: u64, len: usize, fill: Fill) -> Operation {
    Operation::Write { pos, len, fill }
}

fn image(operations: &[Operation]) -> Image {
    let mut file = ReferenceFile::new();
    for operation in operations {
        file.apply(operation);
    }
    file.image().clone()
}

/// A judge for whom everything in `durable` was acknowledged and `later` was not.
fn oracle(durable: &[Operation], later: &[Operation]) -> DurabilityOracle {
    let mut oracle = DurabilityOracle::new(Image::new());
    for operation in durable {
        oracle.record(operation);
    }
    oracle.acknowledge();
    for operation in later {
        oracle.record(operation);
    }
    oracle
}

fn offset(result: Result<(), Violation>) -> u64 {
    match result {
        Err(Violation::Content { offset, .. }) => offset,
        other => panic!("expected wrong content, got {other:?}"),
    }
}

#[test]
fn acknowledged_data_must_be_there() {
    let durable = [write(0, 10_000, A)];
    let oracle = oracle(&durable, &[]);
    let good = image(&durable);
    assert_eq!(oracle.check(&good), Ok(()));

    let mut lost = good.clone();
    lost.punch_hole(4096, 512);
    assert_eq!(offset(oracle.check(&lost)), 4096);

    let mut shorter = good.clone();
    shorter.truncate(9999);
    assert_eq!(
        oracle.check(&shorter),
        Err(Violation::Size {
            found: 9999,
            allowed: vec![10_000]
        })
    );
    assert!(matches!(
        oracle.check(&Image::new()),
        Err(Violation::Size { found: 0, .. })
    ));

    let mut flipped = good;
    flipped.write(777, &[A.byte(777) ^ 0x10]);
    assert_eq!(offset(oracle.check(&flipped)), 777);
}

#[test]
fn old_or_new_by_sector_but_no_mix_within_one() {
    let durable = [write(0, 2048, A)];
    let oracle = oracle(&durable, &[write(100, 1000, B)]);
    let old = image(&durable);
    assert_eq!(oracle.check(&old), Ok(()));
    let new = image(&[write(0, 2048, A), write(100, 1000, B)]);
    assert_eq!(oracle.check(&new), Ok(()));
    // The second sector new, the others old.
    let mut mix = old.clone();
    mix.write(512, &new.read_vec(512, 512));
    assert_eq!(oracle.check(&mix), Ok(()));
    // Half of a sector.
    let mut half = old.clone();
    half.write(512, &new.read_vec(512, 256));
    assert!(matches!(
        oracle.check(&half),
        Err(Violation::Content {
            offset: 512..1024,
            ..
        })
    ));
    // Beyond the overwritten part nothing may change.
    let mut far = old;
    far.write(1500, &B.bytes(1500, 1));
    assert_eq!(offset(oracle.check(&far)), 1500);
}

#[test]
fn every_state_since_the_fsync_is_allowed_and_none_before() {
    let before = [write(0, 512, A), write(0, 512, B)];
    let oracle = oracle(&before, &[write(0, 512, C), write(0, 512, Fill(4))]);
    for fill in [B, C, Fill(4)] {
        assert_eq!(oracle.check(&image(&[write(0, 512, fill)])), Ok(()));
    }
    let stale = image(&[write(0, 512, A)]);
    assert!(
        oracle.check(&stale).is_err(),
        "overwritten before the fsync"
    );
    let foreign = image(&[write(0, 512, Fill(9))]);
    assert!(oracle.check(&foreign).is_err(), "never written at all");
    assert!(oracle.check(&image(&[])).is_err(), "the size is promised");
    let mut zeros = Image::new();
    zeros.truncate(512);
    assert!(oracle.check(&zeros).is_err(), "no hole was ever there");
}

#[test]
fn growth_may_come_with_zeros() {
    let oracle = oracle(&[write(0, 100, A)], &[write(100, 5000, B)]);
    let mut grown = image(&[write(0, 100, A)]);
    assert_eq!(oracle.check(&grown), Ok(()));
    grown.truncate(5100);
    assert_eq!(oracle.check(&grown), Ok(()), "size without data");
    grown.truncate(5000);
    assert_eq!(oracle.check(&grown), Ok(()), "a size on the way");
    grown.truncate(5101);
    assert!(oracle.check(&grown).is_err(), "a size that never was");
    grown.truncate(99);
    assert!(oracle.check(&grown).is_err(), "smaller than it ever was");
    let mut lost = Image::new();
    lost.truncate(5100);
    assert_eq!(
        offset(oracle.check(&lost)),
        0,
        "acknowledged bytes are gone"
    );
}

#[test]
fn truncations_and_holes_overtake_older_writes() {
    let truncate = |size| Operation::Truncate { size };
    let durable = [write(0, 512, A)];
    let oracle1 = oracle(&durable, &[write(0, 512, B), truncate(100), truncate(512)]);
    // B was still in the cache when the truncations reached the medium.
    let overtaken = image(&[write(0, 512, A), truncate(100), truncate(512)]);
    assert_eq!(oracle1.check(&overtaken), Ok(()));
    // The cut is in the history, but a mix of A and B is not.
    let mut mixed = overtaken.clone();
    mixed.write(0, &B.bytes(0, 50));
    assert!(oracle1.check(&mixed).is_err());
    // Bytes that were cut off do not come back in the wrong place.
    let mut back = overtaken;
    back.write(200, &C.bytes(200, 1));
    assert_eq!(offset(oracle1.check(&back)), 200);

    let punch = Operation::PunchHole { pos: 10, len: 20 };
    let oracle2 = oracle(&durable, &[write(0, 512, B), punch]);
    assert_eq!(oracle2.check(&image(&[write(0, 512, A), punch])), Ok(()));
    let later = oracle(&durable, &[punch, write(0, 512, B)]);
    assert_eq!(later.check(&image(&[write(0, 512, A), punch])), Ok(()));
    assert!(
        later.check(&image(&[write(0, 512, B), punch])).is_err(),
        "the hole came before the write and cannot undo it"
    );
}

#[test]
fn a_failed_fsync_promises_nothing() {
    let fsync = Operation::Fsync { datasync: false };
    let oracle = oracle(&[write(0, 512, A)], &[write(0, 512, B), fsync]);
    assert_eq!(oracle.check(&image(&[write(0, 512, A)])), Ok(()));
    assert_eq!(oracle.check(&image(&[write(0, 512, B)])), Ok(()));
}

/// The medium and the judge agree: every state that the medium leaves of a workload written
/// straight to it is allowed, and the states after a missing flush are detected.
#[test]
fn the_medium_keeps_flushed_data() {
    let mut caught = 0;
    for seed in 0..30 {
        for lying in [false, true] {
            let mut rng = Rng::new(seed);
            let mut medium = Medium::default();
            let mut oracle = DurabilityOracle::new(Image::new());
            let mut wrong = 0;
            for operation in Workload::new(seed, Mix::crash(60_000, 9_000)).take(150) {
                oracle.record(&operation);
                match operation {
                    Operation::Write { pos, len, fill } => medium.write(pos, &fill.bytes(pos, len)),
                    Operation::Append { len, fill } => {
                        let pos = medium.live().size();
                        medium.write(pos, &fill.bytes(pos, len));
                    }
                    Operation::Truncate { size } => medium.truncate(size),
                    Operation::PunchHole { pos, len } => medium.punch_hole(pos, len),
                    Operation::Read { .. } => {}
                    Operation::Fsync { .. } => {
                        if !(lying && rng.one_in(1, 3)) {
                            medium.flush(medium.unflushed());
                        }
                        oracle.acknowledge();
                    }
                }
                let result = oracle.check(&medium.power_cut(rng.next_u64()));
                match result {
                    Ok(()) => {}
                    Err(_) if lying => wrong += 1,
                    Err(violation) => panic!("seed {seed}: {violation}"),
                }
            }
            caught += u32::from(lying && wrong > 0);
        }
    }
    assert!(caught >= 28, "lies about flushes found out: {caught} of 30");
}

#[test]
fn an_acknowledged_range_must_be_there_and_the_rest_may_be() {
    let write = |pos, len, fill| Operation::Write {
        pos,
        len,
        fill: Fill(fill),
    };
    let mut oracle = DurabilityOracle::new(Image::new());
    oracle.record(&write(0, 4096, 1));
    oracle.record(&write(1024, 512, 2));
    oracle.acknowledge_range(1024, 512);
    let image = |size: u64, zeros: std::ops::Range<usize>| {
        let mut bytes = oracle.content().read(0, size as usize);
        bytes[zeros].fill(0);
        let mut image = Image::new();
        image.write(0, &bytes);
        image
    };
    for allowed in [
        image(4096, 0..0),
        image(1536, 0..1024),
        image(2000, 1536..2000),
    ] {
        assert_eq!(oracle.check(&allowed), Ok(()));
    }
    assert!(oracle.check(&image(1535, 0..0)).is_err(), "too short");
    assert!(oracle.check(&image(4096, 1024..1536)).is_err(), "lost");
}

/// A write-back took the size, and then bytes of a concurrent write that grew the file.
#[test]
fn a_write_beside_a_write_back_may_end_where_the_file_ended_before() {
    let durable = [write(0, 5000, A)];
    let oracle = oracle(&durable, &[write(4000, 2000, B)]);
    let cut_off = |end: u64| {
        let mut image = image(&[durable[0], write(4000, 2000, B)]);
        image.punch_hole(end, 6000 - end);
        image
    };
    assert_eq!(oracle.check(&cut_off(5000)), Ok(()));
    // There it never ended.
    assert_eq!(offset(oracle.check(&cut_off(4999))), 4999);
    assert_eq!(offset(oracle.check(&cut_off(5001))), 5001);
    // The part behind the old end is there completely or not at all.
    let mut behind = cut_off(5000);
    behind.write(5100, &[7]);
    assert_eq!(offset(oracle.check(&behind)), 5100);
    // A range behind it is promised, the rest is as before.
    let mut later = oracle.clone();
    later.record(&write(8192, 512, C));
    later.acknowledge_range(8192, 512);
    let mut grown = cut_off(5000);
    grown.write(8192, &C.bytes(8192, 512));
    assert_eq!(later.check(&grown), Ok(()));
}
