//! The bugs that are planted in the crates above `fs`, see [`list`](super::list).

use super::bug::{Bug, bug};
use crate::setup::Need;
use crate::tiers::Tier::{System, Unit};

/// All of them.
pub(super) const ABOVE: &[Bug] = &[
    // foliocache
    bug(
        "foliocache",
        "exit_without_writing_back",
        "the exit of the process writes nothing back",
        Unit,
        &["foliocache::unit::exit::a_cache_that_asked_for_it_is_written_back_by_exit"],
    ),
    bug(
        "foliocache",
        "one_directory_not_synced",
        "Cache::sync leaves out the first directory",
        Unit,
        &["foliocache::unit::caches::sync_makes_everything_durable"],
    ),
    // fuse
    bug(
        "fuse",
        "forgotten_too_early",
        "a node goes one look-up before the kernel forgets it",
        Unit,
        &[
            "fuse::lib::tests::a_node_looked_up_during_a_forget_request_lives_until_its_count_is_zero",
        ],
    ),
    bug(
        "fuse",
        "listings_overtake_look_ups",
        "the kernel believes a listing that is older than a look-up",
        Unit,
        &["fuse::lib::linking::tests::kernel::no_program_sees_an_older_file_after_a_newer_one"],
    ),
    bug(
        "fuse",
        "older_attributes_stay",
        "of two answers with attributes the kernel believes the older one",
        Unit,
        &["fuse::lib::answers::tests::kernel::no_program_sees_older_attributes_after_newer_ones"],
    ),
    bug(
        "fuse",
        "kernel_not_told_of_a_name",
        "the kernel is not told of names changed by others",
        System,
        &["fuse::system::news::a_change_from_outside_is_seen_within_50_ms"],
    )
    .needs(&[Need::Root, Need::Fuse]),
    bug(
        "fuse",
        "kernel_told_of_another_inode",
        "the kernel is told of the wrong inode",
        System,
        &["fuse::system::news::a_change_from_outside_is_seen_within_50_ms"],
    )
    .needs(&[Need::Root, Need::Fuse]),
];
