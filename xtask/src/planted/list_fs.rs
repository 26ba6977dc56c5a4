//! The bugs that are planted in `fs`, see [`list`](super::list).

use super::bug::{Bug, bug};
use crate::setup::Need;
use crate::tiers::Tier::{Model, System, Unit};

/// All of them.
pub(super) const FS: &[Bug] = &[
    bug(
        "fs",
        "removed_file_kept_by_its_last_close",
        "the last close does not look whether others removed the file",
        Unit,
        &["fs::unit::watch::a_file_that_others_remove_while_it_is_open_from_the_cache_goes_at_its_close"],
    ),
    bug(
        "fs",
        "cut_taken_for_a_write_of_others",
        "a look that a truncate of ours overtook counts",
        Model,
        &["fs::shuttle::dirfs::a_file_that_is_cut_is_not_taken_for_one_that_others_wrote"],
    ),
    bug(
        "fs",
        "privileges_before_data",
        "set-id bits and capabilities are set before the data is written",
        Unit,
        &["foliocache::unit::written_first::set_id_bits_that_are_set_after_a_write_stay"],
    ),
    bug(
        "fs",
        "no_fdatasync",
        "a flush makes no system call",
        System,
        &["foliocache::system::power_cut::synced_data_and_names_survive_a_power_cut_of_the_disk"],
    )
    .needs(&[Need::Root, Need::Mkfs, Need::Fuse]),
    bug(
        "fs",
        "attributes_not_synced",
        "an fsync leaves modes, times and extended attributes out",
        System,
        &["foliocache::system::power_cut::attributes_that_were_synced_survive_a_power_cut"],
    )
    .needs(&[Need::Root, Need::Mkfs, Need::Fuse]),
    bug(
        "fs",
        "batch_not_synced",
        "a batch is synced by no system call",
        System,
        &["foliocache::system::power_cut::a_small_new_file_of_a_batch_that_was_synced_survives_a_power_cut"],
    )
    .needs(&[Need::Root, Need::Mkfs, Need::Fuse]),
    bug(
        "fs",
        "device_not_flushed",
        "a batch on XFS is synced by syncfs alone",
        System,
        &["foliocache::system::power_cut::overwrites_in_one_tick_of_the_clock_survive_a_power_cut"],
    )
    .needs(&[Need::Root, Need::Mkfs, Need::Fuse]),
    bug(
        "fs",
        "ctime_moves",
        "a file whose inode left memory has the source's change time",
        Unit,
        &[
            "fs::unit::dirfs::the_change_time_that_was_shown_stays_when_the_inode_leaves_memory",
        ],
    ),
    bug(
        "fs",
        "renamed_name_not_synced",
        "fsync after a rename does not sync the directory",
        Unit,
        &[
            "fs::lib::dirfs::tests::durability::an_fsync_of_a_moved_file_syncs_the_directory_that_it_is_in",
        ],
    ),
    bug(
        "fs",
        "directories_above_not_synced",
        "fsync of a new file syncs its directory alone, not new ones above",
        Unit,
        &[
            "fs::lib::dirfs::tests::durability::an_fsync_beside_a_failing_one_of_a_sibling_in_a_new_directory_fails",
        ],
    ),
    bug(
        "fs",
        "write_beside_a_sync_durable",
        "data that is written beside an fdatasync counts as durable with it",
        Unit,
        &[
            "fs::lib::dirfs::tests::durability::a_tail_written_beside_a_flush_is_known_to_be_in_the_kernels_cache",
        ],
    ),
    bug(
        "fs",
        "failed_batch_taken_for_durable",
        "an error of syncfs is dropped",
        Unit,
        &[
            "fs::lib::dirfs::tests::batch::a_failed_syncfs_makes_every_file_of_the_batch_dirty_again",
        ],
    ),
    bug(
        "fs",
        "batch_synced_beside_its_writes",
        "a batch is synced while some of it is being written",
        Unit,
        &["fs::lib::dirfs::tests::batch::a_batch_is_not_synced_while_some_of_it_is_being_written"],
    ),
    bug(
        "fs",
        "lock_of_another_ignored",
        "a second cache writes to a directory",
        Unit,
        &["foliocache::unit::caches::two_caches_do_not_write_to_one_directory"],
    ),
    bug(
        "fs",
        "file_lock_of_another_ignored",
        "a second cache writes to a single file",
        Unit,
        &["foliocache::unit::single_files::two_caches_do_not_write_to_one_file"],
    ),
    bug(
        "fs",
        "locked_without_a_look",
        "a lock does not show the changes of others",
        Unit,
        &[
            "foliocache::unit::file_locks::a_lock_shows_writes_by_others_beside_data_that_is_not_durable",
        ],
    ),
    bug(
        "fs",
        "unlocked_before_written",
        "a lock ends before its data is in the source",
        Unit,
        &[
            "foliocache::unit::file_locks::what_was_written_under_a_lock_is_in_the_source_when_it_ends",
        ],
    ),
    bug(
        "fs",
        "data_given_up_with_the_name",
        "a removal gives up data of a file that is about to be opened",
        Unit,
        &["fs::unit::unnamed::a_file_that_was_looked_up_keeps_its_data_when_its_name_goes"],
    ),
    bug(
        "fs",
        "data_given_up_at_the_last_close",
        "so does the last close of a file without a name",
        Unit,
        &["fs::unit::unnamed::a_file_that_was_looked_up_keeps_its_data_after_its_last_close"],
    ),
    bug(
        "fs",
        "late_answer_compared",
        "an answer that a change of ours has overtaken is compared",
        Unit,
        &["fs::lib::coherence::tests::what_we_do_alone_is_never_stale"],
    ),
    bug(
        "fs",
        "dirty_data_stale",
        "writes by others replace our dirty data",
        Unit,
        &["fs::lib::coherence::tests::valid_data_has_every_change_by_others"],
    ),
    bug(
        "fs",
        "hidden_by_our_change",
        "writes by others before a change of ours are not recorded",
        Unit,
        &["fs::lib::coherence::tests::valid_data_has_every_change_by_others"],
    ),
    bug(
        "fs",
        "noted_news_forgotten",
        "taking over an older answer ends later records",
        Unit,
        &["fs::lib::coherence::tests::a_note_outlives_an_older_answer_that_is_taken_over"],
    ),
    bug(
        "fs",
        "attribute_change_hides_data",
        "after a change of ours to attributes any data is taken for known",
        Unit,
        &["fs::lib::coherence::tests::valid_data_has_every_change_by_others"],
    ),
    bug(
        "fs",
        "hidden_by_the_mark",
        "writes by others just before a file was marked are not looked for",
        Unit,
        &["fs::lib::dirfs::tests::a_write_by_others_just_before_the_mark_is_seen"],
    ),
    bug(
        "fs",
        "compared_for_ever",
        "unreported changes are never looked for",
        Unit,
        &["fs::lib::coherence::tests::valid_data_has_every_change_by_others"],
    ),
    bug(
        "fs",
        "never_compared",
        "a file is asked about again and again though nothing changes",
        Unit,
        &["fs::lib::coherence::tests::what_we_do_alone_is_never_stale"],
    ),
];
