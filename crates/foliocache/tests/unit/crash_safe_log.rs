//! The example of that name, run.
#![allow(dead_code, reason = "a program of its own")]

#[path = "../../examples/crash_safe_log.rs"]
mod example;

use crate::common::on_disk;
use std::env;
use std::process::Command;

const DIRECTORY: &str = "FOLIOCACHE_TEST_LOG";

/// Not a test: the process that `every_acknowledged_record_survives_kills_and_a_torn_tail` kills.
#[test]
fn process_that_logs() {
    if let Some(path) = env::var_os(DIRECTORY) {
        example::write(path.as_ref()).unwrap();
    }
}

#[test]
fn every_acknowledged_record_survives_kills_and_a_torn_tail() {
    let directory = on_disk();
    let writer = || {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args([
            "--exact",
            "crash_safe_log::process_that_logs",
            "--nocapture",
        ]);
        command.env(DIRECTORY, directory.path());
        command
    };
    let records = example::kill_and_recover(directory.path(), writer).unwrap();
    assert!(records >= 1000, "{records}");
}
