//! Rounds of a mode on a file system.

use crate::common::{Folder, Mounted, lacks, run, wait_for};
use crate::versions::modes::Mode;
use crate::versions::worker::{Role, Worker};
use foliocache_sim::Rng;
use foliocache_sim::versions::ledger::Ledger;
use foliocache_sim::versions::place::{Plain, can_have_capabilities};
use foliocache_sim::versions::readers::{Left, look_at_the_source};
use foliocache_sim::versions::writers::Writer;
use foliocache_sim::versions::{FILES, HOT, theirs};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of an image, sparse. XFS takes no less than 300 MiB.
const IMAGE: u64 = 512 << 20;

/// The longest round.
const ROUND: Duration = Duration::from_millis(1_500);

/// How long all workers may take to end before the mount's connection is cut.
const GRACE: Duration = Duration::from_secs(10);

/// Looks for each that may be wrong where the kernel keeps pages.
const LOOKS_FOR_ONE_ALLOWED: u64 = 1_000;

/// A folder whose source is a separate file system.
pub(crate) struct Disk {
    pub(crate) kind: &'static str,
    folder: Folder,
}

impl Disk {
    /// An ext4 and an XFS; without `mkfs` the disk of the build.
    pub(crate) fn all() -> Vec<Disk> {
        if lacks(&["mkfs"]) {
            let folder = Folder::new("versions-plain");
            return vec![Disk {
                kind: "disk",
                folder,
            }];
        }
        ["ext4", "xfs"].map(Disk::on_loop).into()
    }

    fn on_loop(kind: &'static str) -> Disk {
        let folder = Folder::new(&format!("versions-{kind}"));
        let image = folder.top().join("image");
        File::create(&image).unwrap().set_len(IMAGE).unwrap();
        run(Command::new(format!("mkfs.{kind}")).arg("-q").arg(&image));
        let mut mount = Command::new("mount");
        mount.args(["-o", "loop"]).arg(&image).arg(folder.source());
        run(&mut mount);
        Disk { kind, folder }
    }

    fn files(&self) -> PathBuf {
        self.folder.source().join("files")
    }
}

/// Counts of the work done.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    rounds: u64,
    kills: u64,
    /// Rounds in which a worker hung in the kernel until the connection was cut.
    hung: u64,
    looks: u64,
    allowed: u64,
}

/// Plays rounds of a mode for `time`, at least one. Returns the errors.
pub(crate) fn play(
    mode: &Mode,
    disk: &Disk,
    time: Duration,
    mut rng: Rng,
    counts: &mut Counts,
) -> Vec<String> {
    let files = disk.files();
    let _ = fs::create_dir(&files);
    let path = disk.folder.top().join("ledger");
    let _ = fs::remove_file(&path);
    let ledger = Ledger::open(&path).unwrap();
    ledger.set_capabilities(can_have_capabilities(&files).unwrap());
    let mut failures = Vec::new();
    let end = Instant::now() + time;
    while counts.rounds == 0 || Instant::now() < end && failures.is_empty() {
        let mut round = Round::begin(mode, disk, (&ledger, &path), &mut rng);
        let until = end.min(Instant::now() + ROUND);
        while Instant::now() < until && !round.is_disturbed() {
            thread::sleep(Duration::from_millis(20));
        }
        let kills = !rng.one_in(1, 3);
        counts.rounds += 1;
        counts.kills += u64::from(kills);
        let failed = match kills {
            true => round.kill(counts),
            false => round.end_well(),
        };
        let name = format!("{} on {}", mode.name, disk.kind);
        failures.extend(failed.into_iter().map(|failed| format!("{name}: {failed}")));
    }
    (counts.looks, counts.allowed) = ledger.looks();
    let most = 1 + counts.looks / LOOKS_FOR_ONE_ALLOWED;
    if counts.allowed > most {
        failures.push(format!("{} on {}: {counts:?}", mode.name, disk.kind));
    }
    failures
}

