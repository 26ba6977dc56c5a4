//! Files that are append-only in the source, on a mount.
//!
//! Needs FUSE and root, and a build on a file system that knows such files.

use crate::common::{Folder, no_root_or_fuse, output, run, shell};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// A file of the source that is append-only while this lives.
struct Log(PathBuf);

impl Log {
    fn set(&self, flag: &str) {
        run(Command::new("chattr").arg(flag).arg(&self.0));
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.set("-a");
    }
}

#[test]
#[ignore = "system tier"]
fn a_log_that_is_append_only_is_appended_to_and_nothing_else() {
    if no_root_or_fuse() {
        return;
    }
    for arguments in [
        &[][..],
        &["--writeback", "close"],
        &["--writeback", "delayed"],
        &["--kernel-cache", "none"],
        &["--kernel-cache", "all"],
        &["--memory", "16M"],
    ] {
        let folder = Folder::new("append-only");
        let log = Log(folder.source().join("log"));
        fs::write(&log.0, "first\n").unwrap();
        log.set("+a");
        let mounted = folder.mount(arguments);
        let refused = |script: &str| {
            let mut sh = Command::new("sh");
            let done = output(
                sh.args(["-c", script])
                    .current_dir(folder.mount_point())
                    .env("LC_ALL", "C"),
            );
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            assert!(!done.status.success(), "{arguments:?}: {script}");
            assert!(said.contains("not permitted"), "{script}: {said}");
        };
        shell(
            &folder.mount_point(),
            "echo second >> log; cat log > /dev/null; echo third >> log
             printf fourth | dd oflag=append conv=notrunc,fsync status=none of=log
             seq 50000 >> log; seq 50000 | while read -r line; do echo $line; done >> log",
        );
        refused("printf x | dd conv=notrunc,fsync status=none of=log");
        refused("printf x | dd conv=notrunc,fsync status=none bs=1 seek=7 of=log");
        refused("truncate -s 3 log");
        refused("truncate -s 10M log");
        refused("mv log other");
        refused("rm -f log");
        refused(": > log");
        let expected = "printf 'first\nsecond\nthird\nfourth'; seq 50000; seq 50000";
        shell(
            folder.top(),
            &format!(
                "sync mount/log; {{ {expected}; }} > expected; cmp expected mount/log; cmp expected source/log"
            ),
        );
        mounted.end_well();
        shell(folder.top(), "cmp expected source/log");
    }
}
