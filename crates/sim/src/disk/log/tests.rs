//! Unit tests of the log.

use std::collections::BTreeSet;

use super::{Entry, FIRST_BLOCK, Log, Unflushed};
use crate::disk::content::Content;
use crate::{Lost, SECTOR};

fn write(sector: u64, byte: u8, sectors: usize) -> Entry {
    Entry::Write {
        pos: FIRST_BLOCK + sector * SECTOR,
        data: vec![byte; sectors * SECTOR as usize].into(),
    }
}

/// The first byte of each of the first four sectors.
fn seen(content: &Content) -> [u8; 4] {
    [0, 1, 2, 3].map(|sector| {
        let mut bytes = [0; SECTOR as usize];
        content.read(FIRST_BLOCK + sector * SECTOR, &mut bytes);
        assert!(bytes.iter().all(|&byte| byte == bytes[0]), "half a sector");
        bytes[0]
    })
}

fn cut(log: &mut Log, position: u64, unflushed: Unflushed) -> Content {
    log.cut(position, unflushed).expect("a position of the log")
}

#[test]
fn a_cut_keeps_flushed_data_and_nothing_else() {
    let mut log = Log::default();
    log.push(write(0, 1, 4));
    log.push(Entry::Flush);
    log.push(write(1, 2, 1));
    assert_eq!(log.position(), 3);
    assert_eq!(log.flushes(), [2]);
    for (position, durable, all) in [
        (0, [0; 4], [0; 4]),
        (1, [0; 4], [1; 4]),
        (2, [1; 4], [1; 4]),
        (3, [1; 4], [1, 2, 1, 1]),
    ] {
        assert_eq!(seen(&cut(&mut log, position, Unflushed::None)), durable);
        assert_eq!(seen(&cut(&mut log, position, Unflushed::All)), all);
    }
    // Backwards too: an earlier roll-forward has no effect.
    assert_eq!(seen(&cut(&mut log, 1, Unflushed::None)), [0; 4]);
    assert_eq!(seen(log.live()), [1, 2, 1, 1]);
}

#[test]
fn any_part_of_unflushed_data_may_land() {
    let mut log = Log::default();
    log.push(write(0, 1, 4));
    log.push(Entry::Flush);
    log.push(write(0, 2, 2));
    log.push(write(2, 3, 1));
    log.push(write(0, 4, 1));
    let found: BTreeSet<[u8; 4]> = (0..4000)
        .map(|seed| seen(&cut(&mut log, 5, Unflushed::Some(seed))))
        .collect();
    let mut expected = BTreeSet::new();
    for first in [1, 2, 4] {
        for second in [1, 2] {
            for third in [1, 3] {
                expected.insert([first, second, third, 1]);
            }
        }
    }
    assert_eq!(found, expected);
    for seed in 0..20 {
        let mut again = || cut(&mut log, 5, Unflushed::Some(seed));
        assert_eq!(again(), again(), "one seed gives one image");
    }
}

#[test]
fn zeros_are_logged_like_writes() {
    let mut log = Log::default();
    log.push(write(0, 1, 4));
    log.push(Entry::Flush);
    let (pos, len) = (FIRST_BLOCK + SECTOR, 2 * SECTOR);
    log.push(Entry::Zero { pos, len });
    assert_eq!(seen(log.live()), [1, 0, 0, 1]);
    assert_eq!(seen(&cut(&mut log, 3, Unflushed::None)), [1; 4]);
    log.push(Entry::Flush);
    assert_eq!(seen(&cut(&mut log, 4, Unflushed::None)), [1, 0, 0, 1]);
}

#[test]
fn a_lost_flush_loses_the_data_that_it_covered() {
    for (lost, live, durable) in [
        (Lost::Nothing, [2, 1, 1, 1], [2, 1, 1, 1]),
        (Lost::Data, [2, 1, 1, 1], [1; 4]),
        (Lost::DataAndLive, [1; 4], [1; 4]),
    ] {
        let mut log = Log::default();
        log.push(write(0, 1, 4));
        log.push(Entry::Flush);
        log.push(write(0, 2, 1));
        log.lose(lost);
        assert_eq!(seen(log.live()), live, "{lost:?}");
        log.push(Entry::Flush);
        let position = log.position();
        assert_eq!(
            seen(&cut(&mut log, position, Unflushed::None)),
            durable,
            "{lost:?}"
        );
    }
}

#[test]
fn a_trimmed_log_cuts_as_before() {
    let mut log = Log::default();
    for round in 1..=9 {
        log.push(write(u64::from(round) % 4, round, 1));
        if round % 3 == 0 {
            log.push(Entry::Flush);
        }
    }
    let before: Vec<_> = (8..=12)
        .map(|at| cut(&mut log, at, Unflushed::All))
        .collect();
    let position = log.position();
    log.trim(9);
    assert_eq!(log.position(), position);
    assert_eq!(log.flushes(), [12]);
    let after: Vec<_> = (8..=12)
        .map(|at| cut(&mut log, at, Unflushed::All))
        .collect();
    assert_eq!(before, after);
    assert!(log.cut(7, Unflushed::None).is_err() && log.cut(13, Unflushed::None).is_err());
}

#[test]
fn a_torn_write_leaves_whole_sectors() {
    let found: BTreeSet<[u8; 4]> = (0..200)
        .map(|seed| {
            let mut log = Log::default();
            log.push_torn(FIRST_BLOCK + SECTOR, &[1; 2 * SECTOR as usize], seed);
            seen(log.live())
        })
        .collect();
    let all = [[0; 4], [0, 1, 0, 0], [0, 0, 1, 0], [0, 1, 1, 0]];
    assert_eq!(found, BTreeSet::from(all));
}

#[test]
fn a_superblock_is_not_torn() {
    let mut log = Log::default();
    log.push(Entry::Write {
        pos: 0,
        data: vec![1; FIRST_BLOCK as usize].into(),
    });
    for seed in 0..300 {
        let content = cut(&mut log, 1, Unflushed::Some(seed));
        let mut bytes = [0; FIRST_BLOCK as usize];
        content.read(0, &mut bytes);
        assert!(bytes == [0; FIRST_BLOCK as usize] || bytes == [1; FIRST_BLOCK as usize]);
    }
}