/// A mount at which writers and readers work.
struct Round<'a> {
    mode: &'a Mode,
    disk: &'a Disk,
    ledger: &'a Ledger,
    workers: Vec<Worker>,
    mounted: Option<Mounted>,
}

impl<'a> Round<'a> {
    fn begin(
        mode: &'a Mode,
        disk: &'a Disk,
        (ledger, path): (&'a Ledger, &Path),
        rng: &mut Rng,
    ) -> Self {
        let (source, point) = (disk.files(), disk.folder.mount_point());
        let mut writer = Writer {
            place: &Plain::new(&source, false),
            ledger,
            rng: rng.fork(),
        };
        ledger.set_ending(false);
        for file in 0..FILES.len() as u64 {
            writer.reset(file).unwrap();
        }
        let mounted = Some(disk.folder.mount_of(&source, mode.arguments));
        let reader = match mode.is_lenient() {
            true => Role::LenientReader,
            false => Role::Reader,
        };
        let others = [reader, reader, reader, Role::SourceReader, Role::Other];
        let roles = (0..HOT).map(Role::Writer).chain(others);
        let workers = roles.enumerate().map(|(number, role)| {
            let place = if role.is_beside() { &source } else { &point };
            let said = disk.folder.top().join(format!("said-{number}"));
            Worker::start(role, place, path, rng.next_u64(), &said)
        });
        Round {
            mode,
            disk,
            ledger,
            workers: workers.collect(),
            mounted,
        }
    }

    /// Whether a worker ended too early.
    fn is_disturbed(&mut self) -> bool {
        self.workers.iter_mut().any(Worker::has_ended)
    }

    fn all_ended(&mut self) -> bool {
        self.workers.iter_mut().all(Worker::has_ended)
    }

    /// Kills the mount during the work, and compares the source with the data that must be left.
    fn kill(mut self, counts: &mut Counts) -> Vec<String> {
        let disturbed = self.is_disturbed();
        let mounted = self.mounted.take().unwrap();
        self.ledger.set_ending(true);
        mounted.signal("KILL");
        let begun = Instant::now();
        while begun.elapsed() < GRACE && !(is_gone(mounted.pid()) && self.all_ended()) {
            thread::sleep(Duration::from_millis(10));
        }
        let point = self.disk.folder.mount_point();
        if !is_gone(mounted.pid()) || !self.all_ended() {
            // A notification of the dying process waits for a directory whose owner waits for an answer.
            counts.hung += 1;
            unmount(&point, "-f");
        }
        wait_for("the workers to end", || self.all_ended());
        mounted.wait();
        wait_for("the mount to go", || {
            unmount(&point, "-l");
            !self.disk.folder.is_mounted()
        });
        let left = match self.mode.waits_at_close() {
            true => Left::Closed,
            false => Left::Synced,
        };
        self.compare(left, !disturbed)
    }

    /// Ends the work, then the mount, and compares the source with the data written.
    fn end_well(mut self) -> Vec<String> {
        self.ledger.set_ending(true);
        wait_for("the workers to end", || self.all_ended());
        let at = [self.disk.files(), self.disk.folder.mount_point()];
        for file in theirs() {
            let name = FILES[file as usize].name;
            let content = |top: &PathBuf| fs::read(top.join(name)).ok();
            wait_for(name, || content(&at[0]) == content(&at[1]));
        }
        self.mounted.take().unwrap().end_well();
        self.compare(Left::All, false)
    }

    fn compare(self, left: Left, killed: bool) -> Vec<String> {
        let workers = self.workers.into_iter();
        let mut failures: Vec<_> = workers.flat_map(|worker| worker.failures(killed)).collect();
        let source = Plain::new(&self.disk.files(), false);
        failures.extend(look_at_the_source(&source, self.ledger, left));
        failures
    }
}

/// Whether a child has ended.
fn is_gone(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.map_or(true, |stat| stat.contains(") Z "))
}

fn unmount(point: &Path, how: &str) {
    let mut command = Command::new("umount");
    command.arg(how).arg(point).stderr(Stdio::null());
    let _ = command.status();
}
