//! The planted bugs, and the tests that have to find them.
//!
//! A bug is listed under the crate that it is planted in. A test is `crate::program::name`, where the program is a file of the
//! crate's `tests/` without its `.rs`, or `lib` for tests beside the code, whose names begin with their modules. Of several
//! tests one has to find the bug. tidy checks that the list is complete and that the tests are there.

use super::bug::{Bug, bug};
use super::list_above::ABOVE;
use super::list_fs::FS;
use crate::setup::Need;
use crate::tiers::Tier::{Model, Unit};

/// All of them, from the bottom up.
pub(crate) const BUGS: &[Bug] = &joined::<{ BELOW.len() + FS.len() + ABOVE.len() }>();

const fn joined<const N: usize>() -> [Bug; N] {
    let (mut all, mut at) = ([BELOW[0]; N], 0);
    while at < N {
        let (fs, above) = (BELOW.len(), BELOW.len() + FS.len());
        all[at] = match at {
            _ if at < fs => BELOW[at],
            _ if at < above => FS[at - fs],
            _ => ABOVE[at - above],
        };
        at += 1;
    }
    all
}

/// Those of the crates below fs.
const BELOW: &[Bug] = &[
    // sync
    bug(
        "sync",
        "grace_period_too_short",
        "a grace period does not wait for readers of the one before",
        Unit,
        &["sync::lib::rcu::tests::a_cookie_waits_for_an_open_section"],
    ),
    bug(
        "sync",
        "reference_not_counted",
        "a reference taken under the lock of a lockref is not counted",
        Model,
        &["sync::loom::lockref::three_contend"],
    ),
    bug(
        "sync",
        "wake_up_lost",
        "a thread that sleeps alone is not woken",
        Model,
        &["sync::loom::wait::a_condition_made_true_wakes_its_waiter"],
    ),
    bug(
        "sync",
        "sync_covers_what_came_later",
        "a sync makes changes count as durable that came while it ran",
        Unit,
        &["sync::lib::durability::tests::a_sync_does_not_cover_a_change_that_comes_while_it_runs"],
    ),
    bug(
        "sync",
        "torn_read_accepted",
        "a reader does not notice a writer of a sequence counter",
        Model,
        &["sync::loom::seqcount::an_accepted_read_is_not_torn"],
    ),
    // xarray
    bug(
        "xarray",
        "mark_not_propagated",
        "a mark is set on an entry and not on the nodes above",
        Unit,
        &["xarray::unit::model::seeded_runs_agree_with_a_btreemap"],
    ),
    bug(
        "xarray",
        "half_without_marks",
        "the upper half of a split entry loses its marks",
        Unit,
        &["xarray::unit::edges::halves_have_the_marks_of_the_whole"],
    ),
    bug(
        "sync",
        "freed_under_readers",
        "a node is used again without a grace period",
        Model,
        &["xarray::loom_xarray::a_node_is_reused_only_after_its_readers"],
    ),
    // mm
    bug(
        "mm",
        "folio_skipped",
        "write-back leaves out one folio in eight",
        Unit,
        &["sim::unit::power_cut::without_faults"],
    ),
    bug(
        "mm",
        "passed_over_taken_for_written",
        "a file is younger after a turn that passed over some of its dirty data",
        Unit,
        &["mm::lib::writeback::flusher::tests::data_that_turns_for_room_pass_over_keeps_its_age"],
    ),
    bug(
        "mm",
        "old_data_not_flushed",
        "the flusher writes old data and does not flush it",
        Unit,
        &["mm::lib::writeback::flusher::tests::the_old_data_of_a_file_is_flushed_once"],
    ),
    bug(
        "mm",
        "written_in_vain_not_counted",
        "the limits do not rise though what is written for room is dirtied again",
        Unit,
        &["mm::lib::writeback::flusher::tests::a_loaded_index_is_written_little_more_than_once"],
    ),
    bug(
        "mm",
        "clean_when_written",
        "a written folio is clean before any flush",
        Unit,
        &["sim::unit::fsync_truth::data_without_a_confirmed_flush_is_never_evicted"],
    ),
    bug(
        "mm",
        "clean_before_the_flush",
        "unstable folios become clean when the flush begins",
        Unit,
        &["sim::unit::fsync_truth::nothing_is_evicted_while_its_flush_is_under_way"],
    ),
    bug(
        "mm",
        "flush_cleans_a_later_generation",
        "a flush cleans data written while it ran",
        Unit,
        &["mm::unit::flush_generations::writes_go_on_beside_a_flush_and_need_the_next_one"],
    ),
    bug(
        "mm",
        "failed_flush_forgotten",
        "a failed flush leaves its folios unstable",
        Unit,
        &["sim::unit::fsync_truth::a_failed_flush_makes_everything_unflushed_dirty_again"],
    ),
    bug(
        "mm",
        "unstable_dropped_by_a_write",
        "a write to an unstable folio takes the mark away",
        Unit,
        &["sim::unit::fsync_truth::a_failed_flush_makes_all_of_a_folio_dirty_of_which_a_part_was"],
    ),
    bug(
        "mm",
        "unstable_folio_evicted",
        "reclaim takes unstable folios",
        Unit,
        &["sim::unit::fsync_truth::nothing_is_evicted_while_its_flush_is_under_way"],
    ),
    bug(
        "mm",
        "short_write_taken_for_whole",
        "the rest of a short write is not written",
        Unit,
        &["sim::unit::fsync_truth::short_writes_are_finished"],
    ),
    bug(
        "mm",
        "error_beside_a_success_lost",
        "of writes that are in flight together one that fails passes for written if another succeeds",
        Unit,
        &["mm::unit::writes_in_flight::an_error_in_the_middle_leaves_its_pages_alone_dirty"],
    ),
    bug(
        "mm",
        "size_not_stored",
        "a sync does not store a size that no write brought about",
        Unit,
        &["sim::unit::fsync_truth::the_size_is_durable_without_the_pages_that_grew_it"],
    ),
    bug(
        "mm",
        "error_told_to_one_handle",
        "only the first handle gets the error of a failed write",
        Unit,
        &["sim::unit::fsync_truth::an_error_is_told_once_to_every_handle_open_at_the_time"],
    ),
    bug(
        "mm",
        "error_told_to_nobody",
        "no handle gets the error of a failed write by the flusher",
        Unit,
        &["sim::unit::fsync_truth::an_error_is_told_once_to_every_handle_open_at_the_time"],
    ),
    bug(
        "mm",
        "record_acknowledged_too_early",
        "a caller that joins a group while its leader works returns with it",
        Unit,
        &["mm::unit::flush_generations::fsyncs_that_wait_for_a_flush_share_the_next_one"],
    ),
    bug(
        "mm",
        "closed_file_not_written",
        "a closed file waits for its age before it is written",
        Unit,
        &["foliocache::unit::closed::a_closed_file_is_in_the_source_a_moment_later"],
    ),
    bug(
        "mm",
        "relied_page_evicted",
        "reclaim takes pages that an open file without a descriptor needs",
        Unit,
        &["mm::unit::relied::pages_that_are_relied_on_stay_until_there_is_a_descriptor"],
    ),
    bug(
        "mm",
        "half_not_dirty",
        "the upper half of a split folio loses its dirty grains",
        Unit,
        &["mm::unit::large_folios::a_cut_in_a_large_folio_keeps_what_is_before_it_alone"],
    ),
    bug(
        "mm",
        "tail_not_zeroed",
        "a truncate leaves old bytes behind the end of the last page",
        Unit,
        &["mm::unit::file::truncate_cuts_and_grows_with_zeros"],
    ),
    bug(
        "mm",
        "hole_left_in_the_cache",
        "a hole is punched in the store and not in the cache",
        Unit,
        &["mm::unit::file::punched_holes_read_zeros_in_cache_and_store"],
    ),
    bug(
        "mm",
        "direct_write_leaves_old_pages",
        "a direct write leaves its pages in the cache",
        Unit,
        &["mm::unit::direct::direct_writes_are_seen_by_cached_readers_at_once"],
    ),
    bug(
        "mm",
        "uncached_folio_kept",
        "an uncached write's folio stays when it is durable",
        Unit,
        &["mm::unit::uncached::uncached_writes_leave_nothing_once_they_are_durable"],
    ),
    bug(
        "mm",
        "viewed_frame_written",
        "a write goes into a frame that a view has",
        Unit,
        &["mm::unit::views::a_write_gives_a_viewed_folio_new_frames"],
    ),
    bug(
        "mm",
        "pin_ignored_by_a_punch",
        "truncate and punch do not wait for pins",
        Unit,
        &["mm::unit::pins::truncate_and_punch_are_busy_under_a_long_pin_at_once"],
    ),
    bug(
        "mm",
        "kept_pins_waited_for",
        "a pin without a callback counts as one that is given up on request, beside such a pin",
        Unit,
        &["mm::unit::revoke::all_holders_are_asked_and_none_beside_one_without_a_callback"],
    ),
    bug(
        "mm",
        "revoked_for_ever",
        "a holder that gave its pin up is not told when it may pin again",
        Unit,
        &["mm::unit::revoke::a_truncate_waits_until_the_holder_gave_its_pin_up"],
    ),
    bug(
        "mm",
        "pinned_without_dirtying",
        "a pin for a device's writes makes nothing dirty",
        Unit,
        &["mm::unit::pins::bytes_written_by_a_device_are_written_back"],
    ),
    bug(
        "mm",
        "pinned_folio_left_clean",
        "a sync leaves a folio clean that a device may still write",
        Unit,
        &["mm::unit::pins::a_sync_writes_what_a_device_may_write_and_leaves_it_dirty"],
    ),
    bug(
        "mm",
        "device_written_folio_not_copied",
        "the store is given memory to write that a device may be writing",
        Unit,
        &["mm::unit::pins::a_store_that_reads_twice_sees_one_version_of_what_a_device_writes"],
    ),
    bug(
        "mm",
        "pinned_while_it_is_written",
        "a pin for a device's writes does not wait for writeback",
        Unit,
        &["mm::unit::pins::a_device_gets_no_page_that_the_store_is_reading"],
    ),
    bug(
        "mm",
        "pinned_off_the_queues",
        "a pin takes its folio off reclaim's queues",
        Unit,
        &["mm::lib::pin::tests::a_pin_of_a_cached_folio_leaves_the_queues_alone"],
    ),
    bug(
        "mm",
        "pin_no_use_of_an_uncached_folio",
        "an uncached folio that was pinned is dropped",
        Unit,
        &["mm::unit::uncached::first_ordinary_use_keeps_the_folio"],
    ),
    bug(
        "mm",
        "source_faulted_in_first",
        "a write touches its source before the copy",
        Unit,
        &["mm::unit::write_path::the_source_is_touched_once"],
    ),
    bug(
        "mm",
        "fault_under_the_folio_lock",
        "a write's source is faulted in while the folio is locked",
        Unit,
        &["mm::unit::write_path::nothing_is_held_while_the_source_is_faulted_in"],
    ),
    bug(
        "mm",
        "half_written_grain_uptodate",
        "a grain counts that the copy did not get through",
        Unit,
        &["mm::unit::write_path::a_source_that_ends_in_its_middle_counts_to_there"],
    ),
    bug(
        "mm",
        "each_pin_asks_for_room",
        "a pin asks a store for its room",
        Unit,
        &["mm::unit::space::a_pin_asks_no_store_for_room"],
    ),
    bug(
        "mm",
        "each_write_asks_for_room",
        "each write asks a store that is nearly full for its room",
        Unit,
        &["mm::unit::space::writes_beside_a_nearly_full_store_share_one_answer"],
    ),
    bug(
        "mm",
        "late_answer_granted",
        "room is granted by a look that another one came after",
        Unit,
        &["mm::lib::dirty::space::tests::only_the_last_that_closed_a_grant_opens_it"],
    ),
    bug(
        "mm",
        "dirty_pages_paid_for_again",
        "a pin of dirty pages waits for the dirty limits",
        Unit,
        &["mm::lib::pin::tests::a_pin_of_dirty_pages_waits_for_no_dirty_limit"],
    ),
    bug(
        "mm",
        "pin_for_writes_is_a_hit",
        "a pin for a device's writes counts as a read",
        Unit,
        &["mm::lib::pin::tests::a_pin_counts_as_a_read_of_its_pages_or_as_a_write"],
    ),
    bug(
        "mm",
        "room_never_given_back",
        "the room that a write reserved in a full store is not given back",
        Unit,
        &["mm::unit::space::writers_of_many_files_share_the_room"],
    ),
    bug(
        "mm",
        "metadata_not_charged",
        "metadata beyond the bound is granted",
        Unit,
        &["mm::lib::readahead::tests::a_stream_starts_also_where_metadata_is_beyond_its_limit"],
    ),
    bug(
        "mm",
        "dirtied_after_no_look",
        "what becomes dirty in a pass is written without a look at the store",
        Model,
        &["mm::shuttle::looks::the_store_is_looked_at_before_each_write_to_it"],
    ),
    bug(
        "mm",
        "memory_given_up_by_count",
        "a caller is refused without a round of the reclaimer",
        Model,
        &["mm::shuttle::names::a_write_waits_for_names_that_can_give_way"],
    ),
    bug(
        "mm",
        "refilled_under_a_punch",
        "a linear frame is filled again while it is punched",
        Model,
        &[
            "mm::shuttle::linear::a_frame_that_is_to_be_punched_is_taken_back_by_whoever_fills_its_page_again",
        ],
    ),
    bug(
        "mm",
        "bad_frame_taken_for_mapped",
        "a frame in bad memory that the kernel does not map counts as mapped",
        Model,
        &["mm::shuttle::fault::a_frame_in_bad_memory_is_not_mapped_and_its_page_is_read_again"],
    ),
    bug(
        "mm",
        "mapped_before_it_is_dirty",
        "a page is writable in a window before it is dirty",
        Model,
        &["mm::shuttle::fault::no_store_through_a_page_that_another_made_writable_is_lost"],
    ),
    bug(
        "mm",
        "protected_after_the_write",
        "pages are write-protected when they are written, not before",
        Model,
        &["mm::shuttle::fault::no_store_is_lost"],
    ),
    bug(
        "mm",
        "version_kept_by_a_move",
        "a folio that moves keeps its version",
        Model,
        &["mm::loom::read_hit::a_folio_that_moves_is_read_in_one_of_its_frames"],
    ),
    bug(
        "mm",
        "copy_not_validated",
        "a read without a lock does not look at the version again",
        Model,
        &["mm::loom::read_hit::a_frame_that_is_recycled_is_not_read"],
    ),
    bug(
        "mm",
        "writers_not_held_off",
        "writers go on while changes by others are taken over",
        Model,
        &["fs::shuttle::file_locks::a_lock_beside_writers_shows_writes_by_others"],
    ),
    // vfs
    bug(
        "vfs",
        "missing_name_believed",
        "a name that others make stays missing",
        Model,
        &["vfs::shuttle::belief::a_name_that_is_made_outside_is_not_believed_to_be_missing"],
    ),
    bug(
        "vfs",
        "belief_outlives_lost_news",
        "lost news end no belief",
        Model,
        &["vfs::shuttle::belief::lost_news_end_the_belief_in_names"],
    ),
    bug(
        "vfs",
        "found_gone_not_expected",
        "a file that is found gone before the report of it is not given up",
        Model,
        &["vfs::shuttle::belief::a_file_that_is_removed_outside_is_given_up"],
    ),
    bug(
        "vfs",
        "answers_overtake_each_other",
        "an older answer about a name takes the place of a newer one",
        Model,
        &["vfs::shuttle::belief::a_name_that_was_seen_to_lead_elsewhere_does_not_lead_back"],
    ),
    bug(
        "vfs",
        "way_outlives_a_move",
        "threads go on using a way through a directory that has moved",
        Model,
        &["vfs::shuttle::prefix::a_remembered_directory_that_moves_is_not_found_where_it_was"],
    ),
    bug(
        "vfs",
        "half_a_rename_seen",
        "a walk does not notice that a name changes under it",
        Model,
        &["vfs::loom::dcache::a_reader_never_sees_half_a_move"],
    ),
    bug(
        "vfs",
        "removed_inode_found",
        "an inode is found that was just removed",
        Model,
        &["vfs::loom::icache::a_finder_of_a_torn_down_inode_returns"],
    ),
    bug(
        "vfs",
        "group_rights_not_asked",
        "a member of a file's group has the rights of others",
        Unit,
        &["fs::credentials_beside_tmpfs::random_users_in_memory"],
    )
    .needs(&[Need::Root, Need::Tmpfs]),
    bug(
        "vfs",
        "set_group_id_kept",
        "chmod by a user outside the group keeps the set-group-id bit",
        Unit,
        &["fs::credentials_beside_tmpfs::random_users_in_memory"],
    )
    .needs(&[Need::Root, Need::Tmpfs]),
    bug(
        "vfs",
        "set_id_bits_kept",
        "a write by a user keeps set-id bits",
        Unit,
        &["fs::unit::conformance::memfs"],
    ),
    bug(
        "vfs",
        "renamed_over_unwritten",
        "a rename over a file does not write the data first",
        Unit,
        &["foliocache::unit::written_first::a_replacing_name_comes_with_its_data"],
    ),
    bug(
        "vfs",
        "replaced_file_without_attributes",
        "an open file whose name is another's by now is asked for by it",
        Unit,
        &["foliocache::unit::replaced::a_replaced_file_that_is_open_answers_for_its_attributes"],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiers::Tier::System;

    #[test]
    fn tiers_are_those_of_the_tests() {
        for bug in BUGS {
            for test in bug.tests {
                let program = test.split("::").nth(1).unwrap_or("");
                let tier = match program.split('_').next() {
                    Some("loom" | "shuttle") => Model,
                    Some("system") => System,
                    _ => Unit,
                };
                assert_eq!(bug.tier, tier, "{}: {test}", bug.name);
            }
        }
    }

    #[test]
    fn there_are_bugs_in_each_crate() {
        let rooms = ["sync", "xarray", "mm", "vfs", "fs", "foliocache", "fuse"];
        for room in rooms {
            assert!(BUGS.iter().any(|bug| bug.room == room), "{room}");
        }
    }
}
