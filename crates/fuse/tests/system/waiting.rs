//! Requests that wait for a store do not delay requests that need none.
//!
//! The mount has files whose stores hang when the test says so. More readers, fsyncs and throttled
//! writers wait for them than the mount has threads that read requests; everything else goes on.
//!
//! Needs FUSE and root.

use crate::common::{HookedFs, Mounted, mm, no_root_or_fuse};
use foliocache_fuse::FuseStats;
use foliocache_mm::{BackingDevInfo, BdiKind};
use foliocache_sim::{Effect, Faults, FaultyBackend, OpSet, Rule};
use foliocache_sync::Arc;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Prefix of the files whose stores hang.
const HUNG: &str = "hung";

/// Their size.
const SIZE: u64 = 64 << 20;

/// Longest duration of any step.
const PATIENCE: Duration = Duration::from_secs(60);

/// Processes of each kind.
const CALLERS: u64 = 16;

/// A mount with the files, and their stores.
fn mount_over(faults: &Faults, test: &str) -> (Mounted, Vec<Arc<FaultyBackend>>) {
    let mm = mm();
    let mut fs = HookedFs::new(&mm);
    let bdi = BackingDevInfo::new(&mm, HUNG.to_owned(), BdiKind::Storage).unwrap();
    let stores = (0..CALLERS).map(|_| FaultyBackend::new(HUNG, faults));
    let stores: Vec<_> = stores.collect();
    for (n, store) in stores.iter().enumerate() {
        fs.add_store(&bdi, &format!("{HUNG}{n}"), store.clone(), SIZE);
    }
    fs.before_lookup = Box::new(|_, name| {
        assert!(name != "panics", "a bug");
        Ok(())
    });
    (Mounted::new(test, &mm, fs), stores)
}

/// Lets the store go on when a test fails: the end of a mount waits for its requests.
struct HealAtEnd(Faults);

impl Drop for HealAtEnd {
    fn drop(&mut self) {
        self.0.heal();
    }
}

/// A program that uses the mount, in another process, because a thread of this one could not be
/// killed.
fn start(mounted: &Mounted, script: &str) -> Child {
    Command::new("sh")
        .args(["-c", script])
        .current_dir(&mounted.point)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Waits for a program, which must succeed; returns its output.
fn finish(mut child: Child, what: &str) -> String {
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("{what} hangs");
        }
        sleep(Duration::from_millis(2));
    }
    let done = child.wait_with_output().unwrap();
    assert!(done.status.success(), "{what}: {:?}", done.status);
    String::from_utf8(done.stdout).unwrap()
}

fn wait_for(mounted: &Mounted, what: &str, done: impl Fn(FuseStats) -> bool) {
    let start = Instant::now();
    while !done(mounted.mount().stats()) {
        let stats = mounted.mount().stats();
        assert!(start.elapsed() < PATIENCE, "{what}: {stats:?}");
        sleep(Duration::from_millis(2));
    }
}

/// Uses every part of the mount that needs no store.
fn use_the_rest(mounted: &Mounted) {
    let before = mounted.mount().stats().lookups;
    let script = "ls -l && stat cached && cat cached && for n in $(seq 50); do echo $n > new$n; done \
                  && cat new* | wc -l && rm new* && mkdir dir && rmdir dir && ! ls panics";
    let said = finish(start(mounted, script), "the rest of the mount");
    assert!(said.contains("\nin the cache\n50\n"), "{said}");
    wait_for(mounted, "forgets", |stats| stats.lookups <= before + 3);
}

#[test]
#[ignore = "system tier"]
fn hung_reads_and_fsyncs_hold_up_nothing_else() {
    if no_root_or_fuse() {
        return;
    }
    let faults = Faults::new(1);
    let (mounted, stores) = mount_over(&faults, "hung");
    finish(start(&mounted, "echo in the cache > cached"), "a file");
    let page = "dd if=hung0 bs=4096 count=1 skip=16000 of=/dev/null";
    finish(start(&mounted, page), "a page of the file");
    let _heal = HealAtEnd(faults.clone());
    faults.add(Rule::new(OpSet::ALL, Effect::Hang));
    let reads = (0..CALLERS).map(|n| format!("dd if=hung{n} bs=4096 count=1"));
    let writes = (0..CALLERS).map(|n| {
        let write = format!("dd of=hung{n} bs=4096 seek=900 conv=notrunc,fsync");
        format!("yes {n} | head -c 4096 | {write}")
    });
    let callers: Vec<_> = reads
        .chain(writes)
        .map(|script| start(&mounted, &script))
        .collect();
    // Six wait in the threads that read requests.
    wait_for(&mounted, "callers that wait", |stats| {
        stats.workers >= 2 * CALLERS - 6
    });
    use_the_rest(&mounted);
    // Cached bytes of the file itself are read too.
    finish(start(&mounted, page), "a cached page of the file");
    assert_eq!(mounted.mount().stats().panics, 1);
    faults.heal();
    for caller in callers {
        finish(caller, "a caller");
    }
    // The fsync was answered after the write before it.
    for store in stores {
        assert_eq!(store.unflushed(), 0);
        assert_eq!(store.broken_contract(), [""; 0]);
    }
    wait_for(&mounted, "closed files", |stats| stats.open_files == 0);
}

#[test]
#[ignore = "system tier"]
fn throttled_writers_hold_up_nothing_else() {
    if no_root_or_fuse() {
        return;
    }
    let faults = Faults::new(2);
    let (mounted, _stores) = mount_over(&faults, "throttled");
    finish(start(&mounted, "echo in the cache > cached"), "a file");
    let _heal = HealAtEnd(faults.clone());
    faults.add(Rule::new(OpSet::ALL, Effect::Hang));
    // 64 MiB, of which less than half may be dirty: at least ten writers wait.
    let write = |n| {
        let place = format!("dd of=hung{n} bs=1M conv=notrunc");
        let script = format!("yes {n} | head -c 4194304 | {place} iflag=fullblock");
        start(&mounted, &script)
    };
    let writers: Vec<_> = (0..CALLERS).map(write).collect();
    // All have looked up their file: later counts belong to the other calls.
    wait_for(&mounted, "writers that wait", |stats| {
        stats.workers >= 4 && stats.lookups > CALLERS
    });
    use_the_rest(&mounted);
    faults.heal();
    for writer in writers {
        finish(writer, "a writer");
    }
    for n in 0..CALLERS {
        let read = format!("dd if=hung{n} bs=1M count=4");
        let script = format!(
            "yes {n} | head -c 4194304 > /tmp/$$; {read} | cmp - /tmp/$$; s=$?; rm /tmp/$$; exit $s"
        );
        finish(start(&mounted, &script), "the bytes of a writer");
    }
}
