//! The tests of the unit tier, in one program: it is linked once. What needs a process of its own is a program beside it.
#![cfg(not(any(loom, shuttle)))]

#[path = "../common/mod.rs"]
mod common;

mod bad_memory;
mod direct;
mod exact_views;
mod fault_around;
mod file;
mod flush_generations;
mod fragmentation;
mod frame_faults;
mod give_back;
mod huge_frames;
mod large_folios;
mod mapping;
mod mapping_held;
mod names_hold_all;
mod pins;
mod read_batch;
mod read_in_place;
mod readahead;
mod relied;
mod revoke;
mod scattered_stores;
mod space;
mod uncached;
mod views;
mod write_and_wait;
mod write_path;
mod write_path_userfault;
mod writeback_fair;
mod writes_in_flight;
mod written_in_part;
